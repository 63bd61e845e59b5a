"""What time it is for a job that deletes by age: a clock that is wrong may only make it keep more.

The store's clock is seen in a file that is made for it. A plan writes nothing, and so asks our own clock alone: the run that
deletes looks again.
"""

from icekeep.catalog.base import Table
from icekeep.errors import SafetyError
from icekeep.runtime import Runtime
from icekeep.spec.properties import own_directory
from icekeep.spec.types import MINUTE_MS
from icekeep.storage.base import Storage

SKEW_MAX_MS = 10 * MINUTE_MS
"""By how much our clock may be ahead of the store's before nothing is decided by age any more."""


def earlier_clock_ms(table: Table, runtime: Runtime) -> int:
    """The earlier of our clock and the store's, however far apart they are, epoch milliseconds."""
    return earlier_clock_below(own_directory(table.metadata, "runs"), table.storage, runtime)


def earlier_clock_below(directory: str, storage: Storage, runtime: Runtime) -> int:
    """The same by a file in a directory of icekeep's own."""
    theirs_ms = _store_now_ms(directory, storage, runtime)
    return runtime.now_ms() if theirs_ms is None else min(theirs_ms, runtime.now_ms())


def safe_now_ms(table: Table, runtime: Runtime) -> int:
    """The earlier of our clock and the store's, epoch milliseconds.

    Raises:
        SafetyError: ours is far ahead, so that moments that were worked out from it before may be wrong too.
    """
    ours_ms = runtime.now_ms()
    theirs_ms = _store_now_ms(own_directory(table.metadata, "runs"), table.storage, runtime)
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


def _store_now_ms(directory: str, storage: Storage, runtime: Runtime) -> int | None:
    """What time a store says that it is, seen in a file that is made for it; `None` where it tells nothing."""
    location = f"{directory}/clock/{runtime.new_uuid()}"
    storage.create(location, b"")
    try:
        seen = storage.head(location)
    finally:
        storage.delete_many([location])
    return None if seen is None else seen.modified_ms
