"""Sets of positions in a list that many share: what reaches a data file is mostly a stretch of an ordered list.

They are roaring bitmaps: a stretch takes a few bytes however long it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, groupby, pairwise
from typing import Any, TypeAlias, TypeVar, overload

from pyroaring import BitMap, FrozenBitMap

T = TypeVar("T", covariant=True)

PositionSet: TypeAlias = FrozenBitMap
"""Positions in a list, each below 2^32."""

NO_POSITIONS = FrozenBitMap()

Span = tuple[int, int]
"""The first position of a stretch, and the one behind its last."""


def of_spans(some: Iterable[Span]) -> PositionSet:
    """The positions of spans, which may overlap and come in any order.

    >>> list(of_spans([(4, 6), (0, 2), (5, 7)]))
    [0, 1, 4, 5, 6]
    """
    positions = BitMap()
    for start, stop in some:
        positions.add_range(start, stop)
    return FrozenBitMap(positions)


def is_span(positions: PositionSet) -> bool:
    """Whether there are positions, and none between the first and the last is missing."""
    return bool(positions) and positions.max() - positions.min() + 1 == len(positions)


def spans(positions: PositionSet) -> list[Span]:
    """The stretches of neighbours, in order.

    >>> spans(FrozenBitMap([4, 7, 8, 9]))
    [(4, 5), (7, 10)]
    """
    if is_span(positions):
        return [(positions.min(), positions.max() + 1)]
    # Neighbours are as far from their numbers in the set as one another.
    stretches = (list(some) for _, some in groupby(enumerate(positions), lambda one: one[1] - one[0]))
    return [(some[0][1], some[-1][1] + 1) for some in stretches]


def narrowed(whole: Sequence[T], parts: Sequence[PositionSet]) -> tuple[list[T], list[PositionSet]]:
    """What parts of a list have of it, in its order, and the parts as positions in that.

    >>> used, parts = narrowed("abcdefg", [FrozenBitMap([1, 5]), FrozenBitMap([4, 5, 6])])
    >>> used, [*map(list, parts)]
    (['b', 'e', 'f', 'g'], [[0, 2], [1, 2, 3]])
    """
    used = FrozenBitMap.union(NO_POSITIONS, *parts)
    moved = (of_spans((used.rank(start) - 1, used.rank(stop - 1)) for start, stop in spans(part)) for part in parts)
    return [whole[n] for n in used], list(moved)


class Renumbering:
    """Tells where the members of one list stand in another, a stretch at a time."""

    def __init__(self, places: Sequence[int]) -> None:
        """Args:
        places: of each member; -1 for one that the other list has not.
        """
        self._places = places
        breaks = (here < 0 or following != here + 1 for here, following in pairwise(places))
        self._breaks = [*accumulate(breaks, initial=0)]

    def moved(self, positions: PositionSet) -> PositionSet:
        """The places of some members; those that the other list has not are left out."""
        return of_spans(span for start, stop in spans(positions) for span in self._spans(start, stop))

    def _spans(self, start: int, stop: int) -> Iterator[Span]:
        if self._breaks[start] == self._breaks[stop - 1] and self._places[start] >= 0:
            yield self._places[start], self._places[stop - 1] + 1
        else:
            yield from ((place, place + 1) for place in self._places[start:stop] if place >= 0)


class Part(Sequence[T]):
    """Some of the members of a list that many parts share.

    Attributes:
        whole: the list; of a `PartSet` one that has nothing twice.
        positions: those of the members.
    """

    __slots__ = ("positions", "whole")

    def __init__(self, whole: Sequence[T], positions: PositionSet) -> None:
        self.whole, self.positions = whole, positions

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return [*self][index]

    def __iter__(self) -> Iterator[T]:
        return (self.whole[position] for position in self.positions)

    def __len__(self) -> int:
        return len(self.positions)


class PartSet(AbstractSet[T]):
    """The same as a set, equal to any set of the same members; what is made of it is a frozen set."""

    __slots__ = ("positions", "whole")

    def __init__(self, whole: Sequence[T], positions: PositionSet) -> None:
        self.whole, self.positions = whole, positions

    @classmethod
    def _from_iterable(cls, members: Iterable[T]) -> frozenset[T]:  # type: ignore[override]
        return frozenset(members)

    def __contains__(self, member: object) -> bool:
        return any(member == one for one in self)

    def __iter__(self) -> Iterator[T]:
        return (self.whole[position] for position in self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartSet) and other.whole is self.whole and other.positions == self.positions:
            return True
        return isinstance(other, AbstractSet) and frozenset(self) == frozenset(other)

    __hash__ = AbstractSet._hash


def packed_positions(value: Any) -> bytes:
    """A set of positions as bytes: what msgspec's encoders ask for (`enc_hook`)."""
    if isinstance(value, FrozenBitMap):
        return bytes(value.serialize())
    raise NotImplementedError(type(value))


def unpacked_positions(cls: type, packed: Any) -> PositionSet:
    """The set again (`dec_hook`); raises `ValueError` for bytes that are none, which msgspec's decoders word."""
    # Of no bytes at all pyroaring would read past the end.
    if cls is FrozenBitMap and isinstance(packed, bytes) and packed:
        return FrozenBitMap.deserialize(packed)
    raise ValueError(f"no positions, but {packed!r:.50}")
