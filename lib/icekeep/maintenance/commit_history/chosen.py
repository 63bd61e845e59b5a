"""Which commits are told of, and in whose history each is: from the table's metadata alone."""

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import merge
from typing import TypeAlias

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotLogEntry

Chosen: TypeAlias = Snapshot | SnapshotLogEntry
"""A snapshot, or what the snapshot log has of one that is gone."""


def chosen_commits(metadata: TableMetadata, ref: str | None) -> Iterator[Chosen]:
    """The commits of a branch or tag, or of all of the table, the newest first; one after its parent where clocks were wrong.

    The snapshot log is that of `main`: expired commits are of it, or of no known branch.

    Raises:
        NotFoundError: there is no such branch or tag.
    """
    if ref is None:
        # Of snapshots of one moment a child has the higher number, or comes later in the metadata (v1).
        newest_first = sorted(metadata.snapshots, key=lambda s: (s.timestamp_ms, s.sequence_number))[::-1]
        there: Iterator[Snapshot] = iter(newest_first)
    else:
        head = metadata.head(ref)
        there = metadata.ancestors(None if head is None else head.snapshot_id)
    expired = reversed(expired_commits(metadata)) if ref in (None, MAIN) else ()
    return merge(there, expired, key=lambda commit: -commit.timestamp_ms)


def expired_commits(metadata: TableMetadata) -> list[SnapshotLogEntry]:
    """What the snapshot log has of snapshots that are gone, once each, the oldest first."""
    first: dict[int, SnapshotLogEntry] = {}
    for entry in metadata.snapshot_log:
        if entry.snapshot_id not in metadata.snapshots_by_id:
            first.setdefault(entry.snapshot_id, entry)
    return sorted(first.values(), key=lambda entry: entry.timestamp_ms)


def refs_by_snapshot(metadata: TableMetadata) -> Mapping[int, frozenset[str]]:
    """The branches and tags in whose history each snapshot is; one that no reference leads to is left out.

    Names go from children to parents, so that a hundred branches of ten thousand snapshots are walked once.
    """
    known = metadata.snapshots_by_id
    names: dict[int, frozenset[str]] = {}
    for name, ref in metadata.refs.items():
        names[ref.snapshot_id] = names.get(ref.snapshot_id, frozenset()) | {name}
    children = Counter(s.parent_snapshot_id for s in metadata.snapshots if s.parent_snapshot_id in known)
    ready = [snapshot_id for snapshot_id in known if not children[snapshot_id]]
    while ready:
        snapshot_id = ready.pop()
        parent_id = known[snapshot_id].parent_snapshot_id
        if parent_id not in known or parent_id is None:
            continue
        if snapshot_id in names:
            passed = names[snapshot_id]
            # Along a line without branches all share one set.
            names[parent_id] = names[parent_id] | passed if parent_id in names else passed
        children[parent_id] -= 1
        if not children[parent_id]:
            ready.append(parent_id)
    return names
