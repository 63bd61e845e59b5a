"""Which snapshots read a file, which of them added it, and which took it out."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec
import pyarrow as pa

from icekeep.commit.summary import made_by
from icekeep.maintenance.file_life.result import FileEvent, ReadingRef
from icekeep.spec.manifests.structs import Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, Snapshot

ADDED, REMOVED, IN_PART, DESCRIBES = "added", "removed", "removed in part", "describes"


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What snapshots did with a file.

    Attributes:
        readers: snapshots of the table that have it.
        unsure: those of which not all could be read; they may have it too.
        added_by, removed_by: ids, also of snapshots that expired.
    """

    readers: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    added_by: frozenset[int] = frozenset()
    removed_by: frozenset[int] = frozenset()

    @classmethod
    def of_entries(
        cls, entries: pa.Table, named_by: Mapping[str, frozenset[int]], unsure: frozenset[int] = frozenset()
    ) -> Self:
        """By all entries of the file, and the snapshots that name their manifests."""
        readers: set[int] = set()
        added: set[int] = set()
        removed: set[int] = set()
        for row in _distinct(entries):
            is_live = row["status"] != Status.DELETED
            readers |= named_by[row["manifest_path"]] if is_live else frozenset()
            if row["snapshot_id"] is not None:
                # The entry of a file that was deleted says by whom; of all others, who added it.
                (added if is_live else removed).add(row["snapshot_id"])
        return cls(readers=frozenset(readers), unsure=unsure, added_by=frozenset(added), removed_by=frozenset(removed))

    @property
    def is_known(self) -> bool:
        """Whether the table says anything of the file."""
        return bool(self.readers or self.added_by or self.removed_by)

    def newest_reader(self, metadata: TableMetadata) -> Snapshot | None:
        """The version that is told of: the current one if it reads the file, else the newest that does."""
        current = metadata.current_snapshot_id
        if current in self.readers:
            return metadata.current_snapshot
        known = [metadata.snapshots_by_id[i] for i in self.readers]
        return max(known, key=lambda s: (s.sequence_number, s.timestamp_ms), default=None)


def events(lineage: Lineage, metadata: TableMetadata, added: str = ADDED) -> tuple[FileEvent, ...]:
    """What happened to the file, in the order of time; what expired snapshots did comes first.

    A snapshot that does not have the file while its parent does has taken it out, though no entry may say so.
    """
    removing = {
        s.snapshot_id
        for s in metadata.snapshots
        if s.parent_snapshot_id in lineage.readers and s.snapshot_id not in lineage.readers | lineage.unsure
    }
    told = [(added, i) for i in lineage.added_by]
    told += [(IN_PART if i in lineage.readers else REMOVED, i) for i in lineage.removed_by | removing]
    found = [_event(what, snapshot_id, metadata) for what, snapshot_id in told]
    return tuple(sorted(found, key=lambda event: (event.timestamp_ms or 0, event.event, event.snapshot_id)))


def reading_refs(readers: frozenset[int], metadata: TableMetadata) -> tuple[ReadingRef, ...]:
    """Which references lead to the snapshots that read a file; those that none leads to come last."""
    found: list[ReadingRef] = []
    referenced: set[int] = set()
    for name, ref in sorted(metadata.refs.items(), key=lambda item: (item[0] != MAIN, not item[1].is_branch, item[0])):
        behind = [s for s in metadata.ancestors(ref.snapshot_id) if s.snapshot_id in readers] if ref.is_branch else []
        if not ref.is_branch and ref.snapshot_id in readers:
            behind = [metadata.snapshots_by_id[ref.snapshot_id]]
        referenced |= {s.snapshot_id for s in behind}
        if behind:
            found.append(_ref(name, ref.type, behind, is_in_head=ref.snapshot_id in readers))
    left = [s for s in metadata.snapshots if s.snapshot_id in readers - referenced]
    if left:
        found.append(_ref(None, "", left, is_in_head=False))
    return tuple(found)


def _ref(name: str | None, kind: str, behind: Iterable[Snapshot], *, is_in_head: bool) -> ReadingRef:
    times = [snapshot.timestamp_ms for snapshot in behind]
    return ReadingRef(
        ref=name,
        type=kind,
        is_in_head=is_in_head,
        snapshots_count=len(times),
        oldest_timestamp_ms=min(times),
        newest_timestamp_ms=max(times),
    )


def _event(what: str, snapshot_id: int, metadata: TableMetadata) -> FileEvent:
    snapshot = metadata.snapshots_by_id.get(snapshot_id)
    return FileEvent(
        event=what,
        snapshot_id=snapshot_id,
        timestamp_ms=None if snapshot is None else snapshot.timestamp_ms,
        operation=None if snapshot is None else snapshot.operation,
        made_by=None if snapshot is None else made_by(snapshot.summary),
    )


def _distinct(entries: pa.Table) -> list[dict[str, Any]]:
    """Rows that differ in what matters: a Puffin file has an entry for each of its vectors."""
    names = ["manifest_path", "status", "snapshot_id"]
    rows: list[dict[str, Any]] = entries.select(names).group_by(names).aggregate([]).to_pylist()
    return rows
