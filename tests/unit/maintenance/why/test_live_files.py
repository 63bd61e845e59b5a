"""Files that snapshots read or metadata names, and until when they are kept."""

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import OperatorRules
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ExpressionError, NotFoundError, UsageError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.why.fate import SnapshotRetention, fate_of_read, kept_until
from icekeep.maintenance.why.job import why
from icekeep.maintenance.why.reasons import FileState
from icekeep.maintenance.why.search import Target
from icekeep.planning.spark.session import Engine, Limits
from icekeep.spec.retention import RetentionPolicy, select_expired
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import rollback_to_snapshot
from icekeep.version import ICEKEEP_VERSION
from kit.cases import for_each
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions, vector_files
from kit.job_world import World
from kit.metadata import START_MS, MetadataBuilder
from kit.naive_scan import live_entries
from kit.runtime import no_spark
from kit.tables import manifests_of

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
def test_live_file_has_its_commit_and_all_references(version):
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


def test_every_kind_of_delete_for_a_file_is_reported():
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


def test_a_puffin_file_with_several_vectors():
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


def test_a_file_that_a_rewrite_removed():
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
def test_reported_time_is_when_expiration_deletes_the_file(off_ms):
    world = World(2)
    world.append(0)
    path = data_files(world.table)[0].file_path
    commit(world.table, DeleteFiles(paths=frozenset([path])))
    result = told(world, path)
    world.runtime.clock_ms = result.retained_until_ms + off_ms
    expire_snapshots(world.table, no_spark, trash=0)
    assert (path in world.memory.files) is (off_ms < 0)


def test_file_of_an_unreferenced_snapshot_is_retained():
    world = World(2)
    first = world.append(0).metadata.current_snapshot_id
    file, added = appended(world, 1)
    rollback_to_snapshot(world.table, first)
    result = told(world, file.file_path)
    assert (result.state, [ref.ref for ref in result.refs]) == (FileState.RETAINED, [None])
    assert of_events(result) == [("added", added.snapshot_id)]
    assert result.retained_until_ms == added.timestamp_ms + 5 * DAY_MS + 1


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


def test_each_manifest_is_read_once():
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


def test_ambiguous_path_suffix_is_refused_with_examples():
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


S3 = "s3://lake/wh/t/data/day=1/x.parquet"


@pytest.fixture
def world():
    made = World(2, commit__manifest_merge__enabled="false")
    for number in range(3):
        made.append(number)
    return made


def test_a_manifest_is_told_with_the_snapshots_that_name_it(world):
    table = world.table
    manifest = manifests_of(table)[-1]
    result = told(world, manifest.manifest_path)
    assert (result.kind, result.state, result.snapshots_count) == ("manifest", FileState.CURRENT, 3)
    assert [(e.event, e.snapshot_id) for e in result.history] == [("added", table.metadata.snapshots[0].snapshot_id)]
    rewrite_manifests(table, no_spark)
    rewritten = told(world, manifest.manifest_path.rpartition("/")[2])
    assert (rewritten.state, rewritten.snapshots_count) == (FileState.RETAINED, 3)
    removed = rewritten.history[-1]
    assert (removed.event, removed.snapshot_id) == ("removed", world.table.metadata.current_snapshot_id)
    world.memory.files[world.table.current_snapshot.manifest_list] = (b"broken", 0)
    unsure = told(world, manifest.manifest_path)
    assert [event.event for event in unsure.history] == ["added"]
    assert unsure.unreadable_files == (world.table.current_snapshot.manifest_list,)


def test_metadata_files_are_told_with_their_place_in_the_log(world):
    table = world.table
    current, old = told(world, table.metadata_location), told(world, table.metadata.metadata_log[1].metadata_file)
    assert (current.kind, current.state) == ("metadata file", FileState.CURRENT)
    assert (old.kind, old.state) == ("metadata file", FileState.RETAINED)
    assert "number 2 of 3 in the metadata log" in old.answer
    assert "`expire_snapshots` or `remove_orphan_files` takes it" in old.answer
    deleting = {"write.metadata.delete-after-commit.enabled": "true"}
    changed = replace(table, metadata=replace(table.metadata, properties=deleting))
    assert "the commit deletes it" in why(changed, old.file_path, no_spark).answer
    hint = f"{table.metadata.location}/metadata/version-hint.text"
    assert told(world, hint).kind == "version hint"


