"""Arrow arrays taken apart and put together: nested arrays, leaf columns, constants, and memory under another schema."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.schema import arrow_field, arrow_type, child_fields, with_children
from icekeep.spec.schema import Schema
from icekeep.spec.types import UUID as UUID_TYPE
from icekeep.spec.types import ListType, MapType, NestedField, PrimitiveType, StructType, Type

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""A truth value for each row."""

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def where_true(truths: Column) -> Mask:
    """The mask of truth values; null is false."""
    return pc.fill_null(truths, False).to_numpy(zero_copy_only=False)


def offsets(lists: pa.Array) -> pa.Array:
    """Where each list or map begins and ends among its `elements`."""
    # A slice of offsets cannot be combined with a mask of nulls; a difference is a new array.
    return pc.subtract(lists.offsets, lists.offsets[0])


def elements(lists: pa.Array, values: pa.Array | None = None) -> pa.Array:
    """The elements between the first and the last offset of lists, or of maps given their `keys` or `items`."""
    # `flatten` fails on UUIDs.
    values = lists.values if values is None else values
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return values.slice(start, end - start)


def arrays_below(column: pa.Array) -> list[pa.Array]:
    """The fields of structs, null where the structs are, the `elements` of lists, or the keys and items of maps."""
    type_ = column.type
    if pa.types.is_struct(type_):
        return list(column.flatten())
    if pa.types.is_map(type_):
        return [elements(column, column.keys), elements(column, column.items)]
    return [elements(column)] if type_.num_fields else []


def nested_array(type_: pa.DataType, children: Sequence[pa.Array], like: pa.Array) -> pa.Array:
    """Structs, lists or maps of new children (see `arrays_below`), with the nulls and lengths of another array."""
    mask = like.is_null() if like.null_count else None
    if pa.types.is_struct(type_):
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    array_class: Any = pa.MapArray if pa.types.is_map(type_) else pa.ListArray
    return array_class.from_arrays(offsets(like), *children, type=type_, mask=mask)


def plain_values(column: Any) -> Any:
    """Values without dictionaries: whole numbers for dates and times, as in `spec.values`, and 16 bytes for UUIDs."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return plain_values(column.cast(type_.value_type))
    if pa.types.is_date32(type_):
        return column.cast(pa.int32())
    if pa.types.is_time64(type_) or pa.types.is_timestamp(type_):
        return column.cast(pa.int64())
    return column.cast(pa.binary(16)) if type_ == pa.uuid() else column


def column_values(array: pa.Array, type_: PrimitiveType) -> list[Any]:
    """The values of an array in the form of `spec.values`."""
    values = plain_values(array).to_pylist()
    return [None if value is None else UUID(bytes=value) for value in values] if type_ == UUID_TYPE else values


def leaf_schema(field_ids: Iterable[int], schemas: Sequence[Schema]) -> Schema:
    """The schema that reads single leaves: structs keep these fields only, and every field is optional.

    A leaf that is read for a comparison may be absent or null, whatever the schema requires. The first schema that has a field
    gives its type. Raises what `leaf_path` raises.
    """

    def merged(paths: Iterable[Sequence[NestedField]]) -> tuple[NestedField, ...]:
        by_id: dict[int, tuple[NestedField, list[Sequence[NestedField]]]] = {}
        for field, *below in paths:
            by_id.setdefault(field.field_id, (field, []))[1].append(below)
        return tuple(
            msgspec.structs.replace(
                field,
                required=False,
                type=StructType(merged(below)) if isinstance(field.type, StructType) else field.type,
            )
            for field, below in by_id.values()
        )

    return Schema(fields=merged(leaf_path(id_, schemas) for id_ in field_ids))


def leaf_path(field_id: int, schemas: Sequence[Schema]) -> tuple[NestedField, ...]:
    """The fields from the column down to the leaf with an id, in the first schema that has it.

    Raises:
        InvalidTableError: no schema has it, or it is no primitive, or lies in a list or a map.
    """
    schema = next((schema for schema in schemas if field_id in schema.fields_by_id), None)
    if schema is None:
        raise InvalidTableError(f"no schema of the table has a column with id {field_id}")
    path = [schema.fields_by_id[field_id]]
    while (parent := schema.parents_by_id.get(path[0].field_id)) is not None:
        path.insert(0, parent)
    *structs, leaf = path
    if isinstance(leaf.type, PrimitiveType) and all(isinstance(field.type, StructType) for field in structs):
        return tuple(path)
    raise InvalidTableError(
        f"column {schema.names_by_id[field_id]!r} (id {field_id}) is no single value of a row: it is nested, or lies in"
        " a list or a map"
    )


def leaf_values(table: pa.Table, schema: Schema, field_id: int) -> pa.ChunkedArray:
    """The values of a leaf of a table in the columns of `schema`, null where a struct around it is null."""
    siblings, positions = schema.fields, []
    for field in leaf_path(field_id, [schema]):
        positions.append(next(n for n, other in enumerate(siblings) if other.field_id == field.field_id))
        siblings = field.type.fields if isinstance(field.type, StructType) else ()
    column: Any = table.column(positions[0])
    return pc.struct_field(column, positions[1:]) if len(positions) > 1 else column


def constant_array(type_: Type, value: Any, length: int) -> pa.Array:
    """One value `length` times; a struct is a dict by field id, as in `spec.values`."""
    target = arrow_type(type_)
    if value is None and not isinstance(type_, StructType):
        return pa.nulls(length, target)
    if isinstance(type_, StructType) and value is not None:
        children = [constant_array(f.type, value.get(f.field_id), length) for f in type_.fields]
        if not children:
            return pa.array([{}] * length, target)
        return pa.StructArray.from_arrays(children, fields=[arrow_field(f) for f in type_.fields])
    if isinstance(type_, PrimitiveType):
        return pa.repeat(pa.scalar(value, target), length)
    array = pa.array([_builder_value(type_, value)], _builder_type(target)).cast(target)
    return array.take(pa.array(np.zeros(length, dtype=np.int64)))


def _builder_value(type_: Type, value: Any) -> Any:
    """A value as Arrow's builders take it: structs by name, bytes for a UUID."""
    match type_:
        case _ if value is None:
            return None
        case StructType():
            return {f.name: _builder_value(f.type, value.get(f.field_id)) for f in type_.fields}
        case ListType():
            return [_builder_value(type_.element, item) for item in value]
        case MapType():
            return [(_builder_value(type_.key, key), _builder_value(type_.value, item)) for key, item in value]
    return value.bytes if isinstance(value, UUID) else value


