"""A run as it is recorded, and what many runs of a job on a table say together.

A record of runs that cannot be reached is left alone for some minutes by all of this process: a night has thousands of
calls to it, which would wait for hours together. The ends of runs that could not be recorded are kept until the record
takes them: a run without an end would count as one that died.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec

from icekeep.errors import OutcomeUnknownError, UnavailableError
from icekeep.processes import has_ended
from icekeep.rendered import Rendered
from icekeep.runs import RUNNING, UNFINISHED
from icekeep.runtime import Runtime
from icekeep.spec.times import format_span
from icekeep.spec.types import HOUR_MS, MINUTE_MS, SECOND_MS

BEAT_EVERY_MS = MINUTE_MS
SILENT_MS = 5 * MINUTE_MS
"""A run that has not been seen for so long has died."""

SKEW_MS = 10 * MINUTE_MS
"""Clocks of two machines differ by no more. What was written at a time further ahead says nothing: some clock was wrong."""

NIGHT_MS = 12 * HOUR_MS
"""Failures that come within this after the first of them count as one: a scheduler tries a job several times a night."""


CUT_OFF_MS = 30 * MINUTE_MS
"""A run that was interrupted after it had worked for so long was cut off: it may be so each night."""


class RunRecord(Rendered, frozen=True, kw_only=True):
    """One run of a job on a table, of a command that changed one, or of `maintain` over many.

    Times are epoch milliseconds by the clock of the run's machine.

    Attributes:
        run_id: `<job>-<uuid4>`.
        parent_id: the run of `maintain` that this one is a part of.
        table: `CATALOG.NS.NAME`; empty where it is about many.
        policy: whose job it is.
        status: `running`, then that of the outcome document, or `failed`, `refused` or `interrupted`.
        exit_status: `None` until it ends.
        error_kind: as error documents have it.
        started_ms: when it began.
        ended_ms: `None` until it ends.
        seen_ms: when it was last known to be alive.
        host: the name of its machine.
        process: identifies its process on that machine; empty where the system does not say.
        version: of icekeep.
        arguments: as they were given, in values that JSON has; of a run that was given its plan also `plan`, the hash of that.
        app_id: the Spark application that it started; `None` for none.
        snapshot_id_before, snapshot_id_after: the head of the branch that it works on; `None` where there is none.
        metadata_location_before, metadata_location_after: of the table.
        result: the outcome document's `result`, in values that JSON has.
        estimated_ms: what it was expected to take from beginning to end, by rates alone; `None` where nobody has estimated it.
        estimated_cpu_ms, cpu_ms: processor time of all its tasks, by rates alone and in fact; `None` for a job that has neither.
    """

    run_id: str
    job: str
    parent_id: str | None = None
    table: str = ""
    policy: str | None = None
    status: str = RUNNING
    exit_status: int | None = None
    error_kind: str | None = None
    error_message: str | None = None
    started_ms: int
    ended_ms: int | None = None
    seen_ms: int
    host: str = ""
    process: str = ""
    version: str = ""
    arguments: Mapping[str, Any] = {}
    app_id: str | None = None
    snapshot_id_before: int | None = None
    snapshot_id_after: int | None = None
    metadata_location_before: str | None = None
    metadata_location_after: str | None = None
    result: Any = None
    estimated_ms: int | None = None
    estimated_cpu_ms: int | None = None
    cpu_ms: int | None = None

    def is_unfinished(self, now_ms: int) -> bool:
        """Whether it has died: it was not seen for long, or it ran on this machine and its process is gone.

        One that was seen at a time that is still to come cannot be told to live; it is taken for one that has died.
        """
        is_seen = -SKEW_MS <= now_ms - self.seen_ms <= SILENT_MS
        return self.status == RUNNING and (not is_seen or has_ended(self.process))

    def is_surely_dead(self, now_ms: int) -> bool:
        """Whether it has died, also where the clocks of its machine and of this one differ by `SKEW_MS`."""
        is_silent = now_ms - self.seen_ms > SILENT_MS + SKEW_MS
        return self.status == RUNNING and (is_silent or has_ended(self.process))

    def status_at(self, now_ms: int) -> str:
        """Its status as it is shown: that of a run that has died is `unfinished`."""
        return UNFINISHED if self.is_unfinished(now_ms) else self.status


class JobPace(msgspec.Struct, frozen=True):
    """How much longer a job takes on a table than rates say, from beginning to end and in processor time."""

    elapsed: float = 1.0
    cpu: float = 1.0


class Paces(msgspec.Struct, frozen=True):
    """What the last runs teach of estimates.

    Attributes:
        by_table: of the jobs that have run on a table recently, by table and job.
        by_job: of all tables together, for a table that is new.
    """

    by_table: Mapping[tuple[str, str], JobPace] = {}
    by_job: Mapping[str, JobPace] = {}

    def of(self, table: str, job: str) -> JobPace:
        """That of a job on a table."""
        return self.by_table.get((table, job)) or self.by_job.get(job) or JobPace()


class LastRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the runs of one job on one table that policies asked for; those by hand do not count.

    Times are epoch milliseconds; `None`: there was no such run.

    A run that was interrupted is neither a success nor a failure, nor is one that is to be tried again (exit status 75), nor
    one that ended at a time that is still to come. One that has died counts as a failure; a part without an end of a run that
    has ended has not died: its end could not be written down, and it counts for neither.

    Attributes:
        is_known: whether the record of runs could be asked; where it could not, all else is empty.
        last_ok_ms: when the last one that did its work ended.
        failures_in_a_row: those that failed since then; what failed within `NIGHT_MS` counts once.
        last_failure_ms: when the last one that failed ended, or was last seen.
        last_error: what it said; `None` where it died.
        night_ms: when the first of those ended that count as the last failure in a row; `None` where there is none in a row.
        cut_offs_in_a_row: those that were interrupted after `CUT_OFF_MS` of work since the last one that did its work, which end
            no row of failures and count for none; those within `NIGHT_MS` count once.
        last_cut_off_ms: when the last one of these ended; `None` where there is none in a row.
        cut_off_night_ms: when the first of those ended that count as the last one in a row.
    """

    is_known: bool = True
    last_ok_ms: int | None = None
    failures_in_a_row: int = 0
    last_failure_ms: int | None = None
    last_error: str | None = None
    night_ms: int | None = None
    cut_offs_in_a_row: int = 0
    last_cut_off_ms: int | None = None
    cut_off_night_ms: int | None = None

    @property
    def last_try_ms(self) -> int | None:
        """When the last one ended that counts for anything."""
        tries = (self.last_ok_ms, self.last_failure_ms, self.last_cut_off_ms)
        return max((one for one in tries if one is not None), default=None)

    def and_failed(self, at_ms: int, error: str | None) -> "LastRuns":
        """What is known after one more failure, which is later than all others."""
        is_same_night = _is_same_night(self.night_ms, at_ms)
        return msgspec.structs.replace(
            self,
            failures_in_a_row=self.failures_in_a_row + (not is_same_night),
            last_failure_ms=at_ms,
            last_error=error,
            night_ms=self.night_ms if is_same_night else at_ms,
        )

    def and_cut_off(self, at_ms: int) -> "LastRuns":
        """What is known after one more that was interrupted after long work, which is later than all others."""
        is_same_night = _is_same_night(self.cut_off_night_ms, at_ms)
        return msgspec.structs.replace(
            self,
            cut_offs_in_a_row=self.cut_offs_in_a_row + (not is_same_night),
            last_cut_off_ms=at_ms,
            cut_off_night_ms=self.cut_off_night_ms if is_same_night else at_ms,
        )


