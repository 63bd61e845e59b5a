"""What is looked for in a data file as its rows pass by: its columns as the table has them, an order, and a partition."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.formats.arrow.arrays import column_values, leaf_path, leaf_values
from icekeep.formats.arrow.projection import project, unidentified
from icekeep.formats.arrow.schema import arrow_schema, field_id
from icekeep.formats.arrow.schema import child_fields as stored_children
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.formats.transforms import transformed
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder
from icekeep.spec.transforms import Day, Hour, Month, Void, Year
from icekeep.spec.types import (
    DOUBLE,
    FLOAT,
    TIMESTAMP,
    TIMESTAMP_NS,
    UUID,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
)

_MAX_SHOWN = 5
_TIMES = (Year, Month, Day, Hour)


class CheckedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a file.

    Attributes:
        schema: those that can be read, everything optional.
        types: of primitive fields in no list or map that the file has itself, by id.
        wrong: by id of a top-level column why it cannot be read as the table's.
        zoned: ids of timestamps without time zone that the file marks as adjusted to UTC: the number is the same.
        unreadable: the same of columns whose type icekeep does not read.
        unidentified: full names, by field id, of fields that the file has by their name only.
        absent: ids of other required fields that the file lacks, and nothing gives.
        promoted: ids of top-level columns whose type in the file is another one.
    """

    schema: Schema
    types: Mapping[int, PrimitiveType]
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
    types: dict[int, PrimitiveType] = {}
    promoted: set[int] = set()
    wrong, unreadable = dict(without), {}
    for field in schema.fields:
        found = by_id.get(field.field_id)
        if found is None or field.field_id in without or unidentified([found], [field], constants):
            continue
        optional = _optional(field)
        try:
            target = project(_no_rows(pa.schema([found])), Schema(fields=(optional,))).schema.field(0).type
        except InvalidTableError as error:
            wrong[field.field_id] = first_line(error)
            continue
        except UnsupportedError as error:
            unreadable[field.field_id] = first_line(error)
            continue
        fields.append(optional)
        types.update(_leaves(field, found))
        if isinstance(field.type, PrimitiveType) and found.type != target:
            promoted.add(field.field_id)
    return CheckedColumns(
        schema=Schema(fields=tuple(fields)),
        types=types,
        wrong=wrong,
        zoned=tuple(id_ for field in fields for id_ in _zoned(field, by_id[field.field_id])),
        unreadable=unreadable,
        unidentified=lost,
        absent=tuple(_absent(schema.as_struct(), by_id, {*constants, *lost})),
        promoted=frozenset(promoted),
    )


def _no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows; Arrow's own way fails on UUIDs."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def required_paths(schema: Schema, there: Schema) -> list[tuple[NestedField, ...]]:
    """The required fields in no list or map, each with the structs around it, of columns that can be read."""
    names = {field.field_id for field in there.fields}
    below: list[tuple[NestedField, ...]] = [(field,) for field in schema.fields if field.field_id in names]
    found = []
    while below:
        path = below.pop()
        if path[-1].required:
            found.append(path)
        if isinstance(path[-1].type, StructType):
            below += [(*path, field) for field in path[-1].type.fields]
    return found


def nulls_in(rows: pa.Table, schema: Schema, path: Sequence[NestedField]) -> int:
    """Nulls of a field where the struct around it is none."""
    column: Any = rows.column([field.field_id for field in schema.fields].index(path[0].field_id))
    above = 0
    for outer, inner in pairwise(path):
        above = column.null_count
        assert isinstance(outer.type, StructType)
        column = pc.struct_field(column, [outer.type.fields.index(inner)])
    return int(column.null_count) - above


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


def _children(stored: pa.Field) -> dict[int | None, pa.Field]:
    return {field_id(child): child for _, child in stored_children(stored.type)}


def _leaves(field: NestedField, stored: pa.Field) -> Iterator[tuple[int, PrimitiveType]]:
    if isinstance(field.type, PrimitiveType):
        yield field.field_id, field.type
    elif isinstance(field.type, StructType) and pa.types.is_struct(stored.type):
        by_id = _children(stored)
        for child in field.type.fields:
            if child.field_id in by_id:
                yield from _leaves(child, by_id[child.field_id])


def _zoned(field: NestedField, stored: pa.Field) -> Iterator[int]:
    if field.type in (TIMESTAMP, TIMESTAMP_NS) and pa.types.is_timestamp(stored.type) and stored.type.tz is not None:
        yield field.field_id
    by_id = _children(stored)
    for child in child_fields(field.type):
        if child.field_id in by_id:
            yield from _zoned(child, by_id[child.field_id])


