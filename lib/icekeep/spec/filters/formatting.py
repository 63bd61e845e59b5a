"""Filters as text, in the language that `parsing.py` reads."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from icekeep.errors import IcekeepBug
from icekeep.spec.filters.expressions import (
    PREFIX_OPERATIONS,
    SET_OPERATIONS,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Not,
    Operation,
    Or,
    Predicate,
    chain,
)
from icekeep.spec.filters.literals import DateLiteral, Moment, TimestampLiteral
from icekeep.spec.filters.parsing import RESERVED_WORDS
from icekeep.spec.transforms import Bucket, Identity, Truncate
from icekeep.spec.types import INT, PrimitiveType, Type
from icekeep.spec.values import value_to_text


def format_expression(expression: Expression) -> str:
    """The expression as text that `parse_where` reads back; `now` has become the moment that it was.

    >>> from icekeep.spec.filters.parsing import parse_where
    >>> format_expression(parse_where("not day between '2026-01-01' and '2026-01-31'"))
    "NOT (day >= '2026-01-01' AND day <= '2026-01-31')"
    """
    match expression:
        case AlwaysTrue():
            return "true"
        case AlwaysFalse():
            return "false"
        case Not(child=child):
            return f"NOT ({format_expression(child)})"
        case And() | Or():
            word = " AND " if isinstance(expression, And) else " OR "
            return word.join(_format_term(term) for term in chain(type(expression), [expression]))
        case Predicate(operation=operation, literals=literals):
            return _format_predicate(operation, format_operand(expression), [_format_literal(one) for one in literals])
        case BoundPredicate(operation=operation, field=field, values=values, bucket=bucket):
            type_ = field.type if bucket is None else INT
            operand = format_operand(Predicate(operation, field.name, (), bucket))
            return _format_predicate(operation, operand, [_format_value(type_, value) for value in values])
    raise IcekeepBug(f"there is no text for the expression {expression!r}")


def format_name(column: str) -> str:
    """A column's full name as a filter writes it, in double quotes where it needs them."""
    is_plain = all(_SIMPLE_PART.fullmatch(part) and part.upper() not in RESERVED_WORDS for part in column.split("."))
    return column if is_plain else '"' + column.replace('"', '""') + '"'


def format_operand(predicate: Predicate) -> str:
    """What a predicate asks about: a column, or a transform of one, `bucket(16, id)`."""
    name = format_name(predicate.column)
    match predicate.transform:
        case None | Identity():
            return name
        case Bucket(bucket_count=number):
            return f"bucket({number}, {name})"
        case Truncate(width=number):
            return f"truncate({number}, {name})"
    return f"{predicate.transform}s({name})"


_SIMPLE_PART = re.compile(r"[^\W\d]\w*")
_WILDCARD = re.compile(r"[\\%_]")


def _format_term(expression: Expression) -> str:
    text = format_expression(expression)
    return f"({text})" if isinstance(expression, And | Or) else text


def _format_predicate(operation: Operation, name: str, values: Sequence[str]) -> str:
    if operation in UNARY_OPERATIONS:
        return f"{name} {operation.value}"
    if operation in SET_OPERATIONS:
        return f"{name} {operation.value} ({', '.join(values)})"
    if operation in PREFIX_OPERATIONS:
        pattern = _WILDCARD.sub(r"\\\g<0>", values[0])
        return f"{name} {operation.value} {pattern[:-1]}%'"
    return f"{name} {operation.value} {values[0]}"


def _format_literal(literal: Any) -> str:
    match literal:
        case bool():
            return "true" if literal else "false"
        case bytes():
            return f"X'{literal.hex().upper()}'"
        case float() if math.isinf(literal):
            return _format_infinity(literal)
        case int() | float() | Decimal() | DateLiteral() | TimestampLiteral() | Moment():
            return str(literal)
    return _quote(str(literal))


def _format_value(type_: Type, value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return _format_infinity(value)
    text = value_to_text(type_, value)
    return text if isinstance(value, int | float | Decimal) and _is_number_or_truth(type_) else _quote(text)


def _format_infinity(value: float) -> str:
    return "'Infinity'" if value > 0 else "'-Infinity'"


def _is_number_or_truth(type_: Type) -> bool:
    return isinstance(type_, PrimitiveType) and type_.name in ("boolean", "int", "long", "float", "double", "decimal")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
