"""Rows of `scan` on tables whose rows Iceberg Java 1.12.0 deleted in every way it has; Java judges throughout.

PyIceberg is asked as well where it can read: no equality deletes, and position deletes in Parquet only.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.planning.scan.tasks import plan_tasks
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import Schema
from icekeep.tables.read import scan
from kit.cases import thinned
from kit.java import IcebergJava, JavaError
from kit.java_stories import EVENTS, STORIES, JavaTable, Story, event
from kit.lake import Lake
from kit.rows import filter_tree, multiset, to_wire

FORMATS = ("parquet", "orc", "avro")
# Of these the file format matters most; the others take formats by turns.
IN_EVERY_FORMAT = ("two columns", "every type", "splits", "zeros alone")
TOLD = [
    (name, file_format)
    for number, (name, story) in enumerate(STORIES.items())
    for file_format in (story.formats if name in IN_EVERY_FORMAT else (story.formats[number % len(story.formats)],))
]

Teller = Callable[[str, str], tuple[JavaTable, Table]]


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("stories"))
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def told(java: IcebergJava, lake: Lake) -> Teller:
    """Tells a story in a file format, once: the table as Java has it, and as we load it."""
    known: dict[tuple[str, str], tuple[JavaTable, Table]] = {}

    def tell(story: str, file_format: str) -> tuple[JavaTable, Table]:
        if (story, file_format) not in known:
            name = f"t{len(known)}"
            table = JavaTable(java, f"local.db.{name}", file_format)
            STORIES[story].tell(table)
            known[story, file_format] = table, lake.catalog.load(("db", name))
        return known[story, file_format]

    return tell


@pytest.fixture(scope="module")
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


def our_rows(table: Table, spark: SparkSession, schema: Schema | None = None, **how: Any) -> list[Any]:
    """Rows of `scan` as `to_wire` has them."""
    struct = (schema or table.metadata.schema).as_struct()
    names = [field.name for field in struct.fields]
    return [to_wire(struct, row) for row in scan(table, spark, select=names, **how).toArrow().to_pylist()]


def for_spark(schema: Schema) -> Schema:
    """The columns whose types Spark has."""
    return Schema(fields=tuple(f for f in schema.fields if getattr(f.type, "name", None) != "time"))


def in_columns(rows: list[Any], schema: Schema, wanted: Schema) -> Counter[str]:
    """Java's rows cut down to some columns."""
    positions = [schema.fields.index(field) for field in wanted.fields]
    return multiset([row[n] for n in positions] for row in rows)


def rows_of_java(table: JavaTable, story: Story, wanted: Schema) -> Counter[str]:
    if story.reader == "generic":
        return in_columns(table.java.read(table.name)["rows"], table.schema, wanted)
    if story.renaming is None:
        return table.rows_of_spark()
    table.alter(f"RENAME COLUMN {story.renaming} TO `{story.renaming} for Java`")
    return table.rows_of_spark()


@pytest.mark.parametrize(("name", "file_format"), thinned(TOLD, 3, pytest.mark.deep))
def test_rows_are_those_that_java_reads(
    told: Teller, spark: SparkSession, tried: Any, name: str, file_format: str
) -> None:
    java_table, table = told(name, file_format)
    story, wanted = STORIES[name], for_spark(table.metadata.schema)
    rows = our_rows(table, spark, wanted)
    assert Counter(row[0] for row in rows) == Counter(story.left)
    if story.reader != "none":
        assert multiset(rows) == rows_of_java(java_table, story, wanted)
    tried("tables with rows that Java deleted, scanned as Java does")
    tried("rows in them that are left", len(rows))


FILTERED = (
    ("positions by partition", "avro", "kind = 'k1' AND id < 25", "place.zone = 'z1' OR id > 20"),
    ("upserts", "orc", "kind IS NULL OR amount > 3", "day BETWEEN '2019-04-20' AND '2019-05-02'"),
    ("two columns", "avro", "score IS NAN", "kind IN ('k0', 'k2') AND amount >= 3.5"),
    ("three specs", "avro", "kind = 'k1' AND id < 25", "NOT id IN (5, 6, 7, 15, 26)"),
    ("vectors by partition", "parquet", "kind IS NULL OR amount > 3", "day < '2019-05-01' AND score IS NOT NULL"),
)


@pytest.mark.parametrize(
    ("name", "file_format", "texts"),
    thinned(((name, kind, texts) for name, kind, *texts in FILTERED), 2, pytest.mark.deep),
)
def test_filtered_rows_are_those_that_java_reads(
    told: Teller, spark: SparkSession, tried: Any, name: str, file_format: str, texts: list[str]
) -> None:
    """What a filter prunes takes no delete with it that another row needs."""
    java_table, table = told(name, file_format)
    schema = table.metadata.schema
    for text in texts:
        theirs = java_table.java.read(java_table.name, filter_tree(parse_where(text, 0), schema))["rows"]
        assert 0 < len(theirs) < len(STORIES[name].left)
        assert multiset(our_rows(table, spark, where=text)) == multiset(theirs), text
        tried("filtered scans of such tables")


