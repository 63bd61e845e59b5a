"""Our jobs on tables of Iceberg Java 1.12.0: they leave Java reading the same rows; judged by Iceberg Java throughout."""

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from kit.beside import FAR_AHEAD_MS
from kit.cases import thinned
from kit.java import IcebergJava
from kit.java_tables import java_entries, java_manifests, our_entries, our_manifests
from kit.lake import Lake

SPECS = (
    "",
    "PARTITIONED BY (kind)",
    "PARTITIONED BY (bucket(3, id), days(at))",
    "PARTITIONED BY (truncate(2, kind), months(at))",
)


@pytest.fixture
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


def fill(java: IcebergJava, partitioned_by: str, commits: int = 4) -> None:
    java.sql(
        "CREATE TABLE local.db.t (id BIGINT NOT NULL, kind STRING, at TIMESTAMP, amount DECIMAL(20, 3), score DOUBLE, "
        f"place STRUCT<x: FLOAT, tags: ARRAY<STRING>>, counts MAP<STRING, INT>) USING iceberg {partitioned_by} "
        "TBLPROPERTIES ('format-version' = '2')"
    )
    for number in range(commits):
        java.sql(f"""
            INSERT INTO local.db.t SELECT id, IF(id % 7 = 3, NULL, concat('k/', id % 2)),
                timestamp_micros((id % 3) * 3000000000000 - 1), IF(id % 5 = 1, NULL, CAST(id AS DECIMAL(20, 3)) / 7),
                CASE id % 4 WHEN 0 THEN DOUBLE('NaN') WHEN 1 THEN -0.0D WHEN 2 THEN NULL ELSE id END,
                IF(id % 6 = 2, NULL, named_struct('x', FLOAT(id), 'tags', array('a', NULL))),
                IF(id % 5 = 3, NULL, map('k', CAST(id AS INT)))
            FROM range({number * 20}, {number * 20 + 20}) AS numbers (id)
        """)


def spark_rows(java: IcebergJava) -> Counter[str]:
    """The rows as Spark reads them, which is another reader than Iceberg's own."""
    return Counter(repr(sorted(row.items())) for row in java.sql("SELECT * FROM local.db.t"))


@pytest.mark.parametrize("partitioned_by", thinned(SPECS, 2, pytest.mark.deep))
def test_compaction_of_javas_files_changes_no_row(
    java: IcebergJava, lake: Lake, spark: SparkSession, partitioned_by: str
) -> None:
    """Judged by Iceberg Java: both its readers, and its view of what our commit wrote."""
    fill(java, partitioned_by)
    rows, by_spark, files = java.rows("local.db.t"), spark_rows(java), len(java.plan_files("local.db.t"))
    result = compact(lake.catalog.load(("db", "t")), spark, options={"rewrite-all": "true"})
    assert result.rewritten_data_files_count == files
    assert len(java.plan_files("local.db.t")) == result.added_data_files_count < files
    assert java.rows("local.db.t") == rows
    assert spark_rows(java) == by_spark
    table = lake.catalog.load(("db", "t"))
    assert our_entries(table) == java_entries(java, "local.db.t")
    assert our_manifests(table) == java_manifests(java, "local.db.t", table)
    summary = java.inspect("local.db.t", "snapshots")[-1]
    assert summary["operation"] == "replace"
    assert dict(summary["summary"])["total-records"] == "80"


@pytest.mark.parametrize("partitioned_by", thinned(SPECS, 2, pytest.mark.deep))
def test_rewriting_javas_manifests_changes_no_entry(
    java: IcebergJava, lake: Lake, spark: SparkSession, partitioned_by: str
) -> None:
    """Judged by Iceberg Java: live entries with all columns but the status, and rows."""
    fill(java, partitioned_by)
    rows, entries = java.rows("local.db.t"), live(java)
    result = rewrite_manifests(lake.catalog.load(("db", "t")), spark)
    assert (result.rewritten_manifests_count, result.added_manifests_count) == (4, 1)
    assert live(java) == entries
    assert java.rows("local.db.t") == rows
    table = lake.catalog.load(("db", "t"))
    assert our_manifests(table) == java_manifests(java, "local.db.t", table)


def test_expiring_javas_snapshots_keeps_what_refs_lead_to(java: IcebergJava, lake: Lake, spark: SparkSession) -> None:
    """Judged by Iceberg Java: rows of every snapshot that is left, and it can go on writing."""
    fill(java, "PARTITIONED BY (kind)", commits=5)
    snapshots = [snapshot.snapshot_id for snapshot in lake.catalog.load(("db", "t")).metadata.snapshots]
    java.sql(f"ALTER TABLE local.db.t CREATE TAG kept AS OF VERSION {snapshots[1]}")
    java.sql("DELETE FROM local.db.t WHERE id % 2 = 0")
    rows, tagged = java.rows("local.db.t"), java.rows("local.db.t", snapshot_id=snapshots[1])
    result = expire_snapshots(lake.catalog.load(("db", "t")), spark, older_than=FAR_AHEAD_MS, retain_last=1)
    assert result.deleted_data_files_count > 0
    left = {row["snapshot_id"] for row in java.inspect("local.db.t", "snapshots")}
    assert left == {snapshots[1], lake.catalog.load(("db", "t")).metadata.current_snapshot_id}
    assert java.rows("local.db.t") == rows
    assert java.rows("local.db.t", snapshot_id=snapshots[1]) == tagged
    java.sql("INSERT INTO local.db.t (id) VALUES (1000)")
    assert java.rows("local.db.t").total() == rows.total() + 1


def test_all_jobs_after_one_another_and_java_between(java: IcebergJava, lake: Lake, spark: SparkSession) -> None:
    """Judged by Iceberg Java: its own jobs run on what ours left, and ours on what its left."""
    fill(java, "PARTITIONED BY (kind)")
    rows = java.rows("local.db.t")
    compact(lake.catalog.load(("db", "t")), spark, options={"rewrite-all": "true"})
    java.call("local", "rewrite_manifests", table="db.t")
    assert java.rows("local.db.t") == rows
    rewrite_manifests(lake.catalog.load(("db", "t")), spark)
    java.call("local", "rewrite_data_files", table="db.t", options={"rewrite-all": "true"})
    assert java.rows("local.db.t") == rows
    expire_snapshots(lake.catalog.load(("db", "t")), spark, older_than=FAR_AHEAD_MS, retain_last=1)
    assert java.rows("local.db.t") == rows
    java.sql("CALL local.system.expire_snapshots(table => 'db.t', older_than => TIMESTAMP '2100-01-01 00:00:00')")
    assert java.call("local", "remove_orphan_files", table="db.t", dry_run=True) == []
    assert java.rows("local.db.t") == rows


def live(java: IcebergJava) -> Counter[str]:
    """Live entries but for their status; readable metrics say again what bounds say."""
    entries: list[dict[str, Any]] = [e for e in java.inspect("local.db.t", "entries") if e["status"] != 2]
    return Counter(repr({k: v for k, v in e.items() if k not in ("status", "readable_metrics")}) for e in entries)
