"""Ranges of rows of one row group: an array of pairs, a first row and the row behind the last, ascending and apart."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from icekeep.formats.arrow.masks import Mask

Ranges: TypeAlias = NDArray[np.int64]
"""Pairs of rows."""

Boundaries: TypeAlias = NDArray[np.int64]
"""The first row of each page, ascending, and last the number of rows."""


def whole(row_count: int) -> Ranges:
    """All rows."""
    return np.array([[0, row_count]], np.int64)


def rows_in(ranges: Ranges) -> int:
    """How many rows ranges have."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def runs(mask: Mask) -> Ranges:
    """The runs of what is true."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return edges.reshape(-1, 2).astype(np.int64)


def ranges_of_pages(chosen: Mask, boundaries: Boundaries) -> Ranges:
    """The rows of some pages; pages that lie side by side are one range."""
    return boundaries[runs(chosen)].reshape(-1, 2)


def pages_of_ranges(ranges: Ranges, boundaries: Boundaries) -> Mask:
    """Which pages have a row of the ranges."""
    first = np.searchsorted(boundaries, ranges[:, 0], "right") - 1
    behind = np.searchsorted(boundaries, ranges[:, 1], "left")
    steps = np.zeros(len(boundaries), np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, behind, -1)
    return np.cumsum(steps[:-1]) > 0


def joined(ranges: Ranges, gap: int) -> Ranges:
    """The same ranges, and what lies between two that are at most `gap` rows apart."""
    if len(ranges) < 2:
        return ranges
    apart = np.flatnonzero(ranges[1:, 0] - ranges[:-1, 1] > gap)
    return np.stack((ranges[np.append(0, apart + 1), 0], ranges[np.append(apart, len(ranges) - 1), 1]), axis=1)


def few(ranges: Ranges, gap: int, most: int) -> Ranges:
    """As `joined`, with as large a gap as makes them no more than `most`."""
    ranges = joined(ranges, gap)
    while len(ranges) > most:
        gap = 4 * max(1, gap)
        ranges = joined(ranges, gap)
    return ranges
