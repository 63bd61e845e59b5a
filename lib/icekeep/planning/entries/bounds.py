"""Bounds of columns decoded for many files at once: `value_from_bytes` for Arrow arrays.

The arrays have types whose order is Iceberg's: whole numbers, floats with one zero, and bytes for everything else. Decimals
are bytes too, since they have up to 38 digits: 32 of them, with the sign turned round, so that the least has all zeros.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.spec.types import STRING, DecimalType, FixedType, PrimitiveType, Type
from icekeep.spec.units import DAY_SECONDS, MAX_LONG
from icekeep.spec.values import INTEGER_WIDTHS, TICKS_PER_SECOND, value_to_bytes

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_DECIMAL_WIDTH = 32
_UUID_WIDTH = 16
_SIGN = 0x80


def decode_bounds(type_: Type, bounds: pa.BinaryArray) -> pa.Array:
    """The bounds as values that can be compared with one another and with `encode_literals`.

    Null is a bound that is unknown: it is not there, or its bytes are no value of the type, present or before promotion.
    """
    decoder = _decoder(type_)
    return pa.nulls(len(bounds), pa.binary()) if decoder is None else decoder(bounds)


def encode_literals(type_: Type, values: Sequence[Any]) -> pa.Array:
    """Values of the type as `decode_bounds` has them."""
    if type_ == STRING:
        return pa.array([value.encode("utf-8", "surrogatepass") for value in values], pa.binary())
    return decode_bounds(type_, pa.array([value_to_bytes(type_, value) for value in values], pa.binary()))


def in_java_order(uuids: pa.Array) -> pa.Array:
    """UUIDs, decoded, as bytes in the order of Java, which compares them as two signed longs."""
    fixed = pc.cast(uuids, pa.binary(_UUID_WIDTH))
    content = np.frombuffer(fixed.buffers()[1], np.uint8)[fixed.offset * _UUID_WIDTH :][: len(fixed) * _UUID_WIDTH]
    signed = content.reshape(-1, _UUID_WIDTH).copy()
    signed[:, [0, _UUID_WIDTH // 2]] ^= _SIGN
    return _from_rows(signed, np.asarray(pc.is_valid(uuids)))


_Decoder = Callable[[pa.BinaryArray], pa.Array]


def _decoder(type_: Type) -> _Decoder | None:
    match type_:
        case DecimalType():
            return _decimals
        case FixedType(length=length):
            return lambda bounds: _where(pc.less_equal(pc.binary_length(bounds), length), bounds)
        case PrimitiveType(name=name) if name in INTEGER_WIDTHS:
            return partial(_integers, name=name)
        case PrimitiveType(name=name):
            return _DECODERS.get(name)
    return None


def _integers(bounds: pa.BinaryArray, name: str) -> pa.Array:
    numbers, known = np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.bool_)
    width = INTEGER_WIDTHS[name]
    at, raw = _of_length(bounds, width)
    numbers[at], known[at] = raw.view(f"<i{width}")[:, 0], True
    if name in ("long", "timestamp", "timestamp_ns"):
        at, raw = _of_length(bounds, 4)
        before = raw.view("<i4")[:, 0].astype(np.int64)
        # A bound of four bytes was written when the column was still an int or a date.
        scale = 1 if name == "long" else DAY_SECONDS * TICKS_PER_SECOND[name]
        in_range = np.abs(before) <= MAX_LONG // scale
        numbers[at], known[at] = np.where(in_range, before, 0) * scale, in_range
    return pa.array(numbers, mask=~known)


def _floats(bounds: pa.BinaryArray, widths: Sequence[int]) -> pa.Array:
    numbers, known = np.zeros(len(bounds), np.float64), np.zeros(len(bounds), np.bool_)
    for width in widths:
        at, raw = _of_length(bounds, width)
        with np.errstate(invalid="ignore"):  # a NaN that signals is a NaN
            numbers[at], known[at] = raw.view(f"<f{width}")[:, 0], True
    return pa.array(numbers + 0.0, mask=~known)


def _booleans(bounds: pa.BinaryArray) -> pa.Array:
    numbers, known = np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.bool_)
    at, raw = _of_length(bounds, 1)
    numbers[at], known[at] = raw[:, 0] != 0, True
    return pa.array(numbers, mask=~known)


def _decimals(bounds: pa.BinaryArray) -> pa.Array:
    rows, known = np.zeros((len(bounds), _DECIMAL_WIDTH), np.uint8), np.zeros(len(bounds), np.bool_)
    for width in np.unique(_lengths(bounds)):
        if 1 <= width <= _DECIMAL_WIDTH:
            at, raw = _of_length(bounds, int(width))
            rows[at, -width:], known[at] = raw, True
            rows[at[raw[:, 0] >= _SIGN], :-width] = 0xFF
    known &= _has_38_digits(rows)
    rows[:, 0] ^= _SIGN
    return _from_rows(rows, known)


def _has_38_digits(rows: _Bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which numbers of 32 bytes have a value of at most 2**127 - 1, as `decimal_from_unscaled` takes them."""
    upper, lower = rows[:, : _DECIMAL_WIDTH // 2], rows[:, _DECIMAL_WIDTH // 2 :]
    sign = np.where(lower[:, :1] >= _SIGN, 0xFF, 0)
    is_least = (lower[:, 0] == _SIGN) & ~lower[:, 1:].any(axis=1)
    return (upper == sign).all(axis=1) & ~is_least


def _strings(bounds: pa.BinaryArray) -> pa.Array:
    try:
        pc.cast(bounds, pa.string())
    except pa.ArrowInvalid:
        return pa.array([bound if _is_text(bound) else None for bound in bounds.to_pylist()], pa.binary())
    return bounds


def _is_text(bound: bytes | None) -> bool:
    try:
        return bound is not None and bound.decode() is not None
    except UnicodeDecodeError:
        return False


def _uuids(bounds: pa.BinaryArray) -> pa.Array:
    return _where(pc.equal(pc.binary_length(bounds), _UUID_WIDTH), bounds)


_DECODERS: dict[str, _Decoder] = {
    "boolean": _booleans,
    "float": partial(_floats, widths=(4,)),
    "double": partial(_floats, widths=(4, 8)),
    "string": _strings,
    "uuid": _uuids,
    "binary": lambda bounds: bounds,
}


def _where(condition: pa.Array, bounds: pa.BinaryArray) -> pa.Array:
    return pc.if_else(condition, bounds, pa.scalar(None, pa.binary()))


def _lengths(bounds: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The bytes of each bound, -1 where it is null."""
    if not len(bounds):
        return np.zeros(0, np.int32)
    lengths = np.diff(np.frombuffer(bounds.buffers()[1], np.int32)[bounds.offset : bounds.offset + len(bounds) + 1])
    if bounds.null_count:
        lengths[np.asarray(bounds.is_null())] = -1
    return lengths


def _of_length(bounds: pa.BinaryArray, width: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], _Bytes]:
    """Which bounds have this many bytes, and their bytes, a row each."""
    at = np.flatnonzero(_lengths(bounds) == width)
    if not len(at):
        return at, np.zeros((0, width), np.uint8)
    _, offsets, content = bounds.buffers()
    starts = np.frombuffer(offsets, np.int32)[bounds.offset :][at]
    return at, np.lib.stride_tricks.sliding_window_view(np.frombuffer(content, np.uint8), width)[starts]


def _from_rows(rows: _Bytes, known: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    """Binary values of one length from a matrix of bytes."""
    content = pa.py_buffer(np.ascontiguousarray(rows))
    fixed = pa.Array.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, content])
    return _where(pa.array(known), pc.cast(fixed, pa.binary()))
