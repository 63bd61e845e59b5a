"""A question about a transformed column as the same question about the column: `days(ts) = '2026-01-31'` is a range of `ts`.

Transforms but `bucket` keep the order of values: what they make equal lies together. So each comparison of such a one comes to
comparisons of the column, which all else knows to decide: on partitions of any spec, on statistics, and on rows. What a bucket
holds lies all over the column: such a question stays one about the number of the bucket.
"""

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from icekeep.errors import ExpressionError
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    PREFIX_OPERATIONS,
    UNARY_OPERATIONS,
    And,
    Expression,
    Operation,
    Or,
    Predicate,
    conjunction,
    disjunction,
)
from icekeep.spec.filters.formatting import format_operand
from icekeep.spec.filters.literals import DateLiteral, TimestampLiteral, count_literal, locate_literal
from icekeep.spec.iso8601 import days_from_civil
from icekeep.spec.transforms import Day, Hour, Month, Transform, Truncate, Year
from icekeep.spec.types import BINARY, DATE, STRING, DecimalType, NestedField
from icekeep.spec.values import NANOS_PER_SECOND

_HOUR_SECONDS = 3600
_DAY_HOURS = 24
_CALENDAR_YEARS = range(1000, 10_000)
_UNIT = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[-T ]([0-9]{2}))?)?)?")
_UNITS: dict[type[Transform], tuple[int, str]] = {
    Year: (1, "'2026'"),
    Month: (2, "'2026-01'"),
    Day: (3, "'2026-01-31'"),
    Hour: (4, "'2026-01-31-23'"),
}
"""How many numbers the text of a unit has, and such a text."""


def unfold(operation: Operation, predicate: Predicate, transform: Transform, source: NestedField) -> Expression:
    """A question about a transformed column as one about the column, which matches the same rows.

    Args:
        operation: what is asked, with the literals of `predicate`.
        transform: any but `bucket`, `void` and one that is not known.
        source: the column.

    Raises:
        ExpressionError: the transform does not take the column's type, or a literal is none of its values.
    """
    column, literals = predicate.column, predicate.literals
    if operation in (Operation.IS_NULL, Operation.NOT_NULL):
        return Predicate(operation, column)
    require_answer(operation, predicate, source)
    if operation is Operation.IN:
        return disjunction(unfold(Operation.EQ, _of(predicate, one), transform, source) for one in literals)
    if operation is Operation.NOT_IN:
        return conjunction(unfold(Operation.NOT_EQ, _of(predicate, one), transform, source) for one in literals)
    if isinstance(transform, Truncate) and source.type in (STRING, BINARY):
        text = locate_literal(_named(predicate, source), literals[0]).value
        return _unfold_prefix(operation, column, text, transform.width)
    number, is_between = _number(predicate, transform, source)
    return _unfold_step(operation, column, number, is_between, _first_of(transform, source))


def require_answer(operation: Operation, predicate: Predicate, source: NestedField) -> None:
    """Refuse what cannot be asked of the transform of a column; raises `ExpressionError`."""
    transform, shown = predicate.transform, format_operand(predicate)
    if transform is None or not transform.accepts(source.type):
        raise ExpressionError(
            f"{shown} is no filter on column {source.name!r} of type {source.type}, which this transform does not take",
            column=source.name,
        )
    if operation in UNARY_OPERATIONS:
        raise ExpressionError(f"{shown} is never NaN; only float and double have NaN", column=source.name)
    if operation in PREFIX_OPERATIONS and not (isinstance(transform, Truncate) and source.type in (STRING, BINARY)):
        raise ExpressionError(f"{shown} has no prefix; only string and binary start with one", column=source.name)


def _of(predicate: Predicate, literal: Any) -> Predicate:
    return Predicate(predicate.operation, predicate.column, (literal,), predicate.transform)


def _named(predicate: Predicate, source: NestedField) -> NestedField:
    """What an error names where a literal does not fit."""
    assert predicate.transform is not None
    type_ = predicate.transform.result_type(source.type)
    return NestedField(field_id=source.field_id, name=format_operand(predicate), type=type_)


