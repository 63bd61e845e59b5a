"""Which snapshots, references and files would go. What `--dry-run` shows; nothing is changed."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.snapshots import removals
from icekeep.errors import OptionError
from icekeep.maintenance.deletion.file_kinds import FilesOfKind
from icekeep.maintenance.deletion.garbage import Garbage, garbage_of
from icekeep.maintenance.deletion.plan_writing import ClassifiedGarbage, PlanDraft
from icekeep.maintenance.deletion.reachable import Seen, read_expired, read_reached, statistics_files
from icekeep.maintenance.expiration.holdings import RefHoldings
from icekeep.maintenance.expiration.old_metadata import old_metadata_files
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Expired, KeptForWriter
from icekeep.spec.updates import apply_updates, log_previous


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
    seen: Seen


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
