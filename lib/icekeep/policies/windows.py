"""Maintenance windows: from one time of the day to another, by the clocks of a time zone.

A window opens at the first instant at which the zone's clock shows `from` or later on a day, and closes at the first at which it
shows `to` or later: so it opens and closes once, also on days on which an hour is missing or comes twice.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from icekeep.errors import UsageError
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


def opens_ms(window: Window, now_ms: int) -> int | None:
    """When it opens next, epoch milliseconds; now where it is open, `None` where it does not within a week."""
    if is_open(window, now_ms):
        return now_ms
    return next((opens for opens, closes in _around(window, now_ms) if now_ms < opens < closes), None)


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
    early, late = sorted((wanted - _offset(wanted, zone, fold)) for fold in (0, 1))
    # Where clocks are put forward over it, neither offset shows it: the first minute after the gap lies between the two.
    instant = early
    while instant < late and _shown(instant, zone) < wanted:
        instant += _MINUTE
    return (instant.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _offset(wanted: datetime, zone: ZoneInfo, fold: int) -> timedelta:
    offset = wanted.replace(tzinfo=zone, fold=fold).utcoffset()
    assert offset is not None
    return offset


def _shown(instant: datetime, zone: ZoneInfo) -> datetime:
    """What the zone's clock shows at an instant, which is in UTC; neither value has a time zone."""
    return instant.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
