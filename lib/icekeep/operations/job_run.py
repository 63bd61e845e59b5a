"""One job on one table: from a command to its outcome.

What can be wrong is found before Spark starts: the configuration, the catalog, the table, the filter against the table's
schema, the options, the ref and the ids. The job's own code, Spark and the catalogs are named by import strings and are
imported when their turn comes.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from icekeep.catalog.base import parse_identifier
from icekeep.catalog.wrappers import refusal_of
from icekeep.commit.retry import check_submitter
from icekeep.errors import InvalidTableError, NotFoundError, UsageError, one_line
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.plans import SavedPlan
from icekeep.maintenance.preconditions import AlreadyApplied, refuse_other_table, run_of_plan
from icekeep.operations.arguments import Command
from icekeep.operations.configuration.catalogs import Catalogs, TableReference, find_table
from icekeep.operations.configuration.file import read_config
from icekeep.operations.interrupts import ending_when_abandoned, explaining_dead_jvm
from icekeep.operations.jobs import Seams, resolve
from icekeep.operations.outcomes import AppliedBefore, Held, Outcome, PlanWritten, Position, position_of
from icekeep.operations.recording import RecordDestination, Recording, cpu_pace_of, recorded, require_catalog
from icekeep.operations.run_context import RunContext
from icekeep.planning.spark.configuration import SUBMITTED_VARIABLE
from icekeep.planning.spark.session import current_properties
from icekeep.runs import Run, application_id, new_run
from icekeep.runtime import SYSTEM
from icekeep.settings import CatalogChange, Job, SettingKind
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import parse_where

_LOG = logging.getLogger(__name__)

_START = "starting Spark"
_RECORDING_LOOKS = "icekeep.maintenance.delete.looks:recording_looks"


class JobRun:
    """One job on one table, from a command to its outcome.

    Args:
        run: which run it is, where it has begun already; by default one that begins here.
        saved: the plan to carry out, or to look at, in place of a new one. Where it was carried out before, the result is
            `AppliedBefore`.
    """

    def __init__(
        self, command: Command, job: Job, context: RunContext, run: Run | None = None, saved: SavedPlan | None = None
    ) -> None:
        self._command, self._job, self._context, self._run, self._saved = command, job, context, run, saved
        self._state, self._runtime, self._seams = context.state, context.runtime, context.seams

    def outcome(self) -> Outcome:
        """Run the job or, with `--dry-run`, plan it; with `--plan-out` the plan is written to a file.

        Raises:
            UnavailableError: the process that started this one is gone already.
            IcekeepError: any error of the configuration, the table or the job.
        """
        command, job, state, runtime = self._command, self._job, self._state, self._runtime
        # A process that takes itself for abandoned would refuse to commit what hours of work made.
        check_submitter(runtime)
        run = self._run or new_run(command.name, runtime, policy=command.policy)
        if self._saved is not None:
            run = run_of_plan(self._saved, job.name, runtime)
        state.start(command.name, command.arguments, runtime, run)
        state.is_read_only, state.changes_by_commits = command.dry_run, job.asks is CatalogChange.COMMIT
        context = self._context = self._context.in_run()
        shared = context.shared
        catalogs = (
            shared.catalogs
            if shared is not None
            else known_catalogs(command.conf, self._seams, checks_schedules=command.policy is None)
        )
        reference = find_table(catalogs, command.table, command.catalog)
        state.table = reference.full_name
        if command.policy is not None:
            from icekeep.operations.policy_calls import policy_command, require_policy

            require_policy(catalogs.config, command.policy)
        # Wrong arguments are refused before a table is loaded.
        now_ms = state.started_ms if self._saved is None else self._saved.head.created_ms
        arguments = parse_arguments(command.arguments, job, now_ms)
        place = None if command.dry_run else place_of(catalogs, reference, context)
        # A run that has begun already has its pace too.
        if job.has_estimate and self._run is None:
            pace = cpu_pace_of(
                job.name, reference.full_name, catalogs.config.runs, reference.catalog, os.environ, runtime
            )
            state.run = msgspec.structs.replace(run, cpu_pace=pace)
        with recorded(state, place, context) as recording:
            if command.policy is None:
                return self._carried_out(reference, partial(self._load, reference), arguments, catalogs, recording)
            table = self._load(reference)
            try:
                wanted = policy_command(command, job, catalogs.config, table, state.started_ms)
            except UsageError:
                # The caller's own mistake is no failure of the policy's job, which would put off its next nights.
                recording.override_arguments(command.arguments, is_read_only=True)
                raise
            if isinstance(wanted, Held):
                return self._held(wanted, table, recording)
            self._command = wanted
            recording.override_arguments(wanted.arguments, is_read_only=wanted.dry_run)
            arguments = parse_arguments(wanted.arguments, job, now_ms)
            return self._carried_out(reference, lambda: table, arguments, catalogs, recording)

    def _load(self, reference: TableReference) -> Any:
        shared = self._context.shared
        if shared is not None:
            return shared.load(reference).for_run(self._state.run)
        return resolve(self._seams.load_table)(reference, runtime=self._runtime).for_run(self._state.run)

    def _held(self, held: Held, table: Any, recording: Recording) -> Outcome:
        """The outcome of a job that its policy holds: it is no run of the job, and so not written down."""
        # A driver on a cluster has a session even so.
        with self._session():
            pass
        recording.override_arguments(self._state.arguments, is_read_only=True)
        recording.table_loaded(position_of(table))
        outcome = self._state.outcome(held.status, held, self._runtime)
        recording.finish(outcome)
        return outcome

    def _carried_out(
        self,
        reference: TableReference,
        load: Callable[[], Any],
        arguments: Mapping[str, Any],
        catalogs: Catalogs,
        recording: Recording,
    ) -> Outcome:
        command, branch = self._command, self._command.arguments.get("branch")
        is_plan = command.dry_run and self._job.plan is not None
        table, work = self._work(reference, load, arguments, is_plan=is_plan)
        if table is None:
            recording.start()
        else:
            recording.table_loaded(position_of(table, branch))
        source = None
        if command.plan_out is not None and table is not None:
            from icekeep.operations.plan_files import PlanSource, absolute_arguments, write_exact

            now_ms = self._state.started_ms
            absolute = absolute_arguments(self._job, command.arguments, now_ms)
            source = PlanSource(
                job=self._job.name, name=reference.full_name, table=table, created_ms=now_ms, arguments=absolute
            )
        written: PlanWritten | msgspec.UnsetType = msgspec.UNSET
        shared = self._context.shared is not None
        watched = explaining_dead_jvm(self._runtime) if shared else with_watchdog(self._context)
        with watched, _recording_looks(recording), self._session() as spark:
            result = work(spark)
            if source is not None:
                # While the session is there that the plan was made in.
                written = write_exact(
                    str(command.plan_out), result, source, catalogs.config.prices, self._context.listener
                )
                result = result.shown
        status = "planned" if is_plan and not isinstance(result, AppliedBefore) else getattr(result, "status", "done")
        changes = self._job.plan is not None and not command.dry_run
        after = position_after(table, branch) if changes and table is not None else None
        outcome = self._state.outcome(status, result, self._runtime, is_dry_run=command.dry_run, after=after)
        recording.finish(outcome)
        return msgspec.structs.replace(outcome, plan=written)

    def _work(
        self, reference: TableReference, load: Callable[[], Any], arguments: Mapping[str, Any], *, is_plan: bool
    ) -> tuple[Any, Callable[["Session"], Any]]:
        """The table, `None` where it cannot be loaded and the job goes on without it, and the work, which may start Spark."""
        job, saved, to_file = self._job, self._saved, self._command.plan_out is not None
        try:
            table = load()
        except InvalidTableError as error:
            function = job.plan_unreadable if is_plan else job.unreadable
            if job.unreadable is None or saved is not None or to_file or function is None:
                raise
            name, without, unreadable = parse_identifier(reference.name), resolve(function), error
            return None, lambda spark: without(
                self._open(reference),
                name,
                unreadable,
                spark=spark.started,
                run=self._state.run,
                **self._with(arguments),
            )
        except NotFoundError as error:
            if saved is None:
                raise
            from icekeep.operations.plan_files import dropped_before

            before = dropped_before(job.name, saved, error, lambda: self._open(reference).identity)
            return None, lambda spark: before
        self._state.location = table.metadata.location
        if self._command.dry_run:
            self._foresee_refusal(table)
        if saved is None:
            check_arguments(arguments, table.metadata)
            if job.check is not None:
                resolve(job.check)(table.metadata, **arguments)
            function = job.exact if to_file else job.plan if is_plan else job.run
            return table, lambda spark: resolve(str(function))(table, spark.started, **self._with(arguments))
        refuse_other_table(saved, table)

        def carry_out(spark: "Session") -> Any:
            function = str(job.plan if is_plan else job.run)
            try:
                return resolve(function)(table, spark.started, saved=saved, **self._with(arguments))
            except AlreadyApplied as found:
                from icekeep.operations.plan_files import applied_before

                return applied_before(found)

        return table, carry_out

    def _foresee_refusal(self, table: Any) -> None:
        """Say of a dry run whether the catalog would refuse the run, which asks it by itself, before its work."""
        asks, state = self._job.asks, self._state
        state.refusal = None if asks is None else refusal_of(table.catalog, asks)
        # The outcome of one job among many is not shown whole.
        if state.refusal is not None and self._context.shared is not None:
            self._context.listener.on(Warned(f"{self._job.name} of {state.table} would be refused: {state.refusal}"))

    def _with(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a job's function, with what all its functions take beside."""
        return {**arguments, "listener": self._context.listener} if self._job.takes_listener else {**arguments}

    def _open(self, reference: TableReference) -> Any:
        return resolve(self._seams.open_catalog)(reference.catalog, runtime=self._runtime)

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """What starts Spark: of all jobs of this process, or of this run alone, with which it ends."""
        shared = self._context.shared
        if shared is not None:
            yield shared.session
            return
        with Session(f"icekeep {self._command.name} {self._command.table}", self._context) as spark:
            spark.start_on_cluster()
            yield spark


