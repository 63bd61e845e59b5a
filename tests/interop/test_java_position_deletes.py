"""Position deletes of version 2 as Spark writes them with Iceberg Java 1.12.0: which data file they are of, bounds alone say."""

from icekeep.maintenance.compaction.job import compact, plan_compact
from icekeep.spec.applicability import own_path
from icekeep.spec.manifests.structs import DataFile, FileContent
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.no_spark import no_spark
from kit.written_deletes import data_files


def delete_files(lake: Lake) -> list[DataFile]:
    files = [entry.data_file for entry in live_entries(lake.catalog.load(("db", "t")))]
    return [file for file in files if file.content is FileContent.POSITION_DELETES]


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
