"""A table is given metadata again whose current file cannot be read: no change that could be tried again, so one attempt."""

from icekeep.catalog.base import Committed, Conflict, Table, Unknown
from icekeep.catalog.status_checks import StatusChecks
from icekeep.commit.settle import settle
from icekeep.commit.submitter import check_submitter
from icekeep.errors import ConflictError, IcekeepError, OutcomeUnknownError
from icekeep.events import Listener, SnapshotCommitted


def attach(table: Table, listener: Listener) -> Table:
    """Have a table begin again from the metadata of `table`, as `Catalog.reattach` does; returns it as it is then.

    Raises:
        ConflictError: the file at `metadata_location` is not the current one any more; nothing was changed.
        OutcomeUnknownError: it may have landed, also where an interrupt met it. Any other error proves that it did not.
        UnsupportedError: the catalog takes no metadata.
        UnavailableError: the catalog or the store is out of reach, or this process is abandoned.
    """
    # A wrong property is refused before anything can be in doubt.
    StatusChecks.of(table.metadata)
    check_submitter(table.runtime)
    try:
        try:
            outcome = table.catalog.reattach(table)
        except OutcomeUnknownError as error:
            outcome = Unknown(error.message, str(error.facts.get("metadata_location", "")))
        outcome = settle(outcome, table, None, table.runtime)
        if isinstance(outcome, Committed):
            listener.on(SnapshotCommitted(table.name, None, outcome.table.metadata_location))
            return outcome.table
    except IcekeepError:
        raise
    except BaseException as interrupt:
        raise _in_doubt(table, repr(interrupt), "") from interrupt
    if isinstance(outcome, Conflict):
        raise ConflictError(f"table {table.name!r} was changed meanwhile: {outcome.reason}; nothing was changed by us")
    raise _in_doubt(table, outcome.cause, outcome.metadata_location)


def _in_doubt(table: Table, cause: str, metadata_location: str) -> OutcomeUnknownError:
    where = f" at {metadata_location!r}" if metadata_location else ""
    return OutcomeUnknownError(
        f"table {table.name!r} may or may not have its metadata again{where} ({cause}); nothing was deleted; see whether it "
        "loads before anything is run again",
        metadata_location=metadata_location,
    )
