"""Keys that sort as values do: tuples of values as bytes that compare with memcmp.

For grouping and ordering partition tuples and bounds without their types at hand. Nulls come first; floats in the order
of the spec's "Sorting", -0.0 before 0.0 and NaN last; strings by code point, binary, fixed and uuid by unsigned bytes.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from icekeep.errors import IcekeepBug, UnsupportedError
from icekeep.spec.numbers import unscaled
from icekeep.spec.types import DecimalType, PrimitiveType, Type
from icekeep.spec.values import INTEGER_WIDTHS

_NULL = b"\x00"
_VALUE = b"\x01"
_DECIMAL_BYTES = 16
_JAVA_SIGNS = 1 << 127 | 1 << 63
_FLOATS = {"float": struct.Struct(">f"), "double": struct.Struct(">d")}


def sort_key(types: Sequence[Type], values: Sequence[Any]) -> bytes:
    """Bytes that are in the order of the tuples of values, and equal only for equal tuples.

    Args:
        types: primitive types, one for each value; keys compare only with keys of the same types.
        values: in the form of `values.py`, None for null.

    Raises:
        UnsupportedError: a value's type has no order here (variant, geometry, geography, nested types).
        IcekeepBug: a value is not one of its type.
    """
    key = bytearray()
    for type_, value in zip(types, values, strict=True):
        if value is None:
            key += _NULL
        else:
            key += _VALUE
            key += _payload(type_, value)
    return bytes(key)


def java_order(value: UUID) -> int:
    """A UUID as a number that compares as Java compares UUIDs, as two signed longs: so its writers bound them."""
    return value.int ^ _JAVA_SIGNS


def _payload(type_: Type, value: Any) -> bytes:
    try:
        return _encode(type_, value)
    except (OverflowError, ValueError, AttributeError, TypeError, struct.error) as problem:
        raise IcekeepBug(f"value {value!r} is not one of type {type_}: {problem}") from problem


def _encode(type_: Type, value: Any) -> bytes:
    if not isinstance(type_, PrimitiveType):
        raise UnsupportedError(f"values of type {type_} have no order", type=str(type_))
    if (width := INTEGER_WIDTHS.get(type_.name)) is not None:
        return _signed(value, width)
    if isinstance(type_, DecimalType):
        return _signed(unscaled(value, type_.scale), _DECIMAL_BYTES)
    match type_.name:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "float" | "double" as name:
            return _float(_FLOATS[name], value)
        case "string":
            return _terminated(value.encode())
        case "fixed" | "binary":
            return _terminated(value)
        case "uuid":
            return bytes(value.bytes)
    raise UnsupportedError(f"values of type {type_} have no order", type=str(type_))


def _signed(number: int, width: int) -> bytes:
    """Big-endian with the sign bit flipped, so that negative numbers come first."""
    return (number + (1 << (8 * width - 1))).to_bytes(width, "big")


def _float(packer: struct.Struct, value: float) -> bytes:
    """IEEE 754's total order; all NaNs are one, as Java compares."""
    data = packer.pack(math.nan if math.isnan(value) else value)
    if data[0] & 0x80:
        return bytes(byte ^ 0xFF for byte in data)
    return bytes((data[0] | 0x80, *data[1:]))


def _terminated(data: bytes) -> bytes:
    """Zero bytes are escaped and the end is marked, so that a value sorts before those that it begins."""
    return data.replace(b"\x00", b"\x00\xff") + b"\x00\x00"