def _absent(struct: StructType, stored: Mapping[Any, pa.Field], constants: Collection[int]) -> Iterator[int]:
    for field in struct.fields:
        found = stored.get(field.field_id)
        if found is not None:
            if isinstance(field.type, StructType) and pa.types.is_struct(found.type):
                yield from _absent(field.type, _children(found), constants)
        elif field.required and field.initial_default is None and field.field_id not in constants:
            yield field.field_id


class OrderWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        broken_at: the position of the first row that is less than the one before it.
    """

    def __init__(self, order: SortOrder, columns: CheckedColumns) -> None:
        """An order by what the file does not have itself, or that has no one meaning, is not judged."""
        self.broken_at: int | None = None
        self._schema = columns.schema
        self._ordering = Ordering(fields=order.fields)
        self._floats = [n for n, field in enumerate(self._schema.fields) if field.type in (FLOAT, DOUBLE)]
        self._last: Any = None
        self._is_judged = self._can_judge(order, columns.types)

    def add(self, rows: pa.Table, first: int) -> None:
        """Look at some rows, the first of which has a position in the file."""
        if not self._is_judged or self.broken_at is not None or not rows.num_rows:
            return
        for position in self._floats:
            # Engines sort both zeros as one.
            column = rows.column(position)
            rows = rows.set_column(position, rows.schema.field(position), pc.add(column, pa.scalar(0.0, column.type)))
        keys = sort_keys(rows, self._ordering, self._schema)
        if self._last is not None and pc.less(keys[0], self._last).as_py():
            self.broken_at = first
            return
        less = pc.less(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        if less.any():
            self.broken_at = first + 1 + int(np.argmax(less))
        self._last = keys[-1]

    def _can_judge(self, order: SortOrder, types: Mapping[int, PrimitiveType]) -> bool:
        top_level = {field.field_id for field in self._schema.fields}
        for field in order.fields:
            type_ = types.get(field.source_id)
            if type_ in (None, UUID) or (type_ in (FLOAT, DOUBLE) and field.source_id not in top_level):
                return False
        try:
            sort_keys(_no_rows(arrow_schema(self._schema)), self._ordering, self._schema)
        except (InvalidTableError, UnsupportedError):
            return False
        return bool(order.fields)


class PartitionWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        others: by name of a partition field values of rows that are not the entry's, some of them.
        source_ids: columns that those are made of.
    """

    def __init__(self, spec: PartitionSpec, values: Sequence[Any], columns: CheckedColumns) -> None:
        """Only of fields that the file has itself something can be said."""
        self.others: dict[str, list[Any]] = {}
        self.source_ids: set[int] = set()
        self._schema = columns.schema
        self._fields = [
            (field, type_, value)
            for field, value in zip(spec.fields, values, strict=True)
            if field.source_id in columns.types and (type_ := _source_type(field, columns)) is not None
        ]

    def add(self, rows: pa.Table) -> None:
        """Look at some rows."""
        if not rows.num_rows:
            return
        for field, type_, expected in self._fields:
            column: Any = leaf_values(rows, self._schema, field.source_id)
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            values, value_type = transformed(array, type_, field.transform)
            for value in column_values(pc.unique(values), value_type):
                if not _is_of(field, value, expected):
                    self.source_ids.add(field.source_id)
                    shown = self.others.setdefault(field.name, [])
                    if len(shown) < _MAX_SHOWN and value not in shown:
                        shown.append(value)


def _source_type(field: PartitionField, columns: CheckedColumns) -> PrimitiveType | None:
    """The type of the source, if the transform can be held against the entry's value."""
    if isinstance(field.transform, Void):
        return None
    try:
        type_ = leaf_path(field.source_id, [columns.schema])[-1].type
        assert isinstance(type_, PrimitiveType)
        field.transform.apply(type_, None)
    except (InvalidTableError, UnsupportedError):
        return None
    # A partition value of a date is in days, also when its column has become a timestamp.
    is_other = field.source_id in columns.promoted and type_.name in ("timestamp", "timestamp_ns")
    return None if is_other else type_


def _is_of(field: PartitionField, value: Any, expected: Any) -> bool:
    if value is None or expected is None:
        return value is expected
    if isinstance(value, float) and isinstance(expected, float) and math.isnan(value):
        return math.isnan(expected)
    # Early versions of Iceberg Java rounded times before 1970 up, and readers reckon with it.
    is_rounded_up = isinstance(field.transform, _TIMES) and value < 0 and value + 1 == expected
    return bool(value == expected or is_rounded_up)
