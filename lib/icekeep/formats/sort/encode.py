"""Values of Arrow arrays as unsigned numbers and bytes that lie in the order of the values: what keys are made of.

What a null has is any value: who asks knows where nulls are.

How the rows of new files are ordered: by a sort order, or along a curve through several columns.

Space-filling curves: one key of several columns, by which rows that are near in each of them come to lie together.

Every column gives a row the same number of bytes, in the order of its values. Z-order takes the bits of all columns in
turn; Hilbert's curve turns them first, so that one step along it is one step in one column. The values are those of
Iceberg's Java library (`ZOrderByteUtils`, `HilbertByteUtils`), but for strings whose last character is cut: they keep
its first bytes, for the order.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.sorting import SortField
from icekeep.spec.types import MAX_INT, UNKNOWN, DecimalType, FixedType, PrimitiveType

Unsigned = NDArray[Any]
"""One unsigned number a row (one dimension), or one row of bytes a row (two dimensions)."""

_WHOLE: dict[str, Any] = {
    "int": np.int32,
    "date": np.int32,
    **dict.fromkeys(("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), np.int64),
}
_FLOATS: dict[str, Any] = {"float": np.float32, "double": np.float64}

LARGEST_NARROW_DECIMAL = 18
"""Decimals of up to so many digits are numbers of 64 bits."""


def is_whole(type_: PrimitiveType) -> bool:
    """Whether values are whole numbers underneath: integers, dates, times."""
    return type_.name in _WHOLE


def is_varying(type_: PrimitiveType) -> bool:
    """Whether values are of any length."""
    return type_.name in ("string", "binary")


def whole_numbers(array: pa.Array, type_: PrimitiveType) -> NDArray[Any]:
    """The signed numbers of integers, of dates (days) and of times in the unit of their type."""
    return _raw(array, _WHOLE[type_.name])


def ordered(array: pa.Array, type_: PrimitiveType) -> tuple[Unsigned, ...]:
    """The values as unsigned numbers of the type's width, the most significant first where there are two.

    Floating-point numbers are in the order that the spec's "Sorting" gives: -0 before 0, NaN last. All NaNs are one, as
    they are one partition and as Java compares them.

    Raises:
        UnsupportedError: values of the type have no order.
    """
    if type_.name in _WHOLE:
        return (_without_sign(whole_numbers(array, type_)),)
    if type_.name in _FLOATS:
        return (ordered_floats(_raw(array, _FLOATS[type_.name])),)
    if isinstance(type_, DecimalType):
        high, low = _decimal_words(array)
        return (_without_sign(low),) if type_.precision <= LARGEST_NARROW_DECIMAL else (_without_sign(high), low)
    if type_.name == "boolean":
        return (_raw(pc.cast(array, pa.uint8()), np.uint8),)
    if isinstance(type_, FixedType) or type_.name == "uuid":
        return (_byte_rows(array),)
    raise UnsupportedError(f"values of type '{type_}' have no order that icekeep knows")


def ordered_floats(values: NDArray[Any]) -> Unsigned:
    """Floating-point numbers as unsigned ones of their width and order."""
    bits = values.dtype.itemsize * 8
    unsigned = np.dtype(f"u{values.dtype.itemsize}")
    values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    negative = (values.view(f"i{values.dtype.itemsize}") >> (bits - 1)).view(unsigned)
    return values.view(unsigned) ^ (negative | unsigned.type(1 << (bits - 1)))


def clamped_decimals(array: pa.Array) -> NDArray[np.int64]:
    """The unscaled values of decimals, those beyond 64 bits as the least or greatest number of 64 bits."""
    high, low = _decimal_words(array)
    low_signed = low.view(np.int64)
    fits = high == low_signed >> 63
    return np.where(fits, low_signed, np.where(high < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max))


def null_rows(array: pa.Array) -> NDArray[np.bool_] | None:
    """Which values are null; null where none is."""
    if not array.null_count:
        return None
    return pc.is_null(array).to_numpy(zero_copy_only=False)


def leading_bytes(array: pa.Array, length: int) -> NDArray[np.uint8]:
    """The first bytes of strings or binary values, rows of `length` bytes that are padded with zeros; null is zeros."""
    array = pc.fill_null(array.cast(pa.large_binary()), b"")
    offsets = _raw_buffer(array, 1, np.int64, len(array) + 1)
    data = np.frombuffer(array.buffers()[2] or b"", dtype=np.uint8)
    if not len(data):
        return np.zeros((len(array), length), dtype=np.uint8)
    positions = np.arange(length)
    rows = data[np.minimum(offsets[:-1, None] + positions, len(data) - 1)]
    rows[positions >= np.diff(offsets)[:, None]] = 0
    return rows


def _without_sign(numbers: NDArray[Any]) -> Unsigned:
    """Numbers with the sign bit flipped: the least one is 0."""
    unsigned = np.dtype(f"u{numbers.dtype.itemsize}")
    return numbers.view(unsigned) ^ unsigned.type(1 << (8 * unsigned.itemsize - 1))


def _decimal_words(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    words = _raw(array, np.dtype((np.uint64, (2,))))
    return np.ascontiguousarray(words[:, 1]).view(np.int64), np.ascontiguousarray(words[:, 0])


def _byte_rows(array: pa.Array) -> NDArray[np.uint8]:
    return _raw(array, np.dtype((np.uint8, (array.type.byte_width,))))


def _raw(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """The values as they lie in memory, whatever a null has."""
    return _raw_buffer(array, 1, np.dtype(dtype), len(array))


def _raw_buffer(array: pa.Array, number: int, dtype: Any, count: int) -> NDArray[Any]:
    buffer = array.buffers()[number]
    dtype = np.dtype(dtype)
    if buffer is None:
        return np.zeros(count, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=array.offset * dtype.itemsize)


CurveKind = Literal["zorder", "hilbert"]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A space-filling curve: rows that are near each other on it are near each other in every one of its columns.

    Attributes:
        kind: `zorder` interleaves the columns' bits, `hilbert` never jumps.
        column_ids: field ids of its columns, one at least.
        var_length_contribution: the bytes that a string or binary column gives (option `var-length-contribution`).
        max_output_bytes: the most bytes of a z-value (option `max-output-size`).
    """

    kind: CurveKind
    column_ids: tuple[int, ...]
    var_length_contribution: int = 8
    max_output_bytes: int = MAX_INT


