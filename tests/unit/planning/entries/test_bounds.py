import math
import struct
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.planning.prune import decode_bounds, encode_literals, in_java_order
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    UUID,
    ListType,
    Type,
    decimal,
    fixed,
)
from icekeep.spec.values import minimal_twos_complement, value_from_bytes, value_to_bytes
from kit.cases import cases
from kit.filters import COLUMN_TYPES, pool

WIDE = decimal(38, 2)
TYPES = (*COLUMN_TYPES, WIDE)


def decoded(type_: Type, *bounds: bytes | None) -> list[Any]:
    return decode_bounds(type_, pa.array(bounds, pa.binary())).to_pylist()


def known(type_: Type, *bounds: bytes) -> list[bool]:
    return [value is not None for value in decoded(type_, *bounds)]


def test_a_bound_that_is_not_there_is_unknown():
    for type_ in TYPES:
        assert decoded(type_, None, None) == [None, None]
        assert decoded(type_) == []


def test_whole_numbers_have_the_width_of_their_type():
    four, eight = struct.pack("<i", -2), struct.pack("<q", -(2**40))
    assert decoded(INT, four, eight, b"", b"\x01") == [-2, None, None, None]
    assert decoded(DATE, four, eight) == [-2, None]
    assert decoded(TIME, eight, four) == [-(2**40), None]
    assert decoded(LONG, eight, four, b"12345") == [-(2**40), -2, None]


def test_four_bytes_of_a_timestamp_are_days_from_before_its_promotion():
    day = struct.pack("<i", -2)
    assert decoded(TIMESTAMP, day) == [-2 * 86_400_000_000]
    assert decoded(TIMESTAMP_NS, day) == [-2 * 86_400_000_000_000]
    assert decoded(TIMESTAMPTZ, day) == [None]


@pytest.mark.parametrize("type_", [TIMESTAMP, TIMESTAMP_NS])
def test_days_beyond_the_range_of_a_timestamp_are_unknown(type_: Type):
    last = (2**63 - 1) // (86_400 * (10**6 if type_ == TIMESTAMP else 10**9))
    for days in (last, last + 1, -last, -last - 1, 2**31 - 1, -(2**31)):
        bound = struct.pack("<i", days)
        assert known(type_, bound) == [understood(type_, bound) is not None] == [abs(days) <= last]


def test_a_float_is_understood_after_its_promotion_and_zero_has_no_sign():
    four, eight = struct.pack("<f", 0.1), struct.pack("<d", 0.1)
    assert decoded(DOUBLE, four, eight, b"") == [struct.unpack("<f", four)[0], 0.1, None]
    assert decoded(FLOAT, four, eight) == [struct.unpack("<f", four)[0], None]
    [zero, infinite] = decoded(DOUBLE, struct.pack("<d", -0.0), struct.pack("<d", -math.inf))
    assert math.copysign(1, zero) == 1
    assert infinite == -math.inf


def test_nan_is_kept_also_one_that_signals():
    quiet, signals = struct.pack("<f", math.nan), bytes.fromhex("0100807f")
    assert all(math.isnan(value) for type_ in (FLOAT, DOUBLE) for value in decoded(type_, quiet, signals))


def test_a_boolean_is_one_byte():
    assert decoded(BOOLEAN, b"\x00", b"\x01", b"\x02", b"", b"\x00\x00") == [0, 1, 1, None, None]


def test_decimals_are_ordered_whatever_their_number_of_bytes():
    numbers = [-(2**127) + 1, -(10**37), -129, -128, -1, 0, 1, 127, 128, 10**37, 2**127 - 1]
    shortest = [minimal_twos_complement(number) for number in numbers]
    padded = [number.to_bytes(32, "big", signed=True) for number in numbers]
    keys = decoded(WIDE, *shortest)
    assert keys == sorted(keys) == decoded(WIDE, *padded)
    assert len(set(keys)) == len(numbers)


