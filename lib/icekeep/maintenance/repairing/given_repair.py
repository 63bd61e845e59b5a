"""A plan that was written before, held against what can be mended by now: that is done, the rest of it, or nothing."""

from collections.abc import Iterable, Iterator

from icekeep.maintenance.exact_plans import FAULT, PART, AlreadyApplied, GivenPlan, PlanLine, already, landed, moved
from icekeep.maintenance.repairing.plan import Mend, RepairPlan, parts_of
from icekeep.spec.metadata import TableMetadata
from icekeep.spelling import counted_doing

MEND = "mend"


def exact_lines(plan: RepairPlan, parts: Iterable[str]) -> Iterator[PlanLine]:
    """All that a plan does: what is mended, and the hashes of all parts of that."""
    for mend in plan.mends:
        says = {
            "fault_id": mend.fault_id,
            "fault": mend.name,
            "branch": mend.branch,
            "action": mend.action,
            "lost_files": list(mend.lost_files),
        }
        yield PlanLine(
            do=MEND, kind=FAULT, name=mend.where, record_count=mend.lost_records_count, state=_state(mend), says=says
        )
    for part in sorted(parts):
        yield PlanLine(do=MEND, kind=PART, state=part)


def hold(
    given: GivenPlan, plan: RepairPlan, parts: frozenset[str], metadata: TableMetadata, *, has_begun: bool
) -> None:
    """Hold what can be mended now against a plan that was given.

    Args:
        has_begun: this run has mended a part of it before.

    Raises:
        SafetyError: it is not that, nor what an earlier run of the plan has left of it.
        AlreadyApplied: nothing of it is to be mended any more.
    """
    if plan.hash == given.approve:
        return
    lines = [line for line in given.lines() if line.do == MEND]
    faults = {line.state: line for line in lines if line.kind == FAULT}
    now = {_state(mend): mend for mend in plan.mends}
    has_landed = bool(landed(given, metadata))
    missing = [line for state, line in faults.items() if state not in now]
    if not plan.mends and faults and not has_begun:
        if has_landed:
            raise already(given, metadata)
        raise AlreadyApplied(
            f"none of the {len(faults):,} faults that were to be mended is there any more: it was carried out before, or "
            "somebody else mended them"
        )
    if (has_landed or has_begun) and parts <= {line.state for line in lines if line.kind == PART}:
        return
    raise moved(given, metadata, _problem(missing, [mend for state, mend in now.items() if state not in faults]))


def _problem(missing: list[PlanLine], others: list[Mend]) -> str:
    told = []
    if missing:
        fault = missing[0].says.get("fault_id")
        told.append(
            f"{counted_doing(len(missing), 'mends', 'do')} not apply as planned, such as of fault {fault} in {missing[0].name!r}"
        )
    if others:
        told.append(
            f"{len(others):,} others would be done, such as of fault {others[0].fault_id} in {others[0].where!r}"
        )
    return "; ".join(told) or "what is to be mended would be written in another way"


def _state(mend: Mend) -> str:
    return next(iter(parts_of([mend], ())))
