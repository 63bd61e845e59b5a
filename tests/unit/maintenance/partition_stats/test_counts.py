"""Partition statistics: what is counted, held against the entries one by one, and when an earlier file is gone on from."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, NotFoundError, UnsupportedError
from icekeep.events import SILENT
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.partition_stats.counts import count_partitions
from icekeep.maintenance.partition_stats.file import (
    COUNTS,
    PartitionStats,
    read_partition_stats,
    statistics_schema,
    unified_partition_type,
    write_partition_stats,
)
from icekeep.maintenance.partition_stats.job import compute_partition_stats, plan_compute_partition_stats
from icekeep.spec.evolution import AddPartitionField, DropColumn, RemovePartitionField
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.snapshots import PartitionStatisticsFile
from icekeep.spec.transforms import parse_transform
from icekeep.spec.types import DAY_MS, INT, LONG, STRING, NestedField, StructType
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append, rollback_to_snapshot, update_schema, update_spec
from kit.cases import cases
from kit.deletes import data_files, delete_by_vector
from kit.job_world import World
from kit.lake import events
from kit.naive_scan import live_entries
from kit.row_histories import SPECS, History, Step, in_memory, steps
from kit.runtime import no_spark


def rows_of(table: Table, snapshot_id: int | None = None) -> list[PartitionStats]:
    """Of the file of a snapshot, the current one by default."""
    wanted = table.metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    [path] = [f.statistics_path for f in table.metadata.partition_statistics if f.snapshot_id == wanted]
    struct = unified_partition_type(table.metadata)
    return read_partition_stats(table.storage, path, struct, table.metadata.partition_types)


def told(rows: list[PartitionStats]) -> dict[str, list[int]]:
    """The counts that are not all zero, by spec and partition."""
    found = {repr((row.spec_id, row.partition)): row.counts for row in rows if any(row.counts)}
    assert len(found) == sum(any(row.counts) for row in rows)
    return found


def naive(table: Table) -> dict[str, list[int]]:
    """The same from the entries of the head, one by one."""
    struct, found = unified_partition_type(table.metadata), dict[str, Counter[str]]()
    for entry in live_entries(table):
        file = entry.data_file
        own = zip(table.metadata.partition_type(file.spec_id).fields, file.partition, strict=True)
        values = {field.field_id: value for field, value in own}
        counts = found.setdefault(
            repr((file.spec_id, tuple(values.get(field.field_id) for field in struct.fields))), Counter()
        )
        kind = "equality" if file.content is FileContent.EQUALITY_DELETES else "position"
        if file.content is FileContent.DATA:
            counts["total_data_file_size_in_bytes"] += file.file_size_in_bytes
            kind = "data"
        records = "data_record_count" if kind == "data" else f"{kind}_delete_record_count"
        files = "data_file_count" if kind == "data" else f"{kind}_delete_file_count"
        counts[records] += file.record_count
        counts["dv_count" if file.file_format.upper() == "PUFFIN" else files] += 1
    return {key: [counts[name] for name in COUNTS] for key, counts in found.items()}


@given(
    history=st.lists(steps(), min_size=1, max_size=3),
    version=st.sampled_from((1, 2, 3)),
    spec=st.sampled_from(SPECS[1:]),
)
@cases(60)
def test_counts_are_those_of_the_live_entries(history: list[list[Step]], version: int, spec: Any) -> None:
    """Counted whole, and from the file of an earlier snapshot on."""
    made = History(in_memory(), version, spec)
    for part in history:
        made.went_on(part)
        table = made.table
        assert table.current_snapshot is not None
        base = [file.snapshot_id for file in table.metadata.partition_statistics]
        result = compute_partition_stats(table, no_spark)
        assert (result.base_snapshot_id in base) == bool(base and result.statistics_file)
        assert told(rows_of(made.table)) == naive(made.table)


def world(version: int = 2, files: int = 3) -> World:
    made = World(version, [("at", "month")])
    for number in range(files):
        made.append(number, month=1 + number % 2)
    return made


def replaced(table: Table, snapshot_id: int, rows: list[PartitionStats]) -> None:
    """Another file of statistics in the place of a snapshot's own."""
    location = f"{table.metadata.location}/metadata/other.parquet"
    size = write_partition_stats(
        table.storage, location, rows, unified_partition_type(table.metadata), table.metadata.format_version
    )
    file = PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path=location, file_size_in_bytes=size)
    commit(table, ChangeStatistics(updates=(file,)))


