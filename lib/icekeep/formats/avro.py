"""Avro data files, read and written in blocks (spec, Appendix A "Avro").

Records pass through Python, as no library reads Avro into Arrow with field ids: far slower than the columnar formats. Values
are encoded and decoded without Avro's logical types, as in `spec.avro`. Files are written by the table's schema. They are read
by their own: it becomes a tree of Arrow fields, and records become arrays of those, which `arrow.projection` projects.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, BinaryIO

import fastavro
import msgspec
import pyarrow as pa
from fastavro.write import Writer

from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError
from icekeep.formats.arrow.projection import INSTANT, STORED_AS_KEY, arrays_below, offsets, plain_values, without_nulls
from icekeep.formats.arrow.schema import FIELD_ID_KEY
from icekeep.formats.base import FileMetrics, FileReader, MetricsCollector, NewFile
from icekeep.formats.options import AvroOptions
from icekeep.spec.avro import (
    SYNC_BYTES,
    AvroHeader,
    avro_names,
    avro_schema,
    min_decimal_bytes,
    read_header,
    sync_marker,
    without_logical_types,
    write_header,
)
from icekeep.spec.schema import Schema
from icekeep.spec.types import DecimalType, ListType, MapType, StructType, Type
from icekeep.spec.values import decimal_from_unscaled, unscaled
from icekeep.storage.base import Storage

_HEAD_BYTES = 64 * 1024
_BLOCK_BYTES = 64 * 1024
_RECORDS = 16_384
"""Records that are Python values at a time, or those of one block."""

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


class _Node(msgspec.Struct, frozen=True):
    """A field of a file in Arrow.

    Attributes:
        field: named as in the file, with its field id if the file has one.
        children: the fields of a record, the element of an array, the key and value of a map.
        stored_names: the names of `children` in stored records, in their order.
    """

    field: pa.Field
    children: tuple["_Node", ...] = ()
    stored_names: tuple[str, ...] = ()


class AvroReader(FileReader):
    """An Avro file, which is a single part."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._header = _header(stream)
        try:
            self._node = _SchemaReader().node("", self._header.schema)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidTableError(f"its Avro schema cannot be understood: {error!r}") from error
        if not pa.types.is_struct(self._node.field.type):
            raise InvalidTableError("its Avro schema is not a record")
        self.schema = pa.schema(list(self._node.field.type))

    def tables(
        self,
        columns: Sequence[str],
        parts: Sequence[int] | None,
        kept_dictionaries: Sequence[str],
        batch_rows: int | None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Tables of whole blocks."""
        if parts is not None and any(part != 0 for part in parts):
            raise InvalidTableError("an Avro file has no parts that could be read alone")
        if parts is not None and not parts:
            return
        selected = [
            (stored_name, child)
            for stored_name, child in zip(self._node.stored_names, self._node.children, strict=True)
            if child.field.name in columns
        ]
        schema = pa.schema([child.field for _, child in selected] or [pa.field("", pa.null())])
        first = 0
        for records in _batches(self._stream, self._header):
            arrays = [_arrow_array([record[name] for record in records], child) for name, child in selected]
            yield first, pa.Table.from_arrays(arrays or [pa.nulls(len(records))], schema=schema)
            first += len(records)


class _Rest:
    """A stream with other bytes before it, with the methods that fastavro's reader calls."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head, self._stream = io.BytesIO(head), stream

    def tell(self) -> int:
        return self._head.tell() + self._stream.tell()

    def read(self, size: int) -> bytes:
        data = self._head.read(size)
        return data + self._stream.read(size - len(data)) if len(data) < size else data


def _header(stream: BinaryIO) -> AvroHeader:
    """The header of an open file, which must also end on its sync marker; raises `InvalidTableError`."""
    end = stream.seek(0, io.SEEK_END)
    size = _HEAD_BYTES
    while True:
        stream.seek(0)
        data = stream.read(size)
        try:
            header = read_header(data, "")
            break
        except InvalidTableError as error:
            if size >= end:
                raise InvalidTableError("it is not an Avro file, or its header is damaged") from error
            size *= 4
    stream.seek(max(0, end - SYNC_BYTES))
    if stream.read(SYNC_BYTES) != header.sync:
        raise InvalidTableError("it does not end on its sync marker: it was cut short")
    return header


def _batches(stream: BinaryIO, header: AvroHeader) -> Iterator[list[dict[str, Any]]]:
    """The records of whole blocks, about `_RECORDS` at a time; raises `InvalidTableError` for a damaged one."""
    plain = {**header.metadata, "avro.schema": msgspec.json.encode(without_logical_types(header.schema))}
    stream.seek(header.length_bytes)
    records: list[dict[str, Any]] = []
    try:
        for block in fastavro.block_reader(_Rest(write_header(plain, header.sync), stream)):
            records += block
            # A block that counts fewer records than it holds would silently lose the others.
            if block.num_records < 0 or block.bytes_.read(1):
                raise ValueError(f"a block has more than the {block.num_records} records that it counts")
            if len(records) >= _RECORDS:
                yield records
                records = []
    except (IcekeepError, OSError):
        raise
    # fastavro and its codecs have no common error: whatever they raise, the file is damaged.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidTableError(f"it is damaged: {reason}") from error
    if records:
        yield records


class _SchemaReader(msgspec.Struct):
    """Makes nodes of an Avro schema, and resolves the names of types that are defined in it.

    Raises `KeyError`, `TypeError` or `ValueError` for an invalid schema. `open_records` are those around the current field.
    """

    named: dict[str, Any] = {}
    open_records: set[str] = set()

    def node(self, name: str, schema: Any, field_id: Any = None) -> _Node:
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

    def _typed(self, name: str, schema: Any) -> _Node:
        if isinstance(schema, str) and schema in self.named:
            schema = self.named[schema]
        if isinstance(schema, str):
            return _Node(pa.field(name, _SIMPLE[schema]))
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(name, kind)
        if kind == "record":
            return self._record(name, schema)
        if kind == "map" or (kind == "array" and schema.get("logicalType") == "map"):
            return self._map(name, schema)
        if kind == "array":
            element = self.node("element", schema["items"], schema.get("element-id"))
            return _Node(pa.field(name, pa.list_(element.field)), (element,))
        if kind in self.named:
            return self._typed(name, kind)
        self._define(schema)
        return _Node(_primitive(name, kind, schema))

    def _record(self, name: str, schema: Mapping[str, Any]) -> _Node:
        record_name = schema["name"]
        if record_name in self.open_records:
            raise UnsupportedError(f"record {record_name!r} contains itself")
        self._define(schema)
        self.open_records.add(record_name)
        children = tuple(
            self.node(f.get("iceberg-field-name", f["name"]), f["type"], f.get("field-id")) for f in schema["fields"]
        )
        self.open_records.discard(record_name)
        type_ = pa.struct([child.field for child in children])
        return _Node(pa.field(name, type_), children, tuple(f["name"] for f in schema["fields"]))

    def _map(self, name: str, schema: Mapping[str, Any]) -> _Node:
        """A map, or an array of its entries: Avro's own maps have string keys only."""
        stored_names: tuple[str, ...] = ()
        if schema["type"] == "map":
            key = self.node("key", "string", schema.get("key-id"))
            value = self.node("value", schema["values"], schema.get("value-id"))
        else:
            entry = self._typed("entry", schema["items"])
            if len(entry.children) != 2:
                raise ValueError("the entries of a map have not two fields")
            (key, value), stored_names = entry.children, entry.stored_names
        type_ = pa.map_(key.field.with_nullable(False), value.field)
        return _Node(pa.field(name, type_), (key, value), stored_names)

    def _define(self, schema: Mapping[str, Any]) -> None:
        if isinstance(name := schema.get("name"), str):
            self.named[name] = schema
            if namespace := schema.get("namespace"):
                self.named[f"{namespace}.{name}"] = schema


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
        # Without the property there is a time zone for Avro, and none for Iceberg: the table decides.
        return pa.field(name, pa.timestamp(unit, "UTC" if adjusted else None), metadata={STORED_AS_KEY: INSTANT})
    return pa.field(name, _LOGICAL.get((kind, logical or ""), _SIMPLE.get(kind)) or _SIMPLE[kind])


class AvroWriter(NewFile):
    """An Avro file that is being written."""

    def __init__(
        self, storage: Storage, location: str, schema: Schema, options: AvroOptions, collector: MetricsCollector
    ) -> None:
        self._schema, self._collector = schema, collector
        stored = avro_schema(schema.as_struct(), "table")
        # From the location, which is unique: no randomness is needed.
        sync = sync_marker(location.encode())
        header = {"avro.schema": msgspec.json.encode(stored), "avro.codec": options.codec.encode()}
        self._encoded = io.BytesIO()
        self._encoder = Writer(
            self._encoded,
            without_logical_types(stored),
            codec=options.codec,
            sync_interval=_BLOCK_BYTES,
            sync_marker=sync,
            compression_level=options.level,
        )
        # Drop fastavro's header, which lacks logical types and ids.
        self._take()
        super().__init__(storage, location, head=write_header(header, sync))

    def write(self, table: pa.Table) -> None:
        self._collector.add(table)
        names = avro_names(self._schema.fields)
        for batch in table.to_batches(max_chunksize=_RECORDS):
            fields = zip(batch.columns, self._schema.fields, strict=True)
            values = [_avro_values(column, field.type) for column, field in fields]
            for row in zip(*values, strict=True):
                self._encoder.write(dict(zip(names, row, strict=True)))
            self._stream.write(self._take())

    def finish(self) -> tuple[int, FileMetrics]:
        self._encoder.flush()
        self._stream.write(self._take())
        return self.end(), self._collector.metrics()

    def _take(self) -> bytes:
        data = self._encoded.getvalue()
        self._encoded.seek(0)
        self._encoded.truncate()
        return data


def _arrow_array(values: list[Any], node: _Node) -> pa.Array:
    """An Arrow array of stored values; raises `ArrowException` if they do not fit."""
    type_ = node.field.type
    mask = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(type_):
        arrays = []
        for child, name in zip(node.children, node.stored_names, strict=True):
            array = _arrow_array([None if value is None else value[name] for value in values], child)
            # Nulls only below a null record: Avro has no null elsewhere unless it is one of the types.
            arrays.append(without_nulls(array) if array.null_count and not child.field.nullable else array)
        if not arrays:
            return pa.array([None if value is None else {} for value in values], type_)
        return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=mask)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        lists = values if pa.types.is_list(type_) else [_pairs(value, node) for value in values]
        ends = pa.array(accumulate((len(value or ()) for value in lists), initial=0), pa.int32())
        items = list(chain.from_iterable(value or () for value in lists))
        if pa.types.is_list(type_):
            return pa.ListArray.from_arrays(ends, _arrow_array(items, node.children[0]), type=type_, mask=mask)
        below = [_arrow_array([pair[n] for pair in items], child) for n, child in enumerate(node.children)]
        return pa.MapArray.from_arrays(ends, *below, type=type_, mask=mask)
    if pa.types.is_decimal(type_):
        scale = type_.scale
        numbers = (None if v is None else int.from_bytes(v, "big", signed=True) for v in values)
        values = [None if number is None else decimal_from_unscaled(number, scale) for number in numbers]
    return pa.array(values, type_)


