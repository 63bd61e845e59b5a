import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.expressions import visitors as foreign

from icekeep.errors import IcekeepBug
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import (
    file_may_match,
    file_must_match,
    manifest_may_match,
    partition_matches,
    project_inclusive,
    row_matches,
)
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    And,
    BoundPredicate,
    Expression,
    Not,
    Operation,
    Or,
    Predicate,
)
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import DataFile, FieldSummary
from icekeep.spec.partitioning import PartitionField, PartitionSpec, partition_type
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import UnknownTransform, Void
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ_NS,
    UUID,
    ListType,
    NestedField,
    Type,
    decimal,
)
from icekeep.spec.values import value_to_bytes
from kit.cases import cases, for_each
from kit.filters import (
    COLUMN_TYPES,
    COMPARISONS,
    SETS,
    TRANSFORMS,
    Column,
    columns,
    filters,
    matches_somehow,
    metrics_of,
    predicates,
    rows,
    schema_of,
    summary_of,
)
from kit.foreign_filters import foreign_file, foreign_filter, foreign_manifest, foreign_schema, foreign_spec

OP = Operation


def ask(type_: Type, where: str | Predicate) -> Expression:
    """A filter that is bound to the optional column x with id 1."""
    schema = Schema(fields=(NestedField(field_id=1, name="x", type=type_),))
    return bind(parse_where(where) if isinstance(where, str) else where, schema)


def metrics(
    type_: Type,
    lower: Any = None,
    upper: Any = None,
    *,
    rows: int = 10,
    nulls: int | None = 0,
    nans: int | None = None,
    **other: Any,
) -> DataFile:
    """What is known of a file whose column 1 has these bounds."""
    known: dict[str, Any] = {
        "value_counts": {1: rows},
        "null_value_counts": None if nulls is None else {1: nulls},
        "nan_value_counts": None if nans is None else {1: nans},
        "lower_bounds": None if lower is None else {1: value_to_bytes(type_, lower)},
        "upper_bounds": None if upper is None else {1: value_to_bytes(type_, upper)},
    }
    return DataFile(
        file_path="f", file_format="parquet", spec_id=0, record_count=rows, file_size_in_bytes=1, **(known | other)
    )


def may(type_: Type, where: str | Predicate, file: DataFile) -> bool:
    return file_may_match(ask(type_, where), file)


def must(type_: Type, where: str | Predicate, file: DataFile) -> bool:
    return file_must_match(ask(type_, where), file)


def prefix(text: str, *, negated: bool = False) -> Predicate:
    return Predicate(OP.NOT_STARTS_WITH if negated else OP.STARTS_WITH, "x", (text,))


IS_NAN, NOT_NAN = Predicate(OP.IS_NAN, "x"), Predicate(OP.NOT_NAN, "x")


# Rows and partitions


@for_each("where", ["x < 5", "x >= 5", "x = 5", "x != 5", "x IN (5, 6)", "x NOT IN (5, 6)", "x IS NOT NULL"])
def test_nothing_but_is_null_is_true_of_null(where: str):
    assert not row_matches(ask(INT, where), {1: None})
    assert not row_matches(ask(INT, where), {})
    assert row_matches(ask(INT, "x IS NULL"), {1: None})
    assert not row_matches(ask(INT, "x IS NULL"), {1: 5})


def test_null_is_not_nan():
    assert row_matches(ask(DOUBLE, NOT_NAN), {1: None})
    assert not row_matches(ask(DOUBLE, IS_NAN), {1: None})


@pytest.mark.parametrize("type_", [FLOAT, DOUBLE])
def test_nan_is_unequal_to_everything_and_neither_less_nor_greater(type_: Type):
    for where in ("x < 5", "x <= 5", "x > 5", "x >= 5", "x = 5", "x IN (5, 6)"):
        assert not row_matches(ask(type_, where), {1: math.nan})
    for where in ("x != 5", "x NOT IN (5, 6)", "x IS NOT NULL", IS_NAN):
        assert row_matches(ask(type_, where), {1: math.nan})
    assert not row_matches(ask(type_, NOT_NAN), {1: math.nan})
    assert not row_matches(ask(type_, IS_NAN), {1: 0.0})
    assert row_matches(ask(type_, NOT_NAN), {1: 0.0})


