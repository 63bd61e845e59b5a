"""Many tables in one run: looked at once, chosen, ordered, and worked on side by side in threads.

The jobs of a table run one after the other, whatever the result of those before. What fails is reported, and ends nothing.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog
from icekeep.errors import OutcomeUnknownError, SafetyError, TryAgainError, UnsupportedError, one_line
from icekeep.fleet.choosing import Budget, Choice, JobEstimate, Verdict, decided, is_named, may_begin, why_named
from icekeep.fleet.overview import Overview, PolicyTable, ScanSettings, TableLeases, look
from icekeep.fleet.values import (
    Assignment,
    DueJob,
    DueList,
    DueTable,
    Failing,
    JobDone,
    JobOutcome,
    JobStatus,
    MaintainResult,
    RunCall,
    TableDone,
)
from icekeep.maintenance.jobs import JobResult
from icekeep.policies.windows import ALWAYS, closes_ms, opened_ms
from icekeep.reports.values import NotRead
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import CUT_OFF_MS, SKEW_MS, LastRuns
from icekeep.runtime import Runtime
from icekeep.spec.types import DAY_MS

OVERDUE_NIGHTS = 14
"""What last ended well so long ago is begun at any time of its window, whether the rest of it holds it or not."""

_REFUSALS = frozenset({SafetyError.exit_status, UnsupportedError.exit_status})
_OWN_REASONS = _REFUSALS | {OutcomeUnknownError.exit_status}
"""What a job ends with for a reason of its own, whoever ends it: somebody must look."""

_FIGURES = ("_count", "_bytes")
_LOOK_UP_SECONDS = 0.2
_NO_TIME = "the run was interrupted before"


class WorkerPool:
    """The tables of a run, worked on by some threads; what became of each job is in `done`, by table and job.

    Attributes:
        stop: set where nothing more is to be begun; jobs under way see it by their listener and end as by an interrupt.
    """

    def __init__(
        self,
        tables: Sequence[PolicyTable],
        leases: Mapping[str, TableLeases],
        budget: Budget,
        run_call: RunCall,
        runtime: Runtime,
        stop: threading.Event,
    ) -> None:
        self._waiting = deque(tables)
        self._leases, self._budget, self._run_call, self._runtime = leases, budget, run_call, runtime
        self._lock, self._one_ended = threading.Lock(), threading.Event()
        self.stop = stop
        self.done: dict[tuple[str, str], JobDone] = {}

    def run(self, workers: int) -> BaseException | None:
        """Work until there is nothing left, and return the interrupt that ended it earlier, `None` if there was none.

        After an interrupt the jobs under way are waited for: each ends as it does when it is interrupted by hand.
        """
        threads = [threading.Thread(target=self._work, name=f"maintain-{number}") for number in range(workers)]
        interrupt: BaseException | None = None
        try:
            for thread in threads:
                thread.start()
            self._await(threads)
        except (KeyboardInterrupt, SystemExit) as signalled:
            interrupt = signalled
            self.stop.set()
            self._await(threads)
        for seen in self._waiting:
            for choice in seen.due:
                self._note(seen, choice, JobStatus.NOT_BEGUN, _NO_TIME)
        return interrupt

    def _await(self, threads: Sequence[threading.Thread]) -> None:
        # Not by `join`: a signal that another thread takes does not wake it, and where one ends it, Python (3.11) takes the
        # thread for ended.
        while any(thread.is_alive() for thread in threads):
            self._one_ended.wait(_LOOK_UP_SECONDS)
            self._one_ended.clear()

    def _work(self) -> None:
        while (seen := self._next()) is not None:
            try:
                self._work_on(seen)
            except Exception as error:  # noqa: BLE001 - a fault of ours at one table says nothing of the others
                for choice in seen.due:
                    if (seen.name, choice.call.job) not in self.done:
                        self._note(seen, choice, JobStatus.FAILED, f"unexpected error: {one_line(error)}")
        self._one_ended.set()

    def _next(self) -> PolicyTable | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self.stop.is_set() else None

    def _work_on(self, seen: PolicyTable) -> None:
        with self._leased(seen) as holder:
            last = self._leases[seen.catalog.name].last_of([seen.name]) or {}
            is_open = True
            for choice in seen.due:
                if holder is not None:
                    self._note(seen, choice, JobStatus.ELSEWHERE, f"run {holder} is at work on the table")
                elif not is_open:
                    why = "an earlier job of the table may or may not have committed: look before anything follows"
                    self._note(seen, choice, JobStatus.NOT_BEGUN, why)
                else:
                    is_open = self._job(seen, choice, last.get((seen.name, choice.call.job), choice.last))

    @contextmanager
    def _leased(self, seen: PolicyTable) -> Iterator[str | None]:
        """Have the lease of a table while the block lasts; gives the run that has it already, if one has."""
        leases = self._leases[seen.catalog.name]
        holder = None if all(one.observes for one in seen.due) else leases.take(seen.name)
        try:
            yield holder
        finally:
            if holder is None:
                leases.drop(seen.name)

    def _job(self, seen: PolicyTable, choice: Choice, last: LastRuns) -> bool:
        """Run a job if it may be begun, and return whether others of the table may follow."""
        estimate, now_ms = seen.estimate(choice), self._runtime.now_ms()
        if self.stop.is_set():
            return self._note(seen, choice, JobStatus.NOT_BEGUN, _NO_TIME)
        elsewhere = _done_elsewhere(choice.last, last, seen.seen_ms)
        if elsewhere is not None:
            return self._note(seen, choice, JobStatus.ELSEWHERE, elsewhere)
        verdict, why = _verdict_now(seen, choice, last, now_ms)
        if verdict is Verdict.NOT_DUE:
            return self._note(seen, choice, JobStatus.ELSEWHERE, why)
        if verdict is not Verdict.DUE:
            return self._note(seen, choice, JobStatus.NOT_BEGUN, why)
        with self._lock:
            refusal = self._budget.refusal(estimate, now_ms, _holds_until_ms(choice, last, now_ms))
            if refusal is None:
                self._budget.begin(estimate)
        if refusal is not None:
            return self._note(seen, choice, JobStatus.NOT_BEGUN, refusal)
        began_ms = self._runtime.monotonic_ms()
        ran = self._ran(seen, choice, estimate)
        elapsed_ms = self._runtime.monotonic_ms() - began_ms
        if ran.held_by is not None:
            with self._lock:
                self._budget.give_back(estimate)
            return self._note(seen, choice, JobStatus.NOT_BEGUN, ran.held_by)
        if ran.exit_status == 0:
            with self._lock:
                self._budget.end(estimate, elapsed_ms)
        self.done[seen.name, choice.call.job] = _ended(choice, ran, estimate, elapsed_ms)
        return ran.exit_status != OutcomeUnknownError.exit_status

    def _ran(self, seen: PolicyTable, choice: Choice, estimate: JobEstimate) -> JobOutcome:
        """How the job ended."""
        assignment = Assignment(
            catalog=seen.catalog,
            identifier=seen.identifier,
            table=seen.name,
            call=choice.call,
            policy=choice.rule.policy,
            observes=choice.observes,
            table_uuid=seen.table_uuid,
            estimated_ms=estimate.by_rates_ms,
            cpu_pace=seen.paces.of(seen.name, choice.call.job).cpu,
        )
        try:
            ran = self._run_call(assignment)
        except Exception as error:  # noqa: BLE001 - an error that nobody has thought of says nothing of other tables
            ran = JobOutcome(
                status=JobStatus.FAILED, exit_status=1, error_kind="unexpected", error_message=one_line(error)
            )
        except BaseException:  # noqa: BLE001 - how an interrupt leaves the job
            ran = JobOutcome(status=JobStatus.INTERRUPTED, exit_status=1, error_message="the run was interrupted")
        if ran.status == JobStatus.INTERRUPTED:
            self.stop.set()
        elif ran.error_message is not None and ran.exit_status not in _OWN_REASONS and self.stop.is_set():
            # What fails while an interrupt ends all of Spark's work is a consequence of it.
            ran = msgspec.structs.replace(
                ran, status=JobStatus.INTERRUPTED, error_message=f"the run was interrupted: {ran.error_message}"
            )
        return ran

    def _note(self, seen: PolicyTable, choice: Choice, status: JobStatus, why: str, elapsed_ms: int = 0) -> bool:
        estimate = seen.estimate(choice)
        self.done[seen.name, choice.call.job] = job_done(choice, status, why, estimate, elapsed_ms)
        return True


def _holds_until_ms(choice: Choice, last: LastRuns, now_ms: int) -> int | None:
    """When the window closes in whose rest a job has to fit; `None` where it need not.

    That is so in the second half of a window alone. What is begun in the first half goes beyond it rather than that it never
    begins: an estimate may be far too long, what is held grows from night to night, and small tables often come first.
    """
    window = choice.rule.window
    if window is None or choice.observes:
        return None
    if last.last_ok_ms is not None and now_ms - last.last_ok_ms >= OVERDUE_NIGHTS * DAY_MS:
        return None
    opened, closes = opened_ms(window, now_ms), closes_ms(window, now_ms)
    is_first_half = opened is not None and closes is not None and now_ms - opened < closes - now_ms
    return None if is_first_half else closes


def _done_elsewhere(seen: LastRuns, last: LastRuns, seen_ms: int) -> str | None:
    """What another run has made of a job since this one looked, at `seen_ms`; `None` where it has not come to an end there.

    Where it died with its run it is done here. What ended before the look, and was only written down or readable after it, is no
    work of others meanwhile: the table was looked at as that had left it.
    """
    # Who could not ask has nothing to compare with: then only what ended for certain after the look has to do with it.
    since_ms = seen_ms - SKEW_MS if seen.is_known else seen_ms
    if last.last_ok_ms != seen.last_ok_ms and (last.last_ok_ms or 0) > since_ms:
        return "another run has done it meanwhile"
    is_new = last.last_failure_ms != seen.last_failure_ms and (last.last_failure_ms or 0) > since_ms
    return f"another run has tried it meanwhile: {last.last_error}" if is_new and last.last_error is not None else None


def _verdict_now(seen: PolicyTable, choice: Choice, last: LastRuns, now_ms: int) -> tuple[Verdict, str]:
    """What becomes of a job that was due, by the clock, and by earlier runs where more is known of them than at the look."""
    if last == choice.last:
        return may_begin(choice.rule, last, now_ms)
    return decided(choice.rule, seen.health, last, now_ms)


def job_done(choice: Choice, status: str, why: str, estimate: JobEstimate, elapsed_ms: int = 0) -> JobDone:
    """A job that was not run, or ended without a word."""
    return JobDone(
        job=choice.call.job,
        policy=choice.rule.policy,
        status=status,
        why=why,
        arguments=choice.call.arguments,
        elapsed_ms=elapsed_ms,
        estimate_ms=estimate.elapsed_ms,
        estimate_bytes=estimate.bytes,
    )


def _idle_note(choice: Choice, ran: JobOutcome) -> str:
    """What the line of a job adds that ended well, and did nothing about the numbers that it was due for."""
    is_idle = isinstance(ran.result, JobResult) and ran.result.is_idle
    if choice.observes or choice.rule.trigger == ALWAYS or ran.exit_status or not is_idle:
        return ""
    advice = choice.advice
    return "; it changed nothing" + (f": {advice.reason}" if advice is not None and not advice.has_work else "")


def _ended(choice: Choice, ran: JobOutcome, estimate: JobEstimate, elapsed_ms: int) -> JobDone:
    if ran.status == JobStatus.INTERRUPTED:
        status: str = JobStatus.INTERRUPTED
    elif ran.error_message is not None:
        status = JobStatus.REFUSED if ran.exit_status in _REFUSALS else JobStatus.FAILED
    else:
        status = JobStatus.OBSERVED if choice.observes else ran.status
    return msgspec.structs.replace(
        job_done(choice, status, ran.error_message or f"{choice.why}{_idle_note(choice, ran)}", estimate, elapsed_ms),
        run_id=ran.run_id,
        error_kind=ran.error_kind,
        exit_status=ran.exit_status,
        requests_count=ran.requests_count,
        figures=figures_of(ran.result),
    )


def figures_of(result: Any) -> dict[str, int]:
    """The counts and bytes of a result or plan that are not 0."""
    if not isinstance(result, msgspec.Struct):
        return {}
    values = {
        name: getattr(result, name) for name in result.__struct_fields__ if name.endswith(_FIGURES) or name == "bytes"
    }
    return {name: value for name, value in values.items() if isinstance(value, int) and value}


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
    settings: ScanSettings
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
    night = FleetRun(fleet)
    looked_ms = fleet.runtime.monotonic_ms() - began
    with _all_prolonged(night.leases.values()):
        interrupt = night.works.run(max(1, min(fleet.workers, night.due_count)))
    result = night.result(is_interrupted=interrupt is not None or fleet.stop.is_set())
    elapsed_ms = fleet.runtime.monotonic_ms() - began
    return msgspec.structs.replace(result, looked_ms=looked_ms, elapsed_ms=elapsed_ms)


class FleetRun:
    """One run, looked at and ready to begin."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        budget = Budget(fleet.runtime.now_ms(), max_ms=fleet.max_ms, max_bytes=fleet.max_bytes)
        self.leases = _leases(fleet)
        self._overview = _overview(fleet, self.leases)
        due = [one for one in self._overview.tables if one.due]
        self.due_count = len(due)
        self.works = WorkerPool(due, self.leases, budget, fleet.run_call, fleet.runtime, fleet.stop)

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


