"""The command `maintain`, and the functions `maintain` and `plan_maintain`, which run it in the process of a caller in Python.

Catalogs are opened, policies resolved for tables, and jobs run as their own commands run them.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import IcekeepError, NotFoundError, UsageError, and_more, argument, commands_reading
from icekeep.events import SILENT, Listener, Warned, unfailing
from icekeep.fleet import job as fleet_job
from icekeep.fleet.job import DEFAULT_WORKERS, Fleet, due_tables
from icekeep.fleet.overview import ScanSettings, Scope, counted
from icekeep.fleet.values import Assignment, DueList, JobOutcome, JobStatus, MaintainResult
from icekeep.names import catalog_of
from icekeep.operations.arguments import Command
from icekeep.operations.command_run import CommandRun
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.commands.matching import OneOfMany, failing_with
from icekeep.operations.commands.policy import validate_options
from icekeep.operations.commands.tables import for_each_catalog
from icekeep.operations.configuration.catalogs import Catalogs, TableReference, find_pattern, find_table
from icekeep.operations.configuration.file import CatalogSettings, Configuration, config_words
from icekeep.operations.configuration.policy_tables import require_file, resolve_table
from icekeep.operations.interrupts import JobInterrupts, passing_on
from icekeep.operations.job_run import Session, known_catalogs, place_of, spark_properties, with_watchdog
from icekeep.operations.jobs import JOBS, SEAMS, resolve
from icekeep.operations.outcomes import Outcome
from icekeep.operations.policy_calls import call_values, require_policy
from icekeep.operations.recording import RecordDestination, recorded, records_of
from icekeep.operations.run_context import RunContext
from icekeep.planning.memory import Memory
from icekeep.planning.spark.session import SparkSource, check_source, started
from icekeep.planning.spark.workers import expected_slots
from icekeep.policies.resolution import TableRules, held_by_now
from icekeep.policies.table_properties import Problem
from icekeep.policies.values import Mode, Policy, Rules
from icekeep.run_records.store import RunRecords
from icekeep.runs import new_run
from icekeep.runtime import SYSTEM
from icekeep.spec.types import MINUTE_MS
from icekeep.spelling import named_or_known
from icekeep.storage.wrappers import Meter

_FRESH = frozenset({"check"})
"""Jobs that read what lies there now, and not what was read before."""


class FleetOptions(NamedTuple):
    """What the command line asks for."""

    policy: str | None = None
    match: str | None = None
    tables: Sequence[str] = ()
    workers: int = DEFAULT_WORKERS
    max_minutes: int | None = None
    max_bytes: int | None = None
    lists: bool = False


def maintain_over(command: Command, context: RunContext) -> Outcome:
    """Do what the policies want on all their tables, or tell it with `--dry-run`, or list what is due."""
    options = FleetOptions(**command.arguments)
    # A wrong schedule of another policy is no error then.
    catalogs = known_catalogs(command.conf, context.seams, checks_schedules=options.policy is None)
    config = catalogs.config
    require_file(config)
    validate_options(config.rules)
    if options.lists and command.dry_run:
        raise UsageError("--list changes nothing, and --dry-run says what would be changed; give one of them")
    asked = _asked(options, catalogs, command.catalog)
    state, writes = context.state, not command.dry_run and not options.lists
    with Session("icekeep maintain", context) as session, with_watchdog(context), ExitStack() as records:
        for settings in asked.chosen:
            records.enter_context(settings.placing())
        session.start_on_cluster()
        places = _places(catalogs, asked.chosen, context) if writes else []
        recordings = [records.enter_context(recorded(state, place, context)) for place in places]
        for one in recordings:
            one.start()
        fleet = _FleetRun(command, catalogs, asked, session, context).fleet(options)
        result = result_of(fleet, options, is_dry_run=command.dry_run)
        outcome = state.outcome(result.status, result, context.runtime, is_dry_run=command.dry_run)
        for one in recordings:
            one.finish(outcome)
    return outcome


class MaintainScope(NamedTuple):
    """Which tables and jobs are meant, in which catalogs, and what the operator should know of that."""

    scope: Scope
    chosen: Sequence[CatalogSettings]
    notes: Sequence[str]


def result_of(fleet: Fleet, options: FleetOptions, *, is_dry_run: bool) -> MaintainResult | DueList:
    if options.lists:
        return due_tables(fleet)
    return fleet_job.plan_maintain(fleet) if is_dry_run else fleet_job.maintain(fleet)


class _FleetRun:
    """One run over the tables of catalogs: each job is run as its own command runs it, in the thread that asks."""

    def __init__(
        self, command: Command, catalogs: Catalogs, asked: MaintainScope, session: Session, context: RunContext
    ) -> None:
        self._command, self._config, self._asked = command, catalogs.config, asked
        self._session, self._context = session, context
        self._memory, self._stop = Memory(), threading.Event()
        self._interrupts, self._one_of_many = JobInterrupts(self._stop), OneOfMany(catalogs, session)
        assert context.state.run is not None
        self._run_id = context.state.run.run_id

    def fleet(self, options: FleetOptions) -> Fleet:
        context, config, asked = self._context, self._config, self._asked
        opens: Any = partial(resolve(context.seams.open_catalog), runtime=self._interrupts.runtime(context.runtime))
        opened, not_opened = for_each_catalog(asked.chosen, opens)
        by_name = {catalog.name: catalog for catalog in opened}
        records = {one.name: _records_of(config, one, context) for one in asked.chosen if one.name in by_name}
        return Fleet(
            run_id=self._run_id,
            catalogs=tuple((catalog, records[catalog.name]) for catalog in opened),
            not_opened=tuple(not_opened),
            notes=(*asked.notes, *_notes(records)),
            settings=ScanSettings(
                rules=config.rules,
                scope=asked.scope,
                resolve=partial(_resolved, config.rules),
                memory=self._memory,
                spark=self._session.started,
                prices=config.prices,
                listener=context.listener,
                slots=partial(expected_slots, cache(partial(spark_properties, context.seams))),
            ),
            run_call=self._run_call,
            runtime=context.runtime,
            stop=self._stop,
            workers=options.workers,
            max_ms=None if options.max_minutes is None else options.max_minutes * MINUTE_MS,
            max_bytes=options.max_bytes,
        )

    def _run_call(self, assignment: Assignment) -> JobOutcome:
        with self._interrupts.of_job():
            return self._ran(assignment)

    def _ran(self, assignment: Assignment) -> JobOutcome:
        job, runtime = assignment.call.job, self._context.runtime
        meter = Meter()
        load, held_by = self._loaded(assignment, meter)
        if held_by is not None:
            return JobOutcome(status=JobStatus.NOT_BEGUN, held_by=held_by)
        run = msgspec.structs.replace(
            new_run(job, runtime, policy=assignment.policy, parent_id=self._run_id),
            cpu_pace=assignment.cpu_pace,
            estimated_ms=assignment.estimated_ms,
        )
        context = msgspec.structs.replace(self._context, listener=self._interrupts.listener(self._context.listener))
        command = Command(
            name=job,
            conf=self._command.conf,
            table=assignment.table,
            dry_run=assignment.observes,
            arguments=call_values(assignment.call, JOBS[job], runtime.now_ms()),
        )
        ran = self._one_of_many(command, JOBS[job], load, context, run)
        return msgspec.structs.replace(ran, requests_count=meter.requests_count)

    def _loaded(self, assignment: Assignment, meter: Meter) -> tuple[Callable[[TableReference], Table], str | None]:
        """What gives the job its table, as it is now, and why the job may not begin after all.

        The look at all tables may be hours old: owners have switched jobs off since, or made another table of the name.
        """
        try:
            table = assignment.catalog.load(assignment.identifier)
            held_by = _held_since(self._config.rules, assignment, table)
        except IcekeepError as error:
            return failing_with(error), None
        metered = counted(table, meter)
        fresh = assignment.call.job in _FRESH
        return (lambda reference: metered if fresh else self._memory.over(metered)), held_by


def _asked(options: FleetOptions, catalogs: Catalogs, catalog: str | None) -> MaintainScope:
    """What the command line means."""
    config = catalogs.config
    if options.policy is not None:
        require_policy(config, options.policy)
    elif not config.policies:
        raise UsageError(
            f"{config.path} has no policies, so nothing would be maintained; `icekeep path conf/icekeep.example.yaml` "
            "names a file that has some"
        )
    pattern = None if options.match is None else find_pattern(catalogs, options.match, catalog)
    tables = frozenset(find_table(catalogs, name, catalog).full_name for name in options.tables)
    scope = Scope(
        policy=options.policy,
        match=None if pattern is None else pattern.glob,
        match_text=options.match or "",
        tables=tables or None,
    )
    policies = [policy for policy in config.policies if scope.has_policy(policy)]
    wanted = {catalog_of(table) for table in tables}
    # All are asked for once, before several threads ask.
    known = catalogs.all()
    if catalog is not None:
        chosen = [catalogs.get(catalog)]
    else:
        among = known.values() if pattern is None else pattern.catalogs
        chosen = [
            one
            for one in among
            if any(policy.may_reach_in(one.name) for policy in policies) and (not wanted or one.name in wanted)
        ]
    unknown = tuple(_unknown_catalogs(policies, known))
    if unknown and not chosen:
        raise NotFoundError(f"{unknown[0]}{and_more(unknown)}")
    return MaintainScope(scope, chosen, (*_left_out(scope, config.policies), *unknown))


def _left_out(scope: Scope, every: Sequence[Policy]) -> Iterator[str]:
    by_hand = [repr(one.name) for one in every if one.schedule is None and scope.policy is None]
    if by_hand:
        yield f"policies without a schedule are left out: {', '.join(by_hand)}; --policy runs one of them"


def _unknown_catalogs(policies: Sequence[Policy], known: Collection[str]) -> Iterator[str]:
    for policy in policies:
        named = {glob.catalog for glob in policy.match} | {catalog_of(table) for table in policy.tables}
        for name in sorted(one for one in named if one is not None and one not in known):
            yield f"policy {policy.name!r}: there is no catalog {name!r}; {named_or_known(name, known)}"


def _resolved(
    rules: Rules, catalog: Catalog, identifier: Identifier, properties: Mapping[str, str] | None
) -> tuple[TableRules, tuple[Problem, ...]]:
    found = resolve_table(rules, catalog, identifier, properties)
    return found.rules, found.problems


def _held_since(rules: Rules, assignment: Assignment, table: Table) -> str | None:
    """Why a job that was due on a table when it was looked at may not begin on it by now; `None` where it may."""
    if assignment.table_uuid is not None and table.metadata.table_uuid != assignment.table_uuid:
        return "it is another table than the one that was looked at: the name was given to another"
    found, _ = _resolved(rules, assignment.catalog, assignment.identifier, table.metadata.properties)
    held_by = held_by_now(found, assignment.call.job, assignment.policy, table.runtime.now_ms())
    if held_by is not None:
        return held_by
    rule = next(one for one in found.jobs if one.job == assignment.call.job)
    if rule.call != assignment.call or (rule.mode is Mode.OBSERVE) != assignment.observes:
        return "what is wanted of it has changed since it was looked at"
    return None


def _places(catalogs: Catalogs, chosen: Sequence[CatalogSettings], context: RunContext) -> list[RecordDestination]:
    """Where the run itself is written down: in the record of each catalog, and where several have one, once there."""
    places: dict[str, RecordDestination] = {}
    for settings in chosen:
        records = _records_of(catalogs.config, settings, context)
        if records is not None:
            reference = TableReference(settings, "")
            places.setdefault(records.address, place_of(catalogs, reference, context))
    return [*places.values()]


def _records_of(config: Configuration, settings: CatalogSettings, context: RunContext) -> RunRecords | None:
    try:
        return records_of(config.runs, settings, os.environ)
    except IcekeepError as error:
        context.listener.on(Warned(f"catalog {settings.name!r} has no record of runs: {error.message}"))
        return None


def _notes(records: Mapping[str, RunRecords | None]) -> Iterator[str]:
    for name, one in records.items():
        if one is None:
            yield (
                f"catalog {name!r} has no record of runs: what earlier runs did is not known, nor what others do now, and what "
                "fails is tried each time; `runs: {uri: ...}` names a database for it"
            )


_NAME = "maintain"


def maintain(  # noqa: PLR0913 - the settings of the command
    catalog: str | None = None,
    spark: SparkSource = None,
    *,
    conf: str | None = None,
    policy: str | None = None,
    match: str | None = None,
    tables: Sequence[str] = (),
    workers: int = DEFAULT_WORKERS,
    max_minutes: int | None = None,
    max_bytes: int | None = None,
    listener: Listener = SILENT,
) -> MaintainResult:
    """Run the jobs that the policies of the configuration want on all their tables, the most beneficial for their cost first.

    It is the command `icekeep maintain` in this process: jobs run in threads, and each is written down as a run of its own
    (`list_runs`). What goes wrong on a table is in the result, and ends nothing else.

    Ctrl-C and SIGTERM, where this is called in the main thread, wait until the jobs under way have cleaned up, and are then
    passed on to the program. What was done until then is in the record of runs.

    Args:
        catalog: only tables of this catalog, as the configuration calls it; by default of each that a policy may reach.
        spark: a session, or a function that starts one; by default the session that runs, or a new one, where a job needs it.
        conf: the YAML file with catalogs and policies, as `load_catalog` takes it. What it says of logs and metrics is for
            commands alone.
        policy: only jobs of which this policy decides; by default those of all that have a schedule.
        match: only tables of a pattern: `*` within a part of the name, `**` over parts, as `"db.*"` or `"CATALOG.db.*"`.
        tables: only these, each `NS.NAME` or `CATALOG.NS.NAME`.
        workers: how many tables are worked on at a time.
        max_minutes: no job is begun that this time would not hold; what runs goes on to its end.
        max_bytes: no job is begun that would read and write more, all together.
        listener: hears what happens, in `InRun` of the job's run, from several threads.

    Raises:
        NotFoundError: there is no configuration, or no such policy, catalog or file.
        UsageError: there are no policies, a policy has an option that its job does not have, a pattern or a name cannot
            be a table's, or a number is less than 1.
        ConfigError: the configuration is wrong.
        UnavailableError: the only catalog is out of reach.
    """
    options = FleetOptions(policy, match, tables, workers, max_minutes, max_bytes)
    return _called(catalog, spark, conf, options, listener, is_dry_run=False)


def plan_maintain(  # noqa: PLR0913 - the settings of the command
    catalog: str | None = None,
    spark: SparkSource = None,
    *,
    conf: str | None = None,
    policy: str | None = None,
    match: str | None = None,
    tables: Sequence[str] = (),
    workers: int = DEFAULT_WORKERS,
    max_minutes: int | None = None,
    max_bytes: int | None = None,
    listener: Listener = SILENT,
) -> MaintainResult:
    """Show what `maintain` would do, in its order, and what it would skip and why; nothing is changed or written down.

    A job that is due has the status `due`. Arguments and errors are those of `maintain`; the plan does not go by the budget.
    """
    options = FleetOptions(policy, match, tables, workers, max_minutes, max_bytes)
    return _called(catalog, spark, conf, options, listener, is_dry_run=True)


def _called(
    catalog: str | None,
    spark: SparkSource,
    conf: str | None,
    options: FleetOptions,
    listener: Listener,
    *,
    is_dry_run: bool,
) -> MaintainResult:
    check_source(spark)
    given = {name: one for name, one in options._asdict().items() if one != FleetOptions._field_defaults[name]}
    if isinstance(options.tables, str):
        raise UsageError(f"{argument('tables')} is the text {options.tables!r}; give a list of names")
    low = next((name for name, one in given.items() if isinstance(one, int) and one < 1), None)
    if low is not None:
        raise UsageError(f"{argument(low)} is {given[low]}; give 1 or more")
    command = Command(name=_NAME, conf=conf, output="json", catalog=catalog, dry_run=is_dry_run, arguments=given)
    with passing_on() as taken, commands_reading(config_words(conf)):
        context = RunContext(
            seams=SEAMS, listener=unfailing(listener), interrupts=taken, runtime=SYSTEM, spark=partial(started, spark)
        )
        result: MaintainResult = CommandRun(command, COMMANDS[_NAME], context).outcome().result
    return result
