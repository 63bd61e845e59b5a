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
from typing import Any, NamedTuple

import msgspec

from icekeep.catalog.base import check_change, parse_identifier
from icekeep.commit.retry import check_submitter
from icekeep.errors import InvalidTableError, NotFoundError, UsageError, one_line
from icekeep.events import SILENT, StepFinished, StepStarted
from icekeep.health.prices import Prices
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.saved_plans import AlreadyApplied, GivenPlan, refuse_other_table, run_of_plan
from icekeep.operations.arguments import Command
from icekeep.operations.configuration.catalogs import Catalogs, TableReference, find_table
from icekeep.operations.configuration.file import read_config
from icekeep.operations.jobs import resolve
from icekeep.operations.outcomes import Outcome, Position, position_of
from icekeep.operations.plan_files.results import AppliedBefore, applied_before, dropped_before
from icekeep.operations.plan_files.writing import Made, PlanWritten, absolute_arguments, write_exact
from icekeep.operations.policy_calls import Held, require_policy, wanted_now
from icekeep.operations.recording import RecordDestination, Recording, cpu_pace_of, recorded, require_catalog
from icekeep.operations.surroundings import Seams, StartsSpark, Surroundings
from icekeep.operations.watchdog import ending_when_abandoned, telling_of_a_dead_jvm
from icekeep.planning.spark.session import SUBMITTED_VARIABLE, current_properties
from icekeep.runs import Run, application_id, new_run
from icekeep.runtime import SYSTEM
from icekeep.settings import CatalogChange, Job, SettingKind
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import parse_where

_LOG = logging.getLogger(__name__)

_START = "starting Spark"
_RECORDING_LOOKS = "icekeep.maintenance.delete.neighbours:recording_looks"


def run_job(
    command: Command,
    job: Job,
    surroundings: Surroundings,
    run: Run | None = None,
    given: GivenPlan | None = None,
) -> Outcome:
    """Run a job or, with `--dry-run`, plan it; with `--plan-out` the plan is written to a file.

    Args:
        run: which run it is, where somebody has begun it already; by default one that begins here.
        given: the plan that is to be carried out, or looked at, in place of a new one. Where it was carried out before the
            result is `AppliedBefore`.

    Raises:
        UnavailableError: the process that started this one is gone already.
        IcekeepError: any error of the configuration, the table or the job.
    """
    # A process that takes itself for abandoned would refuse to commit what hours of work made.
    check_submitter(surroundings.runtime)
    runtime, begun = surroundings.runtime, surroundings.begun
    # Who made the run has set its pace too.
    is_new = run is None
    if given is not None:
        run = run_of_plan(given, job.name, runtime)
    run = run or new_run(command.name, runtime, policy=command.policy)
    begun.begin(command.name, command.arguments, runtime, run)
    begun.only_tells, surroundings = command.dry_run, surroundings.in_run(command.conf)
    begun.changes_by_commits = job.asks is CatalogChange.COMMIT
    shared = surroundings.shared
    catalogs = shared.catalogs if shared is not None else known_of_policy(command, command.policy, surroundings)
    reference = find_table(catalogs, command.table, command.catalog)
    begun.table = reference.full_name
    if command.policy is not None:
        require_policy(catalogs.config, command.policy)
    # What is wrong is told before a table is loaded.
    now_ms = begun.started_ms if given is None else given.created_ms
    parse_arguments(command.arguments, job, now_ms)
    place = None if command.dry_run else place_of(catalogs, reference, surroundings)
    if job.has_estimate and is_new:
        pace = cpu_pace_of(job.name, reference.full_name, catalogs.runs, reference.catalog, os.environ, runtime)
        begun.run = msgspec.structs.replace(run, cpu_pace=pace)
    with recorded(begun, place, surroundings) as recording:
        load = partial(_load, reference, surroundings)
        if command.policy is not None:
            loaded = load()
            load = partial(_itself, loaded)
            try:
                wanted = wanted_now(command, job, catalogs.config, loaded, begun.started_ms)
            except UsageError:
                # Somebody's own mistake is no failure of the policy's job, which would put off its next nights.
                recording.goes_by(command.arguments, only_tells=True)
                raise
            if isinstance(wanted, Held):
                # A driver on a cluster has a session even so.
                _with_spark(command, job, surroundings, _nothing)
                return _not_begun(wanted, loaded, recording, surroundings)
            command = wanted
            recording.goes_by(command.arguments, only_tells=command.dry_run)
        asked = _Asked(command, job, reference, surroundings, given)
        outcome = _worked(asked, parse_arguments(command.arguments, job, now_ms), load, recording)
    return outcome


class _Asked(NamedTuple):
    """A job that is to be run, and what it runs in."""

    command: Command
    job: Job
    reference: TableReference
    surroundings: Surroundings
    given: GivenPlan | None


