"""Avro container files and Iceberg's mapping to Avro (spec, Appendix A "Avro"; Avro 1.12 specification).

Headers are read and written here, so that key-value metadata, field ids and the sync marker are ours to see and set.
Records are decoded and encoded by fastavro, without Avro's logical types: values stay in the form of `values.py`.

Blocks of Avro files, packed by the codecs that they may have (Avro 1.12 specification, "Required Codecs").
"""

import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
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
_LEGAL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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
    **dict.fromkeys(("binary", "fixed"), bytes),
}
"""How fastavro returns values of types that are not whole numbers, once logical types are taken away."""


class AvroHeader(msgspec.Struct, frozen=True):
    """The head of an Avro container file: its metadata, sync marker, and where its first block begins."""

    metadata: Mapping[str, bytes]
    sync: bytes
    length_bytes: int

    @property
    def codec(self) -> str:
        return self.metadata.get("avro.codec", b"null").decode()

    @property
    def schema(self) -> Any:
        """The writer's schema as decoded JSON, field ids included."""
        return msgspec.json.decode(self.metadata["avro.schema"])


@lru_cache(maxsize=64)
def _plain(schema_json: bytes) -> Any:
    """A writer's schema without logical types: of thousands of manifests most have the same one, to the letter."""
    return without_logical_types(msgspec.json.decode(schema_json))


@lru_cache(maxsize=64)
def _parsed(schema_json: bytes) -> Any:
    return fastavro.parse_schema(_plain(schema_json))


class _Heads:
    """Heads of files up to their sync markers, and what they say; of thousands of manifests most are alike, to the letter."""

    _MAX_COUNT = 8
    _MAX_BYTES = 1 << 18

    def __init__(self) -> None:
        self.all: tuple[tuple[bytes, Mapping[str, bytes]], ...] = ()

    def add(self, head: bytes, metadata: Mapping[str, bytes]) -> None:
        """Keep one more; threads that do so at once may lose each other's."""
        if len(head) <= self._MAX_BYTES:
            self.all = ((head, metadata), *self.all[: self._MAX_COUNT - 1])


_RECENT_HEADS = _Heads()


def read_header(data: bytes, location: str) -> AvroHeader:
    """Parse the head of an Avro container file.

    Raises:
        InvalidTableError: the bytes do not begin with a whole Avro header.
    """
    for head, known in _RECENT_HEADS.all:
        if data.startswith(head) and len(data) >= len(head) + SYNC_BYTES:
            return AvroHeader(known, data[len(head) : len(head) + SYNC_BYTES], len(head) + SYNC_BYTES)
    try:
        if data[:4] != MAGIC:
            raise ValueError("it does not begin with Avro's magic bytes")
        metadata: dict[str, bytes] = {}
        position = 4
        while (count := (read := read_long(data, position))[0]) != 0:
            position = read[1]
            if count < 0:
                position = read_long(data, position)[1]
            for _ in range(abs(count)):
                key, position = _read_bytes(data, position)
                value, position = _read_bytes(data, position)
                metadata[key.decode()] = value
        position = read[1]
        sync = data[position : position + SYNC_BYTES]
        if len(sync) < SYNC_BYTES or "avro.schema" not in metadata:
            raise ValueError("its header is cut short")
        header = AvroHeader(metadata, sync, position + SYNC_BYTES)
        _plain(metadata["avro.schema"])
    except (ValueError, IndexError, RecursionError) as error:
        raise InvalidTableError(f"cannot read Avro file {location!r}: {error}", location=location) from error
    _RECENT_HEADS.add(data[:position], metadata)
    return header


def write_header(metadata: Mapping[str, bytes], sync: bytes) -> bytes:
    """The head of an Avro container file with this metadata and sync marker."""
    out = bytearray(MAGIC)
    out += encode_long(len(metadata))
    for key, value in metadata.items():
        out += encode_long(len(key.encode())) + key.encode() + encode_long(len(value)) + value
    out += b"\0" + sync
    return bytes(out)


