"""The job `check`: one level after the other, each on what the one before could read; and its result."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from pyroaring import BitMap

from icekeep.catalog.base import Catalog, Identifier, Table, format_identifier
from icekeep.commit.summary import made_by
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.events import Listener, StepFinished, StepStarted
from icekeep.maintenance.check.content import check_data_files
from icekeep.maintenance.check.deletes import check_delete_content
from icekeep.maintenance.check.entries import check_entries
from icekeep.maintenance.check.faults import CLASSES, MAX_EXAMPLES, OF_EXPIRED, Fault, FaultId, Gap, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed, branch_heads, read_lists
from icekeep.maintenance.check.manifests import SUMS, CheckedManifests, check_manifests
from icekeep.maintenance.check.metadata import EarlierMetadata, check_logs, check_metadata, last_sound
from icekeep.maintenance.jobs import JobRequest, takes
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.runs import Run
from icekeep.spec.metadata import metadata_document, metadata_to_json
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical_or_text

_TOTALS: Mapping[FaultId, Mapping[str, tuple[str, ...]]] = {
    FaultId.TOTALS_WRONG: {
        "total-data-files": ("data_files",),
        "total-records": ("records",),
        "total-delete-files": ("delete_files",),
        "total-position-deletes": ("position_deletes",),
        "total-equality-deletes": ("equality_deletes",),
    },
    # Engines count of a deletion vector its file or its blob.
    FaultId.SIZE_TOTAL_WRONG: {"total-files-size": ("bytes", "own_bytes")},
}
"""By class the keys of summaries, and the sums of entries that each may equal."""

_ADDED: Mapping[str, tuple[str, ...]] = {
    "added-data-files": ("added_data_files",),
    "added-records": ("added_records",),
    "added-delete-files": ("added_delete_files",),
    "added-position-deletes": ("added_position_deletes",),
    "added-equality-deletes": ("added_equality_deletes",),
}

_MAX_DIGITS = 19
_MOVES_MAX = 3
_BELOW = "manifest lists, manifests and files"
_OLDER = "no branch has it at its head, only other snapshots or tags; it goes when they expire"


class FaultExample(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a class.

    Attributes:
        where: the file that has it, or the part of the metadata.
        detail: what is wrong there.
        snapshot_id: the oldest snapshot that has it; `None` where it is of none.
        made_by: the engine that made that snapshot, as far as its summary says; `None` where the fault may be older: the
            snapshot before is expired, or this one is a rewrite, which lists files of others again.
    """

    where: str
    detail: str
    snapshot_id: int | None = None
    made_by: str | None = None


class FaultsFound(msgspec.Struct, frozen=True, kw_only=True):
    """All faults of a class.

    Attributes:
        fault_id, name: number and name of the class.
        faults_count: of all, of which `examples` are the first; all of them where all were asked for.
        readers: what a reader gets wrong.
        mend: what an operator can do about it.
        since_snapshot_id, since_timestamp_ms: the oldest snapshot of the examples.
        made_by: who made that snapshot; `None` where the fault may be older.
        is_only_older: no branch has any of them at its head, only other snapshots or tags, with which they go. Given only where
            it is sure: of missing files and manifests, among others, where the heads of all branches were read whole.
    """

    fault_id: int
    name: str
    faults_count: int
    readers: str
    mend: str
    since_snapshot_id: int | None = None
    since_timestamp_ms: int | None = None
    made_by: str | None = None
    examples: tuple[FaultExample, ...] = ()
    is_only_older: bool = False


class SoundMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier metadata file that loads; commits after `timestamp_ms`, epoch milliseconds, are not in it."""

    metadata_location: str
    timestamp_ms: int
    current_snapshot_id: int | None


class CheckResult(Rendered, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        status: `faulty` where there is a fault; else `partial` where something could not be looked at; else `sound`.
        is_deep: whether the rows were looked at.
        snapshots_count, manifests_count, entries_count: that were looked at; `None` where that level was not reached.
        faults: by class; each makes the table faulty.
        notices: reported in addition to faults: no reader gets a wrong row because of them.
        sound_metadata: where the metadata does not load: the newest metadata files that do, by which the table can be registered.
        not_checked: what could not be looked at, and why; of very many the first.
        not_checked_count: of all.
    """

    status: str
    is_deep: bool
    snapshots_count: int | None = None
    manifests_count: int | None = None
    entries_count: int | None = None
    faults_count: int = 0
    not_checked_count: int = 0
    faults: tuple[FaultsFound, ...] = ()
    notices: tuple[FaultsFound, ...] = ()
    not_checked: tuple[Gap, ...] = ()
    sound_metadata: tuple[SoundMetadata, ...] = ()
    elapsed_ms: int = 0


def result(
    table: Table | None, tally: Tally, listed: Listed | None, *, deep: bool, earlier: Sequence[EarlierMetadata] = ()
) -> CheckResult:
    """Put together what was found; `table` and `listed` are `None` where nothing could be read of them."""
    snapshots = {} if table is None else table.metadata.snapshots_by_id
    in_heads = _in_heads(table, listed, tally.unread_manifests) if tally.counts else None
    found = [_found(number, tally, snapshots, in_heads) for number in sorted(tally.counts)]
    faults = tuple(one for one in found if not CLASSES[one.fault_id].is_notice)
    manifests = () if listed is None else listed.manifests
    entries_count = sum((one.live_files_count or 0) + (one.deleted_files_count or 0) for one in manifests)
    return CheckResult(
        status="faulty" if faults else "partial" if tally.gaps_count else "sound",
        is_deep=deep,
        snapshots_count=None if listed is None else len(listed.members),
        manifests_count=None if listed is None else len(manifests),
        entries_count=None if listed is None else entries_count,
        faults_count=sum(one.faults_count for one in faults),
        not_checked_count=tally.gaps_count,
        faults=faults,
        notices=tuple(one for one in found if CLASSES[one.fault_id].is_notice),
        not_checked=tally.gaps(),
        sound_metadata=tuple(
            SoundMetadata(
                metadata_location=one.location,
                timestamp_ms=one.timestamp_ms,
                current_snapshot_id=one.current_snapshot_id,
            )
            for one in earlier
        ),
    )


def _in_heads(table: Table | None, listed: Listed | None, unread_manifests: Iterable[str]) -> Collection[str] | None:
    """The keys of the manifest lists and manifests of the heads of all branches; `None` where not all of these could be read.

    Otherwise a fault in an unread part of a head would be taken for one that only older snapshots have.
    """
    if table is None or listed is None:
        return None
    heads = [table.metadata.snapshots_by_id[head] for head in branch_heads(table.metadata)]
    if any(head.snapshot_id not in listed.members or head.snapshot_id in listed.unread for head in heads):
        return None
    lists = {head.manifest_list for head in heads if head.manifest_list is not None}
    indices = BitMap.union(BitMap(), *(listed.members[head.snapshot_id] for head in heads))
    # Each list may spell a manifest in its own way.
    found = {
        canonical_or_text(path) for path in (*lists, *(listed.manifests[index].manifest_path for index in indices))
    }
    return found if found.isdisjoint(map(canonical_or_text, unread_manifests)) else None


def _is_older(fault: Fault, in_heads: Collection[str]) -> bool:
    """Whether no head has a fault, as far as it tells all that have it."""
    facts = fault.facts
    entries = facts.get("entries", ())
    if facts.get("entries_count", 0) > len(entries):
        return False
    manifests = {one["manifest"] for one in entries} | {*facts.get("manifests", ())}
    if fault.number == FaultId.MANIFEST_LIST_UNREADABLE or fault.where == facts.get("manifest"):
        manifests.add(fault.where)
    return bool(manifests) and not any(canonical_or_text(path) in in_heads for path in manifests)


