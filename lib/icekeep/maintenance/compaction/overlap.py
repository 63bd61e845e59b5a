"""How far the files of a partition are from an order: how many of them a look-up by key meets. Pure.

Of a sort, the depth of a file is the most files, itself among them, that one key of its range may be in; of a curve it is
the number of files whose box holds the middle of its own. 1 is an order without overlap, the number of files is none at
all. Files that hold one and the same key count as one, since no order could tell them apart.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icekeep.maintenance.compaction.key_ranges import Ends, KeySpace

WORTH_DEPTH = 2
"""A look-up in a sorted table may meet this many files: what was sorted before, and what was sorted since."""

_SAMPLES_COUNT = 400
_MAX_ROUNDS = 8

Places = NDArray[np.int64]


def depth_sum(ranges: Sequence[Ends], space: KeySpace) -> float:
    """The depths of all files of one partition together."""
    if not ranges:
        return 0.0
    if space.is_curve:
        met = _met(ranges)
        # In this order the sum of few files is a whole number, whatever it is added to first.
        return sum(met) * len(ranges) / len(met)
    return float(Line(ranges).all_depths().sum())


def overlapping(line: "Line", chosen: Sequence[bool]) -> NDArray[np.bool_]:
    """Which files of a partition are to be sorted with those that are chosen already: all that would still lie too deep.

    The new files will span what the chosen ones do, each key in one of them. A file that is left alone has a depth of
    `WORTH_DEPTH` at most after that, and so have the new files; so the same asked again answers none.
    """
    taken = np.asarray(chosen, dtype=np.bool_).copy()
    if not len(taken):
        return taken
    for _ in range(_MAX_ROUNDS):
        too_deep = ~taken & (line.depths(~taken, line.span(taken)) > WORTH_DEPTH)
        if not too_deep.any():
            return taken
        taken |= too_deep
    # Each round found more beyond the ends of the last one: a staircase, which is sorted as a whole.
    return np.ones(len(taken), dtype=np.bool_)


def box_depth(boxes: Sequence[Ends]) -> float:
    """The mean depth of the files of one partition on a curve; of many files, of a sample of them."""
    met = _met(boxes)
    return sum(met) / len(met)


def _met(boxes: Sequence[Ends]) -> list[int]:
    """How many boxes hold the middle of each box, or of each box of a sample."""
    lower, upper = _box_places(boxes)
    is_point = (lower == upper).all(axis=1)
    alike = np.unique(np.concatenate([lower, upper], axis=1)[is_point], axis=0)
    width = lower.shape[1]
    lows = np.concatenate([lower[~is_point], alike[:, :width]])
    highs = np.concatenate([upper[~is_point], alike[:, width:]])
    middles = ((lower + upper) // 2)[:: max(1, len(boxes) // _SAMPLES_COUNT)]
    return [int(((lows <= middle) & (middle <= highs)).all(axis=1).sum()) for middle in middles]


def worth_box_depth(files_count: int) -> float:
    """Above so many files that a look-up meets, of so many in all, a partition is worth sorting along a curve anew.

    Files that a curve cuts out of a partition are no boxes; their boxes overlap where a file reaches over one of the halves,
    quarters and so on that the curve goes through, at most one file a level.
    """
    return 2 + math.log2(max(1, files_count))


def along_boxes(boxes: Sequence[Ends]) -> list[int]:
    """The files in an order in which neighbours lie near each other in all columns: a z-order of their middles' ranks."""
    lower, upper = _box_places(boxes)
    middles = lower + upper
    places = []
    for position, middle in enumerate(middles.tolist()):
        code = 0
        for bit in range(40, -1, -1):
            for value in middle:
                code = code << 1 | value >> bit & 1
        places.append((code, position))
    return [position for _, position in sorted(places)]


def _box_places(boxes: Sequence[Ends]) -> tuple[Places, Places]:
    """The ends of boxes by their ranks among all ends of each column, times two: what is odd lies between two."""
    lower = np.empty((len(boxes), len(boxes[0][0])), dtype=np.int64)
    upper = np.empty_like(lower)
    for column in range(lower.shape[1]):
        ranks = {key: rank for rank, key in enumerate(sorted({ends[column] for box in boxes for ends in box}))}
        lower[:, column] = [2 * ranks[low[column]] for low, _ in boxes]
        upper[:, column] = [2 * ranks[high[column]] for _, high in boxes]
    return lower, upper


class Line:
    """The files of a partition in a sort, as ranges of places on a line.

    Even places are ends of files, odd ones lie between two ends. A range does not hold its ends; a file of one key holds
    that place alone.
    """

    def __init__(self, ranges: Sequence[Ends]) -> None:
        ranks = {key: rank for rank, key in enumerate(sorted({end for ends in ranges for end in ends}))}
        low = np.array([2 * ranks[low] for low, _ in ranges], dtype=np.int64)
        high = np.array([2 * ranks[high] for _, high in ranges], dtype=np.int64)
        self._is_point = low == high
        self._first = np.where(self._is_point, low, low + 1)
        self._last = np.where(self._is_point, high, high - 1)
        self._places_count = 2 * len(ranks)

    def all_depths(self) -> NDArray[np.int64]:
        """The depth of each file."""
        return self.depths(np.ones(len(self._first), dtype=np.bool_), None)

    def span(self, files: NDArray[np.bool_]) -> tuple[int, int] | None:
        """The first and the last place that some files reach."""
        if not files.any():
            return None
        return int(self._first[files].min()), int(self._last[files].max())

    def depths(self, files: NDArray[np.bool_], covered: tuple[int, int] | None) -> NDArray[np.int64]:
        """The most of `files` that one place of each file is in, and one more where `covered`; of all files."""
        over = self._over(files)
        if covered is not None:
            over[covered[0] : covered[1] + 1] += 1
        return _greatest(over, self._first, self._last)

    def _over(self, files: NDArray[np.bool_]) -> NDArray[np.int64]:
        wide = files & ~self._is_point
        starts = np.bincount(self._first[wide], minlength=self._places_count + 1)
        stops = np.bincount(self._last[wide] + 1, minlength=self._places_count + 1)
        over = np.cumsum(starts - stops)
        over[np.unique(self._first[files & self._is_point])] += 1
        return over


def _greatest(values: NDArray[np.int64], first: Places, last: Places) -> NDArray[np.int64]:
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
