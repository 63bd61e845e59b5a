"""Intervals of keys on a line: how many lie over each other, and how much overlaps with each. Pure.

Files of a sort have intervals of sort keys, manifests have intervals of partitions.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Places: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


class Intervals(msgspec.Struct, frozen=True):
    """Intervals as ranges of places, `last` included; even places are keys where one ends, odd ones lie between two.

    An interval does not hold its ends, so that two which meet at one do not overlap. One whose ends are equal is a point and
    holds that key alone.
    """

    first: Places
    last: Places

    @classmethod
    def of(cls, ends: Sequence[tuple[Any, Any] | None]) -> "Intervals":
        """Intervals by their ends, which can be sorted; `None` reaches from before the first key to behind the last."""
        keys = sorted({end for pair in ends if pair is not None for end in pair})
        ranks = {key: 2 * rank for rank, key in enumerate(keys, start=1)}
        everything = 0, 2 * len(keys) + 2
        pairs = [everything if pair is None else (ranks[pair[0]], ranks[pair[1]]) for pair in ends]
        low, high = np.array(pairs, np.int64).reshape(-1, 2).T
        inner = low < high
        return cls(low + inner, high - inner)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def are_points(self) -> Mask:
        return (self.first == self.last) & (self.first % 2 == 0)

    def taken(self, numbers: NDArray[Any]) -> "Intervals":
        """Some of them, by number or by a mask."""
        return Intervals(self.first[numbers], self.last[numbers])

    def span(self) -> tuple[int, int] | None:
        """The first and the last place that any of them holds."""
        return (int(self.first.min()), int(self.last.max())) if len(self) else None

    def depths(self, among: Mask | None = None, covered: tuple[int, int] | None = None) -> Places:
        """For each interval the most intervals that hold one place of it; points of one key count as one.

        Args:
            among: which intervals are counted; all by default.
            covered: places that one interval more holds.
        """
        if not len(self):
            return np.empty(0, np.int64)
        among = np.ones(len(self), np.bool_) if among is None else among
        # How many intervals hold each place.
        wide, points = among & ~self.are_points, among & self.are_points
        counts = np.cumsum(self._sums(self.first[wide], 1) - self._sums(self.last[wide] + 1, 1))
        counts[np.unique(self.first[points])] += 1
        if covered is not None:
            counts[covered[0] : covered[1] + 1] += 1
        return _greatest(counts, self.first, self.last)

    def overlapping(self, weights: Places) -> Places:
        """For each interval the weights of those that it overlaps, and its own, together; a point overlaps no equal one."""
        begun = np.cumsum(self._sums(self.first, weights))[self.last]
        ended = np.cumsum(self._sums(self.last + 1, weights))[self.first]
        points = self.are_points
        equal = self._sums(self.first[points], weights[points])[self.first] - weights
        return begun - ended - np.where(points, equal, 0)

    def _sums(self, places: Places, weights: Places | int) -> Places:
        """For each place its weights, together."""
        sums = np.zeros(int(self.last.max(initial=0)) + 2, np.int64)
        np.add.at(sums, places, weights)
        return sums


def _greatest(values: Places, first: Places, last: Places) -> Places:
    """The greatest value from each `first` to its `last`: of two overlapping spans of a power of two of places."""
    spans = [values]
    while 2 ** len(spans) <= len(values):
        step, before = 2 ** (len(spans) - 1), spans[-1]
        spans.append(np.maximum(before[:-step], before[step:]))
    level = np.frexp((last - first + 1).astype(np.float64))[1] - 1
    found = np.empty(len(first), dtype=np.int64)
    for number, span in enumerate(spans):
        here = level == number
        found[here] = np.maximum(span[first[here]], span[last[here] - 2**number + 1])
    return found
