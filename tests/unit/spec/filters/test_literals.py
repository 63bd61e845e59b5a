import math
from decimal import Decimal
from typing import Any
from uuid import UUID as Uuid

import pytest
from hypothesis import given
from pyiceberg import conversions
from pyiceberg.types import IcebergType

from icekeep.errors import ExpressionError
from icekeep.spec.filters.binding import LiteralPosition, exact_limits, is_comparable, locate_literal
from icekeep.spec.filters.expressions import DateLiteral, NowLiteral, TimestampLiteral
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
    NestedField,
    StructType,
    Type,
    decimal,
    fixed,
    parse_type,
)
from icekeep.spec.values import value_to_bytes, value_to_text
from kit.cases import for_each
from kit.strategies import primitive_types, typed_values, values_in_python_years, values_of

LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")
AN_UUID = Uuid("f79c3e09-677c-4bbd-a479-3f349cb785e7")
HOUR_MS = 3_600_000
DAY_NANOS = 86_400 * 10**9


def place(type_: Type, literal: Any) -> LiteralPosition:
    return locate_literal(NestedField(field_id=1, name="x", type=type_), literal)


VALUES = [
    (BOOLEAN, True, True),
    (INT, 34, 34),
    (INT, 34.0, 34),
    (INT, Decimal("34.00"), 34),
    (INT, Decimal("-0"), 0),
    (LONG, -(2**63), -(2**63)),
    (DOUBLE, 1, 1.0),
    (DOUBLE, Decimal("0.1"), 0.1),
    (DOUBLE, math.inf, math.inf),
    (DOUBLE, "Infinity", math.inf),
    (FLOAT, "-inf", -math.inf),
    (FLOAT, "+INFINITY", math.inf),
    (FLOAT, 0.1, 0.10000000149011612),
    (FLOAT, LARGEST_FLOAT, LARGEST_FLOAT),
    (decimal(9, 2), 14, Decimal("14.00")),
    (decimal(9, 2), 14.2, Decimal("14.20")),
    (decimal(9, 2), Decimal("14.200"), Decimal("14.20")),
    (decimal(9, 2), "14.2", Decimal("14.20")),
    (decimal(38, 38), Decimal("-1E-38"), Decimal("-1E-38")),
    (DATE, "2013-02-28", 15764),
    (DATE, DateLiteral(-1), -1),
    (TIME, "22:31:08", 81_068_000_000),
    (TIMESTAMP, "2017-11-16T22:31:08", 1510871468000000),
    (TIMESTAMP, "2017-11-16 22:31:08.000001", 1510871468000001),
    (TIMESTAMP, "2017-11-16", 1510790400000000),
    (TIMESTAMPTZ, "2017-11-16T14:31:08-08:00", 1510871468000000),
    (TIMESTAMPTZ, "2017-11-16T22:31:08", 1510871468000000),
    (TIMESTAMP_NS, "2017-11-16T22:31:08.000001001", 1510871468000001001),
    (TIMESTAMPTZ_NS, "2017-11-16T22:31:08Z", 1510871468000000000),
    (TIMESTAMP, TimestampLiteral(-1000), -1),
    (TIMESTAMPTZ, TimestampLiteral(5000, zoned=True), 5),
    (TIMESTAMP_NS, TimestampLiteral(5), 5),
    (STRING, "abc", "abc"),
    (UUID, str(AN_UUID).upper(), AN_UUID),
    (UUID, AN_UUID, AN_UUID),
    (fixed(2), "00FF", b"\x00\xff"),
    (fixed(2), b"\x00\xff", b"\x00\xff"),
    (BINARY, "", b""),
    (BINARY, b"ab", b"ab"),
]


@for_each(("type_", "literal", "value"), VALUES)
def test_literals_become_values_of_the_column(type_: Type, literal: Any, value: Any):
    found = place(type_, literal)
    assert found == LiteralPosition(value)
    assert type(found.value) is type(value)


