"""Between Arrow arrays and the values that Avro stores, logical types left aside (spec, Appendix A "Avro").

Going out, a table's schema says what to store. Coming in, a file's own schema does: it becomes a tree of Arrow fields, and
values become arrays of those; making them a table's columns is left to `arrow.projection`.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.field_ids import INSTANT, STORED_AS_KEY
from icekeep.formats.arrow.literals import without_nulls
from icekeep.formats.arrow.nested import elements, offsets
from icekeep.formats.arrow.schema import FIELD_ID_KEY
from icekeep.spec.avro import avro_names, min_decimal_bytes
from icekeep.spec.numbers import decimal_from_unscaled, unscaled
from icekeep.spec.types import DecimalType, ListType, MapType, StructType, Type

_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "null": pa.null(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_INSTANT_UNITS = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}


class AvroNode(msgspec.Struct, frozen=True):
    """A field of a file: what it is in Arrow, and what lies below it.

    Attributes:
        field: named as in the file, with its field id if the file says one.
        children: of a record its fields, of an array its element, of a map its key and its value.
        stored_names: by which the values of `children` are found in a record, in their order.
    """

    field: pa.Field
    children: tuple["AvroNode", ...] = ()
    stored_names: tuple[str, ...] = ()


def node_of_schema(schema: Any) -> AvroNode:
    """The tree of a file whose records have this Avro schema, decoded from its JSON.

    Raises:
        InvalidTableError: it is not an Avro schema of records.
        UnsupportedError: it has unions of several types, or records that contain themselves.
    """
    try:
        node = _Schemas().node("", schema, None)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidTableError(f"its Avro schema cannot be understood: {error!r}") from error
    if not pa.types.is_struct(node.field.type):
        raise InvalidTableError("its Avro schema is not a record")
    return node


def arrow_array(values: list[Any], node: AvroNode) -> pa.Array:
    """Values as they are stored, null among them, as an Arrow array; raises `ArrowException` if they do not fit."""
    type_ = node.field.type
    mask = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(type_):
        arrays = []
        for child, name in zip(node.children, node.stored_names, strict=True):
            array = arrow_array([None if value is None else value[name] for value in values], child)
            # Only below a null record; Avro has no null where it is not one of the types.
            arrays.append(without_nulls(array) if array.null_count and not child.field.nullable else array)
        if not arrays:
            return pa.array([None if value is None else {} for value in values], type_)
        return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=mask)
    if pa.types.is_list(type_):
        below = arrow_array(list(chain.from_iterable(value or () for value in values)), node.children[0])
        return pa.ListArray.from_arrays(_offsets(values), below, type=type_, mask=mask)
    if pa.types.is_map(type_):
        pairs = [_pairs(value, node) for value in values]
        keys = arrow_array([key for pair in pairs for key, _ in pair], node.children[0])
        items = arrow_array([item for pair in pairs for _, item in pair], node.children[1])
        return pa.MapArray.from_arrays(_offsets(pairs), keys, items, type=type_, mask=mask)
    if pa.types.is_decimal(type_):
        scale = type_.scale
        numbers = (None if v is None else int.from_bytes(v, "big", signed=True) for v in values)
        values = [None if number is None else decimal_from_unscaled(number, scale) for number in numbers]
    return pa.array(values, type_)


def avro_values(array: pa.Array, type_: Type) -> list[Any]:
    """The values of an Arrow array in a table's type as Avro stores them; records are dicts by Avro's names."""
    match type_:
        case StructType():
            children = [avro_values(array.field(i), field.type) for i, field in enumerate(type_.fields)]
            names = avro_names(type_.fields)
            rows = [dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)]
            return _with_nulls(rows, array)
        case ListType():
            below = avro_values(elements(array), type_.element)
            return _with_nulls(_sliced(below, array), array)
        case MapType():
            keys = avro_values(elements(array, array.keys), type_.key)
            items = avro_values(elements(array, array.items), type_.value)
            pairs = [{"key": key, "value": item} for key, item in zip(keys, items, strict=True)]
            return _with_nulls(_sliced(pairs, array), array)
        case DecimalType():
            size, scale = min_decimal_bytes(type_.precision), type_.scale
            return [
                None if value is None else unscaled(value, scale).to_bytes(size, "big", signed=True)
                for value in array.to_pylist()
            ]
    return _plain(array).to_pylist()


def _plain(array: pa.Array) -> pa.Array:
    """Whole numbers for times, bytes for UUIDs."""
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32())
    if pa.types.is_time64(array.type) or pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    return array.cast(pa.binary(16)) if array.type == pa.uuid() else array


def _sliced(items: list[Any], lists: pa.Array) -> list[list[Any]]:
    return [items[start:end] for start, end in pairwise(offsets(lists).to_pylist())]


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _offsets(lists: list[Any]) -> pa.Array:
    return pa.array(accumulate((len(value or ()) for value in lists), initial=0), pa.int32())


def _pairs(value: Any, node: AvroNode) -> list[tuple[Any, Any]]:
    """The entries of a map, stored as one or as an array of records."""
    if value is None:
        return []
    if isinstance(value, dict):
        return list(value.items())
    key, item = node.stored_names
    return [(entry[key], entry[item]) for entry in value]


class _Schemas:
    """Walks an Avro schema and resolves the names of types that are defined in it."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()

    def node(self, name: str, schema: Any, field_id: Any) -> AvroNode:
        """The node of a field of this type; `field_id` is what the file says it is."""
        branches = schema if isinstance(schema, list) else [schema]
        others = [branch for branch in branches if branch != "null"]
        if len(others) > 1:
            raise UnsupportedError(f"field {name!r} is a union of {len(others)} types")
        node = self._typed(name, others[0] if others else "null")
        metadata: dict[bytes, bytes] = dict(node.field.metadata or {})
        if type(field_id) is int:
            metadata[FIELD_ID_KEY] = str(field_id).encode()
        field = pa.field(name, node.field.type, nullable=len(others) < len(branches), metadata=metadata)
        return msgspec.structs.replace(node, field=field)

    def _typed(self, name: str, schema: Any) -> AvroNode:
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, str):
            return AvroNode(pa.field(name, _SIMPLE[schema]))
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(name, kind, None)
        build: Callable[[str, Mapping[str, Any]], AvroNode] | None = {
            "record": self._record,
            "array": self._array,
            "map": self._map,
        }.get(kind)
        if build is not None:
            return build(name, schema)
        if kind in self._named:
            return self._typed(name, kind)
        self._define(schema)
        return AvroNode(_primitive(name, kind, schema))

    def _record(self, name: str, schema: Mapping[str, Any]) -> AvroNode:
        own = schema["name"]
        if own in self._open:
            raise UnsupportedError(f"record {own!r} contains itself")
        self._define(schema)
        self._open.add(own)
        children = tuple(
            self.node(f.get("iceberg-field-name", f["name"]), f["type"], f.get("field-id")) for f in schema["fields"]
        )
        self._open.discard(own)
        fields = [child.field for child in children]
        return AvroNode(pa.field(name, pa.struct(fields)), children, tuple(f["name"] for f in schema["fields"]))

    def _array(self, name: str, schema: Mapping[str, Any]) -> AvroNode:
        if schema.get("logicalType") == "map":
            entry = self._typed("entry", schema["items"])
            if len(entry.children) != 2:
                raise ValueError("the entries of a map have not two fields")
            return _map_node(name, *entry.children, entry.stored_names)
        element = self.node("element", schema["items"], schema.get("element-id"))
        return AvroNode(pa.field(name, pa.list_(element.field)), (element,))

    def _map(self, name: str, schema: Mapping[str, Any]) -> AvroNode:
        key = self.node("key", "string", schema.get("key-id"))
        return _map_node(name, key, self.node("value", schema["values"], schema.get("value-id")), ())

    def _define(self, schema: Mapping[str, Any]) -> None:
        if isinstance(name := schema.get("name"), str):
            self._named[name] = schema
            if namespace := schema.get("namespace"):
                self._named[f"{namespace}.{name}"] = schema


def _map_node(name: str, key: AvroNode, value: AvroNode, stored_names: tuple[str, ...]) -> AvroNode:
    type_ = pa.map_(key.field.with_nullable(False), value.field)
    return AvroNode(pa.field(name, type_), (key, value), stored_names)


def _primitive(name: str, kind: str, schema: Mapping[str, Any]) -> pa.Field:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return pa.field(name, pa.decimal128(schema["precision"], schema.get("scale", 0)))
    if kind == "fixed":
        return pa.field(name, pa.binary(schema["size"]))
    if kind == "enum":
        return pa.field(name, pa.string())
    if kind == "long" and logical in _INSTANT_UNITS:
        unit, adjusted = _INSTANT_UNITS[logical], schema.get("adjust-to-utc")
        # Without the property Iceberg says that there is no time zone, and Avro that there is: the table decides.
        return pa.field(name, pa.timestamp(unit, "UTC" if adjusted else None), metadata={STORED_AS_KEY: INSTANT})
    return pa.field(name, _LOGICAL.get((kind, logical or ""), _SIMPLE.get(kind)) or _SIMPLE[kind])
