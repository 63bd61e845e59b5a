"""Make another snapshot the current one: what a rollback, and its undoing, commit.

Both take snapshots out of the history of `main`. So they hold where `main` was seen when they were decided, and are a
conflict as soon as it is elsewhere: what another writer committed meanwhile is never undone unseen.
"""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.errors import ConflictError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.refs import has_been_current_since, is_ancestor, moved
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import SetSnapshotRef, Update


class SetCurrentSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Any snapshot of the table, to take the place of the one that was seen as current; `None`: the table was empty."""

    snapshot_id: int
    expected_id: int | None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if _is_done(base, self.snapshot_id, self.expected_id):
            return ()
        return _main_at(base, self.snapshot_id)


class RollbackToSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An ancestor of the snapshot that was seen as current, to take its place."""

    snapshot_id: int
    expected_id: int | None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if _is_done(base, self.snapshot_id, self.expected_id):
            return ()
        base.snapshot(self.snapshot_id)
        if not is_ancestor(base, self.snapshot_id, of=self.expected_id):
            raise UsageError(
                f"cannot roll back to snapshot {self.snapshot_id}: it is not an ancestor of the current snapshot "
                f"{self.expected_id}; `icekeep rollback --set-current`, in Python set_current_snapshot, takes any snapshot"
            )
        return _main_at(base, self.snapshot_id)


def _is_done(base: TableMetadata, snapshot_id: int, expected_id: int | None) -> bool:
    """Whether `main` has been at the snapshot since it was where it was seen; raises `ConflictError` if it is elsewhere.

    Others may have gone on from there before a lost answer of ours is looked into: then too there is nothing left to do.
    """
    if has_been_current_since(base, snapshot_id, expected_id):
        return True
    if base.current_snapshot_id != expected_id:
        raise ConflictError(
            f"main was moved from snapshot {expected_id} to {base.current_snapshot_id} meanwhile; look at what is there "
            "now and run it again",
            ref=MAIN,
        )
    return False


def _main_at(base: TableMetadata, snapshot_id: int) -> tuple[Update, ...]:
    base.snapshot(snapshot_id)
    return (SetSnapshotRef(MAIN, moved(base.refs.get(MAIN), snapshot_id)),)
