from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    And,
    Expression,
    Not,
    Operation,
    Or,
    Predicate,
)
from icekeep.spec.filters.parsing import format_expression, parse_where
from icekeep.spec.schema import Schema
from icekeep.spec.types import BINARY, DATE, FLOAT, STRING, TIMESTAMP_NS, NestedField, Type, decimal
from kit.cases import for_each
from kit.filters import Column, columns, filters, schema_of

OP = Operation


def schema(*types: Type, required: bool = False) -> Schema:
    """Columns c1, c2 ... of the types."""
    return Schema(
        fields=tuple(
            NestedField(field_id=i, name=f"c{i}", type=type_, required=required) for i, type_ in enumerate(types, 1)
        )
    )


def bound(type_: Type, operation: Operation, *literals: Any, required: bool = False) -> Expression:
    return bind(Predicate(operation, "c1", literals), schema(type_, required=required))


def text(expression: Expression) -> str:
    return format_expression(expression)


@for_each(
    ("expression", "expected"),
    [
        (ALWAYS_TRUE, "true"),
        (ALWAYS_FALSE, "false"),
        (Predicate(OP.EQ, "a b", ("it's",)), "\"a b\" = 'it''s'"),
        (Predicate(OP.EQ, 'a"b', (True,)), '"a""b" = true'),
        (Predicate(OP.EQ, "between", (1.5,)), '"between" = 1.5'),
        (Predicate(OP.EQ, "größe", (Decimal("1.50"),)), "größe = 1.50"),
        (Predicate(OP.STARTS_WITH, "a", ("5%_\\",)), "a LIKE '5\\%\\_\\\\%'"),
        (Predicate(OP.NOT_STARTS_WITH, "a", ("x",)), "a NOT LIKE 'x%'"),
        (Predicate(OP.IS_NAN, "a"), "a IS NAN"),
        (Not(Or(Predicate(OP.IS_NULL, "a"), Predicate(OP.IS_NULL, "b"))), "NOT (a IS NULL OR b IS NULL)"),
        (And(Or(ALWAYS_TRUE, ALWAYS_FALSE), And(ALWAYS_TRUE, ALWAYS_TRUE)), "(true OR false) AND true AND true"),
    ],
)
def test_an_expression_is_shown_as_sql(expression: Expression, expected: str):
    assert text(expression) == expected


@for_each(
    ("type_", "literal", "expected"),
    [
        (DATE, "2013-01-05", "c1 = '2013-01-05'"),
        (TIMESTAMP_NS, "2013-01-05", "c1 = '2013-01-05T00:00:00'"),
        (BINARY, "00ff", "c1 = '00ff'"),
        (decimal(9, 2), 5, "c1 = 5.00"),
        (FLOAT, Decimal("0.1"), "c1 = 0.1"),
        (STRING, "5", "c1 = '5'"),
    ],
)
def test_bound_values_are_shown_for_people(type_: Type, literal: Any, expected: str):
    assert text(bound(type_, OP.EQ, literal)) == expected


@given(st.data())
def test_binding_what_is_shown_gives_the_same_filter(data: st.DataObject):
    table: tuple[Column, ...] = data.draw(columns())
    expression = bind(data.draw(filters(table)), schema_of(table))
    assert bind(parse_where(text(expression)), schema_of(table)) == expression
