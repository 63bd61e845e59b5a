"""The live files of a head, folded as they are decoded: sums, sizes, partitions, deletes, and what `compact` would take.

Memory grows with the number of partitions. Rows are kept only where they are known to be few: then it is known which
deletes reach which data files, else only what delete files say themselves. Snapshots that a branch or tag keeps are
counted by metadata alone, their files by the entries of heads.

The score says how far a table is from one that readers, planners and stores pay little for. Maintenance fixes most of
that, and the jobs that have something to do say what. The score of a table for which none has may be low all the same,
where few small files lie in each of many partitions, or deletes are fewer than `compact` takes for many.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.health.values import DeletesHealth, RefHealth, ScorePart, SizeBucket
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.rewrite.options import (
    FileSizes,
    comes_out_otherwise,
    expected_output_files,
    is_worth_rewriting,
)
from icekeep.planning.deletes import EVERY_PAIR, ReachingDeletes, reaching
from icekeep.planning.entries import DecodedEntries, entries_schema
from icekeep.planning.manifests import SOLE_PATH
from icekeep.planning.scan.report import SizeDistribution
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spelling import counted, counted_doing
from icekeep.storage.location_keys import location_keys

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
        expected = expected_output_files(sums.asking_bytes, sizes)
        return is_worth_rewriting(sums.asking_count, sums.asking_bytes, MIN_INPUT_FILES, sizes) and comes_out_otherwise(
            sums.asking_count, expected, has_large=sums.large_count > 0, is_moved=self.is_moved
        )


def compacted_together(
    partitions: Mapping[PartitionId, PartitionSums], output_specs: Mapping[int, int]
) -> list[GroupSums]:
    """Partitions, those of one spec added up where its files get another one."""
    found: list[GroupSums] = []
    moved: dict[int, PartitionSums] = {}
    for (spec_id, _), sums in partitions.items():
        if output_specs[spec_id] == spec_id:
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


def deletes_health(data: DataFold, deletes: DeleteFold, reached: ReachingDeletes | None) -> DeletesHealth:
    """The figures; those that need the pairs are `None` where `reached` is."""
    positions, equality, vectors = deletes.positions, deletes.equality, deletes.vectors
    deleted_count = _deleted_count(data, deletes, reached)
    found = DeletesHealth(
        position_delete_files_count=positions.files_count,
        position_delete_files_bytes=positions.bytes,
        position_delete_files_record_count=positions.record_count,
        equality_delete_files_count=equality.files_count,
        equality_delete_files_bytes=equality.bytes,
        equality_delete_files_record_count=equality.record_count,
        deletion_vectors_count=vectors.files_count,
        deletion_vectors_bytes=vectors.bytes,
        deletion_vectors_record_count=vectors.record_count,
        deleted_ratio=round(min(1.0, deleted_count / data.record_count), 4) if data.record_count else 0.0,
    )
    if not found.files_count:
        return msgspec.structs.replace(
            found,
            data_files_with_deletes_count=0,
            scan_read_bytes=0,
            mean_deletes=0.0,
            dangling_count=0,
            dangling_bytes=0,
        )
    if reached is None:
        return found
    sizes = own_sizes(reached.deletes)
    before = np.concatenate([[0], np.cumsum(sizes)])
    counts = reached.stops.astype(np.int64) - reached.starts
    idle = ~reached.reached
    return msgspec.structs.replace(
        found,
        data_files_with_deletes_count=int(np.count_nonzero(np.diff(reached.offsets))),
        scan_read_bytes=int((before[reached.stops] - before[reached.starts]).sum()),
        mean_deletes=round(int(counts.sum()) / data.files_count, 4) if data.files_count else 0.0,
        dangling_count=int(np.count_nonzero(idle)),
        dangling_bytes=int(sizes[idle].sum()),
    )


def _deleted_count(data: DataFold, deletes: DeleteFold, reached: ReachingDeletes | None) -> int:
    """Rows that deletes of positions delete, at most: what reaches nothing deletes none, and a file loses no more than it has."""
    if reached is None:
        return deletes.positions.record_count + deletes.vectors.record_count
    rows, found = data.rows(entries_schema(DATA_COLUMNS)), reached.deletes
    counts = np.minimum(reached.own_record_counts(rows["file_path"]), rows["record_count"].to_numpy())
    is_shared = pc.and_(
        pc.equal(found["content"], int(FileContent.POSITION_DELETES)),
        pc.and_(pc.is_null(found["referenced_data_file"]), pc.is_null(found[SOLE_PATH.name])),
    )
    shared = found["record_count"].to_numpy()[is_shared.to_numpy() & reached.used]
    return int(counts.clip(0).sum() + shared.clip(0).sum())


def reached_by(data: pa.Table, deletes: pa.Table, metadata: TableMetadata) -> ReachingDeletes | None:
    """Which delete files reach which data files; `None` where that is too many runs to hold.

    Raises:
        InvalidTableError: deletes contradict one another or the data.
    """
    return reaching(data, deletes, metadata.specs_by_id, EVERY_PAIR)


KEY_COLUMNS = frozenset({"manifest_path", "file_path", "file_size_in_bytes", "content_size_in_bytes", "content_offset"})

MAX_HEADS = 63
"""A set of heads is a word of so many bits."""


class HeldFold:
    """A `Fold`: keys of files with their sizes and the heads that they are live at; 24 bytes of each.

    Args:
        masks: by the path of a manifest, bit n for the head n.
    """

    def __init__(self, masks: Mapping[str, int]) -> None:
        self._paths = pa.array([*masks], pa.string())
        self._masks = np.fromiter(masks.values(), np.int64, len(masks))
        self._found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        if not rows.num_rows:
            return
        words = self._masks[pc.index_in(rows["manifest_path"], self._paths).to_numpy()]
        # Vectors of one Puffin file differ in their offset alone.
        offsets = np.asarray(pc.fill_null(rows["content_offset"], 0))
        keys = location_keys(rows["file_path"]) ^ (offsets * _STEP)
        self._found.append((keys, own_sizes(rows), words))

    def merge(self, other: "HeldFold") -> None:
        self._found += other._found

    def held(self) -> dict[int, tuple[int, int]]:
        """By the set of heads that files are live at, their number and bytes."""
        if not self._found:
            return {}
        keys, sizes, words = (np.concatenate(column) for column in zip(*self._found, strict=True))
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        masks = np.zeros(len(first), np.int64)
        np.bitwise_or.at(masks, place, words)
        kinds, kind = np.unique(masks, return_inverse=True)
        counts, sums = np.bincount(kind, minlength=len(kinds)), np.zeros(len(kinds), np.int64)
        np.add.at(sums, kind, sizes[first])
        return {int(k): (int(c), int(s)) for k, c, s in zip(kinds, counts, sums, strict=True)}


_STEP = np.int64(0x5851F42D4C957F2D)


def refs_health(
    metadata: TableMetadata, heads: Sequence[int], held: Mapping[int, tuple[int, int]] | None
) -> tuple[RefHealth, ...]:
    """Each reference, the one that alone keeps most first.

    Args:
        heads: the snapshots that references are at, each once; bit n of the sets of `held` is the head n.
        held: `None` where files were not counted.
    """
    kept = {name: _kept(metadata, name) for name in metadata.refs}
    holders: dict[int, int] = {}
    for snapshot_ids in kept.values():
        for snapshot_id in snapshot_ids:
            holders[snapshot_id] = holders.get(snapshot_id, 0) + 1
    found = []
    for name, ref in metadata.refs.items():
        one = RefHealth(
            ref=name,
            type=ref.type,
            snapshot_id=ref.snapshot_id,
            snapshots_count=len(kept[name]),
            only_snapshots_count=sum(holders[snapshot_id] == 1 for snapshot_id in kept[name]),
        )
        found.append(one if held is None else _with_files(one, metadata, heads, held))
    return tuple(sorted(found, key=lambda one: (-(one.only_bytes or 0), one.ref)))


def ancestors_of(metadata: TableMetadata, snapshot_ids: Iterable[int | None]) -> set[int]:
    """Some snapshots and all that they come from; each is come to once."""
    found: set[int] = set()
    for snapshot_id in snapshot_ids:
        for snapshot in metadata.ancestors(snapshot_id):
            if snapshot.snapshot_id in found:
                break
            found.add(snapshot.snapshot_id)
    return found


def _kept(metadata: TableMetadata, name: str) -> list[int]:
    ref = metadata.refs[name]
    if not ref.is_branch:
        return [ref.snapshot_id]
    return [snapshot.snapshot_id for snapshot in metadata.ancestors(ref.snapshot_id)]


def _with_files(
    one: RefHealth, metadata: TableMetadata, heads: Sequence[int], held: Mapping[int, tuple[int, int]]
) -> RefHealth:
    bit = 1 << heads.index(one.snapshot_id)
    mine = [amount for mask, amount in held.items() if mask & bit]
    alone = held.get(bit, (0, 0))
    if sum(ref.snapshot_id == one.snapshot_id for ref in metadata.refs.values()) > 1:
        # Another reference is at the same snapshot.
        alone = (0, 0)
    return msgspec.structs.replace(
        one,
        files_count=sum(count for count, _ in mine),
        bytes=sum(size for _, size in mine),
        only_files_count=alone[0],
        only_bytes=alone[1],
    )


class Sickness(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a score goes by; each is 0 where nothing is wrong, and more is worse, but for `other_files_count`.

    Attributes:
        small_files_count: in partitions that have more than one file.
        left_files_count: of these, those that are too few together for `compact`; only told.
        other_files_count: the other data files.
        deleted_ratio: deleted rows of all rows.
        delete_read_ratio: bytes of deletes that a scan reads, of those of data.
        mean_deletes: delete files applied to a data file, in the mean.
        equality_delete_files_count: live ones.
        spare_manifests_count: more than there need be.
        mean_overlap: manifests that a filter on one partition opens, in the mean, beyond the first.
        partition_skew: the largest partition divided by the median.
    """

    faults_count: int = 0
    small_files_count: int = 0
    left_files_count: int = 0
    other_files_count: int = 0
    deleted_ratio: float = 0.0
    delete_read_ratio: float = 0.0
    mean_deletes: float = 0.0
    equality_delete_files_count: int = 0
    spare_manifests_count: int = 0
    mean_overlap: float = 0.0
    expirable_count: int = 0
    metadata_bytes: int = 0
    dangling_count: int = 0
    partition_skew: float = 1.0


