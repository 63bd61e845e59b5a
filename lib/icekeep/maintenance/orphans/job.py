"""The job `remove_orphan_files`: files that no metadata leads to.

listing -> metadata, loaded after it -> everything that it leads to -> compared by path -> plan on disk -> looked at again -> gone
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, SafetyError, reason_of
from icekeep.events import Listener, Warned
from icekeep.maintenance.delete.kept import KeptByPlans
from icekeep.maintenance.delete.lease import PlanLease
from icekeep.maintenance.delete.locations import named_roots
from icekeep.maintenance.delete.options import (
    OrphanOptions,
    accepted_names,
    asked_trash_days,
    checked_options,
    trash_days,
)
from icekeep.maintenance.delete.pending import PendingPlans, finish_pending, foreseen_pending
from icekeep.maintenance.delete.plan_file import (
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    classify_files,
    delete_draft,
    plan_directory,
    refuse_unapproved,
    write_plan,
)
from icekeep.maintenance.delete.reachable import FileKind, FilesOfKind
from icekeep.maintenance.delete.run import DeletionRequest, DeletionRun, Reclaimed
from icekeep.maintenance.delete.saved import SavedDeletion, deletion_cost, file_lines
from icekeep.maintenance.jobs import JobResult, PlannedRequest, takes
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.orphans.compare import (
    KeptFiles,
    Mismatch,
    OrphanCandidates,
    checked_root,
    find_candidates,
    still_unnamed,
)
from icekeep.maintenance.orphans.listing import RowKeeper, keeping_rows
from icekeep.maintenance.orphans.options import Search, mismatch_mode, spelling
from icekeep.maintenance.plans import ExactPlan
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.run import run_name
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.times import Days, Moment
from icekeep.spec.types import DAY_MS
from icekeep.spelling import counted_doing
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


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        planned: what was to go when it went.
        plan: on disk, before it was carried out; `None` where there was nothing to do.
        reclaimed: `None` where the plan waits for its time.
        adopted_count: files that metadata led to when it was read again.
        kept: by which other run files of the plan are kept, so that all of it waits; `None` where it does not.
    """

    planned: RemoveOrphanFilesPlan
    plan: DeletionPlan | None = None
    reclaimed: Reclaimed | None = None
    adopted_count: int = 0
    kept: KeptByPlans | None = None


class RemoveOrphanFilesResult(JobResult, frozen=True, kw_only=True):
    """What went; bytes are those of the listing.

    Attributes:
        status: `partial` when files could not be deleted, of this run or of plans of earlier runs that are due.
        orphan_file_locations: the first thousand.
        deleted_files_count: in the trash, where `is_in_trash`.
        listed_files_count, reachable_files_count: what was looked at, and what of it metadata leads to.
        unlisted_reason: why the catalog could not be asked whether another table lies in the same place.
        unreadable_tables: tables that cannot be loaded and were accepted by name (`accept_unreadable`).
        untotalled_snapshots_count: snapshots that do not say how many files they have, so that nothing proves their manifest
            lists whole but the store's word.
        unmoved_files_count: files that cannot be moved to the trash; they stay in their places for its days, and go then.
        finished_files_count, emptied_trash_files_count: what earlier runs had left to be deleted, and what left the trash.
        kept_again_files_count: files that earlier runs were to delete, and that the table leads to again,
            or another plan keeps.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        problems: why it, or what earlier runs left, was not carried out to its end; the next run tries again.
        too_many: why so great a share of the files went only because the plan was approved.
        hash: what `approve` demands.
        waits_until_ms: where the option `grace` says so, or another run keeps some of the files, the moment from which a later
            run deletes them.
        left_reason: why they wait, empty if that is for the grace only.
        plan_location: the list of what went, as long as it can come back from the trash; of what was to go, where files
            failed or wait.
    """

    work = (
        "deleted_files_count",
        "unmoved_files_count",
        "waits_until_ms",
        "finished_files_count",
        "emptied_trash_files_count",
    )

    status: str = "done"
    orphan_files_count: int = 0
    orphan_bytes_count: int = 0
    orphan_file_locations: tuple[str, ...] = ()
    deleted_files_count: int = 0
    deleted_metadata_files_count: int = 0
    deleted_bytes_count: int = 0
    is_in_trash: bool = False
    missing_files_count: int = 0
    failed_files_count: int = 0
    failed_files: tuple[str, ...] = ()
    listed_files_count: int = 0
    reachable_files_count: int = 0
    kept: KeptFiles = KeptFiles()
    files_by_kind: tuple[FilesOfKind, ...] = ()
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()
    untotalled_snapshots_count: int = 0
    finished_files_count: int = 0
    emptied_trash_files_count: int = 0
    kept_again_files_count: int = 0
    swept_files_count: int = 0
    unmoved_files_count: int = 0
    problems: tuple[str, ...] = ()
    too_many: str | None = None
    hash: str | None = None
    waits_until_ms: int | None = None
    left_reason: str = ""
    plan_location: str | None = None
    elapsed_ms: int = 0
    run_id: str | None = None


