"""Bin packing and output sizes, as Iceberg's planner does them (reference: `SizeBasedFileRewritePlanner`). Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from icekeep.maintenance.compaction.options import FileSizes

T = TypeVar("T")

_SPLIT_OVERHEAD_BYTES = 5 * 1024


def pack(items: Iterable[T], weight: Callable[[T], int], capacity: int, max_items: int = 2**63 - 1) -> list[list[T]]:
    """Fill bins in order; an item that does not fit closes the bin, one that fits no bin has a bin of its own.

    >>> pack([4, 4, 4, 9, 2], lambda n: n, 8)
    [[4, 4], [4], [9], [2]]
    """
    return list(packed(items, weight, capacity, max_items))


def packed(
    items: Iterable[T], weight: Callable[[T], int], capacity: int, max_items: int = 2**63 - 1
) -> Iterator[list[T]]:
    """The same, a bin at a time: of the items no more are held than one bin has."""
    pending: list[T] = []
    room = 0
    for item in items:
        size = weight(item)
        if pending and (size > room or len(pending) >= max_items):
            yield pending
            pending = []
        if not pending:
            room = capacity
        pending.append(item)
        room -= size
    if pending:
        yield pending


def shared_out(items: Sequence[T], weight: Callable[[T], int], shares: int, most: int) -> list[list[T]]:
    """Neighbours in so many lists of about one weight, in order; none is heavier than `most` unless one item is.

    Bins that are filled one after the other leave the last one with a rest.

    >>> shared_out([4, 4, 4, 4, 4, 4, 1], lambda n: n, 3, 20)
    [[4, 4], [4, 4], [4, 4, 1]]
    """
    share = sum(map(weight, items)) / max(1, shares)
    lists: list[list[T]] = []
    begun = taken = 0
    for item in items:
        size = weight(item)
        if not lists or taken + size / 2 > share * len(lists) or taken + size - begun > most:
            lists.append([])
            begun = taken
        lists[-1].append(item)
        taken += size
    return lists


def expected_output_files(input_bytes: int, sizes: FileSizes, compression_factor: float = 1.0) -> int:
    """How many files a group becomes: a remainder too small for a file of its own is spread over the others.

    Args:
        compression_factor: new bytes for one of the old ones.
    """
    input_bytes = int(input_bytes * compression_factor) if compression_factor != 1.0 else input_bytes
    if input_bytes < sizes.target_bytes:
        return 1
    whole, rest = divmod(input_bytes, sizes.target_bytes)
    if rest == 0:
        return whole
    if rest > sizes.min_bytes:
        return whole + 1
    average = input_bytes / whole
    return whole if average < min(1.1 * sizes.target_bytes, sizes.write_max_bytes) else whole + 1


def input_split_bytes(input_bytes: int, sizes: FileSizes, compression_factor: float = 1.0) -> int:
    """How many bytes of input one task takes, so that each task makes about one file."""
    size = input_bytes // expected_output_files(input_bytes, sizes, compression_factor) + _SPLIT_OVERHEAD_BYTES
    return min(max(size, sizes.target_bytes), sizes.write_max_bytes)