def test_statistics_file_names_its_snapshot(world):
    table = world.table
    first, _, last = table.metadata.snapshots
    paths = [f"{table.metadata.location}/metadata/{name}" for name in ("a.stats", "b.parquet")]
    statistics = StatisticsFile(
        snapshot_id=first.snapshot_id, statistics_path=paths[0], file_size_in_bytes=9, file_footer_size_in_bytes=1
    )
    partitions = PartitionStatisticsFile(snapshot_id=last.snapshot_id, statistics_path=paths[1], file_size_in_bytes=9)
    metadata = replace(table.metadata, statistics=(statistics,), partition_statistics=(partitions,))
    results = [why(replace(table, metadata=metadata), path, no_spark) for path in paths]
    assert [result.kind for result in results] == ["statistics file"] * 2
    assert [result.state for result in results] == [FileState.RETAINED, FileState.CURRENT]
    assert [(r.history[0].event, r.history[0].snapshot_id) for r in results] == [
        ("describes", first.snapshot_id),
        ("describes", last.snapshot_id),
    ]
    assert "not in storage" in results[0].answer


def test_no_manifest_is_opened_for_a_file_that_metadata_names(world):
    manifests = {manifest.manifest_path for manifest in manifests_of(world.table)}
    opened = []
    world.storage.before = lambda what, where: opened.append(where) if what in ("read", "open") else None
    told(world, world.table.current_snapshot.manifest_list)
    told(world, next(iter(manifests)))
    assert not manifests & {*opened}


def test_a_filter_for_a_file_that_has_no_rows_is_noted(world):
    assert (
        "a filter says something of data files"
        in told(world, manifests_of(world.table)[0].manifest_path, where="id = 1").notes[0]
    )


def test_a_file_is_found_by_another_spelling_of_its_location(world):
    path = data_files(world.table)[0].file_path
    odd = path.replace("/db/events/", "//db/./x/../events/")
    assert odd != path
    assert told(world, odd) == told(world, path)
    assert told(world, path).file_path == path
    elsewhere = told(world, path.replace("memory://lake/", "memory://sea/"))
    assert (elsewhere.file_path, elsewhere.notes[0].partition(" has its path")[1]) == (path, " has its path")


def test_a_snapshot_of_version_1_may_name_its_manifests_itself():
    world = World(1, commit__manifest_merge__enabled="false")
    world.append(0)
    world.append(1)
    table = world.table
    path = data_files(table)[0].file_path
    listed = {s.snapshot_id: manifests_at(table, s) for s in table.metadata.snapshots}
    unlisted = [replace(s, manifest_list=None, manifests=listed[s.snapshot_id]) for s in table.metadata.snapshots]
    bare = replace(table, metadata=replace(table.metadata, snapshots=tuple(unlisted)))
    result, with_lists = (why(one, path, no_spark) for one in (bare, table))
    assert (result.history, result.refs) == (with_lists.history, with_lists.refs)
    broken = listed[unlisted[0].snapshot_id][0]
    world.memory.files[broken] = (b"broken", 0)
    result = why(bare, path, no_spark)
    assert result.unreadable_files == (broken,)
    assert all(str(snapshot_id) in result.notes[-1] for snapshot_id in listed)


def manifests_at(table, snapshot):
    return tuple(m.manifest_path for m in ManifestReader(table.storage).manifests(snapshot))


