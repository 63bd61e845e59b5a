"""Arrow data as other engines take it: without extension types and what fields say beyond their type, and back again."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from icekeep.errors import IcekeepBug


def with_leaves(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with everything in it that is not nested replaced; fields are numbered, may be null and have no metadata."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f"f{n}", with_leaves(field.type, leaf)) for n, field in enumerate(type_)])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", with_leaves(type_.value_type, leaf)))
    if pa.types.is_map(type_):
        return pa.map_(with_leaves(type_.key_type, leaf), with_leaves(type_.item_type, leaf))
    return leaf(type_)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A type without extension types, of the same layout in memory."""
    return with_leaves(type_, _storage_type)


def described_as(data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same memory, described by another schema whose types have the same layout; nothing is copied.

    Other engines may hand back texts, bytes and lists in Arrow's large or view layouts, as their settings say: such columns are
    converted first.

    Raises:
        IcekeepBug: a column has another layout than its type in the schema, or there are more or fewer columns.
    """
    if data.num_columns != len(schema):
        raise IcekeepBug(f"{data.num_columns} Arrow columns cannot be described as {len(schema)}")
    columns = [_laid_out(column, field) for column, field in zip(data.columns, schema, strict=True)]
    if any(column is not given for column, given in zip(columns, data.columns, strict=True)):
        data = pa.RecordBatch.from_arrays(columns, names=schema.names)
    _, array = data.__arrow_c_array__()
    importing: Any = pa.RecordBatch
    return importing._import_from_c_capsule(schema.__arrow_c_schema__(), array)


def _laid_out(column: pa.Array, field: pa.Field) -> pa.Array:
    """The values of a column in the layout of a field."""
    layout = with_leaves(field.type, _layout)
    if with_leaves(column.type, _layout) == layout:
        return column
    usual = _in_usual_layout(column.type)
    if with_leaves(usual, _layout) == layout:
        try:
            return column.cast(usual)
        except pa.ArrowException as error:
            raise IcekeepBug(f"an Arrow column of {column.type} cannot be converted to {usual}: {error}") from error
    raise IcekeepBug(
        f"an Arrow column of {column.type} cannot be described as {field.type}: its layout in memory differs"
    )


def _layout(type_: pa.DataType) -> pa.DataType:
    """One type for all that have the same buffers: numbers, dates and times are told apart by their width alone."""
    type_ = _storage_type(type_)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_):
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(type_.bit_width, type_)
    return type_


def _in_usual_layout(type_: pa.DataType) -> pa.DataType:
    """A type with the 32-bit offsets that we use in place of 64-bit offsets and views."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_in_usual_layout(field.type)) for field in type_])
    if pa.types.is_map(type_):
        key, item = (field.with_type(_in_usual_layout(field.type)) for field in (type_.key_field, type_.item_field))
        return pa.map_(key, item)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or _is_list_view(type_):
        return pa.list_(type_.value_field.with_type(_in_usual_layout(type_.value_type)))
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    return type_


def _is_list_view(type_: pa.DataType) -> bool:
    return pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)


def _storage_type(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
