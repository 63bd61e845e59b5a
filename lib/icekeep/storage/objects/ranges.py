"""A store's sorted names, divided into ranges without listing them all.

A listing that starts behind a name tells what comes next, so the names that begin with `ab` are passed over by one request:
what comes behind `ab` and the highest character is the next that begins otherwise. In this way the characters are found by
which names differ first, each of them makes a range, and ranges are divided again until there are enough. It does not matter
whether names differ in a directory or within the names of one directory's files.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple

import msgspec

HIGHEST = "\U0010ffff"
"""No name has a character behind it."""


class Names(NamedTuple):
    """Names in order; `is_all`: none come behind them."""

    names: Sequence[str]
    is_all: bool


Look = Callable[[str], Names]
"""The next names behind one, some of them; those behind an empty one are the first."""


class NameRange(msgspec.Struct, frozen=True, kw_only=True):
    """The names behind `after`, up to and with `until`; an empty `until` is no end.

    Attributes:
        first: those of its names that were seen, from the first on.
        is_seen: these are all, or it cannot be divided.
        shared_count: so many characters are known to be the same in all its names.
    """

    after: str = ""
    until: str = ""
    first: Sequence[str] = ()
    is_seen: bool = False
    shared_count: int = 0


def name_ranges(look: Look, prefix: str, count: int, at_once: int, merged_names_max: int) -> list[NameRange]:
    """Ranges that together hold every possible name once, in order: about `count` or more if there are names enough.

    Args:
        prefix: what all names begin with.
        at_once: how many ranges are divided side by side.
        merged_names_max: neighbours of which all names were seen are one range if they have no more names than that.
    """
    ranges = [_clipped(NameRange(shared_count=len(prefix)), look(""))]
    with ThreadPoolExecutor(at_once) as pool:
        while len(ranges) < count and not all(some.is_seen for some in ranges):
            ranges = [*chain.from_iterable(pool.map(lambda some: _divided(some, look), ranges))]
    return _merged(ranges, merged_names_max)


def _divided(whole: NameRange, look: Look) -> list[NameRange]:
    """A range for each character by which the names of one differ first."""
    if whole.is_seen:
        return [whole]
    if len(whole.first) < 2:
        whole = _clipped(whole, look(whole.after))
        if whole.is_seen:
            return [whole]
    shared_count = _shared_count(whole, look)
    divided = []
    rest = whole
    while True:
        end = _end(rest.first[0], shared_count + 1)
        behind = _behind(end, rest, look)
        if not behind.first or end <= rest.after:
            break
        seen = [name for name in rest.first if name <= end]
        divided.append(
            msgspec.structs.replace(
                rest, until=end, first=seen, is_seen=len(seen) < len(rest.first), shared_count=shared_count + 1
            )
        )
        rest = behind
    rest = msgspec.structs.replace(rest, shared_count=shared_count + 1, is_seen=rest.is_seen or not divided)
    return [*divided, rest]


def _shared_count(some: NameRange, look: Look) -> int:
    """How many characters are the same in all names of a range.

    What begins otherwise than the first name comes behind it, so one look tells whether all share a number of characters;
    no more than those that were seen share.
    """
    first, last = some.first[0], some.first[-1]
    most = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    low, high = some.shared_count, most + 1
    number = low + 1
    while high - low > 1:
        if _behind(_end(first, number), some, look).first:
            high = number
        else:
            low = number
        number = (low + high) // 2
    return low


def _behind(end: str, some: NameRange, look: Look) -> NameRange:
    """The rest of a range behind a name."""
    seen = [name for name in some.first if name > end]
    if seen or some.is_seen:
        return msgspec.structs.replace(some, after=end, first=seen)
    return _clipped(msgspec.structs.replace(some, after=end), look(end))


def _end(name: str, length: int) -> str:
    """What no name that begins with the same characters comes behind; the name itself if it has no more."""
    return name[:length] + HIGHEST if len(name) >= length else name


def _clipped(some: NameRange, names: Names) -> NameRange:
    """A range with the first of its names."""
    inside = [name for name in names.names if name > some.after and (name <= some.until or not some.until)]
    is_seen = names.is_all or (bool(some.until) and any(name > some.until for name in names.names))
    return msgspec.structs.replace(some, first=inside, is_seen=is_seen)


def _merged(ranges: Sequence[NameRange], names_max: int) -> list[NameRange]:
    merged: list[NameRange] = []
    for some in ranges:
        last = merged[-1] if merged else None
        if last and last.is_seen and some.is_seen and len(last.first) + len(some.first) <= names_max:
            first = [*last.first, *some.first]
            merged[-1] = msgspec.structs.replace(last, until=some.until, first=first)
        else:
            merged.append(some)
    return merged
