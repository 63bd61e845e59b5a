"""Many tables in one run: looked at once, chosen, ordered, and worked on side by side. What fails is told, and ends nothing."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog
from icekeep.errors import TryAgainError
from icekeep.fleet.budget import Budget
from icekeep.fleet.leases import Leases
from icekeep.fleet.overview import Looking, Overview, Seen, look
from icekeep.fleet.retrying import is_named, told
from icekeep.fleet.values import (
    DueJob,
    DueList,
    DueTable,
    Failing,
    JobDone,
    JobStatus,
    MaintainResult,
    RunCall,
    TableDone,
)
from icekeep.fleet.workers import Works, job_done
from icekeep.reports.values import NotRead
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import CUT_OFF_MS, LastRuns
from icekeep.runtime import Runtime

_ENDED_BADLY = frozenset({JobStatus.FAILED, JobStatus.REFUSED})
_COUNTED = {
    "done_jobs_count": frozenset({"done", "partial", "faulty"}),
    "observed_jobs_count": frozenset({JobStatus.OBSERVED}),
    "failed_jobs_count": frozenset({JobStatus.FAILED}),
    "refused_jobs_count": frozenset({JobStatus.REFUSED}),
    "interrupted_jobs_count": frozenset({JobStatus.INTERRUPTED}),
    "not_begun_jobs_count": frozenset({JobStatus.NOT_BEGUN}),
    "elsewhere_jobs_count": frozenset({JobStatus.ELSEWHERE}),
    "postponed_jobs_count": frozenset({JobStatus.POSTPONED}),
    "held_jobs_count": frozenset({JobStatus.HELD}),
    "closed_jobs_count": frozenset({JobStatus.CLOSED}),
}
DEFAULT_WORKERS = 4

_LEFT = frozenset({"partial", "faulty", *_ENDED_BADLY, JobStatus.INTERRUPTED, JobStatus.NOT_BEGUN})


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run works with.

    Attributes:
        run_id: its own.
        catalogs: those that could be opened, each with the record of runs of its tables, `None` where there is none.
        not_opened: the others.
        run_call: runs a job on a table; its listener ends the job where `stop` is set.
        notes: what the operator should know beforehand.
        workers: how many tables are worked on at a time.
        max_ms, max_bytes: the budget; `None`: none.
    """

    run_id: str
    catalogs: tuple[tuple[Catalog, RunRecords | None], ...]
    looking: Looking
    run_call: RunCall
    runtime: Runtime
    stop: threading.Event
    not_opened: tuple[NotRead, ...] = ()
    notes: tuple[str, ...] = ()
    workers: int = DEFAULT_WORKERS
    max_ms: int | None = None
    max_bytes: int | None = None


def maintain(fleet: Fleet) -> MaintainResult:
    """Do what is due on the tables that policies reach, those first that bring the most for what they cost.

    What ends the run early (a signal) is no error here: the result tells what was done, and what was not begun.
    """
    began = fleet.runtime.monotonic_ms()
    night = Night(fleet)
    looked_ms = fleet.runtime.monotonic_ms() - began
    with _all_prolonged(night.leases.values()):
        interrupt = night.works.run(max(1, min(fleet.workers, night.due_count)))
    result = night.result(is_interrupted=interrupt is not None or fleet.stop.is_set())
    elapsed_ms = fleet.runtime.monotonic_ms() - began
    return msgspec.structs.replace(result, looked_ms=looked_ms, elapsed_ms=elapsed_ms)


