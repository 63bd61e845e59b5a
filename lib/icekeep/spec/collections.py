"""Lists divided into bins of about equal weight, and parts of a shared list as sets of positions.

`balanced` is for items in any order, `cut_evenly` for a number of bins that keep neighbours together, `packed` for bins of a
given capacity. Sets of positions are roaring bitmaps: the delete files that reach a data file are mostly a stretch of an
ordered list, which takes a few bytes at any length.
"""

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, groupby, pairwise
from operator import sub
from typing import Any, Generic, TypeAlias, TypeVar

from pyroaring import BitMap, FrozenBitMap

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)

Limit: TypeAlias = tuple[Callable[[T], float], float]
"""The measure of an item, and the most of it in a bin; an item above that has a bin of its own."""


def each_once(item: object) -> int:
    """The measure of a limit on the number of items."""
    return 1


def balanced(items: Iterable[T], weight: Callable[[T], float], bins_count: int) -> list[list[T]]:
    """At most `bins_count` bins, none empty: the heaviest item first, each to the lightest bin.

    >>> balanced([1, 2, 3, 4, 5], float, 2)
    [[5, 2, 1], [4, 3]]
    """
    lightest = [(0.0, number) for number in range(bins_count)]
    bins: list[list[T]] = [[] for _ in range(bins_count)]
    for item in sorted(items, key=weight, reverse=True):
        total, number = lightest[0]
        bins[number].append(item)
        heapq.heapreplace(lightest, (total + weight(item), number))
    return [held for held in bins if held]


