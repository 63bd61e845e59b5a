"""The job `expire_snapshots`: retention by references, then garbage collection."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.manifests import ManifestReader
from icekeep.events import Warned
from icekeep.maintenance.delete.lease import safe_now_ms
from icekeep.maintenance.delete.locations import check_roots, named_roots
from icekeep.maintenance.delete.neighbours import Neighbours, neighbours
from icekeep.maintenance.delete.options import ExpirationOptions, asked_trash_days, checked_options, trash_days
from icekeep.maintenance.delete.pending import PendingPlans, finish_pending, foreseen_pending, not_finished
from icekeep.maintenance.delete.plan_file import ClassifiedGarbage, PlanDraft
from icekeep.maintenance.delete.reachable import FileKind, refuse_if_gc_is_disabled
from icekeep.maintenance.delete.run import DeletionRequest, DeletionRun, Reclaimed
from icekeep.maintenance.delete.saved import SavedDeletion, deletion_cost, deletion_lines
from icekeep.maintenance.expire import JOB
from icekeep.maintenance.expire.checkpoints import checkpoint_positions
from icekeep.maintenance.expire.holdings import ref_holdings
from icekeep.maintenance.expire.plan import (
    REST_IS_ORPHANED,
    CleanupLevel,
    ExpireSnapshotsPlan,
    after_expiration,
    cleanup_level,
    expiration_draft,
    expiration_plan,
    expired_as_saved,
    expired_lines,
    garbage_between,
)
from icekeep.maintenance.expire.run import Expiration, ExpirationRun
from icekeep.maintenance.jobs import JobResult, PlannedRequest, or_warned, takes
from icekeep.maintenance.plans import ExactPlan
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.readers import UNREADABLE, WAITED_FOR, KeptForReader, ReaderPosition, ReaderSeen
from icekeep.spec.retention import ADDED_VECTORS, Expired, KeptForWriter
from icekeep.spec.snapshots import MAIN
from icekeep.spec.times import Days, Moment, moment_ms
from icekeep.spec.types import DAY_MS
from icekeep.storage.locations import parse_location


class ExpireSnapshotsResult(JobResult, frozen=True, kw_only=True):
    """What went; bytes are those that metadata records. Files in the trash count as deleted.

    Attributes:
        status: `partial` when the snapshots are gone and not all files are; the next run tries again.
        deleted_files_count: of all kinds.
        left_files_count: files that a later run deletes, after the grace.
        missing_files_count: files that were gone already.
        kept_outside_files_count: files that are garbage and lie outside the table's places: they may belong to others.
        kept_for_writers: snapshots that stay only because a writer's progress is in them or before them.
        kept_for_readers: snapshots that stay only because a reader has not read all after them.
        readers: that are known, by properties, tags and checkpoints, and how far each has come.
        unreadable_files: files of expired snapshots that cannot be read; what only they lead to stays.
        untotalled_snapshots_count: retained snapshots whose summaries have no totals to hold their manifest lists against.
        finished_files_count, emptied_trash_files_count, kept_again_files_count: what came of plans of earlier runs.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        problems: why plans of earlier runs that are due were not carried out.
        unmoved_files_count: files that cannot be moved to the trash; they stay in their places for its days, and go then.
        plan_location: where the plan lies, also that of files in the trash: `icekeep restore` takes its last name.
        hash: of the plan.
    """

    work = (
        "expired_snapshots_count",
        "expired_ref_names",
        "removed_schemas_count",
        "removed_specs_count",
        "deleted_files_count",
        "left_files_count",
        "unmoved_files_count",
        "finished_files_count",
        "emptied_trash_files_count",
    )

    status: str = "done"
    expired_snapshots_count: int = 0
    retained_snapshots_count: int = 0
    expired_ref_names: tuple[str, ...] = ()
    removed_schemas_count: int = 0
    removed_specs_count: int = 0
    deleted_files_count: int = 0
    deleted_data_files_count: int = 0
    deleted_position_delete_files_count: int = 0
    deleted_equality_delete_files_count: int = 0
    deleted_manifest_files_count: int = 0
    deleted_manifest_lists_count: int = 0
    deleted_statistics_files_count: int = 0
    deleted_metadata_files_count: int = 0
    deleted_bytes_count: int = 0
    is_in_trash: bool = False
    left_files_count: int = 0
    left_reason: str = ""
    missing_files_count: int = 0
    failed_files_count: int = 0
    kept_outside_files_count: int = 0
    untotalled_snapshots_count: int = 0
    kept_for_writers: tuple[KeptForWriter, ...] = ()
    kept_for_readers: tuple[KeptForReader, ...] = ()
    readers: tuple[ReaderSeen, ...] = ()
    unreadable_files: tuple[str, ...] = ()
    finished_files_count: int = 0
    emptied_trash_files_count: int = 0
    kept_again_files_count: int = 0
    swept_files_count: int = 0
    problems: tuple[str, ...] = ()
    unmoved_files_count: int = 0
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()
    plan_location: str | None = None
    hash: str | None = None
    elapsed_ms: int = 0
    run_id: str | None = None


def result(
    metadata: TableMetadata, expired: Expired, done: Expiration | None, earlier: PendingPlans, around: Neighbours
) -> ExpireSnapshotsResult:
    """What a run did; `metadata` is the table's before it."""
    result = ExpireSnapshotsResult(
        status="done" if earlier.is_complete else "partial",
        retained_snapshots_count=len(metadata.snapshots),
        kept_for_writers=expired.kept,
        kept_for_readers=expired.kept_for_readers,
        readers=expired.readers,
        **earlier.counts,
        problems=earlier.problems,
        failed_files_count=earlier.failed_count,
        unlisted_reason=around.unlisted_reason,
        unreadable_tables=around.unreadable,
    )
    if done is None:
        return result
    before, after, found = done.before, done.after, done.planned.found
    plan, reclaimed = done.plan, done.reclaimed or Reclaimed()
    counts = {f.kind: f.files_count for f in reclaimed.deleted}
    is_left = plan is not None and (done.reclaimed is None or bool(reclaimed.stopped))
    left_count = 0
    if plan is not None and is_left:
        went = (reclaimed.deleted_count, reclaimed.missing_count, reclaimed.kept_count, reclaimed.unmovable_count)
        left_count = plan.files_count - sum(went)
    failed_count = reclaimed.failed_count
    is_there = plan is not None and (plan.is_trash or left_count or failed_count)
    return msgspec.structs.replace(
        result,
        status="partial" if failed_count or done.is_cut_off else result.status,
        expired_snapshots_count=len(before.snapshots_by_id.keys() - after.snapshots_by_id.keys()),
        retained_snapshots_count=len(after.snapshots),
        expired_ref_names=tuple(sorted(before.refs.keys() - after.refs.keys())),
        removed_schemas_count=len(before.schemas_by_id.keys() - after.schemas_by_id.keys()),
        removed_specs_count=len(before.specs_by_id.keys() - after.specs_by_id.keys()),
        deleted_files_count=sum(counts.values()),
        deleted_data_files_count=counts.get(FileKind.DATA, 0),
        deleted_position_delete_files_count=counts.get(FileKind.POSITION_DELETES, 0),
        deleted_equality_delete_files_count=counts.get(FileKind.EQUALITY_DELETES, 0),
        deleted_manifest_files_count=counts.get(FileKind.MANIFEST, 0),
        deleted_manifest_lists_count=counts.get(FileKind.MANIFEST_LIST, 0),
        deleted_statistics_files_count=counts.get(FileKind.STATISTICS, 0),
        deleted_metadata_files_count=counts.get(FileKind.METADATA, 0),
        deleted_bytes_count=reclaimed.deleted_bytes_count,
        is_in_trash=plan is not None and plan.is_trash and done.reclaimed is not None,
        left_files_count=left_count,
        left_reason=(done.kept_reason or "the grace has not passed") if left_count or done.is_cut_off else "",
        unmoved_files_count=reclaimed.unmovable_count,
        missing_files_count=reclaimed.missing_count,
        failed_files_count=result.failed_files_count + failed_count,
        kept_again_files_count=result.kept_again_files_count + reclaimed.kept_count,
        kept_outside_files_count=found.outside_count,
        untotalled_snapshots_count=done.planned.untotalled_count,
        unreadable_files=found.unreadable,
        plan_location=plan.directory if plan is not None and is_there else None,
        hash=None if plan is None else plan.hash,
    )


