"""What each branch and tag keeps alive: snapshots by metadata alone, files by the entries of heads."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.health.files import own_sizes
from icekeep.health.values import RefHealth
from icekeep.planning.entries import DecodedEntries
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.location_keys import location_keys

KEY_COLUMNS = frozenset({"manifest_path", "file_path", "file_size_in_bytes", "content_size_in_bytes", "content_offset"})

MAX_HEADS = 63
"""A set of heads is a word of so many bits."""


class HeldFold:
    """A `Fold`: keys of files with their sizes and the heads that they are live at; 24 bytes of each.

    Args:
        masks: by the path of a manifest, bit n for the head n.
    """

    def __init__(self, masks: Mapping[str, int]) -> None:
        self._paths = pa.array([*masks], pa.string())
        self._masks = np.fromiter(masks.values(), np.int64, len(masks))
        self._found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        if not rows.num_rows:
            return
        words = self._masks[pc.index_in(rows["manifest_path"], self._paths).to_numpy()]
        # Vectors of one Puffin file differ in their offset alone.
        offsets = np.asarray(pc.fill_null(rows["content_offset"], 0))
        keys = location_keys(rows["file_path"]) ^ (offsets * _STEP)
        self._found.append((keys, own_sizes(rows), words))

    def merge(self, other: "HeldFold") -> None:
        self._found += other._found

    def held(self) -> dict[int, tuple[int, int]]:
        """By the set of heads that files are live at, their number and bytes."""
        if not self._found:
            return {}
        keys, sizes, words = (np.concatenate(column) for column in zip(*self._found, strict=True))
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        masks = np.zeros(len(first), np.int64)
        np.bitwise_or.at(masks, place, words)
        kinds, kind = np.unique(masks, return_inverse=True)
        counts, sums = np.bincount(kind, minlength=len(kinds)), np.zeros(len(kinds), np.int64)
        np.add.at(sums, kind, sizes[first])
        return {int(k): (int(c), int(s)) for k, c, s in zip(kinds, counts, sums, strict=True)}


_STEP = np.int64(0x5851F42D4C957F2D)


def refs_health(
    metadata: TableMetadata, heads: Sequence[int], held: Mapping[int, tuple[int, int]] | None
) -> tuple[RefHealth, ...]:
    """Each reference, the one that alone keeps most first.

    Args:
        heads: the snapshots that references are at, each once; bit n of the sets of `held` is the head n.
        held: `None` where files were not counted.
    """
    kept = {name: _kept(metadata, name) for name in metadata.refs}
    holders: dict[int, int] = {}
    for snapshot_ids in kept.values():
        for snapshot_id in snapshot_ids:
            holders[snapshot_id] = holders.get(snapshot_id, 0) + 1
    found = []
    for name, ref in metadata.refs.items():
        one = RefHealth(
            ref=name,
            type=ref.type,
            snapshot_id=ref.snapshot_id,
            snapshots_count=len(kept[name]),
            only_snapshots_count=sum(holders[snapshot_id] == 1 for snapshot_id in kept[name]),
        )
        found.append(one if held is None else _with_files(one, metadata, heads, held))
    return tuple(sorted(found, key=lambda one: (-(one.only_bytes or 0), one.ref)))


def ancestors_of(metadata: TableMetadata, snapshot_ids: Iterable[int | None]) -> set[int]:
    """Some snapshots and all that they come from; each is come to once."""
    found: set[int] = set()
    for snapshot_id in snapshot_ids:
        for snapshot in metadata.ancestors(snapshot_id):
            if snapshot.snapshot_id in found:
                break
            found.add(snapshot.snapshot_id)
    return found


def _kept(metadata: TableMetadata, name: str) -> list[int]:
    ref = metadata.refs[name]
    if not ref.is_branch:
        return [ref.snapshot_id]
    return [snapshot.snapshot_id for snapshot in metadata.ancestors(ref.snapshot_id)]


def _with_files(
    one: RefHealth, metadata: TableMetadata, heads: Sequence[int], held: Mapping[int, tuple[int, int]]
) -> RefHealth:
    bit = 1 << heads.index(one.snapshot_id)
    mine = [amount for mask, amount in held.items() if mask & bit]
    alone = held.get(bit, (0, 0))
    if sum(ref.snapshot_id == one.snapshot_id for ref in metadata.refs.values()) > 1:
        # Another reference is at the same snapshot.
        alone = (0, 0)
    return msgspec.structs.replace(
        one,
        files_count=sum(count for count, _ in mine),
        bytes=sum(size for _, size in mine),
        only_files_count=alone[0],
        only_bytes=alone[1],
    )