def _pairs(value: Any, node: _Node) -> list[tuple[Any, Any]]:
    if value is None:
        return []
    if isinstance(value, dict):
        return list(value.items())
    key, item = node.stored_names
    return [(entry[key], entry[item]) for entry in value]


def _avro_values(array: pa.Array, type_: Type) -> list[Any]:
    """The values of an Arrow array as Avro stores them; records are dicts by Avro's names."""
    values: list[Any]
    match type_:
        case StructType():
            children = [_avro_values(array.field(i), field.type) for i, field in enumerate(type_.fields)]
            names = avro_names(type_.fields)
            values = [dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)]
        case ListType():
            values = _avro_values(arrays_below(array)[0], type_.element)
        case MapType():
            keys, items = arrays_below(array)
            pairs = zip(_avro_values(keys, type_.key), _avro_values(items, type_.value), strict=True)
            values = [{"key": key, "value": item} for key, item in pairs]
        case DecimalType():
            size, scale = min_decimal_bytes(type_.precision), type_.scale
            return [
                None if value is None else unscaled(value, scale).to_bytes(size, "big", signed=True)
                for value in array.to_pylist()
            ]
        case _:
            return list(plain_values(array).to_pylist())
    if not isinstance(type_, StructType):
        values = [values[start:end] for start, end in pairwise(offsets(array).to_pylist())]
    if array.null_count:
        values = [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]
    return values
