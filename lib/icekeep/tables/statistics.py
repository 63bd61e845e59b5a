"""Take statistics out of a table, for those who have no other engine; icekeep computes none."""

from icekeep.catalog.base import Table
from icekeep.commit.changes.change_statistics import DropStatistics
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError


def drop_statistics(table: Table, snapshot_id: int | None = None) -> Table:
    """Drop a snapshot's statistics and partition statistics and commit; returns the table after it.

    No file is deleted: what the metadata no longer names is found by `remove_orphan_files`. Where there are no statistics
    nothing is committed.

    Args:
        snapshot_id: whose statistics go; by default those of the current snapshot of `table`.

    Raises:
        NotFoundError: the table has no such snapshot, or none at all.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    chosen = table.metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    if chosen is None:
        raise NotFoundError(f"table {table.name!r} has no snapshot that could have statistics")
    return commit(table, DropStatistics(table.metadata.snapshot(chosen).snapshot_id)).table