@for_each("literal", [0.0, -0.0])
@for_each("value", [0.0, -0.0])
def test_zero_equals_minus_zero(literal: float, value: float):
    assert row_matches(ask(DOUBLE, Predicate(OP.EQ, "x", (literal,))), {1: value})
    assert not row_matches(ask(DOUBLE, Predicate(OP.LT, "x", (literal,))), {1: value})
    assert row_matches(ask(DOUBLE, Predicate(OP.IN, "x", (literal, 1.0))), {1: value})


def test_text_is_ordered_by_code_points():
    assert row_matches(ask(STRING, "x > '\uffff'"), {1: "\U00010000"})
    assert row_matches(ask(STRING, "x < 'é'"), {1: "z"})


def test_bytes_are_unsigned():
    assert row_matches(ask(BINARY, "x > '7f'"), {1: b"\x80"})


def test_text_starts_with_a_prefix_or_not():
    for value, expected in (("abc", True), ("ab", True), ("a", False), ("b", False)):
        assert row_matches(ask(STRING, prefix("ab")), {1: value}) == expected
        assert row_matches(ask(STRING, prefix("ab", negated=True)), {1: value}) != expected


def test_and_needs_both_sides_or_one_of_them():
    one, two = ask(INT, "x >= 1"), ask(INT, "x <= 2")
    assert [row_matches(And(one, two), {1: value}) for value in (0, 1, 2, 3)] == [False, True, True, False]
    three = ask(INT, "x = 3")
    assert [row_matches(Or(three, two), {1: value}) for value in (2, 3, 4)] == [True, True, False]


def test_constants_need_no_values():
    for constant in (ALWAYS_TRUE, ALWAYS_FALSE):
        expected = constant == ALWAYS_TRUE
        assert row_matches(constant, {}) == expected
        assert partition_matches(constant, (), ()) == expected
        assert manifest_may_match(constant, (), None) == expected
        assert file_may_match(constant, metrics(INT)) == expected
        assert file_must_match(constant, metrics(INT)) == expected


def test_only_bound_expressions_are_evaluated():
    for expression in (parse_where("x = 1"), Not(ALWAYS_TRUE)):
        with pytest.raises(IcekeepBug, match="bind"):
            row_matches(expression, {})


def test_partition_values_are_found_by_field_id():
    fields = tuple(NestedField(field_id=i, name=f"p{i}", type=INT) for i in (1000, 1001))
    expression = BoundPredicate(OP.GT, fields[1], (5,))
    assert partition_matches(expression, fields, (0, 6))
    assert not partition_matches(expression, fields, (6, 0))


# Files

BOUNDED = metrics(INT, 30, 79)


@for_each(
    ("where", "may_match", "must_match"),
    [
        ("x < 30", False, False), ("x < 31", True, False), ("x < 79", True, False), ("x < 80", True, True),
        ("x <= 29", False, False), ("x <= 30", True, False), ("x <= 78", True, False), ("x <= 79", True, True),
        ("x > 79", False, False), ("x > 78", True, False), ("x > 30", True, False), ("x > 29", True, True),
        ("x >= 80", False, False), ("x >= 79", True, False), ("x >= 31", True, False), ("x >= 30", True, True),
        ("x = 29", False, False), ("x = 30", True, False), ("x = 79", True, False), ("x = 80", False, False),
        ("x != 29", True, True), ("x != 30", True, False), ("x != 79", True, False), ("x != 80", True, True),
        ("x IN (28, 29)", False, False), ("x IN (29, 30)", True, False), ("x IN (1, 80)", False, False),
        ("x IN (79, 80)", True, False), ("x NOT IN (29, 80)", True, True), ("x NOT IN (29, 50)", True, False),
        ("x IS NULL", False, False), ("x IS NOT NULL", True, True),
    ],
)  # fmt: skip
def test_bounds_decide_comparisons(where: str, may_match: bool, must_match: bool):
    assert may(INT, where, BOUNDED) == may_match
    assert must(INT, where, BOUNDED) == must_match


