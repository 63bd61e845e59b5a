"""One job on one table: from a command to its outcome.

What can be wrong is found before Spark starts: the configuration, the catalog, the table, the filter against the table's
schema, the options, the ref and the ids. The job's own code, Spark and the catalogs are named by import strings and are
imported when their turn comes.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from icekeep.catalog.base import parse_identifier
from icekeep.commit.submitter import check_submitter
from icekeep.errors import InvalidTableError
from icekeep.events import Listener, StepFinished, StepStarted
from icekeep.maintenance.options import parse_options
from icekeep.operations.arguments import Command
from icekeep.operations.catalogs import Catalogs, TableReference, find_table
from icekeep.operations.config import read_config
from icekeep.operations.interrupts import Interrupts
from icekeep.operations.jobs import resolve
from icekeep.operations.watchdog import ending_when_abandoned
from icekeep.planning.scan.versions import VERSION_ARGUMENTS, chosen_version
from icekeep.planning.slow_reads import warning_of_slow_reads
from icekeep.planning.spark.conf import SUBMITTED_VARIABLE, configured_properties
from icekeep.runtime import SYSTEM, Runtime
from icekeep.settings import Job, Kind
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.tables.refs import head_to_commit_to

_START = "starting Spark"


class Seams(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of the world, as "module:function"; tests name fakes."""

    load_table: str
    build_session: str
    stop_session: str
    cancel_jobs: str
    live_properties: str
    open_catalog: str = "icekeep.operations.loading:open_settings"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a job or command has to say; `status` is `done`, `partial` or, for a dry run, `planned`, or one of its own.

    `table` is left out where it is about none.
    """

    job: str
    table: str | msgspec.UnsetType = msgspec.UNSET
    dry_run: bool
    status: str
    result: Any


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a job runs in."""

    seams: Seams
    listener: Listener
    interrupts: Interrupts
    runtime: Runtime


def run_job(command: Command, job: Job, surroundings: Surroundings) -> Outcome:
    """Run a job or, with `--dry-run`, plan it.

    Raises:
        UnavailableError: the process that started this one is gone already.
        IcekeepError: any error of the configuration, the table or the job.
    """
    # A process that takes itself for abandoned would refuse to commit what hours of work made.
    check_submitter(surroundings.runtime)
    seams = surroundings.seams
    reference = find_table(known_catalogs(command.conf, seams), command.table, command.catalog)
    arguments = _parse_arguments(command, job, surroundings.runtime.now_ms())
    try:
        table = resolve(seams.load_table)(reference, runtime=surroundings.runtime)
    except InvalidTableError as error:
        if job.unreadable is None:
            raise
        work = partial(_without_table, job, reference, surroundings, error)
    else:
        check_arguments(arguments, table.metadata)
        if job.check is not None:
            resolve(job.check)(table.metadata, **arguments)
        work = partial(_with_table, job, table)
    is_plan = command.dry_run and job.plan is not None
    with (
        ending_when_abandoned(surroundings.runtime, surroundings.listener),
        warning_of_slow_reads(surroundings.listener),
    ):
        result = _with_spark(command, job, surroundings, partial(work, is_plan, arguments))
    status = "planned" if is_plan else getattr(result, "status", "done")
    return _outcome(command, reference, status, result)


def known_catalogs(conf: str | None, seams: Seams) -> Catalogs:
    """The catalogs of the YAML file, of Spark's configuration and of PyIceberg's."""
    is_submitted = SUBMITTED_VARIABLE in os.environ

    def spark_properties() -> Mapping[str, str]:
        properties: Mapping[str, str] = (
            resolve(seams.live_properties)() if is_submitted else configured_properties(os.environ)
        )
        return properties

    return Catalogs(read_config(conf), spark_properties, os.environ, Path.cwd())


