"""Work divided into bins of about one weight: the three ways there are.

`balanced` where order does not matter, `cut_evenly` where neighbours stay together and the number of bins is given, `packed`
where it is given how much a bin holds.
"""

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Limit: TypeAlias = tuple[Callable[[T], float], float]
"""What an item counts for, and the most that a bin holds of it; an item that is more than that has a bin of its own."""


def each_once(item: object) -> int:
    """The measure of a limit on the number of items, or of items that weigh the same."""
    return 1


def balanced(items: Iterable[T], weight: Callable[[T], float], bins_count: int) -> list[list[T]]:
    """At most this many bins, none empty: the heaviest item first, each to the bin that is lightest by then.

    >>> balanced([1, 2, 3, 4, 5], float, 2)
    [[5, 2, 1], [4, 3]]
    """
    lightest = [(0.0, number) for number in range(bins_count)]
    bins: list[list[T]] = [[] for _ in range(bins_count)]
    for item in sorted(items, key=weight, reverse=True):
        total, number = lightest[0]
        bins[number].append(item)
        heapq.heapreplace(lightest, (total + weight(item), number))
    return [some for some in bins if some]


def growing(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Stretches of an ordered list, each four times as long as the one before: for who stops as soon as something is found.

    >>> [*growing("abcdefg")]
    ['a', 'bcde', 'fg']
    """
    start, count = 0, 1
    while start < len(items):
        yield items[start : start + count]
        start, count = start + count, 4 * count


def cut_evenly(items: Sequence[T], weight: Callable[[T], float], count: int, *limits: Limit[T]) -> list[Sequence[T]]:
    """An ordered list cut into at most `count` stretches, none empty; more where limits ask for them.

    An item is in the stretch that its middle lies in, so that a heavy one takes no others along.

    >>> cut_evenly([4, 4, 4, 4, 4, 4, 1], float, 3)
    [[4, 4], [4, 4], [4, 4, 1]]
    """
    ends = _sums(map(weight, items))
    share = ends[-1] / count or 1
    sums = [(_sums(map(measure, items)), most) for measure, most in limits]

    def middle(position: int) -> float:
        return (ends[position] + ends[position + 1]) / 2

    stretches: list[Sequence[T]] = []
    start = number = 0
    while start < len(items):
        # A stretch that a limit has ended leaves the next one as much as it would have had.
        number = max(number, int(middle(start) // share)) + 1
        stop = bisect_right(range(len(items)), share * number, key=middle) if number < count else len(items)
        for upto, most in sums:
            stop = min(stop, bisect_right(upto, upto[start] + most) - 1)
        stop = max(stop, start + 1)
        stretches.append(items[start:stop])
        start = stop
    return stretches


def _sums(weights: Iterable[float]) -> "array[float]":
    """What comes before each item, and all of it; 8 bytes each, since items may be millions."""
    sums = array("d", (0.0,))
    sums.extend(accumulate(weights))
    return sums


class _Bin(msgspec.Struct, Generic[T]):
    items: list[T]
    free: list[float]


def packed(items: Iterable[T], *limits: Limit[T], lookback: int = 1, heaviest_first: bool = False) -> Iterator[list[T]]:
    """Bins filled up to their limits, as Iceberg's `BinPacking`: each item goes into the first open bin that has room for it.

    At most `lookback` bins are open, and no more items are held than they have and the next one; one bin more closes the
    oldest. With one, the items of all bins together are in order.

    Args:
        heaviest_first: close the bin that has most of the first limit instead, the oldest of several.

    >>> list(packed([4, 4, 4, 9, 2], (float, 8)))
    [[4, 4], [4], [9], [2]]
    >>> list(packed([4, 5, 2, 3, 9], (float, 8), lookback=2, heaviest_first=True))
    [[9], [4, 2], [5, 3]]
    """
    measures, mosts = zip(*limits, strict=True)
    bins: list[_Bin[T]] = []
    for item in items:
        sizes = [measure(item) for measure in measures]
        for one in bins:
            free = [*map(sub, one.free, sizes)]
            if min(free) >= 0:
                one.items.append(item)
                one.free = free
                break
        else:
            bins.append(_Bin([item], [*map(sub, mosts, sizes)]))
        if len(bins) > lookback:
            closed = min(range(len(bins)), key=lambda number: bins[number].free[0]) if heaviest_first else 0
            yield bins.pop(closed).items
    for rest in bins:
        yield rest.items