class Ordering(msgspec.Struct, frozen=True, kw_only=True):
    """The order of rows: partitions of `partition_by` one after the other, within one by `fields` or along `curve`.

    Attributes:
        partition_by: the spec by which rows shall lie together; null where all rows are of one partition.
        fields: the keys of a sort order, whose columns are of the schema that is written.
        curve: in place of `fields`.
    """

    partition_by: PartitionSpec | None = None
    fields: tuple[SortField, ...] = ()
    curve: Curve | None = None


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """The rows whose keys are `lower` or greater and less than `upper`; null is no limit."""

    lower: bytes | None = None
    upper: bytes | None = None


PRIMITIVE_BYTES = 8
"""What a column gives whose values are not of any length, and every column of a Hilbert curve."""

_TRUE = 0x81
"""Java's byte for true, which is -127 there."""

_SIGN = np.uint64(1 << 63)

_CHUNK_ROWS = 16_384
"""Rows that are worked on at a time: their numbers stay in the processor's cache."""

_NARROW_BITS, _NARROW = 32, np.uint64((1 << 32) - 1)
"""Bits of numbers that are worked on in half the time."""

_WIDEST_TABLE = 8
"""Columns whose interleaved bytes fit a number of 64 bits."""


def curve_bytes(array: pa.Array, type_: PrimitiveType, curve: Curve) -> NDArray[np.uint8]:
    """What a column gives to the curve: a row of bytes for each value, in the order of the values.

    Whole numbers and times are widened to eight bytes, floating-point numbers to double precision; strings, binary and
    fixed values give their first bytes, UUIDs their first eight. Decimals, which Java refuses, give their unscaled
    value, or the nearest that eight bytes hold. What null has is to be made zeros by the caller.

    Args:
        array: no extension array and no dictionary.

    Raises:
        UnsupportedError: columns of the type cannot be on a curve.
    """
    length = curve.var_length_contribution if curve.kind == "zorder" else PRIMITIVE_BYTES
    if type_ == UNKNOWN:
        return np.zeros((len(array), PRIMITIVE_BYTES), dtype=np.uint8)
    if is_varying(type_) or isinstance(type_, FixedType):
        return leading_bytes(array, length)
    if type_.name == "uuid":
        return leading_bytes(array, PRIMITIVE_BYTES)
    words = _ordered_words(array, type_).astype(">u8")
    return words.view(np.uint8).reshape(len(array), PRIMITIVE_BYTES)


