"""Dates, times and timestamps as counts since the epoch and as ISO 8601 text.

Counts are those of the spec: days since 1970-01-01, microseconds since midnight, micro- or nanoseconds since the epoch.
Python's `datetime` ends at the years 1 and 9999 and knows no nanoseconds; Iceberg's values do not, so the calendar is
worked out here: it repeats every 400 years. Functions that read text raise `ValueError` with a reason.
"""

import re
from datetime import date

from icekeep.spec.units import DAY_SECONDS

_EPOCH_YEAR = 1970
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_EPOCH_ORDINAL = date(_EPOCH_YEAR, 1, 1).toordinal()

_DATE = re.compile(r"([+-][0-9]{4,10}|[0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
_OFFSET = re.compile(r"[Zz]|([+-])([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?")
_TIMESTAMP = re.compile(r"([+-]?[0-9-]+)(?:[Tt ]([0-9:.]+)([Zz]|[+-][0-9:]+)?)?")


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year, month and day of a count of days; the year may be any whole number."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = date.fromordinal(_EPOCH_ORDINAL + rest)
    return day.year + cycles * _CYCLE_YEARS, day.month, day.day


def days_from_civil(year: int, month: int, day: int) -> int:
    """Count of days of a calendar date; raises `ValueError` for a day that the month does not have."""
    cycles, rest = divmod(year - _EPOCH_YEAR, _CYCLE_YEARS)
    return date(_EPOCH_YEAR + rest, month, day).toordinal() - _EPOCH_ORDINAL + cycles * _CYCLE_DAYS


def format_date(days: int) -> str:
    """ISO date; years with more than four digits carry a sign, as ISO 8601 wants it."""
    year, month, day = civil_from_days(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def format_time(ticks: int, ticks_per_second: int) -> str:
    """ISO time of a count since midnight; the fraction has all its digits, or is left out if it is zero."""
    seconds, fraction = divmod(ticks, ticks_per_second)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    digits = len(str(ticks_per_second)) - 1
    return f"{hour:02d}:{minute:02d}:{second:02d}" + (f".{fraction:0{digits}d}" if fraction else "")


def format_timestamp(ticks: int, ticks_per_second: int) -> str:
    """ISO date and time of a count since the epoch, without a zone."""
    days, rest = divmod(ticks, DAY_SECONDS * ticks_per_second)
    return f"{format_date(days)}T{format_time(rest, ticks_per_second)}"


def parse_date(text: str) -> int:
    """Days of an ISO date."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("a date looks like 2013-01-05")
    return days_from_civil(int(match[1]), int(match[2]), int(match[3]))


def parse_time(text: str, ticks_per_second: int) -> int:
    """Count since midnight of an ISO time; digits finer than a tick must be zeros."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("a time looks like 10:12:55.038194")
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("there is no such time of day")
    fraction_ns = int((match[4] or "").ljust(9, "0"))
    fraction, finer = divmod(fraction_ns, 10**9 // ticks_per_second)
    if finer:
        raise ValueError("it has more digits after the second than the type holds")
    return ((hour * 60 + minute) * 60 + second) * ticks_per_second + fraction


def parse_timestamp(text: str, ticks_per_second: int) -> tuple[int, int | None]:
    """Count since the epoch in UTC, and the offset in seconds that the text gave, None if it gave none.

    A text without an offset counts as UTC; a date alone is its first moment.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError("a timestamp looks like 2013-01-05T10:12:55.038194")
    ticks = parse_date(match[1]) * DAY_SECONDS * ticks_per_second
    if match[2] is not None:
        ticks += parse_time(match[2], ticks_per_second)
    offset_seconds = None if match[3] is None else _parse_offset(match[3])
    return ticks - (offset_seconds or 0) * ticks_per_second, offset_seconds


def _parse_offset(text: str) -> int:
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise ValueError("an offset from UTC looks like +00:00")
    if match[1] is None:
        return 0
    hours, minutes, seconds = int(match[2]), int(match[3]), int(match[4] or 0)
    if hours > 18 or minutes > 59 or seconds > 59:
        raise ValueError("there is no such offset from UTC")
    return (-1 if match[1] == "-" else 1) * ((hours * 60 + minutes) * 60 + seconds)
