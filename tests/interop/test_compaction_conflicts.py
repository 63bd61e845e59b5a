"""Iceberg Java 1.12.0 writes while we compact: its change is carried over, or what it changed is planned anew; nothing is lost.

Java writes after the plan is made and before our commit; then it and we must read the rows that Java left. StarRocks
PR #77709: rows deleted meanwhile came back. nimtable/iceberg-compaction PR #163, apache/iceberg #10312: deletes were lost.
"""

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.events import Event, StepStarted
from icekeep.maintenance.compact.execute import STEP
from icekeep.maintenance.compact.job import compact
from kit.java import IcebergJava
from kit.java_stories import EVENTS, JavaTable, event, events, partitioned_by
from kit.java_tables import Judges
from kit.lake import Lake

NUMBERS = count(1)
Change = Callable[[JavaTable], None]


def positions(table: JavaTable) -> None:
    table.delta(table.positions(1, 12))


def positions_of_a_partition(table: JavaTable) -> None:
    table.delta(table.positions(1, 4, 16, scope="partition"))


def vectors(table: JavaTable) -> None:
    table.delta(table.vectors(1, 12))


def equality(table: JavaTable) -> None:
    table.delta(*(table.equality(["id"], (1,), (4,), (16,), partition=partition) for partition in partitions(table)))


def upsert(table: JavaTable) -> None:
    """As streams write: the new row of an id, and a delete of the old one."""
    deletes = (table.equality(["id"], (1,), (4,), partition=partition) for partition in partitions(table))
    table.delta(table.adding({**event(number), "kind": "k1", "amount": None} for number in (1, 4)), *deletes)


def rows_appended(table: JavaTable) -> None:
    table.append(events([1, 40, 41]))


def rows_deleted_by_copying(table: JavaTable) -> None:
    table.sql("DELETE FROM {t} WHERE id IN (1, 12)")


def files_compacted(table: JavaTable) -> None:
    catalog, _, name = table.name.partition(".")
    table.java.call(catalog, "rewrite_data_files", table=name, options={"rewrite-all": "true"})


def partitions(table: JavaTable) -> list[list[Any]]:
    """The partition tuples of the current spec; the spec has the column `kind` alone, or none."""
    metadata = table.metadata
    [spec] = [spec for spec in metadata["partition-specs"] if spec["spec-id"] == metadata["default-spec-id"]]
    return [["k0"], ["k1"], ["k2"], [None]] if spec["fields"] else [[]]


class Intruder:
    """A listener who lets Java change the table when files begin to be rewritten, and keeps the rows it then has."""

    def __init__(self, table: JavaTable, change: Change) -> None:
        self.table, self.change = table, change
        self.rows: Counter[str] | None = None

    def on(self, event: Event) -> None:
        if isinstance(event, StepStarted) and event.step == STEP and self.rows is None:
            self.change(self.table)
            self.rows = self.table.rows()


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("contested"))
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


def made(lake: Lake, java: IcebergJava, *fields: tuple[str, str], version: int = 2) -> JavaTable:
    """Rows 0 to 29 in two files a partition, of which some are deleted already."""
    table = JavaTable(java, f"local.db.contested{next(NUMBERS)}")
    table.create(EVENTS, partitioned_by(*fields), version)
    table.append(events(range(30)), files=2)
    table.delta(table.vectors(2, 20) if version == 3 else table.positions(2, 20))
    return table


def check_nothing_is_lost(
    lake: Lake, java: IcebergJava, spark: SparkSession, table: JavaTable, intruder: Intruder
) -> None:
    judges = Judges(lake, java, spark, table.name.rpartition(".")[2])
    assert intruder.rows is not None, "Java has not come to write"
    assert table.rows() == table.rows_of_spark() == intruder.rows
    # Format version 3 has row lineage beside the columns.
    ours = judges.look(("spark",))
    assert ours.ours == ours.spark
    assert ours.ours.total() == intruder.rows.total()


ARGUMENTS: dict[str, dict[str, Any]] = {
    "binpack": {},
    "zorder": {"strategy": "sort", "sort_order": "zorder(id, day)"},
}


@pytest.mark.parametrize(
    ("change", "version", "strategy"),
    [
        (positions, 2, "binpack"),
        (positions_of_a_partition, 2, "zorder"),
        (vectors, 3, "binpack"),
        (vectors, 3, "zorder"),
    ],
)
def test_rows_that_are_deleted_by_position_meanwhile_are_deleted_in_the_new_files(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, change: Change, version: int, strategy: str
) -> None:
    table = made(lake, java, version=version)
    intruder = Intruder(table, change)
    ours = lake.catalog.load(("db", table.name.rpartition(".")[2]))
    result = compact(ours, spark, options={"rewrite-all": "true"}, listener=intruder, **ARGUMENTS[strategy])
    assert (result.planned_anew_files_count, result.carried_delete_files_count) == (0, result.added_data_files_count)
    check_nothing_is_lost(lake, java, spark, table, intruder)
    tried("changes of Java's in the middle of our compactions")


