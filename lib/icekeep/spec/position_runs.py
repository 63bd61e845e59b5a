"""Positions in a list that many share, as few numbers: what reaches a data file is mostly a stretch of an ordered list.

A position stands for itself. A number below zero, -n, ends a run: it stands for all positions from the one before it up to n,
without n. So `(4, 7, -2000)` are 4 and all from 7 to 1999, and positions that are written out are runs, too.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, pairwise
from typing import TypeVar, overload

T = TypeVar("T", covariant=True)

Runs = tuple[int, ...]
"""See the module."""

Span = tuple[int, int]
"""The first position of a run, and the one behind its last."""


def spans(runs: Runs) -> list[Span]:
    """The runs one by one.

    >>> spans((4, 7, -2000))
    [(4, 5), (7, 2000)]
    """
    found: list[Span] = []
    for number in runs:
        if number < 0:
            found[-1] = (found[-1][0], -number)
        else:
            found.append((number, number + 1))
    return found


def runs_of(positions: Iterable[int]) -> Runs:
    """Positions in any order, each once or more often, as runs.

    >>> runs_of([7, 4, 8, 9, 1])
    (1, 4, 7, -10)
    """
    return joined((position, position + 1) for position in positions)


def joined(some: Iterable[Span]) -> Runs:
    """Spans in any order as runs; neighbours become one.

    >>> joined([(4, 9), (0, 2), (9, 11)])
    (0, 1, 4, -11)
    """
    merged: list[Span] = []
    for start, stop in sorted(some):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    # Two positions are no shorter as a run.
    return tuple(n for start, stop in merged for n in ((start, -stop) if stop - start > 2 else range(start, stop)))


def positions_in(runs: Runs) -> Iterator[int]:
    """Each position."""
    return (position for start, stop in spans(runs) for position in range(start, stop))


def as_span(runs: Runs) -> Span | None:
    """The one span that all positions are; None where there are several, or none."""
    found = spans(runs)
    if not found or any(one[1] != following[0] for one, following in pairwise(found)):
        return None
    return found[0][0], found[-1][1]


def count_in(runs: Runs) -> int:
    """How many positions there are."""
    return sum(stop - start for start, stop in spans(runs))


def without(runs: Runs, others: Runs) -> Iterator[int]:
    """The positions that are not among others; both as `runs_of` and `joined` make them."""
    taken = spans(others)
    number = 0
    for start, stop in spans(runs):
        while start < stop:
            while number < len(taken) and taken[number][1] <= start:
                number += 1
            end = stop if number == len(taken) else min(stop, max(start, taken[number][0]))
            yield from range(start, end)
            start = end if number == len(taken) or end == stop else min(stop, taken[number][1])


def split_at(runs: Runs, position: int) -> tuple[Runs, Runs]:
    """The positions before one, and those from it on.

    >>> split_at((4, 7, -2000), 1000)
    ((4, 7, -1000), (1000, -2000))
    """
    found = spans(runs)
    before = joined((start, min(stop, position)) for start, stop in found if start < position)
    return before, joined((max(start, position), stop) for start, stop in found if stop > position)


def narrowed(whole: Sequence[T], parts: Sequence[Runs]) -> tuple[list[T], list[Runs]]:
    """What parts of a list have of it, in its order, and the parts as runs of that.

    >>> narrowed("abcdefg", [(1, 5), (4, -7)])
    (['b', 'e', 'f', 'g'], [(0, 2), (1, -4)])
    """
    used = spans(joined(span for runs in parts for span in spans(runs)))
    starts = [start for start, _ in used]
    before = [*accumulate((stop - start for start, stop in used), initial=0)]

    def moved(span: Span) -> Span:
        number = bisect_right(starts, span[0]) - 1
        shift = before[number] - starts[number]
        return span[0] + shift, span[1] + shift

    return [whole[n] for span in used for n in range(*span)], [joined(map(moved, spans(runs))) for runs in parts]


class Renumbering:
    """Tells where the members of one list stand in another, a run at a time."""

    def __init__(self, places: Sequence[int]) -> None:
        """Args:
        places: of each member; -1 for one that the other list has not.
        """
        self._places = places
        breaks = (here < 0 or following != here + 1 for here, following in pairwise(places))
        self._breaks = [*accumulate(breaks, initial=0)]

    def runs(self, runs: Runs) -> Runs:
        """The places of some members; those that the other list has not are left out."""
        return joined(span for start, stop in spans(runs) for span in self._spans(start, stop))

    def _spans(self, start: int, stop: int) -> Iterator[Span]:
        if self._breaks[start] == self._breaks[stop - 1] and self._places[start] >= 0:
            yield self._places[start], self._places[stop - 1] + 1
        else:
            yield from ((place, place + 1) for place in self._places[start:stop] if place >= 0)


class Part(Sequence[T]):
    """Some of the members of a list that many parts share.

    Attributes:
        whole: the list; of a `PartSet` one that has nothing twice.
        runs: the positions of the members.
    """

    __slots__ = ("runs", "whole")

    def __init__(self, whole: Sequence[T], runs: Runs) -> None:
        self.whole, self.runs = whole, runs

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return [*self][index]

    def __iter__(self) -> Iterator[T]:
        return (self.whole[position] for position in positions_in(self.runs))

    def __len__(self) -> int:
        return count_in(self.runs)


class PartSet(AbstractSet[T]):
    """The same as a set, equal to any set of the same members; what is made of it is a frozen set."""

    __slots__ = ("runs", "whole")

    def __init__(self, whole: Sequence[T], runs: Runs) -> None:
        self.whole, self.runs = whole, runs

    @classmethod
    def _from_iterable(cls, members: Iterable[T]) -> frozenset[T]:  # type: ignore[override]
        return frozenset(members)

    def __contains__(self, member: object) -> bool:
        return any(member == one for one in self)

    def __iter__(self) -> Iterator[T]:
        return (self.whole[position] for position in positions_in(self.runs))

    def __len__(self) -> int:
        return count_in(self.runs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartSet) and other.whole is self.whole and other.runs == self.runs:
            return True
        return isinstance(other, AbstractSet) and frozenset(self) == frozenset(other)

    __hash__ = AbstractSet._hash
