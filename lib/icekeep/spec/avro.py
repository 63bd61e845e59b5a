"""Avro container files and Iceberg's mapping to Avro (spec, Appendix A "Avro"; Avro 1.12 specification).

Headers and blocks are read and written here, which gives access to the key-value metadata, field ids, sync marker and codec.
fastavro decodes and encodes records, without Avro's logical types: values stay in the form of `values.py`.
"""

import io
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, TypeAlias
from uuid import UUID

import fastavro
import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.types import (
    MIB,
    OPAQUE,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
)
from icekeep.spec.values import decimal_from_unscaled, unscaled

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
BLOCK_BYTES = 64 << 10
"""A block of a manifest ends at the first record that reaches this size, so that readers unpack a few records at a time."""

_MAX_HEADER_BYTES = 64 * MIB
_MAX_BLOCK_BYTES = 1 << 30
"""A block that unpacks to more is an attack or an accident: writers end a block after some kilobytes."""

_SIMPLE: dict[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "opaque": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
}

_PYTHON_TYPES: dict[str, type] = {
    "boolean": bool,
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("binary", "fixed", "decimal", "uuid"), bytes),
}
"""The Python types in which fastavro returns values without logical types; all other types are whole numbers."""


class AvroHeader(msgspec.Struct, frozen=True):
    """The header of an Avro container file; its first block begins at `length_bytes`."""

    metadata: Mapping[str, bytes]
    sync: bytes
    length_bytes: int

    @property
    def schema(self) -> Any:
        """The writer's schema as decoded JSON, field ids included."""
        return msgspec.json.decode(self.metadata["avro.schema"])


@lru_cache(maxsize=64)
def _plain(schema_json: bytes) -> Any:
    # Most manifests of a table have the same schema, byte for byte.
    return without_logical_types(msgspec.json.decode(schema_json))


_parsed = lru_cache(maxsize=64)(lambda schema_json: fastavro.parse_schema(_plain(schema_json)))
_MAX_RECENT_HEAD_BYTES = 1 << 18
_recent_heads: deque[tuple[bytes, Mapping[str, bytes]]] = deque(maxlen=8)
"""Headers up to their sync markers, and their metadata: most manifests of a table have the same one."""


def read_header(data: bytes, location: str) -> AvroHeader:
    """Parse the header of an Avro container file; raises `InvalidTableError` if it is damaged or incomplete."""
    for head, metadata in tuple(_recent_heads):
        if data.startswith(head) and len(data) >= len(head) + SYNC_BYTES:
            return AvroHeader(metadata, data[len(head) : len(head) + SYNC_BYTES], len(head) + SYNC_BYTES)
    try:
        metadata, position = _read_metadata(data)
        sync = data[position : position + SYNC_BYTES]
        if len(sync) < SYNC_BYTES or "avro.schema" not in metadata:
            raise ValueError("its header is cut short")
        _plain(metadata["avro.schema"])
    except (ValueError, IndexError, RecursionError) as error:
        raise InvalidTableError(f"cannot read Avro file {location!r}: {error}", location=location) from error
    if position <= _MAX_RECENT_HEAD_BYTES:
        _recent_heads.appendleft((data[:position], metadata))
    return AvroHeader(metadata, sync, position + SYNC_BYTES)


def _read_metadata(data: bytes) -> tuple[dict[str, bytes], int]:
    """The file metadata, a map that Avro stores in blocks of pairs, and the position after it."""
    if data[:4] != MAGIC:
        raise ValueError("it does not begin with Avro's magic bytes")
    metadata: dict[str, bytes] = {}
    count, position = read_long(data, 4)
    while count:
        if count < 0:  # then the block's length follows
            _, position = read_long(data, position)
        for _ in range(abs(count)):
            key, position = _read_bytes(data, position)
            metadata[key.decode()], position = _read_bytes(data, position)
        count, position = read_long(data, position)
    return metadata, position


