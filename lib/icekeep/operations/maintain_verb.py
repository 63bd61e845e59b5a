"""What the command `maintain` does: catalogs opened, policies resolved for tables, jobs run as their own commands run them."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, parse_identifier
from icekeep.errors import IcekeepError, NotFoundError, UsageError, first_line
from icekeep.events import (
    CommitRetried,
    Event,
    Listener,
    StepAdvanced,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.fleet.job import Fleet, due_tables, maintain, plan_maintain
from icekeep.fleet.looking import Looking, Scope
from icekeep.fleet.memory import Memory
from icekeep.fleet.values import Assignment, DueList, JobStatus, MaintainResult, Ran
from icekeep.maintenance.deletion.shared_neighbours import SharedLooks, sharing
from icekeep.operations.arguments import Command, parse_command
from icekeep.operations.catalogs import Catalogs, TableReference
from icekeep.operations.config import CatalogSettings, Config, read_config
from icekeep.operations.failures import describe_error, our_error
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.policy_tables import require_file, resolve_table
from icekeep.operations.running_jobs import (
    Session,
    Shared,
    Surroundings,
    is_in_cluster_mode,
    known_catalogs,
    looked_after,
    run_job,
)
from icekeep.policies.globs import NAME_IN_CATALOG, parse_glob
from icekeep.policies.resolution import TableRules
from icekeep.policies.told import Problem
from icekeep.policies.values import Policy, Rules
from icekeep.reports.values import NotRead
from icekeep.run_records.store import RunRecords
from icekeep.runs import new_run
from icekeep.spec.units import MINUTE_MS

DEFAULT_WORKERS = 4

_FRESH = frozenset({"check"})
"""Jobs that read what lies there now, and not what was read before."""

_PARTLY_GOOD = 3
_INTERRUPTED = 130


class Wishes(NamedTuple):
    """What the command line asks for."""

    policy: str | None = None
    match: str | None = None
    tables: Sequence[str] = ()
    workers: int = DEFAULT_WORKERS
    max_minutes: int | None = None
    max_bytes: int | None = None
    lists: bool = False


def maintain_over(command: Command, surroundings: Surroundings) -> MaintainResult | DueList:
    """Do what the policies want on all their tables, or tell it with `--dry-run`, or list what is due.

    Raises:
        NotFoundError: there is no configuration file, or none of its policies has the name that was given.
        UsageError: a pattern can match no table, or a name is none.
        UnavailableError: the process that started this one is gone already.
    """
    wishes = Wishes(**command.arguments)
    config = read_config(command.conf)
    require_file(config)
    catalogs = known_catalogs(command.conf, surroundings.seams)
    # Asked once, before several threads ask.
    catalogs.all()
    scope = _scope(wishes, config)
    session = Session("icekeep maintain", surroundings)
    memory, stop = Memory(), threading.Event()
    opened, not_opened = _opened(_settings(catalogs, command.catalog, config.rules, scope), surroundings)
    by_name = {catalog.name: catalog for catalog in opened}
    shared = Shared(catalogs=catalogs, load=partial(_load, by_name), session=session)
    run = new_run("maintain", surroundings.runtime)
    fleet = Fleet(
        run_id=run.run_id,
        catalogs=tuple((catalog, _records_of(catalog)) for catalog in opened),
        not_opened=tuple(not_opened),
        looking=Looking(
            rules=config.rules,
            scope=scope,
            resolve=partial(_resolved, config.rules),
            memory=memory,
            spark=session.started,
            prices=config.prices,
            listener=surroundings.listener,
        ),
        run_call=_Calls(command, surroundings, shared, memory, stop),
        runtime=surroundings.runtime,
        stop=stop,
        workers=wishes.workers,
        max_ms=None if wishes.max_minutes is None else wishes.max_minutes * MINUTE_MS,
        max_bytes=wishes.max_bytes,
    )
    try:
        with looked_after(surroundings):
            if is_in_cluster_mode(surroundings.seams):
                session.started()
            if wishes.lists:
                return due_tables(fleet)
            return plan_maintain(fleet) if command.dry_run else maintain(fleet)
    finally:
        session.stop()


class _Calls:
    """Runs jobs on tables as their own commands do, each in the thread that asks."""

    def __init__(
        self, command: Command, surroundings: Surroundings, shared: Shared, memory: Memory, stop: threading.Event
    ) -> None:
        self._command, self._surroundings, self._shared = command, surroundings, shared
        self._memory, self._stop = memory, stop
        self._looks = SharedLooks()

    def __call__(self, assignment: Assignment) -> Ran:
        job = assignment.call.job
        load = self._shared.load if job in _FRESH else self._remembering
        surroundings = msgspec.structs.replace(
            self._surroundings,
            listener=_OfTable(assignment.table, self._surroundings.listener, self._stop),
            shared=msgspec.structs.replace(self._shared, load=load),
        )
        words = [f"--table={assignment.table}", *assignment.call.arguments]
        try:
            told = parse_command(
                [*words, *(["--dry-run"] if assignment.observes else [])], job, self._surroundings.runtime.now_ms(), ""
            )
            command = msgspec.structs.replace(told, conf=self._command.conf)
            with sharing(self._looks):
                outcome = run_job(command, JOBS[job], surroundings)
        except Exception as error:  # noqa: BLE001 - each failure of a job is told with its status
            ours = our_error(error)
            said = describe_error(error)
            return Ran(
                status=JobStatus.FAILED,
                exit_status=1 if ours is None else ours.exit_status,
                error_kind=said["kind"],
                error_message=said["message"],
            )
        is_whole = outcome.status not in ("partial", "faulty")
        return Ran(status=outcome.status, exit_status=0 if is_whole else _PARTLY_GOOD, result=outcome.result)

    def _remembering(self, reference: TableReference) -> Table:
        table: Table = self._shared.load(reference)
        return self._memory.over(table)


class _OfTable:
    """Tells of the steps of a job with the name of its table; where the run is to stop, the job ends as by a signal."""

    def __init__(self, table: str, listener: Listener, stop: threading.Event) -> None:
        self._table, self._listener, self._stop = table, listener, stop

    def on(self, event: Event) -> None:
        """Pass it on. Between steps a job can end; what has been committed is told in any case."""
        if isinstance(event, StepStarted | StepAdvanced | StepFinished):
            event = msgspec.structs.replace(event, step=f"{self._table}: {event.step}")
        elif isinstance(event, Warned):
            event = Warned(f"{self._table}: {event.message}")
        self._listener.on(event)
        if self._stop.is_set() and isinstance(event, StepStarted | StepAdvanced | CommitRetried):
            raise Interrupted(_INTERRUPTED)


def _scope(wishes: Wishes, config: Config) -> Scope:
    names = [policy.name for policy in config.policies]
    if wishes.policy is not None and wishes.policy not in names:
        raise NotFoundError(
            f"there is no policy {wishes.policy!r} in {config.path}; there is {', '.join(names) or 'none'}",
            policy=wishes.policy,
        )
    for name in wishes.tables:
        if name.count(".") < 2 or not all(name.split(".")):
            raise UsageError(f"{name!r} is not a full name; give CATALOG.NAMESPACE.TABLE")
    return Scope(
        policy=wishes.policy,
        match=None if wishes.match is None else parse_glob(wishes.match, NAME_IN_CATALOG),
        tables=frozenset(wishes.tables) or None,
    )


def _settings(catalogs: Catalogs, name: str | None, rules: Rules, scope: Scope) -> list[CatalogSettings]:
    """The catalogs that policies of the run can reach, or the one that is asked for."""
    if name is not None:
        return [catalogs.get(name)]
    policies = [policy for policy in rules.policies if scope.has_policy(policy)]
    wanted = {table.partition(".")[0] for table in scope.tables or ()}
    return [
        one
        for one in catalogs.all().values()
        if any(_may_reach(policy, one.name) for policy in policies) and (not wanted or one.name in wanted)
    ]


def _may_reach(policy: Policy, catalog: str) -> bool:
    return any(table.startswith(f"{catalog}.") for table in policy.tables) or any(
        glob.catalog in (None, catalog) for glob in policy.match
    )


def _opened(chosen: Sequence[CatalogSettings], surroundings: Surroundings) -> tuple[list[Catalog], list[NotRead]]:
    opens: Any = resolve(surroundings.seams.open_catalog)
    opened, not_opened = [], []
    for settings in chosen:
        try:
            opened.append(opens(settings, runtime=surroundings.runtime))
        except IcekeepError as error:
            if len(chosen) == 1:
                raise
            not_opened.append(NotRead(name=f"{settings.name}.*", kind=error.kind, reason=first_line(error)))
    return opened, not_opened


def _resolved(
    rules: Rules, catalog: Catalog, identifier: Identifier, properties: Mapping[str, str] | None
) -> tuple[TableRules, tuple[Problem, ...]]:
    found = resolve_table(rules, catalog, identifier, properties)
    return found.rules, found.problems


def _load(catalogs: Mapping[str, Catalog], reference: TableReference) -> Table:
    return catalogs[reference.catalog.name].load(parse_identifier(reference.name))


def _records_of(catalog: Catalog) -> RunRecords | None:
    return None
