"""Files that snapshots read, on real tables in memory."""

import pyarrow as pa
import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import ExpressionError, NotFoundError, UsageError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.why.job import why
from icekeep.maintenance.why.reasons import FileState
from icekeep.planning.spark.session import Engine, Limits
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import rollback_to_snapshot
from icekeep.version import ICEKEEP_VERSION
from kit.cases import for_each
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions, vector_files
from kit.job_world import World
from kit.naive_scan import live_entries
from kit.runtime import no_spark

DAY_MS = 86_400_000
BY_MONTH = (("at", "month"),)
OURS = f"icekeep {ICEKEEP_VERSION}"


def told(world, path, **more):
    return why(world.table, path, no_spark, **more)


def of_events(result):
    return [(event.event, event.snapshot_id) for event in result.history]


def appended(world, number, **more):
    """The only file that a commit appends, and the snapshot."""
    before = {file.file_path for file in data_files(world.table)}
    table = world.append(number, **more)
    (file,) = (file for file in data_files(table) if file.file_path not in before)
    return file, table.metadata.current_snapshot


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_live_file_is_told_with_who_added_it_and_all_that_reads_it(version):
    world = World(version, BY_MONTH)
    world.append(0, month=2)
    file, added = appended(world, 1, month=2)
    newest = world.append(2, month=2).metadata.current_snapshot
    create_tag(world.table, "audit", snapshot_id=added.snapshot_id)
    result = told(world, file.file_path)
    assert (result.kind, result.state, result.is_in_storage) == ("data file", FileState.CURRENT, True)
    assert (result.record_count, result.partition) == (5, "at_month=2013-02")
    assert result.stored_bytes == file.file_size_in_bytes
    assert of_events(result) == [("added", added.snapshot_id)]
    assert (result.history[0].made_by, result.history[0].timestamp_ms) == (OURS, added.timestamp_ms)
    assert [(r.ref, r.type, r.is_in_head, r.snapshots_count) for r in result.refs] == [
        ("main", "branch", True, 2),
        ("audit", "tag", True, 1),
    ]
    assert (result.refs[0].oldest_timestamp_ms, result.refs[0].newest_timestamp_ms) == (
        added.timestamp_ms,
        newest.timestamp_ms,
    )
    assert (result.snapshots_count, result.retained_until_ms) == (2, None)
    assert result.kept_by == ("branch main", "tag audit")
    assert (result.deletes_count, result.notes, result.unreadable_files) == (0, (), ())
    assert {c.column: c.known for c in result.columns}["id"] == "1000000 to 1000004, 0 nulls of 5 rows"


def test_every_kind_of_delete_that_reaches_a_file_is_told_and_no_other():
    world = World(2, BY_MONTH)
    world.append(0)
    world.append(1, month=3)
    file, other = data_files(world.table)
    ids = [
        delete_positions(world.table, [(file.file_path, 1)]).metadata.current_snapshot_id,
        delete_equal(world.table, pa.table({"id": [2, 3]}), ["id"], like=file).metadata.current_snapshot_id,
    ]
    delete_positions(world.table, [(other.file_path, 0)])
    delete_equal(world.table, pa.table({"id": [1_000_001]}), ["id"], like=other)
    result = told(world, file.file_path)
    assert result.deletes_count == 2
    assert [(d.kind, d.record_count, d.snapshot_id, d.made_by) for d in result.deletes] == [
        ("position delete file", 1, ids[0], OURS),
        ("equality delete file", 2, ids[1], OURS),
    ]
    delete = told(world, result.deletes[0].file_path)
    assert (delete.kind, delete.state, of_events(delete)) == (
        "position delete file",
        FileState.CURRENT,
        [("added", ids[0])],
    )
    assert (delete.record_count, delete.deletes_count, delete.columns) == (1, None, ())


def test_a_puffin_file_with_several_vectors_is_one_file_and_takes_the_place_of_position_deletes():
    world = World(3)
    world.append(0, 1)
    first, second = data_files(world.table)
    with_one = delete_by_vector(world.table, first.file_path, [0])
    both = with_vectors(world.table, [(first, 1), (second, 2)])
    result = told(world, first.file_path)
    assert [(d.kind, d.record_count) for d in result.deletes] == [("deletion vector", 2)]
    puffin = told(world, result.deletes[0].file_path)
    assert (puffin.kind, puffin.record_count, puffin.vectors_count) == ("deletion vectors", 3, 2)
    assert {vector.referenced_data_file: vector.record_count for vector in puffin.vectors} == {
        first.file_path: 2,
        second.file_path: 1,
    }
    old = next(d for d in why(with_one, first.file_path, no_spark).deletes)
    assert of_events(told(world, old.file_path)) == [
        ("added", with_one.metadata.current_snapshot_id),
        ("removed", both.metadata.current_snapshot_id),
    ]
    replaced = delete_by_vector(world.table, second.file_path, [3])
    again = told(world, puffin.file_path)
    assert (again.state, again.vectors_count, again.record_count) == (FileState.CURRENT, 1, 2)
    assert of_events(again)[-1] == ("removed in part", replaced.metadata.current_snapshot_id)


def with_vectors(table, positions):
    named = {file.file_path for file, _ in positions}
    old = tuple(e for e in live_entries(table) if e.data_file.referenced_data_file in named)
    return commit(table, RowDelta(added_deletes=vector_files(table, positions, old), removed_deletes=old)).table