def _is_same_night(night_ms: int | None, at_ms: int) -> bool:
    return night_ms is not None and at_ms - night_ms < NIGHT_MS


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are wanted; `None` asks for nothing.

    Attributes:
        tables: their names, `CATALOG.NS.NAME`.
        status: as it is shown: runs that have died are `unfinished`, and `running` are those that have not.
        run_id: or the beginning of it.
        parent_id: of those that are a part of one run of `maintain`.
        since_ms: those that began then or later, epoch milliseconds.
        limit: at most this many.
        has_results: whether the results are wanted, which may be much longer than all the rest; else they are `None`.
    """

    tables: Collection[str] | None = None
    job: str | None = None
    status: str | None = None
    run_id: str | None = None
    parent_id: str | None = None
    since_ms: int | None = None
    limit: int | None = None
    has_results: bool = True


LEFT_ALONE_MS = 2 * MINUTE_MS
"""Less than it takes until a run that does not say that it is alive is taken for dead."""

_WAITED_MS = SECOND_MS
"""Who fails sooner than this keeps nobody waiting, and may be tried again at once."""


class CircuitBreaker:
    """Leaves a database alone for `LEFT_ALONE_MS` that kept somebody waiting in vain; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until_ms: int | None = None
        self._reason = ""

    @contextmanager
    def asked(self, runtime: Runtime, *, insists: bool) -> Iterator[None]:
        """The database is asked in the block, whose errors are taken note of.

        Args:
            insists: whether it is asked although it was out of reach a moment ago.

        Raises:
            UnavailableError: it is left alone for now; the fact `is_left_alone` says so.
        """
        began_ms = runtime.monotonic_ms()
        if not insists:
            self._refuse(began_ms)
        try:
            yield
        except (UnavailableError, OutcomeUnknownError) as error:
            now_ms = runtime.monotonic_ms()
            if now_ms - began_ms >= _WAITED_MS:
                with self._lock:
                    self._until_ms, self._reason = now_ms + LEFT_ALONE_MS, error.message
            raise
        with self._lock:
            self._until_ms = None

    def _refuse(self, now_ms: int) -> None:
        with self._lock:
            until_ms, reason = self._until_ms, self._reason
        if until_ms is not None and now_ms < until_ms:
            left = format_span(until_ms - now_ms)
            raise UnavailableError(f"{reason}; it is left alone for {left}", is_left_alone=True)


@cache
def circuit_breaker(address: str) -> CircuitBreaker:
    """That of the database at an address."""
    return CircuitBreaker()


_MOST = 10_000
"""So many are kept, of which each may have a result of a quarter of a megabyte; of more the oldest are given up."""

_RUN_ID = "run_id"


class PendingRunEnds:
    """Rows of ended runs that one database has not taken yet, by the ids of their runs, for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, Mapping[str, Any]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep these, unless there is a newer one of the same run."""
        with self._lock:
            for row in rows:
                self._rows.setdefault(row[_RUN_ID], row)
            while len(self._rows) > _MOST:
                del self._rows[next(iter(self._rows))]

    def drop(self, run_id: str) -> None:
        """Give up what is kept of a run, which is written again."""
        with self._lock:
            self._rows.pop(run_id, None)

    def take(self) -> list[Mapping[str, Any]]:
        """All of them, which the caller keeps."""
        with self._lock:
            rows, self._rows = [*self._rows.values()], {}
        return rows


@cache
def pending_run_ends(address: str) -> PendingRunEnds:
    """Those of this process for the database at an address."""
    return PendingRunEnds()
