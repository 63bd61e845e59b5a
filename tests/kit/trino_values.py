"""Values from the JSON of Trino's protocol, in the form of `spec/values.py`: what a column's type in Iceberg makes of them."""

import base64
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from icekeep.spec.types import ListType, MapType, StructType, Type

_DATE = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_EPOCH = date(1970, 1, 1)


def from_trino(type_: Type, value: Any) -> Any:
    """A value, null as `None`; raises `ValueError` where it is none of the type."""
    if value is None:
        return None
    match type_:
        case StructType(fields=fields):
            return {f.field_id: from_trino(f.type, item) for f, item in zip(fields, value, strict=True)}
        case ListType(element=element):
            return [from_trino(element, item) for item in value]
        case MapType(key=key, value=item_type):
            # JSON has only texts for keys.
            return [(_from_key(key, text), from_trino(item_type, item)) for text, item in value.items()]
    return _VALUES.get(type_.name, _same)(value)


def _from_key(type_: Type, text: str) -> Any:
    match type_.name:
        case "int" | "long":
            return int(text)
        case "boolean":
            return text == "true"
    if isinstance(type_, StructType | ListType | MapType):
        raise ValueError(f"Trino's JSON has keys of {type_} as texts: {text!r}")
    return from_trino(type_, text)


def _same(value: Any) -> Any:
    return value


def _days(text: str) -> int:
    """Of any year; Python's dates are of four digits."""
    year, month, day = map(int, _groups(_DATE, text))
    cycles, year = divmod(year, _CYCLE_YEARS)
    return (date(year + _CYCLE_YEARS, month, day) - _EPOCH).days + (cycles - 1) * _CYCLE_DAYS


def _ticks(text: str, digits: int = 6) -> int:
    """Of a time of day, in the unit that so many digits after the second have."""
    hours, minutes, seconds, fraction = _groups(_TIME, text)
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    if len(fraction or "") > digits:
        raise ValueError(f"{text!r} has more than {digits} digits of a second")
    return int(f"{whole}{(fraction or '').ljust(digits, '0')}")


def _instant(text: str, digits: int) -> int:
    """Of a timestamp; one with a zone is of UTC, as the session is."""
    day, _, time = text.removesuffix(" UTC").partition(" ")
    return _days(day) * 86_400 * 10**digits + _ticks(time, digits)


def _groups(pattern: re.Pattern[str], text: str) -> tuple[Any, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not as Trino writes times")
    return match.groups()


_VALUES: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "double": float,
    "decimal": Decimal,
    "uuid": UUID,
    "fixed": base64.b64decode,
    "binary": base64.b64decode,
    "date": _days,
    "time": _ticks,
    **dict.fromkeys(("timestamp", "timestamptz"), partial(_instant, digits=6)),
    **dict.fromkeys(("timestamp_ns", "timestamptz_ns"), partial(_instant, digits=9)),
}
