"""A session that is not given."""

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from icekeep import compact, plan_compact, plan_scan, scan
from icekeep.planning.spark.session import started
from kit.lake import Lake


def test_the_session_that_runs_is_taken_where_none_is_given(spark_session: SparkSession, lake: Lake) -> None:
    assert started(None) is SparkSession.getActiveSession()
    table = lake.filled(commits=3, files=1)
    rows_count = scan(table).count()
    assert plan_compact(table, options={"rewrite-all": "true"}).rewritten_data_files_count == 3
    assert compact(table, options={"rewrite-all": "true"}).rewritten_data_files_count == 3
    table = table.refresh()
    assert plan_scan(table).data_files_count > 0
    assert scan(table).count() == rows_count > 0


def test_a_snapshot_names_the_application_of_the_session_that_made_it(spark_session: SparkSession, lake: Lake) -> None:
    table = lake.filled(commits=2, files=1)
    compact(table, spark_session, options={"rewrite-all": "true"})
    made = lake.load().current_snapshot
    assert made is not None
    summary = made.summary or {}
    assert summary["app-id"] == spark_session.sparkContext.applicationId
    assert summary["icekeep.run-id"].startswith("compact-")


def test_a_thread_without_an_active_session_takes_the_one_that_runs_and_changes_nothing_of_it(
    spark_session: SparkSession,
) -> None:
    """Spark's active session is one of a thread; an application that compacts in a pool has its own settings."""
    time_zone = spark_session.conf.get("spark.sql.session.timeZone")
    assert time_zone
    spark_session.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(started, None).result()
        assert taken is spark_session
        assert spark_session.conf.get("spark.sql.session.timeZone") == "America/New_York"
    finally:
        spark_session.conf.set("spark.sql.session.timeZone", time_zone)
