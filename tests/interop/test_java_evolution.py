"""Tables whose schema and partitioning change while files of all formats are added; judged by Iceberg Java 1.12.0.

Generated histories: we append, in Parquet, ORC or Avro by turns, and change columns and partition fields between. Java
must then read the rows that we read, old files through the newest schema.
"""

from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import UsageError
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    MakeOptional,
    MoveAfter,
    MoveFirst,
    RemovePartitionField,
    RenameColumn,
    SchemaChange,
    UpdateColumnType,
)
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    decimal,
)
from icekeep.tables.verbs import append, create_table, update_schema, update_spec
from kit.cases import cases
from kit.columns import column, rows, schema_of, table_of
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import scan_rows, spec_rows
from kit.rows import row_texts

pytestmark = pytest.mark.deep

HISTORIES = 20
NUMBERS = count(1)

POINT = StructType((column(11, "x", INT), column(12, "y", FLOAT)))
START = schema_of(
    column(1, "id", INT, required=True),
    column(2, "name", STRING),
    column(3, "price", decimal(9, 2)),
    column(4, "day", DATE),
    column(5, "point", POINT),
    column(6, "points", ListType(element_id=13, element=POINT)),
    column(7, "counts", MapType(key_id=14, key=STRING, value_id=15, value=INT)),
    column(8, "ratio", FLOAT),
)
PROMOTIONS: dict[PrimitiveType, PrimitiveType] = {INT: LONG, FLOAT: DOUBLE, decimal(9, 2): decimal(18, 2)}
DEFAULTS = ((STRING, "ä"), (LONG, 7), (DATE, "2026-01-31"), (decimal(20, 4), "1.5000"))
ADDED = (STRING, LONG, DATE, decimal(20, 4), ListType(element_id=1, element=DOUBLE), POINT)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What to do, each as a kind and a number that chooses among what is possible then."""
    kinds = ["append", "append", "column", "column", "default", "default", "spec"]
    drawn = draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 2**31)), min_size=3, max_size=12))
    return [("append", draw(st.integers(0, 99))), *drawn, ("append", draw(st.integers(0, 99)))]


def change_column(table: Table, number: int) -> Table:
    """One change of a column, where the rules allow it."""
    names = sorted(table.metadata.schema.ids_by_name)
    # Generated numbers are small more often than not: spread them.
    choice = number * 2_654_435_761 % 2**32 >> 8
    name = names[(choice >> 4) % len(names)]
    type_ = table.metadata.schema.field(name).type
    possible: list[SchemaChange] = [
        AddColumn(f"new{number}", ADDED[choice % len(ADDED)]),
        AddColumn(f"new{number}", ADDED[choice % len(ADDED)], parent=name),
        DropColumn(name),
        RenameColumn(name, f"r{number}"),
        MoveFirst(name),
        MoveAfter(name, names[choice % len(names)]),
        MakeOptional(name),
        UpdateColumnType(name, PROMOTIONS.get(type_, LONG) if isinstance(type_, PrimitiveType) else LONG),
    ]
    try:
        return update_schema(table, [possible[choice % len(possible)]])
    except UsageError:
        return table


def add_default(table: Table, number: int) -> Table:
    """A column with a default in the table or in a struct of it; only version 3 allows it."""
    names = table.metadata.schema.names_by_id
    structs = [names[f.field_id] for f in table.metadata.schema.fields_by_id.values() if isinstance(f.type, StructType)]
    type_, default = DEFAULTS[number % len(DEFAULTS)]
    parent = [None, *structs][number // 4 % (1 + len(structs))]
    try:
        return update_schema(table, [AddColumn(f"new{number}", type_, parent=parent, default=default)])
    except UsageError:
        assert table.metadata.format_version < 3 or number in names
        return table


def change_spec(table: Table, number: int) -> Table:
    """Add a partition field, or remove one, where the rules allow it."""
    live = [f.name for f in table.metadata.spec.fields]
    columns = [f.name for f in table.metadata.schema.fields]
    transforms = ("identity", "bucket[3]", "truncate[4]", "day", "month")
    adding = AddPartitionField(columns[number % len(columns)], transforms[number // 7 % len(transforms)])
    change = RemovePartitionField(live[number % len(live)]) if live and number % 3 == 0 else adding
    try:
        return update_spec(table, [change])
    except UsageError:
        return table


@cases(
    HISTORIES,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(history=steps(), version=st.sampled_from([1, 2, 3]), data=st.data())
def test_java_reads_the_rows_that_we_read_whatever_became_of_the_columns(
    java: IcebergJava, lake: Lake, tried: Any, history: list[tuple[str, int]], version: int, data: st.DataObject
) -> None:
    name = f"t{next(NUMBERS)}"
    table = create_table(lake.catalog, ("db", name), START, format_version=version)
    # Java does not read defaults where ORC files lack a column.
    formats = ("parquet", "avro") if "default" in dict(history) and version == 3 else ("parquet", "avro", "orc")
    for kind, number in history:
        if kind == "column":
            table = change_column(table, number)
        elif kind == "default":
            table = add_default(table, number)
        elif kind == "spec":
            table = change_spec(table, number)
        else:
            chosen = formats[number % len(formats)]
            table = commit(table, ChangeProperties(updates={"write.format.default": chosen})).table
            schema = table.metadata.schema
            table = append(table, table_of(schema, data.draw(rows(schema, max_size=4))))
    read = spec_rows(scan_rows(table), table.metadata.schema)
    assert java.rows(f"local.db.{name}") == row_texts(table.metadata.schema, read)
    tried("histories of columns and partition fields, read alike by Java and us")
    tried("schemas in them", len(table.metadata.schemas))
    tried("partition specs in them", len(table.metadata.partition_specs))
    tried("rows in them", len(read))
    defaults = [f for f in table.metadata.schema.fields_by_id.values() if f.initial_default is not None]
    tried("columns with a default in them", len(defaults))
