"""Statistics of tables, between us and Iceberg Java 1.12.0: each reads those of the other, and goes on from them."""

from collections.abc import Iterator
from typing import Any

import pytest

from icekeep.catalog.base import Table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.partition_stats.file import (
    PartitionStats,
    read_partition_stats,
    unified_partition_type,
)
from icekeep.maintenance.partition_stats.job import compute_partition_stats
from icekeep.tables.verbs import drop_statistics, upgrade_format_version
from kit.cases import SQL_BY_DAY, thinned
from kit.java import IcebergJava
from kit.lake import Lake
from kit.row_histories import SPECS, ByIcekeep, History, steps_of
from kit.runtime import no_spark

pytestmark = pytest.mark.parametrize("lake", SQL_BY_DAY, indirect=True)

FORMATS = ("PARQUET", "AVRO")
"""Java writes statistics in the format of the table, and cannot in ORC."""

STEPS_A_PART = 4
HISTORIES = [(number, version) for number in range(12) for version in (1, 2, 3)]


def history(lake: Lake, number: int, version: int) -> Iterator[Table]:
    """A table whose specs and columns change, and whose rows are deleted in every way, after each part of its history."""
    made = History(ByIcekeep(lake.catalog, "t"), version, SPECS[1 + number % (len(SPECS) - 1)], FORMATS)
    steps = steps_of(number)
    for start in range(0, len(steps), STEPS_A_PART):
        made.went_on([("append", number + start), *steps[start : start + STEPS_A_PART]])
        yield made.table


def written(table: Table) -> list[tuple[Any, ...]]:
    """What the file of the current snapshot says, as we read it."""
    [path] = [
        file.statistics_path
        for file in table.metadata.partition_statistics
        if file.snapshot_id == table.metadata.current_snapshot_id
    ]
    struct = unified_partition_type(table.metadata)
    rows = read_partition_stats(table.storage, path, struct, table.metadata.partition_types)
    return [as_text(dict(zip(struct.fields, row.partition, strict=True)), *figures(row)) for row in rows]


def figures(row: PartitionStats) -> list[int | None]:
    return [row.spec_id, *row.counts, row.last_updated_at, row.last_updated_snapshot_id]


def as_text(partition: dict[Any, Any], *values: int | None) -> tuple[Any, ...]:
    """A row that can be compared: NaN is equal to itself, and to no other number."""
    return (tuple((field.field_id, repr(value)) for field, value in partition.items()), *values)


def read_by_java(java: IcebergJava, table: Table) -> list[tuple[Any, ...]]:
    assert table.metadata.current_snapshot_id is not None
    struct, rows = java.partition_stats("local.db.t", table.metadata.current_snapshot_id)
    return [
        # Of a file without the column it says nothing.
        as_text({field: row[0][field.name] for field in struct.fields}, *row[1:9], row[9] or 0, *row[11:])
        for row in rows
    ]


def by_java(java: IcebergJava, table: Table) -> Table:
    java.sql("REFRESH TABLE local.db.t")
    java.call("local", "compute_partition_stats", table="db.t")
    return table.refresh()


def by_us(table: Table) -> Table:
    compute_partition_stats(table, no_spark)
    return table.refresh()


@pytest.mark.parametrize(("number", "version"), thinned(HISTORIES, 5))
def test_java_and_we_count_the_same_partitions(lake: Lake, java: IcebergJava, number: int, version: int) -> None:
    """All values are the same, of files that are counted whole; and what one has written the other reads."""
    for table in history(lake, number, version):
        ours = by_us(table)
        mine = written(ours)
        assert mine == read_by_java(java, ours)
        theirs = by_java(java, drop_statistics(ours))
        assert sorted(written(theirs)) == sorted(mine)
        drop_statistics(theirs)


@pytest.mark.parametrize(("number", "version"), thinned(HISTORIES, 5))
def test_each_goes_on_from_the_file_of_the_other(lake: Lake, java: IcebergJava, number: int, version: int) -> None:
    for turn, table in enumerate(history(lake, number, version)):
        if turn % 2:
            before = [file.snapshot_id for file in table.metadata.partition_statistics]
            result = compute_partition_stats(table, no_spark)
            assert result.base_snapshot_id in before
            mine = written(table.refresh())
            without = drop_statistics(table.refresh())
            assert sorted(written(by_java(java, without))) == sorted(mine)
        else:
            theirs = written(by_java(java, table))
            without = drop_statistics(table.refresh())
            assert sorted(written(by_us(without))) == sorted(theirs)


def test_snapshots_that_expired_are_not_the_last_update(lake: Lake, java: IcebergJava) -> None:
    *_, table = history(lake, 1, 2)
    expire_snapshots(table, no_spark, older_than="0s", retain_last=1)
    ours = by_us(table.refresh())
    mine = written(ours)
    assert None in {row[-1] for row in mine}
    assert sorted(written(by_java(java, drop_statistics(ours)))) == sorted(mine)


def test_an_upgraded_table_counts_its_vectors(lake: Lake, java: IcebergJava) -> None:
    """A file of format version 2 has no count of vectors, and is gone on from in version 3."""
    made = History(ByIcekeep(lake.catalog, "t"), 2, SPECS[1], FORMATS).went_on(
        [("append", 1), ("positions", 2), ("append", 3)]
    )
    by_us(made.table)
    upgrade_format_version(made.table, 3)
    made.version = 3
    made.went_on([("positions", 4), ("append", 5), ("positions", 6)])
    result = compute_partition_stats(made.table, no_spark)
    assert result.base_snapshot_id is not None
    mine = written(made.table)
    assert sum(row[9] for row in mine) > 0
    assert mine == read_by_java(java, made.table)
    assert sorted(written(by_java(java, drop_statistics(made.table)))) == sorted(mine)