def _result(removal: Removal, earlier: PendingPlans, swept_count: int) -> RemoveOrphanFilesResult:
    planned, plan, done = removal.planned, removal.plan, removal.reclaimed or Reclaimed()
    counts: dict[str, Any] = {**earlier.counts, "kept_again_files_count": earlier.kept_count + done.kept_count}
    is_left = plan is not None and (removal.reclaimed is None or not done.is_complete)
    waits_until_ms = None
    if plan is not None and removal.reclaimed is None:
        waits_until_ms = plan.not_before_ms if removal.kept is None else removal.kept.until_ms
    return RemoveOrphanFilesResult(
        status="done" if done.is_complete and earlier.is_complete else "partial",
        orphan_files_count=planned.orphan_files_count,
        orphan_bytes_count=planned.orphan_bytes_count,
        orphan_file_locations=planned.orphan_file_locations,
        deleted_files_count=done.deleted_count,
        deleted_metadata_files_count=sum(f.files_count for f in done.deleted if f.kind is FileKind.METADATA),
        deleted_bytes_count=done.deleted_bytes_count,
        is_in_trash=plan is not None and plan.is_trash and removal.reclaimed is not None,
        missing_files_count=done.missing_count,
        failed_files_count=done.failed_count + earlier.failed_count,
        failed_files=done.failed,
        listed_files_count=planned.listed_files_count,
        reachable_files_count=planned.reachable_files_count,
        kept=msgspec.structs.replace(planned.kept, adopted_count=removal.adopted_count),
        files_by_kind=planned.files_by_kind,
        unlisted_reason=planned.unlisted_reason,
        unreadable_tables=planned.unreadable_tables,
        untotalled_snapshots_count=planned.untotalled_snapshots_count,
        swept_files_count=swept_count,
        unmoved_files_count=done.unmovable_count,
        problems=(*((done.stopped,) if done.stopped else ()), *earlier.problems),
        too_many=planned.too_many,
        hash=planned.hash,
        waits_until_ms=waits_until_ms,
        left_reason=removal.kept.reason if removal.kept is not None else "",
        plan_location=plan.directory if plan is not None and (is_left or plan.is_trash) else None,
        **counts,
    )