def _builder_type(type_: pa.DataType) -> pa.DataType:
    """The type with 16 bytes for a UUID at every level: Arrow cannot build UUIDs from Python values."""
    children = [field.with_type(_builder_type(field.type)) for _, field in child_fields(type_)]
    if children:
        return with_children(type_, children)
    return pa.binary(16) if type_ == pa.uuid() else type_


def without_nulls(array: pa.Array) -> pa.Array:
    """The array with arbitrary values in place of nulls, for a required field below a null struct.

    pyarrow refuses to write nulls in a required field, even where no reader can see them.
    """
    # Arrow's builders fill the fields of a null struct with values.
    below = pa.array([None], pa.struct([pa.field("", _builder_type(array.type), nullable=False)]))
    indices = pc.if_else(array.is_valid(), pa.array(np.arange(len(array))), len(array))
    return pa.concat_arrays([array, below.field(0).cast(array.type)]).take(indices)


def plain_type(type_: pa.DataType, *, widths_only: bool = False) -> pa.DataType:
    """A type of the same layout in memory without extension types; fields are numbered, nullable and have no metadata.

    With `widths_only`, all types that have the same buffers become one: numbers, dates and times differ by their width alone.
    """
    below = partial(plain_type, widths_only=widths_only)
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f"f{n}", below(field.type)) for n, field in enumerate(type_)])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", below(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(below(type_.key_type), below(type_.item_type))
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    if widths_only and (pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_)):
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(type_.bit_width, type_)
    return type_


def described_as(data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same memory, described by another schema whose types have the same layout; nothing is copied.

    Engines may return strings, bytes and lists in Arrow's large or view layouts; such columns are converted first.
    Raises `IcekeepBug` where a column has another layout than its type in the schema, or the number of columns differs.
    """
    if data.num_columns != len(schema):
        raise IcekeepBug(f"{data.num_columns} Arrow columns cannot be described as {len(schema)}")
    columns = [_laid_out(column, field.type) for column, field in zip(data.columns, schema, strict=True)]
    if any(column is not given for column, given in zip(columns, data.columns, strict=True)):
        data = pa.RecordBatch.from_arrays(columns, names=schema.names)
    _, array = data.__arrow_c_array__()
    importing: Any = pa.RecordBatch
    return importing._import_from_c_capsule(schema.__arrow_c_schema__(), array)


def _laid_out(column: pa.Array, type_: pa.DataType) -> pa.Array:
    layout = plain_type(type_, widths_only=True)
    if plain_type(column.type, widths_only=True) == layout:
        return column
    usual = _in_usual_layout(column.type)
    if plain_type(usual, widths_only=True) != layout:
        raise IcekeepBug(
            f"an Arrow column of {column.type} cannot be described as {type_}: its layout in memory differs"
        )
    try:
        return column.cast(usual)
    except pa.ArrowException as error:
        raise IcekeepBug(f"an Arrow column of {column.type} cannot be converted to {usual}: {error}") from error


_USUAL_LAYOUTS = {
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
}


def _in_usual_layout(type_: pa.DataType) -> pa.DataType:
    """The type with 32-bit offsets, as in `arrow_type`, in place of 64-bit offsets and views."""
    is_view = pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)
    if is_view or pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(type_.value_field.with_type(_in_usual_layout(type_.value_type)))
    children = [field.with_type(_in_usual_layout(field.type)) for _, field in child_fields(type_)]
    if pa.types.is_map(type_):
        return pa.map_(*children)
    return pa.struct(children) if pa.types.is_struct(type_) else _USUAL_LAYOUTS.get(type_, type_)
