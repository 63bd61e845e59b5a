"""What summaries tell: last maintenance and by whom, streams, growth."""

import pytest
from msgspec.structs import replace

from icekeep.health.values import growth, last_maintenance, streams
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import DAY_MS
from kit.job_world import World

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


def test_growth_looks_at_the_last_days_alone_and_at_none_where_there_is_no_hour():
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