def write_header(metadata: Mapping[str, bytes], sync: bytes) -> bytes:
    out = bytearray(MAGIC)
    out += encode_long(len(metadata))
    for key, value in metadata.items():
        out += encode_long(len(key.encode())) + key.encode() + encode_long(len(value)) + value
    out += b"\0" + sync
    return bytes(out)


def read_records(data: bytes, header: AvroHeader, location: str) -> Iterator[dict[str, Any]]:
    """Decode all records of a container file, without logical types; raises `InvalidTableError` if it is damaged or cut."""
    if not data.endswith(header.sync):
        raise InvalidTableError(
            f"Avro file {location!r} does not end on its sync marker: it was cut short", location=location
        )
    try:
        for value in header.metadata.values():
            value.decode()  # Writers put only text there; other bytes are damage.
        schema = _parsed(header.metadata["avro.schema"])
        for count, payload in read_blocks(data, header):
            block = io.BytesIO(payload)
            for _ in range(count):
                yield fastavro.schemaless_reader(block, schema, None)
            # The other records of a block whose count is too low would be lost silently.
            if block.read(1):
                raise ValueError(f"a block has more than the {count} records that it counts")
    # fastavro and its codecs have no common error: whatever they raise, the file is damaged.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidTableError(f"cannot read Avro file {location!r}: {reason}", location=location) from error


def encode_record(parsed: Any, record: Any) -> bytes:
    """A record by a schema without logical types, as fastavro has parsed it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, record)
    return out.getvalue()


def read_blocks(
    data: bytes, header: AvroHeader, new_inflater: Callable[..., Any] = zlib.decompressobj
) -> Iterator[tuple[int, bytes]]:
    """The record count and the decompressed payload of each block of an Avro container file.

    `new_inflater` is called like `zlib.decompressobj`. A damaged file raises any kind of `Exception`, since fastavro and its
    codecs have no common one.
    """
    body = memoryview(data)[header.length_bytes :]
    codec = header.metadata.get("avro.codec", b"null")
    if codec != b"deflate":
        # With all metadata, which fastavro refuses where it is no text: it is damage.
        plain = {**header.metadata, "avro.schema": b'"null"', "avro.codec": codec}
        head = write_header(plain, header.sync)
        for block in fastavro.block_reader(io.BytesIO(b"".join((head, body)))):
            if block.num_records < 0:
                raise ValueError(f"a block counts {block.num_records} records")
            yield block.num_records, block.bytes_.read()
        return
    # fastavro would inflate without a bound.
    position = 0
    while position < len(body):
        count, position = read_long(body, position)
        length, position = read_long(body, position)
        end = position + length
        if count < 0 or length < 0 or body[end : end + SYNC_BYTES] != header.sync:
            raise ValueError("a block does not end on the sync marker")
        inflater = new_inflater(wbits=-15)
        payload = inflater.decompress(body[position:end], _MAX_BLOCK_BYTES)
        if inflater.unconsumed_tail:
            raise ValueError(f"a block unpacks to more than {_MAX_BLOCK_BYTES} bytes")
        if not inflater.eof:
            raise ValueError("a block is packed data that was cut short")
        yield count, payload
        position = end + SYNC_BYTES


Packer: TypeAlias = Callable[[bytes], bytes]
"""Compresses the payload of a block."""

AVRO_CODECS = {"gzip": "deflate", "snappy": "snappy", "zstd": "zstandard", "uncompressed": "null"}
"""Avro's codec names by those of table properties."""

LEVELS = {"deflate": range(-1, 10), "zstandard": range(-131072, 23)}
"""The levels of each Avro codec that has levels."""


