"""Statistics that Spark's tasks compute are those of this process."""

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.maintenance.partition_stats.file import read_partition_stats, unified_partition_type
from icekeep.maintenance.partition_stats.job import compute_partition_stats
from icekeep.maintenance.table_stats.job import compute_table_stats
from icekeep.planning.spark.session import Engine, Limits
from icekeep.tables.verbs import drop_statistics
from kit.deletes import with_position_deletes
from kit.lake import Lake
from kit.runtime import no_spark


def test_partitions_are_counted_in_tasks(lake: Lake, in_tasks: Engine) -> None:
    table = with_position_deletes(lake.filled(commits=4))
    rows = []
    for spark in (no_spark, in_tasks):
        path = compute_partition_stats(table, spark).statistics_file
        assert path is not None
        struct = unified_partition_type(table.metadata)
        rows.append(read_partition_stats(table.storage, path, struct, table.metadata.partition_types))
        table = drop_statistics(lake.load())
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


@pytest.mark.parametrize("reads", ["in tasks that this process plans", "in tasks that Spark plans"])
def test_columns_are_sketched_in_tasks(lake: Lake, spark_session: SparkSession, reads: str) -> None:
    table = with_position_deletes(lake.filled(commits=4, rows=100))
    here = compute_table_stats(table, no_spark)
    limits = Limits(session_rewrite_bytes=-1, rewrite_bytes=-1, waiting_files_count=-1)
    if "Spark plans" in reads:
        limits = replace(limits, entries_count=-1)
    engine = Engine(spark=spark_session, limits=limits)
    there = compute_table_stats(drop_statistics(lake.load()), engine)
    assert there.columns == here.columns
    by_spark = "Spark plans" in reads
    assert there.read_files_count == 0 if by_spark else there.read_files_count + there.reused_files_count == 12
    assert (there.reused_files_count > 0) != by_spark
