"""The snapshot that a run started from, held by a tag until the run is over.

While groups are rewritten others may expire snapshots, and with the starting one its files would go, which the run is still
reading. A tag keeps it. The age of a reference is that of its snapshot, so the tag is given that age and a day: a run that
died without dropping its tag hinders nobody for longer.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.manage_refs import CreateRef, DropRef
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, IcekeepError, OutcomeUnknownError, UnavailableError
from icekeep.events import Listener, Warned
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import Update

TAG_PREFIX = "icekeep-rewrite-"
TAG_AGE_MS = 24 * 60 * 60 * 1000


@contextmanager
def hold_start(table: Table, snapshot_id: int, run_id: str, runtime: Runtime, listener: Listener) -> Iterator[str]:
    """Keep a snapshot from expiring while the block runs, by a tag with the run's name; yields that name.

    The tag goes at the end, whatever came of the block; where it cannot be dropped the listener is warned, and nothing else
    happens. Tags that other runs have left go first, if their age has passed; those of runs that may be alive stay.

    Raises:
        TryAgainError: the snapshot is gone already, or the tag could not be made; the block has not begun.
        IcekeepError: as `commit` raises it, where a catalog refuses tags, for one; the block has not begun.
    """
    name = f"{TAG_PREFIX}{run_id}"
    _drop_left_over(table, runtime, listener)
    _create(table, name, snapshot_id, runtime, listener)
    try:
        yield name
    finally:
        _drop(table, name, snapshot_id, runtime, listener)


class _Hold(msgspec.Struct, frozen=True):
    """The tag to make, where its snapshot is still there."""

    name: str
    ref: SnapshotRef

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.ref.snapshot_id not in base.snapshots_by_id:
            raise ConflictError(f"snapshot {self.ref.snapshot_id}, which was planned on, expired meanwhile; plan again")
        return CreateRef(self.name, self.ref).apply(base, attempt)


def _create(table: Table, name: str, snapshot_id: int, runtime: Runtime, listener: Listener) -> None:
    snapshot = table.metadata.snapshot(snapshot_id)
    age_ms = max(0, runtime.now_ms() - snapshot.timestamp_ms)
    ref = SnapshotRef(snapshot_id=snapshot_id, type="tag", max_ref_age_ms=age_ms + TAG_AGE_MS)
    try:
        commit(table, _Hold(name, ref), runtime=runtime)
    except OutcomeUnknownError as error:
        # If it lands later than this it goes when its age has passed.
        _drop(table, name, snapshot_id, runtime, listener)
        if isinstance(error.__cause__, (KeyboardInterrupt, SystemExit)):
            raise error.__cause__ from error
        raise UnavailableError(
            f"it is not known whether tag {name!r} of {table.name!r}, which is to hold snapshot {snapshot_id}, was made "
            f"({error.message}); nothing else was done, run it again"
        ) from error


def _drop(table: Table, name: str, snapshot_id: int, runtime: Runtime, listener: Listener) -> None:
    try:
        commit(table, DropRef(name=name, type="tag", expected_id=snapshot_id), runtime=runtime)
    except IcekeepError as error:
        listener.on(
            Warned(
                f"tag {name!r} of {table.name!r}, which held the starting snapshot of a run, could not be dropped: "
                f"{error.message}; drop it, or leave it to expire"
            )
        )


def _drop_left_over(table: Table, runtime: Runtime, listener: Listener) -> None:
    """Drop what runs have left that must be dead, by the same clock that retention goes by."""
    metadata = table.metadata
    for name, ref in metadata.refs.items():
        snapshot = metadata.snapshots_by_id.get(ref.snapshot_id)
        if ref.is_branch or not name.startswith(TAG_PREFIX) or ref.max_ref_age_ms is None or snapshot is None:
            continue
        if runtime.now_ms() - snapshot.timestamp_ms > ref.max_ref_age_ms:
            _drop(table, name, ref.snapshot_id, runtime, listener)