@for_each(
    ("where", "may_match", "must_match"),
    [
        ("x = 5", True, True), ("x != 5", False, False), ("x IN (4, 5)", True, True), ("x NOT IN (4, 5)", False, False),
        ("x NOT IN (4, 6)", True, True), ("x = 4", False, False), ("x != 4", True, True),
    ],
)  # fmt: skip
def test_equal_bounds_tell_the_only_value(where: str, may_match: bool, must_match: bool):
    file = metrics(INT, 5, 5)
    assert may(INT, where, file) == may_match
    assert must(INT, where, file) == must_match


def test_nulls_beside_the_only_value_may_be_unequal_to_some_readers():
    for nulls in (1, None):
        file = metrics(INT, 5, 5, nulls=nulls)
        assert may(INT, "x != 5", file)
        assert may(INT, "x NOT IN (4, 5)", file)
        assert not must(INT, "x = 5", file)
        assert not must(INT, "x != 4", file)
        assert not must(INT, "x IS NOT NULL", file)


ALL_NULL = metrics(INT, nulls=10)


@for_each("where", ["x < 5", "x >= 5", "x = 5", "x IN (5, 6)", "x IS NOT NULL"])
def test_a_file_of_nulls_has_no_match(where: str):
    assert not may(INT, where, ALL_NULL)
    assert not must(INT, where, ALL_NULL)


def test_a_file_of_nulls_is_null_and_may_be_unequal():
    assert must(INT, "x IS NULL", ALL_NULL)
    for where in ("x != 5", "x NOT IN (5, 6)"):
        assert may(INT, where, ALL_NULL)
        assert not must(INT, where, ALL_NULL)
    assert may(STRING, prefix("a", negated=True), metrics(STRING, nulls=10))
    assert not may(STRING, prefix("a"), metrics(STRING, nulls=10))


NAN_FILES = {
    "all": metrics(DOUBLE, nans=10),
    "some": metrics(DOUBLE, 1.0, 2.0, nans=5),
    "none": metrics(DOUBLE, 1.0, 2.0, nans=0),
    "unknown": metrics(DOUBLE, 1.0, 2.0),
    "null": metrics(DOUBLE, nulls=10),
    "null or NaN": metrics(DOUBLE, nulls=4, nans=6),
}


@for_each(
    ("where", "may_match", "must_match"),
    [
        (IS_NAN, {"all", "some", "unknown", "null or NaN"}, {"all"}),
        (NOT_NAN, {"some", "none", "unknown", "null", "null or NaN"}, {"none", "null"}),
        ("x IS NULL", {"null", "null or NaN"}, {"null"}),
        ("x IS NOT NULL", {"all", "some", "none", "unknown", "null or NaN"}, {"all", "some", "none", "unknown"}),
        ("x < 5", {"some", "none", "unknown"}, {"none"}),
        ("x > 2", set(), set()),
        ("x > 0", {"some", "none", "unknown"}, {"none"}),
        ("x != 5", {"all", "some", "none", "unknown", "null", "null or NaN"}, {"all", "some", "none", "unknown"}),
        ("x = 1.5", {"some", "none", "unknown"}, set()),
    ],
)
def test_nan_counts_decide_what_bounds_leave_out(where: str | Predicate, may_match: set[str], must_match: set[str]):
    assert {name for name, file in NAN_FILES.items() if may(DOUBLE, where, file)} == may_match
    assert {name for name, file in NAN_FILES.items() if must(DOUBLE, where, file)} == must_match


def test_bounds_of_nan_are_unreliable():
    for lower, upper in ((math.nan, math.nan), (math.nan, 2.0), (1.0, math.nan)):
        file = metrics(FLOAT, lower, upper, nans=0)
        for where in ("x < 0", "x > 9", "x = 9", "x IN (8, 9)"):
            assert may(FLOAT, where, file)
        for where in ("x < 9", "x > 0", "x != 9"):
            assert not must(FLOAT, where, file)


