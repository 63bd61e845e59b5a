"""Generated histories of the rows of a table, with a model that says which rows are left (`rows.RowModel`).

A history is a list of steps, each a kind and a number by which to choose, so that a failing one can be cut down step by step:
rows are appended, in Parquet, ORC or Avro; deleted by position, by vector or by their values, perhaps with others that take
their places; and a column or a partition field is changed. Who carries the steps out is an interpreter: icekeep, in memory or on
disk, or Iceberg Java and PyIceberg (`foreign_tables`). Histories of files, whose rows nobody reads, are another level:
`reclaim_histories` and the simulation.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, Self

from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.catalog.base import Catalog, Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.errors import UsageError
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    MoveFirst,
    RemovePartitionField,
    RenameColumn,
    UpdateColumnType,
)
from icekeep.spec.schema import FILE, POS, Schema
from icekeep.spec.types import DATE, DOUBLE, FLOAT, INT, LONG, STRING, NestedField, PrimitiveType, Type, decimal
from icekeep.spec.values import decimal_from_unscaled
from icekeep.tables.verbs import append, create_table, update_schema, update_spec
from kit.cases import Choices
from kit.columns import column, schema_of, table_of
from kit.deletes import data_files, delete_equal, new_data_files, position_delete_files, vector_files
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import live_entries, scan_rows
from kit.rows import ID, Place, RowModel, scanned_rows
from kit.storage import MemoryStorage

FORMATS = ("PARQUET", "ORC", "AVRO")
VERSIONS = (1, 2, 2, 3, 3)
KINDS = (
    "append", "append", "positions", "positions", "equality", "equality", "upsert", "column", "column", "spec",
)  # fmt: skip
"""What may happen, more often what is there more often."""
SPECS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("kind", "identity"),),
    (("day", "month"),),
    (("id", "bucket[2]"),),
)
START = schema_of(
    column(ID, "id", LONG, required=True),
    column(2, "kind", STRING),
    column(3, "number", INT),
    column(4, "score", DOUBLE),
    column(5, "day", DATE),
    column(6, "price", decimal(9, 2)),
    column(7, "ratio", FLOAT),
)
# Few values, so that deletes hit.
VALUES: dict[str, tuple[Any, ...]] = {
    "string": (None, "", "k1", "ä"),
    "int": (None, 0, 1, -7),
    "long": (None, 0, 1, 2**40),
    "float": (None, 0.5, float("nan"), float("-inf")),
    "double": (None, 0.0, -0.0, float("nan"), float("inf")),
    "date": (None, 0, 18_000, -1),
    "decimal": (None, *(decimal_from_unscaled(n, 2) for n in (0, 150, -1))),
}
PROMOTIONS: dict[Type, PrimitiveType] = {INT: LONG, FLOAT: DOUBLE, decimal(9, 2): decimal(18, 2)}
NEW_COLUMNS = ((STRING, "old"), (LONG, 7), (DOUBLE, 0.5))
"""Types of columns that are added, each with the default that it may have."""

Step = tuple[str, int]


def steps(kinds: Sequence[str] = KINDS, *, least: int = 6) -> st.SearchStrategy[list[Step]]:
    """What to do, at `least` so much; something is there before anything is deleted, and rows are spared and hit at the end."""
    number = st.integers(0, 2**31)
    drawn = st.lists(st.tuples(st.sampled_from(kinds), number), min_size=least, max_size=14)
    return st.tuples(number, drawn, number, number).map(
        lambda told: [("append", told[0]), *told[1], ("append", told[2]), ("equality", told[3])]
    )


def steps_of(number: int, kinds: Sequence[str] = KINDS) -> list[Step]:
    """Such a list that follows from a number."""
    chosen = Choices(number)
    drawn = chosen.choices(kinds, k=chosen.randint(6, 14))
    return [(kind, chosen.getrandbits(31)) for kind in ("append", *drawn, "append", "equality")]


class Interpreter(Protocol):
    """Who carries out the steps of a history, on a table of its own.

    Attributes:
        table: as the catalog has it now.
        finds_rows: whether it can tell where rows lie just now, as a delete of positions must.
        adds_defaults: whether it reads the rows that there are with the default of a new column.
    """

    @property
    def table(self) -> Table: ...
    @property
    def finds_rows(self) -> bool: ...
    @property
    def adds_defaults(self) -> bool: ...

    def holds(self, value: Any, file_format: str) -> bool:
        """Whether it reads a value as it is out of files of a format."""

    def deletes(self, keys: Sequence[Sequence[Any]], file_format: str) -> bool:
        """Whether it applies an equality delete file of these keys, in a format, wherever that reaches."""

    def create(self, schema: Schema, partition_by: Sequence[tuple[str, str]], version: int) -> None:
        """Make the table, empty."""

    def append(self, rows: Sequence[Mapping[str, Any]], file_format: str) -> None:
        """Commit rows, in one or two files a partition."""

    def delete_positions(self, ids: Iterable[int], file_format: str, scope: str, *, is_referenced: bool) -> None:
        """Delete rows where they lie, in format version 3 by vectors.

        Args:
            scope: of a delete file: one data `file`, or all of a `partition`.
            is_referenced: whether the entry of a delete file for one data file names that.
        """

    def delete_equal(
        self,
        names: Sequence[str],
        keys: Sequence[Sequence[Any]],
        place: Place,
        file_format: str,
        added: Sequence[Mapping[str, Any]],
    ) -> None:
        """Commit one equality delete file for a place, and rows; a key has a value for each of the columns."""

    def rows(self) -> Counter[str]:
        """The rows as its own reader has them."""


class History:
    """A table and what happened to it; every choice follows from the numbers of the steps.

    Format version 1 has no delete files: there those steps do nothing.

    Args:
        formats: of files, of which each step takes one.
    """

    def __init__(
        self,
        by: Interpreter,
        version: int,
        partition_by: Sequence[tuple[str, str]] = (),
        formats: Sequence[str] = FORMATS,
    ) -> None:
        self.by, self.version, self.formats, self.model = by, version, formats, RowModel()
        by.create(START, partition_by, version)

    @classmethod
    def of(cls, number: int, by: Interpreter, versions: Sequence[int] = VERSIONS, kinds: Sequence[str] = KINDS) -> Self:
        """The history that follows from a number."""
        chosen = Choices(number)
        return cls(by, chosen.choice(versions), chosen.choice(SPECS)).went_on(steps_of(number, kinds))

    @property
    def table(self) -> Table:
        return self.by.table

    @property
    def schema(self) -> Schema:
        return self.table.metadata.schema

    def expected(self) -> Counter[str]:
        """The rows that the table should have, in the columns of today."""
        return self.model.texts(self.schema)

    def went_on(self, steps: Iterable[Step]) -> Self:
        """After some more steps."""
        for kind, number in steps:
            self.step(kind, number)
        return self

    def step(self, kind: str, number: int) -> None:
        """One step; one that cannot be done just now does nothing."""
        getattr(self, f"_{kind}")(Choices(number))

    def found_places(self) -> dict[int, Place]:
        """Where the rows lie that no position delete has removed, by id, as a plain reader finds them."""
        files = {file.file_path: Place(file.spec_id, file.partition) for file in data_files(self.table)}
        return {row["id"]: files[row["_file"]] for row in scan_rows(self.table, FILE).to_pylist()}

    def _append(self, chosen: Choices) -> None:
        metadata, file_format = self.table.metadata, chosen.choice(self.formats)
        rows = [self._row(chosen, number, file_format) for number in range(chosen.randint(4, 12))]
        self.by.append(self._named(rows), file_format)
        self.model.append(rows, metadata)

    def _row(self, chosen: Choices, number: int, file_format: str) -> dict[int, Any]:
        """The row of a number among those that are written now."""
        fields = self.schema.fields
        drawn = {f.field_id: chosen.choice(self._values(f.type, file_format)) for f in fields}
        return {**drawn, ID: len(self.model.rows) + number}

    def _named(self, rows: Iterable[Mapping[int, Any]]) -> list[dict[str, Any]]:
        return [{field.name: row[field.field_id] for field in self.schema.fields} for row in rows]

    def _values(self, type_: Any, file_format: str) -> list[Any]:
        return [value for value in VALUES[type_.name] if self.by.holds(value, file_format)]

    def _positions(self, chosen: Choices) -> None:
        live = sorted(self.model.ids)
        if self.version == 1 or not live or not self.by.finds_rows:
            return
        ids = chosen.sample(live, min(len(live), chosen.randint(1, 4)))
        scope = chosen.choice(("file", "partition"))
        is_referenced = scope == "file" and chosen.random() < 0.5
        self.by.delete_positions(ids, chosen.choice(self.formats), scope, is_referenced=is_referenced)
        self.model.delete(ids)

    def _equality(self, chosen: Choices) -> None:
        """By the values of rows that are there, or were, in one or two columns."""
        fields = self.schema.fields
        self._delete_equal(chosen, chosen.sample(fields, chosen.randint(1, 2)))

    def _upsert(self, chosen: Choices) -> None:
        """As streams write: the commit of an equality delete appends rows that equal its keys, and those stay."""
        fields = [field for field in self.schema.fields if field.field_id != ID]
        if fields:
            self._delete_equal(chosen, [chosen.choice(fields)], adds=True)

    def _delete_equal(self, chosen: Choices, columns: Sequence[NestedField], *, adds: bool = False) -> None:
        if self.version == 1:
            return
        metadata, file_format = self.table.metadata, chosen.choice(self.formats)
        fields = [field for field in metadata.schema.fields if field in columns]
        live = self.model.live or self.model.rows
        keys: list[list[Any]] = []
        for _ in range(chosen.randint(1, 3)):
            like = chosen.choice(chosen.choice((live, live, self.model.rows)))
            key = [like.values.get(field.field_id) for field in fields]
            if self.by.deletes([*keys, key], file_format):
                keys.append(key)
        if not keys:
            return
        place = self._place(chosen)
        ids = [field.field_id for field in fields]
        added = [
            self._row(chosen, n, file_format) | dict(zip(ids, key, strict=True)) for n, key in enumerate(keys) if adds
        ]
        self.by.delete_equal([field.name for field in fields], keys, place, file_format, self._named(added))
        is_for_all = metadata.specs_by_id[place.spec_id].is_unpartitioned
        self.model.delete_equal(fields, keys, None if is_for_all else place)
        self.model.append(added, metadata)

    def _place(self, chosen: Choices) -> Place:
        """Where some row lies, or was; or, where there ever was a spec without partitions, all places."""
        unpartitioned = [spec for spec in self.table.metadata.partition_specs if spec.is_unpartitioned]
        if unpartitioned and chosen.random() < 0.5:
            return Place(unpartitioned[0].spec_id, (None,) * len(unpartitioned[0].fields))
        return chosen.choice(self.model.rows).place

    def _column(self, chosen: Choices) -> None:
        """One change, where the rules allow it."""
        field = chosen.choice([field for field in self.schema.fields if field.field_id != ID])
        new = f"new{chosen.getrandbits(40)}"
        type_, default = chosen.choice(NEW_COLUMNS)
        if self.version < 3 or not self.by.adds_defaults or chosen.random() < 0.5:
            default = None
        change = chosen.choice(
            [
                AddColumn(new, type_, default=default),
                DropColumn(field.name),
                RenameColumn(field.name, new),
                MoveFirst(field.name),
                UpdateColumnType(field.name, PROMOTIONS.get(field.type, LONG)),
            ]
        )
        try:
            table = update_schema(self.table, [change])
        except UsageError:
            return
        if isinstance(change, AddColumn):
            self.model.add_column(table.metadata.schema.field(new).field_id, default)

    def _spec(self, chosen: Choices) -> None:
        """Add a partition field, or remove one, where the rules allow it."""
        live = [field.name for field in self.table.metadata.spec.fields]
        name = chosen.choice([field.name for field in self.schema.fields])
        adding = AddPartitionField(name, chosen.choice(("identity", "bucket[2]", "truncate[1]", "day")))
        try:
            update_spec(self.table, [RemovePartitionField(chosen.choice(live)) if len(live) > 1 else adding])
        except UsageError:
            return


_NUMBERS = count(1)


class ByIcekeep:
    """An interpreter of histories (`row_histories.Interpreter`). It holds every value, and reads every table."""

    finds_rows = True
    adds_defaults = True

    def __init__(self, catalog: Catalog, name: str = "") -> None:
        """Args:
        name: of the table in the namespace `db`; one that no other has where none is given.
        """
        self.catalog = catalog
        self.identifier = ("db", name or f"history{next(_NUMBERS)}")

    @property
    def table(self) -> Table:
        return self.catalog.load(self.identifier)

    def holds(self, value: Any, file_format: str) -> bool:
        return True

    def deletes(self, keys: Sequence[Sequence[Any]], file_format: str) -> bool:
        return True

    def create(self, schema: Schema, partition_by: Sequence[tuple[str, str]], version: int) -> None:
        create_table(self.catalog, self.identifier, schema, partition_by=partition_by, format_version=version)

    def append(self, rows: Sequence[Mapping[str, Any]], file_format: str) -> None:
        """Later files that a rewrite makes have the format too."""
        table = commit(self.table, ChangeProperties(updates={"write.format.default": file_format.lower()})).table
        append(table, [table_of(table.metadata.schema, list(map(dict, rows[half::2]))) for half in range(2)])

    def delete_positions(self, ids: Iterable[int], file_format: str, scope: str, *, is_referenced: bool) -> None:
        table, wanted = self.table, set(ids)
        files = {file.file_path: file for file in data_files(table)}
        found = [row for row in scan_rows(table, FILE, POS).to_pylist() if row["id"] in wanted]
        positions = [(files[row["_file"]], row["_pos"]) for row in found]
        named = frozenset(file.file_path for file, _ in positions)
        if table.metadata.format_version == 3:
            old = tuple(entry for entry in live_entries(table) if entry.data_file.referenced_data_file in named)
            commit(table, RowDelta(added_deletes=vector_files(table, positions, old), removed_deletes=old))
            return
        deletes = position_delete_files(table, positions, file_format, scope)
        if not is_referenced:
            deletes = tuple(replace(file, referenced_data_file=None) for file in deletes)
        commit(table, RowDelta(added_deletes=deletes, named=named))

    def delete_equal(
        self,
        names: Sequence[str],
        keys: Sequence[Sequence[Any]],
        place: Place,
        file_format: str,
        added: Sequence[Mapping[str, Any]],
    ) -> None:
        table = self.table
        schema = table.metadata.schema
        columns = Schema(fields=tuple(schema.field(name) for name in names))
        rows = table_of(columns, [dict(zip(names, key, strict=True)) for key in keys])
        new = new_data_files(table, table_of(schema, list(map(dict, added)))) if added else ()
        delete_equal(table, rows, names, like=place, file_format=file_format, added=new)

    def rows(self) -> Counter[str]:
        return scanned_rows(self.table)


def in_memory() -> ByIcekeep:
    """On a storage of its own, which goes with it."""
    catalog = MemoryCatalog(MemoryStorage())
    catalog.create_namespace(("db",))
    return ByIcekeep(catalog)
