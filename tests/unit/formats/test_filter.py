import math
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icekeep.spec.filters.expressions
import icekeep.spec.types
from icekeep.formats.evaluate import matches, rows_that_match
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
    Predicate,
)
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.types import (
    BINARY,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    UUID,
    ListType,
    NestedField,
    StructType,
    Type,
    decimal,
)
from kit.cases import cases, for_each
from kit.columns import column, schema_of, table_of
from kit.examples import check_examples
from kit.filters import columns, filters, rows
from kit.filters import schema_of as schema_of_columns

OP = Operation


def table(type_: Type, *values: Any) -> pa.Table:
    """The optional column x with id 1."""
    return table_of(schema_of(column(1, "x", type_)), [{"x": value} for value in values])


def ask(type_: Type, where: str | Predicate) -> Expression:
    return bind(parse_where(where) if isinstance(where, str) else where, schema_of(column(1, "x", type_)))


def found(type_: Type, where: str | Predicate, *values: Any) -> list[bool]:
    return rows_that_match(ask(type_, where), table(type_, *values)).to_pylist()


def prefix(start: Any, *, negated: bool = False) -> Predicate:
    return Predicate(OP.NOT_STARTS_WITH if negated else OP.STARTS_WITH, "x", (start,))


IS_NAN, NOT_NAN = Predicate(OP.IS_NAN, "x"), Predicate(OP.NOT_NAN, "x")


@for_each(
    ("where", "expected"),
    [
        ("x < 5", [True, False, False, False]), ("x <= 5", [True, True, False, False]),
        ("x > 5", [False, False, True, False]), ("x >= 5", [False, True, True, False]),
        ("x = 5", [False, True, False, False]), ("x != 5", [True, False, True, False]),
        ("x IN (4, 5)", [True, True, False, False]), ("x NOT IN (4, 5)", [False, False, True, False]),
        ("x IS NULL", [False, False, False, True]), ("x IS NOT NULL", [True, True, True, False]),
    ],
)  # fmt: skip
def test_nothing_but_is_null_is_true_of_null(where: str, expected: list[bool]):
    for type_ in (INT, LONG, FLOAT, DOUBLE):
        assert found(type_, where, 4, 5, 6, None) == expected
    price = decimal(9, 2)
    assert found(price, where, Decimal("4.00"), Decimal("5.00"), Decimal("6.00"), None) == expected


@pytest.mark.parametrize("type_", [FLOAT, DOUBLE])
def test_nan_is_unequal_to_everything_and_neither_less_nor_greater(type_: Type):
    for where in ("x < 5", "x <= 5", "x > 5", "x >= 5", "x = 5", "x IN (5, 6)", "x IS NULL", NOT_NAN):
        assert found(type_, where, math.nan) == [False]
    for where in ("x != 5", "x NOT IN (5, 6)", "x IS NOT NULL", IS_NAN):
        assert found(type_, where, math.nan) == [True]
    assert found(type_, NOT_NAN, None, 0.0, math.inf) == [True, True, True]
    assert found(type_, IS_NAN, None, 0.0, math.inf) == [False, False, False]


@pytest.mark.parametrize("literal", [0.0, -0.0])
def test_zero_equals_minus_zero(literal: float):
    for operation, literals in ((OP.EQ, (literal,)), (OP.IN, (literal, 1.0)), (OP.GT_EQ, (literal,))):
        assert found(DOUBLE, Predicate(operation, "x", literals), 0.0, -0.0) == [True, True]
    for operation, literals in ((OP.NOT_EQ, (literal,)), (OP.NOT_IN, (literal, 1.0)), (OP.LT, (literal,))):
        assert found(FLOAT, Predicate(operation, "x", literals), 0.0, -0.0) == [False, False]


def test_a_literal_that_is_no_unicode_is_compared_by_code_points():
    predicate = BoundPredicate(OP.LT, column(1, "x", STRING), ("\ud800",))
    values = ("\ud7ff", "\ue000", "\U00010000")
    expected = [row_matches(predicate, {1: value}) for value in values]
    assert rows_that_match(predicate, table(STRING, *values)).to_pylist() == expected == [True, False, False]


def test_text_and_bytes_start_with_a_prefix_or_not():
    for type_, start, values in (
        (STRING, "a_%", ("a_%c", "a_%", "a_", "axxc", "ba_%", None)),
        (BINARY, b"a\xff", (b"a\xffc", b"a\xff", b"a", b"a\xfe", b"ba\xff", None)),
    ):
        assert found(type_, prefix(start), *values) == [True, True, False, False, False, False]
        assert found(type_, prefix(start, negated=True), *values) == [False, False, True, True, True, False]


def test_uuids_are_ordered_as_unsigned_bytes():
    small, large = (uuid.UUID(int=number << 124) for number in (1, 15))
    assert found(UUID, f"x > '{small}'", small, large, None) == [False, True, False]
    assert found(UUID, f"x IN ('{small}', '{uuid.UUID(int=0)}')", small, large, None) == [True, False, False]


def test_decimals_of_any_precision_are_compared_exactly():
    widest = decimal(38, 0)
    most, less, least = (Decimal(digits) for digits in ("9" * 38, "9" * 37 + "8", "-" + "9" * 38))
    assert found(widest, f"x < {most}", most, less, least) == [False, True, True]
    beyond = BoundPredicate(OP.GT_EQ, column(1, "x", widest), (Decimal("-1" + "0" * 38),))
    assert rows_that_match(beyond, table(widest, least, None)).to_pylist() == [True, False]


