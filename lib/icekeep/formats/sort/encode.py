"""The orders of rows, and values as unsigned numbers and bytes in that order, of single columns and along space-filling curves.

Null slots hold arbitrary bytes; use the validity bitmap. A curve makes one key of several columns that brings together rows that
are near each other in each of them. A column contributes the same number of bytes to each row, in the order of its values.
Z-order interleaves the bits of all columns; Hilbert's curve rotates them first, so that one step along it is one step in one
column. The values are those of Iceberg's Java library (`ZOrderByteUtils`, `HilbertByteUtils`), but for strings whose last
character is cut: they keep its first bytes, for the order.
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
from icekeep.spec.values import INTEGER_WIDTHS

Unsigned = NDArray[Any]
"""A number for each row (one dimension), or some bytes for each row (two dimensions)."""

VARYING = ("string", "binary")
"""The types whose values vary in length."""

LARGEST_NARROW_DECIMAL = 18
"""The most digits of a decimal that fits 64 bits."""

BLOCK_ROWS = 16_384
"""Rows that are processed at a time: few enough for the processor's cache."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A space-filling curve: rows that are near each other on it are near each other in each of its columns.

    Attributes:
        kind: `zorder` interleaves the columns' bits, `hilbert` never jumps.
        column_ids: field ids, at least one.
        var_length_contribution: bytes of a string or binary column (option `var-length-contribution`).
        max_output_bytes: of a z-value (option `max-output-size`).
    """

    kind: Literal["zorder", "hilbert"]
    column_ids: tuple[int, ...]
    var_length_contribution: int = 8
    max_output_bytes: int = MAX_INT


class Ordering(msgspec.Struct, frozen=True, kw_only=True):
    """The order of rows: partitions of `partition_by` one after the other, within one by `fields` or along `curve`.

    Attributes:
        partition_by: null where all rows are of one partition.
        fields: those of a sort order, whose columns are in the schema that is written.
        curve: in place of `fields`.
    """

    partition_by: PartitionSpec | None = None
    fields: tuple[SortField, ...] = ()
    curve: Curve | None = None


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """The rows whose keys are `lower` or greater and less than `upper`; null is no limit."""

    lower: bytes | None = None
    upper: bytes | None = None


def ordered(array: pa.Array, type_: PrimitiveType) -> tuple[Unsigned, ...]:
    """The values as unsigned numbers of the type's width, the high word first where there are two.

    Raises `UnsupportedError` for types without an order.
    """
    if (width := INTEGER_WIDTHS.get(type_.name)) is not None:
        return (without_sign(raw_values(array, f"i{width}")),)
    if type_.name in ("float", "double"):
        return (ordered_floats(raw_values(array, "f4" if type_.name == "float" else "f8")),)
    if isinstance(type_, DecimalType):
        high, low = decimal_words(array)
        return (without_sign(low),) if type_.precision <= LARGEST_NARROW_DECIMAL else (without_sign(high), low)
    if type_.name == "boolean":
        return (raw_values(pc.cast(array, pa.uint8()), "u1"),)
    if isinstance(type_, FixedType) or type_.name == "uuid":
        return (raw_values(array, np.dtype((np.uint8, (array.type.byte_width,)))),)
    raise UnsupportedError(f"values of type '{type_}' have no order that icekeep knows")


def ordered_floats(values: NDArray[Any]) -> Unsigned:
    """Floating-point numbers as unsigned ones, in the order of the spec's "Sorting": -0 before 0, NaN last.

    All NaNs are one, as they are one partition and as Java compares them.
    """
    size = values.dtype.itemsize
    unsigned = np.dtype(f"u{size}")
    values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    negative = (values.view(f"i{size}") >> (8 * size - 1)).view(unsigned)
    return values.view(unsigned) ^ (negative | unsigned.type(1 << (8 * size - 1)))


def without_sign(numbers: NDArray[Any]) -> Unsigned:
    """Numbers with the sign bit flipped, as unsigned ones."""
    unsigned = np.dtype(f"u{numbers.dtype.itemsize}")
    return numbers.view(unsigned) ^ unsigned.type(1 << (8 * unsigned.itemsize - 1))


def decimal_words(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The upper and the lower 64 bits of decimals."""
    words = raw_values(array, np.dtype((np.uint64, (2,))))
    return np.ascontiguousarray(words[:, 1]).view(np.int64), np.ascontiguousarray(words[:, 0])


