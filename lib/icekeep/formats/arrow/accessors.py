"""Single fields of rows, by field id, however deep in structs they lie: what to read for them, and their values."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError
from icekeep.spec.schema import Schema
from icekeep.spec.types import NestedField, PrimitiveType, StructType

Path = tuple[NestedField, ...]
"""A column and the fields below it down to a leaf."""


def leaf_schema(field_ids: Iterable[int], schemas: Sequence[Schema]) -> Schema:
    """The columns to read for some leaves: structs cut down to these, and everything optional.

    Whatever a schema requires, what is read for a comparison may be absent or null: that is a value like any other here.

    Args:
        field_ids: of primitive fields that lie in no list or map.
        schemas: the first that has a field says its type.

    Raises:
        InvalidTableError: no schema has such a field.
    """
    return Schema(fields=_merged(leaf_path(id_, schemas) for id_ in field_ids))


def leaf_path(field_id: int, schemas: Sequence[Schema]) -> Path:
    """The fields from the column down to the leaf with an id, in the first schema that has it.

    Raises:
        InvalidTableError: no schema has it, or it is no primitive, or lies in a list or a map.
    """
    for schema in schemas:
        if field_id not in schema.fields_by_id:
            continue
        path = next((p for p in _leaves(schema.as_struct()) if p[-1].field_id == field_id), None)
        if path is not None:
            return path
        raise InvalidTableError(
            f"column {schema.names_by_id[field_id]!r} (id {field_id}) is no single value of a row: it is nested, or lies in"
            " a list or a map"
        )
    raise InvalidTableError(f"no schema of the table has a column with id {field_id}")


def leaf_values(table: pa.Table, schema: Schema, field_id: int) -> pa.ChunkedArray:
    """The values of a leaf, null where a struct around it is null.

    Args:
        table: data in the columns of `schema`.
        schema: as `leaf_schema` makes it.
        field_id: of the leaf.
    """
    fields: Sequence[NestedField] = schema.fields
    positions = []
    for field in leaf_path(field_id, [schema]):
        positions.append(next(n for n, other in enumerate(fields) if other.field_id == field.field_id))
        fields = field.type.fields if isinstance(field.type, StructType) else ()
    column: Any = table.column(positions[0])
    return pc.struct_field(column, positions[1:]) if len(positions) > 1 else column


def _leaves(struct: StructType) -> Iterator[Path]:
    for field in struct.fields:
        if isinstance(field.type, StructType):
            yield from ((field, *below) for below in _leaves(field.type))
        elif isinstance(field.type, PrimitiveType):
            yield (field,)


def _merged(paths: Iterable[Path]) -> tuple[NestedField, ...]:
    """Paths as a tree: one field for all paths that begin with it."""
    by_id: dict[int, tuple[NestedField, list[Path]]] = {}
    for field, *below in paths:
        by_id.setdefault(field.field_id, (field, []))[1].append(tuple(below))
    return tuple(
        msgspec.structs.replace(
            field,
            required=False,
            type=StructType(_merged(below)) if isinstance(field.type, StructType) else field.type,
        )
        for field, below in by_id.values()
    )
