"""Which rows a table should have: a list of rows, and what each change does to it. No file is read here.

A row has its values by the ids of columns, so that names and types may change. It lies in a place, a partition of a spec,
which follows from its values when it is appended; an equality delete is for the rows of one place, or for all.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Void
from icekeep.spec.types import NestedField
from kit.row_texts import key_text, row_texts

ID = 1
"""The column by which rows are told apart: a row's number in the order of writing."""


class Place(NamedTuple):
    """The partition of a spec that a file and its rows are of."""

    spec_id: int
    partition: tuple[Any, ...]

    def is_same(self, other: "Place") -> bool:
        """NaN equals NaN here, and -0.0 is not 0.0."""
        return repr(self) == repr(other)


class Row(msgspec.Struct):
    """A row that was written, and whether it is there still."""

    values: dict[int, Any]
    place: Place
    is_live: bool = True

    @property
    def id(self) -> int:
        return self.values[ID]


class RowModel:
    """All rows ever written, in the order of their ids."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows if row.is_live]

    @property
    def ids(self) -> set[int]:
        """Of the live rows."""
        return {row.id for row in self.live}

    def append(self, rows: Iterable[dict[int, Any]], metadata: TableMetadata) -> None:
        """Rows that are written by the current spec of the table."""
        self.rows += [Row(values, place_of(metadata, values)) for values in rows]

    def delete(self, ids: Collection[int]) -> None:
        """A delete of positions, by files or by vectors: exactly these rows go."""
        for row in self.rows:
            row.is_live = row.is_live and row.id not in ids

    def delete_equal(self, fields: Sequence[NestedField], keys: Iterable[Sequence[Any]], place: Place | None) -> None:
        """An equality delete: rows go that are there by now, and that equal a key in some columns; null equals null.

        Args:
            keys: a value for each of the columns.
            place: only rows that lie there go; null for an unpartitioned delete, which is for rows of all places.
        """
        ids = [field.field_id for field in fields]
        texts = {key_text(fields, dict(zip(ids, key, strict=True))) for key in keys}
        for row in self.live:
            if place is None or row.place.is_same(place):
                row.is_live = key_text(fields, row.values) not in texts

    def add_column(self, field_id: int, default: Any) -> None:
        """Rows that there are have the default of a new column, or null."""
        for row in self.rows:
            row.values[field_id] = default

    def move(self, places: Mapping[int, Place]) -> None:
        """Some rows, by id, lie elsewhere since their files were rewritten."""
        for row in self.rows:
            row.place = places.get(row.id, row.place)

    def texts(self, schema: Schema) -> Counter[str]:
        """The live rows in the columns of a schema."""
        return row_texts(schema, (row.values for row in self.live))


def place_of(metadata: TableMetadata, values: Mapping[int, Any]) -> Place:
    """Where the current spec puts a row."""
    fields, types = metadata.spec.fields, metadata.schema.fields_by_id
    partition = tuple(
        None if isinstance(f.transform, Void) else f.transform.apply(types[f.source_id].type, values.get(f.source_id))
        for f in fields
    )
    return Place(metadata.spec.spec_id, partition)
