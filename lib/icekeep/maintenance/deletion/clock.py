"""What time it is for a job that deletes by age: a clock that is wrong may only make it keep more."""

from icekeep.catalog.base import Table
from icekeep.errors import SafetyError, UsageError
from icekeep.runtime import Runtime
from icekeep.spec.layout import own_directory
from icekeep.spec.units import MINUTE_MS
from icekeep.storage.base import Storage

SKEW_MAX_MS = 10 * MINUTE_MS
"""By how much our clock may be ahead of the store's before nothing is decided by age any more."""


def earlier_clock_ms(table: Table, runtime: Runtime, *, is_plan: bool = False) -> int:
    """The earlier of our clock and the store's, however far apart they are, epoch milliseconds.

    Args:
        is_plan: nothing is changed: where the store denies the file by which its clock is seen, that may be behind ours by as
            much as is allowed.
    """
    return _earlier_ms(_store_seen_ms(table, runtime, is_plan=is_plan), runtime)


def earlier_clock_below(directory: str, storage: Storage, runtime: Runtime) -> int:
    """The same by a file in a directory of icekeep's own."""
    return _earlier_ms(_store_now_ms(directory, storage, runtime), runtime)


def safe_now_ms(table: Table, runtime: Runtime, *, is_plan: bool = False) -> int:
    """The earlier of our clock and the store's, epoch milliseconds.

    Args:
        is_plan: as for `earlier_clock_ms`.

    Raises:
        SafetyError: ours is far ahead, so that moments that were worked out from it before may be wrong too.
    """
    ours_ms = runtime.now_ms()
    theirs_ms = _store_seen_ms(table, runtime, is_plan=is_plan)
    if theirs_ms is None:
        return ours_ms
    if ours_ms - theirs_ms > SKEW_MAX_MS:
        raise SafetyError(
            f"the clock of this machine is {(ours_ms - theirs_ms) / MINUTE_MS:,.0f} minutes ahead of that of the store of "
            f"{table.metadata.location!r}, so ages cannot be trusted and nothing is deleted; set the clocks right",
            ours_ms=ours_ms,
            store_ms=theirs_ms,
        )
    return min(ours_ms, theirs_ms)


def _earlier_ms(theirs_ms: int | None, runtime: Runtime) -> int:
    return runtime.now_ms() if theirs_ms is None else min(theirs_ms, runtime.now_ms())


def _store_seen_ms(table: Table, runtime: Runtime, *, is_plan: bool) -> int | None:
    """The clock of a table's store (`_store_now_ms`); for a plan that is denied the file, as far behind ours as is allowed."""
    try:
        return _store_now_ms(own_directory(table.metadata, "runs"), table.storage, runtime)
    except UsageError:
        if not is_plan:
            raise
        return runtime.now_ms() - SKEW_MAX_MS


def _store_now_ms(directory: str, storage: Storage, runtime: Runtime) -> int | None:
    """What time a store says that it is, seen in a file that is made for it; `None` where it tells nothing."""
    location = f"{directory}/clock/{runtime.new_uuid()}"
    storage.create(location, b"")
    try:
        seen = storage.head(location)
    finally:
        storage.delete_many([location])
    return None if seen is None else seen.modified_ms