class Night:
    """One run, looked at and ready to begin."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        budget = Budget(fleet.runtime.now_ms(), max_ms=fleet.max_ms, max_bytes=fleet.max_bytes)
        self.leases = _leases(fleet)
        self._overview = _overview(fleet, self.leases)
        due = [one for one in self._overview.tables if one.due]
        self.due_count = len(due)
        self.works = Works(due, self.leases, budget, fleet.run_call, fleet.runtime, fleet.stop)

    def result(self, *, is_interrupted: bool) -> MaintainResult:
        """What became of all that was to be done."""
        result = _result(self._fleet, self._overview, self.works.done)
        return msgspec.structs.replace(result, status="interrupted" if is_interrupted else _status(result))


def plan_maintain(fleet: Fleet) -> MaintainResult:
    """Tell what `maintain` would do, in order, and why and why not; nothing is planned by jobs themselves, nothing written.

    It is `partial` where something could not be read: nobody knows what would be done there.
    """
    began = fleet.runtime.monotonic_ms()
    result = _result(fleet, _overview(fleet, _leases(fleet)), {})
    elapsed_ms = fleet.runtime.monotonic_ms() - began
    status = "partial" if result.not_read else "planned"
    return msgspec.structs.replace(result, status=status, dry_run=True, looked_ms=elapsed_ms, elapsed_ms=elapsed_ms)


def due_tables(fleet: Fleet) -> DueList:
    """The tables and jobs that are due, for a scheduler that runs them by itself."""
    overview = _overview(fleet, _leases(fleet))
    not_read = _not_read(fleet, overview)
    tables = tuple(_due_table(one, fleet) for one in overview.tables if one.due)
    notes = (*fleet.notes, *overview.notes)
    return DueList(status="partial" if not_read else "done", tables=tables, not_read=not_read, notes=notes)


def _leases(fleet: Fleet) -> dict[str, Leases]:
    listener = fleet.looking.listener
    return {catalog.name: Leases(records, fleet.run_id, fleet.runtime, listener) for catalog, records in fleet.catalogs}


def _overview(fleet: Fleet, leases: Mapping[str, Leases]) -> Overview:
    return look({catalog.name: (catalog, leases[catalog.name]) for catalog, _ in fleet.catalogs}, fleet.looking)


@contextmanager
def _all_prolonged(leases: Iterable[Leases]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in leases:
            stack.enter_context(one.prolonged())
        yield


def _result(fleet: Fleet, overview: Overview, done: Mapping[tuple[str, str], JobDone]) -> MaintainResult:
    tables = tuple(_table_done(seen, rank, fleet, done) for rank, seen in enumerate(overview.tables, 1))
    statuses = [job.status for table in tables for job in table.jobs]
    counts: dict[str, Any] = {name: sum(status in some for status in statuses) for name, some in _COUNTED.items()}
    looked = [seen.health for seen in overview.tables if seen.health is not None]
    return MaintainResult(
        status="done",
        run_id=fleet.run_id,
        catalogs=tuple(catalog.name for catalog, _ in fleet.catalogs),
        tables_count=len(tables),
        other_tables_count=overview.other_tables_count,
        due_jobs_count=sum(len(seen.due) for seen in overview.tables),
        **counts,
        failing=tuple(_failing(overview.tables, done, fleet.runtime.now_ms())),
        not_read=_not_read(fleet, overview),
        notes=(*fleet.notes, *overview.notes),
        tables=tables,
        requests_count=sum(job.requests_count for table in tables for job in table.jobs),
        looked_requests_count=sum(one.requests_count for one in looked),
        looked_read_bytes=sum(one.read_bytes for one in looked),
    )


def _table_done(seen: Seen, rank: int, fleet: Fleet, done: Mapping[tuple[str, str], JobDone]) -> TableDone:
    prices = fleet.looking.prices
    return TableDone(
        table=seen.name,
        rank=rank if seen.due else 0,
        score=None if seen.health is None else seen.health.score,
        priority=round(seen.value(prices), 3),
        jobs=tuple(
            done.get((seen.name, choice.call.job))
            or job_done(choice, str(choice.verdict), choice.why, seen.estimate(choice))
            for choice in seen.choices
        ),
        not_read=None if seen.not_read is None else seen.not_read.reason,
        problems=tuple(f"{one.source}: {one.problem}" for one in seen.problems),
    )


def _failing(tables: Iterable[Seen], done: Mapping[tuple[str, str], JobDone], now_ms: int) -> Iterator[Failing]:
    """What has failed or was cut off three times in a row or more, what has just ended among it."""
    for seen in tables:
        for choice in seen.choices:
            last = _last_by_now(choice.last, done.get((seen.name, choice.call.job)), now_ms)
            if is_named(last):
                yield Failing(
                    table=seen.name,
                    job=choice.call.job,
                    failures_in_a_row=last.failures_in_a_row,
                    why=told(last),
                    cut_offs_in_a_row=last.cut_offs_in_a_row,
                )


def _last_by_now(last: LastRuns, job: JobDone | None, now_ms: int) -> LastRuns:
    """What is known of the runs of a job, this run's among them."""
    if job is None:
        return last
    if job.status in _ENDED_BADLY and job.exit_status != TryAgainError.exit_status:
        return last.and_failed(now_ms, job.why)
    if job.status == JobStatus.INTERRUPTED and job.elapsed_ms >= CUT_OFF_MS:
        return last.and_cut_off(now_ms)
    return LastRuns() if job.status in _COUNTED["done_jobs_count"] else last


def _not_read(fleet: Fleet, overview: Overview) -> tuple[NotRead, ...]:
    found = (*fleet.not_opened, *overview.not_read, *(s.not_read for s in overview.tables if s.not_read is not None))
    return tuple(sorted(found, key=lambda one: one.name))


def _status(result: MaintainResult) -> str:
    is_left = any(job.status in _LEFT for table in result.tables for job in table.jobs)
    return "partial" if is_left or result.failing or result.not_read else "done"


def _due_table(seen: Seen, fleet: Fleet) -> DueTable:
    jobs = [(choice, seen.estimate(choice)) for choice in seen.due]
    return DueTable(
        table=seen.name,
        priority=round(seen.value(fleet.looking.prices), 3),
        estimate_ms=sum(estimate.elapsed_ms for _, estimate in jobs),
        estimate_bytes=sum(estimate.bytes for _, estimate in jobs),
        jobs=tuple(
            DueJob(
                job=choice.call.job,
                policy=choice.rule.policy,
                arguments=choice.call.arguments,
                observes=choice.observes,
                why=choice.why,
                estimate_ms=estimate.elapsed_ms,
                estimate_bytes=estimate.bytes,
            )
            for choice, estimate in jobs
        ),
    )