def read_records(data: bytes, header: AvroHeader, location: str) -> Iterator[dict[str, Any]]:
    """Decode every record of a container file, logical types left in their plain form.

    Raises:
        InvalidTableError: a block is damaged, or the file does not end on its sync marker (it was cut short).
    """
    if not data.endswith(header.sync):
        raise InvalidTableError(
            f"Avro file {location!r} does not end on its sync marker: it was cut short", location=location
        )
    try:
        for value in header.metadata.values():
            value.decode()  # All that writers put there is text; other bytes are damage.
        schema = _parsed(header.metadata["avro.schema"])
        for count, payload in read_blocks(data, header):
            block = io.BytesIO(payload)
            for _ in range(count):
                yield fastavro.schemaless_reader(block, schema, None)
            # A block that counts fewer records than it holds would lose the others in silence.
            if block.read(1):
                raise ValueError(f"a block has more than the {count} records that it counts")
    # fastavro and its codecs have no common error: whatever they raise, the file is not what it must be.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidTableError(f"cannot read Avro file {location!r}: {reason}", location=location) from error


def read_blocks(
    data: bytes, header: AvroHeader, new_inflater: Callable[..., Any] = zlib.decompressobj
) -> Iterator[tuple[int, bytes]]:
    """The blocks of an Avro container file: how many records each counts, and its bytes, unpacked.

    Args:
        data: the whole file.
        header: of the file, from `read_header`.
        new_inflater: makes what undoes deflate, for files of that codec; called as `zlib.decompressobj` is.

    Raises:
        Exception: of any kind, for fastavro and its codecs have no common one: the file is not what it must be.
    """
    body = memoryview(data)[header.length_bytes :]
    if header.codec == "deflate":  # undone here, where it can be bounded; others are left to fastavro
        yield from _inflated(body, header.sync, new_inflater)
        return
    head = write_header({**header.metadata, "avro.schema": b'"null"', "avro.codec": header.codec.encode()}, header.sync)
    for block in fastavro.block_reader(io.BytesIO(b"".join((head, body)))):
        if block.num_records < 0:
            raise ValueError(f"a block counts {block.num_records} records")
        yield block.num_records, block.bytes_.read()


def _inflated(body: memoryview, sync: bytes, new_inflater: Callable[..., Any]) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(body):
        count, position = read_long(body, position)
        length, position = read_long(body, position)
        end = position + length
        if count < 0 or length < 0 or body[end : end + SYNC_BYTES] != sync:
            raise ValueError("a block does not end on the sync marker")
        inflater = new_inflater(wbits=-15)
        payload = inflater.decompress(body[position:end], _MAX_BLOCK_BYTES)
        if inflater.unconsumed_tail:
            raise ValueError(f"a block unpacks to more than {_MAX_BLOCK_BYTES} bytes")
        if not inflater.eof:
            raise ValueError("a block is packed data that was cut short")
        yield count, payload
        position = end + SYNC_BYTES


def sync_marker(seed: bytes) -> bytes:
    """A sync marker that depends on what it marks: no randomness is needed, and equal input gives an equal file."""
    return blake2b(seed, digest_size=SYNC_BYTES).digest()


def avro_schema(struct: StructType, name: str) -> dict[str, Any]:
    """The Avro record schema of a struct, with field ids; `name` is the record's name."""
    return _record(struct, name, set())


def min_decimal_bytes(precision: int) -> int:
    """The fewest bytes that hold every unscaled value of a decimal precision."""
    return ((10**precision - 1).bit_length() + 8) // 8


def to_avro(type_: Type) -> Callable[[Any], Any]:
    """How a non-null value of a primitive type is given to Avro; most go as they are."""
    if isinstance(type_, DecimalType):
        size, scale = min_decimal_bytes(type_.precision), type_.scale
        return lambda value: unscaled(value, scale).to_bytes(size, "big", signed=True)
    if str(type_) == "uuid":
        return lambda value: value.bytes
    if type_ == OPAQUE:
        return shown_text
    return lambda value: value


