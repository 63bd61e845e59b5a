"""Which manifests one snapshot has together: a file in two manifests is doubled only where they meet."""

from collections.abc import Iterable, Sequence

import msgspec
from pyroaring import BitMap

from icekeep.maintenance.checking.subject import Listed
from icekeep.spec.snapshots import Snapshot


class Meeting(msgspec.Struct, frozen=True):
    """The snapshots of each manifest; can be pickled.

    Attributes:
        snapshot_ids: of the snapshots that are looked at, the oldest first.
        snapshots_of: by number of a manifest the positions in `snapshot_ids` of those that have it.
    """

    snapshot_ids: tuple[int, ...]
    snapshots_of: tuple[BitMap, ...]

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], listed: Listed) -> "Meeting":
        """Turn round what a listing says of each snapshot: the work grows with what changes from one to the next."""
        ids = tuple(dict.fromkeys(snapshot.snapshot_id for snapshot in snapshots))
        found = [BitMap() for _ in listed.manifests]
        begun: dict[int, int] = {}
        before = BitMap()
        for position, snapshot_id in enumerate((*ids, None)):
            now = BitMap() if snapshot_id is None else listed.members.get(snapshot_id, BitMap())
            for number in before - now:
                found[number].add_range(begun.pop(number), position)
            begun.update(dict.fromkeys(now - before, position))
            before = now
        return cls(ids, tuple(found))

    def are_apart(self, manifests: Iterable[int]) -> bool:
        """Whether no snapshot has two of some manifests, or one of them twice."""
        seen, count = BitMap(), 0
        for number in manifests:
            seen |= self.snapshots_of[number]
            count += len(self.snapshots_of[number])
        return len(seen) == count

    def holding(self, manifests: Iterable[int]) -> BitMap:
        """The positions of the snapshots that have any of some manifests."""
        return BitMap.union(BitMap(), *(self.snapshots_of[number] for number in manifests))

    def oldest(self, positions: BitMap) -> int | None:
        """The id of the oldest of some snapshots."""
        return self.snapshot_ids[positions.min()] if positions else None


def twice(several: Iterable[BitMap]) -> BitMap:
    """The snapshots that are in two of some sets, or more."""
    seen, again = BitMap(), BitMap()
    for one in several:
        again |= seen & one
        seen |= one
    return again
