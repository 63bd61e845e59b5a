"""What snapshots and own files say of a table, storage that is metered, and the score."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from icekeep.errors import InvalidTableError, UnavailableError
from icekeep.health import values as metered
from icekeep.health.files import Sickness, score_of
from icekeep.health.job import table_health
from icekeep.health.values import MeteredStorage, OwnFiles, Room, growth, last_maintenance, streams, with_own_files
from icekeep.maintenance.delete.plan_file import trash_directory
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.reports import job
from icekeep.reports.job import report
from icekeep.reports.prometheus import report_figures
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import DAY_MS
from icekeep.tables.verbs import append
from kit.cases import cases
from kit.expired_tables import in_trash, written_plan
from kit.job_world import World
from kit.lake import events
from kit.runtime import no_spark
from kit.storage import MemoryStorage

HOUR_MS = DAY_MS // 24


def snapshot(number, operation="replace", /, **summary):
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in summary.items()}
    if "trino-query-id" in named:
        named["trino_query_id"] = named.pop("trino-query-id")
    return Snapshot(
        snapshot_id=number,
        timestamp_ms=number * 1000,
        sequence_number=number,
        summary={"operation": operation, **named},
    )


def test_the_newest_of_each_kind_is_told_with_who_made_it():
    found = last_maintenance(
        [
            snapshot(1, deleted_data_files="5", added_data_files="1", engine_name="spark", engine_version="3.5.5"),
            snapshot(2, deleted_data_files="5", added_data_files="1", trino_query_id="q"),
            snapshot(3, "append", added_data_files="1"),
            snapshot(4, manifests_created="1", manifests_replaced="9"),
            snapshot(5, removed_delete_files="3", added_delete_files="1"),
            snapshot(6, icekeep__job="repair"),
            snapshot(7, "overwrite", deleted_data_files="5"),
        ]
    )
    assert [(one.job, one.snapshot_id, one.made_by) for one in found] == [
        ("repair", 6, "icekeep"),
        ("rewrite_position_deletes", 5, None),
        ("rewrite_manifests", 4, None),
        ("compact", 2, "Trino, query q"),
    ]


def test_streams_are_told_by_writer_with_their_last_snapshot():
    found = streams(
        [
            Snapshot(
                snapshot_id=1,
                timestamp_ms=1000,
                summary={"flink.job-id": "a", "flink.max-committed-checkpoint-id": "1"},
            ),
            Snapshot(
                snapshot_id=2,
                timestamp_ms=3000,
                summary={"flink.job-id": "a", "flink.max-committed-checkpoint-id": "2"},
            ),
            Snapshot(snapshot_id=3, timestamp_ms=2000, summary={"kafka.connect.offsets.topic.g": "{}"}),
            Snapshot(snapshot_id=4, timestamp_ms=9000, summary={}),
        ]
    )
    assert [(one.writer, one.snapshots_count, one.timestamp_ms) for one in found] == [
        ("Flink job a", 2, 3000),
        ("Kafka Connect topic.g", 1, 2000),
    ]


@pytest.mark.parametrize(("hours", "days"), [(6, 0.25), (48, 2)])
def test_growth_is_a_day_s(hours, days):
    world = World(2)
    world.append(1)
    world.runtime.pass_ms(hours * HOUR_MS - 1000)
    world.append(2, 3)
    metadata = world.table.metadata
    found = growth(metadata)
    total = [int(s.summary["total-files-size"]) for s in metadata.snapshots]
    assert found.daily_data_files_count == round(2 / days)
    assert found.daily_record_count == round(10 / days)
    assert found.daily_bytes == round((total[1] - total[0]) / days)
    assert found.since_timestamp_ms == metadata.snapshots[0].timestamp_ms


def test_growth_covers_last_days_and_needs_an_hour():
    world = World(2)
    for number in range(3):
        world.append(number)
        world.runtime.pass_ms(5 * DAY_MS)
    metadata = world.table.metadata
    assert growth(metadata).since_timestamp_ms == metadata.snapshots[1].timestamp_ms
    young = World(2)
    young.append(1)
    assert growth(young.table.metadata) is None
    young.append(2)
    assert growth(young.table.metadata) is None


def test_what_a_summary_does_not_tell_is_not_known():
    world = World(2)
    world.append(1)
    world.runtime.pass_ms(DAY_MS)
    metadata = world.append(2).metadata
    bare = [replace(s, summary={"operation": "append"}) for s in metadata.snapshots]
    found = growth(replace(metadata, snapshots=tuple(bare)))
    assert (found.daily_bytes, found.daily_data_files_count, found.daily_snapshots_count) == (None, None, 1)


def storage_of(**files: int) -> MemoryStorage:
    storage = MemoryStorage()
    for name, size in files.items():
        storage.create(f"memory://wh/{name}", b"x" * size)
    return storage


def test_tables_that_are_looked_at_at_once_share_one_room():
    storage, room = storage_of(a=60, b=60, c=40), Room(100)
    first, second = MeteredStorage(storage, room), MeteredStorage(storage, room)
    with first:
        with second:
            for one, name in ((first, "a"), (second, "b"), (second, "c")):
                for _ in range(2):
                    assert len(one.read(f"memory://wh/{name}")) == storage.head(f"memory://wh/{name}").size_bytes
            # There was no room for the second of the three.
            assert (first.requests_count, second.requests_count) == (1, 3)
        # What one gives back another may take.
        first.read("memory://wh/c")
        first.read("memory://wh/c")
        assert first.requests_count == 2
    assert room.take(100)


def test_a_look_leaves_nothing_in_memory_however_it_ends(monkeypatch):
    world = World(2)
    for number in range(3):
        world.append(number)
    room = Room(1_000_000)
    monkeypatch.setattr(metered.MeteredStorage.__init__, "__defaults__", (room,))
    table_health(world.table, no_spark)
    (manifest_list,) = [one for one in world.memory.files if "snap-" in one][-1:]
    world.memory.files[manifest_list] = (b"broken", world.memory.files[manifest_list][1])
    with pytest.raises(InvalidTableError):
        table_health(world.table, no_spark)
    assert room.take(1_000_000)


def test_a_table_of_many_snapshots_is_looked_at_alone(monkeypatch):
    world = World(2)
    world.append(1)
    assert not job._is_large(world.table)
    monkeypatch.setattr(job, "LARGE_SNAPSHOTS_COUNT", 0)
    assert job._is_large(world.table)


DAY_MS = 86_400_000


def world_with_history(snapshots=4):
    world = World(2)
    table = world.catalog.load(("db", "events"))
    for number in range(snapshots):
        table = append(table, [events(number, 5)])
    world.runtime.pass_ms(DAY_MS)
    return world


def expire(world, **arguments):
    table = world.catalog.load(("db", "events"))
    now = world.runtime.now_ms()
    return expire_snapshots(table, no_spark, older_than=now, retain_last=1, **arguments)


def looked_at(world):
    table = world.catalog.load(("db", "events"))
    health = table_health(table, no_spark)
    return health, with_own_files(health, table)


def test_a_table_without_any_takes_one_listing():
    before, found = looked_at(world_with_history())
    assert found.own_files == OwnFiles()
    assert (before.own_files, before.not_measured) == (None, found.not_measured)
    assert found.requests_count == before.requests_count + 1


def test_what_is_in_the_trash_and_until_when():
    world = world_with_history()
    done = expire(world, trash="3d")
    assert done.is_in_trash
    _, found = looked_at(world)
    own = found.own_files
    deleted = done.deleted_manifest_files_count + done.deleted_manifest_lists_count
    assert (own.waiting_plans_count, own.waiting_created_ms) == (0, None)
    assert (own.trash_files_count, own.trash_bytes) == (deleted, done.deleted_bytes_count)
    assert own.trash_until_ms == world.runtime.now_ms() + 3 * DAY_MS


def test_a_plan_that_waits_for_its_grace():
    world = world_with_history()
    made_ms = world.runtime.now_ms()
    done = expire(world, trash="0", options={"grace": "36h"})
    assert done.left_files_count > 0
    world.runtime.pass_ms(DAY_MS)
    _, found = looked_at(world)
    own = found.own_files
    assert (own.waiting_plans_count, own.waiting_created_ms) == (1, made_ms)
    assert (own.trash_files_count, own.trash_bytes, own.trash_until_ms) == (0, 0, None)


def test_a_plan_of_the_trash_that_died_waits_too():
    world = world_with_history()
    expire(world, trash="3d")
    table = world.catalog.load(("db", "events"))
    [run] = world.memory.child_names(trash_directory(table.metadata))
    world.memory.delete_many([f"{trash_directory(table.metadata)}/{run}/done.json"])
    own = looked_at(world)[1].own_files
    assert own.waiting_plans_count == 1
    assert own.trash_files_count > 0


def test_plans_are_summed_up():
    world = world_with_history()
    table = world.catalog.load(("db", "events"))
    runs = {"one": (True, 100), "two": (True, 20), "three": (False, 3), "four": (False, 4)}
    for run, (trash, size) in runs.items():
        location = f"{table.metadata.location}/data/{run}"
        world.memory.create(location, b"x")
        files = [GarbageFile(FileKind.DATA, location, size)]
        plan = written_plan(table, files, run=run, trash=trash, runtime=world.runtime)
        if run == "one":
            in_trash(plan, world.memory)
        world.runtime.pass_ms(DAY_MS)
    began_ms = world.runtime.now_ms() - 4 * DAY_MS
    assert looked_at(world)[1].own_files == OwnFiles(
        waiting_plans_count=3,
        waiting_bytes=27,
        waiting_created_ms=began_ms + DAY_MS,
        trash_files_count=2,
        trash_bytes=120,
        trash_until_ms=began_ms + 3 * DAY_MS,
    )


def test_failed_listing_is_noted_and_the_rest_stands():
    world = world_with_history()
    table = world.catalog.load(("db", "events"))
    health = table_health(table, no_spark)

    class Refusing:
        def child_names(self, location):
            raise UnavailableError(f"access to {location!r} is denied")

    found = with_own_files(health, replace(table, storage=Refusing()))
    assert found.own_files is None
    assert found.not_measured[-1].startswith("plans that wait, and the trash: access to ")
    assert found.score == health.score


def test_a_report_tells_it_also_as_metrics():
    world = world_with_history()
    table = world.catalog.load(("db", "events"))
    written_plan(table, [GarbageFile(FileKind.DATA, f"{table.metadata.location}/x", 7)], runtime=world.runtime)
    [found] = report(world.catalog, no_spark).tables
    assert found.own_files.trash_bytes == 7
    told = {one.metric.name.removeprefix("icekeep_table_"): one.value for one in report_figures(report(world.catalog))}
    assert told["trash_bytes"] == found.own_files.trash_bytes
    assert told["trash_until_timestamp_seconds"] == found.own_files.trash_until_ms / 1000
    assert told["waiting_deletion_plans"] == 1
    assert told["waiting_since_timestamp_seconds"] == world.runtime.now_ms() / 1000


COUNTS = st.integers(0, 10**7)
RATIOS = st.floats(0, 100)
BURDENS = {
    name: st.floats(1, 10**6) if name == "partition_skew" else RATIOS if isinstance(value, float) else COUNTS
    for name, value in asdict(Sickness()).items()
}
SICK = st.fixed_dictionaries(BURDENS).map(lambda values: Sickness(**values))


def test_a_table_without_any_burden_has_all_points():
    assert score_of(Sickness()) == (100.0, ())


def test_one_very_bad_part_is_enough_for_a_bad_score():
    assert score_of(Sickness(small_files_count=10_000))[0] < 40
    assert score_of(Sickness(deleted_ratio=5.0))[0] < 40
    assert score_of(Sickness(faults_count=20))[0] < 20


def test_few_small_files_among_many_others_do_not_matter():
    assert score_of(Sickness(small_files_count=100, other_files_count=1_000_000))[0] > 99


@cases(300)
@given(SICK)
def test_it_is_between_0_and_100_and_parts_say_what_it_lacks(sick):
    score, parts = score_of(sick)
    assert 0 <= score <= 100
    assert all(0 < part.lost < 100 and part.reason for part in parts)
    assert [part.lost for part in parts] == sorted((part.lost for part in parts), reverse=True)
    if parts:
        assert score <= 100 - parts[0].lost + 0.1


@cases(600)
@given(SICK, st.sampled_from(sorted({*BURDENS} - {"other_files_count"})), st.data())
def test_more_of_a_burden_never_raises_it(sick, name, data):
    more = getattr(sick, name) + data.draw(BURDENS[name])
    assert score_of(replace(sick, **{name: more}))[0] <= score_of(sick)[0]


@cases(200)
@given(SICK, COUNTS)
def test_files_of_a_right_size_never_lower_it(sick, more):
    better = replace(sick, other_files_count=sick.other_files_count + more)
    assert score_of(better)[0] >= score_of(sick)[0]


def test_a_reason_says_nothing_of_what_was_not_measured():
    _, (manifests, snapshots) = score_of(Sickness(spare_manifests_count=50, expirable_count=50))
    assert (manifests.reason, snapshots.reason) == ("50 manifests more than needed", "50 snapshots to expire")
    _, (manifests, snapshots) = score_of(
        Sickness(spare_manifests_count=50, expirable_count=50, mean_overlap=1.5, metadata_bytes=3000)
    )
    assert manifests.reason.endswith(", a filter on one partition opens 2.5")
    assert snapshots.reason.endswith(", a metadata file of 3,000 bytes")
