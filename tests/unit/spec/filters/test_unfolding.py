from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import Operation, Predicate
from icekeep.spec.filters.formatting import format_expression
from icekeep.spec.filters.literals import DateLiteral
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.filters.unfolding import unfold
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Bucket, Day, Hour, Identity, Month, Transform, Truncate, Void, Year
from icekeep.spec.types import (
    BINARY,
    DATE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    NestedField,
    PrimitiveType,
)
from kit.cases import cases, for_each
from kit.filters import COMPARISONS, literal_of, pool


def unfolded(type_: PrimitiveType, transform: Transform, where: str) -> str | None:
    predicate = parse_where(where)
    assert isinstance(predicate, Predicate)
    expression = unfold(predicate, transform, NestedField(field_id=1, name="x", type=type_))
    return None if expression is None else format_expression(expression)


@for_each(
    ("type_", "transform", "where", "expected"),
    [
        (TIMESTAMP, Day(), "p = '2026-01-31'", "x >= '2026-01-31' AND x < '2026-02-01'"),
        (TIMESTAMP, Day(), "p = DATE '2026-01-31'", "x >= '2026-01-31' AND x < '2026-02-01'"),
        (TIMESTAMP, Day(), "p != '2026-01-31'", "x < '2026-01-31' OR x >= '2026-02-01'"),
        (TIMESTAMP, Day(), "p < '2026-01-31'", "x < '2026-01-31'"),
        (TIMESTAMP, Day(), "p <= '2026-01-31'", "x < '2026-02-01'"),
        (TIMESTAMP, Day(), "p > '2026-01-31'", "x >= '2026-02-01'"),
        (TIMESTAMP, Day(), "p >= '2026-01-31'", "x >= '2026-01-31'"),
        (TIMESTAMP, Day(), "p IS NULL", "x IS NULL"),
        (TIMESTAMP, Day(), "p IS NOT NULL", "x IS NOT NULL"),
        (TIMESTAMP, Day(), "p = -1", "x >= '1969-12-31' AND x < '1970-01-01'"),
        (DATE, Day(), "p >= '2026-01-31'", "x >= '2026-01-31'"),
        (DATE, Month(), "p = '2025-12'", "x >= '2025-12-01' AND x < '2026-01-01'"),
        (DATE, Month(), "p < 1", "x < '1970-02-01'"),
        (DATE, Month(), "p >= -1", "x >= '1969-12-01'"),
        (TIMESTAMPTZ, Year(), "p = 2026", "x >= '2026-01-01' AND x < '2027-01-01'"),
        (TIMESTAMPTZ, Year(), "p = '2026'", "x >= '2026-01-01' AND x < '2027-01-01'"),
        (TIMESTAMPTZ, Year(), "p > 56", "x >= '2027-01-01'"),
        (TIMESTAMPTZ, Year(), "p >= 1000", "x >= '1000-01-01'"),
        (TIMESTAMPTZ, Year(), "p >= 999", "x >= '2969-01-01'"),
        (TIMESTAMP, Hour(), "p = '2026-01-31-23'", "x >= '2026-01-31T23:00:00' AND x < '2026-02-01T00:00:00'"),
        (TIMESTAMP, Hour(), "p < '2026-01-31T07'", "x < '2026-01-31T07:00:00'"),
        (TIMESTAMP, Hour(), "p = -1", "x >= '1969-12-31T23:00:00' AND x < '1970-01-01T00:00:00'"),
        (INT, Truncate(10), "p = 20", "x >= 20 AND x < 30"),
        (LONG, Truncate(10), "p > -10", "x >= 0"),
        (STRING, Truncate(3), "p = 'ice'", "x LIKE 'ice%'"),
        (STRING, Identity(), "p LIKE 'ice%'", "x LIKE 'ice%'"),
        (STRING, Identity(), "p NOT IN ('a', 'b')", "x NOT IN ('a', 'b')"),
    ],
)
def test_a_question_about_a_partition_is_one_about_its_column(
    type_: PrimitiveType, transform: Transform, where: str, expected: str
):
    assert unfolded(type_, transform, where) == expected


@for_each(
    ("type_", "transform", "where"),
    [
        (TIMESTAMP, Day(), "p = '2026-01'"),
        (TIMESTAMP, Day(), "p = '2026-02-30'"),
        (TIMESTAMP, Day(), "p = true"),
        (TIMESTAMP, Day(), "p = 1.5"),
        (TIMESTAMP, Day(), "p IN ('2026-01-01', '2026-01-02')"),
        (TIMESTAMP, Day(), "p LIKE '2026%'"),
        (TIMESTAMP, Month(), "p = '2026-13'"),
        (TIMESTAMP, Month(), "p = '2026-01-01'"),
        (TIMESTAMP, Hour(), "p = '2026-01-01'"),
        (TIMESTAMP, Hour(), "p = '2026-01-01-24'"),
        (INT, Truncate(10), "p = 25"),
        (INT, Truncate(10), "p = 'x'"),
        (INT, Bucket(10), "p = 5"),
        (INT, Void(), "p = 5"),
        (STRING, Truncate(3), "p = 'ic'"),
        (STRING, Truncate(3), "p > 'ice'"),
        (STRING, Truncate(3), "p = 5"),
        (BINARY, Truncate(3), "p = 'ffffff'"),
    ],
)
def test_where_no_such_question_is_known_none_is_shown(type_: PrimitiveType, transform: Transform, where: str):
    assert unfolded(type_, transform, where) is None


@given(st.data())
@cases(200)
def test_it_matches_the_rows_whose_partition_matches(data: st.DataObject):
    types: list[tuple[PrimitiveType, Transform]] = [
        (type_, transform)
        for type_ in (DATE, TIMESTAMP, TIMESTAMP_NS, TIMESTAMPTZ)
        for transform in (Year(), Month(), Day(), Hour())
        if transform.accepts(type_)
    ]
    type_, transform = data.draw(
        st.sampled_from([*types, (INT, Truncate(3)), (LONG, Truncate(10)), (STRING, Identity())])
    )
    row, other = data.draw(pool(type_, with_ends=False)), data.draw(pool(type_, with_ends=False))
    literal: Any = transform.apply(type_, other)
    result_type = transform.result_type(type_)
    assert isinstance(result_type, PrimitiveType)
    if isinstance(transform, Day) and data.draw(st.booleans()):
        literal = DateLiteral(literal)
    elif isinstance(transform, Identity | Day):
        literal = literal_of(result_type, literal)
    predicate = Predicate(data.draw(st.sampled_from(COMPARISONS)), "p", (literal,))
    expression = unfold(predicate, transform, NestedField(field_id=1, name="x", type=type_))
    assert expression is not None
    schema = Schema(
        fields=(NestedField(field_id=1, name="x", type=type_), NestedField(field_id=2, name="p", type=result_type))
    )
    both = {1: row, 2: transform.apply(type_, row)}
    assert row_matches(bind(expression, schema), both) == row_matches(bind(predicate, schema), both)


def test_an_operation_without_a_range_has_no_unfolding():
    predicate = Predicate(Operation.STARTS_WITH, "p", (5,))
    assert unfold(predicate, Truncate(5), NestedField(field_id=1, name="x", type=INT)) is None
