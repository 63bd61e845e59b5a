"""Statistics of tables, between us, Iceberg Java 1.12.0 and Trino: each reads those of the others, and goes on from them."""

from collections.abc import Iterator
from typing import Any

import pytest

from icekeep.catalog.base import Table
from icekeep.formats.puffin import read_puffin_footer, read_range, unpacked_blob
from icekeep.formats.theta import sketch_from_bytes
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.partition_stats.file import (
    PartitionStats,
    read_partition_stats,
    unified_partition_type,
)
from icekeep.maintenance.partition_stats.job import compute_partition_stats
from icekeep.maintenance.table_stats.job import compute_table_stats
from icekeep.tables.verbs import drop_statistics, upgrade_format_version
from kit.cases import SQL_BY_DAY, thinned
from kit.deletes import data_files
from kit.java import IcebergJava
from kit.lake import Lake
from kit.row_histories import SPECS, ByIcekeep, History, steps_of
from kit.runtime import no_spark
from kit.trino import Trino

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


DISTINCT = {
    "id": ("BIGINT", "id"),
    "number": ("INT", "CAST(id % 1000 AS INT)"),
    "kind": ("STRING", "IF(id % 7 = 3, NULL, concat('k', id % 5, IF(id % 5 = 0, '', 'ä')))"),
    "score": ("DOUBLE", "CASE id % 4 WHEN 0 THEN double('NaN') WHEN 1 THEN -0.0D WHEN 2 THEN NULL ELSE id / 3D END"),
    "ratio": ("FLOAT", "CAST(id % 10 AS FLOAT) / 3"),
    "amount": ("DECIMAL(20, 3)", "CAST(id * 1000 - 300000 AS DECIMAL(20, 3)) / 8"),
    "small": ("DECIMAL(5, 2)", "CAST(id % 100 - 50 AS DECIMAL(5, 2))"),
    "day": ("DATE", "date_add(DATE'1969-12-01', CAST(id % 60 AS INT))"),
    "at": ("TIMESTAMP", "timestamp_seconds(id * 3600 - 100000)"),
    "seen": ("TIMESTAMP_NTZ", "CAST(timestamp_seconds(id) AS TIMESTAMP_NTZ)"),
    "raw": ("BINARY", "encode(CAST(id % 300 AS STRING), 'utf-8')"),
    "flag": ("BOOLEAN", "id % 2 = 0"),
    "one": ("INT", "5"),
    "none": ("STRING", "CAST(NULL AS STRING)"),
}
"""Columns by name: the type in Spark, and what their values follow from."""


def made_by_spark(java: IcebergJava, rows: int, version: int = 2) -> None:
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in DISTINCT.items())
    options = f"'format-version'='{version}', 'write.delete.mode'='merge-on-read'"
    java.sql(f"CREATE TABLE local.db.t ({columns}) USING iceberg TBLPROPERTIES ({options})")
    insert(java, 0, rows)


def insert(java: IcebergJava, start: int, stop: int) -> None:
    values = ", ".join(f"{value} AS {name}" for name, (_, value) in DISTINCT.items())
    java.sql(f"INSERT INTO local.db.t SELECT {values} FROM range({start}, {stop})")


def sketches(table: Table) -> dict[int, tuple[str, bytes]]:
    """By column of the current snapshot's statistics: `ndv` and the bytes of the sketch."""
    [file] = [one for one in table.metadata.statistics if one.snapshot_id == table.metadata.current_snapshot_id]
    found = {}
    for blob in read_puffin_footer(table.storage, file.statistics_path).blobs:
        data = read_range(table.storage, file.statistics_path, blob.offset, blob.length)
        found[blob.fields[0]] = blob.properties["ndv"], unpacked_blob(data, blob.compression_codec)
    told = {blob["fields"][0]: blob["properties"]["ndv"] for blob in file.blob_metadata}
    assert told == {field_id: ndv for field_id, (ndv, _) in found.items()}
    return found