@for_each(
    ("text", "is_meant"),
    [
        (S3, True),
        ("s3a://lake/wh/t/data/day=1/x.parquet", True),
        ("s3n://lake/wh//t/data/./day=1/x.parquet", True),
        # Another scheme or authority of the same path: what maintenance takes for the same file.
        ("gs://lake/wh/t/data/day=1/x.parquet", True),
        ("/data/day=1/x.parquet", True),
        ("x.parquet", True),
        ("1/x.parquet", True),
        ("y.parquet", False),
        ("s3://lake/wh/t/data/day=2/x.parquet", False),
        ("s3://lake/wh/u/data/day=1/x.parquet", False),
    ],
)
def test_path_matches_any_spelling_or_a_suffix(text, is_meant):
    target = Target.of(text)
    assert target.among([S3]) == ([S3] if is_meant else [])
    assert target.chosen(target.among([S3, S3])) == (S3 if is_meant else None)


def test_exact_location_wins_over_path_and_suffix():
    others = ["gs://lake/wh/t/data/day=1/x.parquet", "s3://bucket/x.parquet/x.parquet"]
    assert Target.of("s3a://lake/wh/t/data/day=1/x.parquet").chosen([*others, S3]) == S3
    of_path = ["s3://lake/wh/t/data/x", "s3://lake/other/wh/t/data/x"]
    assert Target.of("hdfs://nn/wh/t/data/x").chosen(of_path) == Target.of("/wh/t/data/x").chosen(of_path) == of_path[0]
    with pytest.raises(UsageError, match=r"3 files end with 'x\.parquet'"):
        Target.of("x.parquet").chosen([*others, S3])


WEEK = RetentionPolicy(keep_writer_progress_ms=7 * DAY_MS)


def days(number):
    return START_MS + round(number * DAY_MS)


@for_each(
    ("table", "readers", "expected"),
    [
        # Snapshot n was made on day n - 1; what is older than five days goes.
        (MetadataBuilder().commits(4), {1}, SnapshotRetention(days(5) + 1)),
        (MetadataBuilder().commits(4), {1, 3}, SnapshotRetention(days(7) + 1)),
        (MetadataBuilder().commits(4), {4}, SnapshotRetention(None, ("branch main",))),
        (MetadataBuilder().commits(4).tag("t", at=1), {1}, SnapshotRetention(None, ("tag t",))),
        (MetadataBuilder().commits(4).tag("t", at=1, max_ref_age_ms=9 * DAY_MS), {1}, SnapshotRetention(days(9) + 1)),
        (
            MetadataBuilder().commits(4).branch("b", at=2).commits(1, branch="b"),
            {5},
            SnapshotRetention(None, ("branch b",)),
        ),
        (
            MetadataBuilder().commits(4).branch("main", min_snapshots_to_keep=2),
            {3},
            SnapshotRetention(None, ("branch main, which keeps its newest snapshots whatever their age",)),
        ),
        (MetadataBuilder().commits(4).branch("main", min_snapshots_to_keep=2), {2}, SnapshotRetention(days(6) + 1)),
        (
            MetadataBuilder().commits(4).branch("main", max_snapshot_age_ms=20 * DAY_MS),
            {1},
            SnapshotRetention(days(20) + 1),
        ),
        (
            MetadataBuilder().commits(4).properties({"history.expire.max-snapshot-age-ms": "1"}),
            {1},
            SnapshotRetention(days(4)),
        ),
        (MetadataBuilder().commits(2).stage(at_ms=days(3)), {3}, SnapshotRetention(days(8) + 1)),
    ],
)
def test_file_is_kept_until_its_last_snapshot_expires(table, readers, expected):
    metadata, now_ms = table.build(), days(4)
    assert kept_until(metadata, OperatorRules(), frozenset(readers), now_ms) == expected
    if expected.until_ms is not None and expected.until_ms > now_ms:
        before, then = (select_expired(metadata, WEEK, expected.until_ms - n).snapshot_ids for n in (1, 0))
        assert not readers <= before
        assert readers <= then


def test_many_tags_that_keep_a_file():
    kept = SnapshotRetention(None, tuple(f"tag restored-{n}" for n in range(2_000)))
    said = fate_of_read(is_current=False, kept=kept, now_ms=0, is_missing=False, back=None)
    assert said.endswith("kept by tag restored-0, tag restored-1, tag restored-2 and 1,997 more")