def _worked(asked: _Asked, arguments: Mapping[str, Any], load: Callable[[], Any], recording: Recording) -> Outcome:
    """Do the work, or plan it, and say what came of it."""
    command, job, surroundings = asked.command, asked.job, asked.surroundings
    begun, runtime = surroundings.begun, surroundings.runtime
    table, work = _loaded(asked, arguments, load)
    if table is None:
        recording.began()
    else:
        recording.found(position_of(table, command.arguments.get("branch")))
    is_plan = command.dry_run and job.plan is not None
    looked = telling_of_a_dead_jvm(runtime) if surroundings.shared is not None else looked_after(surroundings)
    with looked, _recording_looks(recording):
        result = _with_spark(command, job, surroundings, partial(work, is_plan, arguments))
    result, written = (result.shown, result.written) if isinstance(result, Filed) else (result, msgspec.UNSET)
    status = "planned" if is_plan and not isinstance(result, AppliedBefore) else getattr(result, "status", "done")
    changes = job.plan is not None and not command.dry_run
    after = position_after(table, command.arguments.get("branch")) if changes and table is not None else None
    outcome = begun.outcome(status, result, runtime, is_dry_run=command.dry_run, after=after)
    recording.ended(outcome)
    return msgspec.structs.replace(outcome, plan=written)


def _recording_looks(recording: Recording) -> AbstractContextManager[None]:
    """Where the run is written down, its looks at the catalog are as well, for the runs of a day."""
    if recording.looks is None:
        return nullcontext()
    found: AbstractContextManager[None] = resolve(_RECORDING_LOOKS)(recording.looks)
    return found


def _not_begun(held: Held, table: Any, recording: Recording, surroundings: Surroundings) -> Outcome:
    """What is told of a job that a policy holds by now; it is no run of the job, and so not written down."""
    recording.goes_by(surroundings.begun.arguments, only_tells=True)
    recording.found(position_of(table))
    outcome = surroundings.begun.outcome(held.status, held, surroundings.runtime)
    recording.ended(outcome)
    return outcome


class Filed(msgspec.Struct, frozen=True):
    """A public plan, and the file that has the real one."""

    shown: Any
    written: PlanWritten


@contextmanager
def looked_after(surroundings: Surroundings) -> Iterator[None]:
    """Work of this process, which ends where it is abandoned, and tells of files that are read slowly."""
    # It needs Arrow, which help and mistakes do without.
    from icekeep.planning.decoder import warning_of_slow_reads

    listener = surroundings.listener
    with ending_when_abandoned(surroundings.runtime, listener), warning_of_slow_reads(listener):
        yield


def place_of(catalogs: Catalogs, reference: TableReference, surroundings: Surroundings) -> RecordDestination:
    """Where a run on a table is written down; raises `ConfigError` where its table of runs is in no catalog."""
    require_catalog(catalogs.runs, catalogs)

    def open_catalog(name: str) -> Any:
        return resolve(surroundings.seams.open_catalog)(catalogs.get(name), runtime=surroundings.runtime)

    return RecordDestination(catalogs.runs, reference.catalog, open_catalog)


def _load(reference: TableReference, surroundings: Surroundings) -> Any:
    """The table, as the run that works on it carries it."""
    run, shared = surroundings.begun.run, surroundings.shared
    if shared is not None:
        return shared.load(reference).for_run(run)
    return resolve(surroundings.seams.load_table)(reference, runtime=surroundings.runtime).for_run(run)


def _itself(table: Any) -> Any:
    return table


def _nothing(*_: Any, **__: Any) -> None:
    """The work of a job that is not begun."""


def _loaded(asked: _Asked, arguments: Mapping[str, Any], load: Callable[[], Any]) -> tuple[Any, Callable[..., Any]]:
    """The table, `None` where it cannot be loaded and the job goes on without it; and the work of the job."""
    command, job, reference, surroundings, given = asked
    try:
        table = load()
    except InvalidTableError as error:
        if job.unreadable is None or given is not None or command.plan_out is not None:
            raise
        return None, partial(_without_table, job, reference, surroundings, error)
    except NotFoundError as error:
        if given is None:
            raise
        opens = partial(resolve(surroundings.seams.open_catalog), reference.catalog, runtime=surroundings.runtime)
        return None, partial(_without_dropped, dropped_before(job.name, given, error, lambda: opens().identity))
    surroundings.begun.location = table.metadata.location
    if job.asks is not None:
        check_change(table.catalog, job.asks)
    if given is not None:
        refuse_other_table(given, table)
        return table, partial(_as_given, partial(_with_table, job, table), given)
    check_arguments(arguments, table.metadata)
    if job.check is not None:
        resolve(job.check)(table.metadata, **arguments)
    if command.plan_out is not None:
        return table, _filing(command, job, reference, table, surroundings)
    return table, partial(_with_table, job, table)


def _filing(
    command: Command, job: Job, reference: TableReference, table: Any, surroundings: Surroundings
) -> Callable[..., Any]:
    """The work of a job whose plan is wanted in a file."""
    assert command.plan_out is not None
    now_ms = surroundings.begun.started_ms
    told = absolute_arguments(job, command.arguments, now_ms)
    made = Made.of(job, reference.full_name, table, now_ms, told)
    exact = partial(_with_table, msgspec.structs.replace(job, plan=job.exact), table)
    return partial(_to_file, command.plan_out, made, known_catalogs(command.conf, surroundings.seams).prices, exact)


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


