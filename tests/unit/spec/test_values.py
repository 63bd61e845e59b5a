import json
import math
import struct
from decimal import Decimal
from typing import Any
from uuid import UUID as Uuid

import pytest
from hypothesis import assume, given
from pyiceberg import conversions
from pyiceberg.types import IcebergType

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
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
    read_bytes,
    read_uuid,
    require_length,
    value_from_bytes,
    value_from_json,
    value_to_bytes,
    value_to_json,
    value_to_text,
)
from kit.cases import for_each
from kit.strategies import (
    NANOSECOND_TYPES,
    nested_types,
    primitive_types,
    typed_values,
    values_in_python_years,
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
    ("type_", "data", "value"),
    [
        (LONG, "ffffffff", -1),
        (DOUBLE, "0000803f", 1.0),
        (TIMESTAMP, "4e440000", 17486 * 86_400_000_000),
        (TIMESTAMP_NS, "4e440000", 17486 * 86_400_000_000_000),
        (decimal(38, 2), "058c", Decimal("14.20")),
        (decimal(9, 2), "0000058c", Decimal("14.20")),
    ],
)
def test_bytes_from_before_a_promotion_are_read_as_the_new_type(type_: Type, data: str, value: Any):
    assert same(value_from_bytes(type_, bytes.fromhex(data)), value)


def test_any_byte_but_zero_is_true():
    assert value_from_bytes(BOOLEAN, b"\x02") is True


def test_a_fixed_value_may_be_a_shortened_bound():
    assert value_from_bytes(fixed(4), b"\x01\x02") == b"\x01\x02"
    assert value_to_bytes(fixed(4), b"\x01\x02") == b"\x01\x02"


def test_a_buffer_is_read_as_bytes():
    assert value_from_bytes(BINARY, memoryview(b"ab")) == b"ab"


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


@for_each(
    ("type_", "value"),
    [
        (INT, 2**31),
        (LONG, -(2**63) - 1),
        (INT, True),
        (INT, 1.0),
        (INT, None),
        (BOOLEAN, 1),
        (FLOAT, 1),
        (FLOAT, 1e300),
        (STRING, b"a"),
        (STRING, "\ud800"),
        (BINARY, "a"),
        (fixed(2), b"abc"),
        (UUID, str(AN_UUID)),
        (decimal(9, 2), Decimal("1.5")),
        (decimal(9, 2), Decimal("NaN")),
    ],
)
def test_writing_a_value_that_is_not_of_the_type_is_a_bug(type_: Type, value: Any):
    with pytest.raises(IcekeepBug, match="is not one of type"):
        value_to_bytes(type_, value)


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_no_words_for_nan_and_infinity(value: float):
    with pytest.raises(UnsupportedError, match="finite numbers only"):
        value_to_json(DOUBLE, value)


def test_a_32_bit_float_has_no_digits_of_a_64_bit_one_in_json():
    assert value_to_json(FLOAT, struct.unpack("<f", struct.pack("<f", 0.1))[0]) == 0.1


@for_each(
    ("type_", "form"),
    [
        (BOOLEAN, 1),
        (BOOLEAN, "true"),
        (INT, 2**31),
        (INT, True),
        (INT, 1.5),
        (LONG, "34"),
        (DOUBLE, "1.0"),
        (DOUBLE, True),
        (DOUBLE, math.nan),
        (FLOAT, 1e300),
        (decimal(9, 2), "14.2"),
        (decimal(9, 2), "14.200"),
        (decimal(3, 2), "14.20"),
        (decimal(9, 2), "NaN"),
        (decimal(9, 2), "x"),
        (decimal(9, 2), 14.2),
        (DATE, 17486),
        (DATE, "2017-02-30"),
        (TIME, "24:00:00"),
        (TIMESTAMP, "2017-11-16T22:31:08.123456+00:00"),
        (TIMESTAMPTZ, "2017-11-16T22:31:08.123456"),
        (TIMESTAMPTZ, "2017-11-16T22:31:08.123456+01:00"),
        (TIMESTAMP, "2017-11-16T22:31:08.123456789"),
        (TIMESTAMP_NS, "2900-01-01T00:00:00"),
        (STRING, 1),
        (UUID, "f79c3e09677c4bbda4793f349cb785e7"),
        (fixed(2), "00"),
        (BINARY, "0"),
        (BINARY, "0 0"),
        (INTS, {"0": 1}),
        (INTS, ["a"]),
        (INTS_BY_NAME, {"keys": ["a"], "values": []}),
        (INTS_BY_NAME, {"a": 1}),
        (POINT, [1]),
        (POINT, {"9": 1}),
    ],
)
def test_json_that_is_no_value_of_the_type_breaks_the_table(type_: Type, form: Any):
    with pytest.raises(InvalidTableError, match="is not one of type"):
        value_from_json(type_, form)


@for_each("type_", WITHOUT_VALUES, ids=str)
def test_types_without_json_values_are_named(type_: Type):
    for attempt in (value_to_json, value_from_json):
        with pytest.raises(UnsupportedError) as caught:
            attempt(type_, "x")
        assert f"type {type_} " in str(caught.value)


@for_each(
    ("type_", "value", "text"),
    [
        (INT, None, "null"),
        (UNKNOWN, None, "null"),
        (BOOLEAN, True, "true"),
        (INT, -5, "-5"),
        (DATE, 15706, "2013-01-01"),
        (TIME, 0, "00:00:00"),
        (TIMESTAMP, 1512123175038194, "2017-12-01T10:12:55.038194"),
        (TIMESTAMP, 1512123175500000, "2017-12-01T10:12:55.500000"),
        (TIMESTAMPTZ, -1_000_000, "1969-12-31T23:59:59+00:00"),
        (TIMESTAMP_NS, 1, "1970-01-01T00:00:00.000000001"),
        (STRING, "a b", "a b"),
        (UUID, AN_UUID, str(AN_UUID)),
        (BINARY, b"\x00\xff", "00ff"),
        (decimal(20, 10), Decimal("1E-10"), "0.0000000001"),
        (DOUBLE, 0.1, "0.1"),
        (FLOAT, 0.10000000149011612, "0.1"),
        (DOUBLE, math.nan, "nan"),
    ],
)
def test_values_are_shown_to_people(type_: Type, value: Any, text: str):
    assert value_to_text(type_, value) == text


@pytest.mark.parametrize(
    "text", ["f79c3e09", "f79c3e09-677c-4bbd-a479-3f349cb785e", "F79C3E09677C4BBDA4793F349CB785E7"]
)
def test_a_uuid_has_36_characters(text: str):
    with pytest.raises(ValueError, match="a uuid looks like"):
        read_uuid(text)
    assert read_uuid(str(AN_UUID).upper()) == AN_UUID


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
