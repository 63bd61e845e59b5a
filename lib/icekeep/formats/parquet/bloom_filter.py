"""Bloom filters of Parquet column chunks (Parquet, "Parquet Bloom Filter").

A filter has the XXH64 hashes (seed 0) of values in `PLAIN` encoding, without lengths; nulls are not in it.
"""

from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError
from icekeep.formats.parquet.thrift import Damaged, Struct

Hashes = NDArray[np.uint64]

_HEADER_BYTES = 256
_BLOCK_BYTES = 32
_MAX_BYTES = 128 << 20

_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)

_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}


class BloomFilter(msgspec.Struct, frozen=True):
    """A split-block filter; `blocks` has eight words of 32 bits per row."""

    blocks: NDArray[np.uint32]

    def may_hold(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which hashes may be in the filter; false positives are possible, false negatives are not."""
        blocks = (hashes >> np.uint64(32)) * np.uint64(len(self.blocks)) >> np.uint64(32)
        keys = (hashes & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
        masks = np.uint32(1) << (keys[:, None] * _SALTS >> np.uint32(27))
        held: NDArray[np.bool_] = (self.blocks[blocks.astype(np.int64)] & masks != 0).all(axis=1)
        return held


def read_bloom_filter(stream: BinaryIO, offset: int, length: int | None) -> BloomFilter:
    """Read the filter at an offset of a file; `length` is null where the footer does not have it.

    Raises:
        Damaged: there is no filter.
        UnsupportedError: its algorithm, hash or compression is unknown.
    """
    stream.seek(offset)
    head = stream.read(_HEADER_BYTES if length is None else min(length, _HEADER_BYTES))
    header = Struct(head)
    size = header.required_integer(1).value
    for field_id in (2, 3, 4):
        kind = header.struct(field_id)
        if kind is None:
            raise Damaged(f"its header lacks field {field_id}")
        # Parquet defines one algorithm, one hash and one compression, each as number 1.
        if kind.spans.keys() != {1}:
            raise UnsupportedError(f"the header of a Bloom filter has kind {sorted(kind.spans)} in field {field_id}")
    if size <= 0 or size > _MAX_BYTES or size % _BLOCK_BYTES or (length is not None and header.end + size != length):
        raise Damaged(f"its header says that it has {size} bytes")
    stream.seek(offset + header.end)
    bits = stream.read(size)
    if len(bits) != size:
        raise Damaged("the file ends before it does")
    return BloomFilter(np.frombuffer(bits, "<u4").reshape(-1, 8))


def hashes_of(values: pa.Array, physical_type: str, width: int) -> Hashes:
    """The hashes of an array's distinct values, without nulls; raises `UnsupportedError` if their encoding is not known.

    Args:
        physical_type: of the column, by pyarrow's name.
        width: of its values, if they have a fixed length.
    """
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    values = pc.unique(values).drop_null()
    if not len(values):
        return np.zeros(0, np.uint64)
    if physical_type == "BYTE_ARRAY":
        type_ = values.type
        if pa.types.is_decimal(type_) or pa.types.is_nested(type_) or pa.types.is_primitive(type_):
            raise _unknown(type_, physical_type)
        plain = values.cast(pa.large_binary()).to_pylist()
    else:
        rows = _rows(values, physical_type, width)
        plain = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0].tolist()
    return np.fromiter(map(xxhash.xxh64_intdigest, plain), np.uint64, len(plain))


def _rows(values: pa.Array, physical_type: str, width: int) -> NDArray[np.uint8]:
    """The bytes of values of one width, one row per value."""
    type_ = values.type
    if pa.types.is_decimal128(type_):
        words = _fixed(values, 16)
        if physical_type != "FIXED_LEN_BYTE_ARRAY":
            return words[:, : _WIDTHS[physical_type]]
        if width > 16:
            raise _unknown(type_, physical_type)
        return words[:, ::-1][:, 16 - width :]
    if physical_type == "FIXED_LEN_BYTE_ARRAY" and pa.types.is_fixed_size_binary(type_) and type_.byte_width == width:
        return _fixed(values, width)
    if physical_type == "INT32" and pa.types.is_integer(type_) and type_.bit_width < 32:
        values, type_ = values.cast(pa.int32()), pa.int32()
    is_float = pa.types.is_floating(type_)
    is_number = is_float if physical_type in ("FLOAT", "DOUBLE") else not is_float and pa.types.is_primitive(type_)
    # Parquet has no seconds: such values were stored in another unit.
    has_seconds = pa.types.is_temporal(type_) and "[s" in str(type_)
    number_width = _WIDTHS.get(physical_type)
    if number_width is None or not is_number or has_seconds or type_.bit_width != 8 * number_width:
        raise _unknown(type_, physical_type)
    return _fixed(values, number_width)


def _fixed(values: pa.Array, width: int) -> NDArray[np.uint8]:
    data = np.frombuffer(values.buffers()[1], np.uint8)
    start = values.offset * width
    return data[start : start + len(values) * width].reshape(-1, width)


def _unknown(type_: pa.DataType, physical_type: str) -> UnsupportedError:
    return UnsupportedError(f"how values of {type_} are stored as {physical_type} is not known")