def _unfold_step(
    operation: Operation, column: str, number: int, is_between: bool, first: Callable[[int], Any]
) -> Expression:
    """A comparison with a step of the transform; `is_between` with what lies between that one and the next."""

    def below(step: int) -> Expression:
        return Predicate(Operation.LT, column, (first(step),))

    def from_(step: int) -> Expression:
        return Predicate(Operation.GT_EQ, column, (first(step),))

    match operation:
        case Operation.EQ:
            return ALWAYS_FALSE if is_between else And(from_(number), below(number + 1))
        case Operation.NOT_EQ:
            never = Predicate(Operation.NOT_NULL, column)
            return never if is_between else Or(below(number), from_(number + 1))
        case Operation.LT:
            return below(number + is_between)
        case Operation.LT_EQ:
            return below(number + 1)
        case Operation.GT:
            return from_(number + 1)
    return from_(number + is_between)


def _unfold_prefix(operation: Operation, column: str, text: Any, width: int) -> Expression:
    """A comparison with a truncated text: a shorter one is the whole value, and none is longer than the width."""
    if len(text) < width or (operation in PREFIX_OPERATIONS and len(text) == width):
        return Predicate(operation, column, (text,))
    cut = text[:width]
    starts, starts_not = (Predicate(one, column, (cut,)) for one in (Operation.STARTS_WITH, Operation.NOT_STARTS_WITH))
    less, at_least = (Predicate(one, column, (cut,)) for one in (Operation.LT, Operation.GT_EQ))
    is_longer = len(text) > width
    match operation:
        case Operation.EQ | Operation.STARTS_WITH:
            return ALWAYS_FALSE if is_longer else starts
        case Operation.NOT_EQ | Operation.NOT_STARTS_WITH:
            return Predicate(Operation.NOT_NULL, column) if is_longer else starts_not
        case Operation.LT if not is_longer:
            return less
        case Operation.GT_EQ if not is_longer:
            return at_least
        case Operation.LT | Operation.LT_EQ:
            return Or(less, starts)
    return And(at_least, starts_not)


def _number(predicate: Predicate, transform: Transform, source: NestedField) -> tuple[int, bool]:
    """Which step of the transform a literal is, and whether it lies between that one and the next."""
    named, literal = _named(predicate, source), predicate.literals[0]
    if isinstance(transform, Truncate):
        count, is_between = count_literal(named, literal)
        return count // transform.width, is_between or count % transform.width != 0
    if isinstance(transform, Day):
        return count_literal(named, literal)
    if isinstance(literal, str):
        return _unit(named.name, transform, literal), False
    number, is_between = count_literal(named, literal)
    if isinstance(transform, Year) and number in _CALENDAR_YEARS:
        raise ExpressionError(
            f"{named.name} counts the years from 1970, so that {literal} is the year {1970 + number}; write '{number}' in quotes "
            f"for that year, or {number - 1970}",
            column=source.name,
        )
    return number, is_between


def _unit(shown: str, transform: Transform, text: str) -> int:
    """Which year, month or hour a text is, counted from 1970."""
    needed, example = _UNITS[type(transform)]
    try:
        match = _UNIT.fullmatch(text)
        given = [] if match is None else [int(part) for part in match.groups() if part is not None]
        if len(given) != needed:
            raise ValueError
        year, month, day, hour = (*given, 1, 1, 0)[:4] if needed < 4 else given
        date(year, month, day)
        if hour >= _DAY_HOURS:
            raise ValueError
    except ValueError:
        raise ExpressionError(
            f"{shown} is compared with a whole number, or with text such as {example}, not with {text!r}"
        ) from None
    if needed <= 2:
        return year - 1970 if needed == 1 else (year - 1970) * 12 + month - 1
    return days_from_civil(year, month, day) * _DAY_HOURS + hour


def _first_of(transform: Transform, source: NestedField) -> Callable[[int], Any]:
    """From a step of the transform to the first value of the column in it, as a literal that may lie beyond the type's ends."""
    if isinstance(transform, Truncate):
        width, type_ = transform.width, source.type
        if isinstance(type_, DecimalType):
            return lambda step: Decimal(f"{step * width}E-{type_.scale}")
        return lambda step: step * width
    if source.type == DATE:
        return lambda step: DateLiteral(_first_hour(transform, step) // _DAY_HOURS)
    return lambda step: TimestampLiteral(_first_hour(transform, step) * _HOUR_SECONDS * NANOS_PER_SECOND)


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
