"""Jobs of a process that runs jobs on many tables, and a job with `--match`, which runs on each table of a pattern.

Each is a run of its own. With `--match` they have no policy and no parent, and share one Spark session; what fails on one table
is in the result, and the next one follows; after an interrupt none does.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import IcekeepError, NotFoundError
from icekeep.fleet.job import figures_of
from icekeep.fleet.values import JobOutcome, JobStatus, MatchedTable, MatchedTables
from icekeep.maintenance.delete.looks import SharedLooks, sharing
from icekeep.names import full_name
from icekeep.operations.arguments import Command
from icekeep.operations.commands.tables import for_each_catalog
from icekeep.operations.configuration.catalogs import Catalogs, TableReference, find_pattern
from icekeep.operations.configuration.file import CatalogSettings
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.job_run import JobRun, Session, known_catalogs, parse_arguments, with_watchdog
from icekeep.operations.jobs import resolve
from icekeep.operations.outcomes import Outcome, RunState, run_failure
from icekeep.operations.run_context import FleetContext, RunContext, StartsSpark
from icekeep.reports.job import tables_matching
from icekeep.reports.values import NotRead
from icekeep.runs import Run
from icekeep.settings import Job


class OneOfMany:
    """Runs jobs that share catalogs, a session and looks at their neighbours; several threads may call it."""

    def __init__(self, catalogs: Catalogs, session: StartsSpark) -> None:
        self._catalogs, self._session, self._looks = catalogs, session, SharedLooks()

    def __call__(
        self,
        command: Command,
        job: Job,
        load: Callable[[TableReference], Table],
        context: RunContext,
        run: Run | None = None,
    ) -> JobOutcome:
        """Run a job to its end, and return how it ended: an error and an interrupt too are no errors here.

        Args:
            load: gives the table, or raises why it cannot be loaded.
            context: of the process.
            run: which run it is; `None`: one that begins with the job.
        """
        state = RunState()
        shared = FleetContext(catalogs=self._catalogs, load=load, session=self._session)
        try:
            with sharing(self._looks):
                within = msgspec.structs.replace(context, state=state, shared=shared)
                outcome = JobRun(command, job, within, run).outcome()
        except (Exception, Interrupted, KeyboardInterrupt) as error:  # noqa: BLE001 - each end of a job has its status
            ended = run_failure(error, context.interrupts.signal, state, is_part=True)
            return JobOutcome(
                status=ended.status,
                exit_status=ended.exit_status,
                # A run that failed before it began is written down nowhere.
                run_id=state.run.run_id if state.run is not None and state.reported else None,
                error_kind=ended.error.kind,
                error_message=ended.error.message,
            )
        return JobOutcome(
            status=outcome.status, exit_status=outcome.exit_status, run_id=outcome.run_id, result=outcome.result
        )


def failing_with(error: IcekeepError) -> Callable[[TableReference], Table]:

    def load(reference: TableReference) -> NoReturn:
        raise error

    return load


_ENDED_BADLY = frozenset({JobStatus.FAILED, JobStatus.REFUSED})
_LEFT = frozenset({"partial", "faulty", *_ENDED_BADLY})


def run_on_matching(command: Command, job: Job, context: RunContext) -> Outcome:
    """Run a job on the tables of `command.match` or, with `--dry-run`, plan it."""
    state, runtime = context.state, context.runtime
    state.start(command.name, {"match": command.match, **command.arguments}, runtime)
    began_ms = runtime.monotonic_ms()
    catalogs = known_catalogs(command.conf, context.seams)
    parse_arguments(command.arguments, job, state.started_ms)
    with Session(f"icekeep {command.name} {command.match}", context) as session, with_watchdog(context):
        session.start_on_cluster()
        found, not_read = _matching(command, catalogs, context)
        done = _Matched(command, job, catalogs, session, context).run(found)
    is_plan = command.dry_run and job.plan is not None
    result = MatchedTables(
        status=_status(done, not_read, is_plan=is_plan),
        tables_count=len(done),
        failed_tables_count=sum(one.status in _ENDED_BADLY for one in done),
        not_read=tuple(sorted(not_read, key=lambda one: one.name)),
        tables=tuple(done),
        elapsed_ms=runtime.monotonic_ms() - began_ms,
    )
    return state.outcome(result.status, result, runtime, is_dry_run=command.dry_run)


def _status(done: list[MatchedTable], not_read: list[NotRead], *, is_plan: bool) -> str:
    statuses = {one.status for one in done}
    if not statuses.isdisjoint({JobStatus.INTERRUPTED, JobStatus.NOT_BEGUN}):
        return JobStatus.INTERRUPTED.value
    if not_read or not statuses.isdisjoint(_LEFT):
        return "partial"
    return "planned" if is_plan else "done"


class _Found(NamedTuple):
    """A table that the pattern matches."""

    settings: CatalogSettings
    catalog: Catalog
    identifier: Identifier

    @property
    def name(self) -> str:
        return full_name(self.catalog.name, self.identifier)


def _matching(command: Command, catalogs: Catalogs, context: RunContext) -> tuple[list[_Found], list[NotRead]]:
    """The tables that are meant, by name, and what could not be listed."""
    assert command.match is not None
    pattern = find_pattern(catalogs, command.match, command.catalog)
    if not pattern.catalogs:
        catalogs.get(None)
    opens: Any = resolve(context.seams.open_catalog)
    not_read: list[NotRead] = []

    def listed(settings: CatalogSettings) -> list[_Found]:
        with settings.placing():
            catalog = opens(settings, runtime=context.runtime)
            return [_Found(settings, catalog, one) for one in tables_matching(catalog, pattern.glob, not_read)]

    some, not_opened = for_each_catalog(pattern.catalogs, listed)
    found = sorted((one for each in some for one in each), key=lambda one: one.name)
    not_read += not_opened
    if not found and not not_read:
        raise pattern.matches_nothing()
    return found, not_read


class _Matched:
    """The job on one table after the other."""

    def __init__(self, command: Command, job: Job, catalogs: Catalogs, session: Session, context: RunContext) -> None:
        self._command, self._job, self._context = command, job, context
        self._one_of_many = OneOfMany(catalogs, session)

    def run(self, found: Sequence[_Found]) -> list[MatchedTable]:
        """Run it on each, and on none after an interrupt; returns what became of it in the same order."""
        done: dict[str, MatchedTable | None] = {}
        with suppress(Interrupted, KeyboardInterrupt):
            for one in found:
                # What is known of it where an interrupt comes between the job and what it returns.
                done[one.name] = MatchedTable(table=one.name, status=JobStatus.INTERRUPTED)
                ended = done[one.name] = self._on(one)
                is_told = ended is not None and ended.status == JobStatus.INTERRUPTED
                if is_told or self._context.interrupts.signal is not None:
                    break
        each = (done.get(one.name, MatchedTable(table=one.name, status=JobStatus.NOT_BEGUN)) for one in found)
        return [one for one in each if one is not None]

    def _on(self, one: _Found) -> MatchedTable | None:
        """What became of the job on a table; `None` where that was dropped meanwhile."""
        runtime = self._context.runtime
        began_ms = runtime.monotonic_ms()
        try:
            with one.settings.placing():
                table = one.catalog.load(one.identifier)
        except NotFoundError:
            return None
        except IcekeepError as error:
            load = failing_with(error)
        else:
            load = lambda _: table  # noqa: E731 - it outlives no turn of the loop
        command = msgspec.structs.replace(self._command, table=one.name, match=None, catalog=None)
        ran = self._one_of_many(command, self._job, load, self._context)
        return MatchedTable(
            table=one.name,
            status=ran.status,
            exit_status=ran.exit_status,
            run_id=ran.run_id,
            error_kind=ran.error_kind,
            error_message=ran.error_message,
            elapsed_ms=runtime.monotonic_ms() - began_ms,
            figures=figures_of(ran.result),
        )
