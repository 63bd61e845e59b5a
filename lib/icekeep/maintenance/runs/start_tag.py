"""The snapshot that a run started from, held by a tag until the run is over.

While groups are rewritten others may expire snapshots, and with the starting one its files would go, which the run is still
reading. A tag keeps it. The age of a reference is that of its snapshot, so the tag is given that age and a day: a run that
died without dropping its tag hinders nobody for longer. A run that lives longer gives it another day with its heartbeat, twice
a day.

Every run pays for its tag, short ones too: beats say nothing to other engines, whose expiration the tag alone stops. How long a
run takes does not tell what it risks: in a table that was idle for a week the snapshot it reads is old enough to expire with
the first commit of somebody else. The price is two versions of the metadata a run. A writer that needs `w` ms from load to swap
and commits every `c` ms meets one of them in `2 w / c` of the runs and tries again at once: measured on a SQL catalog 0.2
conflicts a run for a writer of 80 ms that commits three times a second, 0.1 for one that commits once a second; a stream that
commits every minute meets one in hundreds of runs.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.log_context import log_context
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.snapshots import CreateRef, DropRef
from icekeep.commit.retry import commit
from icekeep.errors import (
    ConflictError,
    OutcomeUnknownError,
    PropertyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    reason_of,
)
from icekeep.events import Listener, Warned
from icekeep.maintenance.runs.heartbeat import Heartbeat
from icekeep.runtime import Runtime, cleaning_up, interrupt_behind
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.types import DAY_MS
from icekeep.spec.updates import SetSnapshotRef, Update

_LOG = logging.getLogger(__name__)

TAG_PREFIX = "icekeep-rewrite-"
TAG_AGE_MS = DAY_MS
RENEW_AFTER_MS = TAG_AGE_MS // 2


@contextmanager
def hold_start(
    table: Table,
    snapshot_id: int,
    run_id: str,
    runtime: Runtime,
    listener: Listener,
    heartbeat: Heartbeat | None = None,
) -> Iterator[str]:
    """Keep a snapshot from expiring while the block runs, by a tag with the run's name; yields that name.

    The tag goes at the end, whatever came of the block; where it cannot be dropped the listener is warned, and nothing else
    happens. Tags that other runs have left go too, if their age has passed; those of runs that may be alive stay.

    A catalog may refuse tags for good. The tag is an aid, so the listener is warned and the block begins without it: what it
    could lose is its own work, where others expire the snapshot and delete a file before it is read.

    Args:
        heartbeat: renews the tag while the block lasts.

    Raises:
        TryAgainError: the snapshot is gone already, or the tag could not be made now; the block has not begun.
        IcekeepError: as `commit` raises it, where the table is another one, for example; the block has not begun.
    """
    name = f"{TAG_PREFIX}{run_id}"
    try:
        _create(table, name, snapshot_id, runtime, listener)
    except PropertyError:
        # It stops every commit, such as a codec that the catalog cannot write metadata with.
        raise
    except (UsageError, UnsupportedError) as error:
        listener.on(
            Warned(
                f"snapshot {snapshot_id} of {table.name!r} is not held by a tag: {error.message}; the run goes on, and fails "
                "if others expire it meanwhile"
            )
        )
        yield name
        return
    _LOG.info("%s: tag %r holds snapshot %d", table.name, name, snapshot_id, extra=log_context(table))
    if heartbeat is not None:
        heartbeat.with_each_beat(_renewal(table, name, snapshot_id, runtime))
    try:
        _drop_left_over(table, runtime, listener)
        yield name
    finally:
        if heartbeat is not None:
            heartbeat.with_each_beat(lambda: None)
        _drop(table, name, snapshot_id, runtime, listener)


class _Hold(msgspec.Struct, frozen=True):
    """The tag to make, where its snapshot is still there."""

    name: str
    ref: SnapshotRef

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.ref.snapshot_id not in base.snapshots_by_id:
            raise ConflictError(f"snapshot {self.ref.snapshot_id}, which was planned on, expired meanwhile")
        return CreateRef(self.name, self.ref).apply(base, attempt)


class _Renew(msgspec.Struct, frozen=True):
    """The tag with another age, if it is there: one that was dropped meanwhile is not made again."""

    name: str
    snapshot_id: int
    max_ref_age_ms: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        ref = base.refs.get(self.name)
        if ref is None or ref.snapshot_id != self.snapshot_id:
            return ()
        return (SetSnapshotRef(self.name, msgspec.structs.replace(ref, max_ref_age_ms=self.max_ref_age_ms)),)


def _renewal(table: Table, name: str, snapshot_id: int, runtime: Runtime) -> Callable[[], None]:
    """What gives the tag another day, when the half of its last one is over."""
    renewed_ms = runtime.monotonic_ms()

    def renew() -> None:
        nonlocal renewed_ms
        if runtime.monotonic_ms() - renewed_ms < RENEW_AFTER_MS:
            return
        commit(table, _Renew(name, snapshot_id, _age_ms(table, snapshot_id, runtime)), runtime=runtime)
        renewed_ms = runtime.monotonic_ms()
        _LOG.info("%s: tag %r is renewed", table.name, name, extra=log_context(table))

    return renew


def _age_ms(table: Table, snapshot_id: int, runtime: Runtime) -> int:
    """The age that a snapshot has, and a day."""
    return max(0, runtime.now_ms() - table.metadata.snapshot(snapshot_id).timestamp_ms) + TAG_AGE_MS


def _create(table: Table, name: str, snapshot_id: int, runtime: Runtime, listener: Listener) -> None:
    ref = SnapshotRef(snapshot_id=snapshot_id, type="tag", max_ref_age_ms=_age_ms(table, snapshot_id, runtime))
    try:
        commit(table, _Hold(name, ref), runtime=runtime)
    except OutcomeUnknownError as error:
        # If it lands later than this it goes when its age has passed.
        _drop(table, name, snapshot_id, runtime, listener)
        interrupt = interrupt_behind(error)
        if interrupt is not None:
            raise interrupt from error
        raise UnavailableError(
            f"it is not known whether tag {name!r} of {table.name!r}, which is to hold snapshot {snapshot_id}, was made "
            f"({error.message}); nothing else was done, run it again"
        ) from error


def _drop(table: Table, name: str, snapshot_id: int, runtime: Runtime, listener: Listener) -> None:
    try:
        with cleaning_up():
            commit(table, DropRef(name=name, type="tag", expected_id=snapshot_id), runtime=runtime)
    except Exception as error:  # noqa: BLE001 - whatever it is, what the block has committed is done
        listener.on(
            Warned(
                f"tag {name!r} of {table.name!r}, which held the starting snapshot of a run, could not be dropped: "
                f"{reason_of(error)}; drop it, or leave it to expire"
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
