"""Moments and spans as people write them: ISO 8601, epoch milliseconds, an age such as `7d`, or Python's own types."""

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeGuard

from icekeep.errors import UsageError
from icekeep.spec.types import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from icekeep.spec.values import NANOS_PER_SECOND, format_timestamp, parse_timestamp

UNITS_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
AGE = re.compile(r"[0-9]{1,15}ms|[0-9]{1,9}[smhdw]")
FORM = "a whole number with ms, s, m, h, d or w"
"""The form of an age in words."""


def age_ms(text: str) -> int:
    """Milliseconds of an age; raises `ValueError` for any other text.

    >>> age_ms("36h")
    129600000
    """
    if not AGE.fullmatch(text):
        raise ValueError(f"an age is {FORM}, as in 30m or 7d")
    number = text.rstrip("smhdw")
    return int(number) * UNITS_MS[text.removeprefix(number)]


Moment: TypeAlias = datetime | timedelta | str | int
"""A `datetime` with a time zone; how long ago, as a `timedelta` or as text such as "7d"; ISO 8601; or epoch milliseconds."""

Span: TypeAlias = timedelta | str | int
"""A `timedelta`, text such as "7d", or milliseconds."""

Days: TypeAlias = timedelta | str | int
"""Whole days: a `timedelta`, text such as "3d" or "3", or their number."""