def _recording_looks(recording: Recording) -> AbstractContextManager[None]:
    """Where the run is written down, its looks at the catalog are as well, for the runs of a day."""
    if recording.looks is None:
        return nullcontext()
    found: AbstractContextManager[None] = resolve(_RECORDING_LOOKS)(recording.looks)
    return found


@contextmanager
def with_watchdog(context: RunContext) -> Iterator[None]:
    """Work of this process, which ends where it is abandoned, and tells of files that are read slowly."""
    # It needs Arrow, which help and mistakes do without.
    from icekeep.planning.decoder import warning_of_slow_reads

    listener = context.listener
    with ending_when_abandoned(context.runtime, listener), warning_of_slow_reads(listener):
        yield


def place_of(catalogs: Catalogs, reference: TableReference, context: RunContext) -> RecordDestination:
    """Where a run on a table is written down; raises `ConfigError` where its table of runs is in no catalog."""
    require_catalog(catalogs.config.runs, catalogs)

    def open_catalog(name: str) -> Any:
        return resolve(context.seams.open_catalog)(catalogs.get(name), runtime=context.runtime)

    return RecordDestination(catalogs.config.runs, reference.catalog, open_catalog)


def position_after(table: Any, branch: str | None) -> Position:
    """Where a table is after a job; nowhere where it is gone, or cannot be asked."""
    try:
        return position_of(table.refresh(), branch)
    except Exception as error:  # noqa: BLE001 - the work is done, whatever is told of it
        _LOG.info("it is not known where %s is after the run: %s", table.name, one_line(error))
        return Position()


