"""Transforms of whole arrays are the transforms of their values one by one."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.projection import column_values
from icekeep.formats.evaluate import transformed
from icekeep.spec.transforms import UnknownTransform, parse_transform
from icekeep.spec.types import INT, LONG, STRING, TIMESTAMP_NS, TIMESTAMPTZ_NS, decimal
from kit.cases import cases
from kit.columns import PRIMITIVES, column, schema_of, table_of
from kit.strategies import values_of

TYPES = (*PRIMITIVES, TIMESTAMP_NS, TIMESTAMPTZ_NS, decimal(1, 0))
TEXTS = ("identity", "bucket[1]", "bucket[7]", "bucket[2147483647]", "truncate[1]", "truncate[3]", "truncate[1000]")
BEYOND = (INT, LONG, decimal(38, 10))
"""Types whose range a truncation may leave; they have tests of their own."""

TRANSFORMS = [parse_transform(text) for text in (*TEXTS, "year", "month", "day", "hour")]


def array_of(type_, found) -> pa.Array:
    array = table_of(schema_of(column(1, "a", type_)), [{"a": value} for value in found]).column(0).combine_chunks()
    return array.storage if isinstance(array, pa.ExtensionArray) else array


@pytest.mark.slow
@pytest.mark.parametrize("type_", TYPES, ids=str)
@cases(25)
@given(data=st.data())
def test_an_array_is_transformed_as_each_of_its_values(type_, data):
    found = data.draw(st.lists(st.none() | values_of(type_), max_size=8))
    for transform in TRANSFORMS:
        if not transform.accepts(type_):
            continue
        array, result_type = transformed(array_of(type_, found), type_, transform)
        expected = [transform.apply(type_, value) for value in found]
        if str(transform).startswith("truncate") and type_ in BEYOND:
            continue
        # As text: NaN is itself.
        assert repr(column_values(array, result_type)) == repr(expected)


@pytest.mark.parametrize(("type_", "least"), [(INT, -(2**31)), (LONG, -(2**63))], ids=str)
@given(data=st.data())
def test_whole_numbers_are_truncated_to_no_less_than_there_is(type_, least, data):
    found = data.draw(st.lists(st.none() | st.integers(least, least + 2000) | values_of(type_), max_size=8))
    for width in (1, 3, 1000, 2**31 - 1):
        transform = parse_transform(f"truncate[{width}]")
        array, _ = transformed(array_of(type_, found), type_, transform)
        exact = [transform.apply(type_, value) for value in found]
        # Of an int the number below the least one has room.
        assert array.to_pylist() == [None if v is None else max(v, -(2**63)) for v in exact]


def test_decimals_are_truncated_beyond_the_digits_of_their_type():
    widest = decimal(38, 0)
    for type_, digits in ((decimal(2, 0), 2), (widest, 38)):
        least = Decimal(-(10**digits) + 1)
        array, wide = transformed(array_of(type_, [least, None]), type_, parse_transform("truncate[10]"))
        assert wide == widest
        assert array.to_pylist() == [max(Decimal(-(10**digits)), Decimal(1 - 10**38)), None]


@pytest.mark.parametrize("found", [[], ["a"], [None]])
def test_what_does_not_take_the_type_is_an_error_whatever_the_values(found):
    array = array_of(STRING, found)
    with pytest.raises(InvalidTableError, match="'hour' cannot be applied to a column of type string"):
        transformed(array, STRING, parse_transform("hour"))
    with pytest.raises(UnsupportedError, match="shiny"):
        transformed(array, STRING, UnknownTransform("shiny"))