def growing(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Stretches of a list, each four times as long as the one before, for searches that stop early.

    >>> [*growing("abcdefg")]
    ['a', 'bcde', 'fg']
    """
    start, count = 0, 1
    while start < len(items):
        yield items[start : start + count]
        start, count = start + count, 4 * count


def cut_evenly(items: Sequence[T], weight: Callable[[T], float], count: int, *limits: Limit[T]) -> list[Sequence[T]]:
    """A list cut into at most `count` stretches, none empty; more where limits require it.

    An item belongs to the stretch that its middle lies in, so that neighbours of a heavy one are not drawn into its stretch.

    >>> cut_evenly([4, 4, 4, 4, 4, 4, 1], float, 3)
    [[4, 4], [4, 4], [4, 4, 1]]
    """
    ends = _sums(map(weight, items))
    share = ends[-1] / count or 1
    middles = array("d", ((before + after) / 2 for before, after in pairwise(ends)))
    sums = [(_sums(map(measure, items)), most) for measure, most in limits]
    cut: list[Sequence[T]] = []
    start = number = 0
    while start < len(items):
        # A stretch that a limit ended does not shorten the next one.
        number = max(number, int(middles[start] // share)) + 1
        stop = bisect_right(middles, share * number) if number < count else len(items)
        for upto, most in sums:
            stop = min(stop, bisect_right(upto, upto[start] + most) - 1)
        stop = max(stop, start + 1)
        cut.append(items[start:stop])
        start = stop
    return cut


def _sums(weights: Iterable[float]) -> "array[float]":
    """The weight before each item, and the total; 8 bytes each, since there may be millions of items."""
    sums = array("d", (0.0,))
    sums.extend(accumulate(weights))
    return sums


def packed(items: Iterable[T], *limits: Limit[T], lookback: int = 1, heaviest_first: bool = False) -> Iterator[list[T]]:
    """Bins filled up to their limits, as Iceberg's `BinPacking`: each item goes into the first open bin that has room for it.

    At most `lookback` bins are open, and only their items and the next one are held; one bin more closes the oldest, or with
    `heaviest_first` the oldest of those with most of the first limit. With a `lookback` of 1 all items stay in order.

    >>> list(packed([4, 4, 4, 9, 2], (float, 8)))
    [[4, 4], [4], [9], [2]]
    >>> list(packed([4, 5, 2, 3, 9], (float, 8), lookback=2, heaviest_first=True))
    [[9], [4, 2], [5, 3]]
    """
    measures, mosts = zip(*limits, strict=True)
    bins: list[tuple[list[T], list[float]]] = []
    for item in items:
        sizes = [measure(item) for measure in measures]
        for held, free in bins:
            left = [*map(sub, free, sizes)]
            if min(left) >= 0:
                held.append(item)
                free[:] = left
                break
        else:
            bins.append(([item], [*map(sub, mosts, sizes)]))
        if len(bins) > lookback:
            closed = min(range(len(bins)), key=lambda number: bins[number][1][0]) if heaviest_first else 0
            yield bins.pop(closed)[0]
    yield from (held for held, _ in bins)


PositionSet: TypeAlias = FrozenBitMap
"""Positions in a list, each below 2^32."""

NO_POSITIONS = FrozenBitMap()

Stretch = tuple[int, int]
"""The first position of a stretch, and the one after its last."""


def of_stretches(some: Iterable[Stretch]) -> PositionSet:
    """The positions of stretches, which may overlap and come in any order.

    >>> list(of_stretches([(4, 6), (0, 2), (5, 7)]))
    [0, 1, 4, 5, 6]
    """
    positions = BitMap()
    for start, stop in some:
        positions.add_range(start, stop)
    return FrozenBitMap(positions)


def is_stretch(positions: PositionSet) -> bool:
    """Whether the positions are one stretch without gaps, and not empty."""
    return bool(positions) and positions.max() - positions.min() + 1 == len(positions)


def stretches(positions: PositionSet) -> list[Stretch]:
    """The stretches of neighbouring positions, in order.

    >>> stretches(FrozenBitMap([4, 7, 8, 9]))
    [(4, 5), (7, 10)]
    """
    if is_stretch(positions):
        return [(positions.min(), positions.max() + 1)]
    # Neighbours have the same distance from their ranks in the set.
    neighbours = ([*members] for _, members in groupby(enumerate(positions), lambda one: one[1] - one[0]))
    return [(members[0][1], members[-1][1] + 1) for members in neighbours]


def narrowed(whole: Sequence[Item], parts: Sequence[PositionSet]) -> tuple[list[Item], list[PositionSet]]:
    """The members of a list that are in any of its parts, in order, and the parts as positions among these.

    >>> used, parts = narrowed("abcdefg", [FrozenBitMap([1, 5]), FrozenBitMap([4, 5, 6])])
    >>> used, [*map(list, parts)]
    (['b', 'e', 'f', 'g'], [[0, 2], [1, 2, 3]])
    """
    used = FrozenBitMap.union(NO_POSITIONS, *parts)
    moved = (
        of_stretches((used.rank(start) - 1, used.rank(stop - 1)) for start, stop in stretches(part)) for part in parts
    )
    return [whole[n] for n in used], list(moved)


class Renumbering:
    """Positions in one list as positions in another, a stretch at a time; `places` is -1 for members that the other lacks."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places
        breaks = (here < 0 or following != here + 1 for here, following in pairwise(places))
        self._breaks = [*accumulate(breaks, initial=0)]

    def moved(self, positions: PositionSet) -> PositionSet:
        """The places of members; those that the other list lacks are left out."""
        moved: list[Stretch] = []
        for start, stop in stretches(positions):
            if self._breaks[start] == self._breaks[stop - 1] and self._places[start] >= 0:
                moved.append((self._places[start], self._places[stop - 1] + 1))
            else:
                moved += ((place, place + 1) for place in self._places[start:stop] if place >= 0)
        return of_stretches(moved)


class _Members(Generic[Item]):
    """The members of a shared list at some positions; the list of a `PartSet` has no duplicates."""

    __slots__ = ("positions", "whole")

    def __init__(self, whole: Sequence[Item], positions: PositionSet) -> None:
        self.whole, self.positions = whole, positions

    def __iter__(self) -> Iterator[Item]:
        return (self.whole[position] for position in self.positions)

    def __len__(self) -> int:
        return len(self.positions)


class Part(_Members[Item], Sequence[Item]):
    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]


class PartSet(_Members[Item], AbstractSet[Item]):
    """A part of a shared list as a set, equal to any set of the same members; operators give frozen sets."""

    __slots__ = ()

    @classmethod
    def _from_iterable(cls, members: Iterable[Item]) -> frozenset[Item]:  # type: ignore[override]
        return frozenset(members)

    def __contains__(self, member: object) -> bool:
        return any(member == one for one in self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartSet) and other.whole is self.whole and other.positions == self.positions:
            return True
        return isinstance(other, AbstractSet) and frozenset(self) == frozenset(other)

    __hash__ = AbstractSet._hash


def packed_positions(value: Any) -> bytes:
    """A set of positions as bytes (msgspec's `enc_hook`)."""
    if isinstance(value, FrozenBitMap):
        return bytes(value.serialize())
    raise NotImplementedError(type(value))


def unpacked_positions(cls: type, packed: Any) -> PositionSet:
    """A set of positions from its bytes (msgspec's `dec_hook`, whose decoders wrap the `ValueError`)."""
    # pyroaring reads past the end of empty bytes.
    if cls is FrozenBitMap and isinstance(packed, bytes) and packed:
        return FrozenBitMap.deserialize(packed)
    raise ValueError(f"no positions, but {packed!r:.50}")
