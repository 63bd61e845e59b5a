import math
import struct
from decimal import Decimal
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.types import BINARY, DOUBLE, FLOAT, INT, STRING, decimal, fixed
from icekeep.spec.values import are_crossed, lower_bound, upper_bound, value_from_bytes
from kit.cases import for_each
from kit.strategies import typed_values

HIGHEST = "\U0010ffff"

TEXT = [
    ("aaa", 3, "aaa", "aaa"),
    ("aaaa", 3, "aaa", "aab"),
    ("😀😀😀", 2, "😀😀", "😀😁"),
    ("a\ud7ffz", 2, "a\ud7ff", "a\ue000"),
    ("b" + HIGHEST + "z", 2, "b" + HIGHEST, "c"),
    ("a\U0010fffez", 2, "a\U0010fffe", "a" + HIGHEST),
    (HIGHEST * 2, 2, HIGHEST * 2, HIGHEST * 2),
    (HIGHEST * 3, 2, HIGHEST * 2, None),
    ("", 1, "", ""),
]


@for_each(("value", "length", "lower", "upper"), TEXT)
def test_text_is_cut_by_code_points_and_the_upper_bound_goes_up(value, length, lower, upper):
    assert lower_bound(STRING, value, length) == lower.encode()
    assert upper_bound(STRING, value, length) == (None if upper is None else upper.encode())


BYTES = [
    (b"ab", 2, b"ab", b"ab"),
    (b"abc", 2, b"ab", b"ac"),
    (b"a\xff\x00", 2, b"a\xff", b"b"),
    (b"a\xfe\x00", 2, b"a\xfe", b"a\xff"),
    (b"\xff\xff\xff", 2, b"\xff\xff", None),
]


@for_each(("value", "length", "lower", "upper"), BYTES)
def test_bytes_are_cut_and_the_upper_bound_goes_up(value, length, lower, upper):
    assert (lower_bound(BINARY, value, length), upper_bound(BINARY, value, length)) == (lower, upper)


UUIDS = [UUID(int=n) for n in (0, 1, 1 << 63, 1 << 127, (1 << 127) + 1)]


def test_bounds_are_crossed_where_the_lower_is_above_the_upper_in_any_order_that_writers_have():
    assert are_crossed(2, 1)
    assert are_crossed("b", "a")
    assert not any(are_crossed(*pair) for pair in ((1, 1), (1, 2), (None, 1), (2, None), (None, None)))
    above = {(one, two) for one in UUIDS for two in UUIDS if are_crossed(one, two)}
    # As signed numbers the last three are the least.
    assert above == {(UUIDS[1], UUIDS[0]), (UUIDS[4], UUIDS[3])}


def test_without_a_length_nothing_is_cut():
    assert (lower_bound(STRING, HIGHEST * 99), upper_bound(STRING, HIGHEST * 99)) == ((HIGHEST * 99).encode(),) * 2


def test_only_text_and_binary_are_cut():
    assert upper_bound(fixed(3), b"abc", 1) == b"abc"
    assert upper_bound(INT, 2**30, 1) == struct.pack("<i", 2**30)
    assert upper_bound(decimal(9, 2), Decimal("123.45"), 1) == (12345).to_bytes(2, "big")


@for_each(("type_", "form"), [(FLOAT, "<f"), (DOUBLE, "<d")], ids=str)
@for_each("zero", [0.0, -0.0])
def test_a_zero_bound_includes_both_zeros(type_, form, zero):
    assert lower_bound(type_, zero) == struct.pack(form, -0.0)
    assert upper_bound(type_, zero) == struct.pack(form, 0.0)


@given(st.text(), st.text(), st.integers(1, 5))
def test_every_text_lies_between_its_truncated_bounds(text, suffix, length):
    lower, upper = lower_bound(STRING, text, length).decode(), upper_bound(STRING, text, length)
    assert lower <= text
    assert len(lower) <= length
    if upper is None:
        assert text.startswith(HIGHEST * length)
    else:
        assert text <= upper.decode()
        assert len(upper.decode()) <= length
        assert len(text) <= length or text[:length] + suffix <= upper.decode()


@given(st.binary(), st.integers(1, 5))
def test_all_bytes_lie_between_their_truncated_bounds(data, length):
    lower, upper = lower_bound(BINARY, data, length), upper_bound(BINARY, data, length)
    assert lower <= data
    assert len(lower) <= length
    assert data[:length] == b"\xff" * length if upper is None else data <= upper and len(upper) <= length


@given(typed_values(), st.none() | st.integers(1, 20))
def test_a_value_of_any_type_lies_between_its_bounds(typed, length):
    type_, value = typed
    if isinstance(value, float) and math.isnan(value):
        return
    upper = upper_bound(type_, value, length)
    assert value_from_bytes(type_, lower_bound(type_, value, length)) <= value
    assert upper is None or value <= value_from_bytes(type_, upper)
