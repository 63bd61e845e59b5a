from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.values import (
    civil_from_days,
    days_from_civil,
    format_date,
    format_time,
    format_timestamp,
    parse_date,
    parse_time,
    parse_timestamp,
)
from kit.cases import for_each

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


@for_each(
    ("ticks", "per_second", "text"),
    [
        (0, MICROS, "00:00:00"),
        (81_068_123_456, MICROS, "22:31:08.123456"),
        (81_068_000_001, MICROS, "22:31:08.000001"),
        (81_068_123_456_789, NANOS, "22:31:08.123456789"),
        (86_399_999_999, MICROS, "23:59:59.999999"),
    ],
)
def test_times_have_all_their_digits_or_no_fraction(ticks: int, per_second: int, text: str):
    assert format_time(ticks, per_second) == text
    assert parse_time(text, per_second) == ticks


@pytest.mark.parametrize(
    ("text", "micros"),
    [("10:12", 36_720_000_000), ("10:12:55.5", 36_775_500_000), ("10:12:55.500000000", 36_775_500_000)],
)
def test_times_may_leave_out_seconds_and_digits(text: str, micros: int):
    assert parse_time(text, MICROS) == micros


@for_each("text", ["24:00", "10:60", "10:12:60", "10", "10:12:55.", "10:12:55.0000001", "1:2:3"])
def test_texts_that_are_no_time_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_time(text, MICROS)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([MICROS, NANOS]))
def test_every_64_bit_timestamp_survives_its_text(ticks: int, per_second: int):
    assert parse_timestamp(format_timestamp(ticks, per_second), per_second) == (ticks, None)


@for_each(
    ("text", "ticks", "offset_seconds"),
    [
        ("2017-11-16T22:31:08", 1510871468000000, None),
        ("2017-11-16 22:31:08.000001", 1510871468000001, None),
        ("2017-11-16T22:31:08Z", 1510871468000000, 0),
        ("2017-11-16T22:31:08+00:00", 1510871468000000, 0),
        ("2017-11-16T14:31:08-08:00", 1510871468000000, -28_800),
        ("2017-11-17T04:01:08+05:30", 1510871468000000, 19_800),
        ("2017-11-16T22:31:08+18:00", 1510806668000000, 64_800),
        ("2017-11-16T22:31:08-00:59:59", 1510875067000000, -3_599),
        ("2017-11-16", 1510790400000000, None),
        ("1969-12-31T23:59:59.999999", -1, None),
    ],
)
def test_timestamps_are_counted_in_utc(text: str, ticks: int, offset_seconds: int | None):
    assert parse_timestamp(text, MICROS) == (ticks, offset_seconds)


@for_each(
    "text",
    [
        "2017-11-16T",
        "2017-11-16T25:00",
        "2017-11-16T22:31:08+8",
        "2017-11-16T22:31:08+19:00",
        "2017-11-16T22:31:08+00:60",
        "2017-11-16T22:31:08+00:00:60",
        "2017-11-16Z",
        "now",
        "1510871468",
    ],
)
def test_texts_that_are_no_timestamp_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_timestamp(text, MICROS)