@pytest.mark.parametrize("bound", [0.0, -0.0])
def test_a_bound_of_either_zero_lets_both_pass(bound: float):
    file = metrics(DOUBLE, bound, bound, nans=0)
    for literal in (0.0, -0.0):
        assert may(DOUBLE, Predicate(OP.EQ, "x", (literal,)), file)
        assert may(DOUBLE, Predicate(OP.GT_EQ, "x", (literal,)), file)
        assert not may(DOUBLE, Predicate(OP.GT, "x", (literal,)), file)
        assert must(DOUBLE, Predicate(OP.EQ, "x", (literal,)), file)


def test_what_is_not_known_decides_nothing():
    blank = dict.fromkeys(("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"))
    for file in (metrics(DOUBLE, **blank), metrics(DOUBLE, **{key: {} for key in blank})):
        for where in (
            "x < 5",
            "x > 5",
            "x = 5",
            "x != 5",
            "x IN (5, 6)",
            "x IS NULL",
            "x IS NOT NULL",
            IS_NAN,
            NOT_NAN,
        ):
            assert may(DOUBLE, where, file)
            assert not must(DOUBLE, where, file)


@for_each("where", ["x < 5", "x <= 5", "x > 5", "x >= 5", "x = 5", "x != 5", "x IN (5, 6)", "x NOT IN (5, 6)"])
def test_crossed_bounds_decide_nothing(where: str):
    for type_, unit in ((INT, 1), (DOUBLE, 1.0)):
        for crossed in (metrics(type_, 9 * unit, 7 * unit, nans=0), metrics(type_, 2 * unit, 1 * unit, nans=0)):
            assert may(type_, where, crossed)
            assert not must(type_, where, crossed)
        assert manifest_may(type_, where, summary(type_, 9 * unit, 7 * unit, nan=False))


def test_one_bound_decides_its_side():
    low, high = metrics(INT, 30), metrics(INT, upper=79)
    assert not may(INT, "x < 30", low)
    assert may(INT, "x > 999", low)
    assert must(INT, "x > 29", low)
    assert not must(INT, "x < 999", low)
    assert not may(INT, "x IN (1, 2)", low)
    assert not may(INT, "x > 79", high)
    assert may(INT, "x < -999", high)
    assert must(INT, "x <= 79", high)
    assert not may(INT, "x IN (80, 81)", high)
    assert must(INT, "x != 80", high)


def test_bounds_that_cannot_be_read_decide_nothing():
    for lower, upper in ((b"\x01", b"\x02"), (b"", b""), (b"12345", None)):
        file = metrics(INT, lower_bounds={1: lower}, upper_bounds={1: upper} if upper is not None else None)
        assert may(INT, "x = 5", file)
        assert not must(INT, "x != 5", file)
    assert may(STRING, "x = 'a'", metrics(STRING, lower_bounds={1: b"\xff"}, upper_bounds={1: b"\xff"}))


@for_each(
    ("old", "new", "low", "high", "below", "above"),
    [
        (INT, LONG, 30, 79, "x < 30", "x > 79"),
        (FLOAT, DOUBLE, 0.5, 1.5, "x < 0.5", "x > 1.5"),
        (DATE, TIMESTAMP, 1, 2, "x < '1970-01-02'", "x > '1970-01-03'"),
        (decimal(4, 2), decimal(9, 2), Decimal("1.00"), Decimal("2.00"), "x < 1", "x > 2"),
    ],
)
def test_bounds_from_before_a_promotion_are_understood(
    old: Type, new: Type, low: Any, high: Any, below: str, above: str
):
    file = metrics(old, low, high, nans=0)
    assert not may(new, below, file)
    assert not may(new, above, file)
    assert may(new, below.replace("<", ">"), file)
    assert may(new, below.replace("<", "="), file)


def test_a_file_without_rows_has_no_match_and_matches_in_all_of_them():
    for where in ("x = 5", "x IS NULL", "x != 5"):
        assert not may(INT, where, metrics(INT, 5, 5, rows=0))
        assert must(INT, where, metrics(INT, 5, 5, rows=0))


def test_a_file_that_hides_its_number_of_rows_is_undecided():
    for where in ("x = 99", "x = 5", "x IS NULL"):
        assert may(INT, where, metrics(INT, 5, 5, rows=-1))
        assert not must(INT, where, metrics(INT, 5, 5, rows=-1))
    assert not file_may_match(ALWAYS_FALSE, metrics(INT, rows=-1))
    assert file_must_match(ALWAYS_TRUE, metrics(INT, rows=-1))


