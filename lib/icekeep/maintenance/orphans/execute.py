"""A plan on disk, a last look at the metadata, and then deletion: nothing goes that the table leads to by then."""

from contextlib import ExitStack
from functools import partial

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, SafetyError, reason_of
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.begun_plans import finish_begun
from icekeep.maintenance.deletion.claims import Claim, new_claim, released
from icekeep.maintenance.deletion.earlier_runs import Earlier, finish_earlier
from icekeep.maintenance.deletion.finished_plans import settle_plan, settled
from icekeep.maintenance.deletion.kept_by_plans import KeptByPlans, LookBesideOthers, kept_by_others
from icekeep.maintenance.deletion.last_look import TableLook
from icekeep.maintenance.deletion.plan_writing import (
    ClassifiedGarbage,
    PlanDraft,
    plan_directory,
    write_plan,
)
from icekeep.maintenance.deletion.plans import DeletionPlan, refuse_unapproved, remove_draft
from icekeep.maintenance.deletion.reclaim import Reclaimed, reclaim
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.orphans.candidates import OrphanCandidates, find_candidates, still_unnamed
from icekeep.maintenance.orphans.kept_rows import RowKeeper, keeping_rows
from icekeep.maintenance.orphans.options import Search
from icekeep.maintenance.orphans.plan import (
    RemoveOrphanFilesPlan,
    classified,
    deletion_of,
    draft_of,
    orphan_plan,
    planned_of,
)
from icekeep.maintenance.runs.left_behind import sweep_runs
from icekeep.maintenance.runs.names import run_name
from icekeep.planning.spark.session import SparkSource
from icekeep.runtime import Runtime
from icekeep.spelling import counted_doing

