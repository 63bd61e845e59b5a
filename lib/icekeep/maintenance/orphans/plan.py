"""Which files would go. What `--dry-run` shows; nothing is changed."""

from contextlib import ExitStack

import msgspec

from icekeep.catalog.base import Table
from icekeep.events import SILENT, Listener
from icekeep.maintenance.deletion.earlier_runs import DeletionRequest, foreseen_earlier
from icekeep.maintenance.deletion.file_kinds import FilesOfKind
from icekeep.maintenance.deletion.given_files import deletion_cost, file_lines
from icekeep.maintenance.deletion.options import trash_days
from icekeep.maintenance.deletion.plan_writing import ClassifiedGarbage, PlanDraft, classify_files
from icekeep.maintenance.deletion.plans import refuse_unapproved
from icekeep.maintenance.deletion.territory import named_roots
from icekeep.maintenance.exact_plans import ExactPlan
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.orphans.candidates import KeptFiles, OrphanCandidates, find_candidates
from icekeep.maintenance.orphans.comparing import Mismatch
from icekeep.maintenance.orphans.kept_rows import keeping_rows
from icekeep.maintenance.orphans.options import Search
from icekeep.maintenance.runs.left_behind import sweep_runs
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.runtime import Runtime
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import DAY_MS
from icekeep.storage.locations import parse_location

_NAMES_A_LISTING = 1000
"""How many names an object store lists with one request."""


class RemoveOrphanFilesPlan(Rendered, frozen=True, kw_only=True):
    """What one run would delete; bytes are those of the listing.

    Attributes:
        hash: what `approve` demands: exactly this set goes, or nothing.
        orphan_file_locations: locations of the first thousand.
        is_in_trash: whether a run would move them to the trash.
        waits_until_ms: where the option `grace` says so, the moment from which a later run would delete them.
        too_many: why a run would refuse to delete so great a share of the listed files, `None` where it would not.
        mismatches: the first files that metadata has under other schemes or authorities.
        finished_files_count: files of unfinished plans of earlier runs, which this run would delete as well. `hash` covers
            nothing that earlier runs left, and a run with `approve` leaves it alone.
        emptied_trash_files_count: files in the trash whose days there are over, which would be deleted for good.
        kept_again_files_count: files that plans of earlier runs were to delete, and that are in use again or kept by another
            plan.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        unlisted_reason, untotalled_snapshots_count, unreadable_tables: as in the result.
    """

    location: str
    orphan_files_count: int
    orphan_bytes_count: int
    files_by_kind: tuple[FilesOfKind, ...]
    orphan_file_locations: tuple[str, ...]
    is_in_trash: bool
    waits_until_ms: int | None
    hash: str
    too_many: str | None
    listed_files_count: int
    reachable_files_count: int
    kept: KeptFiles
    mismatches: tuple[Mismatch, ...]
    finished_files_count: int = 0
    emptied_trash_files_count: int = 0
    kept_again_files_count: int = 0
    swept_files_count: int = 0
    unlisted_reason: str = ""
    untotalled_snapshots_count: int = 0
    unreadable_tables: tuple[str, ...] = ()


def plan_orphans(
    table: Table, spark: SparkSource, search: Search, runtime: Runtime, listener: Listener = SILENT
) -> RemoveOrphanFilesPlan:
    """Say what a run would do; raises as `find_candidates` does, and `SafetyError` where another plan is approved."""
    with keeping_rows(table, runtime, listener) as keeper:
        candidates = find_candidates(table, spark, search, listener, runtime, keeper, is_plan=True)
        return _with_earlier(_approved(planned_of(candidates, search), search), candidates, spark, search, listener)