def _found(
    number: int, tally: Tally, snapshots: Mapping[int, Snapshot], in_heads: Collection[str] | None
) -> FaultsFound:
    described, kept = CLASSES[number], tally.faults(number)
    is_only_older = (
        in_heads is not None and len(kept) == tally.counts[number] and all(_is_older(fault, in_heads) for fault in kept)
    )
    oldest = min(
        (snapshots[one.snapshot_id] for one in kept if one.snapshot_id is not None and one.snapshot_id in snapshots),
        key=lambda one: (one.sequence_number, one.timestamp_ms),
        default=None,
    )
    return FaultsFound(
        fault_id=int(number),
        name=described.name,
        faults_count=tally.counts[number],
        readers=described.readers,
        mend=_OLDER if is_only_older else described.mend,
        since_snapshot_id=None if oldest is None else oldest.snapshot_id,
        since_timestamp_ms=None if oldest is None else oldest.timestamp_ms,
        made_by=None if oldest is None else _maker(oldest.snapshot_id, snapshots, kept),
        examples=tuple(
            FaultExample(
                where=one.where,
                detail=one.detail,
                snapshot_id=one.snapshot_id,
                made_by=_maker(one.snapshot_id, snapshots, [one]),
            )
            for one in kept[: None if number in tally.whole else MAX_EXAMPLES]
        ),
        is_only_older=is_only_older,
    )


def _maker(snapshot_id: int | None, snapshots: Mapping[int, Snapshot], faults: Iterable[Fault]) -> str | None:
    """Who made the oldest snapshot that has some faults, where these began with that snapshot."""
    snapshot = None if snapshot_id is None else snapshots.get(snapshot_id)
    if snapshot is None:
        return None
    parent = snapshot.parent_snapshot_id
    # Those of a file, or of what an entry says of it, may have been there before a rewrite.
    is_rewrite = snapshot.operation == "replace" and any("file_path" in fault.facts for fault in faults)
    may_be_older = is_rewrite or (parent is not None and parent not in snapshots)
    return None if may_be_older else made_by(snapshot.summary or {})


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
        if not tally.counts.keys() & OF_EXPIRED:
            return result(table, tally, listed, deep=request.deep)
        now = table.refresh()
        if table.metadata.snapshots_by_id.keys() <= now.metadata.snapshots_by_id.keys():
            return result(table, tally, listed, deep=request.deep)
        table = now
    tally.gap(table.name, "its snapshots were expired while it was checked, again and again")
    return result(table, tally, listed, deep=request.deep)


