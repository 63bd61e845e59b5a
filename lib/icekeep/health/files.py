"""The live files of a head, folded as they are decoded: sums, sizes, partitions, and what `compact` would take for its sizes.

Memory grows with the number of partitions. Rows are kept only where somebody says that they are few.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.health.values import SizeBucket
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.rewrite.options import FileSizes, expected_output_files
from icekeep.planning.entries import DecodedEntries
from icekeep.planning.scan.plan import SizeDistribution
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata

DATA_COLUMNS = frozenset({"spec_id", "partition", "sequence_number", "file_path", "record_count", "file_size_in_bytes"})

DELETE_COLUMNS = frozenset(
    {
        *("spec_id", "partition", "sequence_number", "content", "file_path", "file_format", "record_count"),
        *("file_size_in_bytes", "lower_bounds", "upper_bounds", "key_metadata", "equality_ids"),
        *("referenced_data_file", "content_offset", "content_size_in_bytes"),
    }
)

PartitionId: TypeAlias = tuple[int, bytes]
MIN_INPUT_FILES = RewriteDataFilesOptions().min_input_files
_BUCKETS = 64
_MOST = 1 << 48
"""No file has so many bytes or rows; sums of thousands of them are still whole numbers of 64 bits."""


class PartitionSums(msgspec.Struct):
    """The data files of one partition; `asking_*` are those whose size asks for a rewrite, one above the greatest among them."""

    files_count: int = 0
    bytes: int = 0
    asking_count: int = 0
    asking_bytes: int = 0
    large_count: int = 0

    def add(self, other: "PartitionSums") -> None:
        """Take in what was found elsewhere."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class GroupSums(msgspec.Struct, frozen=True):
    """Files that `compact` may put together: of one partition, or all of a spec that it moves to the table's own."""

    sums: PartitionSums
    is_moved: bool = False

    @property
    def small_count(self) -> int:
        """Small files that have others beside them."""
        return self.sums.asking_count - self.sums.large_count if self.sums.files_count > 1 else 0

    def is_rewritten(self, sizes: FileSizes) -> bool:
        """Whether `compact` takes those whose size asks for it, as far as sums tell: none of more than 100 GB is divided."""
        sums = self.sums
        is_enough = sums.asking_count >= MIN_INPUT_FILES or sums.asking_bytes > sizes.target_bytes
        is_right = (sums.asking_count > 1 and is_enough) or sums.asking_bytes > sizes.max_bytes
        comes_out_otherwise = (
            self.is_moved or sums.large_count > 0 or expected_output_files(sums.asking_bytes, sizes) < sums.asking_count
        )
        return is_right and comes_out_otherwise


def compacted_together(
    partitions: Mapping[PartitionId, PartitionSums], metadata: TableMetadata, staying: Collection[int]
) -> list[GroupSums]:
    """Partitions, those of one spec added up where files of it are moved to the default spec.

    Args:
        staying: specs that have live equality deletes, whose files are never moved.
    """
    found: list[GroupSums] = []
    moved: dict[int, PartitionSums] = {}
    for (spec_id, _), sums in partitions.items():
        if spec_id == metadata.default_spec_id or spec_id in staying or metadata.spec.has_unknown_transform:
            found.append(GroupSums(sums))
        else:
            moved.setdefault(spec_id, PartitionSums()).add(sums)
    return found + [GroupSums(sums, is_moved=True) for sums in moved.values()]


