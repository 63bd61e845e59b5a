"""A plan on disk, a last look at the metadata, and then deletion: nothing goes that the table leads to by then."""

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import SafetyError
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.earlier import Earlier, finish_earlier, settle_plan
from icekeep.maintenance.deletion.plans import DeletionPlan, forget_plan, refuse_unapproved
from icekeep.maintenance.deletion.reclaim import Reclaimed, reclaim
from icekeep.maintenance.deletion.writing import plan_directory, sort_files, write_plan
from icekeep.maintenance.orphans.candidates import Candidates, find_candidates, still_unnamed
from icekeep.maintenance.orphans.options import Search
from icekeep.maintenance.orphans.plan import OrphanPlan, draft_of, orphan_plan
from icekeep.maintenance.runs import sweep_runs
from icekeep.planning.sessions import SparkSource
from icekeep.runtime import Runtime

_WARNING = "files that were to be deleted as orphans are in use by now and stay"


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        planned: what was to go when it went.
        plan: on disk, before it was carried out; null where there was nothing to do.
        reclaimed: null where the plan waits for its time.
        adopted_count: files that metadata led to when it was read again.
        earlier: what earlier runs had left to be done.
    """

    planned: OrphanPlan
    plan: DeletionPlan | None = None
    reclaimed: Reclaimed | None = None
    adopted_count: int = 0
    earlier: Earlier = Earlier()


def remove_orphans(table: Table, spark: SparkSource, search: Search, listener: Listener, runtime: Runtime) -> Removal:
    """Find orphans and delete them; raises as `find_candidates`.

    Raises:
        SafetyError: the plan is not the approved one, or too great a share of the files would go.
    """
    run = str(runtime.new_uuid())
    candidates = find_candidates(table, spark, search, listener, runtime)
    planned = _planned(candidates, search)
    _refuse_unapproved(planned, search)
    earlier = finish_earlier(
        candidates.table,
        candidates.territory,
        spark,
        candidates.now_ms,
        options=search.options,
        max_concurrent_deletes=search.max_concurrent_deletes,
        trust_totals=search.trust_totals,
        listener=listener,
        runtime=runtime,
    )
    sweep_runs(candidates.table, runtime, keep=run, listener=listener)
    if not planned.files_count:
        return Removal(planned=planned, earlier=earlier)
    plan, now, candidates, adopted_count = _written(candidates, run, spark, search, listener, runtime)
    if plan is None:
        return Removal(planned=_planned(candidates, search), adopted_count=adopted_count, earlier=earlier)
    if adopted_count:
        planned = _planned(candidates, search)
    if plan.not_before_ms > candidates.now_ms:
        return Removal(planned=planned, plan=plan, adopted_count=adopted_count, earlier=earlier)
    reclaimed = reclaim(
        plan,
        now,
        candidates.territory,
        spark,
        options=search.options,
        max_concurrent_deletes=search.max_concurrent_deletes,
        listener=listener,
        runtime=runtime,
    )
    settle_plan(plan, reclaimed, now.storage)
    return Removal(planned=planned, plan=plan, reclaimed=reclaimed, adopted_count=adopted_count, earlier=earlier)


def _planned(candidates: Candidates, search: Search) -> OrphanPlan:
    found = sort_files(candidates.garbage, candidates.territory, None, candidates.table.storage)
    return orphan_plan(candidates, found, draft_of(candidates, search, ""), search)


def _refuse_unapproved(planned: OrphanPlan, search: Search) -> None:
    stays = "other files would go than those that were looked at, so nothing is deleted"
    refuse_unapproved(search.approve, planned.hash, stays)
    # Who approves of a plan has seen how much of the table it is.
    if search.approve is None and planned.too_many is not None:
        raise SafetyError(planned.too_many, hash=planned.hash)


def _written(
    candidates: Candidates, run: str, spark: SparkSource, search: Search, listener: Listener, runtime: Runtime
) -> tuple[DeletionPlan | None, Table, Candidates, int]:
    """The plan on disk and the table by whose metadata none of it is in use; no plan where nothing is left of it."""
    adopted_count = 0
    plan, seen = _write(candidates, run, search, runtime), candidates.table
    while True:
        try:
            now = seen.catalog.load(seen.identifier)
            if now.metadata_location == seen.metadata_location and now.metadata == seen.metadata:
                return plan, now, candidates, adopted_count
            candidates, count = still_unnamed(candidates, now, spark, search)
        except BaseException:
            # Left there it would be carried out by the next run, which does not look as closely.
            forget_plan(plan, seen.storage)
            raise
        seen = now
        if not count:
            continue
        adopted_count += count
        forget_plan(plan, now.storage)
        listener.on(Warned(f"{count} {_WARNING}"))
        planned = _planned(candidates, search)
        _refuse_unapproved(planned, search)
        if not planned.files_count:
            return None, now, candidates, adopted_count
        plan = _write(candidates, str(runtime.new_uuid()), search, runtime)


def _write(candidates: Candidates, run: str, search: Search, runtime: Runtime) -> DeletionPlan:
    draft, table = draft_of(candidates, search, run), candidates.table
    found = sort_files(candidates.garbage, candidates.territory, plan_directory(table, draft), table.storage)
    return write_plan(found, draft, table, runtime)
