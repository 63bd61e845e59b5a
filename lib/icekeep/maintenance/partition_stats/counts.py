"""What is in each partition of a snapshot, counted from manifests: from all of them, or from those that came since a snapshot
whose statistics are there.

Entries are folded as they are decoded; memory grows with the number of partitions. As in Iceberg Java, a partition that has
lost all of its files stays as long as an entry, or the file before, names it, with counts of zero. What was counted is compared
with the manifest list: where an earlier file and what came since do not add up to it, all is counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import IcekeepError, InvalidTableError, one_line
from icekeep.events import Listener, Warned
from icekeep.maintenance.partition_stats.file import (
    COUNTS,
    PartitionStats,
    read_partition_stats,
    unified_partition_type,
)
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, folded
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestFile, Status, total_count
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, Snapshot
from icekeep.spec.types import StructType
from icekeep.spec.values import sort_key

COLUMNS = frozenset(
    {"spec_id", "partition", "status", "snapshot_id", "content", "file_format", "record_count", "file_size_in_bytes"}
)
_NAMES = (*COUNTS, "change")
_UNKNOWN = -1
_MOST = 1 << 48
"""No file has so many bytes or rows; sums of thousands of them are still whole numbers of 64 bits."""

_MANY_ROWS = 1 << 16


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a snapshot.

    Attributes:
        rows: of the partitions, in no order; none for a snapshot that never had a file.
        partition: the unified partition type.
        base: the file that was counted on from; `None` where all manifests were read.
        why_full: why there was none, for people.
        manifests: that were read.
    """

    rows: list[PartitionStats]
    partition: StructType
    base: PartitionStatisticsFile | None
    why_full: str
    manifests: tuple[ManifestFile, ...]


def count_partitions(
    table: Table, snapshot: Snapshot, spark: SparkSource, listener: Listener, *, count_rows: bool
) -> Counted:
    """Count the files, rows and deletes of a snapshot by partition.

    Args:
        listener: is warned where entries and manifest list disagree.
        count_rows: also say how many rows deletes leave, where metadata alone can tell.

    Raises:
        UnsupportedError: a partition transform is not known.
        InvalidTableError, MissingFileError: a manifest cannot be read, or states what no file has.
    """
    partition = unified_partition_type(table.metadata)
    listed = ManifestReader(table.storage).manifests(snapshot)
    base, why_full = latest_statistics(table.metadata, snapshot), "no ancestor of the snapshot has partition statistics"
    counted = None
    if base is not None:
        try:
            counted = _from_base(table, snapshot, base, partition, spark)
            why_full = _difference(counted.rows, listed)
        except IcekeepError as error:
            why_full = f"the statistics of snapshot {base.snapshot_id} cannot be counted on from: {one_line(error)}"
    if counted is None or why_full:
        rows = _counted(table, listed, spark, is_incremental=False)
        counted = Counted(
            rows=_as_rows(rows, table.metadata, partition),
            partition=partition,
            base=None,
            why_full=why_full,
            manifests=tuple(listed),
        )
        if problem := _difference(counted.rows, listed):
            listener.on(Warned(f"the entries of {table.name!r} say other than its manifest list: {problem}"))
    if count_rows:
        _count_rows(counted.rows)
    return counted


def latest_statistics(metadata: TableMetadata, snapshot: Snapshot) -> PartitionStatisticsFile | None:
    """The statistics of the snapshot, or of its nearest ancestor that has some; `None` where the history ends before."""
    by_snapshot = {file.snapshot_id: file for file in metadata.partition_statistics}
    for ancestor in metadata.ancestors(snapshot.snapshot_id):
        if ancestor.snapshot_id in by_snapshot:
            return by_snapshot[ancestor.snapshot_id]
    return None


