"""The job `repair`: what was found -> what can be done about it -> commits."""

from collections.abc import Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import OutcomeUnknownError, SafetyError, UsageError, reason_of
from icekeep.events import Listener, Warned
from icekeep.maintenance.checking.job import known_numbers
from icekeep.maintenance.deletion.plans import refuse_unapproved
from icekeep.maintenance.exact_plans import ExactPlan
from icekeep.maintenance.planning_anew import plan_till_done
from icekeep.maintenance.repairing import JOB
from icekeep.maintenance.repairing.execute import Run
from icekeep.maintenance.repairing.given_repair import exact_lines, hold
from icekeep.maintenance.repairing.metadata_files.reattaching import Reattachment, plan_reattachment, reattached
from icekeep.maintenance.repairing.plan import Asked, Planned, RepairPlan, lost_records
from icekeep.maintenance.repairing.planner import planned
from icekeep.maintenance.repairing.reasons import NEEDS_EARLIER
from icekeep.maintenance.repairing.result import RepairResult
from icekeep.maintenance.requests import CommittingRequest, takes
from icekeep.maintenance.runs.names import run_name
from icekeep.planning.spark.session import refuse_encrypted
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN

__all__ = ["RepairPlan", "RepairResult", "check_arguments", "plan_repair", "repair"]


class RepairRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `repair`, which says what each means."""

    fault: Sequence[int] = ()
    accept_loss: Sequence[str] = ()
    approve: str | None = None


@takes(RepairRequest)
def repair(table: Table, request: RepairRequest) -> RepairResult:
    """Fix faults that `check` finds, on the heads of all branches; what only older snapshots have goes with their expiration.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for small
            tables.
        fault: numbers of kinds of faults, as `check` shows them.
        accept_loss: locations of files that may be lost, or whose rows readers may lose. Nothing is lost that is not named.
        approve: the hash of a plan (`plan_repair`): exactly that is done, or nothing.
        given: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        UsageError: there is no such kind of faults, or there are too many faults.
        UnsupportedError: the table is encrypted.
        SafetyError: the plan is not the approved one, or what would be written could not be checked: nothing was changed.
        ConflictError: others kept changing what was to be fixed. Once something is fixed the result is `partial` instead,
            whatever the error, and says why.
        OutcomeUnknownError: a commit may or may not have landed. The error lists what landed before.
    """
    asked = _asked(table.metadata, request)
    run = Run(table, run_name(table), request.spark, request.listener)

    first: list[Planned] = []

    def once(now: Table, number: int) -> RepairResult:
        again = _reattachment(now, asked, request)
        if again is not None:
            _hold(now, request, again.plan)
            return carried_out(again, request, run.run_id)
        found = planned(now, asked, request.spark, request.listener)
        first.append(found)
        if request.given is not None:
            _hold(now, request, found.plan, found.parts, has_begun=bool(run.mended))
        elif number == 1:
            refuse_unapproved(request.approve, found.plan.hash, "nothing is changed")
        elif request.approve is not None and not found.parts <= first[0].parts:
            raise SafetyError(
                f"others changed the table {table.name!r} meanwhile, and what can be mended now is not all approved; nothing "
                "more is changed; look at --dry-run again"
            )
        run.execute(now, found)
        return _result(table, run, found.plan, first[0].plan.hash)

    try:
        return plan_till_done(table, once, what=lambda: "faults", listener=request.listener)
    except Exception as error:
        if not run.mended:
            raise
        return _ended_early(error, run, _result(table, run, first[-1].plan, first[0].plan.hash), request.listener)
    except BaseException:
        if run.mended:
            request.listener.on(Warned(_told(run)))
        raise


def _ended_early(error: Exception, run: Run, done: RepairResult, listener: Listener) -> RepairResult:
    """What a run has mended that does not come to its end: "nothing was changed" would be wrong.

    Raises:
        OutcomeUnknownError: that is the error.
    """
    if isinstance(error, OutcomeUnknownError):
        error.append(_told(run))
        raise error
    problem = f"the rest of what was planned is not mended: {reason_of(error)}"
    listener.on(Warned(problem))
    return msgspec.structs.replace(done, status="partial", problems=(problem,))


def _told(run: Run) -> str:
    """What a run has mended that does not come to its end."""
    told = [f"branch {one.branch!r} at snapshot {one.snapshot_id}" for one in run.branches]
    told += [f"{one.where!r}" for one in run.mended if one.is_put_back or not one.branch]
    return f"run {run.run_id!r} had mended before: {', '.join(told)}"


@takes(RepairRequest)
def plan_repair(table: Table, request: RepairRequest) -> RepairPlan:
    """Say what `repair` would do with these arguments; raises what it raises before it commits."""
    asked = _asked(table.metadata, request)
    plan, parts = _foreseen(table, asked, request)
    _hold(table, request, plan, parts)
    return plan


@takes(RepairRequest, "repair")
def exact_repair(table: Table, request: RepairRequest) -> ExactPlan:
    """What `repair` would do with these arguments, part by part; raises what it raises before it commits."""
    plan, parts = _foreseen(table, _asked(table.metadata, request), request)
    head = table.metadata.head(MAIN)
    return ExactPlan(
        shown=plan,
        snapshot_id=None if head is None else head.snapshot_id,
        lines=exact_lines(plan, parts),
        approve=plan.hash,
    )


def _foreseen(table: Table, asked: Asked, request: RepairRequest) -> tuple[RepairPlan, frozenset[str]]:
    again = _reattachment(table, asked, request)
    if again is not None:
        return approved(again.plan, request), frozenset()
    found = planned(table, asked, request.spark, request.listener)
    return approved(found.plan, request), found.parts


def approved(plan: RepairPlan, request: RepairRequest) -> RepairPlan:
    """A plan that is only shown, unless another one is approved: then `repair` would be refused too."""
    refuse_unapproved(request.approve, plan.hash, "nothing would be changed")
    return plan


def _hold(
    table: Table,
    request: RepairRequest,
    plan: RepairPlan,
    parts: frozenset[str] = frozenset(),
    *,
    has_begun: bool = False,
) -> None:
    """Hold a plan against the one that was given, if one was."""
    if request.given is not None:
        hold(request.given, plan, parts, table.metadata, has_begun=has_begun)


@takes(RepairRequest)
def check_arguments(metadata: TableMetadata, request: RepairRequest) -> None:
    """Hold the arguments against the table; raises `UsageError` and `UnsupportedError` as `repair`."""
    _asked(metadata, request)


def carried_out(again: Reattachment, request: RepairRequest, run_id: str) -> RepairResult:
    """Have a table begin again from earlier metadata, as it was planned and approved; raises as `reattached`."""
    refuse_unapproved(request.approve, again.plan.hash, "nothing is changed")
    is_planned = again.table is not None
    location = reattached(again, request.listener).metadata_location if is_planned else again.spoilt_location
    return RepairResult(
        status="partial" if again.plan.not_mended else "done",
        run=run_id,
        mended=again.plan.mends,
        not_mended=again.plan.not_mended,
        lost_records_count=again.plan.lost_records_count,
        metadata_location_before=again.spoilt_location,
        metadata_location=location,
        hash=again.plan.hash,
    )


def _reattachment(table: Table, asked: Asked, request: RepairRequest) -> Reattachment | None:
    # A catalog that writes metadata itself takes none, and need not let us read it.
    if not asked.numbers & NEEDS_EARLIER or not table.catalog.compares_metadata:
        return None
    return plan_reattachment(table.catalog, table.identifier, asked, request.spark, request.listener)


def asked_for(request: RepairRequest) -> Asked:
    """What a request asks for; raises `UsageError` where that is nothing, or no such kind of faults."""
    if not request.fault:
        raise UsageError("no kind of faults is given; name those that are to be mended, such as 302")
    return Asked(numbers=frozenset(known_numbers(request.fault)), accepted=frozenset(request.accept_loss))


def _asked(metadata: TableMetadata, request: RepairRequest) -> Asked:
    refuse_encrypted(metadata, JOB.name)
    return asked_for(request)


def _result(table: Table, run: Run, plan: RepairPlan, plan_hash: str) -> RepairResult:
    return RepairResult(
        status="done" if all(one.is_only_older for one in plan.not_mended) else "partial",
        run=run.run_id,
        mended=tuple(run.mended),
        not_mended=plan.not_mended,
        branches=tuple(run.branches),
        lost_records_count=lost_records(run.mended),
        metadata_location_before=table.metadata_location,
        metadata_location=run.table.metadata_location,
        hash=plan_hash,
    )
