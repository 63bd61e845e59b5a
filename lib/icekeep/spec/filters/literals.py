"""The literals of a filter, and where they lie among the values of a column's type.

A literal need not be a value of its column: 3000000000 lies beyond all ints, 2.5 between two of them, and a timestamp
with nanoseconds between two microseconds. SQL decides such a comparison all the same, so `locate_literal` says where the
literal lies and refuses only what cannot be compared with the column at all.
"""

import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

from icekeep.errors import ExpressionError
from icekeep.spec.types import DAY_SECONDS, INT, LONG, SECOND_MS, DecimalType, NestedField, PrimitiveType, Type
from icekeep.spec.values import (
    INTEGER_WIDTHS,
    MICROS_PER_SECOND,
    NANOS_PER_SECOND,
    TICKS_PER_SECOND,
    decimal_from_unscaled,
    format_date,
    format_timestamp,
    parse_date,
    parse_time,
    parse_timestamp,
    read_bytes,
    read_uuid,
    require_length,
    to_single,
)


class _TimeLiteral(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        zone = ""
        match self:
            case DateLiteral(days):
                return f"DATE '{format_date(days)}'"
            case TimestampLiteral(nanos, is_zoned):
                text, zone = format_timestamp(nanos, NANOS_PER_SECOND), "Z" if is_zoned else ""
            case NowLiteral(epoch_ms):
                text = format_timestamp(epoch_ms, SECOND_MS)
        return f"TIMESTAMP '{text.rstrip('0') if '.' in text else text}{zone}'"


class DateLiteral(_TimeLiteral, frozen=True):
    """A calendar date, in days since the epoch; compared with a timestamp it is midnight, in UTC."""

    days: int


class TimestampLiteral(_TimeLiteral, frozen=True):
    """A date and time, in nanoseconds since the epoch in UTC; `zoned` where an offset was written."""

    nanos: int
    zoned: bool = False


class NowLiteral(_TimeLiteral, frozen=True):
    """`now` or an age from it, in epoch milliseconds; compared with a date it is its day, in UTC."""

    epoch_ms: int


class LiteralPosition(msgspec.Struct, frozen=True):
    """Where a literal lies: on `value`, or, if `is_above`, between it and the next value of the type.

    `side` is 1 above every value of the type and -1 below them all (for floating types: all finite ones), else 0.
    """

    value: Any = None
    is_above: bool = False
    side: int = 0


def is_comparable(type_: Type) -> bool:
    """Whether columns of the type can be compared with a literal at all."""
    return isinstance(type_, PrimitiveType) and type_.name in _COUNTED | _READ


def locate_literal(field: NestedField, literal: Any) -> LiteralPosition:
    """Where a literal lies among the values of a column's type; -0.0 is 0.0.

    Numbers are for numeric types; for binary floating point they are rounded. Text is for strings, dates, times,
    timestamps, uuids (36 characters), decimals, bytes in hexadecimal, and infinity. A date alone is a timestamp at
    midnight; one with time zone is UTC where the text gives no offset. `ExpressionError` where the literal cannot be
    compared with the column.
    """
    type_ = field.type
    assert isinstance(type_, PrimitiveType)
    if type_.name not in _COUNTED:
        return _read(_position, field, literal)
    count, is_above = count_literal(field, literal)
    lowest, highest = _count_limits(type_)
    if count < lowest:
        return LiteralPosition(side=-1)
    if count > highest or (count == highest and is_above):
        return LiteralPosition(side=1)
    value = decimal_from_unscaled(count, type_.scale) if isinstance(type_, DecimalType) else count
    return LiteralPosition(value, is_above)


def count_literal(field: NestedField, literal: Any) -> tuple[int, bool]:
    """A literal in units of the type's last place, rounded down, perhaps beyond its limits, and whether it was rounded.

    For types whose values are whole or decimal numbers, dates and times; raises as `locate_literal` does.
    """
    is_number = isinstance(field.type, DecimalType) or field.type in (INT, LONG)
    return _read(_counted_number if is_number else _counted_time, field, literal)


def exact_limits(type_: Type) -> tuple[Any, Any] | None:
    """The least and the greatest value of a type whose values are whole or decimal numbers, null for other types."""
    if not isinstance(type_, PrimitiveType) or type_.name not in _COUNTED:
        return None
    lowest, highest = _count_limits(type_)
    if isinstance(type_, DecimalType):
        return decimal_from_unscaled(lowest, type_.scale), decimal_from_unscaled(highest, type_.scale)
    return lowest, highest


def _count_limits(type_: PrimitiveType) -> tuple[int, int]:
    """The least and the greatest value in units of the last place."""
    if isinstance(type_, DecimalType):
        highest = 10**type_.precision - 1
        return -highest, highest
    half = 1 << (8 * INTEGER_WIDTHS[type_.name] - 1)
    return -half, half - 1


_T = TypeVar("_T")


def _read(read: Callable[[PrimitiveType, Any], _T], field: NestedField, literal: Any) -> _T:
    type_ = field.type
    assert isinstance(type_, PrimitiveType)
    try:
        return read(type_, literal)
    except (ValueError, OverflowError) as problem:
        shown = str(literal)
        if isinstance(literal, bool | str | bytes):
            shown = shown.lower() if isinstance(literal, bool) else repr(literal)
        raise ExpressionError(
            f"column {field.name!r}: {shown} cannot be compared with type {type_}: {problem}",
            column=field.name,
            literal=str(literal),
            type=str(type_),
        ) from None


_FINITE_LIMITS = {
    "float": (float.fromhex("-0x1.fffffep+127"), float.fromhex("0x1.fffffep+127")),
    "double": (float.fromhex("-0x1.fffffffffffffp+1023"), float.fromhex("0x1.fffffffffffffp+1023")),
}
_COUNTED = frozenset((*INTEGER_WIDTHS, "decimal"))
_READ = frozenset(("boolean", "float", "double", "string", "uuid", "fixed", "binary"))
_NO_TEXT = "it must be text, in single quotes"
_INFINITY = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_LONGEST_EXPONENT = 1000


def _counted_number(type_: PrimitiveType, literal: Any) -> tuple[int, bool]:
    is_decimal = isinstance(type_, DecimalType)
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal | (str if is_decimal else int)):
        raise ValueError("it must be a number" if is_decimal else "it must be a whole number")
    try:
        number = Decimal(repr(literal) if isinstance(literal, float) else literal)
    except InvalidOperation:
        raise ValueError("it must be a number") from None
    if number.is_nan():
        raise ValueError("nothing compares with NaN")
    if number.is_infinite() or number.adjusted() > _LONGEST_EXPONENT:
        number = Decimal(f"1E{_LONGEST_EXPONENT}").copy_sign(number)
    elif number and number.as_tuple().exponent < -_LONGEST_EXPONENT:  # type: ignore[operator]
        raise ValueError("it has too many digits")
    numerator, denominator = number.as_integer_ratio()
    count, rest = divmod(numerator * 10 ** (type_.scale if isinstance(type_, DecimalType) else 0), denominator)
    return count, rest != 0


