"""When a job may run on a table, and when it is worth running: maintenance windows, and conditions over a few numbers.

A window opens at the first instant at which the zone's clock shows `from` or later on a day, and closes at the first at
which it shows `to` or later: so it opens and closes once, also on days on which an hour is missing or comes twice. The
numbers of conditions are measured elsewhere (from metadata, and from earlier runs); here they are only compared.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from icekeep.errors import UsageError
from icekeep.spec.times import format_span, format_time, span_ms
from icekeep.spec.types import DAY_MS

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
_CLOCK = re.compile(r"([0-9]{1,2}):([0-5][0-9])")
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """When jobs may begin.

    Attributes:
        from_minute: of the day, 0 to 1439.
        to_minute: of the day, 1 to 1440; at or before `from_minute` it is that of the next day.
        days: weekdays on which it opens, 0 is Monday; a window over midnight belongs to the day on which it opened.
        zone: a name of the time zone database.
    """

    from_minute: int = 0
    to_minute: int = DAY_MINUTES
    days: tuple[int, ...] = tuple(range(7))
    zone: str = "UTC"

    def __str__(self) -> str:
        days = "" if len(self.days) == len(DAYS) else f"{','.join(DAYS[day] for day in self.days)} "
        return f"{days}{_clock(self.from_minute)} to {_clock(self.to_minute)} {self.zone}"


def parse_clock(text: str) -> int:
    """Minutes since midnight of a time of the day, 00:00 to 24:00.

    >>> parse_clock("22:30"), parse_clock("24:00")
    (1350, 1440)

    Raises:
        UsageError: it is no such time.
    """
    match = _CLOCK.fullmatch(text.strip())
    minute = int(match[1]) * 60 + int(match[2]) if match else DAY_MINUTES + 1
    if minute > DAY_MINUTES:
        raise UsageError(f"{text!r} is no time of the day; give HH:MM, 00:00 to 24:00")
    return minute


def parse_zone(text: str) -> str:
    """The name of a time zone; raises `UsageError` where this machine knows none of that name."""
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"there is no time zone {text!r} on this machine; give a name such as Europe/Berlin, or install package tzdata"
        ) from None
    return text


def parse_day(text: str) -> int:
    """The number of a weekday, 0 is Monday; raises `UsageError` where it is none."""
    if text.lower() not in DAYS:
        raise UsageError(f"{text!r} is no day; there is {', '.join(DAYS)}")
    return DAYS.index(text.lower())


def is_open(window: Window, now_ms: int) -> bool:
    """Whether a job may begin now.

    >>> nights = Window(from_minute=22 * 60, to_minute=6 * 60, days=(4,), zone="Europe/Berlin")
    >>> [is_open(nights, round(datetime(2026, 1, day, 4, tzinfo=UTC).timestamp() * 1000)) for day in (2, 3, 4)]
    [False, True, False]
    """
    return any(opens <= now_ms < closes for opens, closes in _around(window, now_ms, 1))


def closes_ms(window: Window, now_ms: int) -> int | None:
    """When a window that is open now will be closed, epoch milliseconds.

    One that opens again in the instant in which it closes stays open. `None` where it is closed now, or stays open for a week.
    """
    end_ms = None
    for opens, closes in _around(window, now_ms):
        if opens <= (now_ms if end_ms is None else end_ms) < closes:
            end_ms = closes
    return None if end_ms is None or end_ms > now_ms + 7 * DAY_MS else end_ms


def opened_ms(window: Window, now_ms: int) -> int | None:
    """When a window that is open now has opened, epoch milliseconds; of one that has been open for a week, about a week ago.

    `None` where it is closed now.
    """
    start_ms = end_ms = None
    for opens, closes in _around(window, now_ms, days_back=8):
        if opens <= now_ms and opens < closes:
            if end_ms is None or opens > end_ms:
                start_ms = opens
            end_ms = closes
    return start_ms if end_ms is not None and now_ms < end_ms else None


def _around(window: Window, now_ms: int, days_ahead: int = 8, days_back: int = 2) -> Iterator[tuple[int, int]]:
    """When the window opens and closes, from the days before now to some days after, in order."""
    zone = ZoneInfo(window.zone)
    today = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(zone).date()
    for ahead in range(-days_back, days_ahead + 1):
        day = today + ahead * _DAY
        if day.weekday() in window.days:
            is_over_midnight = window.to_minute <= window.from_minute
            opens = _first_instant(day, window.from_minute, zone)
            yield opens, _first_instant(day + _DAY if is_over_midnight else day, window.to_minute, zone)


def _first_instant(day: date, minute: int, zone: ZoneInfo) -> int:
    """The first instant at which the zone's clock shows this minute of a day or a later time, epoch milliseconds."""
    wanted = datetime(day.year, day.month, day.day) + minute * _MINUTE
    offsets = [wanted.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1)]
    early, late = (wanted - offset for offset in sorted(offsets, reverse=True))
    # Where clocks are put forward over it, neither offset shows it: the first minute after the gap lies between the two.
    instant = early
    while instant < late and instant.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None) < wanted:
        instant += _MINUTE
    return (instant.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a table and of one job on it. `None` is a number that nobody has measured.

    Attributes:
        small_files: how many data files of the current snapshot are smaller than compaction would leave them, and are enough
            together to be taken by it.
        delete_ratio: deleted rows of the current snapshot, as a part of all rows that its data files hold, 0 to 1.
        manifests: how many manifests the current snapshot has.
        overlap: how many data manifests a filter on one partition opens, in the mean; 1 is best.
        snapshots: how many snapshots the table has.
        last_run_ms: when the job last ended well on the table, epoch milliseconds; `None` where it never has, or nobody knows.
        idle: why the job would do nothing to the table, whatever the numbers are; empty where it would, or that is not known.
    """

    small_files: int | None = None
    delete_ratio: float | None = None
    manifests: int | None = None
    overlap: float | None = None
    snapshots: int | None = None
    last_run_ms: int | None = None
    idle: str = ""


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a job; `None` is one that nobody has set.

    The job is due where one of those that end with `_over` holds, which is where the number is above the limit, unless the job
    is known to do nothing about it. It is not due while `min_interval_ms` has not passed since it last ran, whatever else
    holds. Without any `_over` it is due when that has.

    Attributes:
        age_over_ms: of the job's last run, milliseconds; one that never ran is older than any limit.
        min_interval_ms: milliseconds.
    """

    small_files_over: int | None = None
    delete_ratio_over: float | None = None
    manifests_over: int | None = None
    overlap_over: float | None = None
    snapshots_over: int | None = None
    age_over_ms: int | None = None
    min_interval_ms: int | None = None


class DueDecision(msgspec.Struct, frozen=True):
    """Whether a job is to run, and why or why not, in one line."""

    is_due: bool
    why: str

    def __bool__(self) -> bool:
        return self.is_due


_COUNTS = frozenset({"small_files_over", "manifests_over", "snapshots_over"})
SPANS = frozenset({"age_over", "min_interval"})
_LEAST = {"overlap_over": 1.0, "delete_ratio_over": 0.0}
_MOST = {"delete_ratio_over": 1.0}
CONDITIONS = tuple(name.removesuffix("_ms") for name in Trigger.__struct_fields__)
"""The names of conditions as people write them."""

_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
MEASURED = ("small_files", "delete_ratio", "manifests", "overlap", "snapshots")
"""The numbers of a table that a condition may ask for, with `_over`."""
ALWAYS = Trigger()
"""No condition at all."""


def parse_condition(name: str, text: str) -> int | float:
    """The limit of a condition from its text; spans are milliseconds.

    >>> parse_condition("small_files_over", "100"), parse_condition("delete_ratio_over", "0.1"), parse_condition("age_over", "7d")
    (100, 0.1, 604800000)

    Raises:
        UsageError: it is no limit of this condition, or there is no such condition.
    """
    if name not in CONDITIONS:
        raise UsageError(f"there is no condition {name!r}; there is {', '.join(CONDITIONS)}")
    if name in SPANS:
        return span_ms(text)
    if not _DECIMAL.fullmatch(text.strip()) or (name in _COUNTS and "." in text):
        raise UsageError(f"{text!r} is no limit of {name}; give a {'whole ' if name in _COUNTS else ''}number")
    limit = int(text) if name in _COUNTS else float(text)
    if not _LEAST.get(name, 0) <= limit <= _MOST.get(name, limit):
        raise UsageError(
            f"{text!r} is no limit of {name}; give a number of {_LEAST[name]:g} or more"
            + (f", {_MOST[name]:g} at most" if name in _MOST else "")
        )
    return limit


def is_due(trigger: Trigger, facts: Facts, now_ms: int) -> DueDecision:
    """Whether a job is to run now. A number that is not known makes no job due, and is told.

    >>> is_due(Trigger(small_files_over=100), Facts(small_files=101), 0)
    DueDecision(is_due=True, why='small_files is 101, over 100')
    >>> is_due(Trigger(small_files_over=100, manifests_over=5), Facts(small_files=100), 0)
    DueDecision(is_due=False, why='small_files is 100, not over 100; manifests is not known')
    """
    interval_ms, last_ms = trigger.min_interval_ms, facts.last_run_ms
    if interval_ms is not None and last_ms is not None and now_ms - last_ms < interval_ms:
        return DueDecision(False, f"{_ran(last_ms, now_ms)}, and min_interval is {format_span(interval_ms)}")
    asked = [*_measured(trigger, facts), *_age(trigger, facts, now_ms)]
    if not asked:
        return DueDecision(True, "no condition is set")
    holding = [why for holds, why in asked if holds]
    return DueDecision(bool(holding), "; ".join(holding or [why for _, why in asked]))


def _measured(trigger: Trigger, facts: Facts) -> Iterator[tuple[bool, str]]:
    for name in MEASURED:
        limit, value = getattr(trigger, f"{name}_over"), getattr(facts, name)
        if limit is None:
            continue
        if value is None:
            yield False, f"{name} is not known"
        elif value > limit and facts.idle:
            yield False, f"{name} is {value:,}, over {limit:,}, but the job would do nothing: {facts.idle}"
        else:
            yield value > limit, f"{name} is {value:,}, {'' if value > limit else 'not '}over {limit:,}"


def _age(trigger: Trigger, facts: Facts, now_ms: int) -> Iterator[tuple[bool, str]]:
    limit_ms, last_ms = trigger.age_over_ms, facts.last_run_ms
    if limit_ms is None:
        return
    if last_ms is None:
        yield True, "no policy has run it, as far as is known"
    else:
        holds = now_ms - last_ms > limit_ms
        yield holds, f"{_ran(last_ms, now_ms)}, {'' if holds else 'not '}over {format_span(limit_ms)}"


def _ran(last_run_ms: int, now_ms: int) -> str:
    if last_run_ms > now_ms:
        # Some writer's clock was wrong.
        return f"it ran at {format_time(last_run_ms)}, which is still to come"
    return f"it ran {format_span(now_ms - last_run_ms)} ago"
