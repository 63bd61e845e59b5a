"""Plan a scan: the version of a table that it reads, the files that a filter needs, and the deletes that reach them.

version -> manifest list -> manifests (by partition summaries) -> entries (by partition, by bounds) -> files with deletes
"""

import heapq
import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.live_files import check_totals
from icekeep.errors import NotFoundError, UsageError, argument
from icekeep.planning.deletes import (
    CROWDED_COUNT,
    MATCHED_DATA_COLUMNS,
    MAX_PAIRS,
    ReachingDeletes,
    crowded_count,
    reaching,
    with_deletes,
    with_deletes_in_tasks,
)
from icekeep.planning.entries import (
    DecodedEntries,
    EntryFilter,
    ManifestSelection,
    PruningStats,
    ReadBy,
    bound_filter,
    chosen_reading,
    data_manifests,
    delete_manifests,
    entries,
    entries_count,
    few_entries,
    select_manifests,
    snapshot_manifests,
)
from icekeep.planning.manifests import MATCHED_COLUMNS, METRICS, STORED
from icekeep.planning.spark.session import LIMITS, F, Limits, SparkSource, refuse_encrypted
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import FileContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spec.times import Moment, format_time, moment_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class VersionArguments(TypedDict, total=False):
    """The arguments that choose what a scan reads; by default the head of `main`.

    Attributes:
        ref: a branch or tag.
        snapshot_id: any snapshot of the table.
        as_of: the snapshot that was current at this moment, or this age ago.
        start_snapshot_id: an incremental scan reads the files appended after this snapshot (exclusive),
        end_snapshot_id: up to this one (inclusive), by default up to the head of `main`; deletes are ignored.
    """

    ref: str | None
    snapshot_id: int | None
    as_of: Moment | None
    start_snapshot_id: int | None
    end_snapshot_id: int | None


VERSION_ARGUMENTS = tuple(VersionArguments.__annotations__)


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a table that a scan reads.

    Attributes:
        snapshot: `None` for a table without data.
        schema: the filter is bound to it, and rows are read with it.
        appended_by: the snapshots whose appended files an incremental scan reads; `None` for all live files.
    """

    snapshot: Snapshot | None
    schema: Schema
    appended_by: tuple[Snapshot, ...] | None = None


def chosen_version(metadata: TableMetadata, now_ms: int, **arguments: Unpack[VersionArguments]) -> Version:
    """The version that the arguments of a scan choose; an age is counted back from `now_ms`.

    A snapshot and a tag are read with the schema that was current when the snapshot was made, a branch with the table's.

    Raises:
        NotFoundError: there is no such branch, tag or snapshot, or the table had none at that moment.
        UsageError: an argument is unknown or has a wrong value, two contradict one another, or the start is no ancestor of
            the end.
    """
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    for name in given:
        # A misspelt name must not read the current snapshot.
        if name not in VERSION_ARGUMENTS:
            raise UsageError(
                f"a scan has no argument {name!r}; what it reads is named by one of {', '.join(VERSION_ARGUMENTS[:-1])}"
            )
    end_id = given.pop("end_snapshot_id", None)
    if len(given) > 1:
        raise UsageError(f"{' and '.join(map(argument, given))} contradict one another; give one of them")
    if end_id is not None and "start_snapshot_id" not in given:
        raise UsageError(
            f"{argument('end_snapshot_id')} needs {argument('start_snapshot_id')}; a single snapshot is named by "
            f"{argument('snapshot_id')}"
        )
    if (start_id := given.get("start_snapshot_id")) is not None:
        end_id = None if end_id is None else _snapshot_id("end_snapshot_id", end_id)
        return _incremental(metadata, _snapshot_id("start_snapshot_id", start_id), end_id)
    return _single_version(metadata, now_ms, **given)


def _snapshot_id(name: str, given: Any) -> int:
    """Accepts numpy's integers too, as pandas gives them."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise UsageError(f"{argument(name)} is {given!r}; give the id of a snapshot, a whole number")
    return operator.index(given)