def test_rows_that_were_not_counted_may_be_null():
    """ORC counts the values of a struct's field only where the struct is there."""
    file = metrics(INT, 30, 79, value_counts={1: 9})
    assert may(INT, "x IS NULL", file)
    assert not must(INT, "x IS NOT NULL", file)
    assert not must(INT, "x < 99", file)
    assert not may(INT, "x > 79", file)


def test_counts_that_cannot_be_decide_nothing():
    for nulls in (11, -1):
        file = metrics(INT, 30, 79, nulls=nulls)
        assert may(INT, "x = 50", file)
        assert may(INT, "x IS NULL", file)
        assert not must(INT, "x IS NULL", file)
    file = metrics(DOUBLE, 1.0, 2.0, nulls=6, nans=6)
    assert may(DOUBLE, "x = 1.5", file)
    assert not must(DOUBLE, "x IS NULL OR x IS NAN", file)
    assert not may(DOUBLE, "x = 1.5", metrics(DOUBLE, 1.0, 2.0, nulls=4, nans=6))


def test_a_list_is_asked_for_null_only():
    elements = ListType(element_id=2, element=INT)
    assert may(elements, "x IS NULL", metrics(INT, nulls=None))
    assert not may(elements, "x IS NULL", metrics(INT, nulls=0))


LOW, HIGH = "abcdefghijklmnop", "abcdefghijklmnoq"
"""The bounds of "abcdefghijklmnop-z", cut to 16."""


@for_each(
    ("where", "may_match", "must_match"),
    [
        (f"x = '{LOW}-z'", True, False), (f"x = '{LOW}'", True, False), (f"x = '{HIGH}'", True, False),
        (f"x = '{HIGH}a'", False, False), (f"x > '{LOW}-z'", True, False), (f"x > '{HIGH}'", False, False),
        (f"x < '{LOW}'", False, False), (f"x >= '{LOW}'", True, True), (f"x <= '{HIGH}'", True, True),
        (prefix(LOW), True, False), (prefix(LOW[:15]), True, True), (prefix(LOW + "-z"), True, False),
        (prefix("abd"), False, False), (prefix("abb"), False, False), (prefix(LOW[:15] + "o"), False, False),
        (prefix(LOW, negated=True), True, False), (prefix(LOW[:15], negated=True), False, False),
        (prefix("abd", negated=True), True, True), (prefix("abb", negated=True), True, True),
        (prefix(HIGH + "a", negated=True), True, True), (prefix(HIGH + "a"), False, False),
    ],
)  # fmt: skip
def test_cut_bounds_of_text_still_bound(where: str | Predicate, may_match: bool, must_match: bool):
    file = metrics(STRING, LOW, HIGH)
    assert may(STRING, where, file) == may_match
    assert must(STRING, where, file) == must_match


def test_prefixes_with_bounds_shorter_than_they():
    assert may(STRING, prefix("ab"), metrics(STRING, "a", "b"))
    assert may(STRING, prefix("ab"), metrics(STRING, "a", "ab"))
    assert not may(STRING, prefix("ab"), metrics(STRING, "a", "aa"))
    assert not may(STRING, prefix("ab"), metrics(STRING, "b", "c"))
    assert may(STRING, prefix("ab", negated=True), metrics(STRING, "a", "abc"))
    assert may(STRING, prefix("ab", negated=True), metrics(STRING, "ab", None))
    assert not may(STRING, prefix("ab", negated=True), metrics(STRING, "ab", "abz"))
    assert may(STRING, prefix("ab", negated=True), metrics(STRING, "ab", "abz", nulls=1))


SMALL, LARGE = (uuid.UUID(int=number << 124) for number in (1, 15))


LOW_HALF, HIGH_HALF = uuid.UUID(int=1), uuid.UUID(int=15 << 60)