class AvroContainer:
    """Builds an Avro container file; records that are added one by one are collected into blocks."""

    def __init__(self, metadata: Mapping[str, bytes], sync: bytes, pack: Packer) -> None:
        """`pack` must be of the codec that `metadata` names."""
        header = write_header(metadata, sync)
        self._sync, self._pack = sync, pack
        self._parts = [header]
        self.length_bytes = len(header)
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, record: bytes) -> None:
        self._pending.append(record)
        self._pending_bytes += len(record)
        if self._pending_bytes >= BLOCK_BYTES:
            self._flush()

    def add_block(self, payload: bytes, records_count: int) -> None:
        self._flush()
        packed = self._pack(payload)
        block = encode_long(records_count) + encode_long(len(packed)) + packed + self._sync
        self._parts.append(block)
        self.length_bytes += len(block)

    def finish(self) -> bytes:
        self._flush()
        return b"".join(self._parts)

    def _flush(self) -> None:
        if pending := self._pending:
            self._pending, self._pending_bytes = [], 0
            self.add_block(b"".join(pending), len(pending))


def packer(codec: str, level: int | None = None) -> Packer:
    """The compressor of an Avro codec, by default at level 6 of deflate and 1 of zstandard.

    Raises `UnsupportedError` for another codec or level.
    """
    if codec not in AVRO_CODECS.values():
        raise UnsupportedError(f"Avro codec {codec!r} cannot be written; use one of {', '.join(AVRO_CODECS.values())}")
    allowed = LEVELS.get(codec)
    if level is not None and allowed is not None and level not in allowed:
        raise UnsupportedError(
            f"Avro codec {codec!r} has no level {level}; its levels are {allowed[0]} to {allowed[-1]}"
        )
    match codec:
        case "null":
            return bytes
        case "deflate":
            return partial(zlib.compress, level=6 if level is None else level, wbits=-15)
        case "snappy":
            return _pack_snappy
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return partial(zstd.compress, level=1 if level is None else level)


def _pack_snappy(payload: bytes) -> bytes:
    """Snappy's raw format and a checksum of the payload (Avro 1.12 specification, "snappy")."""
    from cramjam import snappy  # fastavro's codecs bring it

    return bytes(snappy.compress_raw(payload)) + zlib.crc32(payload).to_bytes(4, "big")


def sync_marker(seed: bytes) -> bytes:
    """A sync marker without randomness, so that equal input gives an equal file."""
    return blake2b(seed, digest_size=SYNC_BYTES).digest()


def min_decimal_bytes(precision: int) -> int:
    """The fewest bytes that hold every unscaled value of a decimal precision."""
    return ((10**precision - 1).bit_length() + 8) // 8


def to_avro(type_: Type) -> Callable[[Any], Any]:
    """The conversion of non-null values of a primitive type to those that fastavro encodes."""
    if isinstance(type_, DecimalType):
        size, scale = min_decimal_bytes(type_.precision), type_.scale
        return lambda value: unscaled(value, scale).to_bytes(size, "big", signed=True)
    if str(type_) == "uuid":
        return lambda value: value.bytes
    if type_ == OPAQUE:
        return shown_text
    return lambda value: value


def shown_text(value: Any) -> str | None:
    """A value of an unknown or an unexpected type as text; null is null."""
    return value if value is None or isinstance(value, str) else repr(value)


def from_avro(type_: Type) -> Callable[[Any], Any]:
    """The conversion of non-null values that were read without logical types to those of a primitive type.

    It raises `ValueError` for a value that is stored as another type. Text is not checked, nor is the result of an unknown
    transform, which may be of any type.
    """
    if str(type_) in ("string", "opaque"):
        return lambda raw: raw
    name = type_.name if isinstance(type_, PrimitiveType) else ""
    expected, scale = _PYTHON_TYPES.get(name, int), type_.scale if isinstance(type_, DecimalType) else 0

    def read(raw: Any) -> Any:
        fits = type(raw) is expected
        if not fits or (isinstance(type_, FixedType) and len(raw) != type_.length):
            raise ValueError(f"a value of type {type_} is stored as {raw!r}")
        if name == "decimal":
            return decimal_from_unscaled(int.from_bytes(raw, "big", signed=True), scale)
        return UUID(bytes=raw) if name == "uuid" else raw

    return read


