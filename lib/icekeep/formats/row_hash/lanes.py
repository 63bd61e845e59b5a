"""Two sums of 64 bits for each row: words of values are mixed, multiplied with odd numbers of their own, and added."""

import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icekeep.formats.arrow.masks import Mask

Sums = NDArray[np.uint64]

CHUNK_ROWS = 14_336
"""Rows that are worked on at one time: what is held of them stays in the processor's cache, and an array of their words is
just below the 128 KiB from which on C's allocator asks the system for memory each time."""

NULL, LENGTH, POSITION, FIRST_WORD = range(4)
"""What the odd numbers of a field are for, by their place among them."""

MAX_WORDS = 64
"""How many words of a value have a number of their own."""

_MAX_HELD = MAX_WORDS * CHUNK_ROWS

_GOLDEN = 0x9E3779B97F4A7C15
_HALF = np.uint64(32)


class _Scratch(threading.local):
    """Memory that is used again and again: what the system hands out anew it must clear first, page by page."""

    def __init__(self) -> None:
        self._held: dict[str, Sums] = {}

    def words(self, use: str, count: int) -> Sums:
        """Some words, whatever is in them, until they are asked for again for the same use."""
        if count > _MAX_HELD:
            return np.empty(count, np.uint64)
        held = self._held.get(use)
        if held is None or len(held) < count:
            held = self._held[use] = np.empty(max(count, CHUNK_ROWS), np.uint64)
        return held[:count]


SCRATCH = _Scratch()


class Lanes:
    """Two sums for each of some rows, or of the elements of lists."""

    def __init__(self, first: Sums, second: Sums) -> None:
        self.first, self.second = first, second

    @classmethod
    def of(cls, count: int) -> "Lanes":
        """Sums of nothing."""
        return cls(np.zeros(count, np.uint64), np.zeros(count, np.uint64))

    def part(self, start: int, stop: int) -> "Lanes":
        """The sums of some of the rows, to add to."""
        return Lanes(self.first[start:stop], self.second[start:stop])

    def add(self, words: Sums, place: int, keys: Sums, nulls: Mask | None) -> None:
        """Add a word of each row, or what stands for a null."""
        product = SCRATCH.words("product", len(self.first))
        for lane, key in zip((self.first, self.second), keys, strict=True):
            np.multiply(words, key[place], out=product)
            if nulls is not None:
                np.copyto(product, key[NULL], where=nulls)
            np.add(lane, product, out=lane)

    def include(self, other: "Lanes", keys: Sums, nulls: Mask | None) -> None:
        """Add sums that are finished already, or what stands for a null."""
        for lane, sums, key in zip((self.first, self.second), (other.first, other.second), keys, strict=True):
            if nulls is not None:
                np.copyto(sums, key[NULL], where=nulls)
            np.add(lane, sums, out=lane)

    def finish(self) -> None:
        """Mix both sums of each row into each other: sums of what comes out keep apart what lay in different rows."""
        first, second = self.first, self.second
        shifted = SCRATCH.words("product", len(first))
        for lane, other, factor in ((first, second, 0xD6E8FEB86659FD93), (second, first, 0xBF58476D1CE4E5B9)):
            np.right_shift(lane, _HALF, out=shifted)
            np.bitwise_xor(lane, shifted, out=lane)
            np.multiply(lane, np.uint64(factor), out=lane)
            np.add(lane, other, out=lane)
        for lane in (first, second):
            np.right_shift(lane, _HALF, out=shifted)
            np.bitwise_xor(lane, shifted, out=lane)


def mixed(words: NDArray[Any]) -> Sums:
    """Words whose low half depends on the high one: an odd factor alone would leave a change of the highest bit there, where
    that of another column undoes it.
    """
    out = SCRATCH.words("mixed", len(words))
    if words.dtype.itemsize < 8:
        np.copyto(out, words)
        return out
    np.right_shift(words, _HALF, out=out)
    return np.bitwise_xor(words, out, out=out)


@lru_cache(maxsize=4096)
def keys_of(field_id: int) -> Sums:
    """The odd numbers of a field for both sums, by what they are for (splitmix64 of the field's id and the place)."""
    count = FIRST_WORD + MAX_WORDS
    numbers = np.arange(1, 2 * count + 1, dtype=np.uint64) + np.uint64(field_id << 8)
    numbers *= np.uint64(_GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers ^= numbers >> np.uint64(shift)
        numbers *= np.uint64(factor)
    numbers ^= numbers >> np.uint64(31)
    return (numbers | np.uint64(1)).reshape(2, count)
