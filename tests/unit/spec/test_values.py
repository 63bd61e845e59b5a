import json
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID as Uuid

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg import conversions
from pyiceberg.types import IcebergType
from pyiceberg.utils.decimal import decimal_to_bytes

import icekeep.spec.values
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError
from icekeep.spec.times import age_ms, format_span, format_time, moment_ms, span_ms, whole_days
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
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
    parse_type,
)
from icekeep.spec.values import (
    civil_from_days,
    days_from_civil,
    decimal_from_unscaled,
    format_date,
    format_timestamp,
    lower_bound,
    minimal_twos_complement,
    parse_date,
    parse_time,
    parse_timestamp,
    read_bytes,
    require_length,
    shortest_digits,
    sort_key,
    to_single,
    unscaled,
    upper_bound,
    value_from_bytes,
    value_from_json,
    value_to_bytes,
    value_to_json,
)
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.strategies import (
    NANOSECOND_TYPES,
    nested_types,
    primitive_types,
    typed_values,
    values_in_python_years,
    values_of,
)

AN_UUID = Uuid("f79c3e09-677c-4bbd-a479-3f349cb785e7")
INTS = ListType(element_id=1, element=INT)
INTS_BY_NAME = MapType(key_id=1, key=STRING, value_id=2, value=INT)
POINT = StructType((NestedField(field_id=1, name="x", type=INT), NestedField(field_id=2, name="label", type=STRING)))
WITHOUT_VALUES = [UNKNOWN, VARIANT, parse_type("geometry"), parse_type("geography(OGC:CRS84, karney)")]


def same(one: Any, other: Any) -> bool:
    """Equal, NaN equal to itself, and the zeros told apart."""
    if isinstance(one, float):
        return isinstance(other, float) and struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


BYTES = [
    (BOOLEAN, False, "00"),
    (BOOLEAN, True, "01"),
    (INT, 34, "22000000"),
    (INT, -1, "ffffffff"),
    (LONG, 34, "2200000000000000"),
    (FLOAT, 1.0, "0000803f"),
    (DOUBLE, 1.0, "000000000000f03f"),
    (DATE, 17486, "4e440000"),
    (TIME, 81_068_000_000, "008307e012000000"),
    (TIMESTAMP, 1, "0100000000000000"),
    (TIMESTAMPTZ, -1, "ffffffffffffffff"),
    (TIMESTAMP_NS, 1, "0100000000000000"),
    (TIMESTAMPTZ_NS, 256, "0001000000000000"),
    (STRING, "icéberg", "6963c3a962657267"),
    (STRING, "", ""),
    (UUID, AN_UUID, "f79c3e09677c4bbda4793f349cb785e7"),
    (fixed(4), b"\x00\x01\x02\xff", "000102ff"),
    (BINARY, b"\x00\x01\x02\xff", "000102ff"),
    (BINARY, b"", ""),
    (decimal(9, 2), Decimal("14.20"), "058c"),
    (decimal(9, 2), Decimal("0.00"), "00"),
    (decimal(9, 2), Decimal("-0.01"), "ff"),
    (decimal(3, 0), Decimal("128"), "0080"),
]


@for_each(("type_", "value", "data"), BYTES)
def test_values_have_the_bytes_of_appendix_d(type_: Type, value: Any, data: str):
    assert value_to_bytes(type_, value).hex() == data
    assert same(value_from_bytes(type_, bytes.fromhex(data)), value)


@given(typed_values())
def test_values_survive_their_bytes(typed: tuple[Type, Any]):
    type_, value = typed
    assert same(value_from_bytes(type_, value_to_bytes(type_, value)), value)


@given(typed_values())
def test_bytes_agree_with_pyiceberg(typed: tuple[Type, Any]):
    type_, value = typed
    foreign = IcebergType.handle_primitive_type(str(type_), lambda name: name)
    data = conversions.to_bytes(foreign, value)
    assert value_to_bytes(type_, value) == data
    theirs = conversions.from_bytes(foreign, data)
    assert same(value_from_bytes(type_, data), Uuid(bytes=theirs) if type_ == UUID else theirs)