def null_rows(array: pa.Array) -> NDArray[np.bool_] | None:
    """Which values are null; `None` where none is."""
    return pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None


def leading_bytes(array: pa.Array, length: int) -> NDArray[np.uint8]:
    """The first `length` bytes of each string or binary value, padded with zeros; null is all zeros."""
    array = array.cast(pa.large_binary())
    if array.null_count:
        array = pc.fill_null(array, b"")
    offsets = raw_values(array, "i8", count=len(array) + 1)
    data = np.frombuffer(array.buffers()[2] or bytes(1), dtype=np.uint8)
    out = np.zeros((len(array), length), dtype=np.uint8)
    positions = np.arange(length)
    for first in range(0, len(array), BLOCK_ROWS):
        starts, stops = offsets[:-1][first : first + BLOCK_ROWS, None], offsets[1:][first : first + BLOCK_ROWS, None]
        block = data[np.minimum(starts + positions, len(data) - 1)]
        np.copyto(out[first : first + BLOCK_ROWS], block, where=positions < stops - starts)
    return out


def raw_values(array: pa.Array, dtype: Any, *, count: int | None = None) -> NDArray[Any]:
    """The numbers in the first buffer after the validity bitmap, as they lie in memory; by default one for each value."""
    dtype, count = np.dtype(dtype), len(array) if count is None else count
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(count, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=array.offset * dtype.itemsize)


PRIMITIVE_BYTES = 8
"""What a column contributes whose values have a fixed length, and each column of a Hilbert curve."""

_TRUE = 0x81
"""Java's byte for true: -127."""

_NARROW_BITS, _NARROW = 32, np.uint64((1 << 32) - 1)
"""Numbers of 32 bits take half the time."""

_WIDEST_TABLE = 8
"""The most columns whose interleaved bytes fit 64 bits."""


