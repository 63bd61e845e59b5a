"""After an unknown outcome: look, and turn it into a known one if what is seen proves it.

Finding our snapshot, or our metadata file in the table's history, proves that the commit landed. Not finding it proves
nothing: the request may still be on its way. So unknown stays unknown, and nobody cleans up.
"""

from collections.abc import Iterator, Sequence

import msgspec

from icekeep.catalog.base import Committed, Conflict, Table, Unknown
from icekeep.catalog.status_checks import StatusChecks
from icekeep.catalog.version_files import parse_version_name
from icekeep.commit.late_swaps import is_over, may_have_expired
from icekeep.errors import IcekeepError, NotFoundError, UnavailableError
from icekeep.runtime import Runtime
from icekeep.spec.requirements import Requirement
from icekeep.spec.units import MINUTE_MS

_LEAST_MS = MINUTE_MS
"""For how long the table is looked at whatever the swap took: one request that hung may have taken all of the time."""


def settle(
    outcome: Committed | Conflict | Unknown,
    base: Table,
    snapshot_id: int | None,
    runtime: Runtime,
    requirements: Sequence[Requirement] = (),
    spent_ms: int = 0,
) -> Committed | Conflict | Unknown:
    """An outcome, made more certain where it is in doubt; raises no error of ours.

    A conflict that is not final may hide our own commit (an answer was lost, the request was sent twice): then it is
    `Committed`, and where the table cannot be loaded to see, it is `Unknown`. So it is where snapshots have expired since,
    ours perhaps among them. It is final where the table has moved on, so that a twin of the request cannot land any more. The
    table is looked at as often and as long as the properties `commit.status-check.*` say.

    Args:
        snapshot_id: of the snapshot that the commit was to add, `None` if it was to add none.
        requirements: those that the swap was made with.
        spent_ms: how long the swap took, which may have asked again itself: the table says how long both may take.
    """
    if isinstance(outcome, Committed) or (isinstance(outcome, Conflict) and outcome.is_final):
        return outcome
    location = outcome.metadata_location if isinstance(outcome, Unknown) else ""
    for table in _looks(base, runtime, spent_ms):
        if table is not None and _has_landed(table, snapshot_id, location):
            return Committed(table)
        if isinstance(outcome, Conflict):
            if table is None or snapshot_id is None:
                return outcome
            if may_have_expired(table.metadata, base.metadata):
                return Unknown(f"{outcome.reason}; that may have been this very commit, expired since", "")
            return Conflict(outcome.reason, is_final=is_over(base, requirements, table))
    if isinstance(outcome, Conflict):
        return Unknown(f"{outcome.reason}; the table cannot be loaded to see whether that was this very commit", "")
    return outcome


def _looks(base: Table, runtime: Runtime, spent_ms: int) -> Iterator[Table | None]:
    """The table as each look finds it, `None` where it is gone; a look that fails shows nothing.

    While the catalog is out of reach looks cost no more than time: the table says how many may fail to find the commit.
    """
    # A bad value was refused before the first attempt; one that was set since then must not hide what became of it.
    checks = StatusChecks.of(base.metadata, is_lenient=True)
    left_count = checks.num_retries + 1
    left_ms = max(checks.total_timeout_ms - spent_ms, min(checks.total_timeout_ms, _LEAST_MS))
    for _ in msgspec.structs.replace(checks, total_timeout_ms=left_ms).turns(runtime):
        try:
            yield base.catalog.load(base.identifier)
        except NotFoundError:
            yield None
        except UnavailableError:
            continue
        except IcekeepError:
            pass
        left_count -= 1
        if not left_count:
            return


def _has_landed(table: Table, snapshot_id: int | None, metadata_location: str) -> bool:
    history = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    # Two writers that want the same version of a table in a directory give it the same name, which proves nothing.
    is_unique = parse_version_name(metadata_location.rsplit("/", 1)[-1]) is None
    return snapshot_id in table.metadata.snapshots_by_id or (is_unique and metadata_location in history)