def _single_version(
    metadata: TableMetadata,
    now_ms: int,
    *,
    ref: Any = MAIN,
    snapshot_id: Any | None = None,
    as_of: Moment | None = None,
) -> Version:
    if not isinstance(ref, str):
        raise UsageError(f"{argument('ref')} is {ref!r}; give the name of a branch or tag")
    if snapshot_id is not None:
        snapshot = metadata.snapshot(_snapshot_id("snapshot_id", snapshot_id))
    elif as_of is not None:
        at_ms, log = moment_ms(as_of, now_ms), metadata.snapshot_log
        entries = [entry for entry in log if entry.timestamp_ms <= at_ms]
        if not entries:
            history = f"its log begins at {format_time(log[0].timestamp_ms)}" if log else "it has no snapshot at all"
            raise NotFoundError(
                f"the table at {metadata.location!r} is not known as of {format_time(at_ms)}: {history}", as_of=at_ms
            )
        snapshot = metadata.snapshot(entries[-1].snapshot_id)
    else:
        head, named = metadata.head(ref), metadata.refs.get(ref)
        if head is None or named is None or named.is_branch:
            return Version(snapshot=head, schema=metadata.schema)
        snapshot = head
    schema_id = snapshot.schema_id
    schema = metadata.schema if schema_id is None else metadata.schemas_by_id.get(schema_id, metadata.schema)
    return Version(snapshot=snapshot, schema=schema)


def _incremental(metadata: TableMetadata, start_id: int, end_id: int | None) -> Version:
    metadata.snapshot(start_id)
    end = metadata.current_snapshot if end_id is None else metadata.snapshot(end_id)
    if end is None:
        raise NotFoundError(
            f"the table at {metadata.location!r} has no current snapshot; give {argument('end_snapshot_id')}"
        )
    between = []
    for snapshot in metadata.ancestors(end.snapshot_id):
        if snapshot.snapshot_id == start_id:
            break
        between.append(snapshot)
    else:
        raise UsageError(
            f"snapshot {start_id} is no ancestor of snapshot {end.snapshot_id}, so nothing lies between them"
        )
    appends = tuple(snapshot for snapshot in reversed(between) if snapshot.operation == "append")
    return Version(snapshot=end, schema=metadata.schema, appended_by=appends)


FILE_COLUMNS = frozenset({"manifest_path", "spec_id", "partition", *STORED.names}) - {
    *METRICS.names,
    *("equality_ids", "referenced_data_file", "content_offset", "content_size_in_bytes"),
}
"""The columns of a plan by default."""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """A scan of which the manifest list has been read, and no manifest.

    Attributes:
        rows: the filter, bound to the version's schema.
        listed: all manifests of the version with live files, see `snapshot_manifests`.
        data: data manifests, by whether the filter needs them.
        deletes: delete manifests, by whether their deletes may reach a file of `data`.
    """

    table: Table
    version: Version
    rows: Expression
    listed: tuple[ManifestFile, ...]
    data: ManifestSelection
    deletes: ManifestSelection

    @property
    def wanted(self) -> EntryFilter:
        """The filter over entries of the opened data manifests."""
        appended_by = self.version.appended_by
        added_by = None if appended_by is None else frozenset(s.snapshot_id for s in appended_by)
        return EntryFilter(specs=self.data.specs, rows=self.rows, added_by=added_by)


def open_scan(
    table: Table,
    *,
    where: str | Expression = ALWAYS_TRUE,
    for_commit: bool = False,
    **version: Unpack[VersionArguments],
) -> Scan:
    """Choose the version, read its manifest list and select the manifests, without Spark.

    Deletes of a partition reach only files of that partition, so the filter's projection selects delete manifests as it
    does data manifests. Sequence numbers in the list skip no delete manifest: were they wrong, deleted rows would come back.

    Args:
        where: a filter over the table's columns, as text or as an unbound expression.
        for_commit: check the list against the totals of its snapshot, and skip no delete manifest by its partition
            summaries, which may be wrong too.
        version: see `VersionArguments`.

    Raises:
        ExpressionError, NotFoundError, UsageError: the filter or the version does not fit the table.
        UnsupportedError: the table is encrypted.
        InvalidTableError, MissingFileError: the manifest list cannot be read, or contradicts those totals.
    """
    metadata = table.metadata
    refuse_encrypted(metadata, "scan planning")
    chosen = chosen_version(metadata, table.runtime.now_ms(), **version)
    rows = bound_filter(where, metadata, chosen.schema, table.runtime.now_ms())
    listed = (
        snapshot_manifests(table, chosen.snapshot)
        if chosen.appended_by is None
        else _manifests_of_appends(table, chosen.appended_by)
    )
    data = select_manifests(metadata, chosen.schema, data_manifests(listed), rows)
    deletes = select_manifests(metadata, chosen.schema, delete_manifests(listed), rows)
    if for_commit:
        if chosen.snapshot is not None:
            check_totals(listed, chosen.snapshot)
        deletes = msgspec.structs.replace(deletes, opened=deletes.opened + deletes.skipped, skipped=())
    return Scan(table=table, version=chosen, rows=rows, listed=tuple(listed), data=data, deletes=deletes)


class FewFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The data files that a scan needs, on the driver, and, if asked for, the deletes that reach each."""

    files: pa.Table
    reaching: ReachingDeletes | None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each file, with its `deletes` if they were asked for; files share the rows of deletes."""
        rows: list[dict[str, Any]] = self.files.to_pylist()
        if self.reaching is not None:
            deletes = self.reaching.deletes.to_pylist()
            for number, row in enumerate(rows):
                row["deletes"] = [deletes[position] for position in self.reaching.of_row(number)]
        return rows


def few_files(
    scan: Scan,
    limits: Limits = LIMITS,
    columns: Iterable[str] = FILE_COLUMNS,
    *,
    deletes: bool = True,
    max_pairs: int = MAX_PAIRS,
) -> FewFiles | None:
    """Plan without Spark, where files are few; `None` where they are many, or many deletes reach many of them.

    Args:
        limits: the most entries, deletes among them, that are few.
        columns: of `planning.manifests.ENTRIES`.
        deletes: whether to match the deletes that reach each file.
        max_pairs: as for `reaching`; not above the default if `FewFiles.rows` is to be called.
    """
    storage, manifests = scan.table.storage, scan.deletes.opened if deletes else ()
    reading = chosen_reading([*scan.data.opened, *manifests], limits.entries_count)
    if reading.by is not ReadBy.DRIVER:
        return None
    columns = frozenset(columns)
    needed = columns | MATCHED_DATA_COLUMNS if deletes else columns
    files = few_entries(storage, scan.data.opened, scan.wanted, needed, reading.decoder)
    if not deletes:
        return FewFiles(files=files, reaching=None)
    of_deletes = EntryFilter(specs=scan.deletes.specs)
    delete_files = few_entries(storage, manifests, of_deletes, MATCHED_COLUMNS, reading.decoder)
    deletes_by_file = reaching(files, delete_files, scan.table.metadata.specs_by_id, max_pairs)
    if deletes_by_file is None:
        return None
    return FewFiles(
        files=files.select([name for name in files.column_names if name in columns]), reaching=deletes_by_file
    )


def planned_files(scan: Scan, spark: SparkSource, columns: Iterable[str] = FILE_COLUMNS) -> "DataFrame":
    """The data files that the scan needs, with some columns of `ENTRIES`; raises as `entries` does."""
    return entries(scan.table.storage, spark, scan.data.opened, scan.wanted, columns)


def planned_files_with_deletes(scan: Scan, spark: SparkSource, columns: Iterable[str] = FILE_COLUMNS) -> "DataFrame":
    """`planned_files` with a column `deletes`: those to apply to each file, of type `planning.manifests.REACHING_DELETES`.

    Where deletes contradict one another or the data, Spark raises `InvalidTableError` as it runs.
    """
    return matched_with_deletes(
        planned_files(scan, spark, columns),
        scan.table,
        spark,
        scan.deletes.opened,
        EntryFilter(specs=scan.deletes.specs),
        data_count=entries_count(scan.data.opened),
    )


def matched_with_deletes(
    files: "DataFrame",
    table: Table,
    spark: SparkSource,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    *,
    data_count: int,
    only_positions: bool = False,
) -> "DataFrame":
    """Data files, about `data_count`, with what of the delete files of some manifests a reader must apply to each."""
    storage, specs = table.storage, table.metadata.specs_by_id
    deletes = entries(storage, spark, manifests, wanted, MATCHED_COLUMNS)
    if only_positions:
        deletes = deletes.where(F.col("content") == int(FileContent.POSITION_DELETES))
    counts = [m.live_files_count for m in manifests]
    known_count = None if None in counts else sum(count or 0 for count in counts)
    if known_count is None or known_count > CROWDED_COUNT:
        shared_count = crowded_count(storage, spark, manifests, wanted)
        if shared_count is not None:
            return with_deletes_in_tasks(files, deletes, specs, data_count=data_count, shared_count=shared_count)
    return with_deletes(files, deletes, specs, deletes_count=known_count)


def _manifests_of_appends(table: Table, appends: Iterable[Snapshot]) -> list[ManifestFile]:
    # A file that was appended and then moved to another manifest, or deleted, is still in the manifest of its own commit.
    return [
        manifest
        for snapshot in appends
        for manifest in data_manifests(snapshot_manifests(table, snapshot))
        if manifest.added_snapshot_id == snapshot.snapshot_id
    ]


COLUMNS = frozenset({"file_path", "file_size_in_bytes", "record_count", "spec_id", "partition"})
"""The columns that `ScanTotals` counts by."""