def curve_values(columns: Sequence[NDArray[np.uint8]], curve: Curve) -> NDArray[np.uint8]:
    """The places of rows on the curve, as rows of bytes in the curve's order.

    Args:
        columns: of each column of the curve what `curve_bytes` gives.
    """
    if curve.kind == "zorder":
        return interleaved(columns, curve.max_output_bytes)
    axes = [np.ascontiguousarray(column).view(">u8").astype(np.uint64)[:, 0] for column in columns]
    turned = [axis.astype(">u8").view(np.uint8).reshape(-1, PRIMITIVE_BYTES) for axis in hilbert_axes(axes)]
    return interleaved(turned, PRIMITIVE_BYTES * len(turned))


def interleaved(columns: Sequence[NDArray[np.uint8]], max_bytes: int) -> NDArray[np.uint8]:
    """The bits of columns in turn, from the most significant on; a column whose bytes are used up is passed over.

    Args:
        columns: a row of bytes for each row; each column has rows of a length of its own.
        max_bytes: the most bytes of a row that comes back.
    """
    row_count = len(columns[0])
    width = min(sum(column.shape[1] for column in columns), max_bytes)
    out = np.empty((row_count, width), dtype=np.uint8)
    for first in range(0, row_count, _CHUNK_ROWS):
        rows = slice(first, first + _CHUNK_ROWS)
        _interleave([column[rows] for column in columns], out[rows])
    return out


def hilbert_axes(axes: Sequence[NDArray[np.uint64]], bits: int = 64) -> list[NDArray[np.uint64]]:
    """Turn coordinates so that their interleaved bits count along Hilbert's curve.

    J. Skilling, "Programming the Hilbert curve" (2004), for all rows at once.

    Args:
        axes: a coordinate of every row each.
        bits: of a coordinate.
    """
    chunks: list[list[NDArray[np.uint64]]] = []
    for first in range(0, len(axes[0]), _CHUNK_ROWS):
        chunks.append(_turned([axis[first : first + _CHUNK_ROWS] for axis in axes], bits))
    if not chunks:
        return [axis.copy() for axis in axes]
    return [np.concatenate(parts) for parts in zip(*chunks, strict=True)]


def _ordered_words(array: pa.Array, type_: PrimitiveType) -> Unsigned:
    if is_whole(type_):
        return whole_numbers(array, type_).astype(np.int64).view(np.uint64) ^ _SIGN
    if type_.name == "float":
        return ordered_floats(array.to_numpy(zero_copy_only=False).astype(np.float64))
    if isinstance(type_, DecimalType):
        return clamped_decimals(array).view(np.uint64) ^ _SIGN
    if type_.name in ("double", "boolean"):
        (numbers,) = ordered(array, type_)
        return numbers if type_.name == "double" else numbers * np.uint64(_TRUE << 56)
    raise UnsupportedError(f"columns of type '{type_}' cannot be on a curve")


def _interleave(columns: Sequence[NDArray[np.uint8]], out: NDArray[np.uint8]) -> None:
    varying = [_varying_positions(column) for column in columns]
    start, position = 0, 0
    while start < out.shape[1]:
        numbers = [number for number, column in enumerate(columns) if column.shape[1] > position]
        # Two bytes at a time where as many of all columns fit one number.
        step = 2 if len(numbers) <= _WIDEST_TABLE // 2 else 1
        if any(columns[number].shape[1] < position + step for number in numbers):
            step = 1
        # Bytes that are the same in all rows, as the first ones of small numbers, are put in place for all at once.
        varies = any(any(varying[number][position : position + step]) for number in numbers)
        sources = [columns[number][: None if varies else 1, position : position + step] for number in numbers]
        taken = min(step * len(numbers), out.shape[1] - start)
        out[:, start : start + taken] = _interleaved_bytes(sources, step)[:, :taken]
        start, position = start + taken, position + step


def _varying_positions(column: NDArray[np.uint8]) -> Sequence[int]:
    """For each byte of a column's rows zero where it is the same in all of them, as far as that is cheap to know."""
    if column.shape[1] != PRIMITIVE_BYTES:
        return [1] * column.shape[1]
    words = np.ascontiguousarray(column).view("<u8")[:, 0]
    return int(np.bitwise_or.reduce(words) ^ np.bitwise_and.reduce(words)).to_bytes(PRIMITIVE_BYTES, "little")