def test_only_manifests_that_came_since_are_read() -> None:
    made = world()
    first = compute_partition_stats(made.table, no_spark)
    assert (first.base_snapshot_id, first.opened_manifests_count) == (None, 3)
    assert first.reason == "no ancestor of the snapshot has partition statistics"
    made.append(7)
    second = compute_partition_stats(made.table, no_spark)
    assert (second.base_snapshot_id, second.opened_manifests_count, second.reason) == (first.snapshot_id, 1, "")
    again = compute_partition_stats(made.table, no_spark)
    assert again.is_idle
    assert again.reason == f"snapshot {second.snapshot_id} has them already"


@pytest.mark.parametrize("damage", ["gone", "damaged", "wrong", "below"])
def test_a_bad_earlier_file_is_not_gone_on_from(damage: str) -> None:
    made = world()
    first = compute_partition_stats(made.table, no_spark)
    rows = rows_of(made.table)
    assert first.statistics_file is not None
    assert first.snapshot_id is not None
    if damage == "gone":
        made.memory.delete_many([first.statistics_file])
    elif damage == "damaged":
        data, at = made.memory.files[first.statistics_file]
        made.memory.files[first.statistics_file] = (data[: len(data) // 2], at)
    else:
        rows[0].counts[1] += 1 if damage == "wrong" else -5
        rows[1].counts[1] += 0 if damage == "wrong" else 5
        replaced(made.table, first.snapshot_id, rows)
    made.append(7)
    result = compute_partition_stats(made.table, no_spark)
    assert result.base_snapshot_id is None
    assert result.reason
    assert told(rows_of(made.table)) == naive(made.table)


def test_a_file_of_another_branch_is_not_gone_on_from() -> None:
    made = world()
    before = made.table.metadata.current_snapshot_id
    assert before is not None
    made.append(5)
    compute_partition_stats(made.table, no_spark)
    create_branch(made.table, "side")
    rollback_to_snapshot(made.table, before)
    made.append(6)
    result = compute_partition_stats(made.table, no_spark)
    assert result.base_snapshot_id is None
    assert told(rows_of(made.table)) == naive(made.table)


def test_a_file_that_lacks_a_field_of_its_spec_is_refused() -> None:
    """Iceberg Java leaves out fields whose column was dropped, so that two partitions have one tuple."""
    made = World(2, [("kind", "identity")])
    made.append(0)
    table = update_spec(made.table, [RemovePartitionField("kind"), AddPartitionField("at", "month")])
    table = update_schema(table, [DropColumn("kind")])
    rows = [PartitionStats(spec_id=0, partition=(0,), counts=[1] * len(COUNTS))]
    struct = StructType(unified_partition_type(table.metadata).fields[1:])
    location = f"{table.metadata.location}/metadata/java.parquet"
    size = write_partition_stats(table.storage, location, rows, struct, 2)
    file = PartitionStatisticsFile(
        snapshot_id=table.metadata.current_snapshot_id or 0, statistics_path=location, file_size_in_bytes=size
    )
    commit(table, ChangeStatistics(updates=(file,)))
    append(made.table, [events(3, 5).drop_columns(["kind"])])
    assert "lacks partition field 'kind' of spec 0" in compute_partition_stats(made.table, no_spark).reason


def test_rows_are_counted_only_where_there_is_no_delete() -> None:
    made = world(3)
    assert record_counts(made.table) == [10, 5]
    assert record_counts(made.table, count_rows=False) == [None, None]
    delete_by_vector(made.table, data_files(made.table)[0].file_path, [0])
    assert record_counts(made.table) == [None, None]


def record_counts(table: Table, *, count_rows: bool = True) -> list[int | None]:
    """The total of each partition, the least partition first."""
    assert table.current_snapshot is not None
    found = count_partitions(table, table.current_snapshot, no_spark, SILENT, count_rows=count_rows)
    return [row.total_record_count for row in sorted(found.rows, key=lambda row: row.partition)]


def test_the_schema_is_that_of_the_specification() -> None:
    struct = StructType((NestedField(field_id=1000, name="kind", type=STRING),))
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    old, new = (statistics_schema(struct, version) for version in (2, 3))
    assert [field.field_id for field in old.fields] == ids
    assert [field.field_id for field in new.fields] == [*ids, 13]
    assert [field.field_id for field in old.fields if field.required] == [1, 2, 3, 4, 5]
    assert [field.field_id for field in new.fields if field.required] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 13]
    assert {field.name for field in new.fields if field.type == INT} == {
        "spec_id",
        "data_file_count",
        "position_delete_file_count",
        "equality_delete_file_count",
        "dv_count",
    }
    assert [field.type for field in new.fields[9:12]] == [LONG] * 3


def test_unified_types_have_all_fields_in_order() -> None:
    """The specification's examples, and the name of the newest spec."""
    made = World(2, [("kind", "identity"), ("at", "month")])
    assert [f.field_id for f in unified_partition_type(made.table.metadata).fields] == [1000, 1001]
    update_spec(made.table, [AddPartitionField("id", "bucket[4]")])
    update_spec(made.table, [RemovePartitionField("kind")])
    fields = unified_partition_type(made.table.metadata).fields
    assert [(f.field_id, f.name) for f in fields] == [(1000, "kind"), (1001, "at_month"), (1002, "id_bucket_4")]


@pytest.mark.parametrize("made", [World(2), World(2, [("at", "month")])], ids=["no fields", "no snapshot"])
def test_nothing_is_written_where_there_is_no_partition(made: World) -> None:
    if made.table.metadata.spec.is_unpartitioned:
        made.append(0)
    before = made.state()
    result = compute_partition_stats(made.table, no_spark)
    assert result.is_idle
    assert result.reason in ("the table is not partitioned", "the table has no snapshot")
    assert plan_compute_partition_stats(made.table, no_spark).reason == result.reason
    assert made.state() == before


def test_a_snapshot_that_is_not_there_is_refused() -> None:
    with pytest.raises(NotFoundError, match="77"):
        compute_partition_stats(world().table, no_spark, snapshot_id=77)


def test_statistics_of_an_older_snapshot() -> None:
    made = world()
    older = made.table.metadata.snapshots[0].snapshot_id
    assert compute_partition_stats(made.table, no_spark, snapshot_id=older).partitions_count == 1
    assert [row.counts[1] for row in rows_of(made.table, older)] == [1]
    newest = compute_partition_stats(made.table, no_spark)
    assert (newest.base_snapshot_id, newest.opened_manifests_count) == (older, 2)


def test_a_snapshot_that_expires_meanwhile_leaves_no_file() -> None:
    made = world()
    made.storage.before = expiring(made)
    with pytest.raises(ConflictError, match=f"snapshot {made.table.metadata.current_snapshot_id}, whose statistics"):
        compute_partition_stats(made.table, no_spark)
    assert not [one for one in made.memory.files if "partition-stats" in one]


def expiring(made: World) -> Any:
    """When the file is written, the snapshot goes."""

    def before(operation: str, location: str) -> None:
        if operation == "write" and "partition-stats" in location:
            made.storage.before = lambda operation, location: None
            made.append(9)
            made.runtime.pass_ms(DAY_MS)
            expire_snapshots(made.table, no_spark, older_than="0s", retain_last=1, trash=0)

    return before


def test_expiration_and_orphan_removal_know_the_files() -> None:
    """Those of snapshots that stay are kept, those of others are collected."""
    made = world()
    first = compute_partition_stats(made.table, no_spark).statistics_file
    made.append(7)
    second = compute_partition_stats(made.table, no_spark).statistics_file
    made.runtime.pass_ms(10 * DAY_MS)
    remove_orphan_files(made.table, no_spark, older_than="3d", trash=0)
    assert {first, second} <= {*made.memory.files}
    expire_snapshots(made.table, no_spark, older_than="0s", retain_last=1, trash=0)
    assert first not in made.memory.files
    assert second in made.memory.files
    [left] = made.table.metadata.partition_statistics
    assert left.statistics_path == second


def test_unknown_transforms_are_refused() -> None:
    made = world()
    metadata, spec = made.table.metadata, made.table.metadata.spec
    fields = (msgspec.structs.replace(spec.fields[0], transform=parse_transform("shuffle[3]")),)
    odd = msgspec.structs.replace(metadata, partition_specs=(msgspec.structs.replace(spec, fields=fields),))
    with pytest.raises(UnsupportedError, match=r"transform 'shuffle\[3\]'"):
        unified_partition_type(odd)