LARGEST_COUNT = 10

_RESOLUTION = math.log(1.01)

PartitionId = tuple[int, bytes]


class SizeDistribution:
    """Sizes in bytes, counted in buckets of one percent; the least and the greatest are exact."""

    def __init__(self) -> None:
        self.count = 0
        self.least: int | None = None
        self.greatest: int | None = None
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, sizes: np.ndarray) -> None:
        """Count sizes of 0 or more."""
        if len(sizes):
            buckets = (np.log(np.maximum(sizes, 1)) / _RESOLUTION).astype(np.int64)
            self._include(len(sizes), int(sizes.min()), int(sizes.max()), np.bincount(buckets))

    def merge(self, other: "SizeDistribution") -> None:
        """Add the counts of another."""
        if other.least is not None and other.greatest is not None:
            self._include(other.count, other.least, other.greatest, other._counts)

    def quantile(self, share: float) -> int | None:
        """The size that this share of all sizes does not exceed; `None` where there are none."""
        if self.least is None or self.greatest is None:
            return None
        rank = max(0, math.ceil(share * self.count) - 1)
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank, side="right"))
        return min(max(round(math.exp((bucket + 0.5) * _RESOLUTION)), self.least), self.greatest)

    def _include(self, count: int, least: int, greatest: int, counts: np.ndarray) -> None:
        self.count += count
        self.least = least if self.least is None else min(least, self.least)
        self.greatest = greatest if self.greatest is None else max(greatest, self.greatest)
        if len(counts) > len(self._counts):
            counts, self._counts = self._counts, counts.copy()
        self._counts[: len(counts)] += counts


class FileSize(msgspec.Struct, frozen=True, order=True):
    bytes: int
    file_path: str


class ScanTotals:
    """A `Fold`: totals of the selected files and of each step of pruning; memory grows with partitions, not with files."""

    def __init__(self) -> None:
        self.steps = PruningStats()
        self.record_count = 0
        self.sizes = SizeDistribution()
        self.largest: list[FileSize] = []
        self.files_by_partition: Counter[PartitionId] = Counter()
        self.bytes_by_partition: Counter[PartitionId] = Counter()

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        self.steps += decoded.steps
        if not rows.num_rows:
            return
        sizes = rows["file_size_in_bytes"].to_numpy()
        self.record_count += int(rows["record_count"].to_numpy().sum())
        self.sizes.add(sizes)
        least = self.largest[-1].bytes if len(self.largest) == LARGEST_COUNT else -1
        candidates = np.flatnonzero(sizes > least)
        if len(candidates) > LARGEST_COUNT:
            candidates = candidates[np.argpartition(sizes[candidates], -LARGEST_COUNT)[-LARGEST_COUNT:]]
        paths = rows["file_path"].take(pa.array(candidates)).to_pylist()
        largest = [*self.largest, *map(FileSize, sizes[candidates].tolist(), paths)]
        self.largest = heapq.nlargest(LARGEST_COUNT, largest)
        # Not `group_by`, which takes a tenth of a millisecond a batch to begin; a batch is of one spec.
        spec_id, encoded = rows["spec_id"][0].as_py(), rows["partition"].dictionary_encode()
        codes = encoded.indices.to_numpy()
        bytes_by_code = np.zeros(len(encoded.dictionary), np.int64)
        np.add.at(bytes_by_code, codes, sizes)
        keys = [(spec_id, key) for key in encoded.dictionary.to_pylist()]
        self.files_by_partition.update(dict(zip(keys, np.bincount(codes).tolist(), strict=True)))
        self.bytes_by_partition.update(dict(zip(keys, bytes_by_code.tolist(), strict=True)))

    def merge(self, other: "ScanTotals") -> None:
        self.steps += other.steps
        self.record_count += other.record_count
        self.sizes.merge(other.sizes)
        self.largest = heapq.nlargest(LARGEST_COUNT, [*self.largest, *other.largest])
        self.files_by_partition.update(other.files_by_partition)
        self.bytes_by_partition.update(other.bytes_by_partition)

    def largest_partitions(self) -> list[tuple[PartitionId, int, int]]:
        """The partitions of the most bytes: each one's id, number of files, and bytes."""
        largest = heapq.nlargest(LARGEST_COUNT, ((size, key) for key, size in self.bytes_by_partition.items()))
        return [(key, self.files_by_partition[key], size) for size, key in largest]

    def partition_sizes(self) -> SizeDistribution:
        sizes = SizeDistribution()
        sizes.add(np.fromiter(self.bytes_by_partition.values(), np.int64, len(self.bytes_by_partition)))
        return sizes
