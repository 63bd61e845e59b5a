import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, UnsupportedError
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    UNKNOWN,
    UUID,
    VARIANT,
    ListType,
    PrimitiveType,
    Type,
    decimal,
    fixed,
    parse_type,
)
from icekeep.spec.values import sort_key
from kit.cases import cases, for_each
from kit.strategies import primitive_types, values_of


def order(value: Any) -> Any:
    """What Python compares as the spec orders values."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        # Zeros apart, NaN after everything.
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value) if value == 0 else 0)
    if isinstance(value, str):
        return (1, [ord(character) for character in value])
    return (1, value)


def type_with_values() -> st.SearchStrategy[tuple[PrimitiveType, Any, Any]]:
    def near(type_: PrimitiveType) -> st.SearchStrategy[Any]:
        values = values_of(type_) | st.none()
        pairs = values.flatmap(lambda value: st.tuples(st.just(value), st.just(value) | values))
        return pairs.map(lambda pair: (type_, *pair))

    return primitive_types().flatmap(near)


@pytest.mark.slow
@cases(500)
@given(st.lists(type_with_values(), max_size=4))
def test_keys_compare_as_tuples_of_values_do(columns: list[tuple[PrimitiveType, Any, Any]]):
    types = [type_ for type_, _, _ in columns]
    ones, others = ([column[side] for column in columns] for side in (1, 2))
    keys = sort_key(types, ones), sort_key(types, others)
    values = [order(value) for value in ones], [order(value) for value in others]
    assert (keys[0] < keys[1]) == (values[0] < values[1])
    assert (keys[0] == keys[1]) == (values[0] == values[1])


IN_ORDER = [
    (BOOLEAN, [None, False, True]),
    (INT, [None, -(2**31), -1, 0, 1, 255, 256, 2**31 - 1]),
    (LONG, [None, -(2**63), -256, -1, 0, 2**63 - 1]),
    (FLOAT, [None, -math.inf, -1.5, -0.0, 0.0, 0.4, 1.0, 1.5, math.inf, math.nan]),
    (DOUBLE, [None, -math.inf, -1e300, -5e-324, -0.0, 0.0, 5e-324, 3e-5, 1e-4, 1e300, math.inf, math.nan]),
    (STRING, [None, "", "\x00", "\x00\x00", "\x00a", "a", "a\x00", "aa", "b", "\uffff", "😀"]),
    (BINARY, [None, b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\x01", b"\xff", b"\xff\x00"]),
    (fixed(2), [None, b"\x00\x00", b"\x00\xff", b"\xff\x00"]),
    (decimal(38, 2), [None, *(Decimal(n).scaleb(-2) for n in (-(10**27), -100, -1, 0, 1, 100, 10**27))]),
]


@for_each(("type_", "values"), IN_ORDER, ids=lambda part: str(part) if isinstance(part, Type) else "")
def test_values_at_the_edges_are_in_order(type_: Type, values: list[Any]):
    keys = [sort_key([type_], [value]) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


@for_each(("type_", "values"), IN_ORDER, ids=lambda part: str(part) if isinstance(part, Type) else "")
def test_a_value_of_the_first_column_never_runs_into_the_second(type_: Type, values: list[Any]):
    pairs = [(one, other) for one in values for other in values]
    keys = [sort_key([type_, type_], pair) for pair in pairs]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_all_nans_are_one():
    assert sort_key([DOUBLE], [math.copysign(math.nan, -1)]) == sort_key([DOUBLE], [math.nan])


def test_every_value_needs_its_type():
    with pytest.raises(ValueError):
        sort_key([INT], [1, 2])


def test_null_has_a_key_in_every_type():
    assert sort_key([UNKNOWN, VARIANT], [None, None]) == b"\x00\x00"


@for_each("type_", [UNKNOWN, VARIANT, parse_type("geometry"), ListType(element_id=1, element=INT)], ids=str)
def test_types_without_an_order_are_named(type_: Type):
    with pytest.raises(UnsupportedError) as caught:
        sort_key([type_], [b""])
    assert str(type_) in str(caught.value)


@for_each(
    ("type_", "value"),
    [
        (INT, 2**31),
        (INT, -(2**31) - 1),
        (LONG, "1"),
        (STRING, 1),
        (BINARY, "a"),
        (UUID, b""),
        (FLOAT, 1e300),
        (decimal(3, 2), 1),
    ],
)
def test_a_value_that_is_not_of_the_type_is_a_bug(type_: Type, value: Any):
    with pytest.raises(IcekeepBug, match="is not one of type"):
        sort_key([type_], [value])