def _counted_time(type_: PrimitiveType, literal: Any) -> tuple[int, bool]:
    nanos, is_zoned = 0, False
    match literal:
        case DateLiteral(days) if type_.name != "time":
            nanos = days * DAY_SECONDS * NANOS_PER_SECOND
        case NowLiteral(epoch_ms) if type_.name != "time":
            nanos = epoch_ms * (NANOS_PER_SECOND // SECOND_MS)
        case TimestampLiteral() if type_.name == "date":
            raise ValueError("a date is compared with dates; write DATE '2026-01-31'")
        case TimestampLiteral(nanos, is_zoned) if type_.name != "time":
            pass
        case str() if type_.name == "date":
            return parse_date(literal), False
        case str() if type_.name == "time":
            nanos = parse_time(literal, NANOS_PER_SECOND)
        case str():
            nanos, offset_seconds = parse_timestamp(literal, NANOS_PER_SECOND)
            is_zoned = offset_seconds is not None
        case _:
            raise ValueError(_NO_TEXT)
    if type_.name == "date":
        return nanos // (DAY_SECONDS * NANOS_PER_SECOND), False
    if is_zoned and not type_.name.startswith("timestamptz"):
        raise ValueError("a timestamp without time zone takes no offset")
    count, rest = divmod(nanos, NANOS_PER_SECOND // TICKS_PER_SECOND.get(type_.name, MICROS_PER_SECOND))
    return count, rest != 0


def _position(type_: PrimitiveType, literal: Any) -> LiteralPosition:
    value = literal
    match type_.name:
        case "float" | "double":
            return _position_of_number(type_, literal)
        case "boolean":
            if not isinstance(literal, bool):
                raise ValueError("it must be true or false")
        case "uuid" if isinstance(literal, uuid.UUID):
            pass
        case "fixed" | "binary" if isinstance(literal, bytes):
            require_length(type_, literal)
        case _ if not isinstance(literal, str):
            raise ValueError(_NO_TEXT)
        case "string":
            literal.encode()  # half a surrogate pair raises `ValueError`
        case "uuid":
            value = read_uuid(literal)
        case _:
            value = require_length(type_, read_bytes(literal))
    return LiteralPosition(value)


def _position_of_number(type_: PrimitiveType, literal: Any) -> LiteralPosition:
    if isinstance(literal, str) and (match := _INFINITY.fullmatch(literal)):
        return LiteralPosition(-math.inf if match[1] == "-" else math.inf)
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal):
        raise ValueError("it must be a number")
    if literal.is_nan() if isinstance(literal, Decimal) else literal != literal:
        raise ValueError("nothing compares with NaN; write IS NAN or IS NOT NAN")
    if literal in (math.inf, -math.inf):
        return LiteralPosition(float(literal))
    lowest, highest = _FINITE_LIMITS[type_.name]
    if side := (literal > highest) - (literal < lowest):
        return LiteralPosition(side=side)
    value = float(literal)
    return LiteralPosition((to_single(value) if type_.name == "float" else value) + 0.0)
