"""A question about a partition value as the same question about its column, for one who named the partition field."""

import re
from collections.abc import Callable
from datetime import date
from typing import Any

from icekeep.spec.filters.expressions import And, Expression, Operation, Or, Predicate
from icekeep.spec.filters.literals import DateLiteral
from icekeep.spec.iso8601 import days_from_civil, format_date, format_timestamp
from icekeep.spec.transforms import Day, Hour, Identity, Month, Transform, Truncate, Year
from icekeep.spec.types import DATE, INT, LONG, STRING, NestedField

_HOUR_SECONDS = 3600
_DAY_HOURS = 24
_FIRST_CALENDAR_YEAR = 1000
_UNIT = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[-T ]([0-9]{2}))?)?)?")
_TIME_UNITS: tuple[Transform, ...] = (Year(), Month(), Day(), Hour())
_NULL_TESTS = (Operation.IS_NULL, Operation.NOT_NULL)


def unfold(predicate: Predicate, transform: Transform, source: NestedField) -> Expression | None:
    """The predicate on a partition field as a filter on its source column, null where there is none to show.

    >>> from icekeep.spec.types import TIMESTAMP
    >>> ts = NestedField(field_id=1, name="ts", type=TIMESTAMP)
    >>> unfold(Predicate(Operation.LT, "ts_day", ("2026-02-01",)), Day(), ts)
    Predicate(operation=<Operation.LT: '<'>, column='ts', literals=('2026-02-01',))
    """
    if predicate.operation in _NULL_TESTS or isinstance(transform, Identity):
        return Predicate(predicate.operation, source.name, predicate.literals)
    limits = _limits(transform, source)
    if limits is None or len(predicate.literals) != 1:
        return None
    literal = predicate.literals[0]
    if isinstance(transform, Truncate) and source.type == STRING:
        is_prefix = predicate.operation is Operation.EQ and isinstance(literal, str) and len(literal) == transform.width
        return Predicate(Operation.STARTS_WITH, source.name, (literal,)) if is_prefix else None
    try:
        return _between(predicate.operation, source.name, *limits(literal))
    except (ValueError, OverflowError):
        return None


_Limits = Callable[[Any], tuple[Any, Any]]
"""From a partition value, as a user may write it, to the first value of the column in it and the first one after it."""


def _limits(transform: Transform, source: NestedField) -> _Limits | None:
    match transform:
        case Truncate(width=width) if source.type in (INT, LONG):
            return lambda literal: _multiples(literal, width)
        case Truncate() if source.type == STRING:
            return lambda literal: (literal, literal)
        case Year() | Month() | Day() | Hour():
            return lambda literal: _times(transform, literal, is_date=source.type == DATE)
    return None


def _between(operation: Operation, column: str, first: Any, after: Any) -> Expression | None:
    at_least, below = Predicate(Operation.GT_EQ, column, (first,)), Predicate(Operation.LT, column, (after,))
    match operation:
        case Operation.EQ:
            return And(at_least, below)
        case Operation.NOT_EQ:
            return Or(Predicate(Operation.LT, column, (first,)), Predicate(Operation.GT_EQ, column, (after,)))
        case Operation.LT:
            return Predicate(Operation.LT, column, (first,))
        case Operation.LT_EQ:
            return below
        case Operation.GT:
            return Predicate(Operation.GT_EQ, column, (after,))
        case Operation.GT_EQ:
            return at_least
    return None


def _multiples(literal: Any, width: int) -> tuple[int, int]:
    if type(literal) is not int or literal % width:
        raise ValueError("it is no value of the partition field")
    return literal, literal + width


def _times(transform: Transform, literal: Any, *, is_date: bool) -> tuple[str, str]:
    unit = _unit(transform, literal)
    first, after = (_first_hour(transform, number) for number in (unit, unit + 1))
    if not is_date and isinstance(transform, Hour):
        return format_timestamp(first * _HOUR_SECONDS, 1), format_timestamp(after * _HOUR_SECONDS, 1)
    return format_date(first // _DAY_HOURS), format_date(after // _DAY_HOURS)


def _unit(transform: Transform, literal: Any) -> int:
    """Which year, month, day or hour it is, counted from 1970; numbers of calendar years are taken for them."""
    if isinstance(literal, DateLiteral):
        literal = format_date(literal.days)
    if type(literal) is int:
        is_calendar_year = isinstance(transform, Year) and literal >= _FIRST_CALENDAR_YEAR
        return literal - 1970 if is_calendar_year else literal
    match = _UNIT.fullmatch(literal) if isinstance(literal, str) else None
    given = 0 if match is None else sum(part is not None for part in match.groups())
    needed = 1 + _TIME_UNITS.index(transform)
    if match is None or given != needed:
        raise ValueError("it is no value of the partition field")
    year, month, day, hour = (int(part) if part is not None else 1 for part in match.groups())
    if needed <= 2:
        date(year, month, 1)
        return year - 1970 if needed == 1 else (year - 1970) * 12 + month - 1
    if hour >= _DAY_HOURS:
        raise ValueError("there is no such hour")
    days = days_from_civil(year, month, day)
    return days if needed == 3 else days * _DAY_HOURS + hour


def _first_hour(transform: Transform, unit: int) -> int:
    match transform:
        case Year():
            return days_from_civil(1970 + unit, 1, 1) * _DAY_HOURS
        case Month():
            years, months = divmod(unit, 12)
            return days_from_civil(1970 + years, months + 1, 1) * _DAY_HOURS
        case Day():
            return unit * _DAY_HOURS
    return unit