def avro_names(fields: Sequence[NestedField]) -> list[str]:
    """Distinct names that Avro allows: other characters become `_x` and their code in hex, a leading digit gets `_`."""
    names: list[str] = []
    for field in fields:
        name = re.sub("[^A-Za-z0-9_]", lambda char: f"_x{ord(char[0]):X}", field.name)
        name = re.sub("^(?=[0-9])", "_", name)
        while name in names:
            name = f"{name}_{field.field_id}"
        names.append(name)
    return names


def avro_schema(struct: StructType, name: str, named: set[str] | None = None) -> dict[str, Any]:
    """The Avro record schema of a struct, with field ids; `named` collects the names of the fixed types in it."""
    named = set() if named is None else named
    fields = []
    for field, legal in zip(struct.fields, avro_names(struct.fields), strict=True):
        schema = _avro_type(field.type, field.field_id, named)
        out: dict[str, Any] = {"name": legal, "type": schema, "field-id": field.field_id}
        if legal != field.name:
            out["iceberg-field-name"] = field.name
        if not field.required:
            out["type"], out["default"] = ["null", schema], None
        fields.append(out)
    return {"type": "record", "name": name, "fields": fields}


def _avro_type(type_: Type, field_id: int, named: set[str]) -> Any:
    def fixed(name: str, size: int, **logical: Any) -> dict[str, Any]:
        # Avro allows one definition of a name, and not every reader resolves references: a second one gets another name.
        if name in named:
            name = f"{name}_{field_id}"
        named.add(name)
        return {"type": "fixed", "name": name, "size": size, **logical}

    match type_:
        case StructType():
            return avro_schema(type_, f"r{field_id}", named)
        case ListType():
            element = _avro_type(type_.element, type_.element_id, named)
            items = element if type_.element_required else ["null", element]
            return {"type": "array", "items": items, "element-id": type_.element_id}
        case MapType():
            pair = StructType(child_fields(type_))
            items = avro_schema(pair, f"k{type_.key_id}_v{type_.value_id}", named)
            return {"type": "array", "logicalType": "map", "items": items}
        case DecimalType(precision=precision, scale=scale):
            logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
            return fixed(f"decimal_{precision}_{scale}", min_decimal_bytes(precision), **logical)
        case FixedType(length=length):
            return fixed(f"fixed_{length}", length)
        case PrimitiveType(name="uuid"):
            return fixed("uuid_fixed", 16, logicalType="uuid")
        case PrimitiveType(name=name) if name in _SIMPLE:
            return _SIMPLE[name]
    raise UnsupportedError(f"type {type_} cannot be stored in Avro here")


def without_logical_types(schema: Any) -> Any:
    """The same Avro schema of plain values (days, microseconds, bytes).

    Some writers define a fixed type twice under one name: the second one gets another name.
    """
    named: set[str] = set()

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(item) for item in part]
        if not isinstance(part, dict):
            return part
        out = {key: plain(item) for key, item in part.items() if key != "logicalType"}
        if out.get("type") == "fixed" and isinstance(name := out.get("name"), str):
            while name in named:
                name = f"{name}_"
            named.add(name)
            out["name"] = name
        return out

    return plain(schema)


def encode_long(number: int) -> bytes:
    """Avro's encoding of a signed number: an unsigned one with the sign in its lowest bit."""
    return encode_varint((number << 1) ^ (number >> 63))


def encode_varint(number: int) -> bytes:
    """An unsigned number, seven bits a byte, the lowest first: as Avro, Thrift and Protocol Buffers have it."""
    out = bytearray()
    while number & ~0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_long(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it; raises `IndexError` or `ValueError` if there is none."""
    number, position = read_varint(data, position)
    return (number >> 1) ^ -(number & 1), position


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The unsigned number at a position, and the position after it; raises as `read_long`."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError("a number in its header is too long")


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_long(data, position)
    if not 0 <= length <= _MAX_HEADER_BYTES or position + length > len(data):
        raise ValueError("its header is cut short")
    return data[position : position + length], position + length
