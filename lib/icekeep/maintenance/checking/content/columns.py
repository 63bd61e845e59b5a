"""The columns of a data file as the table has them: which are there, which fit, and which must be there."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.formats.arrow.projection import project, unidentified
from icekeep.formats.arrow.schema import child_fields as stored_children
from icekeep.formats.arrow.schema import field_id
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    TIMESTAMP,
    TIMESTAMP_NS,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
)


class CheckedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a file.

    Attributes:
        schema: those that can be read, everything optional.
        leaves: primitive fields in no list or map that the file has itself.
        wrong: by id of a top-level column why it cannot be read as the table's.
        zoned: ids of timestamps without time zone that the file marks as adjusted to UTC: the number is the same.
        unreadable: the same of columns whose type icekeep does not read.
        unidentified: full names, by field id, of fields that the file has by their name only.
        absent: ids of other required fields that the file lacks, and nothing gives.
        promoted: ids of top-level columns whose type in the file is another one.
    """

    schema: Schema
    leaves: frozenset[int]
    wrong: Mapping[int, str]
    zoned: tuple[int, ...]
    unreadable: Mapping[int, str]
    unidentified: Mapping[int, str]
    absent: tuple[int, ...]
    promoted: frozenset[int]


def columns_of(
    stored: pa.Schema, schema: Schema, constants: Collection[int], without: Mapping[int, str]
) -> CheckedColumns:
    """Find the table's columns in a file.

    Args:
        stored: the file's columns, with field ids.
        schema: the table's.
        constants: ids of columns whose values the partition gives.
        without: columns that turned out not to fit, and why.
    """
    by_id = {field_id(field): field for field in stored}
    lost = unidentified(stored, schema.fields, constants)
    fields: list[NestedField] = []
    leaves: set[int] = set()
    promoted: set[int] = set()
    wrong, unreadable = dict(without), {}
    for field in schema.fields:
        found = by_id.get(field.field_id)
        if found is None or field.field_id in without or unidentified([found], [field], constants):
            continue
        optional = _optional(field)
        try:
            target = project(no_rows(pa.schema([found])), Schema(fields=(optional,))).schema.field(0).type
        except InvalidTableError as error:
            wrong[field.field_id] = first_line(error)
            continue
        except UnsupportedError as error:
            unreadable[field.field_id] = first_line(error)
            continue
        fields.append(optional)
        leaves.update(_leaves(field, found))
        if isinstance(field.type, PrimitiveType) and found.type != target:
            promoted.add(field.field_id)
    return CheckedColumns(
        schema=Schema(fields=tuple(fields)),
        leaves=frozenset(leaves),
        wrong=wrong,
        zoned=tuple(id_ for field in fields for id_ in _zoned(field, by_id[field.field_id])),
        unreadable=unreadable,
        unidentified=lost,
        absent=tuple(_absent(schema.as_struct(), by_id, {*constants, *lost})),
        promoted=frozenset(promoted),
    )


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows; Arrow's own way fails on UUIDs."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def required_fields(schema: Schema, there: Schema) -> Iterator[tuple[NestedField, ...]]:
    """The paths of required fields in no list or map, of columns that can be read."""
    names = {field.field_id for field in there.fields}
    for field in schema.fields:
        if field.field_id in names:
            yield from _required((field,))


def _required(path: tuple[NestedField, ...]) -> Iterator[tuple[NestedField, ...]]:
    if path[-1].required:
        yield path
    if isinstance(path[-1].type, StructType):
        for field in path[-1].type.fields:
            yield from _required((*path, field))


def _optional(field: NestedField) -> NestedField:
    return replace(field, required=False, type=_optional_type(field.type))


def _optional_type(type_: Type) -> Type:
    match type_:
        case StructType(fields=fields):
            return StructType(tuple(map(_optional, fields)))
        case ListType(element=element):
            return replace(type_, element=_optional_type(element), element_required=False)
        case MapType(value=value):
            return replace(type_, value=_optional_type(value), value_required=False)
    return type_


def _leaves(field: NestedField, stored: pa.Field) -> Iterator[int]:
    if isinstance(field.type, PrimitiveType):
        yield field.field_id
    elif isinstance(field.type, StructType) and pa.types.is_struct(stored.type):
        by_id = _children(stored)
        for child in field.type.fields:
            if child.field_id in by_id:
                yield from _leaves(child, by_id[child.field_id])


def _zoned(field: NestedField, stored: pa.Field) -> Iterator[int]:
    if field.type in (TIMESTAMP, TIMESTAMP_NS) and pa.types.is_timestamp(stored.type) and stored.type.tz is not None:
        yield field.field_id
    by_id = {field_id(child): child for _, child in stored_children(stored.type)}
    for child in child_fields(field.type):
        if child.field_id in by_id:
            yield from _zoned(child, by_id[child.field_id])


def _children(stored: pa.Field) -> dict[int | None, pa.Field]:
    return {field_id(child): child for child in stored.type}


def _absent(struct: StructType, stored: Mapping[Any, pa.Field], constants: Collection[int]) -> Iterator[int]:
    for field in struct.fields:
        found = stored.get(field.field_id)
        if found is not None:
            if isinstance(field.type, StructType) and pa.types.is_struct(found.type):
                yield from _absent(field.type, _children(found), constants)
        elif field.required and field.initial_default is None and field.field_id not in constants:
            yield field.field_id