@for_each(("lower", "upper"), [(SMALL, LARGE), (LARGE, SMALL), (LOW_HALF, HIGH_HALF), (HIGH_HALF, LOW_HALF)])
def test_bounds_of_uuids_are_read_in_both_orders(lower: uuid.UUID, upper: uuid.UUID):
    """Java compares them as two signed longs, so what begins with f is less than what begins with 1."""
    file = metrics(UUID, lower, upper)
    for value in (lower, upper):
        assert may(UUID, f"x = '{value}'", file)
        assert not must(UUID, f"x != '{value}'", file)
        for operation in ("<", "<=", ">", ">="):
            assert may(UUID, f"x {operation} '{value}'", file)
            assert not must(UUID, f"x {operation} '{value}'", file)


def test_uuids_outside_the_bounds_in_either_order_are_not_there():
    file = metrics(UUID, SMALL, SMALL)
    for other in (uuid.UUID(int=0), LARGE, uuid.UUID(int=SMALL.int + 1)):
        assert not may(UUID, f"x = '{other}'", file)
        assert not may(UUID, f"x IN ('{other}', '{LARGE}')", file)
        assert must(UUID, f"x != '{other}'", file)
    assert must(UUID, f"x = '{SMALL}'", file)


def test_one_bound_of_uuids_decides_its_side():
    above_half = uuid.UUID(int=1 << 124 | 15)
    from_small, up_to_small = metrics(UUID, SMALL), metrics(UUID, upper=SMALL)
    assert may(UUID, f"x = '{above_half}'", from_small)
    assert not may(UUID, f"x = '{above_half}'", up_to_small)
    assert may(UUID, f"x = '{SMALL}'", from_small)
    assert may(UUID, f"x = '{SMALL}'", up_to_small)
    assert not may(UUID, f"x = '{uuid.UUID(int=0)}'", from_small)
    assert may(UUID, f"x = '{uuid.UUID(int=0)}'", up_to_small)


@pytest.mark.slow
@given(st.data())
@cases(150)
def test_a_file_with_a_matching_row_may_match_and_where_it_must_all_rows_do(data: st.DataObject):
    table = data.draw(columns())
    expression = bind(data.draw(filters(table)), schema_of(table))
    content = data.draw(st.lists(rows(table), min_size=1, max_size=4))
    file = data.draw(metrics_of(table, content))
    matches = [row_matches(expression, row) for row in content]
    assert file_may_match(expression, file) or not any(matches)
    assert all(matches) or not file_must_match(expression, file)


@given(st.data())
@cases(100)
def test_a_file_may_match_for_readers_to_whom_null_is_unequal(data: st.DataObject):
    table = data.draw(columns(with_ends=False))
    expression = data.draw(predicates(table))
    assume(expression.operation is not OP.NOT_STARTS_WITH or expression.literals[0])  # binding decides it, as SQL does
    content = data.draw(st.lists(rows(table), min_size=1, max_size=3))
    file = data.draw(metrics_of(table, content))
    if any(matches_somehow(expression, table, row) for row in content):
        assert file_may_match(bind(expression, schema_of(table)), file)


def values_within(lower: int, upper: int, nulls: int) -> list[int | None]:
    return [*range(lower, upper + 1), *([None] if nulls else [])]


@for_each("nulls", [0, 1])
@for_each(("lower", "upper"), [(0, 0), (0, 1), (-1, 3)])
def test_whole_numbers_are_decided_as_exactly_as_bounds_allow(lower: int, upper: int, nulls: int):
    file = metrics(INT, lower, upper, nulls=nulls)
    possible = values_within(lower, upper, nulls)
    field = ask(INT, "x = 1").field
    asked = [BoundPredicate(operation, field, (literal,)) for operation in COMPARISONS for literal in range(-3, 6)]
    asked += [BoundPredicate(operation, field, pair) for operation in SETS for pair in ((-2, 0), (-2, 4), (2, 4))]
    for predicate in asked:
        matches = [row_matches(predicate, {1: value}) for value in possible]
        unequal_null = bool(nulls) and predicate.operation in (OP.NOT_EQ, OP.NOT_IN)
        assert file_may_match(predicate, file) == (any(matches) or unequal_null), predicate
        assert file_must_match(predicate, file) == all(matches), predicate


# Manifests


