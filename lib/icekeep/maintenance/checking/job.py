"""The job `check`: each level in its turn, on what the one before could read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from icekeep.catalog.base import Catalog, Identifier, Table, format_identifier
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.events import Listener, StepFinished, StepStarted
from icekeep.maintenance.checking.classes import CLASSES
from icekeep.maintenance.checking.content.job import check_data_files
from icekeep.maintenance.checking.deletes.job import check_delete_content
from icekeep.maintenance.checking.entries.job import check_entries
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.manifest_classes import OF_EXPIRED
from icekeep.maintenance.checking.manifests.lists import read_lists
from icekeep.maintenance.checking.manifests.manifests import check_manifests
from icekeep.maintenance.checking.manifests.totals import check_totals
from icekeep.maintenance.checking.metadata.beside import check_logs
from icekeep.maintenance.checking.metadata.document import check_metadata
from icekeep.maintenance.checking.metadata.earlier import last_sound
from icekeep.maintenance.checking.metadata_classes import METADATA_UNREADABLE
from icekeep.maintenance.checking.result import CheckResult, result
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.maintenance.requests import JobRequest, takes
from icekeep.planning.spark.session import SparkSource
from icekeep.runs import Run
from icekeep.spec.metadata import metadata_document, metadata_to_json
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage

__all__ = ["CheckResult", "check", "check_unreadable"]


_MOVES_MAX = 3
_BELOW = "manifest lists, manifests and files"


class CheckRequest(JobRequest, frozen=True, kw_only=True):
    """The arguments of `check`, which says what each means."""

    deep: bool = False
    all_of: Sequence[int] = ()
    ref: str | None = None


@takes(CheckRequest)
def check(table: Table, request: CheckRequest) -> CheckResult:
    """Check a table against the spec, and report each fault: its class, where it is, since which snapshot. Writes nothing.

    Args:
        deep: read data and delete files too, and hold counts, bounds, partitions, orders and deletes against their rows.
        all_of: numbers of kinds of faults of which every fault is reported, and not only the first 20.
        ref: look only at the snapshot of this branch or tag; by default at all snapshots of the table.

    Raises:
        NotFoundError: there is no such branch or tag.
        UsageError: there is no such kind of faults.
        TryAgainError: the catalog, the store or Spark is out of reach.
    """
    whole = known_numbers(request.all_of)
    for _ in range(_MOVES_MAX):
        tally = Tally(whole)
        listed = examined(table, request.spark, tally, request.listener, deep=request.deep, ref=request.ref)
        if not tally.counts.keys() & OF_EXPIRED or not _has_lost_snapshots(now := table.refresh(), table):
            return result(table, tally, listed, deep=request.deep)
        table = now
    tally.gap(table.name, "its snapshots were expired while it was checked, again and again")
    return result(table, tally, listed, deep=request.deep)


def check_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> CheckResult:
    """What can be said of a table whose metadata does not load.

    Args:
        error: what its catalog raised.
        run: which run it is; nothing is written.
        arguments: those of `check`; but for `all_of` they have no effect.

    Raises:
        NotFoundError: the catalog has no such table.
        TryAgainError: the catalog or the store is out of reach.
    """
    tally = Tally(known_numbers(CheckRequest(**arguments).all_of))
    pointer = catalog.find(identifier)
    raw = raw_metadata(pointer.storage, pointer.metadata_location, tally)
    if raw is not None:
        check_metadata(raw, pointer.metadata_location, tally)
    if not tally.counts:
        tally.add(Fault(number=METADATA_UNREADABLE, where=pointer.metadata_location, detail=first_line(error)))
    tally.gap(_BELOW, f"the metadata of table {format_identifier(identifier)!r} does not load")
    earlier = last_sound(pointer.storage, pointer.metadata_location, raw)
    return result(None, tally, None, deep=False, earlier=earlier)


def _has_lost_snapshots(now: Table, before: Table) -> bool:
    return not before.metadata.snapshots_by_id.keys() <= now.metadata.snapshots_by_id.keys()


def examined(
    table: Table, spark: SparkSource, tally: Tally, listener: Listener, *, deep: bool, ref: str | None = None
) -> Listed | None:
    """Look at each level; returns the manifests that were readable, `None` where that level was not come to."""
    with _step(listener, "checking metadata"):
        raw = raw_metadata(table.storage, table.metadata_location, tally)
        # What the catalog gave us loads; a REST catalog may not let us read the file that it came from.
        document = metadata_to_json(table.metadata) if raw is None else raw
        check_metadata(document, table.metadata_location, tally)
        subject = Subject(
            table=table,
            raw=document,
            snapshots=_snapshots(table, ref),
            spark=spark,
            listener=listener,
            tally=tally,
        )
        check_logs(subject)
    if table.metadata.is_encrypted:
        tally.gap(_BELOW, "the table is encrypted")
        return None
    with _step(listener, "checking manifests"):
        checked = check_manifests(subject, read_lists(subject))
        check_totals(subject, checked)
        listed = checked.listed
    with _step(listener, "checking files"):
        check_entries(subject, listed)
    if deep:
        with _step(listener, "checking data"):
            check_data_files(subject, listed)
        with _step(listener, "checking deletes"):
            check_delete_content(subject, listed)
    return listed


def known_numbers(numbers: Sequence[int]) -> Sequence[int]:
    """The numbers of kinds of faults; raises `UsageError` for one that there is not."""
    unknown = [number for number in numbers if number not in CLASSES]
    if unknown:
        raise UsageError(
            f"there is no kind of faults {unknown[0]}; give numbers such as 301, `icekeep check` prints those that it finds",
            fault_id=unknown[0],
        )
    return numbers


def raw_metadata(storage: Storage, location: str, tally: Tally) -> Any | None:
    """A metadata file's JSON; `None`, and a fault or a gap, where it cannot be read."""
    try:
        return metadata_document(storage.read(location), location)
    except InvalidTableError as error:
        tally.add(Fault(number=METADATA_UNREADABLE, where=location, detail=first_line(error)))
    except (UnsupportedError, UsageError) as error:
        # A store that denies access raises the latter.
        tally.gap(location, first_line(error))
    return None


def _snapshots(table: Table, ref: str | None) -> tuple[Snapshot, ...]:
    if ref is not None:
        head = table.metadata.head(ref)
        return () if head is None else (head,)
    return tuple(sorted(table.metadata.snapshots, key=lambda one: (one.sequence_number, one.timestamp_ms)))


@contextmanager
def _step(listener: Listener, name: str) -> Iterator[None]:
    listener.on(StepStarted(name))
    yield
    listener.on(StepFinished(name))
