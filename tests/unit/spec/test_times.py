from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.spec.times import age_ms, format_span, format_time, moment_ms, span_ms, whole_days
from kit.cases import for_each

NOW_MS = 1_767_225_600_000


@for_each(
    ("text", "expected_ms"),
    [
        ("2026-01-01", NOW_MS),
        ("2026-01-01T00:00:00Z", NOW_MS),
        ("2026-01-01 00:00", NOW_MS),
        ("2026-01-01T01:30:00+01:30", NOW_MS),
        ("2026-01-01T00:00:00.123456789", NOW_MS + 123),
        (" 2026-01-01 ", NOW_MS),
        ("1767225600000", NOW_MS),
        ("0", 0),
        ("0s", NOW_MS),
        ("500ms", NOW_MS - 500),
        ("30m", NOW_MS - 30 * 60_000),
        ("36h", NOW_MS - 36 * 3_600_000),
        ("7d", NOW_MS - 7 * 86_400_000),
        ("2w", NOW_MS - 14 * 86_400_000),
    ],
)
def test_a_time_is_iso_8601_epoch_milliseconds_or_an_age(text, expected_ms):
    assert moment_ms(text, NOW_MS) == expected_ms


@for_each("text", ["", "7x", "d", "--7d", "-7", "1.5d", "yesterday", "7 d", "2026-13-01", "2026-01-01T25:00", "７d"])
def test_anything_else_is_an_error_that_says_what_to_give(text):
    with pytest.raises(UsageError, match=r"cannot read the time .*; give ISO 8601"):
        moment_ms(text, NOW_MS)


def test_an_age_below_zero_is_refused_with_the_reason():
    for text in ("-7d", " -10ms "):
        with pytest.raises(
            UsageError, match=r"^the age ' ?-.*' is below zero; an age says how long ago, as in (7d|10ms)$"
        ):
            moment_ms(text, NOW_MS)
        with pytest.raises(UsageError, match=r"^the duration ' ?-.*' is below zero; give how long, as in (7d|10ms)$"):
            span_ms(text)


@pytest.mark.parametrize("text", ["1767225600", "20260101", "2026"])
def test_a_number_that_would_be_a_moment_in_1970_is_refused(text):
    with pytest.raises(UsageError, match=r"not seconds; write a date with dashes \(2026-01-31\) or an age \(7d\)$"):
        moment_ms(text, NOW_MS)


@pytest.mark.parametrize("seconds", [1_767_225_600, 5])
def test_so_is_such_a_number_from_python(seconds):
    with pytest.raises(UsageError, match="epoch milliseconds, not seconds"):
        moment_ms(seconds, NOW_MS)


@for_each("days", [3, "3", " 3 ", "3d", "72h", timedelta(days=3)])
def test_whole_days_are_a_number_a_text_or_a_timedelta(days):
    assert whole_days(days) == 3


@for_each(
    "days",
    [
        True,
        1.5,
        None,
        "",
        "3x",
        "-1",
        "36h",
        "1.5",
        "９",
        timedelta(hours=1),
        timedelta(microseconds=1),
        timedelta(days=-1),
    ],
)
def test_what_is_no_whole_number_of_days_is_refused(days):
    with pytest.raises(UsageError, match="not whole days, 0 or more; give them as 3 or 3d"):
        whole_days(days)


def test_a_wrong_date_says_why():
    with pytest.raises(UsageError, match="'2026-02-30': day"):
        moment_ms("2026-02-30", NOW_MS)


@given(st.integers(min_value=100_000_000_000, max_value=4_102_444_800_000))
def test_a_formatted_time_is_read_back(milliseconds):
    assert moment_ms(format_time(milliseconds), NOW_MS) == milliseconds
    assert moment_ms(str(milliseconds), NOW_MS) == milliseconds


@given(st.integers(min_value=0, max_value=10**8), st.sampled_from("smhdw"))
def test_an_age_is_the_span_before_now(count, unit):
    assert moment_ms(f"{count}{unit}", NOW_MS) == NOW_MS - span_ms(f"{count}{unit}")


def test_a_span_below_zero_is_refused_from_python_too():
    for span in (-1, timedelta(milliseconds=-1)):
        with pytest.raises(UsageError, match="is below zero; give how long, as in timedelta"):
            span_ms(span)


def test_a_span_needs_a_unit():
    assert span_ms(" 5m ") == 300_000
    with pytest.raises(UsageError, match="cannot read the duration '5'"):
        span_ms("5")


@for_each("text", ["7d", "36h", "90m", "1d", "1h", "1m", "1ms", "999ms"])
def test_a_span_is_shown_as_it_was_written_in_its_largest_whole_unit(text):
    assert format_span(span_ms(text)) == text


@for_each(
    ("span_ms", "shown"),
    [(0, "0.0 s"), (45_000, "45.0 s"), (86_400_001, "1.0 d"), (168 * 3_600_000, "7d")],
)
def test_a_span_of_no_whole_unit_is_shown_roughly(span_ms, shown):
    assert format_span(span_ms) == shown


@for_each(
    "moment",
    [
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=1, minutes=30))),
        "2026-01-01",
        NOW_MS,
        timedelta(hours=36),
        "36h",
    ],
)
def test_a_moment_may_be_written_in_any_way(moment):
    assert moment_ms(moment, NOW_MS + 36 * 3_600_000 * isinstance(moment, timedelta | str)) == NOW_MS


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1)))
def test_a_moment_is_cut_to_milliseconds(moment):
    assert moment_ms(moment, 0) == int(moment.timestamp()) * 1000 + moment.microsecond // 1000


def test_a_moment_without_a_time_zone_could_be_any():
    with pytest.raises(UsageError, match="the time 2026-01-01T00:00:00 has no time zone; give one, as in"):
        moment_ms(datetime(2026, 1, 1), NOW_MS)


@for_each("value", [1.5, True, date(2026, 1, 1), None])
def test_what_is_neither_a_moment_nor_a_span_is_refused(value):
    with pytest.raises(UsageError, match="is no time; give a datetime with a time zone"):
        moment_ms(value, NOW_MS)
    with pytest.raises(UsageError, match="is no span; give a timedelta, text such as 7d"):
        span_ms(value)


def test_a_span_may_be_written_in_any_way():
    assert {span_ms(span) for span in (timedelta(days=7), "7d", "168h", 604_800_000)} == {604_800_000}
    with pytest.raises(UsageError, match="is below zero"):
        span_ms(timedelta(days=-7))


@for_each(
    ("text", "milliseconds"),
    [
        ("1s", 1000),
        ("30m", 1_800_000),
        ("36h", 129_600_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("0s", 0),
        ("10ms", 10),
        ("123456789012345ms", 123_456_789_012_345),
    ],
)
def test_an_age_is_a_number_and_a_unit(text: str, milliseconds: int):
    assert age_ms(text) == milliseconds


@for_each(
    "text", ["", "7", "d", "7D", "7 d", "-7d", "1.5h", "7y", "1234567890d", "1234567890123456ms", "1Ms", "ms", "٧d"]
)
def test_anything_else_is_no_age(text: str):
    with pytest.raises(ValueError, match="an age is a whole number with ms, s, m, h, d or w"):
        age_ms(text)