class DataFold:
    """A `Fold` of data files."""

    def __init__(self, sizes: FileSizes, *, keeps_rows: bool) -> None:
        self._limits, self._keeps_rows = sizes, keeps_rows
        self.record_count = self.bytes = self.small_bytes = self.odd_count = 0
        self.sizes = SizeDistribution()
        self.small_count = self.large_count = 0
        self.partitions: dict[PartitionId, PartitionSums] = {}
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._bytes = np.zeros(_BUCKETS, np.int64)
        self._rows: list[pa.RecordBatch] = []

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        if not rows.num_rows:
            return
        sizes, records = own_sizes(rows), record_counts(rows)
        self.odd_count += odd_count(rows)
        is_small, is_large = sizes < self._limits.min_bytes, sizes > self._limits.max_bytes
        self.sizes.add(sizes)
        self.bytes += int(sizes.sum())
        self.record_count += int(records.sum())
        self.small_count += int(is_small.sum())
        self.small_bytes += int(sizes[is_small].sum())
        self.large_count += int(is_large.sum())
        self._add_buckets(sizes)
        for partition, sums in _by_partition(rows, sizes, is_small | is_large, is_large):
            self._sums(partition).add(sums)
        if self._keeps_rows:
            self._rows.append(rows)

    def merge(self, other: "DataFold") -> None:
        for name in ("record_count", "bytes", "small_count", "small_bytes", "large_count", "odd_count"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sizes.merge(other.sizes)
        self._counts += other._counts
        self._bytes += other._bytes
        self._rows += other._rows
        for partition, sums in other.partitions.items():
            self._sums(partition).add(sums)

    @property
    def files_count(self) -> int:
        return self.sizes.count

    def rows(self, schema: pa.Schema) -> pa.Table:
        """The rows that were kept."""
        return pa.Table.from_batches(self._rows, schema)

    def histogram(self) -> tuple[SizeBucket, ...]:
        """Files by powers of two; empty buckets are left out."""
        return tuple(
            SizeBucket(least_bytes=1 << n, files_count=int(self._counts[n]), bytes=int(self._bytes[n]))
            for n in np.flatnonzero(self._counts).tolist()
        )

    def _add_buckets(self, sizes: NDArray[np.int64]) -> None:
        # The exponent of a number of at least 2**(n-1) and less than 2**n is n.
        buckets = np.frexp(np.maximum(sizes, 1).astype(np.float64))[1] - 1
        self._counts += np.bincount(buckets, minlength=_BUCKETS)
        np.add.at(self._bytes, buckets, sizes)

    def _sums(self, partition: PartitionId) -> PartitionSums:
        found = self.partitions.get(partition)
        if found is None:
            found = self.partitions[partition] = PartitionSums()
        return found


class DeleteSums(msgspec.Struct):
    """Delete files of one kind; bytes of deletion vectors are those of their blobs."""

    files_count: int = 0
    bytes: int = 0
    record_count: int = 0


class DeleteFold:
    """A `Fold` of delete files, by kind."""

    def __init__(self, *, keeps_rows: bool) -> None:
        self._keeps_rows = keeps_rows
        self.positions, self.equality, self.vectors = DeleteSums(), DeleteSums(), DeleteSums()
        self.odd_count = 0
        self.equality_spec_ids: set[int] = set()
        self._rows: list[pa.RecordBatch] = []

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        if not rows.num_rows:
            return
        is_equality = rows["content"].to_numpy() == int(FileContent.EQUALITY_DELETES)
        is_vector = vector_mask(rows) & ~is_equality
        sizes, records = own_sizes(rows), record_counts(rows)
        self.odd_count += odd_count(rows)
        self.equality_spec_ids.update(np.asarray(rows["spec_id"])[is_equality].tolist())
        kinds = ((self.equality, is_equality), (self.vectors, is_vector), (self.positions, ~is_equality & ~is_vector))
        for sums, mask in kinds:
            sums.files_count += int(mask.sum())
            sums.bytes += int(sizes[mask].sum())
            sums.record_count += int(records[mask].sum())
        if self._keeps_rows:
            self._rows.append(rows)

    def merge(self, other: "DeleteFold") -> None:
        for name in ("positions", "equality", "vectors"):
            mine, theirs = getattr(self, name), getattr(other, name)
            for field in DeleteSums.__struct_fields__:
                setattr(mine, field, getattr(mine, field) + getattr(theirs, field))
        self.odd_count += other.odd_count
        self.equality_spec_ids |= other.equality_spec_ids
        self._rows += other._rows

    @property
    def files_count(self) -> int:
        return sum(sums.files_count for sums in (self.positions, self.equality, self.vectors))

    @property
    def bytes(self) -> int:
        return sum(sums.bytes for sums in (self.positions, self.equality, self.vectors))

    def rows(self, schema: pa.Schema) -> pa.Table:
        """The rows that were kept."""
        return pa.Table.from_batches(self._rows, schema)


def vector_mask(rows: pa.RecordBatch | pa.Table) -> NDArray[np.bool_]:
    """Which delete files are blobs of Puffin files."""
    mask: NDArray[np.bool_] = np.asarray(pc.equal(pc.utf8_lower(rows["file_format"]), "puffin"))
    return mask


def own_sizes(rows: pa.RecordBatch | pa.Table) -> NDArray[np.int64]:
    """What each file takes by itself, as `structs.own_bytes` says; what cannot be a size counts as the nearest that can."""
    return np.clip(_stated_sizes(rows), 0, _MOST)


def record_counts(rows: pa.RecordBatch | pa.Table) -> NDArray[np.int64]:
    """The rows of each file; what cannot be their number counts as the nearest that can."""
    return np.clip(np.asarray(rows["record_count"]), 0, _MOST)


def odd_count(rows: pa.RecordBatch | pa.Table) -> int:
    """How many entries state a size or a number of rows that no file has."""
    sizes, records = _stated_sizes(rows), np.asarray(rows["record_count"])
    return int(np.count_nonzero((sizes < 0) | (sizes > _MOST) | (records < 0) | (records > _MOST)))


def _stated_sizes(rows: pa.RecordBatch | pa.Table) -> NDArray[np.int64]:
    names = rows.schema.names
    sizes = rows["file_size_in_bytes"]
    if "content_size_in_bytes" in names:
        sizes = pc.coalesce(rows["content_size_in_bytes"], sizes)
    return np.asarray(sizes)


def _by_partition(
    rows: pa.RecordBatch, sizes: NDArray[np.int64], asks: NDArray[np.bool_], is_large: NDArray[np.bool_]
) -> Iterator[tuple[PartitionId, PartitionSums]]:
    """The sums of a batch, which is of one spec."""
    [spec_id] = pc.unique(rows["spec_id"]).to_pylist()
    encoded = rows["partition"].dictionary_encode()
    codes, keys = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    columns = [np.bincount(codes, minlength=len(keys)), _summed(codes, sizes, len(keys))]
    columns += [np.bincount(codes[asks], minlength=len(keys)), _summed(codes[asks], sizes[asks], len(keys))]
    columns += [np.bincount(codes[is_large], minlength=len(keys))]
    for key, *sums in zip(keys, *(column.tolist() for column in columns), strict=True):
        yield (spec_id, key), PartitionSums(*sums)


def _summed(codes: NDArray[np.int64], sizes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    totals = np.zeros(length, np.int64)
    np.add.at(totals, codes, sizes)
    return totals
