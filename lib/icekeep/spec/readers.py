"""How far readers of a table have come that follow its snapshots, and which snapshots they still need.

A reader that follows a table remembers the last snapshot that it has read, and goes on with the one after it: it needs that
snapshot, and every one after it on its branch. If one of them has expired it cannot tell what it has missed: Iceberg's streams in
Spark fail then ("the snapshot was expired or removed"), and Flink's with "does not contain" the snapshot.

A table knows of readers that have registered, by a property or by a tag:

    icekeep.consumer.NAME.snapshot-id    the snapshot that it has read last; icekeep.consumer.NAME.updated-ms: when it said so
    tag icekeep-consumer-NAME            names that snapshot

Others, such as streams in Spark, keep their progress outside the table; who reads it there makes the same value of it.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.types import HOUR_MS, MAX_LONG

PROPERTY, TAG, CHECKPOINT = "property", "tag", "checkpoint"

CONSUMER = "icekeep.consumer."
"""The beginning of the properties of a table by which readers register."""

SNAPSHOT_ID, UPDATED_MS = ".snapshot-id", ".updated-ms"
CONSUMER_TAG = "icekeep-consumer-"
"""The beginning of the names of tags by which readers register."""

WAITED_FOR, TOO_FAR_BEHIND, GONE, UNREADABLE = "waited_for", "too_far_behind", "gone", "unreadable"


class ReaderPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far one reader has come, as it stands where it registered.

    Attributes:
        name: by which it registered, or the location of its checkpoint.
        source: `property`, `tag` or `checkpoint`.
        snapshot_id: of the snapshot that it has read last, perhaps not to its end; `None` for one that has read none.
        moved_ms: when it came to that, as far as that is known, epoch milliseconds.
        began_id: the snapshot at which a stream of Spark once began, which some of its triggers want to see again.
        problem: why its position is not known; empty where it is.
    """

    name: str
    source: str
    snapshot_id: int | None = None
    moved_ms: int | None = None
    began_id: int | None = None
    problem: str = ""


class ReaderSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A reader of the table, and what an expiration does about it.

    Attributes:
        name: by which it registered, or the location of its checkpoint.
        source: `property`, `tag` or `checkpoint`.
        snapshot_id: of the snapshot that it has read last; null for one that has read none, or whose position is not known.
        lag_ms: for how long there has been something that it has not read, or since it last moved if that is less.
        status: `waited_for`; `too_far_behind`, which keeps nothing any more; `gone`, where its snapshot has expired already; or
            `unreadable`, which keeps everything.
        problem: why its position is not known, or why nothing is kept for it.
    """

    name: str
    source: str
    snapshot_id: int | None
    lag_ms: int | None
    status: str
    problem: str = ""


class KeptForReader(msgspec.Struct, frozen=True):
    """A snapshot that a reader has read last, or has not read yet."""

    snapshot_id: int
    reader: str


class NeededByReaders(msgspec.Struct, frozen=True):
    """What readers need of a table: snapshots by id, with one of those who need it; and all readers, in order of their names.

    `keeps_all` says that the position of one is not known, so that nothing may go.
    """

    snapshots: Mapping[int, KeptForReader] = {}
    readers: tuple[ReaderSeen, ...] = ()
    keeps_all: bool = False


def registered_readers(metadata: TableMetadata, refs: Mapping[str, SnapshotRef]) -> list[ReaderPosition]:
    """The readers that have registered in the table's properties, or by one of some references."""
    properties = metadata.properties
    found = []
    for key in sorted(properties):
        if not key.startswith(CONSUMER) or not key.endswith(SNAPSHOT_ID):
            continue
        name = key.removeprefix(CONSUMER).removesuffix(SNAPSHOT_ID)
        snapshot_id, updated = _number(properties[key]), properties.get(f"{CONSUMER}{name}{UPDATED_MS}")
        moved_ms = None if updated is None else _number(updated)
        problem = "" if snapshot_id is not None else f"property {key!r} is {properties[key]!r}, and no id of a snapshot"
        if updated is not None and moved_ms is None:
            problem = (
                problem or f"property {CONSUMER + name + UPDATED_MS!r} is {updated!r}, and no time in milliseconds"
            )
        found.append(
            ReaderPosition(name=name, source=PROPERTY, snapshot_id=snapshot_id, moved_ms=moved_ms, problem=problem)
        )
    for tag, ref in sorted(refs.items()):
        if tag.startswith(CONSUMER_TAG) and not ref.is_branch:
            found.append(ReaderPosition(name=tag.removeprefix(CONSUMER_TAG), source=TAG, snapshot_id=ref.snapshot_id))
    return found