def check_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> CheckResult:
    """Check a table whose metadata does not load, as far as that goes.

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
        tally.add(Fault(number=FaultId.UNREADABLE_METADATA, where=pointer.metadata_location, detail=first_line(error)))
    tally.gap(_BELOW, f"the metadata of table {format_identifier(identifier)!r} does not load")
    earlier = last_sound(pointer.storage, pointer.metadata_location, raw)
    return result(None, tally, None, deep=False, earlier=earlier)


def examined(
    table: Table, spark: SparkSource, tally: Tally, listener: Listener, *, deep: bool, ref: str | None = None
) -> Listed | None:
    """Look at each level; returns the manifests that were readable, `None` where that level was not reached."""
    with _step(listener, "checking metadata"):
        raw = raw_metadata(table.storage, table.metadata_location, tally)
        # What the catalog gave us loads; a REST catalog may not let us read the file that it came from.
        document = metadata_to_json(table.metadata) if raw is None else raw
        check_metadata(document, table.metadata_location, tally)
        if ref is not None:
            head = table.metadata.head(ref)
            snapshots = [] if head is None else [head]
        else:
            snapshots = sorted(table.metadata.snapshots, key=lambda one: (one.sequence_number, one.timestamp_ms))
        subject = CheckedTable(
            table=table,
            snapshots=tuple(snapshots),
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


def check_totals(subject: CheckedTable, checked: CheckedManifests) -> None:
    """Hold summaries against the sums of their manifests' entries; a snapshot of which something was not read is passed over.

    A total that a snapshot only carries on is reported for the one that made it wrong.
    """
    listed = checked.listed
    largest = max((abs(number) for row in checked.sums for number in row), default=0)
    # The counts of damaged manifests may exceed 64 bits.
    columns = np.array(checked.sums, np.int64 if largest * len(checked.sums) < 1 << 62 else object)
    columns = columns.reshape(len(checked.sums), len(SUMS))
    written: dict[int | None, BitMap] = {}
    for index, manifest in enumerate(listed.manifests):
        written.setdefault(manifest.added_snapshot_id, BitMap()).add(index)
    wrong: dict[int | None, dict[str, int | None]] = {}
    for snapshot in subject.snapshots:
        snapshot_id = snapshot.snapshot_id
        if snapshot_id not in listed.members or snapshot_id in listed.unread:
            continue
        members, before = listed.members[snapshot_id], wrong.get(snapshot.parent_snapshot_id, {})
        sums, own_sums = (
            dict(zip(SUMS, columns[np.fromiter(some, np.int64)].sum(axis=0).tolist(), strict=True))
            for some in (members, members & written.get(snapshot_id, BitMap()))
        )
        for number, names in _TOTALS.items():
            found = _differences(snapshot, sums, names)
            wrong.setdefault(snapshot_id, {}).update(found)
            made_here = {key: by for key, by in found.items() if key not in before or before[key] != by}
            _report_totals(subject, snapshot, made_here, number)
        _report_totals(subject, snapshot, _differences(snapshot, own_sums, _ADDED), FaultId.ODD_HISTORY)


def _differences(
    snapshot: Snapshot, sums: Mapping[str, int], names: Mapping[str, tuple[str, ...]]
) -> dict[str, int | None]:
    """By key of the summary how much too high it is, `None` where it is no number; missing keys are not wrong."""
    summary = snapshot.summary or {}
    found: dict[str, int | None] = {}
    for key, ways in names.items():
        said = summary.get(key)
        if said is None:
            continue
        if not said.isdecimal() or len(said) > _MAX_DIGITS:
            found[key] = None
        elif int(said) not in [sums[way] for way in ways]:
            found[key] = int(said) - sums[ways[0]]
    return found


def _report_totals(subject: CheckedTable, snapshot: Snapshot, found: Mapping[str, int | None], number: FaultId) -> None:
    if not found:
        return
    summary = snapshot.summary or {}
    detail = ", ".join(
        f"{key} {summary[key][:_MAX_DIGITS]!r} is {'no number' if by is None else f'wrong by {by}'}"
        for key, by in sorted(found.items())
    )
    if number is FaultId.TOTALS_WRONG and any((by or 0) > 0 for by in found.values()):
        detail += "; the manifest list may be cut short"
    subject.tally.add(
        Fault(
            number=number,
            where=f"snapshot {snapshot.snapshot_id}",
            detail=detail,
            snapshot_id=snapshot.snapshot_id,
            facts={"totals": {key: {"recorded": summary[key], "difference": by} for key, by in found.items()}},
        )
    )


def known_numbers(numbers: Sequence[int]) -> Sequence[int]:
    """The numbers of kinds of faults; raises `UsageError` for an unknown one."""
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
        tally.add(Fault(number=FaultId.UNREADABLE_METADATA, where=location, detail=first_line(error)))
    except (UnsupportedError, UsageError) as error:
        # A store that denies access raises the latter.
        tally.gap(location, first_line(error))
    return None


@contextmanager
def _step(listener: Listener, name: str) -> Iterator[None]:
    listener.on(StepStarted(name))
    yield
    listener.on(StepFinished(name))
