"""Files counted as they are decoded: sums, sizes, partitions and the largest files, in memory that the files do not set.

It grows with the number of partitions, and with no number of files.
"""

import heapq
import math
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.planning.entries.decode import Amount, DecodedEntries, Steps

COLUMNS = frozenset({"file_path", "file_size_in_bytes", "record_count", "spec_id", "partition"})
"""What a tally counts by."""

LARGEST_COUNT = 10

_RESOLUTION = math.log(1.01)

PartitionId = tuple[int, bytes]


class SizeDistribution:
    """Sizes in bytes, each known to one percent; the least and the greatest exactly."""

    def __init__(self) -> None:
        self.count = 0
        self.least: int | None = None
        self.greatest: int | None = None
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, sizes: np.ndarray) -> None:
        """Take in sizes of 0 or more."""
        if not len(sizes):
            return
        self._include(len(sizes), int(sizes.min()), int(sizes.max()))
        buckets = (np.log(np.maximum(sizes, 1)) / _RESOLUTION).astype(np.int64)
        self._add_counts(np.bincount(buckets))

    def merge(self, other: "SizeDistribution") -> None:
        """Take in what another has counted."""
        if other.least is not None and other.greatest is not None:
            self._include(other.count, other.least, other.greatest)
            self._add_counts(other._counts)

    def quantile(self, share: float) -> int | None:
        """The size that this share of all sizes does not exceed; `None` where there are none."""
        if self.least is None or self.greatest is None:
            return None
        rank = max(0, math.ceil(share * self.count) - 1)
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank, side="right"))
        return min(max(round(math.exp((bucket + 0.5) * _RESOLUTION)), self.least), self.greatest)

    def _include(self, count: int, least: int, greatest: int) -> None:
        self.count += count
        self.least = least if self.least is None else min(least, self.least)
        self.greatest = greatest if self.greatest is None else max(greatest, self.greatest)

    def _add_counts(self, counts: np.ndarray) -> None:
        if len(counts) > len(self._counts):
            counts, self._counts = self._counts, counts.copy()
        self._counts[: len(counts)] += counts


class FileSize(msgspec.Struct, frozen=True, order=True):
    """A file and its size."""

    bytes: int
    file_path: str


class Tally:
    """A `Fold`: what a plan keeps, and what each step of pruning left."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.record_count = 0
        self.sizes = SizeDistribution()
        self.largest: list[FileSize] = []
        self._partitions: dict[PartitionId, Amount] = {}

    @property
    def files(self) -> Amount:
        """The files that are kept."""
        return self.steps.by_metrics

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        self.steps += decoded.steps
        if not rows.num_rows:
            return
        sizes = rows["file_size_in_bytes"].to_numpy()
        self.record_count += int(rows["record_count"].to_numpy().sum())
        self.sizes.add(sizes)
        self._add_largest(rows, sizes)
        for partition, amount in _by_partition(rows, sizes):
            self._partitions[partition] = self._partitions.get(partition, Amount()) + amount

    def merge(self, other: "Tally") -> None:
        self.steps += other.steps
        self.record_count += other.record_count
        self.sizes.merge(other.sizes)
        self.largest = heapq.nlargest(LARGEST_COUNT, [*self.largest, *other.largest])
        for partition, amount in other._partitions.items():
            self._partitions[partition] = self._partitions.get(partition, Amount()) + amount

    @property
    def partitions_count(self) -> int:
        return len(self._partitions)

    def largest_partitions(self) -> list[tuple[PartitionId, Amount]]:
        """The partitions of the most bytes."""
        return heapq.nlargest(LARGEST_COUNT, self._partitions.items(), key=lambda item: (item[1].bytes, item[0]))

    def partition_sizes(self) -> SizeDistribution:
        """The bytes of partitions."""
        sizes = SizeDistribution()
        sizes.add(np.fromiter((a.bytes for a in self._partitions.values()), np.int64, len(self._partitions)))
        return sizes

    def _add_largest(self, rows: pa.RecordBatch, sizes: np.ndarray) -> None:
        least = self.largest[-1].bytes if len(self.largest) == LARGEST_COUNT else -1
        candidates = np.flatnonzero(sizes > least)
        if len(candidates) > LARGEST_COUNT:
            top = np.argpartition(sizes[candidates], -LARGEST_COUNT)[-LARGEST_COUNT:]
            candidates = candidates[top]
        if len(candidates):
            paths = rows["file_path"].take(pa.array(candidates)).to_pylist()
            found = map(FileSize, map(int, sizes[candidates]), paths)
            self.largest = heapq.nlargest(LARGEST_COUNT, [*self.largest, *found])


def _by_partition(rows: pa.RecordBatch, sizes: np.ndarray) -> Iterator[tuple[PartitionId, Amount]]:
    """Files and bytes by partition; a batch is of one spec."""
    [spec_id] = pc.unique(rows["spec_id"]).to_pylist()
    encoded = rows["partition"].dictionary_encode()
    codes = encoded.indices.to_numpy()
    counts = np.bincount(codes)
    totals = np.zeros(len(counts), dtype=np.int64)
    np.add.at(totals, codes, sizes)
    for key, count, total in zip(encoded.dictionary.to_pylist(), counts.tolist(), totals.tolist(), strict=True):
        yield (spec_id, key), Amount(count, total)
