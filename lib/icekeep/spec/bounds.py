"""Lower and upper bounds of a column's values, as a manifest keeps them (spec, Appendix D "Bound serialization").

A bound may be shorter than the value that it stands for, but every value of the column must lie within the two: a lower
bound is cut, an upper bound is cut and incremented. Values have the form of `values`.
"""

from typing import Any
from uuid import UUID

from icekeep.spec.ordering import java_order
from icekeep.spec.types import PrimitiveType
from icekeep.spec.values import value_to_bytes

_HIGHEST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def are_crossed(lower: Any, upper: Any) -> bool:
    """Whether a lower bound is above its upper bound, so that neither says anything; null is a bound that is unknown.

    Writers differ on the order of UUIDs: those are crossed that are so in both orders.
    """
    if lower is None or upper is None:
        return False
    if isinstance(lower, UUID):
        return lower.int > upper.int and java_order(lower) > java_order(upper)
    return bool(lower > upper)


def lower_bound(type_: PrimitiveType, value: Any, length: int | None = None) -> bytes:
    """The bound of a column whose least value this is; 0.0 becomes -0.0, so that both zeros lie above it.

    Args:
        type_: of the column.
        value: not null and not NaN.
        length: the most code points of text, the most bytes of a `binary`; any number of them if None.
    """
    if type_.name in ("string", "binary"):
        value = value[:length]
    elif type_.name in ("float", "double") and value == 0:
        value = -0.0
    return value_to_bytes(type_, value)


def upper_bound(type_: PrimitiveType, value: Any, length: int | None = None) -> bytes | None:
    """The bound of a column whose greatest value this is; null where nothing of that length lies above the value.

    Args:
        type_: of the column.
        value: not null and not NaN.
        length: as for `lower_bound`.
    """
    if type_.name in ("float", "double") and value == 0:
        value = 0.0
    if length is not None and type_.name == "string":
        value = _text_above(value, length)
    elif length is not None and type_.name == "binary":
        value = _bytes_above(value, length)
    return None if value is None else value_to_bytes(type_, value)


def _text_above(text: str, length: int) -> str | None:
    """The least text of at most `length` code points that is not below `text` nor any text that it begins."""
    if len(text) <= length:
        return text
    for end in range(length - 1, -1, -1):
        code_point = ord(text[end]) + 1
        if code_point in _SURROGATES:
            code_point = _SURROGATES.stop
        if code_point <= _HIGHEST_CODE_POINT:
            return text[:end] + chr(code_point)
    return None


def _bytes_above(data: bytes, length: int) -> bytes | None:
    if len(data) <= length:
        return data
    for end in range(length - 1, -1, -1):
        if data[end] < 0xFF:
            return data[:end] + bytes([data[end] + 1])
    return None
