from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.spec.times import age_ms, format_span, format_time, moment_ms, span_ms, whole_days
from kit.cases import for_each
from kit.examples import check_examples

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
def test_a_span_is_shown_as_it_was_written_in_its_largest_whole_unit(text):
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


def test_examples():
    check_examples("spec/times.txt", globals())