class OrphanRemoval:
    """One run of the job, or a look at it, from the files that were found to those that are gone."""

    def __init__(
        self, candidates: OrphanCandidates, spark: SparkSource, search: Search, listener: Listener, keeper: RowKeeper
    ) -> None:
        self._candidates, self._search, self._keeper = candidates, search, keeper
        request = DeletionRequest(
            options=search.options,
            max_concurrent_deletes=search.max_concurrent_deletes,
            trust_manifest_list=search.trust_manifest_list,
            skips_trash=search.trash == 0,
            other_roots=candidates.locations.others,
            approve=search.approve,
            saved=search.saved,
        )
        run = DeletionRun.of(candidates.table, spark, request, listener, candidates.now_ms)
        # Those that were judged when the files were found.
        self._run = msgspec.structs.replace(run, locations=candidates.locations)

    def foreseen(self) -> RemoveOrphanFilesPlan:
        """What a run would do, with what earlier runs left; refused where another plan is approved, as the run would be."""
        search, table = self._search, self._candidates.table
        planned = self._planned()
        if search.saved is None:
            refuse_unapproved(search.approve, planned.hash, "nothing would be deleted")
        if not search.finishes_earlier:
            return planned
        earlier = foreseen_pending(self._run)
        swept_count = sweep_runs(table, table.runtime, keep="", listener=self._run.listener, is_plan=True)
        return msgspec.structs.replace(planned, swept_files_count=swept_count, **earlier.counts)

    def remove(self) -> RemoveOrphanFilesResult:
        """Delete what was found, after what earlier runs left.

        Raises:
            SafetyError: the plan is not the approved one, or too great a share of the files would go.
        """
        run, search, table = self._run, self._search, self._candidates.table
        earlier, swept_count = PendingPlans(), 0
        if search.saved is not None:
            earlier = finish_pending(run, plan_hash=search.approve or "")
            if earlier != PendingPlans():
                nothing = self._plan_of(ClassifiedGarbage(), self._draft(""))
                return _result(Removal(planned=nothing), earlier, swept_count)
        planned = self._planned()
        self._refuse(planned)
        if search.finishes_earlier:
            earlier = finish_pending(run)
            swept_count = sweep_runs(table, table.runtime, keep="", listener=run.listener)
        removal = Removal(planned=planned)
        if planned.orphan_files_count:
            try:
                with run.leases:
                    removal = self._carried_out(removal)
            except Exception as error:
                if not earlier.may_have_deleted:
                    raise
                before = "what earlier runs left is finished, and " if earlier.is_complete else ""
                problem = f"{before}no orphan of this run is deleted: {reason_of(error)}"
                run.listener.on(Warned(problem))
                earlier = msgspec.structs.replace(earlier, problems=(*earlier.problems, problem))
        return _result(removal, earlier, swept_count)

    def _planned(self) -> RemoveOrphanFilesPlan:
        """What is to go of the candidates; raises as `_classified`."""
        return self._plan_of(self._classified(None), self._draft(""))

    def _classified(self, directory: str | None) -> ClassifiedGarbage:
        """What is to go, written to a directory as `classify_files` says; of a saved plan that alone.

        Raises:
            SafetyError: a file of the saved plan is no orphan now, or gone.
            AlreadyApplied: all of them are gone.
        """
        saved, candidates = self._search.saved, self._candidates
        only = None if saved is None else saved.keys
        found = classify_files(candidates.garbage, candidates.locations, directory, candidates.table.storage, only)
        if saved is not None:
            saved.check(found, candidates.table)
        return found

    def _plan_of(self, found: ClassifiedGarbage, draft: PlanDraft) -> RemoveOrphanFilesPlan:
        """What would go, for people and machines."""
        candidates, search = self._candidates, self._search
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

    def _draft(self, run: str) -> PlanDraft:
        """What the plan on disk says beside its files.

        There is no commit to wait after, so that files go at once unless the option `grace` says otherwise.
        """
        candidates, search = self._candidates, self._search
        draft = PlanDraft(
            job=JOB.name,
            run=run,
            grace_ms=search.options.grace_ms(compares_metadata=True),
            trash_ms=trash_days(search.trash, parse_location(candidates.table.metadata.location).scheme) * DAY_MS,
            roots=named_roots(candidates.table, search.options.roots),
            accepted=candidates.accepted,
        )
        return draft.at(candidates.now_ms)

    def _refuse(self, planned: RemoveOrphanFilesPlan) -> None:
        stays = "other files would go than those that were looked at, so nothing is deleted"
        refuse_unapproved(self._search.approve, planned.hash, stays)
        # Who approves of a plan has seen how much of the table it is.
        if self._search.approve is None and planned.too_many is not None:
            raise SafetyError(planned.too_many, hash=planned.hash)

    def _carried_out(self, removal: Removal) -> Removal:
        plan, lease, now, adopted_count = self._written()
        candidates = self._candidates
        if adopted_count:
            removal = Removal(planned=self._planned(), adopted_count=adopted_count)
        if plan is None:
            delete_draft(lease.directory, now.storage)
            return removal
        removal = msgspec.structs.replace(removal, plan=plan)
        if plan.not_before_ms > candidates.now_ms:
            return removal
        done = self._run.on(now).carry_out(plan, lease, candidates.reached.seen, (candidates.root,))
        if isinstance(done, KeptByPlans):
            self._run.listener.on(Warned(f"plan {plan.directory!r} is not carried out yet: {done.reason}"))
            return msgspec.structs.replace(removal, kept=done)
        return msgspec.structs.replace(removal, reclaimed=done)

    def _written(self) -> tuple[DeletionPlan | None, PlanLease, Table, int]:
        """Write a plan whose head comes after the last look: what another run finds and carries out has been looked at.

        Returns:
            The plan, `None` where nothing is left of it; the lease; the table by whose metadata none of it is in use; how many
            candidates were left out, since that leads to them.
        """
        run, search = self._run, self._search
        adopted_count, seen, number = 0, self._candidates.table, 1
        draft, lease, found = self._write_parts(number)
        while True:
            try:
                now = seen.refresh()
                if now.metadata_location == seen.metadata_location and now.metadata == seen.metadata:
                    plan = write_plan(found, draft, now, now.runtime) if found.parts else None
                    return plan, lease, now, adopted_count
                self._candidates, count = still_unnamed(self._candidates, now, run.spark, search, self._keeper)
                seen = now
                if not count:
                    continue
                adopted_count += count
                run.listener.on(
                    Warned(f"{counted_doing(count, 'files', 'are')} in use now, and not deleted as orphans")
                )
                self._refuse(self._planned())
            except IcekeepError:
                delete_draft(lease.directory, seen.storage)
                raise
            delete_draft(lease.directory, seen.storage)
            number += 1
            draft, lease, found = self._write_parts(number)

    def _write_parts(self, number: int) -> tuple[PlanDraft, PlanLease, ClassifiedGarbage]:
        """Write down the files of the run's `number`th plan."""
        table = self._candidates.table
        draft = self._draft(run_name(table, number))
        lease = self._run.lease(plan_directory(table, draft), JOB.name)
        return draft, lease, self._classified(lease.directory)


