"""Files that are put together byte for byte: the task, and what it tells of where their rows went."""

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, UnavailableError
from icekeep.formats.row_hash import RowSum
from icekeep.maintenance.compact import tasks as stitched
from icekeep.maintenance.compact.method import GroupMethod
from icekeep.maintenance.compact.options import RewriteMethod
from icekeep.maintenance.compact.plan import FileGroup
from icekeep.maintenance.compact.tasks import ColumnMetrics, MetricsInParts, run_stitch, stitch_task
from icekeep.planning.manifests import METRICS
from icekeep.spec.types import INT, LONG
from kit.columns import schema_of
from kit.spliced import MOVING, OldFile, check_moves, deleting, moving_task, old_file
from kit.storage import MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage()


def task_of(files, pieces):
    metrics = {
        file.path: msgspec.msgpack.encode(ColumnMetrics(**{name: getattr(file.file, name) for name in METRICS.names}))
        for file in files
    }
    return stitch_task(moving_task(pieces), metrics, may_reencode=True)


@pytest.mark.parametrize(("key_type", "stitched_count"), [(LONG, 1), (INT, 0)])
def test_moved_rows_are_found_if_stitched_or_reencoded(storage, key_type, stitched_count):
    fields = [replace(field, type=key_type) if field.name == "key" else field for field in MOVING.fields]
    data = [old_file(storage, 0, 30), old_file(storage, 1, 31, schema=schema_of(*fields))]
    files = [OldFile(file=file) for file in data]
    outcome = run_stitch(task_of(files, deleting(storage, files)[1]), storage)
    assert outcome.stitched_count == stitched_count
    check_moves(storage, [outcome], files)


def test_nothing_is_told_where_nobody_asks(storage):
    files = [OldFile(file=old_file(storage, 0, 30))]
    task = task_of(files, deleting(storage, files)[1])
    outcome = run_stitch(replace(task, rewrite=replace(task.rewrite, moves_directory=None)), storage)
    assert (outcome.stitched_count, outcome.moves) == (1, None)


def test_storage_failure_during_verify_removes_the_file(storage, monkeypatch):
    files = [OldFile(file=old_file(storage, 0, 30))]
    task = task_of(files, deleting(storage, files)[1])
    before = set(storage.files)

    def fail(*_, **__):
        raise UnavailableError("the store is away")

    monkeypatch.setattr(stitched, "rows_of_copy", fail)
    with pytest.raises(UnavailableError):
        run_stitch(replace(task, rewrite=replace(task.rewrite, verifies=True)), storage)
    assert set(storage.files) == before


def test_stitched_file_that_differs_is_kept_as_evidence(storage, monkeypatch):
    files = [OldFile(file=old_file(storage, 0, 30)), OldFile(file=old_file(storage, 1, 30))]
    task = task_of(files, deleting(storage, files)[1])
    verified = replace(task, rewrite=replace(task.rewrite, verifies=True))
    right = run_stitch(verified, storage)
    assert right.hash_in == RowSum(60) == right.hash_out
    storage.delete_many([right.files[0].file_path])
    before, stitch = set(storage.files), stitched.stitch
    swapped = replace(verified, files=verified.files[::-1])
    monkeypatch.setattr(stitched, "stitch", lambda _, *args, **facts: stitch(swapped.files, *args, **facts))
    with pytest.raises(IcekeepBug) as error:
        run_stitch(verified, storage)
    assert len(set(storage.files) - before) == len(error.value.facts["kept_files"]) == 1


@pytest.mark.parametrize(("most", "asked"), [(6, [[0, 1, 2]]), (5, [[0], [1, 2]])])
def test_metrics_are_read_only_for_groups_in_progress(monkeypatch, most, asked):
    """The driver never holds those of all files of a table."""
    monkeypatch.setattr(stitched, "STITCHED_FILES_A_JOB", most)
    groups = [
        FileGroup(
            number=number, partition="", spec_id=0, output_spec_id=0, files_count=2, bytes=2, record_count=2,
            expected_files_count=1,
        )
        for number in range(3)
    ]  # fmt: skip
    method = GroupMethod(method=RewriteMethod.STITCH, stitched=((0, 1),), files_count=1)
    read = []

    def reading(some):
        read.append([group.number for group in some])
        return {f"path-{group.number}": b"" for group in some}

    metrics = MetricsInParts(groups, {group.number: method for group in groups}, reading)
    for some in (groups[:1], groups[1:]):
        assert metrics.of(some).keys() >= {f"path-{group.number}" for group in some}
    assert read == asked
