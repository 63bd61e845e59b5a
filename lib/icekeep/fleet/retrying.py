"""How often a job is tried that fails on a table: less and less often, and never not at all.

    failures in a row   is tried again
    1                   by the next run, be it the next night's or one that goes on after a kill
    2                   2 nights after the last failure
    3                   4 nights after it
    4 and more          8 nights after it

What fails several times in one night has failed once. Where a catalog is out of reach, or another writer won (exit status 75), a
job has not failed: it is tried by each run. Whatever ends well begins anew. From the third failure on the job is named in the
result of each run until it ends well.

What was interrupted after long work has not failed, and is not tried less often; but it comes after what has waited longer
(`overview`), and is named from the third night on: it may need more time than it ever gets.
"""

from icekeep.run_records.values import CUT_OFF_MS, LastRuns
from icekeep.spec.times import about_span
from icekeep.spec.types import DAY_MS, HOUR_MS

NAMED_FROM = 3
"""From so many failures in a row on a job is named, and from so many nights in a row in which it was cut off."""

_NIGHTS = (0, 0, 2, 4, 8)
_EARLY_MS = 6 * HOUR_MS
"""A run of the next night may begin, and come to a table, earlier than the one before."""


def wait_ms(failures_in_a_row: int) -> int:
    """How long a job is not tried after its last failure, milliseconds.

    >>> [wait_ms(count) // 3_600_000 for count in (0, 1, 2, 3, 4, 100)]
    [0, 0, 42, 90, 186, 186]
    """
    nights = _NIGHTS[min(max(failures_in_a_row, 0), len(_NIGHTS) - 1)]
    return nights * DAY_MS - _EARLY_MS if nights else 0


def postponed(last: LastRuns, now_ms: int) -> str | None:
    """Why a job is not tried now, in one line; `None` where it may be."""
    if last.last_failure_ms is None:
        return None
    left_ms = last.last_failure_ms + wait_ms(last.failures_in_a_row) - now_ms
    if left_ms <= 0:
        return None
    return (
        f"it failed {last.failures_in_a_row} times in a row, and is tried again in {about_span(left_ms)}: {said(last)}"
    )


def is_named(last: LastRuns) -> bool:
    """Whether it fails for so long that somebody has to look."""
    return max(last.failures_in_a_row, last.cut_offs_in_a_row) >= NAMED_FROM


def said(last: LastRuns) -> str:
    """What the last failure said, in one line."""
    return last.last_error or "its process died"


def told(last: LastRuns) -> str:
    """What is to be said of a job that is named, in one line."""
    if last.failures_in_a_row >= NAMED_FROM:
        return said(last)
    return (
        f"it was interrupted in {last.cut_offs_in_a_row} nights in a row, after {about_span(CUT_OFF_MS)} of work or more: "
        "give the run more time, or the job less to do at once"
    )
