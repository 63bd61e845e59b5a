"""The files of a group, which keep the order of their rows, cut into what each task reads and how many files it makes. Pure.

A group becomes as many files as `expected_output_files` says, whatever its files are like: where no cut between files, or between
the row groups of a large one, makes files that the next run leaves alone, one task makes several files of all that lies between.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import attrgetter

import msgspec

from icekeep.maintenance.compaction.plan import GroupFile
from icekeep.maintenance.groups.file_sizes import FileSizes, input_split_bytes, least_output_bytes

_SPLITTABLE = ("PARQUET", "ORC")


class Slice(msgspec.Struct, frozen=True):
    """A file, by its position in the group, or a part of it.

    Attributes:
        size_bytes: of a part an estimate.
        live_bytes: an estimate of what its live rows take.
        split: of a part the first byte and the number of bytes: row groups or stripes that begin there.
    """

    position: int
    size_bytes: int
    live_bytes: int
    split: tuple[int, int] | None = None


class Share(msgspec.Struct, frozen=True):
    """What one task reads, and how many files it makes of it."""

    slices: tuple[Slice, ...]
    files_count: int

    @property
    def whole_files(self) -> tuple[int, ...]:
        """The positions of its files; none where it has a part of one."""
        return () if any(one.split for one in self.slices) else tuple(one.position for one in self.slices)


def shares_of(files: Sequence[GroupFile], order: Sequence[int], files_count: int, sizes: FileSizes) -> list[Share]:
    """Cut the files of a group into shares that make `files_count` files in all.

    Args:
        order: the positions of the files, in the order in which they are put together.
    """
    total = sum(files[position].live_bytes for position in order)
    split_bytes = input_split_bytes(total, sizes)
    slices = [one for position in order for one in _slices(position, files[position], split_bytes)]
    ends = [0, *accumulate(one.live_bytes for one in slices)]
    least, most = least_output_bytes(files_count, sizes), sizes.write_max_bytes
    shares = []
    start = made = 0
    for number in range(1, files_count):
        stop = _nearest(ends, total * number / files_count)
        if stop <= start:
            continue
        size = (ends[stop] - ends[start]) / (number - made)
        rest = (total - ends[stop]) / (files_count - number)
        if least <= size <= most and least <= rest <= most:
            shares.append(Share(_joined(slices[start:stop], files), number - made))
            start, made = stop, number
    return [*shares, Share(_joined(slices[start:], files), files_count - made)]


def _nearest(ends: Sequence[int], place: float) -> int:
    above = bisect_left(ends, place)
    return above - 1 if above and place - ends[above - 1] < ends[above] - place else above


def _slices(position: int, file: GroupFile, split_bytes: int) -> Iterator[Slice]:
    """A file as a whole or, where that is more than about one new file, each of its row groups or stripes."""
    size, offsets = file.file_size_in_bytes, file.split_offsets or ()
    splits = file.file_format.upper() in _SPLITTABLE and list(offsets) == sorted(set(offsets))
    if not splits or file.live_bytes <= split_bytes or len(offsets) < 2 or offsets[-1] >= size:
        yield Slice(position, size, file.live_bytes)
        return
    # The first part begins where the file does: an entry need not name the very first byte of data.
    starts = [0, *offsets[1:], size]
    lengths = [stop - start for start, stop in pairwise(starts)]
    rows_bytes = [*lengths[:-1], min(lengths[-1], max(lengths[:-1]))]
    # Behind the last one lies the footer, which is of all of them.
    ends = [0, *(size * upto // sum(rows_bytes) for upto in accumulate(rows_bytes))]
    live = [file.live_bytes * end // size for end in ends]
    for split, some, some_live in zip(zip(starts, lengths, strict=False), pairwise(ends), pairwise(live), strict=True):
        yield Slice(position, some[1] - some[0], some_live[1] - some_live[0], split)


def _joined(slices: Sequence[Slice], files: Sequence[GroupFile]) -> tuple[Slice, ...]:
    """The same with neighbours of one file put together; all parts of a file are the whole."""
    joined = []
    for position, some in groupby(slices, attrgetter("position")):
        parts = [*some]
        first, last = parts[0].split, parts[-1].split
        split = None
        if first is not None and last is not None and (first[0] > 0 or sum(last) < files[position].file_size_in_bytes):
            split = first[0], sum(last) - first[0]
        size_bytes, live_bytes = (sum(getattr(part, name) for part in parts) for name in ("size_bytes", "live_bytes"))
        joined.append(Slice(position, size_bytes, live_bytes, split))
    return tuple(joined)
