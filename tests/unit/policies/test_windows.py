"""Windows, against a clock that is looked at every minute of the days on which it is put forward and back."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.policies.windows import (
    DAYS,
    Window,
    closes_ms,
    is_open,
    opened_ms,
    parse_clock,
    parse_day,
    parse_zone,
)
from kit.cases import cases, for_each, scaled

MINUTE_MS = 60_000
BEFORE = timedelta(days=2, hours=2)
# The clocks of each zone are put forward, back, or over the date line on this day.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),
    "America/Santiago": ("2026-09-06", "2026-04-05"),
    "Pacific/Apia": ("2011-12-30", "2011-12-31"),
    "Asia/Kolkata": ("2026-06-10",),
}


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def open_minutes(window: Window, start: datetime, count: int) -> Iterator[tuple[int, bool]]:
    """For each minute from `start` whether the window is open, by a clock that is only ever looked at.

    The clock begins days before, so that a window which is open at the start has opened before.
    """
    zone = ZoneInfo(window.zone)
    is_over_midnight = window.to_minute <= window.from_minute
    begun: set[object] = set()
    ends: list[tuple[object, int]] = []
    moment = start - BEFORE
    for _ in range(count + BEFORE // timedelta(minutes=1)):
        shown = moment.astimezone(zone).replace(tzinfo=None)
        for back in (2, 1, 0):
            day = shown.date() - timedelta(days=back)
            midnight = datetime(day.year, day.month, day.day)
            opens = midnight + timedelta(minutes=window.from_minute)
            if day not in begun and shown >= opens:
                begun.add(day)
                if day.weekday() in window.days:
                    ends.append((midnight + timedelta(days=is_over_midnight, minutes=window.to_minute), 0))
        # Closed once, whatever the clock shows later.
        ends = [(end, _) for end, _ in ends if shown < end]
        if moment >= start:
            yield ms(moment), bool(ends)
        moment += timedelta(minutes=1)


windows = st.builds(
    Window,
    from_minute=st.sampled_from([0, 30, 90, 119, 120, 150, 179, 180, 1320, 1439]) | st.integers(0, 1439),
    to_minute=st.sampled_from([1, 60, 90, 120, 135, 150, 180, 360, 1440]) | st.integers(1, 1440),
    days=st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
)
days_of_change = st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days])


@pytest.mark.slow
@cases(24, deadline=None)
@given(window=windows, change=days_of_change)
def test_a_window_is_open_when_a_clock_says_so_minute_by_minute(window, change):
    zone, day = change
    window = Window(from_minute=window.from_minute, to_minute=window.to_minute, days=window.days, zone=zone)
    start = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=UTC) - timedelta(hours=14)
    told = dict(open_minutes(window, start, 40 * 60))
    assert {at: is_open(window, at) for at in told} == told
    check_ends(window, told)


def check_ends(window: Window, told: dict[int, bool]) -> None:
    """Where it has opened and closes next is where the clock says it does, as far as that was looked at."""
    times = sorted(told)
    for at in times[:: scaled(97, least=97)]:
        later = [other for other in times if other >= at]
        closed = next((other for other in later if not told[other]), None)
        if told[at] and closed is not None:
            assert closes_ms(window, at) == closed
        if not told[at]:
            assert closes_ms(window, at) is opened_ms(window, at) is None
        before = next((other for other in reversed(times) if other < at and not told[other]), None)
        if told[at] and before is not None:
            assert opened_ms(window, at) == before + MINUTE_MS


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_opened():
    friday = Window(from_minute=22 * 60, to_minute=6 * 60, days=(4,), zone="Europe/Berlin")
    at = [datetime(2026, 1, day, hour, tzinfo=UTC) for day, hour in ((2, 4), (2, 20), (2, 21), (3, 4), (3, 5), (3, 21))]
    assert [is_open(friday, ms(moment)) for moment in at] == [False, False, True, True, False, False]


def test_a_window_in_the_hour_that_is_missing_opens_after_it_and_one_in_the_hour_that_comes_twice_opens_once():
    night = Window(from_minute=150, to_minute=240, zone="Europe/Berlin")
    spring, autumn = (datetime(2026, month, day, 0, 30, tzinfo=UTC) for month, day in ((3, 29), (10, 25)))
    # 02:00 becomes 03:00 at 01:00 UTC; 03:00 becomes 02:00 at 01:00 UTC.
    opened = ms(datetime(2026, 3, 29, 1, 0, tzinfo=UTC))
    assert [is_open(night, at) for at in (ms(spring), opened - 1, opened)] == [False, False, True]
    assert closes_ms(night, ms(datetime(2026, 3, 29, 1, 0, tzinfo=UTC))) == ms(datetime(2026, 3, 29, 2, 0, tzinfo=UTC))
    assert [is_open(night, ms(autumn) - 1), is_open(night, ms(autumn))] == [False, True]
    assert closes_ms(night, ms(autumn)) == ms(datetime(2026, 10, 25, 3, 0, tzinfo=UTC))


def test_one_that_is_always_open_never_closes_and_one_of_a_day_opens_within_the_week():
    now = ms(datetime(2026, 1, 1, 12, 34, 56, tzinfo=UTC))
    assert (closes_ms(Window(), now), is_open(Window(), now)) == (None, True)
    opened = opened_ms(Window(), now)
    assert opened is not None
    assert opened <= now - 7 * 24 * 60 * MINUTE_MS
    working_days = Window(days=(0, 1, 2, 3, 4))
    assert opened_ms(working_days, now) == ms(datetime(2025, 12, 29, tzinfo=UTC))
    assert closes_ms(Window(days=(2,)), ms(datetime(2026, 1, 7, 3, tzinfo=UTC))) == ms(datetime(2026, 1, 8, tzinfo=UTC))
    whole_days = Window(from_minute=600, to_minute=600)
    assert (is_open(whole_days, now), closes_ms(whole_days, now)) == (True, None)


def test_a_window_is_shown_in_words():
    assert str(Window(from_minute=1320, to_minute=360, days=(0, 6), zone="Asia/Kolkata")) == (
        "mon,sun 22:00 to 06:00 Asia/Kolkata"
    )
    assert str(Window()) == "00:00 to 24:00 UTC"


@for_each(
    ("parse", "text", "problem"),
    [
        (parse_clock, "24:01", "'24:01' is no time of the day; give HH:MM, 00:00 to 24:00"),
        (parse_clock, "7", "is no time of the day"),
        (parse_clock, "12:60", "is no time of the day"),
        (parse_zone, "Europe/Bonn", "there is no time zone 'Europe/Bonn' on this machine"),
        (parse_zone, "../etc/passwd", "there is no time zone"),
        (parse_day, "monday", "'monday' is no day; there is mon, tue"),
    ],
)
def test_what_is_wrong_is_told(parse, text, problem):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert problem in caught.value.message


def test_days_are_numbered_from_monday():
    assert [parse_day(day) for day in (*DAYS, "MON")] == [0, 1, 2, 3, 4, 5, 6, 0]
