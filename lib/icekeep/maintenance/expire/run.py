"""Metadata files that an expiration takes along: those that fell out of the metadata log with it, and are old.

Which snapshots, references and files would go. What `--dry-run` shows; nothing is changed.

Expire, then collect: a plan on disk, the commit, a proof on what is true after it, and only then deletion.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from functools import partial

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.filesystem import VERSION_AGE_KEPT_MS, VERSIONS_KEPT
from icekeep.catalog.metadata_files import deletes_old_metadata, file_version, left_the_log
from icekeep.commit.changes.snapshots import ExpireSnapshots, removals
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import (
    ClaimedError,
    IcekeepError,
    MissingFileError,
    OptionError,
    OutcomeUnknownError,
    SafetyError,
    reason_of,
)
from icekeep.events import Listener, StepFinished, StepStarted, Warned
from icekeep.maintenance.delete.execute import Reclaimed, reclaim
from icekeep.maintenance.delete.garbage import Garbage, garbage_of, tell_kept
from icekeep.maintenance.delete.kept import GivenDeletion, LookBesideOthers, kept_by_others
from icekeep.maintenance.delete.lease import PlanLease, new_claim, released
from icekeep.maintenance.delete.locations import Territory
from icekeep.maintenance.delete.pending import DeletionRequest, settle_plan, settled
from icekeep.maintenance.delete.plan_file import (
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    classify_garbage,
    forget_plan,
    plan_directory,
    refuse_unapproved,
    remove_draft,
    tell_outside,
    tell_unread,
    write_plan,
)
from icekeep.maintenance.delete.reachable import (
    FilesOfKind,
    ReachableLists,
    TableLook,
    read_expired,
    read_reached,
    statistics_files,
)
from icekeep.maintenance.expire import JOB
from icekeep.maintenance.expire.holdings import RefHoldings
from icekeep.maintenance.rewrite.run import retry_with_replan, run_name
from icekeep.maintenance.saved_plans import AlreadyApplied
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.retention import Expired, KeptForWriter, select_expired
from icekeep.spec.updates import apply_updates, log_previous
from icekeep.spelling import counted
from icekeep.storage.locations import canonical


def old_metadata_files(
    before: TableMetadata, after: TableMetadata, after_location: str, now_ms: int
) -> tuple[str, ...]:
    """Metadata files in the log of `before` and not in that of `after`.

    Younger ones than three days stay, as for orphan removal. So do the newest hundred where the number in a name is all
    that tells versions apart: a slow writer might make such a version a second time, and believe that it committed.

    Where `write.metadata.delete-after-commit.enabled` is set the commit itself deletes them.
    """
    if deletes_old_metadata(after):
        return ()
    newest = file_version(after_location)

    def may_go(location: str, timestamp_ms: int) -> bool:
        name = location.rsplit("/", 1)[-1]
        is_found_by_number = name.startswith("v") and file_version(location) > newest - VERSIONS_KEPT
        return timestamp_ms <= now_ms - VERSION_AGE_KEPT_MS and not is_found_by_number

    left = left_the_log(before, after, after_location)
    return tuple(entry.metadata_file for entry in left if may_go(entry.metadata_file, entry.timestamp_ms))


class CleanupLevel(StrEnum):
    """Which files of expired snapshots go, as Java's `CleanupLevel`: none, all but data and delete files, or all."""

    NONE = "none"
    METADATA = "metadata"
    ALL = "all"


def cleanup_level(text: str) -> CleanupLevel:
    """The level of a name, in whatever case; raises `OptionError` where there is no such level."""
    name = text.strip().lower()
    if name not in [*CleanupLevel]:
        raise OptionError("clean", given=text, expected="none, metadata or all")
    return CleanupLevel(name)


class ExpiredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that would go; `timestamp_ms` is epoch milliseconds."""

    snapshot_id: int
    timestamp_ms: int
    operation: str | None


class ExpireSnapshotsPlan(Rendered, frozen=True, kw_only=True):
    """What one run would remove from the metadata, and which files nothing would lead to any more.

    Attributes:
        deleted_files_count: files that would be deleted, or go to the trash; 0 where they wait for a grace.
        deleted_bytes_count: their size, as far as sizes are known; manifest lists are not counted.
        left_files_count: files that a later run deletes, after the grace.
        kept_outside_files_count: files that would go, were they not outside the table's places.
        files_by_kind: all that goes, in this run or after the grace.
        files: the locations of the first thousand.
        refs: what each reference keeps alive after it; empty where that is not known.
        kept_for_writers: snapshots that stay only because a writer's progress is in them or before them.
        unreadable_files: files of expired snapshots that cannot be read; what only they lead to stays.
        hash: what `--approve` takes for exactly this.
        finished_files_count: files of unfinished plans of earlier runs, which this run would delete as well. `hash` covers
            nothing that earlier runs left, and a run with `approve` leaves it alone.
        emptied_trash_files_count: files in the trash whose days there are over, which would be deleted for good.
        kept_again_files_count: files that plans of earlier runs were to delete, and that are in use again or kept by another
            plan.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        unlisted_reason: why the catalog does not know where other tables are; empty if it does.
    """

    expired_snapshots_count: int
    retained_snapshots_count: int
    removed_schemas_count: int
    removed_specs_count: int
    deleted_files_count: int
    deleted_bytes_count: int
    is_in_trash: bool
    left_files_count: int
    kept_outside_files_count: int
    untotalled_snapshots_count: int
    expired_ref_names: tuple[str, ...]
    snapshots: tuple[ExpiredSnapshot, ...]
    files_by_kind: tuple[FilesOfKind, ...]
    refs: tuple[RefHoldings, ...]
    kept_for_writers: tuple[KeptForWriter, ...]
    unreadable_files: tuple[str, ...]
    files: tuple[str, ...]
    hash: str
    finished_files_count: int = 0
    emptied_trash_files_count: int = 0
    kept_again_files_count: int = 0
    swept_files_count: int = 0
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()


REST_IS_ORPHANED = "no later expiration finds it, but `icekeep remove_orphan_files` does"
"""What to do about files to which only unreadable files of expired snapshots lead."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What an expiration makes garbage, and what was read of what is retained to prove it."""

    garbage: Garbage
    seen: ReachableLists


def garbage_between(  # noqa: PLR0913 - what a run is asked for
    before: TableMetadata,
    after: Table,
    spark: SparkSource,
    now_ms: int,
    *,
    trust_manifest_list: bool,
    roots: Sequence[str],
    clean: CleanupLevel = CleanupLevel.ALL,
    after_metadata: TableMetadata | None = None,
) -> Found:
    """What the snapshots of `before` lead to that are gone, and nothing that is there after.

    Args:
        after: the table, the newest that is known.
        roots: directories of files that may go (`Territory.roots`).
        clean: what it leaves is no garbage of this run.
        after_metadata: what its metadata will be, where it has not come to that yet.

    Raises:
        SafetyError: not everything that is retained can be read.
    """
    storage = after.storage
    metadata = after.metadata if after_metadata is None else after_metadata
    retained = read_reached(
        metadata, after.metadata_location, storage, spark, trust_manifest_list=trust_manifest_list, roots=roots
    )
    expired = read_expired(
        before,
        [snapshot for snapshot in before.snapshots if snapshot.snapshot_id not in metadata.snapshots_by_id],
        storage,
        spark,
        statistics=statistics_files(before),
        metadata_files=old_metadata_files(before, metadata, after.metadata_location, now_ms),
        retained=retained.seen,
    )
    return Found(garbage=_at_level(garbage_of(expired, retained, spark), clean), seen=retained.seen)


def _at_level(garbage: Garbage, clean: CleanupLevel) -> Garbage:
    """The part of the garbage that is to go."""
    if clean is CleanupLevel.ALL:
        return garbage
    if clean is CleanupLevel.METADATA:
        return msgspec.structs.replace(garbage, content=None)
    return msgspec.structs.replace(garbage, content=None, named=garbage.named.slice(0, 0), unreadable=())