@for_each(
    ("type_", "literal", "side"),
    [
        (INT, 2**31 - 1, 0), (INT, 2**31, 1), (INT, -(2**31), 0), (INT, -(2**31) - 1, -1),
        (INT, 2147483647.5, 1), (INT, Decimal("2147483647.1"), 1), (INT, math.inf, 1), (INT, Decimal("-Infinity"), -1),
        (INT, Decimal("-2147483648.1"), -1), (INT, Decimal("1E+999999"), 1), (INT, Decimal("-1E+999999"), -1),
        (LONG, 2**63 - 1, 0), (LONG, 2**63, 1), (LONG, -(2**63) - 1, -1), (LONG, Decimal("1E+400"), 1),
        (decimal(3, 1), Decimal("99.9"), 0), (decimal(3, 1), 100, 1), (decimal(3, 1), Decimal("-99.91"), -1),
        (decimal(3, 1), Decimal("99.91"), 1), (decimal(3, 1), Decimal("-99.9"), 0), (decimal(38, 0), 10**38, 1),
        (FLOAT, LARGEST_FLOAT, 0), (FLOAT, 3.4028235e38, 1), (FLOAT, -3.4028235e38, -1), (FLOAT, 10**400, 1),
        (FLOAT, math.inf, 0), (FLOAT, Decimal("Infinity"), 0), (FLOAT, Decimal("1E+39"), 1),
        (DOUBLE, 1.7976931348623157e308, 0), (DOUBLE, 10**309, 1), (DOUBLE, -math.inf, 0), (DOUBLE, -(10**309), -1),
        (DATE, DateLiteral(2**31), 1), (DATE, DateLiteral(-(2**31)), 0), (DATE, "-9999999-01-01", -1),
        (TIMESTAMP_NS, "9999-12-31", 1), (TIMESTAMP_NS, "1500-01-01", -1), (TIMESTAMP, "9999-12-31", 0),
        (TIMESTAMPTZ_NS, DateLiteral(10**6), 1), (TIMESTAMP, TimestampLiteral(2**63 * 1000), 1),
        (TIMESTAMP, TimestampLiteral(2**63 * 1000 - 1), 1), (TIMESTAMP, TimestampLiteral(2**63 * 1000 - 1000), 0),
    ],
)  # fmt: skip
def test_literals_lie_inside_the_range_of_a_type_or_on_one_side_of_it(type_: Type, literal: Any, side: int):
    assert place(type_, literal).side == side


@for_each(
    ("type_", "literal", "below"),
    [
        (INT, 2.5, 2),
        (INT, -2.5, -3),
        (LONG, Decimal("-0.0001"), -1),
        (LONG, Decimal("1E-400"), 0),
        (decimal(9, 2), Decimal("14.205"), Decimal("14.20")),
        (decimal(9, 2), 14.205, Decimal("14.20")),
        (decimal(9, 2), Decimal("-14.205"), Decimal("-14.21")),
        (decimal(3, 1), Decimal("99.85"), Decimal("99.8")),
        (TIME, "22:31:08.0000015", 81_068_000_001),
        (TIMESTAMP, "1970-01-01T00:00:00.000000999", 0),
        (TIMESTAMP, TimestampLiteral(-1), -1),
        (TIMESTAMPTZ, TimestampLiteral(1001, zoned=True), 1),
    ],
)
def test_literals_with_more_digits_than_the_type_lie_between_two_of_its_values(type_: Type, literal: Any, below: Any):
    assert place(type_, literal) == LiteralPosition(below, is_above=True)


@for_each(
    ("type_", "literal"),
    [
        (BOOLEAN, 1), (BOOLEAN, "true"), (INT, "12"), (INT, True), (LONG, math.nan), (INT, Decimal("sNaN")), (INT, None),
        (INT, Decimal("1E-1001")), (INT, DateLiteral(5)), (DOUBLE, "1"), (DOUBLE, True), (DOUBLE, math.nan),
        (DOUBLE, Decimal("NaN")), (DOUBLE, NowLiteral(5)), (decimal(9, 2), True), (decimal(9, 2), math.nan),
        (decimal(9, 2), "a"), (decimal(9, 2), b"1"), (DATE, "2013-02-30"), (DATE, "2013-01-01T00:00:00"), (DATE, 15706),
        (DATE, TimestampLiteral(0)), (TIME, "25:00"), (TIME, NowLiteral(0)), (TIMESTAMP, 1510871468000000),
        (TIMESTAMP, "2017-11-16T22:31:08Z"), (TIMESTAMP, TimestampLiteral(0, zoned=True)), (STRING, 5),
        (STRING, "\udcff"), (STRING, b"a"), (STRING, DateLiteral(0)), (UUID, "f79c3e09"), (UUID, b"0" * 16),
        (BINARY, "0g"), (BINARY, 5), (fixed(2), "00"), (fixed(2), b"abc"),
    ],
)  # fmt: skip
def test_literals_that_cannot_be_compared_are_refused_with_the_column_and_the_type(type_: Type, literal: Any):
    with pytest.raises(ExpressionError) as caught:
        place(type_, literal)
    assert caught.value.message.startswith("column 'x': ")
    assert f"cannot be compared with type {type_}:" in caught.value.message
    assert caught.value.facts == {"column": "x", "literal": str(literal), "type": str(type_)}


