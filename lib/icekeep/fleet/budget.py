"""What a run may take, in time and in bytes: a job is begun only where what is left holds what it is estimated to take.

The time until a job's window closes is such a limit, too, in the second half of the window. A budget begins nothing; it never
ends anything either: a job that takes longer than its estimate goes on.
"""

from statistics import median

import msgspec

from icekeep.spec.times import about_span
from icekeep.spec.types import MINUTE_MS, format_bytes

_PACE_LEAST, _PACE_MOST = 1 / 64, 16.0


class Estimate(msgspec.Struct, frozen=True):
    """What a job is going to take: milliseconds from its beginning to its end, bytes read and written.

    Attributes:
        by_rates_ms: the milliseconds by rates alone, before what earlier runs have taught.
    """

    elapsed_ms: int = 0
    bytes: int = 0
    by_rates_ms: int = 0


class Budget:
    """What is left of a run's time and bytes. Not for several threads at once: who asks holds a lock.

    Estimates go by rates that were measured on another machine, and by as many cores as can be known beforehand, as long as no
    earlier run is on record; and tonight's store may be slower than last night's. So they are
    multiplied by the pace of this run: how much longer than their estimates those jobs took that have ended and were estimated at
    a minute or more. What shorter jobs took beyond their estimates is what each job needs whatever it does (Spark's jobs,
    commits to a slow store): the median of that is added, and multiplies nothing.
    """

    def __init__(self, now_ms: int, *, max_ms: int | None = None, max_bytes: int | None = None) -> None:
        self._ends_ms = None if max_ms is None else now_ms + max_ms
        self._max_bytes = max_bytes
        self._taken_bytes = 0
        self._estimated_ms = self._elapsed_ms = 0
        self._beyond_ms: list[int] = []

    @property
    def pace(self) -> float:
        """How much longer jobs take than estimated, 1/64 to 16; 1 as long as none has ended that says anything of it."""
        if not self._estimated_ms:
            return 1.0
        return min(_PACE_MOST, max(_PACE_LEAST, self._elapsed_ms / self._estimated_ms))

    @property
    def overhead_ms(self) -> int:
        """What each job takes beside its work, and beyond what estimates have of that."""
        return round(median(self._beyond_ms)) if self._beyond_ms else 0

    def refusal(self, estimate: Estimate, now_ms: int, closes_ms: int | None = None) -> str | None:
        """Why a job cannot be begun, in one line; `None` where it can.

        Args:
            closes_ms: when the job's window closes; `None` where that does not hold it.
        """
        wants_ms = round(estimate.elapsed_ms * self.pace) + self.overhead_ms
        if closes_ms is not None and wants_ms > closes_ms - now_ms:
            return (
                f"in the second half of its window only what fits is begun: it would take about {about_span(wants_ms)}, "
                f"and its window closes in {about_span(closes_ms - now_ms)}"
            )
        if self._ends_ms is not None:
            left_ms = self._ends_ms - now_ms
            if left_ms <= 0:
                return "the time of this run is over"
            if wants_ms > left_ms:
                return (
                    f"it would take about {about_span(wants_ms)}, and {about_span(left_ms)} of the run's time are left"
                )
        if self._max_bytes is not None:
            left = max(0, self._max_bytes - self._taken_bytes)
            if estimate.bytes > left:
                wants = format_bytes(estimate.bytes)
                return f"it would read and write about {wants}, and {format_bytes(left)} of the run's bytes are left"
        return None

    def begin(self, estimate: Estimate) -> None:
        """Take what a job is estimated to need."""
        self._taken_bytes += estimate.bytes

    def give_back(self, estimate: Estimate) -> None:
        """What was taken for a job that was not begun after all."""
        self._taken_bytes -= estimate.bytes

    def end(self, estimate: Estimate, elapsed_ms: int) -> None:
        """Take note of how long a job took that has ended well."""
        if estimate.elapsed_ms < MINUTE_MS:
            self._beyond_ms.append(max(0, elapsed_ms - estimate.elapsed_ms))
            return
        self._estimated_ms += estimate.elapsed_ms
        self._elapsed_ms += elapsed_ms
