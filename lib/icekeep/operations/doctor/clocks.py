"""Whether a clock goes with this machine's: what is deleted is told by its age."""

from icekeep.errors import UsageError
from icekeep.spec.types import SECOND_MS

SKEW_MAX_MS = 5 * SECOND_MS
"""By how much clocks may differ before it is told: what keeps them in step does so within a fraction of a second."""

STORE_GRAIN_MS = 2 * SECOND_MS
"""How coarsely stores tell when a file was made."""


def ahead_ms(theirs_ms: int, began_ms: int, ended_ms: int, grain_ms: int = 0) -> int:
    """By how much another clock is ahead of ours at least, below zero where it is behind.

    Args:
        theirs_ms: what it said while ours went from `began_ms` to `ended_ms`; `grain_ms` may have been cut off from it.

    >>> ahead_ms(9_000, 1_000, 2_000), ahead_ms(1_500, 1_000, 2_000), ahead_ms(0, 5_000, 6_000, grain_ms=1_000)
    (7000, 0, -4000)
    """
    if theirs_ms > ended_ms:
        return theirs_ms - ended_ms
    return min(0, theirs_ms + grain_ms - began_ms)


def checked_clock(whose: str, difference_ms: int) -> str:
    """What is said of a clock that goes with ours.

    Raises:
        UsageError: it does not.
    """
    if abs(difference_ms) > SKEW_MAX_MS:
        way = "ahead of" if difference_ms > 0 else "behind"
        raise UsageError(
            f"the clock of {whose} is {abs(difference_ms) / SECOND_MS:,.0f} s {way} this machine's, and files are deleted by "
            "their age: set the clocks right, by NTP for example"
        )
    return f"within {SKEW_MAX_MS // SECOND_MS} s of this machine's"
