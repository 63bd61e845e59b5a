from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import TableMetadata, format_metadata, parse_metadata
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import PartitionStatisticsFile, Snapshot, SnapshotRef, StatisticsFile
from icekeep.spec.transforms import Identity
from icekeep.spec.types import LONG, NestedField
from icekeep.spec.updates import (
    RemovePartitionSpecs,
    RemoveSchemas,
    RemoveSnapshots,
    RestoreSnapshots,
    SetSnapshotRef,
    Update,
    apply_updates,
)
from kit.cases import for_each
from kit.metadata import DAY_MS, SCHEMA, START_MS, MetadataBuilder

NOW_MS = START_MS + 100 * DAY_MS
OLDER = Schema(fields=(NestedField(field_id=1, name="id", type=LONG),), schema_id=7)
BY_ID = PartitionSpec(spec_id=3, fields=(PartitionField(source_id=1, field_id=1000, name="id", transform=Identity()),))


def statistics(snapshot_id: int) -> StatisticsFile:
    return StatisticsFile(
        snapshot_id=snapshot_id, statistics_path="s3://b/s", file_size_in_bytes=9, file_footer_size_in_bytes=1
    )


def by_partition(snapshot_id: int) -> PartitionStatisticsFile:
    return PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path="s3://b/p", file_size_in_bytes=9)


def full(format_version: int = 2) -> TableMetadata:
    """Four snapshots; the second has a schema, a partition spec and statistics that nothing else has."""
    metadata = MetadataBuilder(format_version).commits(4).build()
    snapshots = [
        replace(s, sequence_number=0 if format_version == 1 else s.sequence_number) for s in metadata.snapshots
    ]
    snapshots[1] = replace(snapshots[1], schema_id=7)
    if format_version == 3:
        snapshots = [replace(s, first_row_id=10 * n, added_rows=10) for n, s in enumerate(snapshots)]
    return replace(
        metadata,
        snapshots=tuple(snapshots),
        schemas=(*metadata.schemas, OLDER),
        partition_specs=(*metadata.partition_specs, BY_ID),
        last_partition_id=1000,
        statistics=(statistics(2), statistics(4)),
        partition_statistics=(by_partition(2),),
        last_sequence_number=0 if format_version == 1 else 4,
        next_row_id=40 if format_version == 3 else None,
    )


def apply(base: TableMetadata, *updates: Update, now_ms: int = NOW_MS) -> TableMetadata:
    return apply_updates(base, updates, now_ms=now_ms)


def without(metadata: TableMetadata, *snapshot_ids: int) -> TableMetadata:
    return apply(metadata, RemoveSnapshots(snapshot_ids), RemoveSchemas((7,)), RemovePartitionSpecs((3,)))


def restoring(metadata: TableMetadata, *snapshot_ids: int, **parts: Any) -> RestoreSnapshots:
    snapshots = tuple(metadata.snapshots_by_id[i] for i in snapshot_ids)
    return RestoreSnapshots(snapshots=snapshots, **parts)


EVERYTHING = {
    "schemas": (OLDER,),
    "partition_specs": (BY_ID,),
    "statistics": (statistics(2),),
    "partition_statistics": (by_partition(2),),
}


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_what_was_removed_is_there_again_as_it_was(format_version: int):
    metadata = full(format_version)
    now = apply(without(metadata, 2, 3), restoring(metadata, 3, 2, **EVERYTHING))
    assert now.snapshots_by_id == metadata.snapshots_by_id
    assert now.schemas_by_id == metadata.schemas_by_id
    assert now.specs_by_id == metadata.specs_by_id
    assert {s.snapshot_id for s in now.statistics} == {2, 4}
    assert now.partition_statistics == metadata.partition_statistics
    assert parse_metadata(format_metadata(now), "m.json") == now


