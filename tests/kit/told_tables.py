"""Generated tables with deletes of every kind, and a list of rows that says what is in them.

By turns rows are appended, in Parquet, ORC or Avro; deleted by position, by vector or by their values; and a column or a
partition field is changed.
"""

import random  # noqa: TID251 - seeded: the same tables in every run
import struct
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.change_properties import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import UsageError
from icekeep.spec.evolution.partition_evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.evolution.schema_changes import AddColumn, DropColumn, MoveFirst, RenameColumn, UpdateColumnType
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata_columns import FILE, POS
from icekeep.spec.numbers import decimal_from_unscaled
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import DATE, DOUBLE, FLOAT, INT, LONG, STRING, decimal
from icekeep.tables.append import append
from icekeep.tables.create import create_table
from icekeep.tables.scan import read_table
from icekeep.tables.update_schema import update_schema
from icekeep.tables.update_spec import update_spec
from kit.columns import column, schema_of, table_of
from kit.lake import Lake
from kit.naive_scan import live_entries, scan_rows, spec_rows
from kit.written_deletes import data_files, delete_by_vector, delete_equal, delete_positions

FORMATS = ("PARQUET", "ORC", "AVRO")
SPECS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("kind", "identity"),),
    (("day", "month"),),
    (("id", "bucket[2]"),),
)
START = schema_of(
    column(1, "id", LONG, required=True),
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
    "double": (None, 0.0, -0.0, float("nan")),
    "date": (None, 0, 18_000, -1),
    "decimal": (None, *(decimal_from_unscaled(n, 2) for n in (0, 150, -1))),
}
PROMOTIONS = {INT: LONG, FLOAT: DOUBLE, decimal(9, 2): decimal(18, 2)}
Row = dict[int, Any]