def summary(
    type_: Type, lower: Any = None, upper: Any = None, *, null: bool = False, nan: bool | None = None
) -> FieldSummary:
    return FieldSummary(
        contains_null=null,
        contains_nan=nan,
        lower_bound=None if lower is None else value_to_bytes(type_, lower),
        upper_bound=None if upper is None else value_to_bytes(type_, upper),
    )


def manifest_may(type_: Type, where: str | Predicate, *summaries: FieldSummary) -> bool:
    expression = ask(type_, where)
    return manifest_may_match(expression, (NestedField(field_id=1, name="x", type=type_),), summaries)


@for_each(
    ("where", "expected"),
    [
        ("x < 30", False), ("x < 31", True), ("x <= 30", True), ("x > 79", False), ("x >= 79", True), ("x = 29", False),
        ("x = 79", True), ("x != 30", True), ("x IN (29, 80)", False), ("x IN (29, 50)", True), ("x IS NULL", False),
        ("x IS NOT NULL", True), ("x NOT IN (30, 79)", True),
    ],
)  # fmt: skip
def test_summaries_decide_as_bounds_do(where: str, expected: bool):
    assert manifest_may(INT, where, summary(INT, 30, 79)) == expected


@for_each(("where", "expected"), [("x = 5", False), ("x IS NULL", True), ("x IS NOT NULL", False), ("x != 5", True)])
def test_a_manifest_of_null_partitions(where: str, expected: bool):
    assert manifest_may(INT, where, summary(INT, null=True)) == expected


def test_a_manifest_of_nan_partitions():
    nans = summary(DOUBLE, nan=True)
    assert manifest_may(DOUBLE, IS_NAN, nans)
    assert manifest_may(DOUBLE, "x IS NOT NULL", nans)
    assert manifest_may(DOUBLE, "x != 5", nans)
    assert not manifest_may(DOUBLE, NOT_NAN, nans)
    assert not manifest_may(DOUBLE, "x = 5", nans)
    assert not manifest_may(DOUBLE, IS_NAN, summary(DOUBLE, 1.0, 2.0, nan=False))
    assert manifest_may(DOUBLE, IS_NAN, summary(DOUBLE, 1.0, 2.0))
    # Without bounds null partitions may be all there is, or NaN may be among them.
    assert manifest_may(DOUBLE, "x IS NOT NULL", summary(DOUBLE, null=True))
    assert not manifest_may(DOUBLE, "x IS NOT NULL", summary(DOUBLE, null=True, nan=False))
    assert not manifest_may(DOUBLE, "x = 5", summary(DOUBLE, null=True))
    assert not manifest_may(DOUBLE, "x = 5", summary(DOUBLE))
    assert manifest_may(DOUBLE, "x IS NOT NULL", summary(DOUBLE))
    assert manifest_may(DOUBLE, "x = 5", summary(DOUBLE, nan=False))


def test_a_summary_that_contradicts_itself_decides_nothing():
    assert manifest_may(INT, "x = 5", summary(INT))
    assert manifest_may(INT, "x = 5", summary(INT, lower=5, null=True))


def test_a_manifest_without_summaries_may_match():
    fields = tuple(NestedField(field_id=i, name=f"p{i}", type=INT) for i in (1, 2))
    expression = And(BoundPredicate(OP.EQ, fields[0], (5,)), BoundPredicate(OP.EQ, fields[1], (5,)))
    assert manifest_may_match(expression, fields, None)
    assert manifest_may_match(expression, fields, [summary(INT, 5, 5)])
    assert not manifest_may_match(expression, fields, [summary(INT, 4, 4)])
    assert not manifest_may_match(expression, fields, [summary(INT, 5, 5), summary(INT, 4, 4)])


