"""`explain` of the DataFrame that a scan gives, in Spark."""

from typing import Any

from pyspark.sql import SparkSession

from icekeep.tables.read import scan
from kit.lake import Lake


def test_the_plan_of_the_table_stands_before_spark_s_own(
    spark_session: SparkSession, tmp_path: Any, capfd: Any
) -> None:
    table = Lake(tmp_path).filled(commits=3, files=2)
    rows = scan(table, spark_session, where="at >= '2013-03-01T00:00:00Z'")
    rows.explain(mode="simple")
    out = capfd.readouterr().out
    head, _, of_spark = out.partition("== Physical Plan ==")
    assert head.startswith(f"== icekeep: scan of db.events, snapshot {table.metadata.current_snapshot_id} ==")
    assert "data files   2 of 6 read" in head
    assert "MapInArrow" in of_spark
    assert rows.count() == 40
    rows.select("id").explain()
    assert "icekeep: scan" not in capfd.readouterr().out
