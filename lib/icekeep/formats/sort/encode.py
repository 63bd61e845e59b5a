"""The orders of rows, and values of Arrow arrays as unsigned numbers and bytes in the order of the values.

Null slots hold arbitrary bytes; use the validity bitmap.
"""

from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.sorting import SortField
from icekeep.spec.types import MAX_INT, DecimalType, FixedType, PrimitiveType
from icekeep.spec.values import INTEGER_WIDTHS

Unsigned = NDArray[Any]
"""A number for each row (one dimension), or some bytes for each row (two dimensions)."""

VARYING = ("string", "binary")
"""The types whose values vary in length."""

LARGEST_NARROW_DECIMAL = 18
"""The most digits of a decimal that fits 64 bits."""

_BLOCK_ROWS = 16_384
"""Rows that are padded at a time: few enough for the processor's cache."""


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
    for first in range(0, len(array), _BLOCK_ROWS):
        starts, stops = offsets[:-1][first : first + _BLOCK_ROWS, None], offsets[1:][first : first + _BLOCK_ROWS, None]
        block = data[np.minimum(starts + positions, len(data) - 1)]
        np.copyto(out[first : first + _BLOCK_ROWS], block, where=positions < stops - starts)
    return out


def raw_values(array: pa.Array, dtype: Any, *, count: int | None = None) -> NDArray[Any]:
    """The numbers in the first buffer after the validity bitmap, as they lie in memory; by default one for each value."""
    dtype, count = np.dtype(dtype), len(array) if count is None else count
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(count, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=array.offset * dtype.itemsize)