@for_each(
    ("type_", "data"),
    [
        (BOOLEAN, ""),
        (BOOLEAN, "0001"),
        (INT, ""),
        (INT, "2200000000000000"),
        (LONG, "220000"),
        (FLOAT, "000000000000f03f"),
        (DOUBLE, "00"),
        (DATE, "2200000000000000"),
        (TIME, "22000000"),
        (TIMESTAMPTZ, "4e440000"),
        (TIMESTAMPTZ_NS, "4e440000"),
        (TIMESTAMP_NS, "ffffff7f"),
        (STRING, "ff"),
        (UUID, "00"),
        (fixed(2), "000102"),
        (decimal(9, 2), ""),
        (decimal(9, 2), "01" + "00" * 16),
        (decimal(9, 2), "00" * 33),
    ],
)
def test_bytes_that_are_no_value_of_the_type_break_the_table(type_: Type, data: str):
    with pytest.raises(InvalidTableError, match="not a value of type") as caught:
        value_from_bytes(type_, bytes.fromhex(data))
    assert str(type_) in str(caught.value)


@for_each("type_", [*WITHOUT_VALUES, INTS, INTS_BY_NAME, POINT], ids=str)
def test_types_without_binary_values_are_named(type_: Type):
    for attempt in (value_to_bytes, value_from_bytes):
        with pytest.raises(UnsupportedError) as caught:
            attempt(type_, b"")
        assert f"type {type_} " in str(caught.value)