def test_decimals_of_more_than_38_digits_or_without_bytes_are_unknown():
    beyond = [number.to_bytes(17, "big", signed=True) for number in (2**127, -(2**127), -(2**127) - 1)]
    assert known(WIDE, *beyond, (-(2**127)).to_bytes(16, "big", signed=True)) == [False] * 4
    assert known(WIDE, b"", b"\x00" * 33, b"\xff" * 33, b"\xff" * 32) == [False, False, False, True]


def test_text_must_be_utf8():
    damaged = (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80")
    assert decoded(STRING, b"", b"a", *damaged, "é".encode()) == [b"", b"a", *[None] * len(damaged), "é".encode()]
    assert decoded(BINARY, *damaged) == list(damaged)


def test_fixed_bounds_may_be_short_and_uuids_may_not():
    assert decoded(fixed(2), b"", b"a", b"ab", b"abc") == [b"", b"a", b"ab", None]
    assert known(UUID, b"a" * 15, b"a" * 16, b"a" * 17) == [False, True, False]


def test_types_without_a_binary_form_have_no_bounds():
    assert decoded(ListType(element_id=2, element=INT), b"1234") == [None]


def test_a_literal_that_is_no_unicode_lies_where_its_code_point_does():
    [low, literal, high] = encode_literals(STRING, ["\ud7ff", "\ud800", "\ue000"]).to_pylist()
    assert low < literal < high


def test_java_compares_uuids_as_two_signed_longs():
    in_order = [(8, 8), (8, 0), (15, 15), (0, 8), (0, 0), (1, 8), (1, 15), (1, 0)]
    bounds = pa.array([uuid.UUID(int=high << 124 | low << 60).bytes for high, low in in_order] + [None], pa.binary())
    for uuids in (bounds, bounds.slice(3)):
        keys = in_java_order(decode_bounds(UUID, uuids)).to_pylist()
        assert keys[-1] is None
        assert keys[:-1] == sorted(keys[:-1])
    assert len(in_java_order(decode_bounds(UUID, bounds.slice(0, 0)))) == 0


def understood(type_: Type, bound: bytes) -> Any:
    try:
        return value_from_bytes(type_, bound)
    except InvalidTableError:
        return None


def some_bytes(type_: Type) -> st.SearchStrategy[bytes]:
    """Bounds of values, as they are, cut, longer, or of any bytes."""
    own = pool(type_).map(lambda value: value_to_bytes(type_, value))  # type: ignore[arg-type]
    return own | own.map(lambda b: b[:-1]) | own.map(lambda b: b + b"\xff") | st.binary(max_size=34)


@given(st.data())
@cases(300)
def test_bounds_are_known_and_ordered_as_their_values_are(data: st.DataObject):
    type_ = data.draw(st.sampled_from(TYPES))
    bounds = data.draw(st.lists(some_bytes(type_), min_size=2, max_size=6))
    values = [understood(type_, bound) for bound in bounds]
    array = decode_bounds(type_, pa.array([b"before", *bounds, None], pa.binary()).slice(1, len(bounds)))
    assert [key is not None for key in array.to_pylist()] == [value is not None for value in values]
    for position, value in enumerate(values):
        if value is None:
            continue
        others = [None if other is None else (other < value, other == value) for other in values]
        is_less, is_equal = (pc.less(array, array[position]), pc.equal(array, array[position]))
        found = zip(is_less.to_pylist(), is_equal.to_pylist(), strict=True)
        assert [None if less is None else (less, equal) for less, equal in found] == others


@given(st.data())
def test_literals_compare_with_bounds_of_their_value(data: st.DataObject):
    type_ = data.draw(st.sampled_from(TYPES))
    values = data.draw(st.lists(pool(type_).filter(lambda value: value == value), min_size=1, max_size=4))
    bounds = decode_bounds(type_, pa.array([value_to_bytes(type_, value) for value in values], pa.binary()))
    assert pc.all(pc.equal(bounds, encode_literals(type_, values))).as_py()