def after_expiration(table: Table, expired: Expired, now_ms: int) -> TableMetadata:
    """The metadata that would follow if `expired` left the table as it is."""
    metadata = table.metadata
    after = apply_updates(metadata, removals(expired), now_ms=now_ms)
    return log_previous(after, table.metadata_location, metadata.last_updated_ms)


def expiration_draft(draft: PlanDraft, expired: Expired, run: str = "") -> PlanDraft:
    """What a plan says beside its files, of what expires."""
    return msgspec.structs.replace(
        draft,
        run=run,
        snapshot_ids=tuple(sorted(expired.snapshot_ids)),
        ref_names=tuple(sorted(expired.ref_names)),
        schema_ids=tuple(sorted(expired.schema_ids)),
        spec_ids=tuple(sorted(expired.spec_ids)),
        keeps_before=bool(expired.snapshot_ids),
    )


def expiration_plan(
    metadata: TableMetadata,
    expired: Expired,
    found: ClassifiedGarbage,
    untotalled_count: int,
    refs: tuple[RefHoldings, ...],
    draft: PlanDraft,
    plan_hash: str,
) -> ExpireSnapshotsPlan:
    """What is removed, for people and machines."""
    files_count = sum(f.files_count for f in found.files)
    goes_now = not draft.grace_ms
    return ExpireSnapshotsPlan(
        expired_snapshots_count=len(expired.snapshot_ids),
        retained_snapshots_count=len(metadata.snapshots) - len(expired.snapshot_ids),
        removed_schemas_count=len(expired.schema_ids),
        removed_specs_count=len(expired.spec_ids),
        deleted_files_count=files_count if goes_now else 0,
        deleted_bytes_count=sum(f.bytes for f in found.files) if goes_now else 0,
        is_in_trash=bool(draft.trash_ms and files_count and goes_now),
        left_files_count=0 if goes_now else files_count,
        kept_outside_files_count=found.outside_count,
        untotalled_snapshots_count=untotalled_count,
        expired_ref_names=tuple(sorted(expired.ref_names)),
        snapshots=tuple(
            ExpiredSnapshot(snapshot_id=s.snapshot_id, timestamp_ms=s.timestamp_ms, operation=s.operation)
            for s in metadata.snapshots
            if s.snapshot_id in expired.snapshot_ids
        ),
        files_by_kind=found.files,
        refs=refs,
        kept_for_writers=expired.kept,
        unreadable_files=found.unreadable,
        files=found.sample,
        hash=plan_hash,
    )


_FINDING = "finding files that only expired snapshots lead to"


class ExpirationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked for, worked out; `draft` is what each of its plans says, whatever expires."""

    deletion: DeletionRequest
    territory: Territory
    approve: str | None
    draft: PlanDraft
    now_ms: int
    began_ms: int
    given: GivenDeletion | None = None
    clean: CleanupLevel = CleanupLevel.ALL

    def waiting(self, draft: PlanDraft, runtime: Runtime) -> PlanDraft:
        """A draft whose times count from now, when its proof is made and the commit follows, not from the begin of the run."""
        return draft.at(self.now_ms + runtime.monotonic_ms() - self.began_ms)


class Expiration(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        snapshots_count, retained_count: how many snapshots are gone, and how many are left.
        ref_names: which branches and tags are gone.
        schemas_count, specs_count: how many schemas and partition specs are gone.
        found: the garbage that it made.
        plan: what was, or will be, deleted; `None` where there was nothing.
        reclaimed: what became of it; `None` where it is left to a later run.
        kept_reason: why it is left, empty if that is for the grace only.
        is_cut_off: whether it is left although it should have been carried out.
    """

    snapshots_count: int
    retained_count: int
    ref_names: tuple[str, ...]
    schemas_count: int
    specs_count: int
    found: ClassifiedGarbage
    untotalled_count: int
    plan: DeletionPlan | None
    reclaimed: Reclaimed | None = None
    kept_reason: str = ""
    is_cut_off: bool = False


