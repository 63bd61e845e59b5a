import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import ExpressionError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.parsing import format_expression, parse_where
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Day, Hour, Month, Year
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMPTZ,
    NestedField,
    PrimitiveType,
)
from kit.cases import cases, for_each
from kit.filters import pool


def bound(type_: PrimitiveType, where: str) -> str:
    schema = Schema(fields=(NestedField(field_id=1, name="x", type=type_),))
    return format_expression(bind(parse_where(where, 0), schema))


@for_each(
    ("type_", "where", "expected"),
    [
        (TIMESTAMP, "days(x) = '2026-01-31'", "x >= '2026-01-31T00:00:00' AND x < '2026-02-01T00:00:00'"),
        (TIMESTAMP, "days(x) = DATE '2026-01-31'", "x >= '2026-01-31T00:00:00' AND x < '2026-02-01T00:00:00'"),
        (TIMESTAMP, "days(x) != '2026-01-31'", "x < '2026-01-31T00:00:00' OR x >= '2026-02-01T00:00:00'"),
        (TIMESTAMP, "days(x) > today - 1", "x >= '1970-01-01T00:00:00'"),
        (TIMESTAMP, "days(x) IS NULL", "x IS NULL"),
        (DATE, "days(x) >= '2026-01-31'", "x >= '2026-01-31'"),
        (DATE, "months(x) = '2025-12'", "x >= '2025-12-01' AND x < '2026-01-01'"),
        (DATE, "months(x) < 1", "x < '1970-02-01'"),
        (DATE, "NOT months(x) < -1", "x >= '1969-12-01'"),
        (TIMESTAMPTZ, "years(x) = '2026'", "x >= '2026-01-01T00:00:00+00:00' AND x < '2027-01-01T00:00:00+00:00'"),
        (TIMESTAMPTZ, "years(x) > 56", "x >= '2027-01-01T00:00:00+00:00'"),
        (TIMESTAMPTZ, "years(x) < 1e300", "x IS NOT NULL"),
        (TIMESTAMP, "hours(x) < '2026-01-31T07'", "x < '2026-01-31T07:00:00'"),
        (TIMESTAMP, "hours(x) = -1", "x >= '1969-12-31T23:00:00' AND x < '1970-01-01T00:00:00'"),
        (INT, "truncate(10, x) = 20", "x >= 20 AND x < 30"),
        (INT, "truncate(10, x) = 25", "false"),
        (INT, "truncate(10, x) != 25", "x IS NOT NULL"),
        (INT, "truncate(10, x) IN (20, 25)", "x >= 20 AND x < 30"),
        (LONG, "truncate(10, x) > -10", "x >= 0"),
        (STRING, "truncate(3, x) = 'ice'", "x LIKE 'ice%'"),
        (STRING, "truncate(3, x) = 'ic'", "x = 'ic'"),
        (STRING, "truncate(3, x) = 'iceberg'", "false"),
        (STRING, "truncate(3, x) <= 'iceberg'", "x < 'ice' OR x LIKE 'ice%'"),
        (STRING, "truncate(3, x) LIKE 'ic%'", "x LIKE 'ic%'"),
        (BINARY, "truncate(1, x) = X'ff'", "x LIKE 'ff%'"),
        (LONG, "bucket(16, x) = 3", "bucket(16, x) = 3"),
        (LONG, "bucket(16, x) = 2.5", "false"),
        (LONG, "bucket(16, x) < 2.5", "bucket(16, x) <= 2"),
        (LONG, "bucket(16, x) IN (2, 2.5, 2)", "bucket(16, x) = 2"),
        (LONG, "NOT bucket(16, x) IN (2, 1)", "bucket(16, x) NOT IN (1, 2)"),
        (STRING, "bucket(16, x) IS NOT NULL", "x IS NOT NULL"),
    ],
)
def test_a_question_about_a_transform_is_one_about_its_column(type_: PrimitiveType, where: str, expected: str):
    assert bound(type_, where) == expected


@for_each(
    ("type_", "where", "problem"),
    [
        (
            DOUBLE,
            "bucket(4, x) = 1",
            "bucket(4, x) is no filter on column 'x' of type double, which this transform does not take",
        ),
        (DATE, "hours(x) = 1", "hours(x) is no filter on column 'x' of type date, which this transform does not take"),
        (LONG, "days(x) = 1", "days(x) is no filter on column 'x' of type long, which this transform does not take"),
        (LONG, "bucket(4, x) IS NAN", "bucket(4, x) is never NaN; only float and double have NaN"),
        (LONG, "truncate(4, x) LIKE 'a%'", "truncate(4, x) has no prefix; only string and binary start with one"),
        (STRING, "bucket(4, x) LIKE 'a%'", "bucket(4, x) has no prefix; only string and binary start with one"),
        (
            LONG,
            "bucket(4, x) = 'a'",
            "column 'bucket(4, x)': 'a' cannot be compared with type int: it must be a whole number",
        ),
        (
            STRING,
            "truncate(4, x) = 5",
            "column 'truncate(4, x)': 5 cannot be compared with type string: it must be text, in",
        ),
        (
            TIMESTAMP,
            "days(x) = 5",
            "column 'days(x)': 5 cannot be compared with type date: it must be text, in single quotes",
        ),
        (TIMESTAMP, "days(x) = '2026-02-30'", "column 'days(x)': '2026-02-30' cannot be compared with type date: "),
        (
            TIMESTAMP,
            "years(x) = true",
            "column 'years(x)': true cannot be compared with type int: it must be a whole number",
        ),
        (
            TIMESTAMP,
            "years(x) = 2026",
            "years(x) counts the years from 1970, so that 2026 is the year 3996; write '2026' in quotes for that year, or 56",
        ),
        (
            TIMESTAMP,
            "months(x) = '2026-13'",
            "months(x) is compared with a whole number, or with text such as '2026-01', not",
        ),
        (
            TIMESTAMP,
            "months(x) = '2026-01-01'",
            "months(x) is compared with a whole number, or with text such as '2026-01', not",
        ),
        (TIMESTAMP, "hours(x) = '2026-01-01-24'", "hours(x) is compared with a whole number, or with text such as"),
        (TIMESTAMP, "hours(x) = today", "column 'hours(x)': DATE '1970-01-01' cannot be compared with type int"),
    ],
)
def test_what_is_no_filter_of_the_column_s_type_is_refused_in_one_line(type_: PrimitiveType, where: str, problem: str):
    with pytest.raises(ExpressionError) as refused:
        bound(type_, where)
    assert refused.value.message.startswith(problem)
    assert "\n" not in refused.value.message


@given(st.data())
@cases(200)
def test_the_text_of_a_unit_is_the_unit(data: st.DataObject):
    """As partition paths show it, which numbers of other tests do not."""
    transform, name = data.draw(
        st.sampled_from([(Year(), "years"), (Month(), "months"), (Day(), "days"), (Hour(), "hours")])
    )
    type_ = data.draw(st.sampled_from([one for one in (DATE, TIMESTAMP, TIMESTAMPTZ) if transform.accepts(one)]))
    row, other = data.draw(pool(type_, with_ends=False)), data.draw(pool(type_, with_ends=False))
    unit = transform.apply(type_, other)
    schema = Schema(fields=(NestedField(field_id=1, name="x", type=type_),))
    where = bind(parse_where(f"{name}(x) = '{transform.to_text(type_, unit)}'"), schema)
    assert row_matches(where, {1: row}) == (transform.apply(type_, row) == unit)
