"""The 64-bit xxHash of many values at once, with seed 0: what Bloom filters of Parquet take (xxHash, "XXH64 algorithm").

Bloom filters of Parquet column chunks: read, and asked for values (Parquet, "Parquet Bloom Filter").

A filter is made of the bytes of values as `PLAIN` encoding has them, without lengths; nulls are not in it.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError
from icekeep.formats.parquet.footer import Damaged, Struct

Hashes = NDArray[np.uint64]
Rows = NDArray[np.uint8]
"""Values of one length, a row of bytes each."""

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE, _LANE, _HALF = 32, 8, 4


def hash_rows(rows: Rows) -> Hashes:
    """The hash of each row."""
    count, length = rows.shape
    if length >= _STRIPE:
        hashes, position = _striped(rows), length - length % _STRIPE
    else:
        hashes, position = np.full(count, _P5, np.uint64), 0
    hashes = hashes + np.uint64(length)
    while position + _LANE <= length:
        lane = _numbers(rows, position, np.dtype("<u8"))
        hashes = _rotated(hashes ^ _round(np.zeros(count, np.uint64), lane), 27) * _P1 + _P4
        position += _LANE
    if position + _HALF <= length:
        half = _numbers(rows, position, np.dtype("<u4"))
        hashes = _rotated(hashes ^ (half * _P1), 23) * _P2 + _P3
        position += _HALF
    for last in range(position, length):
        hashes = _rotated(hashes ^ (rows[:, last].astype(np.uint64) * _P5), 11) * _P1
    return _mixed(hashes)


def _striped(rows: Rows) -> Hashes:
    """What four lanes make of all whole stripes."""
    zeros = np.zeros(len(rows), np.uint64)
    lanes = [zeros + _P1 + _P2, zeros + _P2, zeros.copy(), zeros - _P1]
    for position in range(0, rows.shape[1] - _STRIPE + 1, _STRIPE):
        for number in range(len(lanes)):
            lanes[number] = _round(lanes[number], _numbers(rows, position + _LANE * number, np.dtype("<u8")))
    hashes = zeros
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        hashes = hashes + _rotated(lane, bits)
    for lane in lanes:
        hashes = (hashes ^ _round(zeros, lane)) * _P1 + _P4
    return hashes


def _numbers(rows: Rows, position: int, dtype: np.dtype[Any]) -> Hashes:
    part = np.ascontiguousarray(rows[:, position : position + dtype.itemsize])
    return part.view(dtype)[:, 0].astype(np.uint64)


def _round(lane: Hashes, number: Hashes) -> Hashes:
    return _rotated(lane + number * _P2, 31) * _P1


def _rotated(hashes: Hashes, bits: int) -> Hashes:
    return (hashes << np.uint64(bits)) | (hashes >> np.uint64(64 - bits))


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


_HEADER_BYTES = 256
_BLOCK_BYTES = 32
_MOST_BYTES = 128 << 20

_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)

_NARROW = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}


class BloomFilter(msgspec.Struct, frozen=True):
    """A split-block filter; `blocks` has eight words of 32 bits a row."""

    blocks: NDArray[np.uint32]

    def may_hold(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of some hashes are said to be there, perhaps wrongly."""
        blocks = (hashes >> np.uint64(32)) * np.uint64(len(self.blocks)) >> np.uint64(32)
        keys = (hashes & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
        masks = np.uint32(1) << (keys[:, None] * _SALTS >> np.uint32(27))
        found: NDArray[np.bool_] = (self.blocks[blocks.astype(np.int64)] & masks != 0).all(axis=1)
        return found


def read_bloom_filter(stream: BinaryIO, offset: int, length: int | None) -> BloomFilter:
    """Read the filter that begins at a byte of a file; the footer may not say how long it is.

    Raises:
        Damaged: there is no filter.
        UnsupportedError: it is of a kind, a hash or a compression that we do not know.
    """
    stream.seek(offset)
    head = stream.read(_HEADER_BYTES if length is None else min(length, _HEADER_BYTES))
    header = Struct(head)
    size = header.required_integer(1).value
    for field_id in (2, 3, 4):
        kind = header.struct(field_id)
        if kind is None:
            raise Damaged(f"its header lacks field {field_id}")
        # Of each there is one kind by now, whose number is 1.
        if kind.field_ids != {1}:
            raise UnsupportedError(
                f"the header of a Bloom filter has kind {sorted(kind.field_ids)} in field {field_id}"
            )
    if size <= 0 or size > _MOST_BYTES or size % _BLOCK_BYTES or (length is not None and header.end + size != length):
        raise Damaged(f"its header says that it has {size} bytes")
    stream.seek(offset + header.end)
    bits = stream.read(size)
    if len(bits) != size:
        raise Damaged("the file ends before it does")
    return BloomFilter(np.frombuffer(bits, "<u4").reshape(-1, 8))


def hashes_of(values: pa.Array, physical_type: str, width: int) -> Hashes:
    """The hashes of the different values of an array, without nulls, as a filter has them.

    Args:
        values: of a column chunk, as Arrow reads it.
        physical_type: of the column, as pyarrow names it.
        width: of its values, where they are of a fixed length.

    Raises:
        UnsupportedError: what is stored for such values is not known.
    """
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    values = pc.unique(values).drop_null()
    if not len(values):
        return np.zeros(0, np.uint64)
    if physical_type == "BYTE_ARRAY":
        found = [hash_rows(rows) for rows in _by_length(_bytes(values))]
        return np.concatenate(found)
    return hash_rows(_rows(values, physical_type, width))


def _rows(values: pa.Array, physical_type: str, width: int) -> Rows:
    """The bytes of values of one width."""
    type_ = values.type
    if pa.types.is_decimal128(type_):
        words = _fixed(values, 16)
        if physical_type == "FIXED_LEN_BYTE_ARRAY":
            return words[:, ::-1][:, 16 - width :] if width <= 16 else _unknown(type_, physical_type)
        return words[:, : _NARROW[physical_type]]
    if physical_type == "FIXED_LEN_BYTE_ARRAY" and pa.types.is_fixed_size_binary(type_) and type_.byte_width == width:
        return _fixed(values, width)
    wanted = _NARROW.get(physical_type)
    if physical_type == "INT32" and pa.types.is_integer(type_) and type_.bit_width < 32:
        values, type_ = values.cast(pa.int32()), pa.int32()
    is_float = pa.types.is_floating(type_)
    is_number = is_float if physical_type in ("FLOAT", "DOUBLE") else not is_float and pa.types.is_primitive(type_)
    # Seconds are no unit of Parquet's: such values were stored as others.
    seconds = pa.types.is_temporal(type_) and "[s" in str(type_)
    if wanted is None or not is_number or seconds or type_.bit_width != 8 * wanted:
        return _unknown(type_, physical_type)
    return _fixed(values, wanted)


def _unknown(type_: pa.DataType, physical_type: str) -> Any:
    raise UnsupportedError(f"how values of {type_} are stored as {physical_type} is not known")


def _bytes(values: pa.Array) -> pa.Array:
    type_ = values.type
    if pa.types.is_decimal(type_) or pa.types.is_nested(type_) or pa.types.is_primitive(type_):
        return _unknown(type_, "BYTE_ARRAY")
    return values.cast(pa.large_binary())


def _fixed(values: pa.Array, width: int) -> Rows:
    data = np.frombuffer(values.buffers()[1], np.uint8)
    start = values.offset * width
    return data[start : start + len(values) * width].reshape(-1, width)


def _by_length(values: pa.Array) -> Iterator[Rows]:
    """Values of any length, those of one length together."""
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    content = values.buffers()[2]
    data = np.frombuffer(content if content is not None else b"", np.uint8)
    lengths = np.diff(offsets)
    for length in np.unique(lengths).tolist():
        starts = offsets[:-1][lengths == length]
        yield data[starts[:, None] + np.arange(length)] if length else np.zeros((len(starts), 0), np.uint8)
