"""Windows, against a clock that is looked at every minute of the days on which it is put forward and back."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.policies.windows import (
    ALWAYS,
    CONDITIONS,
    DAYS,
    DueDecision,
    Facts,
    Trigger,
    Window,
    closes_ms,
    is_due,
    is_open,
    opened_ms,
    parse_clock,
    parse_condition,
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


def test_window_over_midnight_belongs_to_its_opening_day():
    friday = Window(from_minute=22 * 60, to_minute=6 * 60, days=(4,), zone="Europe/Berlin")
    at = [datetime(2026, 1, day, hour, tzinfo=UTC) for day, hour in ((2, 4), (2, 20), (2, 21), (3, 4), (3, 5), (3, 21))]
    assert [is_open(friday, ms(moment)) for moment in at] == [False, False, True, True, False, False]


def test_window_handles_missing_and_repeated_hour():
    """It opens after a missing hour, and once where an hour comes twice."""
    night = Window(from_minute=150, to_minute=240, zone="Europe/Berlin")
    spring, autumn = (datetime(2026, month, day, 0, 30, tzinfo=UTC) for month, day in ((3, 29), (10, 25)))
    # 02:00 becomes 03:00 at 01:00 UTC; 03:00 becomes 02:00 at 01:00 UTC.
    opened = ms(datetime(2026, 3, 29, 1, 0, tzinfo=UTC))
    assert [is_open(night, at) for at in (ms(spring), opened - 1, opened)] == [False, False, True]
    assert closes_ms(night, ms(datetime(2026, 3, 29, 1, 0, tzinfo=UTC))) == ms(datetime(2026, 3, 29, 2, 0, tzinfo=UTC))
    assert [is_open(night, ms(autumn) - 1), is_open(night, ms(autumn))] == [False, True]
    assert closes_ms(night, ms(autumn)) == ms(datetime(2026, 10, 25, 3, 0, tzinfo=UTC))


def test_unlimited_window_never_closes_and_daily_opens_in_week():
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


HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
MEASURED = ("small_files", "delete_ratio", "manifests", "overlap", "snapshots")

triggers = st.builds(
    Trigger,
    **{f"{name}_over": st.none() | st.integers(0, 5) for name in MEASURED},
    age_over_ms=st.none() | st.integers(0, 5).map(lambda hours: hours * HOUR_MS),
    min_interval_ms=st.none() | st.integers(0, 5).map(lambda hours: hours * HOUR_MS),
)
facts_of = st.builds(
    Facts,
    **{name: st.none() | st.integers(0, 6) for name in MEASURED},
    last_run_ms=st.none() | st.integers(-1, 6).map(lambda hours: NOW_MS - hours * HOUR_MS),
)


def naive(trigger: Trigger, facts: Facts) -> bool:
    ran = facts.last_run_ms
    if trigger.min_interval_ms is not None and ran is not None and ran + trigger.min_interval_ms > NOW_MS:
        return False
    limits = {name: getattr(trigger, f"{name}_over") for name in MEASURED}
    if all(limit is None for limit in (*limits.values(), trigger.age_over_ms)):
        return True
    if trigger.age_over_ms is not None and (ran is None or ran + trigger.age_over_ms < NOW_MS):
        return True
    return any(
        limit is not None and getattr(facts, name) is not None and getattr(facts, name) > limit
        for name, limit in limits.items()
    )


@cases(500)
@given(trigger=triggers, facts=facts_of)
def test_job_is_due_by_any_condition_after_its_interval(trigger, facts):
    due = is_due(trigger, facts, NOW_MS)
    assert due.is_due is bool(due) is naive(trigger, facts)
    assert due.why


@cases(200)
@given(trigger=triggers, facts=facts_of, name=st.sampled_from(MEASURED))
def test_due_is_monotonic_and_unknown_value_is_not_due(trigger, facts, name):
    """A worse number never makes a job less due, and an unknown one never makes it due."""
    due = is_due(trigger, facts, NOW_MS).is_due
    value = getattr(facts, name)
    worse = msgspec.structs.replace(facts, **{name: (value or 0) + 3})
    unknown = msgspec.structs.replace(facts, **{name: None})
    assert is_due(trigger, worse, NOW_MS).is_due >= due >= is_due(trigger, unknown, NOW_MS).is_due


def test_what_the_job_would_do_nothing_about_makes_it_not_due():
    trigger = Trigger(manifests_over=5, snapshots_over=9, age_over_ms=HOUR_MS)
    facts = Facts(manifests=6, snapshots=3, last_run_ms=NOW_MS, idle="there is one manifest")
    assert is_due(trigger, facts, NOW_MS).why == (
        "manifests is 6, over 5, but the job would do nothing: there is one manifest; snapshots is 3, not over 9; "
        "it ran 0.0 s ago, not over 1h"
    )
    late = msgspec.structs.replace(facts, last_run_ms=NOW_MS - 2 * HOUR_MS)
    assert is_due(trigger, late, NOW_MS) == DueDecision(True, "it ran 2h ago, over 1h")
    assert is_due(ALWAYS, facts, NOW_MS).is_due


def test_why_is_said_with_the_numbers():
    trigger = Trigger(
        small_files_over=100, delete_ratio_over=0.1, age_over_ms=7 * 24 * HOUR_MS, min_interval_ms=6 * HOUR_MS
    )
    facts = Facts(small_files=4, last_run_ms=NOW_MS - 24 * HOUR_MS)
    assert is_due(trigger, facts, NOW_MS).why == (
        "small_files is 4, not over 100; delete_ratio is not known; it ran 1d ago, not over 7d"
    )
    assert is_due(trigger, msgspec.structs.replace(facts, delete_ratio=0.25), NOW_MS).why == (
        "delete_ratio is 0.25, over 0.1"
    )
    early = msgspec.structs.replace(facts, small_files=1_000, last_run_ms=NOW_MS - HOUR_MS)
    assert is_due(trigger, early, NOW_MS).why == "it ran 1h ago, and min_interval is 6h"
    to_come = msgspec.structs.replace(early, last_run_ms=4_000_000_000_000)
    assert is_due(trigger, to_come, NOW_MS).why == (
        "it ran at 2096-10-02T07:06:40Z, which is still to come, and min_interval is 6h"
    )
    assert is_due(Trigger(age_over_ms=1), Facts(last_run_ms=2**63 - 1), NOW_MS).why.endswith("to come, not over 1ms")
    assert is_due(ALWAYS, Facts(), NOW_MS).why == "no condition is set"
    assert is_due(Trigger(age_over_ms=1), Facts(), NOW_MS).why == "no policy has run it, as far as is known"


def test_conditions_have_the_names_of_the_fields():
    assert {name.removesuffix("_ms") for name in Trigger.__struct_fields__} == {*CONDITIONS}
    assert {f"{name}_over" for name in MEASURED} < {*CONDITIONS}


@for_each(
    ("name", "text", "value"),
    [
        ("small_files_over", "0", 0),
        ("delete_ratio_over", "0.25", 0.25),
        ("delete_ratio_over", "1", 1.0),
        ("overlap_over", "4", 4.0),
        ("min_interval", "36h", 36 * HOUR_MS),
    ],
)
def test_a_limit_is_read(name, text, value):
    assert parse_condition(name, text) == value


@for_each(
    ("name", "text", "problem"),
    [
        ("small_files_over", "1.5", "give a whole number"),
        ("small_files_over", "-1", "give a whole number"),
        ("delete_ratio_over", "10", "give a number of 0 or more, 1 at most"),
        ("overlap_over", "0.5", "give a number of 1 or more"),
        ("overlap_over", "1e3", "give a number"),
        ("age_over", "7", "cannot read the duration '7'"),
        ("small_files", "7", "there is no condition 'small_files'; there is small_files_over"),
    ],
)
def test_what_is_no_limit_is_told(name, text, problem):
    with pytest.raises(UsageError) as caught:
        parse_condition(name, text)
    assert problem in caught.value.message
