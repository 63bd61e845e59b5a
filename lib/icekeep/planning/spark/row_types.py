"""Columns and rows as Spark can hold them: Iceberg has types that Spark has not."""

from uuid import UUID

import pyarrow as pa

from icekeep.errors import UnsupportedError
from icekeep.formats.arrow.schema import arrow_type
from icekeep.spec.schema import Schema
from icekeep.spec.types import ListType, MapType, NestedField, PrimitiveType, StructType, Type

_REFUSED = ("time", "timestamp_ns", "timestamptz_ns", "variant", "geometry", "geography")
_NAMES = {"time": "times of a day", "timestamp_ns": "nanoseconds", "timestamptz_ns": "nanoseconds"}


def spark_columns(schema: Schema) -> pa.Schema:
    """The columns of a DataFrame for a schema: UUIDs are text and `fixed` is binary, as Iceberg has them in Spark.

    Raises:
        UnsupportedError: Spark has no type for a column; its full name is in the message.
    """
    return pa.schema([_field(field, field.name) for field in schema.fields])


def spark_rows(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Rows as they were read in the columns of `spark_columns`."""
    arrays = [
        pa.chunked_array([_as(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(rows.columns, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def _field(field: NestedField, name: str) -> pa.Field:
    return pa.field(field.name, _type(field.type, name), nullable=not field.required)


def _type(type_: Type, name: str) -> pa.DataType:
    match type_:
        case StructType(fields=fields):
            return pa.struct([_field(field, f"{name}.{field.name}") for field in fields])
        case ListType():
            element = _type(type_.element, f"{name}.element")
            return pa.list_(pa.field("element", element, nullable=not type_.element_required))
        case MapType():
            value = pa.field("value", _type(type_.value, f"{name}.value"), nullable=not type_.value_required)
            return pa.map_(_type(type_.key, f"{name}.key"), value)
    kind = type_.name if isinstance(type_, PrimitiveType) else str(type_)
    if kind in _REFUSED:
        why = f" ({_NAMES[kind]})" if kind in _NAMES else ""
        raise UnsupportedError(
            f"column {name!r}: Spark has no type for {kind}{why}; name the other columns with select", column=name
        )
    if kind == "uuid":
        return pa.string()
    return pa.binary() if kind == "fixed" else arrow_type(type_)


def _as(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if array.type == type_:
        return array
    if isinstance(array.type, pa.UuidType):
        return pa.array([None if b is None else str(UUID(bytes=b)) for b in array.storage.to_pylist()], pa.string())
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        children = [_as(array.field(n), field.type) for n, field in enumerate(type_)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pa.types.is_list(type_):
        dense = pa.concat_arrays([array])
        return pa.ListArray.from_arrays(dense.offsets, _as(dense.values, type_.value_type), type_, mask=mask)
    if pa.types.is_map(type_):
        dense = pa.concat_arrays([array])
        keys, items = _as(dense.keys, type_.key_type), _as(dense.items, type_.item_type)
        return pa.MapArray.from_arrays(dense.offsets, keys, items, type_, mask=mask)
    return array.cast(type_)
