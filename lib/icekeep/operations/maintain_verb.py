"""What the command `maintain` does: catalogs opened, policies resolved for tables, jobs run as their own commands run them."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, parse_identifier
from icekeep.errors import IcekeepError, NotFoundError, UsageError
from icekeep.events import (
    CommitRetried,
    Event,
    InRun,
    Listener,
    StepAdvanced,
    StepStarted,
    Warned,
)
from icekeep.fleet.job import Fleet, due_tables, maintain, plan_maintain
from icekeep.fleet.looking import Looking, Scope
from icekeep.fleet.values import Assignment, DueList, JobStatus, MaintainResult, Ran
from icekeep.maintenance.deletion.shared_neighbours import SharedLooks, sharing
from icekeep.operations.arguments import Command, parse_command
from icekeep.operations.catalogs import Catalogs, TableReference
from icekeep.operations.config import CatalogSettings, Config
from icekeep.operations.each_catalog import of_each_catalog
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.outcomes import Begun, Outcome, how_it_ended
from icekeep.operations.policy_tables import require_file, resolve_table
from icekeep.operations.recording import Place, recorded, records_of
from icekeep.operations.running_jobs import (
    Session,
    is_in_cluster_mode,
    known_catalogs,
    looked_after,
    place_of,
    run_job,
)
from icekeep.operations.surroundings import Shared, Surroundings
from icekeep.planning.memory import Memory
from icekeep.policies.globs import NAME_IN_CATALOG, parse_glob
from icekeep.policies.resolution import TableRules
from icekeep.policies.told import Problem
from icekeep.policies.values import Mode, Rules
from icekeep.policies.windows import is_open
from icekeep.run_records.store import RunRecords
from icekeep.runs import new_run
from icekeep.runtime import Runtime
from icekeep.spec.units import MINUTE_MS

DEFAULT_WORKERS = 4

_FRESH = frozenset({"check"})
"""Jobs that read what lies there now, and not what was read before."""

_LOOKS_ITSELF = frozenset({"remove_orphan_files"})
"""Jobs that look for other tables by themselves: what lies below their table may have become another one's a minute ago."""

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


def maintain_over(command: Command, surroundings: Surroundings) -> Outcome:
    """Do what the policies want on all their tables, or tell it with `--dry-run`, or list what is due.

    Raises:
        NotFoundError: there is no configuration file, or none of its policies has the name that was given.
        UsageError: a pattern can match no table, or a name is none.
        UnavailableError: the process that started this one is gone already.
    """
    wishes = Wishes(**command.arguments)
    catalogs = known_catalogs(command.conf, surroundings.seams)
    config = catalogs.config
    require_file(config)
    # Asked once, before several threads ask.
    catalogs.all()
    chosen = _settings(catalogs, command.catalog, config.rules, _scope(wishes, config))
    session, begun = Session("icekeep maintain", surroundings), surroundings.begun
    writes = not command.dry_run and not wishes.lists
    try:
        with looked_after(surroundings), ExitStack() as records:
            if is_in_cluster_mode(surroundings.seams):
                session.started()
            places = _places(catalogs, chosen, surroundings) if writes else []
            recordings = [records.enter_context(recorded(begun, place, surroundings)) for place in places]
            for one in recordings:
                one.began()
            fleet = _fleet(command, Opened(catalogs, chosen, session), surroundings)
            result = result_of(fleet, wishes, is_dry_run=command.dry_run)
            outcome = begun.outcome(result.status, result, surroundings.runtime, is_dry_run=command.dry_run)
            for one in recordings:
                one.ended(outcome)
    finally:
        session.stop()
    return outcome


class Opened(NamedTuple):
    """What a run goes by: the catalogs, with the configuration, those of them that are meant, and what starts Spark."""

    catalogs: Catalogs
    chosen: Sequence[CatalogSettings]
    session: Session