class ExpireSnapshotsRequest(PlannedRequest, frozen=True, kw_only=True):
    """The arguments of `expire_snapshots`, which says what each means."""

    older_than: Moment | None = None
    retain_last: int | None = None
    snapshot_ids: Sequence[int] = ()
    clean_expired_metadata: bool = False
    clean: str = CleanupLevel.ALL
    max_concurrent_deletes: int | None = None
    stream_results: bool = False
    trash: Days | None = None
    approve: str | None = None
    trust_manifest_list: bool = False
    options: Mapping[str, Any] | ExpirationOptions | None = None

    def change(self, table: Table, options: ExpirationOptions, now_ms: int) -> ExpireSnapshots:
        """What goes, within what the operator lays down; an age is counted back from `now_ms`."""
        policy = msgspec.structs.replace(
            options.policy(table.catalog.rules),
            older_than_ms=None if self.older_than is None else moment_ms(self.older_than, now_ms),
            retain_last=self.retain_last,
            snapshot_ids=tuple(self.snapshot_ids),
            reader_positions=_outside_positions(table, options),
        )
        return ExpireSnapshots(policy=policy, now_ms=now_ms, clean_expired_metadata=self.clean_expired_metadata)

    def deletion(self, options: ExpirationOptions, around: Neighbours, approve: str | None) -> DeletionRequest:
        """How files are to be deleted, by the arguments, and which."""
        return DeletionRequest(
            options=options,
            max_concurrent_deletes=self.max_concurrent_deletes,
            trust_manifest_list=self.trust_manifest_list,
            skips_trash=asked_trash_days(self.trash) == 0,
            other_roots=around.other_roots,
            approve=approve,
            saved=None if self.saved is None else SavedDeletion.of(self.saved),
        )

    @property
    def finishes_earlier(self) -> bool:
        """Whether the run also deals with what earlier runs left: where a plan is approved or saved, that is all that goes."""
        return self.approve is None and self.saved is None and cleanup_level(self.clean) is CleanupLevel.ALL