def curve_bytes(array: pa.Array, type_: PrimitiveType, curve: Curve) -> NDArray[np.uint8]:
    """The bytes that each value of a column contributes to the curve, in the order of the values.

    Whole numbers and times are widened to eight bytes, floating-point numbers to double precision; strings, binary and fixed
    values contribute their first bytes, UUIDs their first eight. Decimals, which Java refuses, contribute their unscaled value,
    or the nearest that fits eight bytes. The caller zeroes the bytes of nulls. Raises `UnsupportedError` for other types.

    `array` is no extension array and no dictionary.
    """
    if type_ == UNKNOWN:
        return np.zeros((len(array), PRIMITIVE_BYTES), dtype=np.uint8)
    if type_.name in VARYING or isinstance(type_, FixedType):
        is_hilbert = curve.kind == "hilbert"
        return leading_bytes(array, PRIMITIVE_BYTES if is_hilbert else curve.var_length_contribution)
    if type_.name == "uuid":
        return leading_bytes(array, PRIMITIVE_BYTES)
    if (width := INTEGER_WIDTHS.get(type_.name)) is not None:
        words = without_sign(raw_values(array, f"i{width}").astype(np.int64))
    elif isinstance(type_, DecimalType):
        high, low = decimal_words(array)
        narrow = low.view(np.int64)
        nearest = np.where(high < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
        words = without_sign(np.where(high == narrow >> 63, narrow, nearest))
    elif type_.name == "float":
        words = ordered_floats(array.to_numpy(zero_copy_only=False).astype(np.float64))
    elif type_.name in ("double", "boolean"):
        (words,) = ordered(array, type_)
        words = words if type_.name == "double" else words * np.uint64(_TRUE << 56)
    else:
        raise UnsupportedError(f"columns of type '{type_}' cannot be on a curve")
    return _as_bytes(words)


def _as_bytes(words: NDArray[Any]) -> NDArray[np.uint8]:
    return words.astype(">u8").view(np.uint8).reshape(len(words), 8)


def curve_values(columns: Sequence[NDArray[np.uint8]], curve: Curve) -> NDArray[np.uint8]:
    """The places of rows on the curve as bytes in its order, from the `curve_bytes` of each column."""
    if curve.kind == "zorder":
        return interleaved(columns, curve.max_output_bytes)
    axes = [np.ascontiguousarray(column).view(">u8").astype(np.uint64)[:, 0] for column in columns]
    return interleaved([_as_bytes(axis) for axis in hilbert_axes(axes)], PRIMITIVE_BYTES * len(axes))


def interleaved(columns: Sequence[NDArray[np.uint8]], max_bytes: int) -> NDArray[np.uint8]:
    """The bits of columns in turn, from the most significant on; a column whose bytes are used up is skipped.

    The columns may have different numbers of bytes; a result has at most `max_bytes`.
    """
    row_count = len(columns[0])
    width = min(sum(column.shape[1] for column in columns), max_bytes)
    out = np.empty((row_count, width), dtype=np.uint8)
    for first in range(0, row_count, BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        _interleave([column[rows] for column in columns], out[rows])
    return out


def hilbert_axes(axes: Sequence[NDArray[np.uint64]], bits: int = 64) -> list[NDArray[np.uint64]]:
    """Turn coordinates of `bits` bits so that their interleaved bits count along Hilbert's curve.

    J. Skilling, "Programming the Hilbert curve" (2004), for all rows at once.
    """
    out = [np.empty_like(axis) for axis in axes]
    for first in range(0, len(axes[0]), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        for whole, part in zip(out, _turned([axis[rows] for axis in axes], bits), strict=True):
            whole[rows] = part
    return out


def _interleave(columns: Sequence[NDArray[np.uint8]], out: NDArray[np.uint8]) -> None:
    varying = [_varying_positions(column) for column in columns]
    start, position = 0, 0
    while start < out.shape[1]:
        numbers = [number for number, column in enumerate(columns) if column.shape[1] > position]
        # Two bytes at a time where those of all columns fit one number.
        step = 2 if len(numbers) <= _WIDEST_TABLE // 2 else 1
        if any(columns[number].shape[1] < position + step for number in numbers):
            step = 1
        # Bytes that are the same in all rows, as the first ones of small numbers, are set for all at once.
        varies = any(any(varying[number][position : position + step]) for number in numbers)
        sources = [columns[number][: None if varies else 1, position : position + step] for number in numbers]
        taken = min(step * len(numbers), out.shape[1] - start)
        out[:, start : start + taken] = _interleaved_bytes(sources, step)[:, :taken]
        start, position = start + taken, position + step


def _varying_positions(column: NDArray[np.uint8]) -> Sequence[int]:
    """For each byte position zero where all rows have the same byte, as far as that is cheap to find out."""
    if column.shape[1] != PRIMITIVE_BYTES:
        return [1] * column.shape[1]
    words = np.ascontiguousarray(column).view("<u8")[:, 0]
    return int(np.bitwise_or.reduce(words) ^ np.bitwise_and.reduce(words)).to_bytes(PRIMITIVE_BYTES, "little")


def _interleaved_bytes(sources: Sequence[NDArray[np.uint8]], step: int) -> NDArray[np.uint8]:
    """One or two bytes of each column (`step`), with the bits in turn."""
    count = len(sources)
    if count > _WIDEST_TABLE:
        bits = np.unpackbits(np.stack(sources, axis=1), axis=2)
        return np.packbits(bits.transpose(0, 2, 1).reshape(len(bits), -1), axis=1)
    spread = _spread_numbers(count, step)
    mixed = np.zeros(len(sources[0]), dtype=np.uint64)
    for source in sources:
        numbers = source[:, 0].astype(np.intp)
        if step == 2:
            numbers = numbers << 8 | source[:, 1]
        mixed <<= np.uint64(1)
        mixed |= spread[numbers]
    return _as_bytes(mixed)[:, 8 - step * count :]


@cache
def _spread_numbers(stride: int, step: int) -> NDArray[np.uint64]:
    """Every number of one or two bytes with its bits spread `stride` bits apart."""
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
    """In place, for each bit from `top` down: invert or swap the bits below it."""
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
    """Copies of the coordinates with the leading bits done that are equal in all rows, and the next bit to do.

    Such a bit has the same effect on all rows: it inverts the lower bits of the first coordinate, or swaps them with another's.
    So one row shows which coordinate's lower bits end up where, and whether they are inverted; the others follow at once.
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