@pytest.mark.parametrize(
    ("type_", "literal", "shown"), [(INT, True, "true"), (INT, DateLiteral(0), "DATE '1970-01-01'"), (INT, "x", "'x'")]
)
def test_a_refused_literal_is_shown_as_it_was_written(type_: Type, literal: Any, shown: str):
    with pytest.raises(ExpressionError, match=f"^column 'x': {shown} cannot"):
        place(type_, literal)


def test_today_is_midnight_to_timestamps_and_now_is_its_day_to_dates():
    today, now = DateLiteral(3), NowLiteral(3 * 24 * HOUR_MS + 5 * HOUR_MS)
    assert place(DATE, today) == place(DATE, now) == LiteralPosition(3)
    assert place(TIMESTAMP, today) == LiteralPosition(3 * DAY_NANOS // 1000)
    assert place(TIMESTAMPTZ_NS, today) == LiteralPosition(3 * DAY_NANOS)
    assert place(TIMESTAMPTZ, now) == LiteralPosition(now.epoch_ms * 1000)
    assert place(TIMESTAMP_NS, now) == LiteralPosition(now.epoch_ms * 10**6)
    assert place(DATE, NowLiteral(-1)) == LiteralPosition(-1)


def test_whole_and_decimal_numbers_have_exact_limits():
    assert exact_limits(INT) == (-(2**31), 2**31 - 1)
    assert exact_limits(TIMESTAMP_NS) == (-(2**63), 2**63 - 1)
    assert exact_limits(decimal(38, 0)) == (Decimal(-(10**38) + 1), Decimal(10**38 - 1))
    assert exact_limits(decimal(2, 2)) == (Decimal("-0.99"), Decimal("0.99"))
    for type_ in (FLOAT, STRING, BOOLEAN, ListType(element_id=2, element=INT)):
        assert exact_limits(type_) is None


def test_types_without_an_order_are_not_comparable():
    point = StructType((NestedField(field_id=2, name="a", type=INT),))
    for type_ in (UNKNOWN, VARIANT, parse_type("geometry"), parse_type("geography(OGC:CRS84, karney)"), point):
        assert not is_comparable(type_)
    for type_ in (BOOLEAN, INT, DOUBLE, decimal(9, 2), TIMESTAMPTZ_NS, UUID, fixed(2), BINARY):
        assert is_comparable(type_)


@for_each("type_", [FLOAT, DOUBLE])
@for_each("literal", [-0.0, Decimal("-0.0"), Decimal("-1E-400")])
def test_minus_zero_is_zero(type_: Type, literal: Any):
    assert math.copysign(1, place(type_, literal).value) == 1


@for_each(
    ("literal", "text"),
    [
        (DateLiteral(0), "DATE '1970-01-01'"),
        (TimestampLiteral(0), "TIMESTAMP '1970-01-01T00:00:00'"),
        (TimestampLiteral(-1, zoned=True), "TIMESTAMP '1969-12-31T23:59:59.999999999Z'"),
        (TimestampLiteral(1_500_000_000), "TIMESTAMP '1970-01-01T00:00:01.5'"),
        (NowLiteral(20_010), "TIMESTAMP '1970-01-01T00:00:20.01'"),
    ],
)
def test_typed_literals_are_shown_as_they_are_written(literal: Any, text: str):
    assert str(literal) == text


@for_each("literal", [DateLiteral(0), TimestampLiteral(0), NowLiteral(0), LiteralPosition(0)])
def test_literals_are_values(literal: Any):
    assert hash(literal) == hash(type(literal)(0))
    with pytest.raises(AttributeError, match="immutable"):
        setattr(literal, literal.__struct_fields__[0], 1)


@given(typed_values(primitive_types().filter(lambda t: t.name not in ("boolean", "int", "long", "float", "double"))))
def test_the_text_of_a_value_is_a_literal_for_it(typed: tuple[Type, Any]):
    type_, value = typed
    assert place(type_, value_to_text(type_, value)) == LiteralPosition(value)


@given(values_of(DOUBLE))
def test_numbers_are_literals_for_themselves(value: float):
    if not math.isnan(value):
        assert place(DOUBLE, value) == LiteralPosition(value)


@given(values_in_python_years(TIMESTAMPTZ))
def test_timestamps_are_read_as_pyiceberg_reads_them(micros: int):
    text = value_to_text(TIMESTAMPTZ, micros)
    theirs = conversions.from_json(IcebergType.handle_primitive_type("timestamptz", lambda name: name), text)
    assert conversions.to_bytes(IcebergType.handle_primitive_type("timestamptz", lambda name: name), theirs) == (
        value_to_bytes(TIMESTAMPTZ, place(TIMESTAMPTZ, text).value)
    )