def _interleaved_bytes(sources: Sequence[NDArray[np.uint8]], step: int) -> NDArray[np.uint8]:
    """One byte of each column, or two, as so many bytes with the bits in turn."""
    count = len(sources)
    if count > _WIDEST_TABLE:
        bits = np.unpackbits(np.stack(sources, axis=1), axis=2)
        return np.packbits(bits.transpose(0, 2, 1).reshape(len(bits), -1), axis=1)
    spread = _spread_numbers(count, step)
    mixed = spread[_numbers(sources[0])]
    for source in sources[1:]:
        mixed <<= np.uint64(1)
        mixed |= spread[_numbers(source)]
    return mixed.astype(">u8").view(np.uint8).reshape(len(mixed), 8)[:, 8 - step * count :]


def _numbers(rows: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Rows of one or two bytes as numbers."""
    if rows.shape[1] == 1:
        return rows[:, 0].astype(np.intp)
    return rows[:, 0].astype(np.intp) << 8 | rows[:, 1]


@cache
def _spread_numbers(stride: int, step: int) -> NDArray[np.uint64]:
    """Of every number of one or two bytes its bits, each `stride` bits from the next."""
    spread = [sum((byte >> bit & 1) << bit * stride for bit in range(8)) for byte in range(256)]
    low = np.array(spread, dtype=np.uint64)
    if step == 1:
        return low
    return np.add.outer(low << np.uint64(8 * stride), low).ravel()


def _turned(axes: list[NDArray[np.uint64]], bits: int) -> list[NDArray[np.uint64]]:
    axes, top = _with_equal_bits_turned(axes, bits)
    if top < _NARROW_BITS:
        low = [axis.astype(np.uint32) for axis in axes]
        _turn_lower_bits(low, top)
        axes = [axis & ~_NARROW | part for axis, part in zip(axes, low, strict=True)]
    else:
        _turn_lower_bits(axes, top)
    for before, axis in pairwise(axes):
        axis ^= before
    # Each bit of the last coordinate turns over all bits below it, in all coordinates.
    turned = axes[-1] >> np.uint64(1)
    for shift in (1, 2, 4, 8, 16, 32):
        turned ^= turned >> np.uint64(shift)
    for axis in axes:
        axis ^= turned
    return axes


def _turn_lower_bits(axes: list[NDArray[Any]], top: int) -> None:
    """Do, in place, what each bit from the one of a number on asks for: turn over or swap the bits below it."""
    first, number = axes[0], axes[0].dtype.type
    for bit in range(top, 0, -1):
        below = number((1 << bit) - 1)
        for axis in axes:
            # The bits below where the coordinate has the bit, else none.
            turned = axis >> number(bit)
            turned &= number(1)
            turned *= below
            if axis is not first:
                # Where it has not, the two coordinates are swapped.
                swapped = first ^ axis
                swapped &= turned ^ below
                axis ^= swapped
                turned |= swapped
            first ^= turned


def _with_equal_bits_turned(axes: list[NDArray[np.uint64]], bits: int) -> tuple[list[NDArray[np.uint64]], int]:
    """Copies of the coordinates with the first bits done in which all rows are equal, and the next bit to do.

    What such a bit asks for, all rows do: turn over the lower bits of the first coordinate, or swap them with those of
    another one. So it is done to one row, and to the others it is known in the end which coordinate's lower bits came to
    lie where, and whether they are turned over.
    """
    varying = 0
    for axis in axes:
        varying |= int(np.bitwise_or.reduce(axis) ^ np.bitwise_and.reduce(axis))
    top = min(max(varying.bit_length() - 1, 0), bits - 1)
    sample = [int(axis[0]) for axis in axes]
    sources, inverted = list(range(len(axes))), [False] * len(axes)
    for bit in range(bits - 1, top, -1):
        below = (1 << bit) - 1
        for number in range(len(axes)):
            if sample[number] >> bit & 1:
                sample[0] ^= below
                inverted[0] = not inverted[0]
            elif number:
                swapped = (sample[0] ^ sample[number]) & below
                sample[0] ^= swapped
                sample[number] ^= swapped
                sources[0], sources[number] = sources[number], sources[0]
                inverted[0], inverted[number] = inverted[number], inverted[0]
    low = (1 << top + 1) - 1
    turned = []
    for number, source in enumerate(sources):
        axis = axes[source] & np.uint64(low)
        axis ^= np.uint64((low if inverted[number] else 0) | (sample[number] & ~low))
        turned.append(axis)
    return turned, top
