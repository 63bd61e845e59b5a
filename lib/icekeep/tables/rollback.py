"""Make another snapshot the current one, or publish one that was staged, for those who have no other engine."""

from icekeep.catalog.base import Table
from icekeep.commit.changes.cherry_pick import STAGED_WAP_ID, CherryPick
from icekeep.commit.changes.set_current_snapshot import RollbackToSnapshot, SetCurrentSnapshot
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, UsageError, argument
from icekeep.planning.spark.limits import LIMITS, Limits
from icekeep.planning.spark.source import Engine
from icekeep.planning.transcode.commit_reader import SparkManifestReader
from icekeep.spec.refs import is_ancestor, newest_ancestor_before
from icekeep.spec.times import Moment, format_time, moment_ms

_BEFORE_SPARK = Limits(
    commit_entries_count=LIMITS.entries_count, commit_manifests_count=10 * LIMITS.commit_manifests_count
)
"""Where no session runs, as here, this many entries and manifests are read before one has started."""


def rollback_to_snapshot(table: Table, snapshot_id: int) -> Table:
    """Make an ancestor of the current snapshot current, and commit; returns the table after it.

    No file is deleted, and the snapshots that leave the history stay until they expire.

    Raises:
        UsageError: the snapshot is not an ancestor of the current one.
        NotFoundError: the table has no such snapshot.
        ConflictError: others have committed to `main` since `table` was loaded; further as `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    change = RollbackToSnapshot(snapshot_id=snapshot_id, expected_id=table.metadata.current_snapshot_id)
    return commit(table, change).table


def rollback_to_timestamp(table: Table, timestamp: Moment) -> Table:
    """Make the newest ancestor of the current snapshot that is older than a moment current, as `rollback_to_snapshot` does.

    Args:
        timestamp: the moment, or how long ago.

    Raises:
        NotFoundError: no ancestor is older.
        ConflictError, OutcomeUnknownError: as `rollback_to_snapshot` raises them.
    """
    before_ms = moment_ms(timestamp, table.runtime.now_ms())
    snapshot = newest_ancestor_before(table.metadata, before_ms)
    if snapshot is None:
        raise NotFoundError(
            f"the history of table {table.name!r} has no snapshot that is older than {format_time(before_ms)}; "
            "`icekeep history --table NAME` lists its snapshots"
        )
    return rollback_to_snapshot(table, snapshot.snapshot_id)


def set_current_snapshot(table: Table, snapshot_id: int | None = None, *, ref: str | None = None) -> Table:
    """Make any snapshot of the table current, and commit; returns the table after it.

    Args:
        snapshot_id: the snapshot.
        ref: in its place, a branch or tag that names it in `table`.

    Raises:
        UsageError: both are given, or neither.
        NotFoundError: the table has no such snapshot, branch or tag.
        ConflictError: others have committed to `main` since `table` was loaded; further as `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    if (snapshot_id is None) is (ref is None):
        raise UsageError(f"give either a {argument('snapshot_id')} or a ref")
    if ref is not None:
        snapshot = table.metadata.head(ref)
        if snapshot is None:
            raise NotFoundError(f"table {table.name!r} has no snapshot on {ref!r} yet", ref=ref)
        snapshot_id = snapshot.snapshot_id
    assert snapshot_id is not None
    change = SetCurrentSnapshot(snapshot_id=snapshot_id, expected_id=table.metadata.current_snapshot_id)
    return commit(table, change).table


def cherrypick_snapshot(table: Table, snapshot_id: int) -> Table:
    """Publish on `main` a snapshot that was staged, or is on a branch, and commit; returns the table after it.

    If `main` is at the snapshot's parent, the snapshot itself becomes current. Otherwise an append or a dynamic overwrite
    is made again as a new snapshot, whatever others commit meanwhile.

    Raises:
        UsageError: the snapshot or its `wap.id` was published already, it is of another kind and not next to `main`, or it
            overwrites partitions that have changed since it was written.
        NotFoundError: the table has no such snapshot.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    if is_ancestor(table.metadata, snapshot_id, of=table.metadata.current_snapshot_id):
        raise UsageError(f"cannot cherry-pick snapshot {snapshot_id}: it is in the history of main already")
    reader = SparkManifestReader(Engine(limits=_BEFORE_SPARK), table.storage)
    return commit(table, CherryPick(snapshot_id), reader=reader).table


def publish_changes(table: Table, wap_id: str) -> Table:
    """Publish the snapshot that was staged with this `wap.id`, as `cherrypick_snapshot` does.

    Raises:
        NotFoundError: no snapshot was staged with it.
        UsageError: several were, or as `cherrypick_snapshot` raises it.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    staged = [s.snapshot_id for s in table.metadata.snapshots if (s.summary or {}).get(STAGED_WAP_ID) == wap_id]
    if not staged:
        raise NotFoundError(f"table {table.name!r} has no snapshot with the {STAGED_WAP_ID} {wap_id!r}")
    if len(staged) > 1:
        raise UsageError(
            f"snapshots {', '.join(map(str, staged))} of table {table.name!r} all have the {STAGED_WAP_ID} {wap_id!r}; "
            "publish one by its id, with `icekeep ref publish --snapshot-id`"
        )
    return cherrypick_snapshot(table, staged[0])
