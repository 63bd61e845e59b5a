"""The rows that a judge gives, in Arrow's types of its own choice, as texts that can be compared."""

from collections import Counter
from typing import Any
from uuid import UUID

import pyarrow as pa

from icekeep.spec.schema import Schema
from icekeep.spec.types import ListType, MapType, NestedField, StructType, Type
from kit.row_texts import row_texts

_TICKS = {
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
}


def answer_texts(schema: Schema, rows: pa.Table) -> Counter[str]:
    """The rows of an answer in the form of `row_texts`; raises `ValueError` where its columns are not those of the table."""
    names = [field.name for field in schema.fields]
    if sorted(rows.column_names) != sorted(names):
        raise ValueError(f"the table has the columns {names}, the answer {rows.column_names}")
    columns = [_values(rows.column(field.name), field.type) for field in schema.fields]
    return row_texts(schema, (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)))


def _values(array: Any, type_: Type) -> list[Any]:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    match type_:
        case StructType(fields=fields):
            return _structs(array, fields)
        case ListType(element=element):
            return [None if one.values is None else _values(one.values, element) for one in array]
        case MapType(key=key, value=value):
            pairs = [None if one.values is None else one.values for one in array]
            return [
                None if p is None else [*zip(_values(p.field(0), key), _values(p.field(1), value), strict=True)]
                for p in pairs
            ]
    if type_.name in _TICKS:
        return _ticks(array, _TICKS[type_.name])
    values = array.to_pylist()
    return [None if value is None else _value(value, type_.name) for value in values]


def _structs(array: pa.StructArray, fields: tuple[NestedField, ...]) -> list[Any]:
    columns = [_values(array.field(field.name), field.type) for field in fields]
    return [
        {field.name: column[n] for field, column in zip(fields, columns, strict=True)} if valid else None
        for n, valid in enumerate(array.is_valid().to_pylist())
    ]


def _ticks(array: Any, type_: pa.DataType) -> list[Any]:
    # A judge may give the number alone, or another unit, but no part of it may be lost.
    if pa.types.is_integer(array.type):
        return array.to_pylist()
    return array.cast(type_).cast(pa.int32() if type_ == pa.date32() else pa.int64()).to_pylist()


def _value(value: Any, name: str) -> Any:
    match name:
        case "uuid" if isinstance(value, bytes):
            return UUID(bytes=value)
        case "uuid" if isinstance(value, str):
            return UUID(value)
        case "string" if isinstance(value, bytes):
            return value.decode()
        case "boolean":
            return bool(value)
    return value
