"""What was current when: the rows of Iceberg's metadata table `history`."""

from datetime import UTC, datetime, timedelta

import msgspec

from icekeep.spec.metadata import TableMetadata

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """From `made_current_at` (UTC) on a snapshot was the current one.

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
    entries = []
    for entry in metadata.snapshot_log:
        snapshot = metadata.snapshots_by_id.get(entry.snapshot_id)
        entries.append(
            HistoryEntry(
                made_current_at=_EPOCH + timedelta(milliseconds=entry.timestamp_ms),
                snapshot_id=entry.snapshot_id,
                parent_id=None if snapshot is None else snapshot.parent_snapshot_id,
                is_current_ancestor=entry.snapshot_id in ancestors,
            )
        )
    return tuple(entries)
