"""Arrow's arrays of primitive values as words or bytes to hash: one form for each value, however it is held."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UUID,
    DecimalType,
    FixedType,
    Type,
)
from icekeep.spec.units import DAY_SECONDS
from icekeep.spec.values import MICROS_PER_SECOND

_DAY_MICROS = DAY_SECONDS * MICROS_PER_SECOND
_NANOS_PER_MICRO = 1000
_SHORT_DIGITS, _ONE_WORD_DIGITS = 17, 18
_HIGH_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)
_NAN_SINGLE, _NAN_DOUBLE = np.uint32(0x7FC00000), np.uint64(0x7FF8000000000000)

_WHOLE: dict[Type, tuple[pa.DataType, ...]] = {
    INT: (pa.int32(), pa.int16(), pa.int8(), pa.uint16(), pa.uint8()),
    DATE: (pa.date32(),),
    LONG: (pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint32(), pa.uint16(), pa.uint8()),
    TIME: (pa.time64("us"), pa.int64()),
}
"""The Arrow types whose values are whole numbers of a type as they stand; ORC's times are plain numbers."""

_TIMESTAMPS: dict[Type, str] = {TIMESTAMP: "us", TIMESTAMPTZ: "us", TIMESTAMP_NS: "ns", TIMESTAMPTZ_NS: "ns"}


class Words:
    """Values as one word each.

    Attributes:
        low: unsigned, of 8 to 64 bits.
        high: signed, where values have more bits than that: `fold` puts both into one word.
        reaches_high_bits: whether two values may differ in the highest bits of a word alone.
    """

    def __init__(
        self, low: NDArray[Any], high: NDArray[np.int64] | None = None, *, reaches_high_bits: bool = True
    ) -> None:
        self.low, self.high, self.reaches_high_bits = low, high, reaches_high_bits

    def fold(self, start: int, stop: int, out: NDArray[np.uint64]) -> NDArray[Any]:
        """The words of some values; `out` may be used for them."""
        low = self.low[start:stop]
        if self.high is None:
            return low
        np.multiply(self.high[start:stop].view(np.uint64), _HIGH_FACTOR, out=out)
        return np.add(out, low, out=out)


def words_of(array: pa.Array, type_: Type, path: str) -> Words:
    """The values of an array as words, those of nulls being anything.

    Floating-point numbers are their bits, so the zeros differ; every NaN is the same one, as encoders of dictionaries
    take them for the same.

    Raises:
        InvalidTableError: the array does not hold values of the type.
    """
    held = array.type
    if type_ == BOOLEAN and pa.types.is_boolean(held):
        return Words(_bits(array.buffers()[1], array.offset, len(array)))
    if held in _WHOLE.get(type_, ()):
        numbers = _values(array, np.dtype(held.to_pandas_dtype()) if pa.types.is_integer(held) else _by_width(held))
        if type_ in (INT, DATE):
            return Words(numbers.astype(np.int32, copy=False).view(np.uint32))
        return Words(numbers.astype(np.int64, copy=False).view(np.uint64))
    if type_ == FLOAT and pa.types.is_float32(held):
        singles = _values(array, np.dtype(np.float32))
        return Words(_without_nans(singles, singles.view(np.uint32), _NAN_SINGLE))
    if type_ == DOUBLE and (pa.types.is_float64(held) or pa.types.is_float32(held)):
        doubles = _values(array, np.dtype(held.to_pandas_dtype())).astype(np.float64, copy=False)
        return Words(_without_nans(doubles, doubles.view(np.uint64), _NAN_DOUBLE))
    if isinstance(type_, DecimalType) and _is_decimal(held, type_):
        pairs = decimal_pairs(array, type_, path)
        # Of so few digits the high half is but the sign.
        high = pairs[:, 1] if type_.precision > _ONE_WORD_DIGITS else None
        return Words(pairs[:, 0].view(np.uint64), high, reaches_high_bits=type_.precision > _SHORT_DIGITS)
    if type_ in _TIMESTAMPS and (ticks := _ticks(array, type_)) is not None:
        return ticks
    raise _unfit(held, type_, path)