def test_a_file_that_a_rewrite_removed_is_told_with_the_rewrite_and_until_when_its_snapshot_stays():
    world = World(2)
    for number in range(3):
        world.append(number)
    before = world.table
    path = data_files(before)[0].file_path
    compact(world.table, no_spark, options={"rewrite-all": "true"})
    rewrite = world.table.metadata.current_snapshot
    result = told(world, path)
    assert result.state is FileState.RETAINED
    assert of_events(result)[-1] == ("removed", rewrite.snapshot_id)
    assert result.history[-1].operation == "replace"
    newest = before.metadata.current_snapshot
    assert result.retained_until_ms == newest.timestamp_ms + 5 * DAY_MS + 1
    assert (result.kept_by, result.refs[0].is_in_head) == ((), False)
    assert result.snapshots_count == 3
    create_tag(world.table, "audit", snapshot_id=newest.snapshot_id)
    world.runtime.pass_ms(10 * DAY_MS)
    kept = told(world, path)
    assert (kept.state, kept.retained_until_ms, kept.kept_by) == (FileState.RETAINED, None, ("tag audit",))
    assert "kept by tag audit" in kept.answer


@pytest.mark.parametrize("off_ms", [-1, 0])
def test_the_moment_that_is_told_is_that_at_which_expiration_takes_the_file(off_ms):
    world = World(2)
    world.append(0)
    path = data_files(world.table)[0].file_path
    commit(world.table, DeleteFiles(paths=frozenset([path])))
    result = told(world, path)
    world.runtime.clock_ms = result.retained_until_ms + off_ms
    expire_snapshots(world.table, no_spark, trash=0)
    assert (path in world.memory.files) is (off_ms < 0)


def test_a_file_that_only_a_snapshot_on_no_branch_reads_is_told_so():
    world = World(2)
    first = world.append(0).metadata.current_snapshot_id
    file, added = appended(world, 1)
    rollback_to_snapshot(world.table, first)
    result = told(world, file.file_path)
    assert (result.state, [ref.ref for ref in result.refs]) == (FileState.RETAINED, [None])
    assert of_events(result) == [("added", added.snapshot_id)]
    assert result.retained_until_ms == added.timestamp_ms + 5 * DAY_MS + 1


def test_a_branch_that_keeps_its_newest_snapshots_keeps_a_file_for_good():
    world = World(2, history__expire__min_snapshots_to_keep="2")
    world.append(0)
    path = data_files(world.table)[0].file_path
    commit(world.table, DeleteFiles(paths=frozenset([path])))
    result = told(world, path)
    assert result.retained_until_ms is None
    assert result.kept_by == ("branch main, which keeps its newest snapshots whatever their age",)


def test_a_filter_is_asked_of_the_version_that_has_the_file():
    world = World(2, BY_MONTH)
    world.append(0)
    path = data_files(world.table)[0].file_path
    by_partition = told(world, path, where="at > '2013-02-01'")
    assert (by_partition.is_read_by_filter, by_partition.pruned_by, by_partition.columns) == (False, "manifest", ())
    by_bounds = told(world, path, where="id > 4")
    assert (by_bounds.pruned_by, by_bounds.evidence[-1].known) == ("metrics", "0 to 4, 0 nulls of 5 rows")
    assert told(world, path, where="id > 3").is_read_by_filter
    commit(world.table, DeleteFiles(paths=frozenset([path])))
    assert told(world, path, where="id > 4").pruned_by == "metrics"
    with pytest.raises((ExpressionError, NotFoundError)):
        told(world, path, where="nothing > 4")


def test_many_entries_are_looked_for_in_tasks_and_few_are_not():
    world = World(2)
    world.append(0)
    path = data_files(world.table)[0].file_path
    with pytest.raises(AssertionError, match="Spark was started"):
        why(world.table, path, Engine(spark=no_spark, limits=Limits(folded_entries_count=0)))


def test_each_manifest_is_read_once_however_many_snapshots_name_it():
    world = World(2, commit__manifest_merge__enabled="false")
    for number in range(4):
        world.append(number)
    for name in "abc":
        create_branch(world.table, name)
    path = data_files(world.table)[0].file_path
    bounded = told(world, path, where="id > 4")
    reads = []
    world.storage.before = lambda what, where: reads.append(where) if what in ("read", "open") else None
    assert told(world, path, where="id > 4") == bounded
    manifests = [where for where in reads if where.endswith(".avro") and "/snap-" not in where]
    # That of the file is read once more, for its bounds.
    assert sorted(map(manifests.count, {*manifests})) == [1, 1, 1, 2]


def test_an_end_that_several_files_have_is_refused_and_some_of_them_named():
    world = World(2)
    world.append(0, 1)
    files = data_files(world.table)
    with pytest.raises(UsageError, match=r"2 files end with '\.parquet': .*; give more of it") as raised:
        told(world, ".parquet")
    assert files[0].file_path in str(raised.value)
    name = files[1].file_path.rpartition("/")[2]
    assert told(world, name).file_path == told(world, f"/{name}").file_path == files[1].file_path


@for_each("path", ["", " ", "data/", None, 5])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(UsageError, match="is no file"):
        why(None, path, no_spark)