class _Planned(msgspec.Struct, frozen=True):
    """A plan on disk with the claim on it, both `None` where there is no garbage, and what its proof was made of.

    `table` is what it was planned on.
    """

    table: Table
    found: ClassifiedGarbage
    draft: PlanDraft
    plan: DeletionPlan | None
    claim: PlanLease | None
    seen: ReachableLists
    untotalled_count: int


def expire_and_reclaim(  # noqa: PLR0913 - the parts of one run
    table: Table,
    spark: SparkSource,
    change: ExpireSnapshots,
    expired: Expired,
    reader: ManifestReader,
    request: ExpirationRequest,
    listener: Listener,
    runtime: Runtime,
) -> Expiration | None:
    """Commit the expiration and delete what it made unreachable; `None` if another run had expired it all already.

    The plan is written before the commit, so that a crash between commit and deletion leaves a list of what was to go.
    After the commit nothing is raised any more: what stands in the way of the deletion is the reason why the plan is left.
    Where others make references to what is to go it is planned anew, unless the plan is an approved one: that, or nothing.

    Raises:
        SafetyError: the plan is not the approved one; nothing was changed.
        ConflictError: others kept making references to what was to go, or changing the table.
    """
    with ExitStack() as claims:
        return _expired(table, spark, change, expired, reader, request, claims, listener, runtime)


def _expired(  # noqa: PLR0913 - the parts of one run
    table: Table,
    spark: SparkSource,
    change: ExpireSnapshots,
    expired: Expired,
    reader: ManifestReader,
    request: ExpirationRequest,
    claims: ExitStack,
    listener: Listener,
    runtime: Runtime,
) -> Expiration | None:
    def planned_and_committed(now: Table, number: int) -> tuple[_Planned, CommitResult] | None:
        reading = reader.with_storage(now.storage)
        chosen = expired if number == 1 else change.expired(now.metadata, reading)
        if number > 1 and chosen.is_empty:
            return None
        listener.on(StepStarted(_FINDING))
        planned = _planned(now, spark, chosen, request, claims, listener, number)
        listener.on(StepFinished(_FINDING, counted(sum(f.files_count for f in planned.found.files), "files")))
        try:
            # What is on disk before the commit is what goes with it.
            committed = commit(
                now,
                msgspec.structs.replace(change, expected=chosen),
                reader=reading,
                runtime=runtime,
                listener=listener,
                undo=partial(_forget_unless_landed, planned.plan, now),
            )
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            _forget_unless_landed(planned.plan, now)
            raise
        if not committed.changed:
            _forget_unless_landed(planned.plan, now)
            return None
        return planned, committed

    if request.approve is not None:
        done = planned_and_committed(table, 1)
    else:
        done = retry_with_replan(table, planned_and_committed, what=lambda: "snapshots that expire", listener=listener)
    if done is None:
        return None
    planned, committed = done
    try:
        return _reclaimed(spark, change, committed, planned, request, claims, listener, runtime)
    except Exception as error:  # noqa: BLE001 - whatever it was, "nothing was changed" would be wrong now; the next run goes on
        where = "" if planned.plan is None else f"; what was to go with them is listed in {planned.plan.directory!r}"
        reason = f"the snapshots are expired, and not all of their files are deleted: {reason_of(error)}{where}"
        listener.on(Warned(reason))
        return _expiration(
            committed.base.metadata, committed, planned, planned.plan, kept_reason=reason, is_cut_off=True
        )


def _planned(
    table: Table,
    spark: SparkSource,
    expired: Expired,
    request: ExpirationRequest,
    claims: ExitStack,
    listener: Listener,
    number: int,
) -> _Planned:
    """Write the run's `number`th plan, of what the table, as it was loaded, would make garbage; approved, if that is asked."""
    metadata, runtime = table.metadata, table.runtime
    draft = expiration_draft(request.draft, expired, run_name(table, number)).at(request.now_ms)
    after = after_expiration(table, expired, request.now_ms)
    return _written(metadata, table, spark, draft, request, claims, listener, runtime, after_metadata=after)