_LEAST_SHOWN = 0.5


def score_of(sick: Sickness) -> tuple[float, tuple[ScorePart, ...]]:
    """The score of a table, 0 to 100 (healthy), and what takes points from it, the most first.

    Each part i has a burden x of 0 or more and a weight w; it leaves `1 - w * x / (1 + x)` of the points, and

        score = 100 * product over i of (1 - w_i * x_i / (1 + x_i))

    | part       | w   | x |
    |------------|-----|---|
    | faults     | 0.9 | faults |
    | files      | 0.7 | small files / (20 + other files) |
    | deletes    | 0.7 | deleted ratio / 0.2 + bytes of deletes that a scan reads / (0.2 * bytes of data) |
    |            |     | + delete files applied to a data file / 10 + equality delete files / 50 |
    | manifests  | 0.5 | spare manifests / 50 + (mean overlap - 1) / 5 |
    | snapshots  | 0.3 | snapshots to expire / 100 + bytes of the metadata file / 20 MB |
    | dangling   | 0.2 | dangling delete files / 20 |
    | partitions | 0.1 | (skew - 1) / 50 |

    So every part only takes points, more of a burden never gives any back, one very bad part is enough for a bad score, and
    what maintenance cannot fix (skew) weighs little. Weights and units were chosen, not measured.
    """
    parts = [part for part in _parts(sick) if part.lost]
    left = 100.0
    for part in parts:
        left *= 1 - part.lost / 100
    told = (p for p in parts if p.lost >= _LEAST_SHOWN)
    rounded = (msgspec.structs.replace(part, lost=round(part.lost, 1)) for part in told)
    return round(left, 1), tuple(sorted(rounded, key=lambda part: (-part.lost, part.name)))


