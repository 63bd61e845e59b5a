"""Which snapshots, references and files would go. What `--dry-run` shows; nothing is changed."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.maintenance.reachability import FileKind, Unreachable, unreachable
from icekeep.maintenance.reclaim import refuse_if_gc_is_disabled
from icekeep.planning.scan import refuse_encrypted
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Expired, RetentionPolicy, select_expired
from icekeep.spec.updates import RemoveSnapshotRef, RemoveSnapshots, Update, apply_updates


class ExpiredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that would go; `timestamp_ms` is epoch milliseconds."""

    snapshot_id: int
    timestamp_ms: int
    operation: str | None


class FilesOfKind(msgspec.Struct, frozen=True, kw_only=True):
    """Garbage of one kind; bytes are those that metadata records."""

    kind: FileKind
    files_count: int
    bytes: int


class ExpirationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run would remove from the metadata, and which files nothing would lead to any more."""

    snapshots_count: int
    retained_snapshots_count: int
    files_count: int
    outside_files_count: int
    ref_names: tuple[str, ...]
    snapshots: tuple[ExpiredSnapshot, ...]
    files_by_kind: tuple[FilesOfKind, ...]
    files: tuple[str, ...]


def plan_expire_snapshots(
    table: Table,
    spark: SparkSession,
    *,
    older_than: int | None = None,
    retain_last: int | None = None,
    snapshot_ids: Sequence[int] = (),
    clean_expired_metadata: bool = False,
    runtime: Runtime = SYSTEM,
) -> ExpirationPlan:
    """Say what `expire_snapshots` with the same arguments would do; raises as it does."""
    metadata = table.metadata
    refuse(metadata)
    now_ms = runtime.now_ms()
    expired = select_expired(metadata, retention_policy(older_than, retain_last, snapshot_ids), now_ms)
    return expiration_plan(metadata, expired, garbage_of(table, spark, expired, now_ms))


def refuse(metadata: TableMetadata) -> None:
    """Refuse a table that must not be expired, before anything is planned.

    Raises:
        SafetyError: the table has `gc.enabled=false`.
        UnsupportedError: the table is encrypted.
    """
    refuse_if_gc_is_disabled(metadata)
    refuse_encrypted(metadata, "expire_snapshots")


def retention_policy(older_than: int | None, retain_last: int | None, snapshot_ids: Sequence[int]) -> RetentionPolicy:
    """The arguments of the procedure as a policy."""
    return RetentionPolicy(older_than_ms=older_than, retain_last=retain_last, snapshot_ids=tuple(snapshot_ids))


def garbage_of(table: Table, spark: SparkSession, expired: Expired, now_ms: int) -> Unreachable:
    """The files that nothing would lead to if `expired` left the table as it was loaded."""
    updates: list[Update] = [RemoveSnapshotRef(name) for name in sorted(expired.ref_names)]
    updates.append(RemoveSnapshots(tuple(expired.snapshot_ids)))
    return unreachable(table, spark, table.metadata, apply_updates(table.metadata, updates, now_ms=now_ms))


def expiration_plan(metadata: TableMetadata, expired: Expired, garbage: Unreachable) -> ExpirationPlan:
    """What is removed, for people and machines."""
    counts: Counter[FileKind] = Counter(f.kind for f in garbage.files)
    sizes: Counter[FileKind] = Counter()
    for file in garbage.files:
        sizes[file.kind] += file.size_bytes or 0
    return ExpirationPlan(
        snapshots_count=len(expired.snapshot_ids),
        retained_snapshots_count=len(metadata.snapshots) - len(expired.snapshot_ids),
        files_count=len(garbage.files),
        outside_files_count=len(garbage.outside),
        ref_names=tuple(sorted(expired.ref_names)),
        snapshots=tuple(
            ExpiredSnapshot(snapshot_id=s.snapshot_id, timestamp_ms=s.timestamp_ms, operation=s.operation)
            for s in metadata.snapshots
            if s.snapshot_id in expired.snapshot_ids
        ),
        files_by_kind=tuple(FilesOfKind(kind=k, files_count=counts[k], bytes=sizes[k]) for k in FileKind if counts[k]),
        files=tuple(f.location for f in garbage.files),
    )
