"""Splits of data files and their packing into tasks, as the table properties `read.split.*` ask. Pure.

files -> splits (`file_splits`) -> bins of about one size (`bins.packed`) -> neighbours put together again
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec

from icekeep.spec.bins import packed
from icekeep.spec.table_properties import boolean_property, whole_number
from icekeep.spec.units import MIB

_SPLITTABLE_FORMATS = ("parquet", "orc", "avro")
_MIN_ADAPTED_BYTES = 16 * MIB

T = TypeVar("T")


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a scan's files are dealt out to tasks; the defaults are those of the table properties `read.split.*`.

    Attributes:
        split_target_bytes: what one task reads, deletes included; `read.split.target-size`.
        planning_lookback: how many tasks are filled at a time; `read.split.planning-lookback`.
        open_file_cost_bytes: what opening a file counts for at least; `read.split.open-file-cost`.
        is_adaptive: whether a small scan takes smaller splits, so that all slots have work; `read.split.adaptive-size.enabled`.
    """

    split_target_bytes: int = 128 * MIB
    planning_lookback: int = 10
    open_file_cost_bytes: int = 4 * MIB
    is_adaptive: bool = True


class FileToSplit(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What packing needs to know of a data file; sizes in bytes, `deletes_bytes` of all deletes that reach it."""

    file: T
    file_format: str
    file_size_in_bytes: int
    split_offsets: Sequence[int] | None = None
    deletes_bytes: int = 0
    deletes_count: int = 0


class Split(msgspec.Struct, Generic[T], frozen=True):
    """The bytes of a data file from `start` on, `length` of them: what a reader of blocks that begin there reads."""

    of: FileToSplit[T]
    start: int
    length: int


def read_options(properties: Mapping[str, str]) -> ReadOptions:
    """Read the table properties `read.split.*`.

    Raises:
        PropertyError: a property has a value that it cannot take.
    """
    default = ReadOptions()
    return ReadOptions(
        split_target_bytes=whole_number(properties, "read.split.target-size", default.split_target_bytes, 1),
        planning_lookback=whole_number(properties, "read.split.planning-lookback", default.planning_lookback, 1),
        open_file_cost_bytes=whole_number(properties, "read.split.open-file-cost", default.open_file_cost_bytes, 0),
        is_adaptive=boolean_property(properties, "read.split.adaptive-size.enabled", default.is_adaptive),
    )


def split_tasks(
    files: Iterable[FileToSplit[T]], options: ReadOptions, target_size: int | None = None
) -> Iterator[list[Split[T]]]:
    """Deal files out to tasks, each a list of splits that one reader works through.

    A file may be in several tasks; within one, its splits that touch are one split. Memory holds `planning_lookback` tasks
    and no more, whatever the number of files.

    Args:
        files: may be a stream; an object for each file, since splits of one object are taken for splits of one file.
        target_size: bytes, instead of the options' (see `adapted_target_size`).
    """
    target = options.split_target_bytes if target_size is None else target_size
    splits = (
        Split(file, start, length)
        for file in files
        for start, length in file_splits(file.file_format, file.file_size_in_bytes, file.split_offsets, target)
    )

    def weight(split: Split[T]) -> int:
        return split_weight(split.length, split.of.deletes_bytes, split.of.deletes_count, options.open_file_cost_bytes)

    for some in packed(splits, (weight, target), lookback=options.planning_lookback, heaviest_first=True):
        yield merged_splits(some)


def adapted_target_size(options: ReadOptions, scan_bytes: int, parallelism: int) -> int:
    """The size of splits at which a scan has work for all slots, if it has enough; never above the options' target.

    Args:
        scan_bytes: of all data files and deletes that the scan reads.
        parallelism: how many tasks run at once.
    """
    target = options.split_target_bytes
    if not options.is_adaptive or -(-scan_bytes // target) >= parallelism:
        return target
    return max(scan_bytes // parallelism, min(_MIN_ADAPTED_BYTES, target))


def file_splits(
    file_format: str, file_size_in_bytes: int, split_offsets: Sequence[int] | None, target_size: int
) -> tuple[tuple[int, int], ...]:
    """Where a data file may be cut: pairs of start and length in bytes, in order, that cover each byte once.

    A cut at each offset that the manifest knows; where it knows none, or none that can be true, a cut every `target_size`
    bytes. Files of formats without blocks are not cut, and a file has one split at least.

    >>> file_splits("PARQUET", 100, (4, 60), 30)
    ((0, 60), (60, 40))
    >>> file_splits("PARQUET", 100, None, 30)
    ((0, 30), (30, 30), (60, 30), (90, 10))
    """
    starts: Sequence[int] = (0,)
    if file_format.lower() in _SPLITTABLE_FORMATS:
        if split_offsets and _are_true(split_offsets, file_size_in_bytes):
            # What lies before the first block, magic bytes and headers, belongs to the first split.
            starts = (0, *split_offsets[1:])
        else:
            starts = range(0, max(file_size_in_bytes, 1), target_size)
    ends = (*starts[1:], file_size_in_bytes)
    return tuple((start, end - start) for start, end in zip(starts, ends, strict=True))


def split_weight(length: int, deletes_bytes: int, deletes_count: int, open_file_cost: int) -> int:
    """What a split counts for in a task: its bytes and those of its deletes, or what opening the files costs if that is more."""
    return max(length + deletes_bytes, (1 + deletes_count) * open_file_cost)


def merged_splits(splits: Iterable[Split[T]]) -> list[Split[T]]:
    """Splits of one file that follow and touch one another, as one."""
    merged: list[Split[T]] = []
    for split in splits:
        last = merged[-1] if merged else None
        if last is not None and last.of is split.of and last.start + last.length == split.start:
            merged[-1] = Split(last.of, last.start, last.length + split.length)
        else:
            merged.append(split)
    return merged


def _are_true(offsets: Sequence[int], file_size_in_bytes: int) -> bool:
    ascending = all(left < right for left, right in pairwise(offsets))
    return ascending and offsets[0] >= 0 and offsets[-1] < file_size_in_bytes