def _written(  # noqa: PLR0913 - the parts of one run
    before: TableMetadata,
    table: Table,
    spark: SparkSource,
    draft: PlanDraft,
    request: ExpirationRequest,
    claims: ExitStack,
    listener: Listener,
    runtime: Runtime,
    *,
    after_metadata: TableMetadata | None = None,
) -> _Planned:
    """The plan of what went, or will go, between some metadata and the table; approved, where that is asked before it goes."""
    made = garbage_between(
        before,
        table,
        spark,
        request.now_ms,
        trust_manifest_list=request.deletion.trust_manifest_list,
        roots=request.territory.roots,
        clean=request.clean,
        after_metadata=after_metadata,
    )
    tell_kept(made.garbage, listener)
    directory = plan_directory(table, draft)
    given = request.given
    only = None if given is None else given.files
    try:
        found = classify_garbage(made.garbage, request.territory, directory, table.storage, only)
        tell_outside(found, table, listener)
        tell_unread(found, REST_IS_ORPHANED, listener)
        if after_metadata is not None:
            if given is not None:
                given.hold(found, table)
            refuse_unapproved(request.approve, found.hash(table, draft), "nothing is expired")
    except (IcekeepError, AlreadyApplied):
        remove_draft(directory, table.storage)
        raise
    plan = claim = None
    if found.parts:
        claim = claims.enter_context(
            released(new_claim(directory, JOB.name, table.storage, runtime), table.storage, runtime)
        )
        draft = request.waiting(draft, runtime)
        plan = write_plan(found, draft, table, runtime, base=msgspec.structs.replace(table, metadata=before))
    return _Planned(table, found, draft, plan, claim, made.seen, made.garbage.untotalled_count)


def _reclaimed(  # noqa: PLR0913 - the parts of one run
    spark: SparkSource,
    change: ExpireSnapshots,
    committed: CommitResult,
    planned: _Planned,
    request: ExpirationRequest,
    claims: ExitStack,
    listener: Listener,
    runtime: Runtime,
) -> Expiration:
    """Delete what is garbage by the metadata that was really replaced and the one that is current now.

    The plan's proof holds if nobody committed since it was made; otherwise it is made anew, since what others added may
    name a file again.
    """
    latest = planned.table.catalog.load(planned.table.identifier)
    before = _predecessor(committed, change, latest)
    gone = before.snapshots_by_id.keys() - latest.metadata.snapshots_by_id.keys()
    old = planned
    if not _nobody_else(planned.table, committed, latest):
        draft = msgspec.structs.replace(old.draft, run=f"{old.draft.run}-anew", snapshot_ids=tuple(sorted(gone)))
        planned = _written(before, latest, spark, draft, request, claims, listener, runtime)
        if request.approve is not None and not _is_same(planned.found, old.found):
            listener.on(
                Warned("others changed the table, and what is garbage now is not what was approved: no file is deleted")
            )
            _forget(planned.plan, latest)
            reason = "what is garbage now is not what was approved; the next run deletes it"
            return _expiration(before, committed, planned, old.plan, kept_reason=reason)
        if old.claim is not None:
            try:
                old.claim.check(latest.storage, runtime)
            except ClaimedError:
                # Another run is at the first plan, and what it moves comes back by that alone.
                _forget(planned.plan, latest)
                raise
        _forget(old.plan, latest)
    plan, claim = planned.plan, planned.claim
    reclaimed = None
    if plan is not None and claim is not None and not request.draft.grace_ms:
        kept = kept_by_others(plan, latest, request.now_ms, skips_trash=request.deletion.skips_trash)
        if kept.reason:
            return _expiration(before, committed, planned, plan, kept_reason=kept.reason)
        look = TableLook(
            latest,
            planned.seen,
            spark,
            trust_manifest_list=request.deletion.trust_manifest_list,
            roots=request.territory.roots,
        )
        reclaimed = reclaim(
            plan,
            claim,
            LookBesideOthers(look, plan, latest, kept.files, request.now_ms, skips_trash=request.deletion.skips_trash),
            latest,
            request.territory,
            spark,
            options=request.deletion.options,
            max_concurrent_deletes=request.deletion.max_concurrent_deletes,
            listener=listener,
            runtime=runtime,
        )
        settle = partial(settle_plan, plan, claim, reclaimed, latest, runtime, listener)
        reclaimed = settled(settle, plan, reclaimed, listener)
    return _expiration(before, committed, planned, plan, reclaimed)