def _number(text: str) -> int | None:
    stripped = text.strip()
    number = int(stripped) if stripped.isascii() and stripped.isdecimal() else None
    return number if number is not None and number <= MAX_LONG else None


def needed_by_readers(
    metadata: TableMetadata, positions: Sequence[ReaderPosition], max_lag_ms: int, now_ms: int
) -> NeededByReaders:
    """The snapshots that readers need: the one that each has read last, and all after it.

    A reader lags since the first snapshot was committed that it has not read, or since it last moved, whichever is later. Up to
    `max_lag_ms` it is waited for. One that has read everything does not lag.
    """
    if not positions:
        return NeededByReaders()
    line = _Line(metadata)
    kept: dict[int, KeptForReader] = {}
    seen: list[ReaderSeen] = []
    for one in positions:
        status, lag_ms, problem = UNREADABLE, None, one.problem
        if not problem:
            status, lag_ms, problem = _standing(one, line, metadata, max_lag_ms, now_ms)
        seen.append(
            ReaderSeen(
                name=one.name,
                source=one.source,
                snapshot_id=one.snapshot_id,
                lag_ms=lag_ms,
                status=status,
                problem=problem,
            )
        )
        if status == WAITED_FOR:
            for snapshot_id in line.from_on(one.snapshot_id, kept):
                kept[snapshot_id] = KeptForReader(snapshot_id, one.name)
    unreadable = next((one for one in seen if one.status == UNREADABLE), None)
    if unreadable is not None:
        for snapshot in metadata.snapshots:
            kept.setdefault(snapshot.snapshot_id, KeptForReader(snapshot.snapshot_id, unreadable.name))
    return NeededByReaders(
        kept, tuple(sorted(seen, key=lambda one: (one.name, one.source))), keeps_all=unreadable is not None
    )


def _standing(
    one: ReaderPosition, line: "_Line", metadata: TableMetadata, max_lag_ms: int, now_ms: int
) -> tuple[str, int | None, str]:
    """The status of a reader whose position is known, its lag, and what is to be said of it."""
    if one.snapshot_id is not None and one.snapshot_id not in metadata.snapshots_by_id:
        return GONE, None, "its snapshot has expired already, or never was one of this table"
    unread_ms = line.first_unread_ms(one.snapshot_id)
    if unread_ms is None:
        return WAITED_FOR, 0, ""
    # A time that has not come yet is none: it would be waited for without end.
    is_moved = one.moved_ms is not None and one.moved_ms <= now_ms + HOUR_MS
    since_ms = max(unread_ms, one.moved_ms or 0) if is_moved else unread_ms
    lag_ms = max(0, now_ms - since_ms)
    if lag_ms > max_lag_ms:
        return TOO_FAR_BEHIND, lag_ms, "it lags for longer than readers.max-lag"
    return WAITED_FOR, lag_ms, ""


class _Line:
    """The snapshots of a table from parents to children; such as were staged, and are on no branch, follow none that is."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._known = metadata.snapshots_by_id
        self._on_branches: set[int] = set()
        for ref in metadata.refs.values():
            if ref.is_branch:
                self._on_branches.update(self._back(metadata, ref.snapshot_id))
        self._children: dict[int | None, list[int]] = {}
        for snapshot in metadata.snapshots:
            parent = snapshot.parent_snapshot_id
            parent = parent if parent in self._known else None
            is_staged = snapshot.snapshot_id not in self._on_branches
            if not is_staged or (parent is not None and parent not in self._on_branches):
                self._children.setdefault(parent, []).append(snapshot.snapshot_id)

    def _back(self, metadata: TableMetadata, snapshot_id: int) -> Iterable[int]:
        for snapshot in metadata.ancestors(snapshot_id):
            if snapshot.snapshot_id in self._on_branches:
                return
            yield snapshot.snapshot_id

    def first_unread_ms(self, snapshot_id: int | None) -> int | None:
        """When the first snapshot after one was committed, or the first of all; `None` where there is none."""
        children = self._children.get(snapshot_id, ())
        return min((self._known[i].timestamp_ms for i in children), default=None)

    def from_on(self, snapshot_id: int | None, kept: Mapping[int, KeptForReader]) -> list[int]:
        """A snapshot and all after it, those that are kept already left out with all after them; `None`: all."""
        found: list[int] = []
        open_ids = [*self._children.get(None, ())] if snapshot_id is None else [snapshot_id]
        reached = set[int]()
        while open_ids:
            one = open_ids.pop()
            if one in kept or one in reached:
                continue
            reached.add(one)
            found.append(one)
            open_ids.extend(self._children.get(one, ()))
        return found