JSON = [
    (BOOLEAN, True, True),
    (INT, 34, 34),
    (LONG, 2**62, 2**62),
    (FLOAT, 1.0, 1.0),
    (DOUBLE, 1.0, 1.0),
    (decimal(9, 2), Decimal("14.20"), "14.20"),
    (decimal(9, 8), Decimal("0E-8"), "0.00000000"),
    (DATE, 17486, "2017-11-16"),
    (TIME, 81_068_123_456, "22:31:08.123456"),
    (TIMESTAMP, 1510871468123456, "2017-11-16T22:31:08.123456"),
    (TIMESTAMPTZ, 1510871468123456, "2017-11-16T22:31:08.123456+00:00"),
    (TIMESTAMP_NS, 1510871468123456789, "2017-11-16T22:31:08.123456789"),
    (TIMESTAMPTZ_NS, 1510871468123456789, "2017-11-16T22:31:08.123456789+00:00"),
    (STRING, "iceberg", "iceberg"),
    (UUID, AN_UUID, "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
    (fixed(4), b"\x00\x01\x02\xff", "000102ff"),
    (BINARY, b"\x00\x01\x02\xff", "000102ff"),
    (POINT, {1: 1, 2: "bar"}, {"1": 1, "2": "bar"}),
    (POINT, {}, {}),
    (POINT, {1: None}, {"1": None}),
    (INTS, (1, 2, 3), [1, 2, 3]),
    (INTS_BY_NAME, (("a", 1), ("b", 2)), {"keys": ["a", "b"], "values": [1, 2]}),
]


@for_each(("type_", "value", "form"), JSON)
def test_values_have_the_json_of_appendix_d(type_: Type, value: Any, form: Any):
    assert value_to_json(type_, value) == form
    assert same(value_from_json(type_, form), value)


@for_each("type_", [INT, *WITHOUT_VALUES, INTS, POINT], ids=str)
def test_null_is_null_in_json_for_every_type(type_: Type):
    assert value_to_json(type_, None) is None
    assert value_from_json(type_, None) is None


def has_json(value: Any) -> bool:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return all(map(has_json, value.values()))
    return (
        all(map(has_json, value)) if isinstance(value, tuple) else not isinstance(value, float) or math.isfinite(value)
    )


@given(typed_values(primitive_types() | nested_types()))
def test_values_survive_their_json_text(typed: tuple[Type, Any]):
    type_, value = typed
    if not has_json(value):
        with pytest.raises(UnsupportedError, match="JSON"):
            value_to_json(type_, value)
    else:
        assert same(value_from_json(type_, json.loads(json.dumps(value_to_json(type_, value)))), value)


@given(typed_values(primitive_types().filter(lambda t: t not in (FLOAT, *NANOSECOND_TYPES)), values_in_python_years))
def test_json_agrees_with_pyiceberg(typed: tuple[PrimitiveType, Any]):
    type_, value = typed
    assume(has_json(value))
    theirs = conversions.to_json(IcebergType.handle_primitive_type(str(type_), lambda name: name), value)
    # PyIceberg writes decimals like 0E-8, which say the same.
    assert value_to_json(type_, value) == (format(Decimal(theirs), "f") if type_.name == "decimal" else theirs)


@for_each("type_", WITHOUT_VALUES, ids=str)
def test_types_without_json_values_are_named(type_: Type):
    for attempt in (value_to_json, value_from_json):
        with pytest.raises(UnsupportedError) as caught:
            attempt(type_, "x")
        assert f"type {type_} " in str(caught.value)


@for_each("text", ["0", "0g", "0 0f", "0x00"])
def test_bytes_are_pairs_of_hexadecimal_digits(text: str):
    with pytest.raises(ValueError, match="two digits each"):
        read_bytes(text)
    assert read_bytes("00fF") == b"\x00\xff"
    assert read_bytes("") == b""


def test_only_fixed_values_have_a_length():
    assert require_length(fixed(2), b"ab") == require_length(BINARY, b"ab") == b"ab"
    for data in (b"a", b"abc"):
        with pytest.raises(ValueError, match=f"it has {len(data)} bytes"):
            require_length(fixed(2), data)


UNSCALED = st.integers(-(10**38) + 1, 10**38 - 1)


@for_each(
    ("value", "scale", "number"),
    [("14.20", 2, 1420), ("14.2", 2, 1420), ("-0.01", 2, -1), ("1E+2", 2, 10000), ("0E-40", 2, 0), ("0E+9999", 2, 0)],
)
def test_a_decimal_is_a_whole_number_at_a_scale(value: str, scale: int, number: int):
    assert unscaled(Decimal(value), scale) == number


@given(UNSCALED, st.integers(0, 38))
def test_a_decimal_keeps_all_38_digits(number: int, scale: int):
    value = decimal_from_unscaled(number, scale)
    assert value.as_tuple().exponent == -scale
    assert unscaled(value, scale) == number


@for_each("value", ["10.655", "1E-400", "NaN", "Infinity", "1E+1000000", "1E+39"])
def test_a_decimal_that_would_lose_digits_or_has_none_is_refused(value: str):
    with pytest.raises(ValueError):
        unscaled(Decimal(value), 2)


@given(UNSCALED)
def test_two_s_complement_agrees_with_pyiceberg(number: int):
    assert minimal_twos_complement(number) == decimal_to_bytes(Decimal(number))


@given(st.floats())
def test_rounding_to_32_bits_agrees_with_ieee_754(value: float):
    try:
        (expected,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        with pytest.raises(ValueError, match="range of float"):
            to_single(value)
    else:
        assert struct.pack("<f", to_single(value)) == struct.pack("<f", expected)


@given(st.floats(width=32, allow_nan=False))
def test_a_32_bit_float_survives_its_digits(value: float):
    digits = shortest_digits(value, single=True)
    assert struct.pack("<f", float(digits)) == struct.pack("<f", value)
    assert len(digits) <= len(repr(value))


MICROS = 1_000_000
NANOS = 1_000_000_000


@given(st.dates())
def test_dates_agree_with_the_standard_library(day: date):
    days = (day - date(1970, 1, 1)) // timedelta(days=1)
    assert civil_from_days(days) == (day.year, day.month, day.day)
    assert days_from_civil(day.year, day.month, day.day) == days
    assert format_date(days) == day.isoformat()


@pytest.mark.slow
@given(st.integers(-(2**31), 2**31 - 1))
def test_every_32_bit_date_survives_its_parts_and_its_text(days: int):
    assert days_from_civil(*civil_from_days(days)) == days
    assert parse_date(format_date(days)) == days


@for_each(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (11016, "2000-02-29"),
        (2932897, "+10000-01-01"),
        (-719163, "0000-12-31"),
        (-719529, "-0001-12-31"),
        (2**31 - 1, "+5881580-07-11"),
        (-(2**31), "-5877641-06-23"),
    ],
)
def test_years_beyond_four_digits_carry_a_sign(days: int, text: str):
    assert format_date(days) == text
    assert parse_date(text) == days


@for_each("text", ["2013-02-30", "2013-13-01", "2013-1-1", "13-01-01", "2013-01-01x", "", "٢٠١٣-01-01"])
def test_texts_that_are_no_date_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_date(text)


@for_each("text", ["24:00", "10:60", "10:12:60", "10", "10:12:55.", "10:12:55.0000001", "1:2:3"])
def test_texts_that_are_no_time_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_time(text, MICROS)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([MICROS, NANOS]))
def test_every_64_bit_timestamp_survives_its_text(ticks: int, per_second: int):
    assert parse_timestamp(format_timestamp(ticks, per_second), per_second) == (ticks, None)


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