def _expiration(
    before: TableMetadata,
    committed: CommitResult,
    planned: _Planned,
    plan: DeletionPlan | None,
    reclaimed: Reclaimed | None = None,
    kept_reason: str = "",
    *,
    is_cut_off: bool = False,
) -> Expiration:
    after = committed.table.metadata
    return Expiration(
        snapshots_count=len(before.snapshots_by_id.keys() - after.snapshots_by_id.keys()),
        retained_count=len(after.snapshots),
        ref_names=tuple(sorted(before.refs.keys() - after.refs.keys())),
        schemas_count=len(before.schemas_by_id.keys() - after.schemas_by_id.keys()),
        specs_count=len(before.specs_by_id.keys() - after.specs_by_id.keys()),
        found=planned.found,
        untotalled_count=planned.untotalled_count,
        plan=plan,
        reclaimed=reclaimed,
        kept_reason=kept_reason or ("" if reclaimed is None else reclaimed.stopped),
        is_cut_off=is_cut_off or (reclaimed is not None and bool(reclaimed.stopped)),
    )


def _is_same(found: ClassifiedGarbage, other: ClassifiedGarbage) -> bool:
    return sum(int(p.digest, 16) for p in found.parts) == sum(int(p.digest, 16) for p in other.parts)


def _nobody_else(table: Table, committed: CommitResult, latest: Table) -> bool:
    """Whether the commit replaced the very table that was planned for, and nobody committed after it."""
    predecessors = [entry.metadata_file for entry in latest.metadata.metadata_log[-1:]]
    return (
        committed.base.metadata_location == table.metadata_location
        and latest.metadata_location == committed.table.metadata_location
        and [canonical(location) for location in predecessors] == [canonical(table.metadata_location)]
    )


def _predecessor(committed: CommitResult, change: ExpireSnapshots, latest: Table) -> TableMetadata:
    """The metadata that the commit really replaced, and the policy proved again on it.

    A catalog that applies updates to whatever is current may have applied them to another base than ours, in which the
    policy would have kept more.

    Raises:
        SafetyError: it would have, or it cannot be told.
    """
    base, after = committed.base, committed.table
    if base.catalog.compares_metadata:
        return base.metadata
    log = [entry.metadata_file for entry in after.metadata.metadata_log]
    if not log or canonical(log[-1]) == canonical(base.metadata_location):
        return base.metadata
    try:
        replaced = parse_metadata(latest.storage.read(log[-1]), log[-1])
    except MissingFileError as error:
        raise SafetyError(
            f"nothing is deleted: the metadata that the commit replaced, {log[-1]!r}, is not there any more, so that it cannot "
            "be proved what the policy keeps of it"
        ) from error
    gone = replaced.snapshots_by_id.keys() - after.metadata.snapshots_by_id.keys()
    lost = gone - select_expired(replaced, change.policy, change.now_ms).snapshot_ids
    if lost:
        raise SafetyError(
            f"nothing is deleted: others changed the table at the same time, and snapshots {', '.join(map(str, sorted(lost)))} "
            f"went that the policy keeps in {log[-1]!r}",
            snapshot_ids=sorted(lost),
        )
    return replaced


def _forget_unless_landed(plan: DeletionPlan | None, table: Table) -> None:
    """Forget a plan that was not committed; one whose snapshots are gone stays, for it may be the only word of its files.

    Nothing is raised: an error here would hide what became of the commit, and a later run forgets the plan.
    """
    if plan is None:
        return
    with suppress(Exception):
        latest = table.catalog.load(table.identifier)
        if latest.metadata.snapshots_by_id.keys() >= set(plan.snapshot_ids):
            forget_plan(plan, latest.storage)


def _forget(plan: DeletionPlan | None, table: Table) -> None:
    if plan is not None:
        forget_plan(plan, table.storage)
