"""Blocks of Avro files, packed by the codecs that they may have (Avro 1.12 specification, "Required Codecs")."""

import io
import zlib
from collections.abc import Callable
from typing import TypeAlias

import fastavro

from icekeep.errors import UnsupportedError
from icekeep.spec.avro import SYNC_BYTES, encode_long, read_header, read_long

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
