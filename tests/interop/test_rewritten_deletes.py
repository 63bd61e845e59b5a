"""Merging position deletes leaves every row as it was: tables that Iceberg Java 1.12.0 wrote and deleted rows of.

Java judges throughout, by its own reader and through Spark; PyIceberg where it can read. Java's own procedure does the same
to a table that was made in the same way.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.events import Event, StepStarted
from icekeep.maintenance.deletes import equality as equality_deletes
from icekeep.maintenance.deletes.equality import ConvertEqualityDeletesResult, convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.reach import is_deletion_vector
from icekeep.tables.verbs import upgrade_format_version
from kit.cases import thinned
from kit.java import IcebergJava, JavaError
from kit.java_stories import EVENTS, STORIES, JavaTable, event, events, partitioned_by
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
def test_rewrite_of_deletes_keeps_java_deletes_and_rows(
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


NAMES = count(1)
FORMATS = ("parquet", "orc", "avro")
KINDS: tuple[Any, ...] = ("k0", "k1", "k2", None)


def made(java: IcebergJava, *fields: tuple[str, str], version: int = 2, file_format: str = "parquet") -> JavaTable:
    """Rows 0 to 29 in two files a partition, of which two are deleted by position."""
    table = JavaTable(java, f"local.db.converted{next(NAMES)}", file_format)
    table.create(EVENTS, partitioned_by(*fields), version)
    table.append(events(range(30)), files=2)
    table.delta(table.vectors(2, 20) if version == 3 else table.positions(2, 20))
    return table


def delete(table: JavaTable, *ids: int, **where: Any) -> None:
    table.delta(table.equality(["id"], *((number,) for number in ids), **where))


def ours(lake: Lake, table: JavaTable) -> Table:
    return lake.catalog.load(("db", table.name.rpartition(".")[2]))


def contents(lake: Lake, table: JavaTable) -> set[FileContent]:
    return {entry.data_file.content for entry in live_entries(ours(lake, table))}


def check_converted(
    lake: Lake, java: IcebergJava, spark: SparkSession, table: JavaTable, **arguments: Any
) -> ConvertEqualityDeletesResult:
    """Rows, and in version 3 their ids and the numbers of their last changes, are the same by all who read them."""
    judges = Judges(lake, java, spark, table.name.rpartition(".")[2])
    before, by_java = judges.look(("spark",)), table.rows()
    result = convert_equality_deletes(ours(lake, table), spark, **arguments)
    after = judges.look(("spark",))
    assert after.ours == after.spark == before.ours == before.spark
    assert table.rows() == by_java
    assert FileContent.EQUALITY_DELETES not in contents(lake, table)
    return result


@pytest.mark.deep
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("file_format", FORMATS)
def test_java_reads_the_same_rows(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, file_format: str, version: int
) -> None:
    """Nulls, NaN and both zeros, keys in structs, upserts, deletes that reach nothing, a spec and columns that changed."""
    table = made(java, ("kind", "identity"), version=version, file_format=file_format)
    for kind in KINDS:
        delete(table, 1, 4, 16, partition=[kind])
        table.delta(table.equality(["place.zone"], ("z1",), ("z3",), partition=[kind]))
    if file_format != "orc":
        # Java's ORC reader takes the two zeros for one.
        table.delta(table.equality(["score", "kind"], (float("nan"), "k1"), (0.0, "k2"), partition=["k1"]))
    table.delta(table.adding([event(4)]), table.equality(["id"], (7,), partition=["k1"]))
    table.alter("ADD PARTITION FIELD bucket(2, id)")
    table.append(events(range(30, 40)))
    table.alter("DROP COLUMN amount")
    result = check_converted(lake, java, spark, table, options={"delete-granularity": "partition"})
    assert result.deleted_positions_count > 5
    tried("tables of Java's whose equality deletes were converted")


@pytest.mark.deep
def test_deletes_by_dropped_columns_and_of_all_partitions(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any
) -> None:
    table = made(java)
    table.delta(table.equality(["day"], (18_005,), (18_006,)))
    table.alter("ADD PARTITION FIELD kind")
    table.append(events(range(30, 40)))
    table.delta(table.equality(["id"], (7,), (31,), spec_id=0))
    table.alter("DROP COLUMN day")
    judges = Judges(lake, java, spark, table.name.rpartition(".")[2])
    before = judges.look(("spark",))
    convert_equality_deletes(ours(lake, table), spark)
    after = judges.look(("spark", "java"))
    assert after.ours == after.spark == before.spark == before.ours
    # Its own reader, too, has the rows now that nothing is compared any more.
    assert after.java == after.ours
    assert after.ours.total() == 30 - 2 + 10 - 4
    tried("tables of Java's whose equality deletes were converted")


@pytest.mark.deep
def test_java_goes_on_writing_and_compacts_what_we_converted(
    java: IcebergJava, lake: Lake, spark: SparkSession
) -> None:
    for version in (2, 3):
        table = made(java, version=version)
        delete(table, 1, 4)
        check_converted(lake, java, spark, table)
        delete(table, 7)
        table.delta(table.vectors(9) if version == 3 else table.positions(9))
        expected = table.rows()
        table.java.call("local", "rewrite_data_files", table=table.name[6:], options={"rewrite-all": "true"})
        assert table.rows() == expected
        assert expected.total() == 30 - 6


@pytest.mark.deep
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("started", ["before the deletes", "after the deletes"])
def test_java_compaction_begins_before_and_commits_after(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, started: str, version: int
) -> None:
    """apache/iceberg #10312: it is refused, since our snapshot is none of those that it does not look into."""
    table = made(java, version=version)
    if started == "before the deletes":
        java.ask("Compactions.start", table=table.name.split("."))
    delete(table, 1, 4)
    if started == "after the deletes":
        java.ask("Compactions.start", table=table.name.split("."))
    check_converted(lake, java, spark, table)
    expected = table.rows()
    assert expected.total() == 26
    with pytest.raises(JavaError, match=r"(?i)new delete|new position delete|missing|cannot commit"):
        java.ask("Compactions.commit", table=table.name.split("."))
    assert table.rows() == expected
    assert contents(lake, table) == {FileContent.DATA, FileContent.POSITION_DELETES}
    tried("compactions of Java's in a race with our conversion")


