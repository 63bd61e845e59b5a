"""What looks wrong by keys alone, to be read again: files that are live twice, missing, of another size or of two kinds."""

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from icekeep.maintenance.checking.entries.meeting import Meeting
from icekeep.maintenance.checking.entries.sketch import Rows, Sketch
from icekeep.maintenance.deletion.path_set import among
from icekeep.storage.location_keys import Keys

_NONE: Keys = np.empty(0, np.int64)


class Suspects(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, ascending and each once; eight bytes a file that looks wrong.

    Attributes:
        files: of files whose entries are looked at.
        unseen: those of them that a listing does not have, or has with another size.
        targets: of data files whose vectors are looked at.
        manifests: the numbers of the manifests that have any of these.
        rows_count: how many entries that are.
    """

    files: Keys = msgspec.field(default_factory=lambda: _NONE)
    unseen: Keys = msgspec.field(default_factory=lambda: _NONE)
    targets: Keys = msgspec.field(default_factory=lambda: _NONE)
    manifests: BitMap = msgspec.field(default_factory=BitMap)
    rows_count: int = 0

    @classmethod
    def joined(cls, several: Iterable["Suspects"]) -> "Suspects":
        """What was found in parts."""
        held = [*several]
        return cls(
            files=_united(*(one.files for one in held)),
            unseen=_united(*(one.unseen for one in held)),
            targets=_united(*(one.targets for one in held)),
            manifests=BitMap.union(BitMap(), *(one.manifests for one in held)),
            rows_count=sum(one.rows_count for one in held),
        )


def suspects_of(
    sketch: Sketch, by_target: Rows, listed: Keys | None, meeting: Meeting, is_delete: NDArray[np.bool_]
) -> Suspects:
    """Hold entries against each other and against a listing.

    Args:
        sketch: all entries of some files.
        by_target: all vectors of some data files, rows of `VECTOR`.
        listed: `Sketch.marks` of what storage has, ascending; `None` where nobody has looked.
        is_delete: by number of a manifest whether it tracks delete files.
    """
    keys, numbers, vectors = sketch.keys, sketch.manifests, sketch.vectors
    unseen = np.unique(keys if listed is None else keys[~among(sketch.marks, listed)])
    of_deletes = is_delete[numbers]
    both = np.unique(keys[among(keys, np.unique(keys[of_deletes])) & ~of_deletes])
    doubled = doubled_keys(sketch.files["key"], sketch.files["manifest"], meeting)
    doubled_vectors = among(vectors["id"], doubled_keys(vectors["id"], vectors["manifest"], meeting))
    files = _united(unseen, doubled, vectors["key"][doubled_vectors], both)
    by_target = by_target[by_target["ref"] != 0]
    targets = doubled_keys(by_target["ref"], by_target["manifest"], meeting)
    is_file, is_target = among(keys, files), among(by_target["ref"], targets)
    return Suspects(
        files=files,
        unseen=unseen,
        targets=targets,
        manifests=BitMap(np.unique(numbers[is_file]).tolist())
        | BitMap(np.unique(by_target["manifest"][is_target]).tolist()),
        rows_count=int(np.count_nonzero(is_file)) + int(np.count_nonzero(is_target)),
    )


def doubled_keys(keys: Keys, manifests: NDArray[np.int32], meeting: Meeting) -> Keys:
    """Keys that one snapshot has twice: in one manifest, or in two that meet."""
    order = np.lexsort((manifests, keys))
    keys, manifests = keys[order], manifests[order]
    alike = keys[1:] == keys[:-1]
    in_one = alike & (manifests[1:] == manifests[:-1])
    # Only what has a neighbour; after a rewrite of manifests that is each file of the table.
    several = np.zeros(len(keys), np.bool_)
    several[1:] |= alike
    several[:-1] |= alike
    return _united(np.unique(keys[1:][in_one]), _that_meet(keys[several], manifests[several], meeting))


def _that_meet(keys: Keys, manifests: NDArray[np.int32], meeting: Meeting) -> Keys:
    """Of keys in order, each several times, those with manifests that meet. Files mostly move from manifest to manifest together,
    so each set of manifests is asked once: it is told by a sum of random numbers, one for each manifest.
    """
    if not len(keys):
        return _NONE
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    ends = np.append(starts[1:], len(keys))
    lots = np.random.default_rng(0).integers(0, 1 << 63, len(meeting.snapshots_of), np.int64).view(np.uint64)
    sums = np.add.reduceat(lots[manifests], starts)
    _, first, places = np.unique(sums, return_index=True, return_inverse=True)
    meets = [not meeting.are_apart(manifests[starts[one] : ends[one]].tolist()) for one in first.tolist()]
    return keys[starts[np.array(meets, np.bool_)[places]]]


def _united(*several: Keys) -> Keys:
    return np.unique(np.concatenate([_NONE, *several]))