def decimal_pairs(array: pa.Array, type_: DecimalType, path: str) -> NDArray[np.int64]:
    """The low and the high half of each decimal, those of nulls being anything; raises `InvalidTableError` as `words_of`."""
    if not _is_decimal(array.type, type_):
        raise _unfit(array.type, type_, path)
    return _values(array.cast(pa.decimal128(type_.precision, type_.scale)), np.dtype((np.int64, 2)))


def bytes_of(array: pa.Array, type_: Type, path: str) -> tuple[NDArray[Any], NDArray[np.uint8]] | None:
    """Where each value begins among the bytes, and where the last one ends, and the bytes; null for types of words.

    Raises:
        InvalidTableError: the array does not hold values of the type.
    """
    if type_ not in (STRING, BINARY, UUID) and not isinstance(type_, FixedType):
        return None
    held = array.type
    if pa.types.is_fixed_size_binary(held):
        offsets = (np.arange(len(array) + 1) + array.offset) * held.byte_width
        return offsets, _bytes(array.buffers()[1])
    if held in (pa.string_view(), pa.binary_view()):
        array = array.cast(pa.large_binary())
        held = array.type
    if held in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        _, offsets_buffer, data = array.buffers()
        if not len(array):
            return np.zeros(1, np.int64), _bytes(None)
        width = np.int64 if held in (pa.large_string(), pa.large_binary()) else np.int32
        return np.frombuffer(offsets_buffer, width)[array.offset :][: len(array) + 1], _bytes(data)
    raise _unfit(held, type_, path)


def null_mask(array: pa.Array) -> NDArray[np.bool_] | None:
    """Which values of an array are null; null where none is."""
    if not array.null_count:
        return None
    return _bits(array.buffers()[0], array.offset, len(array)) == 0


def _bits(buffer: pa.Buffer | None, offset: int, count: int) -> NDArray[np.uint8]:
    if buffer is None or not count:
        return np.zeros(count, np.uint8)
    first = offset // 8
    data = np.frombuffer(buffer, np.uint8)[first : -(-(offset + count) // 8)]
    return np.unpackbits(data, bitorder="little")[offset - 8 * first :][:count]


def _values(array: pa.Array, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """The values of an array as they lie in memory."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset :][: len(array)]


def _by_width(type_: pa.DataType) -> "np.dtype[Any]":
    return np.dtype(np.int32 if type_.bit_width == 32 else np.int64)


def _bytes(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _without_nans(numbers: NDArray[Any], bits: NDArray[Any], nan: Any) -> NDArray[Any]:
    found = np.isnan(numbers)
    return np.where(found, nan, bits) if found.any() else bits


def _is_decimal(held: pa.DataType, type_: DecimalType) -> bool:
    return bool(pa.types.is_decimal(held)) and held.scale == type_.scale and held.precision <= type_.precision


def _ticks(array: pa.Array, type_: Type) -> Words | None:
    """Timestamps in the type's unit; what nanoseconds have beyond whole microseconds is their high half."""
    held = array.type
    if pa.types.is_date32(held):
        days = _values(array, np.dtype(np.int32)).astype(np.int64)
        return Words((days * (_DAY_MICROS * (1 if _TIMESTAMPS[type_] == "us" else _NANOS_PER_MICRO))).view(np.uint64))
    if not pa.types.is_timestamp(held) or (held.tz is None) != (type_ in (TIMESTAMP, TIMESTAMP_NS)):
        return None
    ticks = _values(array, np.dtype(np.int64))
    if held.unit == _TIMESTAMPS[type_]:
        return Words(ticks.view(np.uint64))
    if held.unit != "ns":
        return None
    micros, rest = np.divmod(ticks, _NANOS_PER_MICRO)
    return Words(micros.view(np.uint64), rest)


def _unfit(held: pa.DataType, type_: Type, path: str) -> InvalidTableError:
    return InvalidTableError(f"column {path!r} holds '{held}', not '{type_}'", column=path)
