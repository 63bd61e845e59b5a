"""Files that metadata leads to by name, and what a path means."""

import pytest
from msgspec.structs import replace

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import UsageError
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.why.job import why
from icekeep.maintenance.why.reasons import FileState
from icekeep.maintenance.why.search import Target
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.tables.refs import create_tag
from kit.cases import for_each
from kit.deletes import data_files
from kit.job_world import World
from kit.runtime import no_spark
from kit.tables import manifests_of

S3 = "s3://lake/wh/t/data/day=1/x.parquet"


@pytest.fixture
def world():
    made = World(2, commit__manifest_merge__enabled="false")
    for number in range(3):
        made.append(number)
    return made


def told(world, path, **more):
    return why(world.table, path, no_spark, **more)


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


def test_a_manifest_list_is_told_with_its_snapshot(world):
    first = world.table.metadata.snapshots[0]
    create_tag(world.table, "audit", snapshot_id=first.snapshot_id)
    result = told(world, first.manifest_list)
    assert (result.kind, result.state, result.snapshots_count) == ("manifest list", FileState.RETAINED, 1)
    assert [ref.ref for ref in result.refs] == ["main", "audit"]
    assert result.kept_by == ("tag audit",)


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


def test_statistics_are_told_with_the_snapshot_that_they_describe(world):
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
def test_a_path_means_a_location_in_whatever_spelling_or_the_end_of_one(text, is_meant):
    target = Target.of(text)
    assert target.among([S3]) == ([S3] if is_meant else [])
    assert target.chosen(target.among([S3, S3])) == (S3 if is_meant else None)


def test_the_very_location_goes_before_another_of_its_path_and_before_an_end():
    others = ["gs://lake/wh/t/data/day=1/x.parquet", "s3://bucket/x.parquet/x.parquet"]
    assert Target.of("s3a://lake/wh/t/data/day=1/x.parquet").chosen([*others, S3]) == S3
    of_path = ["s3://lake/wh/t/data/x", "s3://lake/other/wh/t/data/x"]
    assert Target.of("hdfs://nn/wh/t/data/x").chosen(of_path) == Target.of("/wh/t/data/x").chosen(of_path) == of_path[0]
    with pytest.raises(UsageError, match=r"3 files end with 'x\.parquet'"):
        Target.of("x.parquet").chosen([*others, S3])


def test_local_files_are_meant_with_or_without_a_scheme():
    for text in ("/wh/t/x", "file:/wh/t/x", "file:///wh/t/x"):
        assert Target.of(text).chosen(["file:///wh/t/x", "file:///other/wh/t/x"]) == "file:///wh/t/x"