def exact_orphans(
    table: Table, spark: SparkSource, search: Search, runtime: Runtime, listener: Listener = SILENT
) -> ExactPlan:
    """The same with all files; raises as `find_candidates` does."""
    with ExitStack() as stack:
        keeper = stack.enter_context(keeping_rows(table, runtime, listener))
        candidates = find_candidates(table, spark, search, listener, runtime, keeper, is_plan=True)
        shown = _approved(planned_of(candidates, search), search)
        shown = _with_earlier(shown, candidates, spark, search, listener)
        head = candidates.table.metadata.head(MAIN)
        return ExactPlan(
            shown=shown,
            snapshot_id=None if head is None else head.snapshot_id,
            lines=file_lines(candidates.garbage, candidates.territory, table.storage),
            # The rows are kept until they are written down.
            close=stack.pop_all().close,
            approve=shown.hash,
            cost=deletion_cost(
                shown.orphan_files_count, requests_count=-(-candidates.listed_count // _NAMES_A_LISTING)
            ),
        )


def _approved(planned: RemoveOrphanFilesPlan, search: Search) -> RemoveOrphanFilesPlan:
    """A plan, unless another one is approved: then the run would be refused too."""
    if search.given is None:
        refuse_unapproved(search.approve, planned.hash, "nothing would be deleted")
    return planned


def _with_earlier(
    planned: RemoveOrphanFilesPlan, candidates: OrphanCandidates, spark: SparkSource, search: Search, listener: Listener
) -> RemoveOrphanFilesPlan:
    """A plan, with what the run would do about what earlier runs left."""
    if not search.finishes_earlier:
        return planned
    table, request = candidates.table, deletion_of(candidates, search)
    earlier = foreseen_earlier(table, spark, candidates.now_ms, request, listener)
    return msgspec.structs.replace(
        planned,
        finished_files_count=earlier.finished_count,
        emptied_trash_files_count=earlier.emptied_count,
        kept_again_files_count=earlier.kept_count,
        swept_files_count=sweep_runs(table, table.runtime, keep="", listener=listener, is_plan=True),
    )


def planned_of(candidates: OrphanCandidates, search: Search) -> RemoveOrphanFilesPlan:
    """What is to go of candidates; raises as `classified`."""
    return orphan_plan(candidates, classified(candidates, search, None), draft_of(candidates, search, ""), search)


def classified(candidates: OrphanCandidates, search: Search, directory: str | None) -> ClassifiedGarbage:
    """What is to go, written to a directory as `classify_files` says; of a plan that was given that alone.

    Raises:
        SafetyError: a file of the plan that was given is no orphan by now, or gone.
        AlreadyApplied: all of them are gone.
    """
    given, storage = search.given, candidates.table.storage
    only = None if given is None else given.files
    found = classify_files(candidates.garbage, candidates.territory, directory, storage, only)
    if given is not None:
        given.hold(found, candidates.table)
    return found


def orphan_plan(
    candidates: OrphanCandidates, found: ClassifiedGarbage, draft: PlanDraft, search: Search
) -> RemoveOrphanFilesPlan:
    """What would go, for people and machines."""
    kept = candidates.kept
    return RemoveOrphanFilesPlan(
        location=candidates.root,
        orphan_files_count=sum(f.files_count for f in found.files),
        orphan_bytes_count=sum(f.bytes for f in found.files),
        files_by_kind=found.files,
        orphan_file_locations=found.sample,
        is_in_trash=bool(found.parts and draft.trash_ms and not draft.grace_ms),
        waits_until_ms=draft.not_before_ms if found.parts and draft.grace_ms else None,
        hash=found.hash(candidates.table, draft),
        too_many=None if search.force else candidates.share.problem(search.options.max_orphan_ratio),
        listed_files_count=candidates.listed_count,
        reachable_files_count=candidates.named_count,
        kept=msgspec.structs.replace(kept, outside_count=kept.outside_count + found.outside_count),
        mismatches=candidates.mismatches,
        unlisted_reason=candidates.unlisted_reason,
        untotalled_snapshots_count=candidates.reached.untotalled_count,
        unreadable_tables=candidates.accepted,
    )


def deletion_of(candidates: OrphanCandidates, search: Search) -> DeletionRequest:
    """How files are to be deleted, by the arguments."""
    return DeletionRequest(
        options=search.options,
        max_concurrent_deletes=search.max_concurrent_deletes,
        trust_manifest_list=search.trust_manifest_list,
        skips_trash=search.trash == 0,
        other_roots=candidates.territory.others,
    )


def draft_of(candidates: OrphanCandidates, search: Search, run: str) -> PlanDraft:
    """What the plan on disk says beside its files.

    There is no commit to wait after, so that files go at once unless the option `grace` says otherwise.
    """
    draft = PlanDraft(
        job=JOB.name,
        run=run,
        grace_ms=search.options.grace_ms(compares_metadata=True),
        trash_ms=trash_days(search.trash, parse_location(candidates.table.metadata.location).scheme) * DAY_MS,
        roots=named_roots(candidates.table, search.options.roots),
        accepted=candidates.accepted,
    )
    return draft.at(candidates.now_ms)
