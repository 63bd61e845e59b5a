"""Merging position deletes leaves every row as it was: tables that Iceberg Java 1.12.0 wrote and deleted rows of.

Java judges throughout, by its own reader and through Spark; PyIceberg where it can read. Java's own procedure does the same
to a table that was made in the same way.
"""

from itertools import count
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.reach import is_deletion_vector
from icekeep.tables.verbs import upgrade_format_version
from kit.cases import thinned
from kit.java import IcebergJava
from kit.java_stories import STORIES, JavaTable
from kit.java_tables import Judges, java_entries, our_entries
from kit.lake import Lake
from kit.naive_scan import live_entries

NUMBERS = count(1)
READERS = ("java", "spark")
TOLD = (
    ("positions by path", "parquet"),
    ("positions by reference", "orc"),
    ("positions by partition", "avro"),
    ("positions of all rows", "parquet"),
    ("three specs", "parquet"),
    ("other formats", "parquet"),
    ("vectors over position deletes", "parquet"),
    ("by sql", "parquet"),
    ("by sql in version 3", "parquet"),
    ("by sql to a partition", "orc"),
    ("compacted", "parquet"),
)


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("merged"))
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


def position_deletes_of(judges: Judges) -> list[DataFile]:
    files = [entry.data_file for entry in live_entries(judges.load())]
    return [file for file in files if file.content is FileContent.POSITION_DELETES]


def check(judges: Judges, before: Any, readers: tuple[str, ...] = READERS) -> None:
    """All readers read as before; what the metadata says is the same for Java and for us; a second run does nothing."""
    after = judges.look(readers)
    for name in ("ours", "java", "spark", "pyiceberg"):
        then, now = getattr(before, name), getattr(after, name)
        assert then is None or now is None or now == then, name
    assert our_entries(judges.load()) == java_entries(judges.java, judges.java_name)
    assert rewrite_position_deletes(judges.load(), judges.spark).commits_count == 0


@pytest.mark.parametrize(("name", "file_format"), thinned(TOLD, 4, pytest.mark.deep))
def test_rows_that_java_deleted_stay_deleted_and_no_other_row_is_lost(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, name: str, file_format: str
) -> None:
    story, number = STORIES[name], next(NUMBERS)
    table = JavaTable(java, f"local.db.told{number}", file_format)
    story.tell(table)
    judges = Judges(lake, java, spark, f"told{number}")
    readers = {"generic": READERS, "spark": ("spark",), "none": ()}[story.reader]
    before = judges.look(readers)
    rewrite_position_deletes(judges.load(), spark, options={"rewrite-all": "true"})
    check(judges, before, readers)
    tried("tables with deletes of Java's, merged")


def merge_on_read(java: IcebergJava, name: str, granularity: str, version: int = 2) -> None:
    """Three partitions of two data files; eight commits that delete a row of each."""
    properties = {
        "format-version": str(version),
        "write.delete.mode": "merge-on-read",
        "write.delete.granularity": granularity,
    }
    text = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    java.sql(f"CREATE TABLE {name} (id BIGINT, kind STRING) USING iceberg PARTITIONED BY (kind) TBLPROPERTIES ({text})")
    for start in (0, 60):
        java.sql(f"INSERT INTO {name} SELECT id, concat('k', id % 3) FROM range({start}, {start + 60}) AS n (id)")
    for step in range(8):
        java.sql(f"DELETE FROM {name} WHERE id % 60 IN ({step * 3}, {step * 3 + 1}, {step * 3 + 2})")


def summed(files: list[DataFile]) -> dict[Any, tuple[int, int]]:
    """How many files each partition has, and how many positions are in them."""
    found: dict[Any, tuple[int, int]] = {}
    for file in files:
        files_count, records_count = found.get(file.partition, (0, 0))
        found[file.partition] = files_count + 1, records_count + file.record_count
    return found


@pytest.mark.parametrize("granularity", thinned(["file", "partition"], 2, pytest.mark.deep))
def test_it_makes_what_javas_own_procedure_makes(
    java: IcebergJava, lake: Lake, spark: SparkSession, granularity: str
) -> None:
    number = next(NUMBERS)
    ours, theirs = (Judges(lake, java, spark, f"{who}{number}") for who in ("ours", "theirs"))
    for judges in (ours, theirs):
        merge_on_read(java, judges.java_name, granularity)
    before = ours.look()
    assert before.java is not None
    assert before.java.total() == 120 - 48
    result = rewrite_position_deletes(ours.load(), spark)
    (row,) = java.call("local", "rewrite_position_delete_files", table=f"db.theirs{number}")
    assert result.rewritten_delete_files_count == row["rewritten_delete_files_count"]
    assert result.added_delete_files_count == row["added_delete_files_count"]
    assert summed(position_deletes_of(ours)) == summed(position_deletes_of(theirs))
    check(ours, before)


def test_delete_files_of_java_become_vectors_that_java_reads(
    java: IcebergJava, lake: Lake, spark: SparkSession
) -> None:
    number = next(NUMBERS)
    judges = Judges(lake, java, spark, f"vectors{number}")
    merge_on_read(java, judges.java_name, "partition")
    rows = judges.look().java
    upgrade_format_version(judges.load(), 3)
    # Java merges what is there into vectors of its own for two of the partitions.
    java.sql(f"DELETE FROM {judges.java_name} WHERE id IN (57, 58)")
    before = judges.look()
    assert before.java is not None
    assert rows is not None
    assert (rows - before.java).total() == 2
    result = rewrite_position_deletes(judges.load(), spark)
    assert result.rewritten_delete_files_count > 0
    assert all(map(is_deletion_vector, position_deletes_of(judges)))
    check(judges, before)
    # Java goes on from there: its next vectors take over ours.
    java.sql(f"DELETE FROM {judges.java_name} WHERE id IN (54, 117)")
    after = judges.look()
    assert after.java is not None
    assert (before.java - after.java).total() == 2
    assert rewrite_position_deletes(judges.load(), spark).commits_count == 0
