import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import PartitionFieldStats
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

from icekeep.spec.manifests.structs import FieldSummary, PartitionSummarizer
from icekeep.spec.types import BINARY, BOOLEAN, DATE, DOUBLE, FLOAT, INT, LONG, STRING, TIMESTAMP, Type, decimal, fixed
from icekeep.spec.types import UUID as UUID_TYPE
from icekeep.spec.values import java_order, value_from_bytes, value_to_bytes
from kit.cases import for_each
from kit.strategies import typed_values, values_of

FOREIGN: list[tuple[Any, PrimitiveType]] = [
    (BOOLEAN, BooleanType()),
    (INT, IntegerType()),
    (LONG, LongType()),
    (DATE, DateType()),
    (TIMESTAMP, TimestampType()),
    (STRING, StringType()),
    (BINARY, BinaryType()),
    (UUID_TYPE, UUIDType()),
    (fixed(3), FixedType(3)),
    (decimal(9, 2), DecimalType(9, 2)),
    (DOUBLE, DoubleType()),
]


def summary(type_: Type, *values: Any) -> FieldSummary:
    summarizer = PartitionSummarizer([type_])
    for value in values:
        summarizer.add((value,))
    return summarizer.summaries()[0]


def bounds(type_: Type, *values: Any) -> tuple[Any, Any]:
    found = summary(type_, *values)
    assert found.lower_bound is not None
    assert found.upper_bound is not None
    return value_from_bytes(type_, found.lower_bound), value_from_bytes(type_, found.upper_bound)


@for_each(
    ("type_", "values", "least", "greatest"),
    [
        (INT, (3, -7, 5), -7, 5),
        (INT, (9,), 9, 9),
        (STRING, ("b", "a", "ab"), "a", "b"),
        (STRING, ("\U0001f600", "\uffee"), "\uffee", "\U0001f600"),
        (BINARY, (b"\x80", b"\x7f"), b"\x7f", b"\x80"),
        (BOOLEAN, (True, False), False, True),
        # In Java's order, as two signed longs.
        (UUID_TYPE, (UUID(int=1 << 127), UUID(int=1)), UUID(int=1 << 127), UUID(int=1)),
        (decimal(9, 2), (Decimal("1.10"), Decimal("-2.00")), Decimal("-2.00"), Decimal("1.10")),
        (DOUBLE, (math.inf, -math.inf, 0.5), -math.inf, math.inf),
    ],
)
def test_bounds_are_the_least_and_the_greatest_value(type_: Type, values: Any, least: Any, greatest: Any):
    assert bounds(type_, *values) == (least, greatest)
    assert bounds(type_, *reversed(values)) == (least, greatest)


@pytest.mark.parametrize("values", [(0.0, -0.0), (-0.0, 0.0), (-0.0, 0.0, -0.0)])
def test_a_lower_bound_does_not_hide_minus_zero_nor_an_upper_bound_zero(values: tuple[float, ...]):
    least, greatest = bounds(FLOAT, *values)
    assert math.copysign(1, least) == -1
    assert math.copysign(1, greatest) == 1


def test_null_is_contained_and_no_bound():
    assert summary(INT, None, 4, None) == FieldSummary(
        contains_null=True, lower_bound=b"\x04\0\0\0", upper_bound=b"\x04\0\0\0"
    )


@pytest.mark.parametrize("type_", [FLOAT, DOUBLE])
def test_nan_is_contained_and_no_bound(type_: Type):
    four = value_to_bytes(type_, 4.0)
    assert summary(type_, math.nan, 4.0) == FieldSummary(
        contains_null=False, contains_nan=True, lower_bound=four, upper_bound=four
    )
    assert summary(type_, 4.0).contains_nan is False


def test_without_any_value_there_is_no_bound():
    assert summary(DOUBLE, None, math.nan) == FieldSummary(contains_null=True, contains_nan=True)
    assert summary(STRING) == FieldSummary(contains_null=False)


def test_only_floats_can_be_nan():
    assert summary(LONG, 5).contains_nan is None


def test_each_field_has_its_own_summary():
    summarizer = PartitionSummarizer([INT, STRING])
    summarizer.add((1, None))
    summarizer.add((2, "x"))
    assert summarizer.summaries() == (
        FieldSummary(contains_null=False, lower_bound=b"\x01\0\0\0", upper_bound=b"\x02\0\0\0"),
        FieldSummary(contains_null=True, lower_bound=b"x", upper_bound=b"x"),
    )
    assert PartitionSummarizer([]).summaries() == ()


def test_a_tuple_has_a_value_for_each_field():
    with pytest.raises(ValueError, match="zip"):
        PartitionSummarizer([INT, STRING]).add((1,))


def lists_of(type_: Type) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values_of(type_), max_size=6)


@given(typed_values(st.sampled_from(FOREIGN), lambda pair: lists_of(pair[0])))
def test_summaries_are_those_of_pyiceberg(drawn: Any):
    (type_, foreign_type), values = drawn
    foreign = PartitionFieldStats(foreign_type)
    for value in values:
        foreign.update(value)
    theirs, ours = foreign.to_summary(), summary(type_, *values)
    # Theirs takes -0.0 and 0.0 for the same and says of every type whether it contains NaN.
    assert (ours.contains_null, ours.contains_nan or False) == (theirs.contains_null, theirs.contains_nan)
    if type_ == UUID_TYPE:
        # Theirs bounds by bytes; ours by Java's order, so that Java's readers skip no file.
        known = [value for value in values if value is not None]
        bounds = (min(known, key=java_order).bytes, max(known, key=java_order).bytes) if known else (None, None)
        assert (ours.lower_bound, ours.upper_bound) == bounds
    elif not any(value == 0 for value in values if type_ == DOUBLE):
        assert (ours.lower_bound, ours.upper_bound) == (theirs.lower_bound, theirs.upper_bound)
