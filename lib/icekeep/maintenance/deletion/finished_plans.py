"""After a plan was carried out: it is forgotten, or stays while its files are in the trash, or until what failed is done."""

from collections.abc import Callable

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import ClaimedError, reason_of
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.claims import Claim
from icekeep.maintenance.deletion.plan_writing import ClassifiedGarbage, PlanDraft, write_plan
from icekeep.maintenance.deletion.plans import DeletionPlan, forget_plan, holds_files, mark_done
from icekeep.maintenance.deletion.reclaim import Reclaimed
from icekeep.runtime import Runtime
from icekeep.spelling import counted
from icekeep.storage.base import Storage


def settled(settle: Callable[[], None], plan: DeletionPlan, done: Reclaimed, listener: Listener) -> Reclaimed:
    """What became of a plan's files, after `settle` has seen to the plan; what stands in the way of that costs no count."""
    try:
        settle()
    except Exception as error:  # noqa: BLE001 - whatever it is, the files are gone; the next run goes on
        stopped = f"plan {plan.directory!r} is carried out, and stays: {reason_of(error)}"
        listener.on(Warned(stopped))
        return msgspec.structs.replace(done, stopped=stopped)
    return done


def settle_plan(
    plan: DeletionPlan, claim: Claim, done: Reclaimed, table: Table, runtime: Runtime, listener: Listener
) -> None:
    """Forget a plan, or mark it as done where it has moved files to the trash; keep it as it is where files failed.

    What could not be moved to the trash waits in its place, by a plan of its own. Where another run has taken the plan over,
    all that is left to that.
    """
    if not done.is_complete or not _is_held(claim, table.storage, runtime, listener):
        return
    if done.unmoved:
        _write_unmoved(plan, done, table, runtime, listener)
    absent_count = done.missing_count + done.kept_count + done.unmoved_count
    has_moved = done.deleted_count + done.missing_count + done.unmoved_count or holds_files(plan, table.storage)
    if plan.is_trash and has_moved:
        mark_done(plan, absent_count, table.storage)
    else:
        forget_plan(plan, table.storage)


def settle_emptied(
    plan: DeletionPlan, claim: Claim, done: Reclaimed, table: Table, runtime: Runtime, listener: Listener
) -> None:
    """Forget a plan whose files were in the trash; keep it where some of them are there still."""
    if done.is_complete and not done.kept_count and _is_held(claim, table.storage, runtime, listener):
        forget_plan(plan, table.storage)


def settle_at_once(plan: DeletionPlan, storage: Storage) -> None:
    """Forget a plan whose files did not go to the trash, though it says so; what it had moved before waits for its day."""
    if holds_files(plan, storage):
        mark_done(plan, plan.files_count, storage)
    else:
        forget_plan(plan, storage)


def _is_held(claim: Claim, storage: Storage, runtime: Runtime, listener: Listener) -> bool:
    try:
        claim.check(storage, runtime)
    except ClaimedError as error:
        listener.on(Warned(error.message))
        return False
    return True


def _write_unmoved(plan: DeletionPlan, done: Reclaimed, table: Table, runtime: Runtime, listener: Listener) -> None:
    assert plan.trash_until_ms is not None
    # A plan that is finished late gives its files their days all the same.
    until_ms = max(plan.trash_until_ms, runtime.now_ms() + plan.trash_until_ms - plan.not_before_ms)
    directory = done.unmoved[0].location.rpartition("/")[0]
    draft = PlanDraft(job=plan.job, run=directory.rpartition("/")[2], not_before_ms=until_ms, roots=plan.roots)
    write_plan(ClassifiedGarbage(parts=done.unmoved), draft, table, runtime)
    count = sum(part.files_count for part in done.unmoved)
    listener.on(
        Warned(
            f"{counted(count, 'files')} cannot be moved to the trash, which is in another store, bucket or mount: they stay "
            f"where they are for as long, and are deleted then ({directory!r})"
        )
    )