def test_snapshots_stand_where_they_stood():
    metadata = full()
    now = apply(without(metadata, 1, 3), restoring(metadata, 3, 1))
    assert [s.snapshot_id for s in now.snapshots] == [1, 2, 3, 4]


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_no_counter_log_or_reference_changes(format_version: int):
    metadata = full(format_version)
    base = without(metadata, 1, 2, 3)
    now = apply(base, restoring(metadata, 1, 2, 3))
    for name in (
        "last_sequence_number",
        "next_row_id",
        "last_column_id",
        "last_partition_id",
        "current_snapshot_id",
        "current_schema_id",
        "default_spec_id",
        "refs",
        "snapshot_log",
        "metadata_log",
    ):
        assert getattr(now, name) == getattr(base, name), name
    assert now.last_updated_ms == NOW_MS


def test_a_tag_of_the_same_commit_may_name_what_comes_back():
    metadata = full()
    tag = SnapshotRef(snapshot_id=2, type="tag", max_ref_age_ms=2**63 - 1)
    now = apply(without(metadata, 2), restoring(metadata, 2), SetSnapshotRef("restored-2", tag))
    assert now.refs == {**metadata.refs, "restored-2": tag}
    assert now.snapshot_log == without(metadata, 2).snapshot_log


def test_a_parent_that_is_gone_stays_named():
    metadata = full()
    now = apply(without(metadata, 1, 2, 3), restoring(metadata, 3))
    assert now.snapshots_by_id[3].parent_snapshot_id == 2
    assert [s.snapshot_id for s in now.ancestors(4)] == [4, 3]


def test_what_is_there_with_the_same_content_is_left_as_it_is():
    metadata = full()
    now = apply(metadata, restoring(metadata, 1, 2, **EVERYTHING))
    assert replace(now, last_updated_ms=0) == replace(metadata, last_updated_ms=0)


@for_each(
    ("parts", "what"),
    [
        ({"snapshots": (Snapshot(snapshot_id=2, timestamp_ms=1, sequence_number=2),)}, "snapshot 2"),
        ({"schemas": (replace(SCHEMA, schema_id=7),)}, "schema 7"),
        ({"partition_specs": (PartitionSpec(spec_id=3, fields=()),)}, "partition spec 3"),
        ({"statistics": (replace(statistics(2), file_size_in_bytes=8),)}, "statistics file of snapshot 2"),
        (
            {"partition_statistics": (replace(by_partition(2), file_size_in_bytes=8),)},
            "partition statistics file of snapshot 2",
        ),
    ],
)
def test_another_content_under_the_same_id_restores_nothing(parts: dict[str, Any], what: str):
    with pytest.raises(InvalidTableError) as raised:
        apply(full(), RestoreSnapshots(**{"snapshots": (), **parts}))
    assert raised.value.message == (
        f"{what} cannot be restored: the table has another one of this id by now; nothing was restored"
    )


def test_what_a_table_cannot_have_had_is_refused():
    metadata = full()
    base = replace(without(metadata, 1, 2, 3), snapshots=(), refs={}, current_snapshot_id=None)
    with pytest.raises(
        InvalidTableError, match="its sequence number 3 is above last-sequence-number 2, so this table never"
    ):
        apply(replace(base, last_sequence_number=2), restoring(metadata, 3))
    with pytest.raises(InvalidTableError, match="its row ids end at 20, above next-row-id 19"):
        apply(replace(without(full(3), 2), next_row_id=19), restoring(full(3), 2))
    with pytest.raises(InvalidTableError, match=r"a schema with field id 2 cannot be restored: .* last-column-id is 1"):
        apply(replace(base, last_column_id=1), restoring(metadata, 3, schemas=(SCHEMA,)))
    with pytest.raises(InvalidTableError, match="a partition spec with field id 1000 cannot be restored"):
        apply(replace(base, last_partition_id=999), restoring(metadata, 3, partition_specs=(BY_ID,)))


def test_snapshots_from_before_an_upgrade_come_back_to_the_upgraded_table():
    metadata = full(1)
    base = replace(without(metadata, 2), format_version=3, last_sequence_number=9, next_row_id=0)
    assert apply(base, restoring(metadata, 2)).snapshots_by_id[2].sequence_number == 0
