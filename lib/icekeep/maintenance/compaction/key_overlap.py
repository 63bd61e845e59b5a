"""How far the files of a partition are from an order: how many of them a look-up by key meets. Pure.

Of a sort, the depth of a file is the most files, itself among them, that one key of its range may be in; of a curve it is
the number of files whose box holds the middle of its own. 1 is an order without overlap, the number of files is none at
all. Files that hold one and the same key count as one, since no order could tell them apart.
"""

import math
from collections.abc import Sequence

import numpy as np

from icekeep.maintenance.compaction.key_ranges import Ends, KeySpace
from icekeep.maintenance.intervals import Intervals, Mask, Places

WORTH_DEPTH = 2
"""A look-up in a sorted table may meet this many files: what was sorted before, and what was sorted since."""

_SAMPLES_COUNT = 400
_MAX_ROUNDS = 8


def depth_sum(ranges: Sequence[Ends], space: KeySpace) -> float:
    """The depths of all files of one partition together."""
    if not ranges:
        return 0.0
    if space.is_curve:
        met = _met(ranges)
        # In this order the sum of few files is a whole number, whatever it is added to first.
        return sum(met) * len(ranges) / len(met)
    return float(Intervals.of(ranges).depths().sum())


def overlapping(files: Intervals, chosen: Sequence[bool]) -> Mask:
    """Which files of a partition are to be sorted with those that are chosen already: all that would still lie too deep.

    The new files will span what the chosen ones do, each key in one of them. A file that is left alone has a depth of
    `WORTH_DEPTH` at most after that, and so have the new files; so the same asked again answers none.
    """
    taken = np.asarray(chosen, dtype=np.bool_).copy()
    for _ in range(_MAX_ROUNDS):
        too_deep = ~taken & (files.depths(~taken, files.taken(taken).span()) > WORTH_DEPTH)
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


def around(boxes: Sequence[Ends]) -> Ends:
    """The box of several files together."""
    lower, upper = (list(zip(*ends, strict=True)) for ends in zip(*boxes, strict=True))
    return tuple(map(min, lower)), tuple(map(max, upper))


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