def shown_text(value: Any) -> str:
    """A value of a type that is not known, or that is not the one it should be of, as text."""
    return value if isinstance(value, str) else repr(value)


def from_avro(type_: Type) -> Callable[[Any], Any]:
    """How a non-null value that was read without logical types becomes one of a primitive type.

    What is returned raises `ValueError` for a value that is stored as something else. Text is not checked, nor is what an
    unknown transform makes, which is whatever its writer stored.
    """
    if isinstance(type_, DecimalType):
        scale = type_.scale
        return lambda raw: decimal_from_unscaled(int.from_bytes(_bytes(raw), "big", signed=True), scale)
    if str(type_) == "uuid":
        return lambda raw: UUID(bytes=_bytes(raw))
    if str(type_) in ("string", "opaque"):
        return lambda raw: raw
    expected = _PYTHON_TYPES.get(type_.name, int) if isinstance(type_, PrimitiveType) else object

    def plain(raw: Any) -> Any:
        fits = type(raw) is expected
        if not fits or (isinstance(type_, FixedType) and len(raw) != type_.length):
            raise ValueError(f"a value of type {type_} is stored as {raw!r}")
        return raw

    return plain


def legal_name(name: str) -> str:
    """A field name that Avro allows: other characters become `_x` and their code in hex, a leading digit gets `_`."""
    if _LEGAL_NAME.fullmatch(name):
        return name
    out = []
    for position, char in enumerate(name):
        if re.fullmatch(r"[A-Za-z_]", char) or (position and re.fullmatch(r"[0-9]", char)):
            out.append(char)
        elif char.isascii() and char.isdigit():
            out.append("_" + char)
        else:
            out.append(f"_x{ord(char):X}")
    return "".join(out)


def avro_names(fields: Sequence[NestedField]) -> list[str]:
    """The names of a struct's fields in Avro: legal, and different where two names become the same one."""
    names: list[str] = []
    for field in fields:
        name = legal_name(field.name)
        while name in names:
            name = f"{name}_{field.field_id}"
        names.append(name)
    return names


def _bytes(raw: Any) -> bytes:
    if not isinstance(raw, bytes):
        raise ValueError(f"{raw!r} is stored where bytes must be")
    return raw


def _record(struct: StructType, name: str, named: set[str]) -> dict[str, Any]:
    names = avro_names(struct.fields)
    fields = [_avro_field(field, name, named) for field, name in zip(struct.fields, names, strict=True)]
    return {"type": "record", "name": name, "fields": fields}


def _avro_field(field: NestedField, name: str, named: set[str]) -> dict[str, Any]:
    schema = _avro_type(field.type, field.field_id, named)
    out: dict[str, Any] = {"name": name, "type": schema, "field-id": field.field_id}
    if name != field.name:
        out["iceberg-field-name"] = field.name
    if not field.required:
        out["type"], out["default"] = ["null", schema], None
    return out


def _avro_type(type_: Type, field_id: int, named: set[str]) -> Any:
    match type_:
        case StructType():
            return _record(type_, f"r{field_id}", named)
        case ListType():
            element = _avro_type(type_.element, type_.element_id, named)
            items = element if type_.element_required else ["null", element]
            return {"type": "array", "items": items, "element-id": type_.element_id}
        case MapType():
            pair = StructType(child_fields(type_))
            items = _record(pair, f"k{type_.key_id}_v{type_.value_id}", named)
            return {"type": "array", "logicalType": "map", "items": items}
        case DecimalType(precision=precision, scale=scale):
            decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
            name = _new_name(f"decimal_{precision}_{scale}", field_id, named)
            return {"type": "fixed", "name": name, "size": min_decimal_bytes(precision), **decimal}
        case FixedType(length=length):
            return {"type": "fixed", "name": _new_name(f"fixed_{length}", field_id, named), "size": length}
        case PrimitiveType(name="uuid"):
            name = _new_name("uuid_fixed", field_id, named)
            return {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}
        case PrimitiveType(name=name) if name in _SIMPLE:
            return _SIMPLE[name]
    raise UnsupportedError(f"type {type_} cannot be stored in Avro here")