def known_catalogs(conf: str | None, seams: Seams, *, checks_schedules: bool = True) -> Catalogs:
    """The catalogs of the YAML file, of Spark's configuration and of PyIceberg's; see `read_config`."""
    config = read_config(conf, checks_schedules=checks_schedules)
    return Catalogs(config, partial(spark_properties, seams), os.environ, Path.cwd())


def spark_properties(seams: Seams) -> Mapping[str, str]:
    """Spark's configuration: the JVM's under `spark-submit`, else that of the session that runs, or that one would start from."""
    if SUBMITTED_VARIABLE not in os.environ:
        return current_properties(os.environ)
    properties: Mapping[str, str] = resolve(seams.live_properties)()
    return properties


def check_arguments(arguments: Mapping[str, Any], metadata: Any) -> None:
    """Hold what was named against the table.

    Raises:
        NotFoundError: the table has no such column, ref, branch or snapshot.
        UsageError: what should be a branch is a tag.
        ExpressionError: the filter does not fit the columns' types.
    """
    from icekeep.planning.scan.plan import VERSION_ARGUMENTS, chosen_version
    from icekeep.tables.refs import head_to_commit_to

    named = {name: arguments[name] for name in VERSION_ARGUMENTS if name in arguments}
    version = chosen_version(metadata, SYSTEM.now_ms(), **named)
    # A filter over manifests is text until the job reads it.
    if isinstance(arguments.get("where"), Expression):
        bind(arguments["where"], version.schema, metadata.partition_specs)
    if "branch" in arguments:
        head_to_commit_to(metadata, arguments["branch"])
    for snapshot_id in arguments.get("snapshot_ids", ()):
        metadata.snapshot(snapshot_id)


def parse_arguments(given: Mapping[str, Any], job: Job, now_ms: int) -> dict[str, Any]:
    """The job's keyword arguments; what was not given is left to the job, but for the filter and the options."""
    arguments = dict(given)
    kinds = {setting.kind for setting in job.settings}
    if SettingKind.FILTER in kinds:
        arguments["where"] = parse_where(arguments["where"], now_ms) if "where" in arguments else ALWAYS_TRUE
    if job.options is not None:
        options: Any = resolve(job.options)
        arguments["options"] = parse_options(options, arguments.get("options", {}))
    return arguments


class Session:
    """The session of one run: started once, when any thread first asks for it, and stopped for certain if it is its own."""

    def __init__(self, name: str, context: RunContext) -> None:
        self._name, self._context = name, context
        self._session: Any = None
        self._lock = threading.Lock()

    def started(self) -> Any:
        with self._lock:
            if self._session is None:
                self._session = self._started()
            return self._session

    def start_on_cluster(self) -> None:
        """Start it where this driver was put on the cluster: YARN takes an application without a session for one that failed."""
        properties = spark_properties(self._context.seams) if SUBMITTED_VARIABLE in os.environ else {}
        if properties.get("spark.submit.deployMode") == "cluster":
            self.started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None and self._context.spark is None:
            resolve(self._context.seams.stop_session)(self._session)

    def _started(self) -> Any:
        listener, seams, given = self._context.listener, self._context.seams, self._context.spark
        if given is None:
            listener.on(StepStarted(_START))
            spark = resolve(seams.build_session)(self._name)
            listener.on(StepFinished(_START))
        else:
            spark = given()
        self._context.state.app_id = application_id()
        cancel = resolve(seams.cancel_jobs)
        self._context.interrupts.install(lambda: cancel(spark))
        return spark