@for_each(
    "type_",
    [
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
)
def test_strings_may_be_large_views_or_in_a_dictionary(type_: pa.DataType):
    values = pa.array(["a", "b", None, "ba"]).cast(type_)
    for where, expected in (
        ("x > 'a'", [False, True, False, True]),
        ("x IN ('a', 'ba')", [True, False, False, True]),
        (prefix("b"), [False, True, False, True]),
        ("x IS NULL", [False, False, True, False]),
    ):
        for data in (values, pa.chunked_array([values.slice(0, 1), values.slice(1)])):
            assert matches(ask(STRING, where), lambda _, data=data: data, 4).tolist() == expected


def test_null_in_a_dictionary_is_null():
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    assert matches(ask(STRING, "x IS NULL"), lambda _: values, 3).tolist() == [False, True, True]
    assert matches(ask(STRING, "x != 'b'"), lambda _: values, 3).tolist() == [True, False, False]


def test_numbers_may_be_in_a_dictionary():
    values = pa.array([5, None, 6, 5], pa.int64()).dictionary_encode()
    assert matches(ask(LONG, "x > 5"), lambda _: values, 4).tolist() == [False, False, True, False]
    assert matches(ask(LONG, "x IN (5, 7)"), lambda _: values, 4).tolist() == [True, False, False, True]


def test_only_predicates_on_columns_are_asked_for_and_only_if_undecided():
    field = column(1, "x", INT)
    asked: list[Operation] = []

    def give(predicate: BoundPredicate) -> pa.Array:
        asked.append(predicate.operation)
        return pa.array([1, 2], pa.int32())

    none, all_ = BoundPredicate(OP.LT, field, (0,)), BoundPredicate(OP.GT, field, (0,))
    assert not matches(And(none, all_), give, 2).any()
    assert matches(Or(all_, none), give, 2).all()
    assert asked == [OP.LT, OP.GT]


@pytest.mark.slow
def test_chains_may_be_longer_than_the_stack():
    field = column(1, "x", INT)
    chain: Expression = ALWAYS_FALSE
    for number in range(3000):
        chain = Or(chain, BoundPredicate(OP.EQ, field, (number,)))
    assert rows_that_match(chain, table(INT, 7, -1)).to_pylist() == [True, False]


def test_a_field_that_the_table_lacks_is_null():
    data = table_of(schema_of(column(2, "y", INT)), [{"y": 1}, {"y": None}])
    assert rows_that_match(ask(INT, "x IS NULL"), data).to_pylist() == [True, True]
    assert rows_that_match(ask(INT, "x != 1"), data).to_pylist() == [False, False]
    assert rows_that_match(ask(DOUBLE, NOT_NAN), data).to_pylist() == [True, True]


INNER = StructType(
    (column(3, "key", UUID), column(4, "n", INT), column(5, "tags", ListType(element_id=6, element=STRING)))
)
NESTED = schema_of(column(1, "a", StructType((column(2, "b", INNER),))))
KEY = uuid.UUID(int=7)


def nested(where: str) -> list[bool]:
    content = [
        {"a": {"b": {"key": KEY, "n": 1, "tags": []}}},
        {"a": {"b": {"key": None, "n": 2, "tags": None}}},
        {"a": {"b": None}},
        {"a": None},
    ]
    data = table_of(NESTED, content)
    expression = bind(parse_where(where), NESTED)
    at_once = rows_that_match(expression, data).to_pylist()
    in_chunks = rows_that_match(expression, pa.concat_tables([data.slice(0, 1), data.slice(1, 2), data.slice(3)]))
    assert in_chunks.to_pylist() == at_once
    return at_once


def test_what_lies_below_a_null_struct_is_not_seen():
    child = pa.array([5, 5], pa.int32())
    target = pa.field("n", pa.int32(), metadata={b"PARQUET:field_id": b"1"})
    structs = pa.StructArray.from_arrays([child], fields=[target], mask=pa.array([True, False]))
    field = NestedField(field_id=1, name="s.n", type=INT)
    data = pa.table({"s": structs})
    assert rows_that_match(BoundPredicate(OP.EQ, field, (5,)), data).to_pylist() == [False, True]
    assert rows_that_match(BoundPredicate(OP.EQ, field, (5,)), data.slice(1)).to_pylist() == [True]


@pytest.mark.slow
@given(st.data())
@cases(300)
def test_rows_match_as_they_do_one_by_one(data: st.DataObject):
    table_columns = data.draw(columns())
    schema = schema_of_columns(table_columns)
    expression = bind(data.draw(filters(table_columns)), schema)
    content = data.draw(st.lists(rows(table_columns), max_size=6))
    named = [{c.field.name: row[c.field.field_id] for c in table_columns} for row in content]
    arrow = table_of(schema, named)
    expected = [row_matches(expression, row) for row in content]
    assert rows_that_match(expression, arrow).to_pylist() == expected
    assert rows_that_match(expression, arrow.slice(1)).to_pylist() == expected[1:]
    mask = matches(expression, lambda p: arrow.column(p.field.name).combine_chunks(), len(content))
    assert mask.dtype == np.bool_
    assert mask.tolist() == expected


def test_examples():
    check_examples("formats/filter.txt", icekeep.spec.filters.expressions, icekeep.spec.types, globals())