def _outside_positions(table: Table, options: ExpirationOptions) -> tuple[ReaderPosition, ...]:
    """How far the streams have come whose checkpoints the options name.

    They are read through the catalog's own storage: what is vended for a table does not reach them. A stream only goes on from
    there, so that what it needs when the commit lands is kept.
    """
    if not options.checkpoints or not options.max_reader_lag_ms:
        return ()
    known = table.metadata.snapshots_by_id.keys()
    return tuple(checkpoint_positions(table.catalog.storage, options.checkpoints, known))


@takes(ExpireSnapshotsRequest, asks=JOB.asks)
def expire_snapshots(table: Table, request: ExpireSnapshotsRequest) -> ExpireSnapshotsResult:
    """Remove snapshots that no policy keeps, and delete the files that only they led to.

    What earlier runs left to be done is done too, as far as it is due.

    Args:
        spark: none is needed for small tables.
        older_than: a moment, or how long ago; the table's `history.expire.max-snapshot-age-ms` (5 days) if `None`.
        retain_last: how many snapshots a branch keeps whatever their age; `history.expire.min-snapshots-to-keep` if `None`.
        snapshot_ids: snapshots that go even where they would be retained.
        clean_expired_metadata: also remove schemas and partition specs that nothing uses any more.
        clean: which files go: `all`; `metadata`, all but data and delete files; or `none`. Nothing remembers what stays;
            `remove_orphan_files` finds it. Unless it is `all`, what earlier runs left to be done waits as well.
        max_concurrent_deletes: how many calls that delete run at once, at most; as many as there is work for if `None`.
        stream_results: as Iceberg's; lists of files are never held as a whole here.
        trash: how many days deleted files stay in `.icekeep/trash/`, from where `restore` brings them back; 0 deletes them at
            once. `None` is 3 on local disks and HDFS, 0 elsewhere.
        approve: the hash of a plan (`plan_expire_snapshots`): exactly that goes, or nothing; nor does what earlier runs left.
        trust_manifest_list: go on although a snapshot's summary counts other files than its manifest list.
        options: `deletion.options.ExpirationOptions`.
        saved: a plan that was written before (`apply_plan` reads it): exactly that goes, or nothing.

    Raises:
        SafetyError: the table has `gc.enabled=false`, another table has this very location or is this one, a writer needs one of
            `snapshot_ids`, the plan is not the approved one or not the saved one, or not everything that is retained can be
            read: nothing is deleted.
        UsageError: `snapshot_ids` names the head of a reference.
        UnsupportedError: the table is of a kind that cannot be expired yet.
        ConflictError: others kept changing the table, or what was to expire, however often it was planned again
            (`commit.retry.num-retries`); an approved plan never is.
        OutcomeUnknownError: the commit may or may not have landed; nothing is deleted.

    Spec: "Snapshot Retention Policy"; properties `history.expire.*`, `gc.enabled`.
    """
    refuse_if_gc_is_disabled(table)
    checked = _checked(table.metadata, request)
    spark, listener, saved = request.spark, request.listener, request.saved
    around = neighbours(table, roots=checked.roots, refuses_overlap=False, is_asked_daily=True, listener=listener)
    now_ms = safe_now_ms(table, table.runtime)
    change = request.change(table, checked, now_ms)
    reader = SparkManifestReader(spark, table.storage)
    approve = request.approve if saved is None else saved.head.approve
    run = DeletionRun.of(table, spark, request.deletion(checked, around, approve), listener, now_ms)
    earlier = PendingPlans()
    if saved is not None:
        earlier = finish_pending(run, plan_hash=approve or "")
        if earlier != PendingPlans():
            return result(table.metadata, Expired(frozenset(), frozenset()), None, earlier, around)
    expired = _expired(request, table.metadata, change, reader)
    draft = _draft(table, request, checked)
    done, swept_count = None, 0
    if expired.is_empty:
        run.refuse_other(ClassifiedGarbage(), draft, "nothing is expired")
    else:
        with run.leases:
            done = ExpirationRun(run, change, reader, draft, cleanup_level(request.clean)).expire(expired)
    if request.finishes_earlier:
        own = "" if done is None or done.plan is None else done.plan.directory
        try:
            earlier = finish_pending(run, but=own)
        except Exception as error:
            if done is None:
                raise
            earlier = not_finished(error, listener)
        swept_count = sweep_runs(table, table.runtime, keep="", listener=listener)
    whole = result(table.metadata, expired, done, earlier, around)
    return msgspec.structs.replace(whole, swept_files_count=swept_count)


