"""Values of Arrow arrays as unsigned numbers and bytes that lie in the order of the values: what keys are made of.

What a null has is any value: who asks knows where nulls are.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError
from icekeep.spec.types import DecimalType, FixedType, PrimitiveType

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