def check_arguments(arguments: Mapping[str, Any], metadata: Any) -> None:
    """Hold what was named against the table.

    Raises:
        NotFoundError: the table has no such column, ref, branch or snapshot.
        UsageError: what should be a branch is a tag.
        ExpressionError: the filter does not fit the columns' types.
    """
    named = {name: arguments[name] for name in VERSION_ARGUMENTS if name in arguments}
    version = chosen_version(metadata, SYSTEM.now_ms(), **named)
    # A filter over manifests is text until the job reads it.
    if isinstance(arguments.get("where"), Expression):
        bind(arguments["where"], version.schema, metadata.partition_specs)
    if "branch" in arguments:
        head_to_commit_to(metadata, arguments["branch"])
    for snapshot_id in arguments.get("snapshot_ids", ()):
        metadata.snapshot(snapshot_id)


def _parse_arguments(command: Command, job: Job, now_ms: int) -> dict[str, Any]:
    """The job's keyword arguments; what was not given is left to the job, but for the filter and the options."""
    arguments = dict(command.arguments)
    kinds = {setting.kind for setting in job.settings}
    if Kind.FILTER in kinds:
        arguments["where"] = parse_where(arguments["where"], now_ms) if "where" in arguments else ALWAYS_TRUE
    if job.options is not None:
        options: Any = resolve(job.options)
        arguments["options"] = parse_options(options, arguments.get("options", {}))
    return arguments


def _with_spark(command: Command, job: Job, surroundings: Surroundings, work: Callable[..., Any]) -> Any:
    """Do the work of a job, which is given what starts Spark, and what all its functions take beside."""
    extras = {"listener": surroundings.listener} if job.takes_listener else {}
    spark = Session(f"icekeep {command.name} {command.table}", surroundings)
    try:
        if _is_in_cluster_mode(surroundings.seams):
            spark.started()
        return work(spark, **extras)
    finally:
        spark.stop()


def _with_table(
    job: Job, table: Any, is_plan: bool, arguments: Mapping[str, Any], spark: "Session", **extras: Any
) -> Any:
    function = job.plan if is_plan and job.plan is not None else job.run
    return resolve(function)(table, spark.started, **arguments, **extras)


def _without_table(
    job: Job,
    reference: TableReference,
    surroundings: Surroundings,
    error: InvalidTableError,
    is_plan: bool,
    arguments: Mapping[str, Any],
    spark: "Session",
    **extras: Any,
) -> Any:
    """What a job does with a table that its catalog has, but whose metadata does not load."""
    function = job.plan_unreadable if is_plan else job.unreadable
    assert function is not None
    catalog = resolve(surroundings.seams.open_catalog)(reference.catalog, runtime=surroundings.runtime)
    identifier = parse_identifier(reference.name)
    return resolve(function)(catalog, identifier, error, spark=spark.started, **arguments, **extras)


def _is_in_cluster_mode(seams: Seams) -> bool:
    """Whether this driver was put on the cluster: YARN takes an application that ends without a session for one that failed."""
    if SUBMITTED_VARIABLE not in os.environ:
        return False
    properties: Mapping[str, str] = resolve(seams.live_properties)()
    return properties.get("spark.submit.deployMode") == "cluster"


class Session:
    """The session of one run: started once, when it is first asked for, and stopped for certain."""

    def __init__(self, name: str, surroundings: Surroundings) -> None:
        self._name, self._surroundings = name, surroundings
        self._session: Any = None

    def started(self) -> Any:
        """The running session."""
        if self._session is None:
            listener, seams = self._surroundings.listener, self._surroundings.seams
            listener.on(StepStarted(_START))
            self._session = spark = resolve(seams.build_session)(self._name)
            listener.on(StepFinished(_START))
            cancel = resolve(seams.cancel_jobs)
            self._surroundings.interrupts.install(lambda: cancel(spark))
        return self._session

    def stop(self) -> None:
        """Stop it, if it was started."""
        if self._session is not None:
            resolve(self._surroundings.seams.stop_session)(self._session)


def _outcome(command: Command, reference: TableReference, status: str, result: Any) -> Outcome:
    return Outcome(job=command.name, table=reference.full_name, dry_run=command.dry_run, status=status, result=result)