@pytest.mark.deep
@pytest.mark.parametrize("version", [2, 3])
def test_a_compaction_of_javas_after_us(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, version: int
) -> None:
    """The deletes hit no row of its files, so there is nothing that it could lose."""
    table = made(java, version=version)
    delete(table, 777)
    java.ask("Compactions.start", table=table.name.split("."))
    check_converted(lake, java, spark, table)
    expected = table.rows()
    java.ask("Compactions.commit", table=table.name.split("."))
    assert table.rows() == expected
    tried("compactions of Java's in a race with our conversion")


class Intruder:
    """A listener who lets Java act once, when a round begins."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)

    def on(self, event: Event) -> None:
        if isinstance(event, StepStarted) and event.step == equality_deletes.STEP and self.acts:
            self.acts.pop(0)()


@pytest.mark.deep
@pytest.mark.parametrize("version", [2, 3])
def test_java_compaction_lands_between_plan_and_commit(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, version: int
) -> None:
    """Its new file is as old as the start of the compaction, so the deletes reach it (apache/iceberg #10312)."""
    table = made(java, version=version)
    java.ask("Compactions.start", table=table.name.split("."))
    delete(table, 1, 4)
    listener = Intruder(lambda: java.ask("Compactions.commit", table=table.name.split(".")))
    expected = table.rows()
    result = convert_equality_deletes(ours(lake, table), spark, listener=listener)
    assert (result.attempts_count, result.read_data_files_count, result.deleted_positions_count) == (2, 1, 2)
    # In version 3 this compaction gives rows new ids, as Iceberg's generic writers do, so only values are compared.
    assert table.rows() == table.rows_of_spark() == expected
    assert expected.total() == 26
    seen = Judges(lake, java, spark, table.name.rpartition(".")[2]).look(("spark",))
    assert seen.ours == seen.spark
    assert contents(lake, table) == {FileContent.DATA, FileContent.POSITION_DELETES}
    tried("compactions of Java's in a race with our conversion")


@pytest.mark.deep
@pytest.mark.parametrize("version", [2, 3])
def test_what_java_writes_between_our_plan_and_our_commit_stays(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, version: int
) -> None:
    table = made(java, version=version)
    delete(table, 1, 4)

    def write() -> None:
        table.delta(table.vectors(9) if version == 3 else table.positions(9))
        table.delta(table.adding([event(4), event(50)]), table.equality(["id"], (7,)))

    listener = Intruder(write)
    result = convert_equality_deletes(ours(lake, table), spark, listener=listener)
    assert table.rows() == table.rows_of_spark()
    assert table.rows().total() == 30 - 2 - 2 - 2 + 2
    # A vector that came meanwhile must be in ours; position delete files add up, and the new equality delete is too new.
    assert result.attempts_count == (2 if version == 3 else 1)
    check_converted(lake, java, spark, table)
    tried("changes of Java's in the middle of our conversions")