@pytest.mark.parametrize("file_format", FORMATS)
def test_splits_and_filters_do_not_shift_positions(told: Teller, spark: SparkSession, file_format: str) -> None:
    """Row groups and stripes are pruned and read by several tasks; the deleted rows are the same."""
    _, table = told("splits", file_format)
    ids = Counter(n for n in STORIES["splits"].left if 1500 <= n < 1600 or n == 2999)
    rows = scan(table, spark, where="id >= 1500 AND id < 1600 OR id = 2999", select=["id"])
    assert Counter(row.id for row in rows.collect()) == ids
    assert scan(table, spark, select=["id"]).rdd.getNumPartitions() > 1


@pytest.mark.parametrize(
    ("name", "file_format"), [("upserts", "orc"), ("two columns", "parquet"), ("dropped column", "avro")]
)
def test_columns_that_only_deletes_need_are_not_shown(
    told: Teller, spark: SparkSession, name: str, file_format: str
) -> None:
    """Nor are those that the filter needs."""
    _, table = told(name, file_format)
    schema = table.metadata.schema
    for where in ("true", "score > 3"):
        everything = our_rows(table, spark, where=where)
        wanted = Schema(fields=tuple(schema.field(n) for n in ("day", "amount")))
        assert multiset(our_rows(table, spark, wanted, where=where)) == in_columns(everything, schema, wanted)


@pytest.mark.parametrize(("name", "file_format"), [("upserts", "orc"), ("added column", "avro")])
def test_every_snapshot_has_the_rows_that_java_reads_in_it(
    told: Teller, spark: SparkSession, tried: Any, name: str, file_format: str
) -> None:
    java_table, table = told(name, file_format)
    schemas = {schema.schema_id: schema for schema in table.metadata.schemas}
    for snapshot in table.metadata.snapshots:
        assert snapshot.schema_id is not None
        theirs = java_table.java.read(java_table.name, snapshot_id=snapshot.snapshot_id)["rows"]
        ours = our_rows(table, spark, schemas[snapshot.schema_id], snapshot_id=snapshot.snapshot_id)
        assert multiset(ours) == multiset(theirs)
        tried("snapshots of such tables")


PLANNED = (
    "positions by path",
    "positions by partition",
    "upserts",
    "equality before partitioning",
    "three specs",
    "void spec",
    "vectors over position deletes",
    "compacted",
)


@pytest.mark.parametrize("name", thinned(PLANNED, 2, pytest.mark.deep))
def test_each_data_file_gets_the_deletes_that_java_plans_for_it(told: Teller, spark: SparkSession, name: str) -> None:
    """But for equality deletes that Java leaves out by the bounds of the columns compared."""
    java_table, table = told(name, dict(TOLD)[name])
    theirs = {f["file_path"]: set(f["delete_paths"]) for f in java_table.java.plan_files(java_table.name)}
    ours = {
        row.file_path: {(delete.file_path, delete.content) for delete in row.deletes}
        for row in plan_tasks(table, spark).collect()
    }
    assert ours.keys() == theirs.keys()
    assert any(theirs.values())
    for path, planned in theirs.items():
        assert planned <= {delete for delete, _ in ours[path]}
        assert {delete for delete, content in ours[path] if content == int(FileContent.POSITION_DELETES)} <= planned


def test_what_was_appended_after_a_snapshot_is_what_java_says(told: Teller, spark: SparkSession) -> None:
    """Deletes are left aside by both."""
    java_table, table = told("equality before partitioning", dict(TOLD)["equality before partitioning"])
    first, *_, last = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    theirs = java_table.java.read(java_table.name, snapshot_id=last, after_snapshot_id=first)["rows"]
    ours = our_rows(table, spark, start_snapshot_id=first, end_snapshot_id=last)
    assert multiset(ours) == multiset(theirs)
    assert sorted(row[0] for row in ours) == sorted((*range(10, 20), 2, 15, 21))


def test_a_branch_has_its_own_deletes(told: Teller, spark: SparkSession) -> None:
    """Judged by hand: `main` lost rows 1 and 3, `audit` rows 1, 2 and 12."""
    java_table, table = told("by sql in a branch", "parquet")
    branch = sorted(row.id for row in scan(table, spark, ref="audit").collect())
    assert branch == [row["id"] for row in java_table.sql("SELECT id FROM {t}.branch_audit ORDER BY id")]
    assert branch == [n for n in range(30) if n not in (1, 2, 12)]


