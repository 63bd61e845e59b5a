"""What becomes of a file, by the rules of the jobs that would delete it, and in words."""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

import msgspec
import pyarrow as pa

from icekeep.catalog.base import OperatorRules, Table
from icekeep.maintenance.delete.locations import deletable_locations
from icekeep.maintenance.delete.options import ExpirationOptions
from icekeep.maintenance.delete.plan_file import restore_command
from icekeep.maintenance.orphans.compare import sorter_of
from icekeep.maintenance.orphans.listing import hidden_names, keyed_rows
from icekeep.maintenance.orphans.metadata import Sort
from icekeep.maintenance.orphans.options import DEFAULT_AGE_MS, eligible_before_ms
from icekeep.maintenance.rewrite.alive import living_runs
from icekeep.maintenance.why.reasons import GONE, TRASH, FileState, PlanOfFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.spec.readers import registered_readers
from icekeep.spec.retention import (
    MAX_REF_AGE_MS,
    MAX_SNAPSHOT_AGE_MS,
    MIN_SNAPSHOTS_TO_KEEP,
    RetentionPolicy,
    default_limit,
    select_expired,
    writers_of,
)
from icekeep.spec.snapshots import MAIN, SnapshotRef
from icekeep.spec.times import format_time
from icekeep.spec.types import DAY_MS
from icekeep.storage.base import FileInfo
from icekeep.storage.location_keys import AS_SPELLED
from icekeep.storage.locations import canonical, is_under

_FAR_MS = 36_500 * DAY_MS
"""What is kept for a hundred years is kept for good."""

_SHOWN = 10
_KEEPERS_SHOWN = 3


class SnapshotRetention(msgspec.Struct, frozen=True):
    """How long a file is kept by the snapshots that read it, if nothing else is committed.

    Attributes:
        until_ms: the first moment at which a run of `expire_snapshots` drops the last of them, epoch milliseconds; a moment that
            is not in the future: the next run does. `None`: none ever does.
        by: the references that keep one for good.
    """

    until_ms: int | None
    by: tuple[str, ...] = ()


def kept_until(
    metadata: TableMetadata, rules: OperatorRules, readers: frozenset[int], now_ms: int
) -> SnapshotRetention:
    """Ask `select_expired`, as `expire_snapshots` without arguments does, at the moments at which its answer may change.

    Raises as that does.

    A snapshot that a branch has dropped and that comes to be on none, since the branch has expired before its snapshots would
    have, counts as kept.
    """
    policy = ExpirationOptions().policy(rules)

    def left(at_ms: int) -> frozenset[int]:
        return readers - select_expired(metadata, policy, at_ms).snapshot_ids

    if not left(now_ms):
        return SnapshotRetention(now_ms)
    moments = sorted({at for at in _moments(metadata, policy) if now_ms < at < now_ms + _FAR_MS})
    last_ms = moments[-1] if moments else now_ms
    if for_good := left(last_ms):
        expired = select_expired(metadata, policy, last_ms).ref_names
        refs = {name: ref for name, ref in metadata.refs.items() if name not in expired}
        return SnapshotRetention(None, tuple(_keepers(metadata, refs.items(), for_good)))
    low, high = 0, len(moments) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if left(moments[middle]) else (low, middle)
    return SnapshotRetention(moments[low])


def _moments(metadata: TableMetadata, policy: RetentionPolicy) -> Iterable[int]:
    """When a snapshot, a reference, a writer's progress or a reader's lag may become too old: right after it has the age."""
    ages = {ref.max_snapshot_age_ms for ref in metadata.refs.values()} - {None}
    ages |= {default_limit(metadata, MAX_SNAPSHOT_AGE_MS)}
    registered = registered_readers(metadata, metadata.refs)
    for snapshot in metadata.snapshots:
        yield from (snapshot.timestamp_ms + age + 1 for age in ages if age is not None)
        yield snapshot.timestamp_ms + policy.least_age_ms + 1
        if writers_of(snapshot, policy.progress_keys):
            yield snapshot.timestamp_ms + policy.keep_writer_progress_ms
        if registered:
            yield snapshot.timestamp_ms + policy.max_reader_lag_ms + 1
    yield from (one.moved_ms + policy.max_reader_lag_ms + 1 for one in registered if one.moved_ms is not None)
    for ref in metadata.refs.values():
        head = metadata.snapshots_by_id.get(ref.snapshot_id)
        age = default_limit(metadata, MAX_REF_AGE_MS) if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        if head is not None:
            yield head.timestamp_ms + age + 1


def _keepers(
    metadata: TableMetadata, refs: Iterable[tuple[str, SnapshotRef]], readers: frozenset[int]
) -> Iterable[str]:
    for name, ref in sorted(refs, key=lambda item: (item[0] != MAIN, item[0])):
        if ref.snapshot_id in readers:
            yield f"{ref.type} {name}"
        elif ref.is_branch:
            count = ref.min_snapshots_to_keep
            count = default_limit(metadata, MIN_SNAPSHOTS_TO_KEEP) if count is None else count
            behind = islice(metadata.ancestors(ref.snapshot_id), 1, max(1, count))
            if any(snapshot.snapshot_id in readers for snapshot in behind):
                yield f"branch {name}, which keeps its newest snapshots whatever their age"