def _from_base(
    table: Table, snapshot: Snapshot, base: PartitionStatisticsFile, partition: StructType, spark: SparkSource
) -> Counted:
    """The rows of an earlier file, and what the manifests add that came since."""
    between: list[Snapshot] = []
    for one in table.metadata.ancestors(snapshot.snapshot_id):
        if one.snapshot_id == base.snapshot_id:
            break
        between.append(one)
    ids = {one.snapshot_id for one in between}
    found = listed_manifests(table.storage, spark, between, check=True, trust=True).manifests
    added = [manifest for manifest in found if manifest.added_snapshot_id in ids]
    rows = read_partition_stats(table.storage, base.statistics_path, partition, table.metadata.partition_types)
    types = [field.type for field in partition.fields]
    # Keys are bytes: NaN is not equal to itself, and -0.0 is a partition other than 0.0.
    by_partition = {(row.spec_id, sort_key(types, row.partition)): row for row in rows}
    if len(by_partition) < len(rows):
        raise InvalidTableError(
            f"partition statistics file {base.statistics_path!r} has two rows of one partition",
            location=base.statistics_path,
        )
    changes = _as_rows(_counted(table, added, spark, is_incremental=True), table.metadata, partition)
    for change in changes:
        row = by_partition.setdefault((change.spec_id, sort_key(types, change.partition)), change)
        if row is not change:
            row.counts = [one + other for one, other in zip(row.counts, change.counts, strict=True)]
            row.update_snapshot(change.last_updated_at, change.last_updated_snapshot_id)
    return Counted(rows=[*by_partition.values()], partition=partition, base=base, why_full="", manifests=tuple(added))


def _counted(
    table: Table, manifests: Sequence[ManifestFile], spark: SparkSource, *, is_incremental: bool
) -> "PartitionFold":
    metadata = table.metadata
    specs = {m.partition_spec_id: SpecFilter(metadata.partition_type(m.partition_spec_id)) for m in manifests}
    wanted = EntryFilter(specs=specs, live_only=False)
    new = partial(PartitionFold, _by_time(metadata), is_incremental)
    return folded(table.storage, spark, manifests, wanted, COLUMNS, new)


def _by_time(metadata: TableMetadata) -> tuple[int, ...]:
    """The ids of all snapshots, the oldest first."""
    ordered = sorted(metadata.snapshots, key=lambda one: (one.timestamp_ms, one.sequence_number, one.snapshot_id))
    return tuple(one.snapshot_id for one in ordered)


class PartitionFold:
    """A `Fold` of entries, deleted ones too.

    Args:
        snapshot_ids: those that are known, by time: the last of those that changed a partition is found by its place.
        is_incremental: only what a manifest adds and removes counts, else what is live.
    """

    def __init__(self, snapshot_ids: tuple[int, ...], is_incremental: bool) -> None:
        self._snapshot_ids, self._is_incremental = snapshot_ids, is_incremental
        self._parts: list[pa.Table] = []
        self._rows_count = 0

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        if rows.num_rows:
            self._take(_summed(pa.table({**self._keys(rows), **self._columns(rows)})))

    def merge(self, other: "PartitionFold") -> None:
        for part in other._parts:
            self._take(part)

    def table(self) -> pa.Table | None:
        """A row for each spec and partition, with the sums and the place of the last change; `None` without entries."""
        return _summed(pa.concat_tables(self._parts)) if self._parts else None

    def _take(self, part: pa.Table) -> None:
        self._parts.append(part)
        self._rows_count += part.num_rows
        # Parts are joined when they have doubled, so that each row is summed a few times at most.
        if self._rows_count > max(_MANY_ROWS, 2 * self._parts[0].num_rows):
            self._parts = [_summed(pa.concat_tables(self._parts))]
            self._rows_count = self._parts[0].num_rows

    @staticmethod
    def _keys(rows: pa.RecordBatch) -> dict[str, pa.Array]:
        return {"spec_id": rows["spec_id"], "partition": rows["partition"]}

    def _columns(self, rows: pa.RecordBatch) -> dict[str, NDArray[np.int64]]:
        status, content = np.asarray(rows["status"]), np.asarray(rows["content"])
        records, sizes = _stated(rows, "record_count"), _stated(rows, "file_size_in_bytes")
        if self._is_incremental:
            sign = (status == Status.ADDED).astype(np.int64) - (status == Status.DELETED)
        else:
            sign = (status != Status.DELETED).astype(np.int64)
        is_vector = np.asarray(pc.equal(pc.utf8_upper(rows["file_format"]), "PUFFIN"))
        data = sign * (content == FileContent.DATA)
        positions = sign * (content == FileContent.POSITION_DELETES)
        equality = sign * (content == FileContent.EQUALITY_DELETES)
        counts = {
            "data_record_count": data * records,
            "data_file_count": data,
            "total_data_file_size_in_bytes": data * sizes,
            "position_delete_record_count": positions * records,
            "position_delete_file_count": positions * ~is_vector,
            "equality_delete_record_count": equality * records,
            "equality_delete_file_count": equality,
            "dv_count": positions * is_vector,
        }
        # Entries that were there before change nothing: their partition was changed when they were added.
        return {**counts, "change": self._places(rows, is_new=status != Status.EXISTING)}

    def _places(self, rows: pa.RecordBatch, is_new: NDArray[np.bool_]) -> NDArray[np.int64]:
        """When each entry's snapshot was made, as its place among those that are known."""
        known = pa.array(self._snapshot_ids, pa.int64())
        places = pc.index_in(rows["snapshot_id"], known).fill_null(_UNKNOWN).to_numpy().astype(np.int64)
        return np.where(is_new, places, _UNKNOWN) if self._is_incremental else places


