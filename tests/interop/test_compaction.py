"""Compaction leaves every row as it was: tables that Iceberg Java 1.12.0 wrote and deleted rows of, compacted in every way.

Java judges throughout, by its own reader and through Spark; PyIceberg where it can read. In format version 3 a row keeps
its id and the number of its last change.
"""

from collections import Counter
from collections.abc import Callable
from itertools import count, product
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from icekeep.events import Event, StepStarted
from icekeep.maintenance.compact.execute import STEP
from icekeep.maintenance.compact.job import RewriteDataFilesResult, compact
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append, create_table
from kit.cases import Choices, cases, chosen_of, thinned
from kit.columns import table_of
from kit.deletes import data_files
from kit.foreign_tables import ByJava
from kit.java import IcebergJava
from kit.java_stories import EVENTS, STORIES, JavaTable, event, events, partitioned_by
from kit.java_tables import (
    GeneratedTable,
    Judges,
    Seen,
    check_partitions,
    deletes_that_reach,
    generated_tables,
    java_entries,
    orders,
    our_entries,
)
from kit.lake import Lake
from kit.row_histories import History
from kit.rows import row_texts

HISTORIES = 12
HISTORIES_OF_GATE = (0, 2, 7)
"""Each version and three of the strategies; all twelve are every strategy in every version."""
TABLES = 3  # of each format for each strategy
VERSIONS = (2, 3, 1)
STRATEGIES = ("binpack", "sort", "zorder", "hilbert")
READERS = ("java", "spark")
NUMBERS = count(1)
GENERATED = cases(
    TABLES,
    least=TABLES,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
# Strategies and formats take turns, so that each strategy meets each format.
TOLD = [
    (name, story.formats[number // 4 % len(story.formats)], STRATEGIES[number % 4])
    for number, (name, story) in enumerate(STORIES.items())
    # Java's ORC reader takes one zero for the other, deletes or not.
    if name != "zeros alone"
]


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("compacted"))
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


def check(before: Seen, after: Seen) -> None:
    """What a reader could read before it reads as before, and no reader sees other rows than we do."""
    assert after.ours == before.ours
    for name in ("java", "spark", "pyiceberg"):
        then, now = getattr(before, name), getattr(after, name)
        if then is not None:
            assert now == then, name
    if after.spark is not None:
        assert after.spark == after.ours


def compacted(judges: Judges, options: dict[str, str], **arguments: Any) -> RewriteDataFilesResult:
    """Compact a branch and see that doing it again does nothing."""
    arguments |= {"branch": judges.branch}
    before = judges.load()
    result = compact(before, judges.spark, options=options, **arguments)
    # What was rewritten because all files were is left alone by the second run's rules.
    again = {**options, "rewrite-all": "false", "delete-file-threshold": "1"}
    table = judges.load()
    spec_id = int(options.get("output-spec-id", table.metadata.default_spec_id))
    if any(file.spec_id != spec_id for one in (before, table) for file in data_files(one, judges.branch)):
        # Files that move to a spec lie beside those that were there. Some stayed for equality deletes that are gone now.
        compact(table, judges.spark, options=again, **arguments)
    second = compact(judges.load(), judges.spark, options=again, **arguments)
    assert second.rewritten_data_files_count == 0
    return result


@pytest.mark.parametrize(("name", "file_format", "strategy"), thinned(TOLD, 4, pytest.mark.deep))
def test_compaction_keeps_java_deletes_and_other_rows(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, name: str, file_format: str, strategy: str
) -> None:
    """After it no delete reaches a file any more; apache/iceberg #10312, nimtable/iceberg-compaction PR #163."""
    story, number = STORIES[name], next(NUMBERS)
    table = JavaTable(java, f"local.db.told{number}", file_format)
    story.tell(table)
    judges = Judges(lake, java, spark, f"told{number}")
    if story.renaming is not None:
        table.alter(f"RENAME COLUMN {story.renaming} TO renamed")
    readers = READERS if name != "every type" else ("java",)  # Spark has no type for some of its columns
    before = judges.look({"generic": readers, "spark": ("spark",), "none": ()}[story.reader])
    arguments = orders(judges.load().metadata.schema, number)[strategy]
    files = len(data_files(judges.load()))
    options = {"rewrite-all": "true", "remove-dangling-deletes": "true" if number % 2 else "false"}
    result = compacted(judges, options, **arguments)
    assert result.rewritten_data_files_count == files
    # Once the deletes are applied, Java reads right what it read wrongly with them.
    check(before, judges.look(readers))
    assert before.ours.total() == len(story.left)
    assert deletes_that_reach(judges.load(), spark) == []
    assert our_entries(judges.load()) == java_entries(java, judges.java_name)
    tried(f"tables with deletes of Java's, compacted, {strategy}")
    tried("rows in them", before.ours.total())


@pytest.mark.parametrize("number", chosen_of(HISTORIES, HISTORIES_OF_GATE, pytest.mark.deep))
def test_whatever_happened_to_a_table_its_rows_stay(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, number: int
) -> None:
    """Files of all formats, columns changed and dropped, specs old and new, on `main` or on a branch."""
    version, strategy = VERSIONS[number % len(VERSIONS)], STRATEGIES[number % len(STRATEGIES)]
    by = ByJava(lake, java)
    history, chosen = History.of(number, by, (version,)), Choices(number)
    table = history.table
    branch = chosen.choice(("main", "audit"))
    if branch != "main":
        table = create_branch(table, branch)
    judges = Judges(lake, java, spark, by.name, branch)
    # Through columns that are gone only Java's Spark applies deletes.
    before = judges.look(("spark",) if by.compares_lost_columns else READERS)
    assert by.rows() == history.expected()
    options = {
        "rewrite-all": "true",
        "remove-dangling-deletes": chosen.choice(("true", "false")),
        "partial-progress.enabled": chosen.choice(("true", "false")),
        "partial-progress.max-commits": "3",
    }
    if chosen.random() < 0.5:
        options["output-spec-id"] = str(chosen.choice(sorted(table.metadata.specs_by_id)))
    main = table.metadata.current_snapshot_id
    result = compacted(judges, options, **orders(table.metadata.schema, chosen.randrange(40)).get(strategy, {}))
    assert result.status == "done"
    check(before, judges.look())
    after = judges.load()
    assert by.rows() == history.expected()
    if branch != "main":
        assert after.metadata.current_snapshot_id == main
    else:
        assert our_entries(after) == java_entries(java, judges.java_name)
        if "output-spec-id" in options:
            assert {file.spec_id for file in data_files(after)} <= {int(options["output-spec-id"])}
    tried(f"generated histories of Java's tables, compacted, version {version}, {strategy}")
    tried("rows in them", before.ours.total())


@pytest.mark.parametrize(
    ("file_format", "strategy"), thinned(product(("parquet", "avro", "orc"), STRATEGIES), 5, pytest.mark.deep)
)
@GENERATED
@given(data=st.data())
def test_values_of_every_type_survive(
    java: IcebergJava, lake: Lake, spark: SparkSession, tried: Any, file_format: str, strategy: str, data: st.DataObject
) -> None:
    """Nested columns among them; partition tuples, paths and entries are those that Java makes of the rows."""
    generated: GeneratedTable = data.draw(generated_tables(file_format))
    number = next(NUMBERS)
    name, version = f"typed{number}", 1 + number % 3
    table = create_table(
        lake.catalog,
        ("db", name),
        generated.schema,
        partition_by=generated.partition_by,
        properties={"write.format.default": file_format},
        format_version=version,
    )
    for batch in generated.batches:
        table = append(table, table_of(table.metadata.schema, list(batch)))
    compact(table, spark, options={"rewrite-all": "true"}, **orders(generated.schema, number).get(strategy, {}))
    table = lake.catalog.load(("db", name))
    assert java.rows(f"local.db.{name}") == row_texts(generated.schema, generated.rows)
    assert our_entries(table) == java_entries(java, f"local.db.{name}")
    check_partitions(java, f"local.db.{name}", table, generated.rows)
    tried(f"generated tables of every type, compacted, {strategy}")


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
def test_positions_deleted_meanwhile(
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
def test_group_is_replanned_when_its_files_are_gone(
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
def test_rows_added_or_deleted_by_value_meanwhile(
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
def test_planned_again_where_new_files_are_too_new_for_deletes(
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


def test_planned_again_where_files_move_to_another_spec(
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
def test_partial_progress_plans_only_changed_groups_again(
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
