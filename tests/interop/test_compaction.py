"""Compaction leaves every row as it was: tables that Iceberg Java 1.12.0 wrote and deleted rows of, compacted in every way.

Java judges throughout, by its own reader and through Spark; PyIceberg where it can read. In format version 3 a row keeps
its id and the number of its last change.
"""

from itertools import count, product
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from icekeep.maintenance.compact.job import RewriteDataFilesResult, compact
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append, create_table
from kit.cases import Choices, cases, chosen_of, thinned
from kit.columns import table_of
from kit.deletes import data_files
from kit.foreign_tables import ByJava
from kit.java import IcebergJava
from kit.java_stories import STORIES, JavaTable
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
def test_rows_that_java_deleted_stay_deleted_and_no_other_row_is_lost(
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