def _parts(sick: Sickness) -> Iterable[ScorePart]:
    small, other = sick.small_files_count, sick.other_files_count
    yield _part(
        "faults",
        0.9,
        sick.faults_count,
        f"{counted(sick.faults_count, 'faults')} in metadata and manifest lists; `icekeep check` says which",
    )
    left = f", {sick.left_files_count:,} of them too few together for compact" if sick.left_files_count else ""
    yield _part(
        "files",
        0.7,
        small / (20 + other),
        f"{small:,} of {counted_doing(small + other, 'data files', 'are')} small{left}",
    )
    yield _part(
        "deletes",
        0.7,
        sick.deleted_ratio / 0.2
        + sick.delete_read_ratio / 0.2
        + sick.mean_deletes / 10
        + sick.equality_delete_files_count / 50,
        f"{sick.deleted_ratio:.1%} of the rows are deleted, a scan reads {sick.delete_read_ratio:.1%} more for deletes, "
        f"{sick.mean_deletes:.1f} delete files a data file, "
        f"{counted(sick.equality_delete_files_count, 'equality delete files')}",
    )
    yield _part(
        "manifests",
        0.5,
        sick.spare_manifests_count / 50 + sick.mean_overlap / 5,
        f"{counted(sick.spare_manifests_count, 'manifests')} more than needed"
        # 0 too where there are no partitions.
        + (f", a filter on one partition opens {1 + sick.mean_overlap:.1f}" if sick.mean_overlap else ""),
    )
    yield _part(
        "snapshots",
        0.3,
        sick.expirable_count / 100 + sick.metadata_bytes / 20_000_000,
        f"{counted(sick.expirable_count, 'snapshots')} to expire"
        # Only its catalog may read some.
        + (f", a metadata file of {sick.metadata_bytes:,} bytes" if sick.metadata_bytes else ""),
    )
    yield _part(
        "dangling",
        0.2,
        sick.dangling_count / 20,
        f"{counted_doing(sick.dangling_count, 'delete files', 'reach')} nothing",
    )
    yield _part(
        "partitions",
        0.1,
        max(0.0, sick.partition_skew - 1) / 50,
        f"the largest partition is {sick.partition_skew:.1f} times the median",
    )


def _part(name: str, weight: float, burden: float, reason: str) -> ScorePart:
    return ScorePart(name=name, lost=100 * weight * burden / (1 + burden), reason=reason)