def result_of(fleet: Fleet, wishes: Wishes, *, is_dry_run: bool) -> MaintainResult | DueList:
    """What was done, would be done, or is due."""
    if wishes.lists:
        return due_tables(fleet)
    return plan_maintain(fleet) if is_dry_run else maintain(fleet)


def _fleet(command: Command, by: Opened, surroundings: Surroundings) -> Fleet:
    wishes, config = Wishes(**command.arguments), by.catalogs.config
    stop = threading.Event()
    opens: Any = resolve(surroundings.seams.open_catalog)
    opened, not_opened = of_each_catalog(by.chosen, partial(opens, runtime=_Stoppable(surroundings.runtime, stop)))
    by_name = {catalog.name: catalog for catalog in opened}
    records = {one.name: _records_of(config, one, surroundings) for one in by.chosen if one.name in by_name}
    shared = Shared(catalogs=by.catalogs, load=partial(_load, by_name), session=by.session)
    memory, run = Memory(), surroundings.begun.run
    assert run is not None
    return Fleet(
        run_id=run.run_id,
        catalogs=tuple((catalog, records[catalog.name]) for catalog in opened),
        not_opened=tuple(not_opened),
        notes=tuple(_notes(records)),
        looking=Looking(
            rules=config.rules,
            scope=_scope(wishes, config),
            resolve=partial(_resolved, config.rules),
            memory=memory,
            spark=by.session.started,
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


class _Stoppable:
    """All of a runtime; who sleeps, as between two attempts to commit, wakes where the run stops, and ends as by a signal."""

    def __init__(self, runtime: Runtime, stop: threading.Event) -> None:
        self._runtime, self._stop = runtime, stop

    def __reduce__(self) -> tuple[Any, ...]:
        # Storages take it along to Spark's tasks, which Spark itself ends.
        return _itself, (self._runtime,)

    def sleep_ms(self, duration_ms: int) -> None:
        if self._stop.wait(duration_ms / 1000):
            raise Interrupted(_INTERRUPTED)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class _Calls:
    """Runs jobs on tables as their own commands do, each in the thread that asks."""

    def __init__(
        self, command: Command, surroundings: Surroundings, shared: Shared, memory: Memory, stop: threading.Event
    ) -> None:
        self._command, self._surroundings, self._shared = command, surroundings, shared
        self._memory, self._stop = memory, stop
        self._looks = SharedLooks()
        run = surroundings.begun.run
        self._parent_id = None if run is None else run.run_id

    def __call__(self, assignment: Assignment) -> Ran:
        job, runtime = assignment.call.job, self._surroundings.runtime
        load, held_by = self._loaded(assignment)
        if held_by is not None:
            return Ran(status=JobStatus.NOT_BEGUN, held_by=held_by)
        run = new_run(job, runtime, policy=assignment.policy, parent_id=self._parent_id)
        surroundings = msgspec.structs.replace(
            self._surroundings,
            listener=_Stopped(self._surroundings.listener, self._stop),
            begun=Begun(),
            shared=msgspec.structs.replace(self._shared, load=load),
        )
        words = [f"--table={assignment.table}", *assignment.call.arguments]
        if assignment.observes:
            words.append("--dry-run")
        try:
            told = parse_command(words, job, runtime.now_ms(), "")
            command = msgspec.structs.replace(told, conf=self._command.conf)
            with nullcontext() if job in _LOOKS_ITSELF else sharing(self._looks):
                outcome = run_job(command, JOBS[job], surroundings, run)
        except Exception as error:  # noqa: BLE001 - each failure of a job is told with its status
            ended = how_it_ended(error, None)
            return Ran(
                status=JobStatus.FAILED,
                exit_status=ended.exit_status,
                run_id=run.run_id,
                error_kind=ended.error.kind,
                error_message=ended.error.message,
            )
        return Ran(status=outcome.status, exit_status=outcome.exit_status, run_id=run.run_id, result=outcome.result)

    def _loaded(self, assignment: Assignment) -> tuple[Callable[[TableReference], Table], str | None]:
        """What gives the job its table, as it is now, and why the job may not begin after all.

        The look at all tables may be hours old: owners have switched jobs off since, or made another table of the name.
        """
        try:
            table = assignment.catalog.load(assignment.identifier)
            held_by = _held_since(self._shared.catalogs.config.rules, assignment, table)
        except IcekeepError as error:
            return partial(_fails, error), None
        fresh = assignment.call.job in _FRESH
        return (lambda reference: table if fresh else self._memory.over(table)), held_by


class _Stopped:
    """Passes events of a job on; where the run is to stop, the job ends as by a signal."""

    def __init__(self, listener: Listener, stop: threading.Event) -> None:
        self._listener, self._stop = listener, stop

    def on(self, event: Event) -> None:
        """Pass it on. Between steps a job can end; what has been committed is told in any case."""
        self._listener.on(event)
        told = event.event if isinstance(event, InRun) else event
        if self._stop.is_set() and isinstance(told, StepStarted | StepAdvanced | CommitRetried):
            raise Interrupted(_INTERRUPTED)


def _itself(runtime: Runtime) -> Runtime:
    return runtime


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
        if any(policy.may_reach_in(one.name) for policy in policies) and (not wanted or one.name in wanted)
    ]


def _resolved(
    rules: Rules, catalog: Catalog, identifier: Identifier, properties: Mapping[str, str] | None
) -> tuple[TableRules, tuple[Problem, ...]]:
    found = resolve_table(rules, catalog, identifier, properties)
    return found.rules, found.problems


def _held_since(rules: Rules, assignment: Assignment, table: Table) -> str | None:
    """Why a job that was due on a table when it was looked at may not begin on it by now; `None` where it may."""
    if assignment.table_uuid is not None and table.metadata.table_uuid != assignment.table_uuid:
        return "it is another table than the one that was looked at: the name was given anew"
    found, _ = _resolved(rules, assignment.catalog, assignment.identifier, table.metadata.properties)
    rule = next((one for one in found.jobs if one.job == assignment.call.job), None)
    if rule is None or rule.policy != assignment.policy:
        return "another policy decides of it than when it was looked at"
    if rule.held_by is not None:
        return rule.held_by
    if rule.window is not None and not is_open(rule.window, table.runtime.now_ms()):
        return f"its window is closed: {rule.window}"
    if rule.call != assignment.call or (rule.mode is Mode.OBSERVE) != assignment.observes:
        return "what is wanted of it has changed since it was looked at"
    return None


def _fails(error: IcekeepError, reference: TableReference) -> Table:
    raise error


def _load(catalogs: Mapping[str, Catalog], reference: TableReference) -> Table:
    return catalogs[reference.catalog.name].load(parse_identifier(reference.name))


def _places(catalogs: Catalogs, chosen: Sequence[CatalogSettings], surroundings: Surroundings) -> list[Place]:
    """Where the run itself is written down: in the record of each catalog, and where several have one, once there."""
    places: dict[str, Place] = {}
    for settings in chosen:
        records = _records_of(catalogs.config, settings, surroundings)
        if records is not None:
            reference = TableReference(settings, "")
            places.setdefault(records.address, place_of(catalogs, reference, surroundings))
    return [*places.values()]


def _records_of(config: Config, settings: CatalogSettings, surroundings: Surroundings) -> RunRecords | None:
    try:
        return records_of(config.history, settings, os.environ)
    except IcekeepError as error:
        surroundings.listener.on(Warned(f"catalog {settings.name!r} has no record of runs: {error.message}"))
        return None


def _notes(records: Mapping[str, RunRecords | None]) -> Iterator[str]:
    for name, one in records.items():
        if one is None:
            yield (
                f"catalog {name!r} has no record of runs: what earlier runs did is not known, nor what others do now, and what "
                "fails is tried each time; `history: {uri: ...}` names a database for it"
            )