@st.composite
def manifests(draw: st.DrawFn) -> tuple[tuple[Column, ...], PartitionSpec, list[dict[int, Any]], list[FieldSummary]]:
    """A partitioned table, rows that are each in a file of their own, and the summaries of the manifest of these files."""
    table = draw(columns(with_ends=False))
    source = draw(st.sampled_from(table))
    candidates = [t for t in TRANSFORMS if t.accepts(source.type) and not isinstance(t, UnknownTransform)]
    transforms = draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=2))
    fields = tuple(
        PartitionField(source_id=source.field.field_id, field_id=1000 + i, name=f"p{i}", transform=transform)
        for i, transform in enumerate(transforms)
    )
    content = draw(st.lists(rows(table), min_size=1, max_size=4))
    columns_of_partitions = [
        [transform.apply(source.type, row[source.field.field_id]) for row in content] for transform in transforms
    ]
    types = [transform.result_type(source.type) for transform in transforms]
    summaries = [summary_of(draw, type_, values) for type_, values in zip(types, columns_of_partitions, strict=True)]
    return table, PartitionSpec(spec_id=0, fields=fields), content, summaries


@pytest.mark.slow
@given(st.data())
@cases(100)
def test_a_manifest_with_a_matching_row_may_match(data: st.DataObject):
    table, spec, content, summaries = data.draw(manifests())
    schema = schema_of(table)
    expression = bind(data.draw(filters(table)), schema)
    projection = project_inclusive(expression, spec, schema)
    may_match = manifest_may_match(projection, partition_type(spec, schema).fields, summaries)
    assert may_match or not any(row_matches(expression, row) for row in content)


# PyIceberg, asked the same

FOREIGN_TYPES = tuple(t for t in COLUMN_TYPES if t not in (UUID, TIMESTAMP_NS, TIMESTAMPTZ_NS))


@st.composite
def questions(draw: st.DrawFn) -> tuple[tuple[Column, ...], Predicate]:
    """A column and a predicate that PyIceberg understands as we do."""
    field = NestedField(field_id=1, name="c1", type=draw(st.sampled_from(FOREIGN_TYPES)), required=draw(st.booleans()))
    table = (Column(field, with_ends=False),)
    predicate = draw(predicates(table))
    # PyIceberg takes infinity for a literal beyond the range of float, so that nothing equals it.
    assume(not (field.type == FLOAT and any(math.isinf(literal) for literal in predicate.literals)))
    return table, predicate


def counted(counts: Any, expected: int) -> bool:
    return counts is not None and counts.get(1) == expected


@given(st.data())
@cases(100)
def test_files_are_pruned_wherever_pyiceberg_prunes_them(data: st.DataObject):
    table, predicate = data.draw(questions())
    schema = schema_of(table)
    content = data.draw(st.lists(rows(table), min_size=1, max_size=3))
    file = data.draw(metrics_of(table, content))
    question, their_schema, their_file = foreign_filter(predicate, schema), foreign_schema(schema), foreign_file(file)
    expression = bind(predicate, schema)
    if not foreign._InclusiveMetricsEvaluator(their_schema, question).eval(their_file):
        assert not file_may_match(expression, file)
    # It takes counts that are missing for zero, and null for unequal to a literal.
    no_nulls = counted(file.null_value_counts, 0) and counted(file.value_counts, len(content))
    no_nans = table[0].type not in (FLOAT, DOUBLE) or counted(file.nan_value_counts, 0)
    if no_nulls and no_nans and foreign._StrictMetricsEvaluator(their_schema, question).eval(their_file):
        assert file_must_match(expression, file)


@given(st.data())
@cases(100)
def test_manifests_are_pruned_wherever_pyiceberg_prunes_them(data: st.DataObject):
    table, spec, _, summaries = data.draw(manifests())
    assume(all(column.type in FOREIGN_TYPES for column in table))
    # PyIceberg holds a void field of a required column for required.
    assume(not any(isinstance(field.transform, Void) for field in spec.fields))
    schema = schema_of(table)
    fields = partition_type(spec, schema).fields
    partition_table = tuple(Column(field, with_ends=False) for field in fields)
    predicate = data.draw(predicates(partition_table))
    assume(not any(isinstance(literal, float) and math.isinf(literal) for literal in predicate.literals))
    partition_schema = schema_of(partition_table)
    evaluate = foreign.manifest_evaluator(
        foreign_spec(spec), foreign_schema(schema), foreign_filter(predicate, partition_schema)
    )
    if not evaluate(foreign_manifest(summaries)):
        assert not manifest_may_match(bind(predicate, partition_schema), fields, summaries)
