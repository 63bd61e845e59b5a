"""`expire_rows` on tables that Iceberg Java 1.12.0 wrote and deleted rows of: what is left is what the filter does not match.

Java judges by its own reader and through Spark; PyIceberg where it can read. Spark's `DELETE` does the same to a table that was
made in the same way.
"""

import json
from collections import Counter
from itertools import count, product
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.maintenance.expire_rows.job import expire_rows, plan_expire_rows
from icekeep.maintenance.expire_rows.plan import ExpireRowsPlan
from kit.cases import thinned
from kit.java import IcebergJava
from kit.java_stories import STORIES, JavaTable
from kit.java_tables import Judges, java_entries, our_entries, seen_schema
from kit.lake import Lake

NUMBERS = count(1)
READERS = ("java", "spark")
TABLES = (
    ("positions by path", "parquet"),
    ("positions by partition", "avro"),
    ("upserts", "parquet"),
    ("equality by partition", "orc"),
    ("three specs", "parquet"),
    ("other formats", "parquet"),
    ("vectors over position deletes", "parquet"),
    ("by sql", "parquet"),
    ("by sql in version 3", "parquet"),
    ("compacted", "parquet"),
)
EDGES = ("keep", "deletes", "rewrite")
BELOW = 13


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("expired"))
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


def not_below(rows: Counter[str] | None, place: int, below: int) -> Counter[str] | None:
    """The rows whose id, at a place in their text, is not below a number."""
    if rows is None:
        return None
    return Counter({row: number for row, number in rows.items() if json.loads(row)[place] >= below})


@pytest.mark.parametrize(
    ("case", "edge"), thinned([*product(TABLES, EDGES)], 6, pytest.mark.deep), ids=lambda one: str(one)
)
def test_what_does_not_match_is_left(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, case: tuple[str, str], edge: str
) -> None:
    (name, file_format), number = case, next(NUMBERS)
    story = STORIES[name]
    story.tell(JavaTable(java, f"local.db.case{number}", file_format))
    judges = Judges(lake, java, spark, f"case{number}")
    readers = {"generic": READERS, "spark": ("spark",), "none": ()}[story.reader]
    table = judges.load()
    place = [field.name for field in seen_schema(table).fields].index("id")
    before = judges.look(readers)
    done = expire_rows(table, spark, where=f"id < {BELOW}", edge=edge)
    after = judges.look(readers)
    for reader in ("ours", "java", "spark", "pyiceberg"):
        then, now = getattr(before, reader), getattr(after, reader)
        if then is None or now is None:
            continue
        left = not_below(then, place, BELOW)
        assert left is not None
        assert left <= now <= then, reader
        assert edge == "keep" or now == left, reader
    assert edge == "keep" or not done.is_idle
    assert our_entries(judges.load()) == java_entries(judges.java, judges.java_name)
    assert expire_rows(judges.load(), spark, where=f"id < {BELOW}", edge=edge).is_idle
    tried("tables with deletes of Java's, whose rows expire")


def aged(java: IcebergJava, name: str, version: int, mode: str) -> None:
    """Days of April and May, in partitions by month and later by day; rows without a time, and a column that came late."""
    settings = {"format-version": str(version), "write.delete.mode": mode}
    text = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
    java.sql(
        f"CREATE TABLE {name} (id BIGINT, ts TIMESTAMP, kind STRING) USING iceberg PARTITIONED BY (months(ts)) "
        f"TBLPROPERTIES ({text})"
    )
    start = "TIMESTAMP '2026-04-01 00:00:00'"
    moment = f"CASE WHEN id % 10 = 7 THEN NULL ELSE {start} + make_interval(0, 0, 0, 0, id * 12) END"
    java.sql(f"INSERT INTO {name} SELECT id, {moment}, concat('k', id % 3) FROM range(0, 60) AS n (id)")
    java.sql(f"ALTER TABLE {name} REPLACE PARTITION FIELD months(ts) WITH days(ts)")
    java.sql(f"ALTER TABLE {name} ADD COLUMN level INT")
    java.sql(f"INSERT INTO {name} SELECT id, {moment}, concat('k', id % 3), id % 5 FROM range(60, 100) AS n (id)")
    java.sql(f"DELETE FROM {name} WHERE id % 11 = 4")


FILTERS = (
    ("ts < '2026-04-21 06:00:00Z'", "ts < TIMESTAMP '2026-04-21 06:00:00'"),
    ("ts < '2026-05-05' and kind = 'k1'", "ts < TIMESTAMP '2026-05-05 00:00:00' AND kind = 'k1'"),
    ("level is null and id < 50", "level IS NULL AND id < 50"),
    ("ts >= '2026-04-25' or ts is null", "ts >= TIMESTAMP '2026-04-25 00:00:00' OR ts IS NULL"),
)
"""Ours and Spark's. Of `NOT ts >= ...` a copy-on-write `DELETE` of Spark takes rows without a time too, which SQL keeps."""


@pytest.mark.parametrize(
    ("version", "edge", "asked"),
    thinned([*product((2, 3), ("deletes", "rewrite"), FILTERS)], 5, pytest.mark.deep),
    ids=lambda one: str(one) if not isinstance(one, tuple) else one[0],
)
def test_spark_deletes_the_same_rows(
    java: IcebergJava, lake: Lake, spark: SparkSession, version: int, edge: str, asked: tuple[str, str]
) -> None:
    number, (where, sql) = next(NUMBERS), asked
    mode = "merge-on-read" if edge == "deletes" else "copy-on-write"
    ours, theirs = (Judges(lake, java, spark, f"{who}{number}") for who in ("aged", "twin"))
    for judges in (ours, theirs):
        aged(java, judges.java_name, version, mode)
    planned = plan_expire_rows(ours.load(), spark, where=where, edge=edge)
    done = expire_rows(ours.load(), spark, where=where, edge=edge)
    java.sql(f"DELETE FROM {theirs.java_name} WHERE {sql}")
    rows = [
        Counter(map(str, java.sql(f"SELECT id, ts, kind, level FROM {judges.java_name}"))) for judges in (ours, theirs)
    ]
    assert rows[0] == rows[1]
    assert sum(rows[0].values()) < 91
    seen = ours.look()
    # Java's own reader has no columns of row lineage, which ours and Spark show in version 3.
    assert seen.ours == seen.spark
    assert seen.java is not None
    assert seen.java.total() == seen.ours.total()
    assert seen.pyiceberg in (None, seen.ours)
    assert isinstance(planned, ExpireRowsPlan)
    assert planned.removed_data_files_count == done.removed_data_files_count
    assert our_entries(ours.load()) == java_entries(java, ours.java_name)
