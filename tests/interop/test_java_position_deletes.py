"""Position deletes of version 2 as Spark writes them with Iceberg Java 1.12.0: which data file they are of, bounds alone say."""

from typing import Any
from urllib.parse import urlparse

import pyarrow.parquet as pq

from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.reach import own_path
from kit.deletes import data_files
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.runtime import no_spark


def delete_files(lake: Lake) -> list[DataFile]:
    files = [entry.data_file for entry in live_entries(lake.catalog.load(("db", "t")))]
    return [file for file in files if file.content is FileContent.POSITION_DELETES]


def statistics_by_partition(java: IcebergJava, lake: Lake) -> list[dict[str, Any]]:
    """What Java computes for the current snapshot."""
    java.call("local", "compute_partition_stats", table="db.t")
    metadata = lake.catalog.load(("db", "t")).metadata
    [path] = [s.statistics_path for s in metadata.partition_statistics if s.snapshot_id == metadata.current_snapshot_id]
    return sorted(pq.read_table(urlparse(path).path).to_pylist(), key=repr)


def test_deletes_by_spark_are_counted_applied_and_taken_out_with_their_data_files(
    java: IcebergJava, lake: Lake
) -> None:
    """A large file beside keeps the sequence numbers of the partition low, so that these alone would keep every delete file."""
    java.sql(
        "CREATE TABLE local.db.t (id BIGINT, text STRING) USING iceberg TBLPROPERTIES ('format-version' = '2', "
        "'write.delete.mode' = 'merge-on-read')"
    )
    for number, rows in enumerate((20_000, *6 * [200])):
        java.sql(
            "INSERT INTO local.db.t SELECT /*+ COALESCE(1) */ id, uuid() "
            f"FROM range({number * 100_000}, {number * 100_000 + rows}) AS numbers (id)"
        )
    java.sql("DELETE FROM local.db.t WHERE id % 10 != 0 AND id >= 100000 OR id = 7")
    table = lake.catalog.load(("db", "t"))
    deletes = delete_files(lake)
    assert {file.referenced_data_file for file in deletes} == {None}
    assert {own_path(file) for file in deletes} == {file.file_path.encode() for file in data_files(table)}
    # Their sizes are right: nothing but deletes asks.
    assert plan_compact(table, no_spark, options={"min-file-size-bytes": "0"}).candidate_files_count == 6
    large = max(file.file_size_in_bytes for file in data_files(table))
    rows_before = java.rows("local.db.t")
    options = {"remove-dangling-deletes": "true", "target-file-size-bytes": str(large)}
    result = compact(table, no_spark, options=options)
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (6, 1)
    assert result.removed_delete_files_count == 6
    assert [file.record_count for file in delete_files(lake)] == [1]
    assert java.rows("local.db.t") == rows_before


def test_files_and_deletes_of_partitions_by_fields_in_structs_are_rewritten_and_statistics_of_java_go_on(
    java: IcebergJava, lake: Lake
) -> None:
    """Structs of several depths whose fields have one name; partition statistics are computed from those of before."""
    java.sql(
        "CREATE TABLE local.db.t (id BIGINT, a STRUCT<same: STRING, b: STRUCT<same: INT>>, c STRUCT<same: STRING>) USING iceberg "
        "PARTITIONED BY (a.same, a.b.same, c.same) TBLPROPERTIES ('format-version' = '2', "
        "'write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = 'partition')"
    )
    for start in (0, 24):
        java.sql(
            "INSERT INTO local.db.t SELECT id, named_struct('same', string(id % 2), 'b', named_struct('same', int(id % 3))), "
            f"IF(id % 2 = 0, NULL, named_struct('same', 'x')) FROM range({start}, {start + 24}) AS numbers (id)"
        )
    for number in (0, 2, 6, 7):
        java.sql(f"DELETE FROM local.db.t WHERE id % 24 = {number}")
    rows, before = java.rows("local.db.t"), statistics_by_partition(java, lake)
    table = lake.catalog.load(("db", "t"))
    partitions = {file.partition for file in data_files(table)}
    assert len(partitions) == 6
    deletes = rewrite_position_deletes(table, no_spark, options={"rewrite-all": "true"})
    assert (deletes.rewritten_delete_files_count, deletes.added_delete_files_count) == (4, 3)
    assert java.rows("local.db.t") == rows
    result = compact(lake.catalog.load(("db", "t")), no_spark, options={"rewrite-all": "true"})
    assert result.added_data_files_count == len(partitions)
    assert java.rows("local.db.t") == rows
    assert {file.partition for file in data_files(lake.catalog.load(("db", "t")))} == partitions
    after = statistics_by_partition(java, lake)
    assert [one["partition"] for one in after] == [one["partition"] for one in before]
    left = [one["data_record_count"] - one["position_delete_record_count"] for one in before]
    assert [one["data_record_count"] for one in after] == left
    assert {(one["data_file_count"], one["position_delete_file_count"]) for one in after} == {(1, 0)}