@pytest.mark.parametrize(
    ("name", "file_format", "columns"),
    [
        ("three specs", "avro", ("_file", "_pos", "_spec_id")),
        ("splits", "parquet", ("_file", "_pos")),
        ("splits", "orc", ("_file", "_pos")),
        ("vectors", "parquet", ("_file", "_pos", "_row_id", "_last_updated_sequence_number")),
        ("by sql in version 3", "orc", ("_file", "_pos", "_row_id", "_last_updated_sequence_number", "_partition")),
    ],
)
def test_the_rows_that_are_left_lie_where_java_finds_them(
    told: Teller, spark: SparkSession, name: str, file_format: str, columns: tuple[str, ...]
) -> None:
    """Judged by Java's Spark: places, row lineage and partitions, by columns of metadata."""
    java_table, table = told(name, file_format)
    rows = [row.asDict(recursive=True) for row in scan(table, spark, select=["id", *columns]).collect()]
    theirs = java_table.sql(f"SELECT id, {', '.join(columns)} FROM {{t}}")
    assert Counter(map(repr, rows)) == Counter(map(repr, theirs))


FOR_PYICEBERG = (
    "positions by path",
    "positions by reference",
    "positions by partition",
    "positions of all rows",
    "vectors",
    "by sql",
    "by sql to a partition",
)


@pytest.mark.parametrize("name", thinned(FOR_PYICEBERG, 2, pytest.mark.deep))
def test_rows_are_those_that_pyiceberg_reads(told: Teller, spark: SparkSession, name: str) -> None:
    _, table = told(name, "parquet")
    struct = table.metadata.schema.as_struct()
    theirs = StaticTable.from_metadata(table.metadata_location).scan().to_arrow().to_pylist()
    assert multiset(our_rows(table, spark)) == multiset(to_wire(struct, row) for row in theirs)


def test_where_java_strays_from_the_spec_we_do_not(told: Teller, spark: SparkSession) -> None:
    """A field of a null struct is null (spec, "Equality Delete Files"); Java compares the structs.

    And where its Spark is not asked for the struct, it looks for the field in a column of its own, and finds null.
    """
    java_table, _ = told("null struct", "avro")
    spared = (6, 14, 22)
    left = sorted((*STORIES["null struct"].left, *spared))
    assert sorted(row[0] for row in java_table.java.read(java_table.name)["rows"]) == left
    assert [row["id"] for row in java_table.sql("SELECT * FROM {t} ORDER BY id")] == left
    java_table, table = told("nested column", "orc")
    assert java_table.sql("SELECT id FROM {t}") == []
    assert sorted(row.id for row in scan(table, spark, select=["id"]).collect()) == list(STORIES["nested column"].left)


def test_javas_own_reader_refuses_deletes_by_a_dropped_column(told: Teller) -> None:
    """Its Spark applies them, but not once a new column has the old name."""
    java_table, _ = told("dropped column", "avro")
    with pytest.raises(JavaError, match="Cannot find required field for ID 2"):
        java_table.rows()


def test_javas_orc_reader_takes_the_two_zeros_of_a_batch_for_the_first(told: Teller, spark: SparkSession) -> None:
    """So it spares a row of 0.0; in other files it does not."""
    java_table, table = told("zeros alone", "orc")
    read = [row["score"] for row in java_table.sql("SELECT score FROM {t} WHERE id < 3 ORDER BY id")]
    assert [str(score) for score in read] == ["-0.0", "-0.0"]
    assert sorted(row.id for row in scan(table, spark).collect()) == [1, 4]
    java_table, _ = told("zeros alone", "parquet")
    assert sorted(row[0] for row in java_table.java.read(java_table.name)["rows"]) == [1, 4]


@pytest.mark.parametrize(("file_format", "spared"), [("parquet", [1]), ("orc", [1]), ("avro", [])])
def test_java_skips_deletes_of_nan_that_lie_beside_a_value_out_of_bounds(
    java: IcebergJava, lake: Lake, spark: SparkSession, file_format: str, spared: list[int]
) -> None:
    """Bounds leave NaN out, and it asks nothing else of them; without bounds, as in Avro, it applies the delete."""
    table = JavaTable(java, f"local.db.nan_{file_format}", file_format)
    table.create(EVENTS)
    table.append([{**event(1), "score": math.nan}, {**event(2), "score": 0.5}])
    table.delta(table.equality(["score"], (math.nan,), (7.0,)))
    assert sorted(row[0] for row in java.read(table.name)["rows"]) == [*spared, 2]
    assert [row.id for row in scan(lake.catalog.load(("db", f"nan_{file_format}")), spark).collect()] == [2]