def _new_name(name: str, field_id: int, named: set[str]) -> str:
    """Avro allows one definition of a name; a second type is named anew, as not every reader resolves references."""
    if name in named:
        name = f"{name}_{field_id}"
    named.add(name)
    return name


def without_logical_types(schema: Any) -> Any:
    """The same Avro schema read and written as plain values (days, microseconds, bytes).

    A fixed type that is defined a second time under its name, as some writers do, gets a name of its own.
    """
    return _without_logical_types(schema, set())


def _without_logical_types(schema: Any, named: set[str]) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(item, named) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _without_logical_types(item, named) for key, item in schema.items() if key != "logicalType"}
    if plain.get("type") == "fixed" and isinstance(name := plain.get("name"), str):
        while name in named:
            name = f"{name}_"
        named.add(name)
        plain["name"] = name
    return plain


def encode_long(number: int) -> bytes:
    """A number as Avro writes it."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number & ~0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_long(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it; raises `IndexError` or `ValueError` where there is none."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a number in its header is too long")


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_long(data, position)
    if not 0 <= length <= _MAX_HEADER_BYTES or position + length > len(data):
        raise ValueError("its header is cut short")
    return data[position : position + length], position + length


Packer: TypeAlias = Callable[[bytes], bytes]
"""Packs the payload of a block."""

AVRO_CODECS = {"gzip": "deflate", "snappy": "snappy", "zstd": "zstandard", "uncompressed": "null"}
"""Avro's names of codecs by those that table properties have."""

LEVELS = {"deflate": range(-1, 10), "zstandard": range(-131072, 23)}
"""The levels of those of Avro's codecs that have levels."""


def encode_block(payload: bytes, count: int, codec: str, sync: bytes, pack: Packer | None = None) -> bytes:
    """One Avro block of so many encoded records; `pack` is what packs them if not `packer(codec)`."""
    packed = (packer(codec) if pack is None else pack)(payload)
    return encode_long(count) + encode_long(len(packed)) + packed + sync


def packer(codec: str, level: int | None = None) -> Packer:
    """What packs the payload of a block: Avro's codecs `null`, `deflate`, `snappy` and `zstandard`.

    Args:
        codec: Avro's name.
        level: how hard to try, for those that have levels; null: 6 of deflate, 1 of zstandard.

    Raises:
        UnsupportedError: there is no such codec, or it has no such level.
    """
    if codec not in AVRO_CODECS.values():
        raise UnsupportedError(f"Avro codec {codec!r} cannot be written; use one of {', '.join(AVRO_CODECS.values())}")
    allowed = LEVELS.get(codec)
    if level is not None and allowed is not None and level not in allowed:
        raise UnsupportedError(
            f"Avro codec {codec!r} has no level {level}; its levels are {allowed[0]} to {allowed[-1]}"
        )
    if codec == "null":
        return bytes
    if codec == "deflate":
        return lambda payload: zlib.compress(payload, 6 if level is None else level, wbits=-15)
    return lambda payload: _packed_by_fastavro(payload, codec, 1 if level is None else level)


def _packed_by_fastavro(payload: bytes, codec: str, level: int) -> bytes:
    """Fastavro has its codecs at hand, but packs whole files only: one of a single record that is just the payload."""
    schema = {"type": "fixed", "name": "payload", "size": len(payload)}
    out = io.BytesIO()
    given = level if codec == "zstandard" else None
    fastavro.writer(
        out, schema, [bytes(payload)], codec=codec, codec_compression_level=given, sync_marker=bytes(SYNC_BYTES)
    )
    data = out.getvalue()
    _, position = read_long(data, read_header(data, codec).length_bytes)
    length, position = read_long(data, position)
    return data[position : position + length]
