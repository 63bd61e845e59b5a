"""`apply`: the file of a plan -> the job that made it, which carries it out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Table, parse_identifier
from icekeep.errors import NotFoundError, UsageError
from icekeep.events import SILENT, Listener
from icekeep.maintenance.plans import SavedPlan, read_plan_file
from icekeep.maintenance.preconditions import AlreadyApplied, refuse_other_table, run_of_plan
from icekeep.names import without_catalog
from icekeep.operations.arguments import Command
from icekeep.operations.console.values import plain_values
from icekeep.operations.job_run import JobRun, parse_arguments
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.outcomes import AppliedBefore, Outcome, PlanWritten
from icekeep.operations.plan_files import (
    ApplyResult,
    PlanSource,
    absolute_arguments,
    applied_before,
    dropped_before,
    write_exact,
)
from icekeep.operations.run_context import RunContext
from icekeep.planning.spark.session import SparkSource, check_source
from icekeep.settings import Job


def apply_command(command: Command, context: RunContext, file: str, dry_run: bool = False) -> Outcome:
    """Carry out the plan that a command names, or hold it against the table; raises as `apply_plan`."""
    plan = read_plan_file(file)
    job = _job_of(plan)
    own = Command(
        name=job.name,
        conf=command.conf,
        catalog=command.catalog,
        # The configuration may call the catalog otherwise by now.
        table=plan.head.table if command.catalog is None else without_catalog(plan.head.table),
        dry_run=dry_run,
        arguments=plan.head.arguments,
    )
    outcome = JobRun(own, job, context, saved=plan).outcome()
    result = _result(plan, outcome.status, outcome.result)
    return msgspec.structs.replace(outcome, job=command.name, status=result.status, result=result)


def write_plan(
    table: Table, job: str, path: str, spark: SparkSource = None, *, listener: Listener = SILENT, **arguments: Any
) -> PlanWritten:
    """Write the plan of a job to a file, all of it, and change nothing; `apply_plan` carries it out.

    Args:
        job: its name, as its command is called.
        path: the file, on this machine, which must not be there yet.
        arguments: those of the job's function. Ages become moments: the plan is of now.

    Raises:
        UsageError: there is no such job, the file is there already or cannot be written, or an argument cannot be written down.
        IcekeepError: as the job raises before it changes anything.
    """
    check_source(spark)
    known = _known(job)
    now_ms = table.runtime.now_ms()
    found = absolute_arguments(known, arguments, now_ms)
    exact = resolve(str(known.exact))(table, spark, listener=listener, **parse_arguments(found, known, now_ms))
    source = PlanSource(job=known.name, name=table.full_name, table=table, created_ms=now_ms, arguments=found)
    return write_exact(path, exact, source, None, listener)


def apply_plan(
    catalog: Catalog, path: str, spark: SparkSource = None, *, dry_run: bool = False, listener: Listener = SILENT
) -> ApplyResult:
    """Do exactly what the plan in a file says, or refuse where the table moved in a way that matters.

    Args:
        path: the file, as `write_plan` or `--plan-out` wrote it.
        dry_run: hold the plan against the table with all checks, and change nothing.

    Raises:
        NotFoundError: there is no such file, or the catalog has no such table.
        UsageError: the file is no plan, was cut off or changed, or is of a newer icekeep.
        SafetyError: the plan does not hold any more: the message says what moved. Nothing was changed.
        ConflictError: others changed the table while the plan was carried out.
        IcekeepError: as the job raises.
    """
    check_source(spark)
    file = read_plan_file(path)
    job = _job_of(file)
    try:
        table = catalog.load(parse_identifier(without_catalog(file.head.table)))
    except NotFoundError as missing:
        return _result(file, "done", dropped_before(job.name, file, missing, lambda: catalog.identity))
    refuse_other_table(file, table)
    function = resolve(str(job.plan if dry_run else job.run))
    arguments = parse_arguments(file.head.arguments, job, file.head.created_ms)
    mine = table.for_run(run_of_plan(file, job.name, table.runtime))
    try:
        result = function(mine, spark, listener=listener, saved=file, **arguments)
    except AlreadyApplied as found:
        return _result(file, "done", applied_before(found))
    return _result(file, "planned" if dry_run else getattr(result, "status", "done"), result)


def applied_shown(result: ApplyResult) -> Mapping[str, Any]:
    """What people see of a plan that was carried out: what the job itself shows of its result."""
    found: dict[str, Any] = {"plan_of": result.job, "plan_hash": result.plan_hash}
    if result.applied_before is not None:
        found["applied_before"] = result.applied_before
        return found
    shows = _known(result.job).for_people
    return {**found, **(plain_values(result.result) if shows is None else resolve(shows)(result.result))}


def _known(name: str) -> Job:
    job = JOBS.get(name)
    if job is None or job.exact is None:
        names = ", ".join(one.name for one in JOBS.values() if one.exact is not None)
        raise UsageError(f"no job {name!r} makes a plan that can be carried out; those that do are {names}")
    return job


def _job_of(file: SavedPlan) -> Job:
    """The job whose plan it is; raises `UsageError` where there is none, or it is not told what the plan tells it."""
    job = _known(file.head.job)
    unknown = sorted(file.head.arguments.keys() - {setting.argument for setting in job.settings})
    if unknown:
        raise UsageError(
            f"plan {file.path!r} has the argument {unknown[0]!r}, which {job.name} does not take; it is of icekeep "
            f"{file.head.icekeep}"
        )
    return job


def _result(file: SavedPlan, status: str, result: Any) -> ApplyResult:
    found = ApplyResult(status=status, job=file.head.job, plan_hash=file.hash)
    if isinstance(result, AppliedBefore):
        return msgspec.structs.replace(
            found,
            status=result.status,
            applied_before=result.applied_before,
            applied_snapshot_id=result.snapshot_id,
            applied_run_id=result.run_id,
        )
    return msgspec.structs.replace(found, result=result)
