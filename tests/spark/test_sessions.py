"""A session that is not given."""

from pyspark.sql import SparkSession

from icekeep import compact, plan_compaction, plan_scan, scan
from icekeep.planning.spark.source import started
from kit.lake import Lake


def test_the_session_that_runs_is_taken_where_none_is_given(spark_session: SparkSession, lake: Lake) -> None:
    assert started(None) is SparkSession.getActiveSession()
    table = lake.filled(commits=3, files=1)
    rows_count = scan(table).count()
    assert plan_compaction(table, options={"rewrite-all": "true"}).files_to_rewrite_count == 3
    assert compact(table, options={"rewrite-all": "true"}).rewritten_data_files_count == 3
    table = table.refresh()
    assert plan_scan(table).data_files_count > 0
    assert scan(table).count() == rows_count > 0
