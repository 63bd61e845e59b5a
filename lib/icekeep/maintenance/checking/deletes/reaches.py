"""The last row that delete files name of each data file (411): by keys of locations first, then told of those that are wrong."""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.maintenance.checking.deletes.claims import Claim, Telling, is_vector
from icekeep.maintenance.checking.entries.keys import keys_of
from icekeep.maintenance.checking.faults import Tally
from icekeep.storage.location_keys import Keys

POSITION_OUT_OF_RANGE = 411

REACH = np.dtype([("target", np.int64), ("file", np.int64), ("last", np.int64)])
"""Keys of a data file and of a delete file, and the last position that the one has in the other."""

Reaches = NDArray[Any]


class Seen(Protocol):
    """Takes in what delete files delete."""

    def add(self, claim: Claim, paths: list[str], lasts: NDArray[np.int64]) -> None:
        """Take in the last positions that a delete file has for some data files; one may come several times."""


class Noted:
    """Keeps reaches, of many files only the last position for each data file."""

    def __init__(self, limit: int) -> None:
        """`limit` is how many are kept; beyond it `is_cut` says that some are not."""
        self.is_cut = False
        self._limit = limit
        self._parts: list[Reaches] = []
        self._count = 0

    def add(self, claim: Claim, paths: list[str], lasts: NDArray[np.int64]) -> None:
        """See `Seen`."""
        targets, there = keys_of(pa.array(paths, pa.string()))
        reaches = np.empty(len(paths), REACH)
        reaches["target"], reaches["last"] = targets, lasts
        reaches["file"] = keys_of(pa.array([claim.path]))[0][0]
        self._parts.append(_last_of_each(reaches[there]))
        self._count += len(self._parts[-1])
        if self._count > self._limit:
            self._parts, self.is_cut = [], True

    def all(self) -> Reaches:
        """All that is kept; nothing where it was too much."""
        return np.concatenate([np.empty(0, REACH), *([] if self.is_cut else self._parts)])


class Lengths(msgspec.Struct, frozen=True):
    """How many rows data files have: keys of their locations, ascending, and counts."""

    targets: Keys
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, several: Iterable[tuple[Keys, NDArray[np.int64]]]) -> "Lengths":
        """Of a file whose entries disagree the greatest count is right: the others are faults of their own."""
        held = [(np.empty(0, np.int64), np.empty(0, np.int64)), *several]
        keys, counts = (np.concatenate(arrays) for arrays in zip(*held, strict=True))
        order = np.lexsort((counts, keys))
        keys, counts = keys[order], counts[order]
        is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        return cls(keys[is_last], counts[is_last])

    def beyond(self, targets: Keys, lasts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which positions are beyond the ends of their data files; of a file that is not known none is."""
        if not len(self.targets):
            return np.zeros(len(targets), np.bool_)
        at = np.minimum(np.searchsorted(self.targets, targets), len(self.targets) - 1)
        return (self.targets[at] == targets) & (lasts >= self.counts[at])

    def some(self, targets: Keys) -> "Lengths":
        """The counts of some data files."""
        chosen = np.isin(self.targets, targets)
        return Lengths(self.targets[chosen], self.counts[chosen])

    def count(self, target: int) -> int:
        """The count of one file, which is known."""
        return int(self.counts[np.searchsorted(self.targets, target)])


class Judged:
    """Tells which positions of a delete file are beyond the ends of data files: of each delete file once."""

    def __init__(self, lengths: Lengths, telling: Telling, tally: Tally) -> None:
        self._lengths, self._telling, self._tally = lengths, telling, tally
        self._told: set[tuple[str, int | None]] = set()

    def add(self, claim: Claim, paths: list[str], lasts: NDArray[np.int64]) -> None:
        """See `Seen`."""
        targets, there = keys_of(pa.array(paths, pa.string()))
        wrong = np.flatnonzero(self._lengths.beyond(targets, lasts) & there)
        offset = claim.row["content_offset"] if is_vector(claim.row) else None
        if not len(wrong) or (claim.path, offset) in self._told:
            return
        self._told.add((claim.path, offset))
        at = int(wrong[0])
        last, rows = int(lasts[at]), self._lengths.count(int(targets[at]))
        what = f"its vector at {offset}" if offset is not None else "it"
        self._telling.fault(
            self._tally,
            POSITION_OUT_OF_RANGE,
            claim,
            f"{what} deletes row {last} of data file {paths[at]!r}, which has {rows} rows",
            recorded=rows,
            found=last,
            data_file=paths[at],
        )


def _last_of_each(reaches: Reaches) -> Reaches:
    order = np.lexsort((reaches["last"], reaches["target"]))
    reaches = reaches[order]
    is_last = np.append(reaches["target"][1:] != reaches["target"][:-1], True)[: len(reaches)]
    return reaches[is_last]