def _stated(rows: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    values: NDArray[np.int64] = np.asarray(rows[name])
    if ((values < 0) | (values > _MOST)).any():
        raise InvalidTableError(
            f"an entry of a manifest states {name} {int(values[(values < 0) | (values > _MOST)][0])}"
        )
    return values


def _summed(rows: pa.Table) -> pa.Table:
    """One row for each spec and partition."""
    asked = [(name, "max" if name == "change" else "sum") for name in _NAMES]
    grouped = rows.group_by(["spec_id", "partition"], use_threads=False).aggregate(asked)
    found = {name: grouped[f"{name}_{how}"] for name, how in asked}
    return pa.table({"spec_id": grouped["spec_id"], "partition": grouped["partition"], **found})


def _as_rows(fold: PartitionFold, metadata: TableMetadata, partition: StructType) -> list[PartitionStats]:
    """The rows of a fold, their partitions as tuples of the unified partition type."""
    table = fold.table()
    if table is None:
        return []
    codecs, snapshot_ids = PartitionCodecs(metadata.partition_types), _by_time(metadata)
    places: Mapping[int, Sequence[int | None]] = {
        spec_id: _places_of(struct, partition) for spec_id, struct in metadata.partition_types.items()
    }
    counts = [table[name].to_pylist() for name in COUNTS]
    keys = (table[name].to_pylist() for name in ("spec_id", "partition", "change"))
    rows = []
    for spec_id, key, change, *sums in zip(*keys, *counts, strict=True):
        values = codecs.decode(spec_id, key)
        row = PartitionStats(
            spec_id=spec_id,
            partition=tuple(None if place is None else values[place] for place in places[spec_id]),
            counts=sums,
        )
        if change != _UNKNOWN:
            snapshot = metadata.snapshots_by_id[snapshot_ids[change]]
            row.update_snapshot(snapshot.timestamp_ms, snapshot.snapshot_id)
        rows.append(row)
    return rows


def _places_of(struct: StructType, partition: StructType) -> list[int | None]:
    """Where each field of the unified partition type stands in the tuples of a spec; `None` where the spec lacks it."""
    places = {field.field_id: place for place, field in enumerate(struct.fields)}
    return [places.get(field.field_id) for field in partition.fields]


def _difference(rows: Sequence[PartitionStats], listed: Iterable[ManifestFile]) -> str:
    """How the sums over all partitions differ from what the manifest list says; empty where they do not, or it does not say."""
    manifests = [*listed]
    sums = dict(zip(COUNTS, map(sum, zip(*(row.counts for row in rows), strict=True)), strict=False)) if rows else {}
    if any(count < 0 for row in rows for count in row.counts):
        return "a partition has less than nothing"
    files = {
        ManifestContent.DATA: ("data_file_count",),
        ManifestContent.DELETES: ("position_delete_file_count", "equality_delete_file_count", "dv_count"),
    }
    records = {
        ManifestContent.DATA: ("data_record_count",),
        ManifestContent.DELETES: ("position_delete_record_count", "equality_delete_record_count"),
    }
    for content in ManifestContent:
        of_content = [manifest for manifest in manifests if manifest.content is content]
        listed_files = total_count(manifest.live_files_count for manifest in of_content)
        listed_rows = total_count(
            count for manifest in of_content for count in (manifest.added_rows_count, manifest.existing_rows_count)
        )
        for names, total, noun in ((files, listed_files, "files"), (records, listed_rows, "rows")):
            found = sum(sums.get(name, 0) for name in names[content])
            if total is not None and total != found:
                kind = content.name.lower()
                return f"{found} {noun} of {kind} are counted, and the manifest list has {total}"
    return ""


def _count_rows(rows: Sequence[PartitionStats]) -> None:
    """Write the rows that deletes leave where there is no delete at all: what deletes leave else is known by reading."""
    names = [*COUNTS]
    deletes = [names.index(name) for name in names if "delete" in name or name == "dv_count"]
    if not any(row.counts[place] for row in rows for place in deletes):
        for row in rows:
            row.total_record_count = row.counts[names.index("data_record_count")]