class Told:
    """A table and the rows that it should have, by the ids of their columns; all choices are those of `lot`."""

    def __init__(self, lake: Lake, seed: int, versions: Sequence[int], kinds: Sequence[str]) -> None:
        self.lot = random.Random(seed)
        self.version = self.lot.choice(versions)
        identifier = ("db", f"t{seed}")
        self.table = create_table(
            lake.catalog, identifier, START, partition_by=self.lot.choice(SPECS), format_version=self.version
        )
        self.rows: list[Row] = []
        self.numbers = count()
        self.append()
        for kind in self.lot.choices(kinds, k=self.lot.randint(4, 8)):
            getattr(self, kind)()
        self.append()
        self.equality()

    @property
    def schema(self) -> Schema:
        return self.table.metadata.schema

    def append(self) -> None:
        """Some rows in one or two files a partition."""
        updates = {"write.format.default": self.lot.choice(FORMATS).lower()}
        self.table = commit(self.table, ChangeProperties(updates=updates)).table
        parts = [[self._row() for _ in range(self.lot.randint(1, 5))] for _ in range(2)]
        names = {field.field_id: field.name for field in self.schema.fields}
        tables = [
            table_of(self.schema, [{names[i]: value for i, value in row.items()} for row in part]) for part in parts
        ]
        self.table = append(self.table, tables)
        self.rows += [row for part in parts for row in part]

    def _row(self) -> Row:
        row = {field.field_id: self.lot.choice(VALUES[field.type.name]) for field in self.schema.fields}
        return {**row, 1: next(self.numbers)}

    def positions(self) -> None:
        """Some rows of files of one partition; in version 3 of a file without a vector."""
        if self.version == 1 or not self.rows:
            return
        files = {file.file_path: file for file in data_files(self.table)}
        found = scan_rows(self.table, FILE, POS).to_pylist()
        live = {row[1] for row in self.rows}
        places = [(row["_file"], row["_pos"], row["id"]) for row in found if row["id"] in live]
        path, _, _ = self.lot.choice(places)
        if self.version == 3:
            if path in {entry.data_file.referenced_data_file for entry in live_entries(self.table)}:
                return
            near = [place for place in places if place[0] == path]
        else:
            near = [place for place in places if _place(files[place[0]]) == _place(files[path])]
        chosen = sorted(self.lot.sample(near, min(len(near), self.lot.randint(1, 3))))
        if self.version == 3:
            self.table = delete_by_vector(self.table, path, [position for _, position, _ in chosen])
        else:
            pairs = [(file, position) for file, position, _ in chosen]
            self.table = delete_positions(self.table, pairs, self.lot.choice(FORMATS))
        self._forget({id_ for _, _, id_ in chosen})

    def equality(self) -> None:
        """Rows that equal some row in one or two columns, in one partition, or in all by an unpartitioned spec."""
        if self.version == 1 or not self.rows:
            return
        columns = self.lot.sample(self.schema.fields, self.lot.randint(1, 2))
        keys = Schema(fields=tuple(field for field in self.schema.fields if field in columns))
        chosen = self.lot.choices(self.rows, k=2)
        values = [{field.name: row.get(field.field_id) for field in keys.fields} for row in chosen]
        like = self.lot.choice(data_files(self.table))
        specs = self.table.metadata.specs_by_id
        unpartitioned = [spec_id for spec_id, spec in specs.items() if spec.is_unpartitioned]
        if unpartitioned and self.lot.random() < 0.5:
            like = replace(like, spec_id=unpartitioned[0], partition=(None,) * len(specs[unpartitioned[0]].fields))
        reached = self._ids_reached(like)
        gone = {bits([row.get(field.field_id) for field in keys.fields]) for row in chosen}
        self.table = delete_equal(
            self.table,
            table_of(keys, values),
            [field.name for field in keys.fields],
            like=like,
            file_format=self.lot.choice(FORMATS),
        )
        self._forget(
            {
                row[1]
                for row in self.rows
                if row[1] in reached and bits([row.get(field.field_id) for field in keys.fields]) in gone
            }
        )

    def _ids_reached(self, like: DataFile) -> set[int]:
        """Ids of the rows in files that an equality delete of a spec and partition is for."""
        files = {file.file_path: file for file in data_files(self.table)}
        is_global = self.table.metadata.specs_by_id[like.spec_id].is_unpartitioned
        found = scan_rows(self.table, FILE).to_pylist()
        return {row["id"] for row in found if is_global or _place(files[row["_file"]]) == _place(like)}

    def column(self) -> None:
        """One change, where the rules allow it; the rows there are have a new column's default, or null."""
        name = self.lot.choice([field.name for field in self.schema.fields if field.name != "id"])
        field = self.schema.field(name)
        new = f"new{next(self.numbers)}"
        default = "old" if self.version == 3 and self.lot.random() < 0.5 else None
        change = self.lot.choice(
            [
                AddColumn(new, STRING, default=default),
                DropColumn(name),
                RenameColumn(name, new),
                MoveFirst(name),
                UpdateColumnType(name, PROMOTIONS.get(field.type, field.type)),  # type: ignore[call-overload]
            ]
        )
        try:
            self.table = update_schema(self.table, [change])
        except UsageError:
            return
        if isinstance(change, AddColumn) and default is not None:
            added = self.schema.field(new).field_id
            for row in self.rows:
                row[added] = default

    def spec(self) -> None:
        """Add a partition field, or remove one, where the rules allow it."""
        fields = [field.name for field in self.table.metadata.spec.fields]
        name = self.lot.choice([field.name for field in self.schema.fields])
        transform = self.lot.choice(("identity", "bucket[2]", "truncate[1]", "day"))
        change = (
            RemovePartitionField(self.lot.choice(fields)) if len(fields) > 1 else AddPartitionField(name, transform)
        )
        try:
            self.table = update_spec(self.table, [change])
        except UsageError:
            return

    def _forget(self, ids: set[int]) -> None:
        self.rows = [row for row in self.rows if row[1] not in ids]

    def expected(self) -> Counter[Any]:
        """The rows in the columns of today."""
        return Counter(bits([row.get(field.field_id) for field in self.schema.fields]) for row in self.rows)


def _place(file: DataFile) -> tuple[int, Any]:
    return file.spec_id, bits(file.partition)


def bits(values: Any) -> tuple[Any, ...]:
    """Values that are equal where equality deletes say so: NaN equals NaN, and -0.0 is not 0.0."""
    return tuple(
        ("float", b"nan" if value != value else struct.pack(">d", value)) if isinstance(value, float) else value
        for value in values
    )


def by_our_scan(table: Table, branch: str = MAIN) -> Counter[Any]:
    rows = read_table(table, ref=branch)
    return rows_of(spec_rows(rows, table.metadata.schema))


def rows_of(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(bits(row.values()) for row in rows)