def stats_by_java(java: IcebergJava, table: Table) -> Table:
    java.sql("REFRESH TABLE local.db.t")
    java.call("local", "compute_table_stats", table="db.t")
    return table.refresh()


@pytest.mark.parametrize("version", [2, 3])
def test_sketches_of_few_values_have_the_bytes_of_java(lake: Lake, java: IcebergJava, version: int) -> None:
    """Also after deletes, and where one goes on from the sketches of the other."""
    made_by_spark(java, 900, version)
    table = lake.catalog.load(("db", "t"))
    theirs = sketches(stats_by_java(java, table))
    assert len(theirs) == len(DISTINCT)
    result = compute_table_stats(drop_statistics(table.refresh()), no_spark)
    assert sketches(table.refresh()) == theirs
    assert (result.base_snapshot_id, result.reused_files_count) == (None, 0)
    # Java's are gone on from, in the second round.
    stats_by_java(java, drop_statistics(table.refresh()))
    before = len(data_files(table))
    insert(java, 900, 1100)
    result = compute_table_stats(table.refresh(), no_spark)
    new = len(data_files(table.refresh())) - before
    assert (result.base_snapshot_id, result.read_files_count) == (table.metadata.current_snapshot_id, new)
    ours = sketches(table.refresh())
    assert sketches(stats_by_java(java, drop_statistics(table.refresh()))) == ours
    java.sql("DELETE FROM local.db.t WHERE id BETWEEN 100 AND 350")
    deleted = compute_table_stats(table.refresh(), no_spark)
    assert deleted.base_snapshot_id is None
    assert deleted.reused_files_count >= new
    assert deleted.read_files_count + deleted.reused_files_count == before + new
    ours = sketches(table.refresh())
    assert sketches(stats_by_java(java, drop_statistics(table.refresh()))) == ours


def test_sketches_of_many_values_are_as_good_as_those_of_java(lake: Lake, java: IcebergJava) -> None:
    made_by_spark(java, 50_000)
    table = lake.catalog.load(("db", "t"))
    theirs = sketches(stats_by_java(java, table))
    ndv = {
        one.field_id: one.distinct_values_count
        for one in compute_table_stats(drop_statistics(table.refresh()), no_spark).columns
    }
    for field_id, (told, data) in theirs.items():
        assert sketch_from_bytes(data).estimate == int(told)
        assert abs(int(told) - ndv[field_id]) <= 0.1 * int(told)
    assert abs(ndv[1] - 50_000) < 0.05 * 50_000
    # Java reads ours as it reads its own.
    [file] = java.metadata("local.db.t")["statistics"]
    assert {blob["properties"]["ndv"] for blob in file["blob-metadata"]} == {str(one) for one in ndv.values()}


@pytest.mark.deep
def test_trino_plans_by_our_sketches(lake: Lake, java: IcebergJava, trino: Trino) -> None:
    made_by_spark(java, 900)
    trino.open_catalog("local", lake.properties)
    table = lake.catalog.load(("db", "t"))
    names = [name for name in DISTINCT if name != "none"]
    found = compute_table_stats(table, no_spark, columns=names)
    shown = {row[0]: row[2] for row in trino.query("SHOW STATS FOR local.db.t").rows}
    assert {one.column: float(one.distinct_values_count) for one in found.columns} == {
        name: shown[name] for name in names
    }
    # Trino adds to them what it writes.
    trino.query("INSERT INTO local.db.t (id, number) VALUES (5000, 5000)")
    shown = {row[0]: row[2] for row in trino.query("SHOW STATS FOR local.db.t").rows}
    assert (shown["id"], shown["number"]) == (901.0, 901.0)
    # Of what Trino wrote it is not known whether deleted rows are in it.
    trino.query("DELETE FROM local.db.t WHERE id < 100")
    after = compute_table_stats(table.refresh(), no_spark)
    assert after.base_snapshot_id is None
    assert {one.column: one.distinct_values_count for one in after.columns}["id"] == 801
