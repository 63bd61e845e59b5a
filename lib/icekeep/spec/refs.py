"""Rules of branches and tags, their ancestors, and the history of `main` (spec, "Snapshot References")."""

from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from icekeep.errors import OptionError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.types import MAX_INT, MAX_LONG

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREATEST = {"min_snapshots_to_keep": MAX_INT, "max_snapshot_age_ms": MAX_LONG, "max_ref_age_ms": MAX_LONG}
_BRANCH_LIMITS = ("min_snapshots_to_keep", "max_snapshot_age_ms")


def validated_ref(name: str, ref: SnapshotRef) -> SnapshotRef:
    """Return the reference if the spec allows it under this name.

    Raises:
        UsageError: the name is blank, `main` would be a tag, or a tag has a limit that only branches have.
        OptionError: a limit is not a positive number of its type.
    """
    if not name.strip():
        raise UsageError(f"{name!r} cannot be the name of a {ref.type}")
    if name == MAIN and not ref.is_branch:
        raise UsageError("main is a branch; it cannot become a tag")
    for limit, greatest in _GREATEST.items():
        given = getattr(ref, limit)
        if given is None:
            continue
        if limit in _BRANCH_LIMITS and not ref.is_branch:
            raise UsageError(f"{name!r} is a tag; only a branch can have {limit.replace('_', '-')}")
        if not 1 <= given <= greatest:
            raise OptionError(limit, given=given, expected=f"a whole number from 1 to {greatest}")
    return ref


def moved(ref: SnapshotRef | None, snapshot_id: int) -> SnapshotRef:
    """A reference at another snapshot with the same retention; a new branch if there was none."""
    return SnapshotRef(snapshot_id=snapshot_id, type="branch") if ref is None else replace(ref, snapshot_id=snapshot_id)


def is_ancestor(metadata: TableMetadata, snapshot_id: int, *, of: int | None) -> bool:
    """Whether a snapshot is `of` itself, or one of its ancestors as far as the table still has them."""
    return any(ancestor.snapshot_id == snapshot_id for ancestor in metadata.ancestors(of))


def newest_ancestor_before(metadata: TableMetadata, timestamp_ms: int) -> Snapshot | None:
    """The newest snapshot of `main`'s history that is older than a moment (epoch ms)."""
    older = (s for s in metadata.ancestors(metadata.current_snapshot_id) if s.timestamp_ms < timestamp_ms)
    return max(older, key=lambda snapshot: snapshot.timestamp_ms, default=None)


def has_been_current_since(metadata: TableMetadata, snapshot_id: int, former_id: int | None) -> bool:
    """Whether a snapshot is current, or was by the snapshot log at some time after `former_id` last was."""
    ids = [entry.snapshot_id for entry in metadata.snapshot_log]
    since = len(ids) - ids[::-1].index(former_id) if former_id in ids else len(ids) if former_id is not None else 0
    return metadata.current_snapshot_id == snapshot_id or snapshot_id in ids[since:]


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """From `made_current_at` (UTC) on a snapshot was the current one; a row of Iceberg's metadata table `history`.

    Attributes:
        parent_id: the snapshot that it was made from; `None` for a first one, and where the snapshot has expired.
        is_current_ancestor: whether the table as it is now comes from it, or it is the current one itself.
    """

    made_current_at: datetime
    snapshot_id: int
    parent_id: int | None
    is_current_ancestor: bool


def history(metadata: TableMetadata) -> tuple[HistoryEntry, ...]:
    """The table's `snapshot-log`, the oldest first."""
    ancestors = {snapshot.snapshot_id for snapshot in metadata.ancestors(metadata.current_snapshot_id)}
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    return tuple(
        HistoryEntry(
            made_current_at=_EPOCH + timedelta(milliseconds=entry.timestamp_ms),
            snapshot_id=entry.snapshot_id,
            parent_id=parents.get(entry.snapshot_id),
            is_current_ancestor=entry.snapshot_id in ancestors,
        )
        for entry in metadata.snapshot_log
    )
