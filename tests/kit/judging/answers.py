"""The rows that a judge gives, in Arrow's types of its own choice, as texts that can be compared."""

from collections import Counter
from typing import Any
from uuid import UUID

import msgspec
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


def answer_texts(schema: Schema, rows: pa.Table, *, has_null_lists: bool = True) -> Counter[str]:
    """The rows of an answer in the form of `row_texts`.

    Args:
        has_null_lists: that a null is told from a list or map without elements, and from a struct of nulls.

    Raises:
        ValueError: its columns are not those of the table.
    """
    names = [field.name for field in schema.fields]
    if sorted(rows.column_names) != sorted(names):
        raise ValueError(f"the table has the columns {names}, the answer {rows.column_names}")
    answer = _Answer(has_null_lists)
    columns = [answer.values(rows.column(field.name), field.type) for field in schema.fields]
    return row_texts(schema, (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)))


class _Answer(msgspec.Struct, frozen=True):
    has_null_lists: bool

    def values(self, array: Any, type_: Type) -> list[Any]:
        """Of one column, as `to_wire` takes them."""
        if isinstance(array, pa.ChunkedArray):
            return [value for chunk in array.chunks for value in self.values(chunk, type_)]
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        match type_:
            case StructType(fields=fields):
                return self._structs(array, fields)
            case ListType(element=element):
                return [self._null(type_) if one.values is None else self.values(one.values, element) for one in array]
            case MapType():
                return [self._null(type_) if one.values is None else self._pairs(one.values, type_) for one in array]
        if type_.name in _TICKS:
            return _ticks(array, _TICKS[type_.name])
        return [None if value is None else _value(value, type_.name) for value in array.to_pylist()]

    def _structs(self, array: pa.StructArray, fields: tuple[NestedField, ...]) -> list[Any]:
        columns = [self.values(array.field(field.name), field.type) for field in fields]
        return [
            {field.name: column[n] for field, column in zip(fields, columns, strict=True)}
            if valid
            else self._null(StructType(fields))
            for n, valid in enumerate(array.is_valid().to_pylist())
        ]

    def _pairs(self, entries: pa.StructArray, type_: MapType) -> list[Any]:
        keys, values = self.values(entries.field(0), type_.key), self.values(entries.field(1), type_.value)
        return [*zip(keys, values, strict=True)]

    def _null(self, type_: Type) -> Any:
        if self.has_null_lists:
            return None
        match type_:
            case StructType(fields=fields):
                return {field.name: self._null(field.type) for field in fields}
            case ListType() | MapType():
                return []
        return None


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