_DAY = timedelta(days=1)
_NUMBER = re.compile(r"[0-9]{1,18}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIKE_A_DATE = re.compile(r"[0-9]{4}-")
_BELOW_ZERO = re.compile(rf"-({AGE.pattern})")
_EPOCH_MS = re.compile(r"[0-9]{1,15}")
EARLIEST_MS = 100_000_000_000
"""1973: smaller numbers are seconds, or a date without dashes, and would silently mean a moment in 1970."""

_TO_SECONDS = len("2013-01-05T00:00:00")


def moment_ms(moment: Moment, now_ms: int) -> int:
    """Epoch milliseconds of a moment, else `UsageError`; ages count back from `now_ms`, ISO 8601 without an offset is UTC.

    >>> moment_ms(datetime(2013, 1, 5, tzinfo=UTC), 0), moment_ms("2h", 7_200_001), moment_ms(timedelta(hours=2), 7_200_001)
    (1357344000000, 1, 1)
    >>> moment_ms("2013-01-05", 0), moment_ms("1357344000000", 0)
    (1357344000000, 1357344000000)
    """
    if isinstance(moment, str):
        return _written_moment_ms(moment, now_ms)
    if isinstance(moment, timedelta):
        return now_ms - span_ms(moment)
    if _is_number(moment):
        return _epoch_ms(moment, moment)
    if not isinstance(moment, datetime):
        raise UsageError(
            f"{moment!r} is no time; give a datetime with a time zone, a timedelta or text such as 7d for an age, ISO 8601, "
            "or epoch milliseconds as a whole number"
        )
    if moment.tzinfo is None:
        raise UsageError(
            f"the time {moment.isoformat()} has no time zone; give one, as in datetime.now(timezone.utc), or an age such as "
            "timedelta(days=7)"
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _written_moment_ms(text: str, now_ms: int) -> int:
    written = text.strip()
    if AGE.fullmatch(written):
        return now_ms - age_ms(written)
    if _BELOW_ZERO.fullmatch(written):
        raise UsageError(f"the age {text!r} is below zero; an age says how long ago, as in {written.removeprefix('-')}")
    if _EPOCH_MS.fullmatch(written):
        return _epoch_ms(int(written), written)
    try:
        return parse_timestamp(written, NANOS_PER_SECOND)[0] // (NANOS_PER_SECOND // SECOND_MS)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"cannot read the time {text!r}{f': {error}' if _LIKE_A_DATE.match(written) else ''}; give ISO 8601 "
            "(2026-01-31 or 2026-01-31T12:00:00Z), epoch milliseconds, or an age (7d, 36h, 30m)"
        ) from None


def _epoch_ms(moment_ms: int, written: object) -> int:
    if 0 < moment_ms < EARLIEST_MS:
        raise UsageError(
            f"the time {written!r} would be {format_time(moment_ms)}: a number is epoch milliseconds, not seconds; "
            "write a date with dashes (2026-01-31) or an age (7d)"
        )
    return moment_ms


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def span_ms(span: Span) -> int:
    """Milliseconds of a span, as text with one of the units ms, s, m, h, d, w; raises `UsageError` for one below zero too.

    >>> span_ms(timedelta(hours=36)), span_ms("36h"), span_ms(129_600_000)
    (129600000, 129600000, 129600000)
    """
    if isinstance(span, str):
        written = span.strip()
        if _BELOW_ZERO.fullmatch(written):
            raise UsageError(f"the duration {span!r} is below zero; give how long, as in {written.removeprefix('-')}")
        try:
            return age_ms(written)
        except ValueError:
            raise UsageError(f"cannot read the duration {span!r}; give {FORM}, as in 30m or 7d") from None
    if not _is_number(span) and not isinstance(span, timedelta):
        raise UsageError(f"{span!r} is no span; give a timedelta, text such as 7d, or milliseconds as a whole number")
    milliseconds = span // timedelta(milliseconds=1) if isinstance(span, timedelta) else span
    if milliseconds < 0:
        raise UsageError(f"the duration {span!r} is below zero; give how long, as in timedelta(days=7)")
    return milliseconds


def whole_days(days: Days) -> int:
    """A number of days; raises `UsageError` for anything but whole days.

    >>> whole_days(3), whole_days("3"), whole_days("1w"), whole_days(timedelta(days=3))
    (3, 3, 7, 3)
    """
    if _is_number(days):
        return days
    if isinstance(days, str) and _NUMBER.fullmatch(days.strip()):
        return int(days)
    try:
        span = timedelta(milliseconds=span_ms(days)) if isinstance(days, str) else days
    except (UsageError, OverflowError):
        span = None
    # Less than a millisecond would be no day at all.
    if not isinstance(span, timedelta) or span % _DAY or span < timedelta():
        raise UsageError(f"{days!r} is not whole days, 0 or more; give them as 3 or 3d")
    return span // _DAY


def format_time(time_ms: int) -> str:
    """ISO 8601 in UTC of epoch milliseconds.

    >>> format_time(1357344000000)
    '2013-01-05T00:00:00Z'
    """
    return format_timestamp(time_ms, SECOND_MS) + "Z"


def format_moment(time_ms: int) -> str:
    """Epoch milliseconds as people read them, to seconds.

    >>> format_moment(1357344000123)
    '2013-01-05 00:00:00 UTC'
    """
    return f"{format_time(time_ms)[:_TO_SECONDS].replace('T', ' ')} UTC"


def format_span(span_ms: int) -> str:
    """A span in the largest unit of which it is a whole number, else rounded to days or seconds.

    >>> format_span(604_800_000), format_span(129_600_000), format_span(10), format_span(1_500), format_span(90_000_001)
    ('7d', '36h', '10ms', '1.5 s', '1.0 d')
    """
    if 0 < span_ms < SECOND_MS:
        return f"{span_ms}ms"
    for unit in "dhm":
        if span_ms and span_ms % UNITS_MS[unit] == 0:
            return f"{span_ms // UNITS_MS[unit]:,}{unit}"
    days = span_ms / DAY_MS
    return f"{days:,.1f} d" if days >= 1 else f"{span_ms / SECOND_MS:,.1f} s"


def about_span(span_ms: int) -> str:
    """A span for progress and reports, in the largest unit of which it is two or more.

    >>> about_span(500), about_span(700_000), about_span(129_600_000)
    ('0.5 s', '11.7 min', '36.0 h')
    """
    units = (("d", DAY_MS), ("h", UNITS_MS["h"]), ("min", UNITS_MS["m"]))
    name, unit = next(((name, unit) for name, unit in units if span_ms >= 2 * unit), ("s", SECOND_MS))
    return f"{span_ms / unit:,.1f} {name}"