class RemoveOrphanFilesRequest(PlannedRequest, frozen=True, kw_only=True):
    """The arguments of `remove_orphan_files`, which says what each means."""

    older_than: Moment | None = None
    location: str | None = None
    max_concurrent_deletes: int | None = None
    file_list_view: str | None = None
    equal_schemes: Mapping[str, str] | None = None
    equal_authorities: Mapping[str, str] | None = None
    prefix_mismatch_mode: str = "ERROR"
    prefix_listing: bool = False
    stream_results: bool = False
    trash: Days | None = None
    approve: str | None = None
    force: bool = False
    trust_manifest_list: bool = False
    accept_unreadable: Sequence[str] = ()
    options: Mapping[str, Any] | OrphanOptions | None = None

    def search(self) -> Search:
        """The arguments, checked; raises what the job raises for a wrong one."""
        days = asked_trash_days(self.trash)
        return Search(
            older_than=self.older_than,
            location=self.location,
            file_list_view=self.file_list_view,
            spelling=spelling(self.equal_schemes, self.equal_authorities),
            mode=mismatch_mode(self.prefix_mismatch_mode),
            trash=days,
            approve=self.approve if self.saved is None else self.saved.head.approve,
            force=self.force,
            trust_manifest_list=self.trust_manifest_list,
            max_concurrent_deletes=self.max_concurrent_deletes,
            accept_unreadable=accepted_names(self.accept_unreadable),
            options=checked_options(OrphanOptions, self.options, self.max_concurrent_deletes, days),
            saved=None if self.saved is None else SavedDeletion.of(self.saved),
        )


