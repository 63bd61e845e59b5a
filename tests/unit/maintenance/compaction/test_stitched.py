"""Files that are put together byte for byte: the task, and what it tells of where their rows went."""

import pytest
from msgspec.structs import replace

from icekeep.errors import UnavailableError
from icekeep.formats.rewrite import verify as verifying
from icekeep.maintenance.compaction.stitched import run_stitch, stitch_task
from icekeep.planning.manifests.entry_schema import METRICS
from icekeep.spec.types import INT, LONG
from kit.columns import schema_of
from kit.moved_rows import MOVING, OldFile, check_moves, deleting, moving_task, old_file
from kit.storage import MemoryStorage


@pytest.fixture
def storage():
    return MemoryStorage()


def task_of(files, pieces):
    metrics = {file.path: {name: getattr(file.file, name) for name in METRICS.names} for file in files}
    return stitch_task(moving_task(pieces), metrics, may_reencode=True)


@pytest.mark.parametrize(("key_type", "stitched_count"), [(LONG, 1), (INT, 0)])
def test_rows_are_found_whether_files_are_put_together_or_encoded_anew(storage, key_type, stitched_count):
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


@pytest.mark.parametrize("name", ["TaskRows", "hash_of_files"])
def test_a_stitched_file_is_not_left_behind_where_the_store_fails_while_it_is_proved(storage, monkeypatch, name):
    files = [OldFile(file=old_file(storage, 0, 30))]
    task = task_of(files, deleting(storage, files)[1])
    before = set(storage.files)

    def fail(*_, **__):
        raise UnavailableError("the store is away")

    monkeypatch.setattr(verifying, name, fail)
    with pytest.raises(UnavailableError):
        run_stitch(replace(task, rewrite=replace(task.rewrite, verifies=True)), storage)
    assert set(storage.files) == before