@takes(ExpireSnapshotsRequest)
def plan_expire_snapshots(table: Table, request: ExpireSnapshotsRequest) -> ExpireSnapshotsPlan:
    """Say what `expire_snapshots` with the same arguments would do, and what each reference keeps alive; raises as it does.

    Nothing is written: plans of earlier runs stay as they are, and only our clock is asked what time it is.
    """
    return _foreseen(table, request).shown


@takes(ExpireSnapshotsRequest, "expire_snapshots")
def exact_expire_snapshots(table: Table, request: ExpireSnapshotsRequest) -> ExactPlan:
    """What `expire_snapshots` with the same arguments would do, with all files; raises as it does, and writes nothing."""
    return _foreseen(table, request)


def _expired(
    request: ExpireSnapshotsRequest, metadata: TableMetadata, change: ExpireSnapshots, reader: ManifestReader
) -> Expired:
    """What leaves the metadata, with a warning of what stays until somebody does something about it."""
    if request.saved is not None:
        return expired_as_saved(request.saved, metadata, lambda: change.expired(metadata, reader))
    expired = change.expired(metadata, reader)
    for position in change.policy.reader_positions:
        if position.began_id is not None and position.began_id in expired.snapshot_ids:
            request.listener.on(
                Warned(
                    f"the stream of checkpoint {position.name!r} began at snapshot {position.began_id}, which expires: with the "
                    "trigger availableNow Iceberg (up to 1.12) fails then, until the file below sources/*/offsets/0 is removed"
                )
            )
    for one in expired.readers:
        if one.status == UNREADABLE:
            request.listener.on(
                Warned(f"no snapshot expires: how far reader {one.name!r} has come is not known: {one.problem}")
            )
        elif one.status != WAITED_FOR:
            request.listener.on(Warned(f"nothing is kept for reader {one.name!r} ({one.source}): {one.problem}"))
    counts = Counter((kept.writer, kept.branch) for kept in expired.kept if kept.key == ADDED_VECTORS)
    for (writer, branch), count in counts.items():
        request.listener.on(
            Warned(
                f"snapshots that would have expired stay ({count}): {writer} writes deletion vectors to branch {branch!r}, and "
                "could commit none any more if the branch's history were cut (Iceberg Java up to 1.12 looks through all of it); "
                "--option keep-writer-progress=0 lets them go"
            )
        )
    return expired


