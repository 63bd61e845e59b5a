"""What `check` says: the classes of which faults were found, each with what it does to readers and what mends it."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.commit.summary import made_by
from icekeep.maintenance.checking.classes import CLASSES
from icekeep.maintenance.checking.faults import MAX_EXAMPLES, Fault, Gap, Tally
from icekeep.maintenance.checking.manifest_classes import LIST_UNREADABLE
from icekeep.maintenance.checking.metadata.earlier import Earlier
from icekeep.maintenance.checking.subject import Listed
from icekeep.rendered import Rendered
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.storage.locations import canonical_or_text

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
        snapshots_count, manifests_count, entries_count: that were looked at; `None` where that level was not come to.
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
    table: Table | None, tally: Tally, listed: Listed | None, *, deep: bool, earlier: Sequence[Earlier] = ()
) -> CheckResult:
    """Put together what was found; `table` and `listed` are `None` where nothing could be read of them."""
    snapshots = {} if table is None else table.metadata.snapshots_by_id
    in_heads = _in_heads(table, listed, tally.unread_manifests) if tally.counts else None
    found = [_found(number, tally, snapshots, in_heads) for number in sorted(tally.counts)]
    faults = tuple(one for one in found if not CLASSES[one.fault_id].is_notice)
    return CheckResult(
        status="faulty" if faults else "partial" if tally.gaps_count else "sound",
        is_deep=deep,
        snapshots_count=None if listed is None else len(listed.members),
        manifests_count=None if listed is None else len(listed.manifests),
        entries_count=None if listed is None else sum(_entries_count(listed)),
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


def _entries_count(listed: Listed) -> list[int]:
    return [(one.live_files_count or 0) + (one.deleted_files_count or 0) for one in listed.manifests]


def _in_heads(table: Table | None, listed: Listed | None, unread_manifests: Iterable[str]) -> Collection[str] | None:
    """The keys of the manifest lists and manifests of the heads of all branches; `None` where not all of these could be read.

    A fault of what is not known of a head would else be taken for one that only older snapshots have.
    """
    if table is None or listed is None:
        return None
    metadata = table.metadata
    names = {MAIN} | {name for name, ref in metadata.refs.items() if ref.is_branch}
    heads = [head for name in names if (head := metadata.head(name)) is not None]
    if any(head.snapshot_id not in listed.members or head.snapshot_id in listed.unread for head in heads):
        return None
    lists = {head.manifest_list for head in heads if head.manifest_list is not None}
    indices = BitMap.union(*(listed.members[head.snapshot_id] for head in heads)) if heads else BitMap()
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
    told = {one["manifest"] for one in entries} | {*facts.get("manifests", ())}
    if fault.number == LIST_UNREADABLE or fault.where == facts.get("manifest"):
        told.add(fault.where)
    return bool(told) and not any(canonical_or_text(path) in in_heads for path in told)


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
        fault_id=number,
        name=described.name,
        faults_count=tally.counts[number],
        readers=described.readers,
        mend=_OLDER if is_only_older else described.mend,
        since_snapshot_id=None if oldest is None else oldest.snapshot_id,
        since_timestamp_ms=None if oldest is None else oldest.timestamp_ms,
        made_by=None if oldest is None else _maker(oldest, snapshots, of_file=any(_is_of_file(one) for one in kept)),
        examples=tuple(_example(one, snapshots) for one in kept[: None if number in tally.whole else MAX_EXAMPLES]),
        is_only_older=is_only_older,
    )


def _example(fault: Fault, snapshots: Mapping[int, Snapshot]) -> FaultExample:
    snapshot = None if fault.snapshot_id is None else snapshots.get(fault.snapshot_id)
    return FaultExample(
        where=fault.where,
        detail=fault.detail,
        snapshot_id=fault.snapshot_id,
        made_by=None if snapshot is None else _maker(snapshot, snapshots, of_file=_is_of_file(fault)),
    )


def _is_of_file(fault: Fault) -> bool:
    """Whether a fault is one of a file, or of what an entry says of it."""
    return "file_path" in fault.facts


def _maker(snapshot: Snapshot, snapshots: Mapping[int, Snapshot], *, of_file: bool) -> str | None:
    """Who made the oldest snapshot that has a fault, where it began with that snapshot."""
    parent = snapshot.parent_snapshot_id
    may_be_older = (parent is not None and parent not in snapshots) or (of_file and snapshot.operation == "replace")
    return None if may_be_older else made_by(snapshot.summary or {})