@takes(RemoveOrphanFilesRequest)
def remove_orphan_files(table: Table, request: RemoveOrphanFilesRequest) -> RemoveOrphanFilesResult:
    """Delete the files below a directory that no metadata of the table leads to.

    Files are listed first and metadata is loaded after that, and once more right before the deletion. Metadata files in no
    log go too, but for versions that a catalog may find by name. Hidden names (`_x`, `.x`) are not looked at, unless they are
    directories of partitions; directories are never deleted and links never followed.

    Args:
        older_than: a moment, or how long ago, at least a day by our clock and by the store's; only files that were written
            before it go. Three days ago if `None`.
        location: the directory that is listed; the table's location if `None`. As for Iceberg `write.data.path` and
            `write.metadata.path` are not listed where they lie elsewhere: name them here, and as `reclaim.roots`.
        max_concurrent_deletes: how many calls that delete run at once, at most; as many as there is work for if `None`.
        file_list_view: in place of a listing a view or table of this Spark session, or the location of Parquet, ORC or CSV
            files, with the columns `file_path` and `last_modified`, or those of an S3 inventory. Of it only what lies below
            the location is looked at, by whole names of directories.
        equal_schemes: which schemes are the same, as `{"oss,minio": "s3"}`; that `s3a` is `s3` and the like is known.
        equal_authorities: which authorities are the same, as `{"nn1,nn2": "nn"}`.
        prefix_mismatch_mode: what becomes of a file that metadata has under another scheme or authority: `ERROR` refuses,
            `IGNORE` keeps it. Iceberg's `DELETE` is not offered.
        prefix_listing: accepted; listings are always by prefix.
        stream_results: accepted; results are never held whole.
        trash: for how many days files stay in the trash; 0 deletes at once, `None` is 3 on local disks and HDFS, 0 elsewhere.
        approve: the hash of the plan that may be carried out; nothing goes if it is another one.
        force: delete although more than `max-orphan-ratio` of the listed files would go.
        trust_manifest_list: believe manifest lists although the summaries of snapshots count other files.
        accept_unreadable: names of tables of the catalog (`db.events`) that cannot be loaded, and of which the operator knows
            that they lie elsewhere; all other tables that cannot be loaded, and whose location the catalog does not know, refuse.
        options: `max-orphan-ratio`, `max-deletes-per-second`, `reclaim.roots`, `grace`; `ignore-metadata-of`, uuids of dead
            tables, whose metadata files are garbage once they are as old as other orphans. The table's own uuid means metadata
            that is further on than the current one, of a commit that died before it landed.
        saved: a plan that was written before (`apply_plan` reads it): exactly that goes, or nothing.

    Raises:
        UsageError: `older_than` is less than a day ago, or an argument cannot be what it is.
        SafetyError: the table has `gc.enabled=false`; another table may have files in the same place; not everything that the
            table leads to can be read; paths are spelled in different ways; or too great a share of the files would go.
        UnsupportedError: the table is encrypted, or the mode is `DELETE`.
        TryAgainError: the catalog or the store is out of reach, or a commit to the table is under way.
    """
    search, spark, listener = request.search(), request.spark, request.listener
    with keeping_rows(table, listener) as keeper:
        candidates = find_candidates(table, spark, search, listener, keeper)
        return OrphanRemoval(candidates, spark, search, listener, keeper).remove()


@takes(RemoveOrphanFilesRequest)
def plan_remove_orphan_files(table: Table, request: RemoveOrphanFilesRequest) -> RemoveOrphanFilesPlan:
    """Say what `remove_orphan_files` with the same arguments would do; raises as it does, but for a share that is too great."""
    search, spark, listener = request.search(), request.spark, request.listener
    with keeping_rows(table, listener) as keeper:
        candidates = find_candidates(table, spark, search, listener, keeper, is_plan=True)
        return OrphanRemoval(candidates, spark, search, listener, keeper).foreseen()


@takes(RemoveOrphanFilesRequest, "remove_orphan_files")
def exact_remove_orphan_files(table: Table, request: RemoveOrphanFilesRequest) -> ExactPlan:
    """What `remove_orphan_files` with the same arguments would do, with all files; raises as `plan_remove_orphan_files`."""
    search, spark, listener = request.search(), request.spark, request.listener
    with ExitStack() as stack:
        keeper = stack.enter_context(keeping_rows(table, listener))
        candidates = find_candidates(table, spark, search, listener, keeper, is_plan=True)
        shown = OrphanRemoval(candidates, spark, search, listener, keeper).foreseen()
        head = candidates.table.metadata.head(MAIN)
        listings_count = -(-candidates.listed_count // _NAMES_A_LISTING)
        return ExactPlan(
            shown=shown,
            snapshot_id=None if head is None else head.snapshot_id,
            lines=file_lines(candidates.garbage, candidates.locations, table.storage),
            # The rows are kept until they are written down.
            close=stack.pop_all().close,
            approve=shown.hash,
            cost=deletion_cost(shown.orphan_files_count, requests_count=listings_count),
        )


@takes(RemoveOrphanFilesRequest)
def check_arguments(metadata: TableMetadata, request: RemoveOrphanFilesRequest) -> None:
    """Hold the arguments against the table, before anything is listed; `older_than` waits for the store's clock.

    Raises:
        SafetyError: the location is icekeep's own.
        UnsupportedError: the table is encrypted, or the mode is `DELETE`.
        UsageError: the location is none.
        OptionError: an argument has a value that it cannot take.
    """
    checked_root(metadata, request.search())
