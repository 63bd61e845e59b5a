"""Generated tables of Iceberg Java: by turns rows are appended, in Parquet, ORC or Avro; deleted by position, by vector or by
values; and a column or a partition field is changed.
"""

from collections import Counter
from itertools import count
from typing import Any

from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.errors import UsageError
from icekeep.spec.evolution.partition_evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.evolution.schema_changes import (
    AddColumn,
    DropColumn,
    MoveFirst,
    RenameColumn,
    SchemaChange,
    UpdateColumnType,
)
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.numbers import decimal_from_unscaled
from icekeep.spec.types import DATE, DOUBLE, FLOAT, INT, LONG, STRING, PrimitiveType, decimal
from icekeep.tables.update_schema import update_schema
from icekeep.tables.update_spec import update_spec
from kit.columns import column, schema_of
from kit.java import IcebergJava
from kit.java_row_deletes import JavaTable, Part
from kit.java_values import to_wire
from kit.lake import Lake
from kit.naive_scan import live_entries

NUMBERS = count(1)
FORMATS = ("parquet", "avro", "orc")

START = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "a", INT),
    column(3, "b", STRING),
    column(4, "c", DOUBLE),
    column(5, "d", DATE),
    column(6, "e", decimal(9, 2)),
    column(7, "f", FLOAT),
)
PROMOTIONS: dict[PrimitiveType, PrimitiveType] = {INT: LONG, FLOAT: DOUBLE, decimal(9, 2): decimal(18, 2)}
# Few values, so that deletes hit; one zero, for Java's ORC reader takes two for one.
VALUES: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, 2, -7),
    "long": (0, 1, 2, 2**40),
    "string": ("", "x", "ä"),
    "float": (0.0, 0.5, float("nan"), float("-inf")),
    "double": (0.0, 0.5, float("nan"), float("inf")),
    "date": (0, 18_000, -1),
    "decimal": tuple(decimal_from_unscaled(n, 2) for n in (0, 150, -1)),
}
KINDS = ("append", "append", "positions", "positions", "equality", "equality", "equality", "column", "column", "spec")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What to do, each as a kind and a number by which to choose; something is there before anything is deleted."""
    number = st.integers(0, 2**31)
    drawn = draw(st.lists(st.tuples(st.sampled_from(KINDS), number), min_size=6, max_size=14))
    return [("append", draw(number)), *drawn, ("append", draw(number)), ("equality", draw(number))]


def history_of(number: int) -> list[tuple[str, int]]:
    """Such a list that follows from a number."""
    chosen = Choices(number)
    kinds = [chosen.one_of(KINDS) for _ in range(8 + chosen.below(6))]
    return [(kind, chosen.below(2**31)) for kind in ("append", *kinds, "append", "equality")]


class History:
    """A table of Java's and what happened to it; every choice follows from the numbers of the steps.

    Format version 1 has no delete files: there those steps do nothing.
    """

    def __init__(self, lake: Lake, java: IcebergJava, version: int) -> None:
        self.lake, self.version = lake, version
        self.name = f"generated{next(NUMBERS)}"
        self.java_table = JavaTable(java, f"local.db.{self.name}")
        self.java_table.create(START, version=version)
        self.written: list[dict[int, Any]] = []
        self.compared: set[int] = set()

    @property
    def table(self) -> Table:
        return self.lake.catalog.load(("db", self.name))

    def step(self, kind: str, number: int) -> None:
        # Generated numbers are small more often than not: spread them.
        chosen = Choices(number)
        self.java_table.file_format = chosen.one_of(FORMATS)
        getattr(self, kind)(chosen)

    def append(self, chosen: "Choices") -> None:
        fields = self.table.metadata.schema.fields
        rows = []
        for _ in range(chosen.below(6) + 1):
            row = {f.field_id: chosen.one_of((None, *VALUES[f.type.name])) for f in fields}
            rows.append({**row, 1: len(self.written) + len(rows)})
        self.written += rows
        names = {f.field_id: f.name for f in fields}
        self.java_table.append([{names[i]: value for i, value in row.items()} for row in rows], files=2)

    def positions(self, chosen: "Choices") -> None:
        """In version 3 by vectors; Java must read the table to know where rows lie."""
        if self.version == 1 or self.compares_lost_columns:
            return
        ids = [chosen.below(len(self.written)) for _ in range(chosen.below(4) + 1)]
        if self.version == 3:
            self.java_table.delta(self.java_table.vectors(*ids))
            return
        scope = chosen.one_of(("file", "partition"))
        referenced = scope == "file" and chosen.below(2) == 0
        self.java_table.delta(self.java_table.positions(*ids, scope=scope, referenced=referenced))

    def equality(self, chosen: "Choices") -> None:
        """By the values of rows that were written at some time, or by null, in one partition or in all."""
        if self.version > 1:
            self.java_table.delta(self._equality(chosen))

    def _equality(self, chosen: "Choices") -> Part:
        metadata = self.table.metadata
        fields = [chosen.one_of(metadata.schema.fields) for _ in range(chosen.below(2) + 1)]
        fields = list({f.field_id: f for f in fields}.values())
        self.compared |= {f.field_id for f in fields}
        rows = [chosen.one_of(self.written) for _ in range(chosen.below(3) + 1)]
        keys = [[row.get(f.field_id) for f in fields] for row in rows]
        files = [e.data_file for e in live_entries(self.table) if e.data_file.content is FileContent.DATA]
        file = chosen.one_of(files)
        types = metadata.partition_type(file.spec_id).fields
        return self.java_table.equality(
            [f.name for f in fields],
            *keys,
            spec_id=file.spec_id,
            partition=[to_wire(f.type, value) for f, value in zip(types, file.partition, strict=True)],
        )

    def column(self, chosen: "Choices") -> None:
        """One change, where the rules allow it."""
        new = f"new{chosen.number}"
        name = chosen.one_of([f.name for f in self.table.metadata.schema.fields])
        type_ = self.table.metadata.schema.field(name).type
        assert isinstance(type_, PrimitiveType)
        changes: list[SchemaChange] = [
            AddColumn(new, chosen.one_of((STRING, LONG, DOUBLE))),
            DropColumn(name),
            RenameColumn(name, new),
            MoveFirst(name),
            UpdateColumnType(name, PROMOTIONS.get(type_, LONG)),
        ]
        if name == "id":
            return
        try:
            update_schema(self.table, [chosen.one_of(changes)])
        except UsageError:
            return

    def spec(self, chosen: "Choices") -> None:
        """Add a partition field, or remove one, where the rules allow it."""
        metadata = self.table.metadata
        live = [f.name for f in metadata.spec.fields]
        name = chosen.one_of([f.name for f in metadata.schema.fields])
        adding = AddPartitionField(name, chosen.one_of(("identity", "bucket[2]", "truncate[1]", "day")))
        try:
            update_spec(self.table, [RemovePartitionField(chosen.one_of(live)) if len(live) > 1 else adding])
        except UsageError:
            return

    @property
    def compares_lost_columns(self) -> bool:
        """Whether rows were deleted by columns that are no longer there: Java's Spark reads that, its own reader does not."""
        return bool(self.compared - self.table.metadata.schema.fields_by_id.keys())

    def rows_of_java(self) -> Counter[str]:
        return self.java_table.rows_of_spark() if self.compares_lost_columns else self.java_table.rows()


class Choices:
    """Choices that follow from one number, as if drawn by lot."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._state = number

    def below(self, limit: int) -> int:
        self._state = (self._state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        return (self._state >> 33) % limit

    def one_of(self, options: Any) -> Any:
        return options[self.below(len(options))]