def fate_of_read(
    *, is_current: bool, kept: SnapshotRetention | None, now_ms: int, is_missing: bool, back: str | None
) -> str:
    """What becomes of a file that snapshots read; `back` is the command that fetches it from the trash, if it is missing."""
    said = "the current version does not have it"
    if is_current:
        said = "the current version has it: it can go once main has left it behind and the snapshots that read it have expired"
    elif kept is not None and kept.until_ms is None:
        # Of a table that was restored hundreds of tags may keep a file.
        more = f" and {len(kept.by) - _KEEPERS_SHOWN:,} more" if len(kept.by) > _KEEPERS_SHOWN else ""
        said += f"; no `expire_snapshots` lets it go: kept by {', '.join(kept.by[:_KEEPERS_SHOWN])}{more}"
    elif kept is not None and kept.until_ms is not None and kept.until_ms > now_ms:
        said += f"; `expire_snapshots` drops the last snapshot that reads it from {format_time(kept.until_ms)} on"
    elif kept is not None:
        said += ", and the next `expire_snapshots` drops the last snapshot that reads it"
    if not is_missing:
        return said
    where = f"it is in the trash: `{back}` brings it back" if back else "readers of these fail"
    return f"snapshots read it and it is not in storage: {where}; {said}"


def fate_of_unread(fate: str) -> str:
    """What becomes of a file of the table that no snapshot reads any more."""
    said = "it was taken out of the table, and no snapshot that can be read has it any more"
    return f"{said}; {fate}" if fate else said


def fate_in_plan(plan: PlanOfFile, table: Table) -> str:
    """What becomes of a file that a plan names and no snapshot reads."""
    back = f"; `{restore_command(table, plan.run)}` brings it back" if plan.is_restorable else ""
    until = format_time(plan.until_ms)
    if plan.place == GONE:
        return f"no snapshot reads it: a plan of {plan.job} names it, and it is gone"
    if plan.place == TRASH:
        return f"no snapshot reads it: {plan.job} moved it to the trash, where it stays until {until}{back}"
    return f"no snapshot reads it, and a plan of {plan.job} takes it from {until} on{back}"


def fate_without_trace(info: FileInfo | None) -> str:
    """What is said of a file that nothing names."""
    if info is not None:
        return f"nothing that is known of the table leads to it; it lies there since {format_time(info.modified_ms)}"
    return "there is no such file, and nothing of the table has one of this name"


def gaps(unreadable: Mapping[str, str], unsure: Collection[int]) -> list[str]:
    """What could not be read, and what follows from it: of the snapshots `unsure` not all is known."""
    shown = [f"could not look into {name}: {why}" for name, why in [*unreadable.items()][:_SHOWN]]
    more = [f"... and {len(unreadable) - _SHOWN:,} more"] if len(unreadable) > _SHOWN else []
    ids = ", ".join(map(str, sorted(unsure)[:_SHOWN])) + (" and others" if len(unsure) > _SHOWN else "")
    readers = f"snapshot{'s' if len(unsure) > 1 else ''} {ids}" if unsure else "other snapshots"
    return [*shown, *more, f"so it may also be read by {readers}"]


class FileVerdict(msgspec.Struct, frozen=True):
    """The state of a file, what becomes of it, and when it may go, epoch milliseconds; `None` where it stays."""

    state: FileState
    fate: str
    removable_after_ms: int | None = None


def classify_unnamed(info: FileInfo, table: Table) -> FileVerdict:
    """Classify a file that certainly no metadata, no manifest and no plan names, as `remove_orphan_files` does by default.

    Raises:
        IcekeepError: the store does not answer.
    """
    metadata, location = table.metadata, info.location
    if is_under(location, metadata.location) and f"/{OWN_DIRECTORY}/" in canonical(location):
        return FileVerdict(FileState.OWN, "it is icekeep's own, which removes it itself when it is done with it")
    if not deletable_locations(table).holds(location):
        return FileVerdict(
            FileState.ELSEWHERE, "it lies in no place of the table, and below no `reclaim.roots`, so no run deletes it"
        )
    after_ms: int | None = None
    if not is_under(location, metadata.location):
        directory = location.rpartition("/")[0]
        fate = f"`remove_orphan_files` takes it only with `--location {directory}`, or a directory above that"
    elif hidden_names(metadata.location, metadata.partition_specs).mask(pa.array([location]))[0]:
        fate = "`remove_orphan_files` does not look at hidden names, so it stays"
    else:
        fate, after_ms = _fate_of_orphan(info, table)
    return FileVerdict(FileState.ORPHAN, fate, after_ms)


def _fate_of_orphan(info: FileInfo, table: Table) -> tuple[str, int | None]:
    now_ms = table.runtime.now_ms()
    sorter = sorter_of(table, eligible_before_ms(None, now_ms), now_ms, living_runs(table, table.runtime, is_plan=True))
    location, size_bytes, modified_ms = (pa.array([one]) for one in (info.location, info.size_bytes, info.modified_ms))
    row = sorter.sort(keyed_rows(location, size_bytes, modified_ms, AS_SPELLED)).to_pylist()[0]
    after_ms = info.modified_ms + DEFAULT_AGE_MS
    match Sort(row["kind"]):
        case Sort.ORPHAN | Sort.METADATA:
            return "the next `remove_orphan_files` takes it", after_ms
        case Sort.YOUNG if after_ms > now_ms:
            return f"`remove_orphan_files` takes it from {format_time(after_ms)} on", after_ms
        case Sort.YOUNG:
            return "`remove_orphan_files` leaves it alone: the run that wrote it is at work", None
        case Sort.VERSION:
            return "`remove_orphan_files` leaves it alone: a catalog may find the table by this version", None
    return f"`remove_orphan_files` refuses to go on because of it: {row['reason']}", None