@for_each("type_", [UNKNOWN, VARIANT, parse_type("geometry"), ListType(element_id=1, element=INT)], ids=str)
def test_types_without_an_order_are_named(type_: Type):
    with pytest.raises(UnsupportedError) as caught:
        sort_key([type_], [b""])
    assert str(type_) in str(caught.value)


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


SHORT_BYTES = [
    (b"ab", 2, b"ab", b"ab"),
    (b"abc", 2, b"ab", b"ac"),
    (b"a\xff\x00", 2, b"a\xff", b"b"),
    (b"a\xfe\x00", 2, b"a\xfe", b"a\xff"),
    (b"\xff\xff\xff", 2, b"\xff\xff", None),
]


@for_each(("value", "length", "lower", "upper"), SHORT_BYTES)
def test_bytes_are_cut_and_the_upper_bound_goes_up(value, length, lower, upper):
    assert (lower_bound(BINARY, value, length), upper_bound(BINARY, value, length)) == (lower, upper)


UUIDS = [Uuid(int=n) for n in (0, 1, 1 << 63, 1 << 127, (1 << 127) + 1)]


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


def test_examples():
    check_examples("spec/values.txt", icekeep.spec.values, globals())


NOW_MS = 1_767_225_600_000


@for_each("text", ["", "7x", "d", "--7d", "-7", "1.5d", "yesterday", "7 d", "2026-13-01", "2026-01-01T25:00", "７d"])
def test_anything_else_is_an_error_that_says_what_to_give(text):
    with pytest.raises(UsageError, match=r"cannot read the time .*; give ISO 8601"):
        moment_ms(text, NOW_MS)


@for_each("days", [3, "3", " 3 ", "3d", "72h", timedelta(days=3)])
def test_whole_days_are_a_number_a_text_or_a_timedelta(days):
    assert whole_days(days) == 3


@given(st.integers(min_value=100_000_000_000, max_value=4_102_444_800_000))
def test_a_formatted_time_is_read_back(milliseconds):
    assert moment_ms(format_time(milliseconds), NOW_MS) == milliseconds
    assert moment_ms(str(milliseconds), NOW_MS) == milliseconds


@given(st.integers(min_value=0, max_value=10**8), st.sampled_from("smhdw"))
def test_an_age_is_the_span_before_now(count, unit):
    assert moment_ms(f"{count}{unit}", NOW_MS) == NOW_MS - span_ms(f"{count}{unit}")


@for_each("text", ["7d", "36h", "90m", "1d", "1h", "1m", "1ms", "999ms"])
def test_span_is_shown_in_its_largest_whole_unit(text):
    assert format_span(span_ms(text)) == text


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1)))
def test_a_moment_is_cut_to_milliseconds(moment):
    assert moment_ms(moment, 0) == int(moment.timestamp()) * 1000 + moment.microsecond // 1000


@for_each("value", [1.5, True, date(2026, 1, 1), None])
def test_what_is_neither_a_moment_nor_a_span_is_refused(value):
    with pytest.raises(UsageError, match="is no time; give a datetime with a time zone"):
        moment_ms(value, NOW_MS)
    with pytest.raises(UsageError, match="is no span; give a timedelta, text such as 7d"):
        span_ms(value)


@for_each(
    "text", ["", "7", "d", "7D", "7 d", "-7d", "1.5h", "7y", "1234567890d", "1234567890123456ms", "1Ms", "ms", "٧d"]
)
def test_anything_else_is_no_age(text: str):
    with pytest.raises(ValueError, match="an age is a whole number with ms, s, m, h, d or w"):
        age_ms(text)


def test_examples_of_times():
    check_examples("spec/times.txt", globals())