def _foreseen(table: Table, request: ExpireSnapshotsRequest) -> ExactPlan:
    metadata, spark, listener = table.metadata, request.spark, request.listener
    refuse_if_gc_is_disabled(table)
    checked = _checked(metadata, request)
    around = neighbours(table, roots=checked.roots, refuses_overlap=False, is_asked_daily=True, listener=listener)
    now_ms = table.runtime.now_ms()
    change = request.change(table, checked, now_ms)
    expired = _expired(request, metadata, change, SparkManifestReader(spark, table.storage))
    after = metadata if expired.is_empty else after_expiration(table, expired, now_ms)
    approve = request.approve if request.saved is None else None
    run = DeletionRun.of(table, spark, request.deletion(checked, around, approve), listener, now_ms)
    draft = expiration_draft(_draft(table, request, checked), expired)
    garbage, found, refusal = None, ClassifiedGarbage(), "nothing would be expired"
    if expired.is_empty:
        run.refuse_other(found, draft, refusal)
    else:
        garbage, _ = garbage_between(metadata, run, cleanup_level(request.clean), after)
        found = run.classified(garbage, draft, refusal, REST_IS_ORPHANED)
    # The job asks for no such number, and goes on where manifests that stay cannot be read by it.
    holdings = or_warned(
        "what each reference keeps alive", lambda: ref_holdings(after, table.storage, spark), (), listener
    )
    plan = expiration_plan(
        metadata,
        expired,
        found,
        draft,
        found.hash(table, draft),
        untotalled_count=0 if garbage is None else garbage.untotalled_count,
        refs=holdings,
    )
    earlier, swept_count = PendingPlans(), 0
    if request.finishes_earlier:
        earlier = foreseen_pending(run.on(msgspec.structs.replace(table, metadata=after)))
        swept_count = sweep_runs(table, table.runtime, keep="", listener=listener, is_plan=True)
    plan = msgspec.structs.replace(
        plan,
        **earlier.counts,
        swept_files_count=swept_count,
        unlisted_reason=around.unlisted_reason,
        unreadable_tables=around.unreadable,
    )
    head = metadata.head(MAIN)
    files = () if garbage is None else deletion_lines(garbage, found, run.locations, table.storage)
    return ExactPlan(
        shown=plan,
        snapshot_id=None if head is None else head.snapshot_id,
        lines=chain(expired_lines(metadata, expired), files),
        approve=plan.hash,
        cost=deletion_cost(plan.deleted_files_count + plan.left_files_count),
    )


def _draft(table: Table, request: ExpireSnapshotsRequest, options: ExpirationOptions) -> PlanDraft:
    """What the plans of a run say, whatever expires."""
    days = trash_days(asked_trash_days(request.trash), parse_location(table.metadata.location).scheme)
    return PlanDraft(
        job=JOB.name,
        run="",
        grace_ms=options.grace_ms(compares_metadata=table.catalog.compares_metadata),
        trash_ms=days * DAY_MS,
        roots=named_roots(table, options.roots),
    )


@takes(ExpireSnapshotsRequest)
def check_arguments(metadata: TableMetadata, request: ExpireSnapshotsRequest) -> None:
    """Hold the arguments against the table, before anything is planned.

    Raises:
        UnsupportedError: the table is encrypted.
        OptionError: an argument has a value that it cannot take.
    """
    _checked(metadata, request)


def _checked(metadata: TableMetadata, request: ExpireSnapshotsRequest) -> ExpirationOptions:
    """The options of valid arguments."""
    refuse_encrypted(metadata, JOB.name)
    cleanup_level(request.clean)
    checked = checked_options(
        ExpirationOptions, request.options, request.max_concurrent_deletes, asked_trash_days(request.trash)
    )
    check_roots(checked.roots)
    return checked
