"""Equality deletes that become deletes of positions, judged by Iceberg Java: it reads the same rows before and after.

And races with its compactions, whose planner and commits are Iceberg's own: apache/iceberg #10312 (deletes were lost after a
compaction), #12280 (the same deletes touch all of a table again and again), nimtable/iceberg-compaction PR #163.
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
from icekeep.spec.manifests.structs import FileContent
from kit.java import IcebergJava, JavaError
from kit.java_stories import EVENTS, JavaTable, event, events, partitioned_by
from kit.java_tables import Judges
from kit.lake import Lake
from kit.naive_scan import live_entries

pytestmark = pytest.mark.deep

NAMES = count(1)
FORMATS = ("parquet", "orc", "avro")
KINDS: tuple[Any, ...] = ("k0", "k1", "k2", None)


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("converted"))
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


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


def test_deletes_by_columns_since_dropped_and_deletes_of_all_partitions(
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


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("started", ["before the deletes", "after the deletes"])
def test_a_compaction_of_javas_that_began_before_us_and_commits_after_us(
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


@pytest.mark.parametrize("version", [2, 3])
def test_a_compaction_of_javas_that_commits_after_us_where_no_row_was_deleted(
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


@pytest.mark.parametrize("version", [2, 3])
def test_a_compaction_of_javas_that_lands_between_our_plan_and_our_commit(
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