def known_of_policy(command: Command, policy: str | None, surroundings: Surroundings) -> Catalogs:
    """The same for what a command does in the name of a policy: a wrong schedule of another one is no error then."""
    return known_catalogs(command.conf, surroundings.seams, checks_schedules=policy is None)


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


def parse_arguments(told: Mapping[str, Any], job: Job, now_ms: int) -> dict[str, Any]:
    """The job's keyword arguments; what was not given is left to the job, but for the filter and the options."""
    arguments = dict(told)
    kinds = {setting.kind for setting in job.settings}
    if SettingKind.FILTER in kinds:
        arguments["where"] = parse_where(arguments["where"], now_ms) if "where" in arguments else ALWAYS_TRUE
    if job.options is not None:
        options: Any = resolve(job.options)
        arguments["options"] = parse_options(options, arguments.get("options", {}))
    return arguments


def _with_spark(command: Command, job: Job, surroundings: Surroundings, work: Callable[..., Any]) -> Any:
    """Do the work of a job, which is given what starts Spark, and what all its functions take beside."""
    extras = {"listener": surroundings.listener} if job.takes_listener else {}
    if surroundings.shared is not None:
        return work(surroundings.shared.session, **extras)
    spark = Session(f"icekeep {command.name} {command.table}", surroundings)
    try:
        if is_in_cluster_mode(surroundings.seams):
            spark.started()
        return work(spark, **extras)
    finally:
        spark.stop()


def _with_table(
    job: Job, table: Any, is_plan: bool, arguments: Mapping[str, Any], spark: StartsSpark, **extras: Any
) -> Any:
    function = job.plan if is_plan and job.plan is not None else job.run
    return resolve(function)(table, spark.started, **arguments, **extras)


def _as_given(
    work: Callable[..., Any],
    given: GivenPlan,
    is_plan: bool,
    arguments: Mapping[str, Any],
    spark: "Session",
    **extras: Any,
) -> Any:
    """The work of a job that is given its plan; or how it shows that nothing of that is left."""
    try:
        return work(is_plan, {**arguments, "given": given}, spark, **extras)
    except AlreadyApplied as found:
        return applied_before(found)


def _without_dropped(found: AppliedBefore, *_: Any, **__: Any) -> AppliedBefore:
    return found


def _to_file(
    path: str,
    made: Made,
    prices: Prices | None,
    work: Callable[..., Any],
    is_plan: bool,
    arguments: Mapping[str, Any],
    spark: "Session",
    **extras: Any,
) -> Filed:
    """The public plan of a job, whose real one is written to a file while the session is there that it was made in."""
    exact = work(is_plan, arguments, spark, **extras)
    listener = extras.get("listener", SILENT)
    return Filed(exact.shown, write_exact(path, exact, made, prices, listener))


def _without_table(
    job: Job,
    reference: TableReference,
    surroundings: Surroundings,
    error: InvalidTableError,
    is_plan: bool,
    arguments: Mapping[str, Any],
    spark: StartsSpark,
    **extras: Any,
) -> Any:
    """What a job does with a table that its catalog has, but whose metadata does not load."""
    function = job.plan_unreadable if is_plan else job.unreadable
    assert function is not None
    catalog = resolve(surroundings.seams.open_catalog)(reference.catalog, runtime=surroundings.runtime)
    identifier, run = parse_identifier(reference.name), surroundings.begun.run
    return resolve(function)(catalog, identifier, error, spark=spark.started, run=run, **arguments, **extras)


def is_in_cluster_mode(seams: Seams) -> bool:
    """Whether this driver was put on the cluster: YARN takes an application that ends without a session for one that failed."""
    if SUBMITTED_VARIABLE not in os.environ:
        return False
    properties: Mapping[str, str] = resolve(seams.live_properties)()
    return properties.get("spark.submit.deployMode") == "cluster"


class Session:
    """The session of one run: started once, when any thread first asks for it, and stopped for certain if it is its own."""

    def __init__(self, name: str, surroundings: Surroundings) -> None:
        self._name, self._surroundings = name, surroundings
        self._session: Any = None
        self._lock = threading.Lock()

    def started(self) -> Any:
        """The running session."""
        with self._lock:
            if self._session is None:
                self._session = self._started()
            return self._session

    def stop(self) -> None:
        """Stop it, if the run has started it."""
        if self._session is not None and self._surroundings.spark is None:
            resolve(self._surroundings.seams.stop_session)(self._session)

    def _started(self) -> Any:
        listener, seams, given = self._surroundings.listener, self._surroundings.seams, self._surroundings.spark
        if given is None:
            listener.on(StepStarted(_START))
            spark = resolve(seams.build_session)(self._name)
            listener.on(StepFinished(_START))
        else:
            spark = given()
        self._surroundings.begun.app_id = application_id()
        cancel = resolve(seams.cancel_jobs)
        self._surroundings.interrupts.install(lambda: cancel(spark))
        return spark