@pytest.mark.parametrize(("change", "strategy"), [(rows_deleted_by_copying, "binpack"), (files_compacted, "zorder")])
def test_files_that_are_gone_meanwhile_have_their_group_planned_anew(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, change: Change, strategy: str
) -> None:
    table = made(lake, java)
    intruder = Intruder(table, change)
    ours = lake.catalog.load(("db", table.name.rpartition(".")[2]))
    result = compact(ours, spark, options={"rewrite-all": "true"}, listener=intruder, **ARGUMENTS[strategy])
    assert (result.status, result.planned_anew_files_count) == ("done", 2)
    check_nothing_is_lost(lake, java, spark, table, intruder)
    tried("changes of Java's in the middle of our compactions")


@pytest.mark.parametrize("fields", [(), (("kind", "identity"),)], ids=["unpartitioned", "partitioned"])
@pytest.mark.parametrize(
    ("change", "version", "strategy"),
    [(equality, 2, "binpack"), (equality, 3, "zorder"), (upsert, 2, "zorder"), (rows_appended, 3, "binpack")],
)
def test_rows_that_are_added_or_deleted_by_their_values_meanwhile_are_added_or_deleted(
    java: IcebergJava,
    lake: Lake,
    spark: SparkSession,
    tried: Any,
    change: Change,
    version: int,
    fields: tuple[tuple[str, str], ...],
    strategy: str,
) -> None:
    """The new files keep the data sequence number of the start, so newer deletes reach them."""
    table = made(lake, java, *fields, version=version)
    intruder = Intruder(table, change)
    ours = lake.catalog.load(("db", table.name.rpartition(".")[2]))
    options = {"rewrite-all": "true", "remove-dangling-deletes": "true"}
    result = compact(ours, spark, options=options, listener=intruder, **ARGUMENTS[strategy])
    assert result.rewritten_data_files_count == (8 if fields else 2)
    check_nothing_is_lost(lake, java, spark, table, intruder)
    tried("changes of Java's in the middle of our compactions")


@pytest.mark.parametrize("change", [equality, upsert])
def test_deletes_by_value_have_files_planned_anew_where_the_new_ones_would_be_too_new_for_them(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, change: Change
) -> None:
    table = made(lake, java)
    intruder = Intruder(table, change)
    ours = lake.catalog.load(("db", table.name.rpartition(".")[2]))
    options = {"rewrite-all": "true", "use-starting-sequence-number": "false"}
    result = compact(ours, spark, options=options, listener=intruder)
    assert (result.status, result.planned_anew_files_count) == ("done", 2)
    check_nothing_is_lost(lake, java, spark, table, intruder)
    tried("changes of Java's in the middle of our compactions")


def test_deletes_by_value_have_files_planned_anew_where_these_move_to_another_spec(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any
) -> None:
    """Java's deletes are of the old spec and partition: they would not reach the new files."""
    table = made(lake, java, ("kind", "identity"))
    table.alter("ADD PARTITION FIELD bucket(2, id)")

    def in_the_old_spec(table: JavaTable) -> None:
        kinds = ("k0", "k1", "k2", None)
        table.delta(*(table.equality(["id"], (1,), (4,), (16,), spec_id=0, partition=[kind]) for kind in kinds))

    intruder = Intruder(table, in_the_old_spec)
    ours = lake.catalog.load(("db", table.name.rpartition(".")[2]))
    result = compact(ours, spark, options={"rewrite-all": "true", "output-spec-id": "1"}, listener=intruder)
    assert (result.status, result.planned_anew_files_count) == ("done", 8)
    check_nothing_is_lost(lake, java, spark, table, intruder)
    tried("changes of Java's in the middle of our compactions")


@pytest.mark.parametrize(("change", "anew"), [(positions, 0), (equality, 0), (rows_deleted_by_copying, 4)])
def test_with_partial_progress_only_the_groups_that_java_changed_are_planned_anew(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, change: Change, anew: int
) -> None:
    """Rows 1 and 12 are in two of four partitions."""
    table = made(lake, java, ("kind", "identity"))
    intruder = Intruder(table, change)
    ours = lake.catalog.load(("db", table.name.rpartition(".")[2]))
    options = {"rewrite-all": "true", "partial-progress.enabled": "true", "partial-progress.max-commits": "4"}
    result = compact(ours, spark, options=options, listener=intruder)
    assert (result.status, result.failed_data_files_count) == ("done", 0)
    assert result.planned_anew_files_count == anew
    # Of a file that was copied without its rows another has taken the place, which this run does not know.
    assert result.rewritten_data_files_count == (6 if anew else 8)
    check_nothing_is_lost(lake, java, spark, table, intruder)
    tried("changes of Java's in the middle of our compactions")
