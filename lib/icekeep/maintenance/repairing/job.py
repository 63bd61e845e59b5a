"""The job `repair`: what was found -> what can be done about it -> commits."""

from collections.abc import Sequence

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, UsageError
from icekeep.maintenance.checking.job import known_numbers
from icekeep.maintenance.deletion.plans import refuse_unapproved
from icekeep.maintenance.planning_anew import plan_till_done
from icekeep.maintenance.repairing import JOB
from icekeep.maintenance.repairing.execute import Run
from icekeep.maintenance.repairing.plan import RepairPlan
from icekeep.maintenance.repairing.planner import Asked, planned
from icekeep.maintenance.repairing.result import RepairResult
from icekeep.maintenance.requests import JobRequest, takes
from icekeep.planning.refusals import refuse_encrypted
from icekeep.spec.metadata import TableMetadata

__all__ = ["RepairPlan", "RepairResult", "check_arguments", "plan_repair", "repair"]


class RepairRequest(JobRequest, frozen=True, kw_only=True):
    """The arguments of `repair`, which says what each means."""

    faults: Sequence[int]
    accept_loss: Sequence[str] = ()
    approve: str | None = None


@takes(RepairRequest)
def repair(table: Table, request: RepairRequest) -> RepairResult:
    """Mend faults that `check` finds, on the heads of all branches; what only older snapshots have goes with their expiration.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for small
            tables.
        faults: numbers of kinds of faults, as `check` tells them.
        accept_loss: locations of files that may be lost, or whose rows readers may lose. Nothing is lost that is not named.
        approve: the hash of a plan (`plan_repair`): exactly that is done, or nothing.

    Raises:
        UsageError: there is no such kind of faults, or there are too many faults.
        UnsupportedError: the table is encrypted.
        SafetyError: the plan is not the approved one, or what would be written could not be checked: nothing was changed.
        ConflictError: others kept changing what was to be mended. What had landed before is told.
        OutcomeUnknownError: a commit may or may not have landed. What had landed before is told.
    """
    asked = _asked(table.metadata, request)
    run = Run(table, f"repair-{table.runtime.new_uuid()}", request.spark, request.listener)

    def once(now: Table, _: int) -> RepairResult:
        found = planned(now, asked, request.spark, request.listener)
        refuse_unapproved(request.approve, found.plan.hash, "nothing is changed")
        run.execute(now, found)
        return _result(table, run, found.plan)

    try:
        return plan_till_done(table, once, what=lambda: "what is to be mended", listener=request.listener)
    except IcekeepError as error:
        if not run.branches:
            raise
        landed = ", ".join(f"{one.branch!r} at snapshot {one.snapshot_id}" for one in run.branches)
        error.message = f"{error.message}; commits of run {run.run_id!r} that landed before: {landed}"
        error.args = (error.message,)
        raise


@takes(RepairRequest)
def plan_repair(table: Table, request: RepairRequest) -> RepairPlan:
    """Say what `repair` would do with these arguments; raises what it raises before it commits."""
    return planned(table, _asked(table.metadata, request), request.spark, request.listener).plan


@takes(RepairRequest)
def check_arguments(metadata: TableMetadata, request: RepairRequest) -> None:
    """Hold the arguments against the table; raises `UsageError` and `UnsupportedError` as `repair`."""
    _asked(metadata, request)


def _asked(metadata: TableMetadata, request: RepairRequest) -> Asked:
    refuse_encrypted(metadata, JOB.name)
    if not request.faults:
        raise UsageError("no kind of faults is given; name those that are to be mended, such as 302")
    return Asked(numbers=frozenset(known_numbers(request.faults)), accepted=frozenset(request.accept_loss))


def _result(table: Table, run: Run, plan: RepairPlan) -> RepairResult:
    return RepairResult(
        status="partial" if plan.not_mended else "done",
        run=run.run_id,
        mended=plan.mends,
        not_mended=plan.not_mended,
        branches=tuple(run.branches),
        lost_records_count=plan.lost_records_count,
        metadata_location_before=table.metadata_location,
        metadata_location=run.table.metadata_location,
        hash=plan.hash,
    )