def _leases(fleet: Fleet) -> dict[str, TableLeases]:
    listener = fleet.settings.listener
    return {
        catalog.name: TableLeases(records, fleet.run_id, fleet.runtime, listener) for catalog, records in fleet.catalogs
    }


def _overview(fleet: Fleet, leases: Mapping[str, TableLeases]) -> Overview:
    return look({catalog.name: (catalog, leases[catalog.name]) for catalog, _ in fleet.catalogs}, fleet.settings)


@contextmanager
def _all_prolonged(leases: Iterable[TableLeases]) -> Iterator[None]:
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


def _table_done(seen: PolicyTable, rank: int, fleet: Fleet, done: Mapping[tuple[str, str], JobDone]) -> TableDone:
    prices = fleet.settings.prices
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


def _failing(tables: Iterable[PolicyTable], done: Mapping[tuple[str, str], JobDone], now_ms: int) -> Iterator[Failing]:
    """What has failed or was cut off three times in a row or more, what has just ended among it."""
    for seen in tables:
        for choice in seen.choices:
            last = _last_by_now(choice.last, done.get((seen.name, choice.call.job)), now_ms)
            if is_named(last):
                yield Failing(
                    table=seen.name,
                    job=choice.call.job,
                    failures_in_a_row=last.failures_in_a_row,
                    why=why_named(last),
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


def _due_table(seen: PolicyTable, fleet: Fleet) -> DueTable:
    jobs = [(choice, seen.estimate(choice)) for choice in seen.due]
    return DueTable(
        table=seen.name,
        priority=round(seen.value(fleet.settings.prices), 3),
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