_WARNING = "in use now, and not deleted as orphans"


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        planned: what was to go when it went.
        plan: on disk, before it was carried out; `None` where there was nothing to do.
        reclaimed: `None` where the plan waits for its time.
        adopted_count: files that metadata led to when it was read again.
        kept: by which other run files of the plan are kept, so that all of it waits; `None` where it does not.
        earlier: what earlier runs had left to be done.
        swept_count: files left by runs that died, which were removed.
    """

    planned: RemoveOrphanFilesPlan
    plan: DeletionPlan | None = None
    reclaimed: Reclaimed | None = None
    adopted_count: int = 0
    kept: KeptByPlans | None = None
    earlier: Earlier = Earlier()
    swept_count: int = 0


def remove_orphans(table: Table, spark: SparkSource, search: Search, listener: Listener, runtime: Runtime) -> Removal:
    """Find orphans and delete them; raises as `find_candidates`.

    Raises:
        SafetyError: the plan is not the approved one, or too great a share of the files would go.
    """
    with keeping_rows(table, runtime, listener) as keeper:
        candidates = find_candidates(table, spark, search, listener, runtime, keeper)
        return _removed(candidates, spark, search, listener, runtime, keeper)


def _removed(
    candidates: OrphanCandidates,
    spark: SparkSource,
    search: Search,
    listener: Listener,
    runtime: Runtime,
    keeper: RowKeeper,
) -> Removal:
    request = deletion_of(candidates, search)
    earlier, swept_count = Earlier(), 0
    if search.given is not None:
        table, now_ms = candidates.table, candidates.now_ms
        earlier = finish_begun(table, spark, now_ms, request, search.approve or "", listener, runtime)
        if earlier != Earlier():
            nothing = orphan_plan(candidates, ClassifiedGarbage(), draft_of(candidates, search, ""), search)
            return Removal(planned=nothing, earlier=earlier)
    planned = planned_of(candidates, search)
    _refuse_unapproved(planned, search)
    if search.finishes_earlier:
        earlier = finish_earlier(
            candidates.table, spark, candidates.now_ms, request, listener=listener, runtime=runtime
        )
        swept_count = sweep_runs(candidates.table, runtime, keep="", listener=listener)
    if not planned.orphan_files_count:
        return Removal(planned=planned, earlier=earlier, swept_count=swept_count)
    try:
        removal = _planned_removed(candidates, planned, earlier, spark, search, listener, runtime, keeper)
    except Exception as error:
        if not earlier.may_have_deleted:
            raise
        before = "what earlier runs left is finished, and " if earlier.is_complete else ""
        problem = f"{before}no orphan of this run is deleted: {reason_of(error)}"
        listener.on(Warned(problem))
        earlier = msgspec.structs.replace(earlier, problems=(*earlier.problems, problem))
        removal = Removal(planned=planned, earlier=earlier)
    return msgspec.structs.replace(removal, swept_count=swept_count)


def _planned_removed(  # noqa: PLR0913 - the parts of one run
    candidates: OrphanCandidates,
    planned: RemoveOrphanFilesPlan,
    earlier: Earlier,
    spark: SparkSource,
    search: Search,
    listener: Listener,
    runtime: Runtime,
    keeper: RowKeeper,
) -> Removal:
    with ExitStack() as claims:
        written = _written(candidates, spark, search, claims, listener, runtime, keeper)
        adopted_count = written.adopted_count
        if adopted_count:
            planned = planned_of(written.candidates, search)
        plan = written.plan
        if plan is None:
            remove_draft(written.claim.directory, written.now.storage)
        if plan is None or plan.not_before_ms > candidates.now_ms:
            return Removal(planned=planned, plan=plan, adopted_count=adopted_count, earlier=earlier)
        kept = kept_by_others(plan, written.now, candidates.now_ms, skips_trash=search.trash == 0)
        if kept.reason:
            listener.on(Warned(f"plan {plan.directory!r} is not carried out yet: {kept.reason}"))
            return Removal(planned=planned, plan=plan, adopted_count=adopted_count, kept=kept, earlier=earlier)
        look = TableLook(
            written.now,
            candidates.reached.seen,
            spark,
            trust_manifest_list=search.trust_manifest_list,
            roots=(candidates.root, *candidates.territory.roots),
        )
        reclaimed = reclaim(
            plan,
            written.claim,
            LookBesideOthers(look, plan, written.now, kept.files, candidates.now_ms, skips_trash=search.trash == 0),
            written.now,
            candidates.territory,
            spark,
            options=search.options,
            max_concurrent_deletes=search.max_concurrent_deletes,
            listener=listener,
            runtime=runtime,
        )
        settle = partial(settle_plan, plan, written.claim, reclaimed, written.now, runtime, listener)
        reclaimed = settled(settle, plan, reclaimed, listener)
    return Removal(planned=planned, plan=plan, reclaimed=reclaimed, adopted_count=adopted_count, earlier=earlier)


def _refuse_unapproved(planned: RemoveOrphanFilesPlan, search: Search) -> None:
    stays = "other files would go than those that were looked at, so nothing is deleted"
    refuse_unapproved(search.approve, planned.hash, stays)
    # Who approves of a plan has seen how much of the table it is.
    if search.approve is None and planned.too_many is not None:
        raise SafetyError(planned.too_many, hash=planned.hash)


class _Written(msgspec.Struct, frozen=True):
    """A plan on disk and the table by whose metadata none of it is in use; no plan where nothing is left of it."""

    plan: DeletionPlan | None
    claim: Claim
    now: Table
    candidates: OrphanCandidates
    adopted_count: int


def _written(
    candidates: OrphanCandidates,
    spark: SparkSource,
    search: Search,
    claims: ExitStack,
    listener: Listener,
    runtime: Runtime,
    keeper: RowKeeper,
) -> _Written:
    """Write a plan whose head comes after the last look: what another run finds and carries out has been looked at."""
    adopted_count, seen, number = 0, candidates.table, 1
    draft, claim, found = _parts(candidates, search, claims, number)
    while True:
        try:
            now = seen.refresh()
            if now.metadata_location == seen.metadata_location and now.metadata == seen.metadata:
                plan = write_plan(found, draft, now, runtime) if found.parts else None
                return _Written(plan, claim, now, candidates, adopted_count)
            candidates, count = still_unnamed(candidates, now, spark, search, keeper)
            seen = now
            if not count:
                continue
            adopted_count += count
            listener.on(Warned(f"{counted_doing(count, 'files', 'are')} {_WARNING}"))
            _refuse_unapproved(planned_of(candidates, search), search)
        except IcekeepError:
            remove_draft(claim.directory, seen.storage)
            raise
        remove_draft(claim.directory, seen.storage)
        number += 1
        draft, claim, found = _parts(candidates, search, claims, number)


def _parts(
    candidates: OrphanCandidates, search: Search, claims: ExitStack, number: int
) -> tuple[PlanDraft, Claim, ClassifiedGarbage]:
    """The files of the run's `number`th plan on disk, and the claim on it; nobody carries it out while it has no head."""
    table, runtime = candidates.table, candidates.table.runtime
    draft = draft_of(candidates, search, run_name(table, number))
    directory = plan_directory(table, draft)
    claim = claims.enter_context(
        released(new_claim(directory, JOB.name, table.storage, runtime), table.storage, runtime)
    )
    return draft, claim, classified(candidates, search, directory)
