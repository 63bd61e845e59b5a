"""Report what a scan would read, what pruning saves, and which deletes apply."""

import heapq
import math
from collections import Counter
from functools import partial
from typing import Unpack

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.events import SILENT
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.deletes import EVERY_PAIR, MATCHED_DATA_COLUMNS, count_deletes_in_use
from icekeep.planning.entries import DecodedEntries, PruningStats, ReadBy, chosen_reading, folded
from icekeep.planning.scan.explain import Explanation, explain_file
from icekeep.planning.scan.plan import (
    Scan,
    VersionArguments,
    matched_on_driver,
    open_scan,
    planned_files_with_deletes,
)
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.session import SparkSource, check_source, limits_of
from icekeep.rendered import Rendered
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import FileContent, total_count
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spelling import counted

TOTALLED_COLUMNS = frozenset({"file_path", "file_size_in_bytes", "record_count", "spec_id", "partition"})
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
    """A `Fold`: totals of the selected files and of each step of pruning; memory grows with partitions, not with files.

    With `keeps_files`, where files are few, the columns that matching deletes needs are kept in `files`.
    """

    def __init__(self, keeps_files: bool = False) -> None:
        self.files: list[pa.RecordBatch] | None = [] if keeps_files else None
        self.steps = PruningStats()
        self.record_count = 0
        self.sizes = SizeDistribution()
        self.largest: list[FileSize] = []
        self.files_by_partition: Counter[PartitionId] = Counter()
        self.bytes_by_partition: Counter[PartitionId] = Counter()

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        self.steps.add(decoded)
        if self.files is not None:
            self.files.append(rows.select(sorted(MATCHED_DATA_COLUMNS)))
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
        self.steps.merge(other.steps)
        if self.files is not None:
            self.files += other.files or ()
        self.record_count += other.record_count
        self.sizes.merge(other.sizes)
        self.largest = heapq.nlargest(LARGEST_COUNT, [*self.largest, *other.largest])
        self.files_by_partition.update(other.files_by_partition)
        self.bytes_by_partition.update(other.bytes_by_partition)


class DeletesInUse(msgspec.Struct, frozen=True, kw_only=True):
    """Distinct delete files that a scan must apply; the bytes of a deletion vector are those of its blob."""

    deletion_vectors_count: int = 0
    deletion_vectors_bytes: int = 0
    deletion_vectors_record_count: int = 0
    position_delete_files_count: int = 0
    position_delete_files_bytes: int = 0
    position_delete_files_record_count: int = 0
    equality_delete_files_count: int = 0
    equality_delete_files_bytes: int = 0
    equality_delete_files_record_count: int = 0


class PartitionSize(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, by its path (`day=2013-01-05`), and the files that the scan reads of it."""

    partition: str
    spec_id: int
    files_count: int
    bytes: int


class PlanScanResult(Rendered, frozen=True, kw_only=True):
    """What a scan would read; sizes in bytes, counts of live data files before and after each pruning step.

    Attributes:
        manifests_count: of the version, delete manifests among them.
        total_data_files_count: that the version has; `None` where a manifest list of version 1 does not say.
        total_files_bytes: of its data and delete files, as far as the snapshot's summary says.
        opened_data_files_count: listed by the manifests that were opened.
        pruned_by_partition_count: of these, pruned by their partition.
        pruned_by_metrics_count: of the rest, pruned by their bounds and counts.
        median_file_bytes, median_partition_bytes: to one percent.
        file_skew, partition_skew: the largest divided by the median.
        reading: where manifests were decoded, by what, and why.
        slow_manifests_count: opened data manifests that were decoded entry by entry, since the fast decoder failed.
    """

    snapshot_id: int | None
    schema_id: int
    manifests_count: int
    opened_manifests_count: int
    skipped_manifests_count: int
    opened_delete_manifests_count: int
    skipped_delete_manifests_count: int
    total_data_files_count: int | None
    total_files_bytes: int | None
    opened_data_files_count: int
    opened_data_files_bytes: int
    pruned_by_partition_count: int
    pruned_by_partition_bytes: int
    pruned_by_metrics_count: int
    pruned_by_metrics_bytes: int
    data_files_count: int
    data_files_bytes: int
    record_count: int
    deletes: DeletesInUse
    partitions_count: int
    smallest_file_bytes: int | None
    median_file_bytes: int | None
    largest_file_bytes: int | None
    file_skew: float | None
    median_partition_bytes: int | None
    largest_partition_bytes: int | None
    partition_skew: float | None
    reading: str
    slow_manifests_count: int = 0
    elapsed_ms: int = 0
    largest_files: tuple[FileSize, ...] = ()
    largest_partitions: tuple[PartitionSize, ...] = ()


def plan_scan(
    table: Table,
    spark: SparkSource = None,
    *,
    where: str | Expression = ALWAYS_TRUE,
    **version: Unpack[VersionArguments],
) -> PlanScanResult:
    """Report what a scan would read.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed below
            two million entries, or 1,500,000 where there are deletes.
        where: which rows are asked for; an `ExpressionError` where it cannot be read or bound.
        **version: what is read: `ref`, `snapshot_id`, `as_of`, or what was appended from `start_snapshot_id` to
            `end_snapshot_id`; by default the head of `main`.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole, or deletes contradict the data.
    """
    check_source(spark)
    began_ms = table.runtime.monotonic_ms()
    scan = open_scan(table, where=where, **version)
    with spark_run("plan_scan", table.name, SILENT):
        result = _result(scan, spark)
    return msgspec.structs.replace(result, elapsed_ms=table.runtime.monotonic_ms() - began_ms)


def plan_scan_job(
    table: Table,
    spark: SparkSource = None,
    *,
    explain: str | None = None,
    where: str | Expression = ALWAYS_TRUE,
    **version: Unpack[VersionArguments],
) -> PlanScanResult | Explanation:
    """The job: `plan_scan`, or `explain_file` if a file is named; raises what they raise."""
    if explain is not None:
        return explain_file(table, explain, spark, where=where, **version)
    return plan_scan(table, spark, where=where, **version)


def _result(scan: Scan, spark: SparkSource) -> PlanScanResult:
    metadata, snapshot = scan.table.metadata, scan.version.snapshot
    reading = chosen_reading(scan.data.opened, limits_of(spark).folded_entries_count)
    both = chosen_reading(scan.data.opened + scan.deletes.opened, limits_of(spark).matched_entries_count)
    # Few files are kept for their deletes, so that no manifest is read twice.
    keeps_files = bool(scan.deletes.opened) and both.by is ReadBy.DRIVER
    columns = TOTALLED_COLUMNS | MATCHED_DATA_COLUMNS if keeps_files else TOTALLED_COLUMNS
    new = partial(ScanTotals, keeps_files)
    totals = folded(scan.table.storage, spark, scan.data.opened, scan.wanted, columns, new, reading)
    steps, sizes, partitions = totals.steps, totals.sizes, SizeDistribution()
    partitions.add(np.fromiter(totals.bytes_by_partition.values(), np.int64, len(totals.bytes_by_partition)))
    has_deletes = scan.deletes.opened and steps.by_metrics_count
    in_use = _deletes_in_use(scan, spark, totals, reading.decoder) if has_deletes else DeletesInUse()
    total_bytes = ""
    if snapshot is not None and scan.version.appended_by is None:
        total_bytes = (snapshot.summary or {}).get("total-files-size", "")
    largest = []
    by_size = heapq.nlargest(LARGEST_COUNT, ((size, key) for key, size in totals.bytes_by_partition.items()))
    for size_bytes, (spec_id, key) in by_size:
        path = metadata.partition_path(spec_id, PartitionCodec(metadata.partition_type(spec_id)).decode(key))
        files_count = totals.files_by_partition[spec_id, key]
        largest.append(PartitionSize(partition=path, spec_id=spec_id, files_count=files_count, bytes=size_bytes))
    decoding = f"{reading.decoder} on the {reading.by}: {reading.reason}"
    if steps.slow_manifests_count:
        decoding += f"; {counted(steps.slow_manifests_count, 'manifests')} by fastavro, as it failed on them"
    return PlanScanResult(
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        schema_id=scan.version.schema.schema_id,
        manifests_count=len(scan.listed),
        opened_manifests_count=len(scan.data.opened),
        skipped_manifests_count=len(scan.data.skipped),
        opened_delete_manifests_count=len(scan.deletes.opened),
        skipped_delete_manifests_count=len(scan.deletes.skipped),
        total_data_files_count=total_count(m.live_files_count for m in scan.data.opened + scan.data.skipped),
        total_files_bytes=int(total_bytes) if total_bytes.isdecimal() else None,
        opened_data_files_count=steps.opened_count,
        opened_data_files_bytes=steps.opened_bytes,
        pruned_by_partition_count=steps.opened_count - steps.by_partition_count,
        pruned_by_partition_bytes=steps.opened_bytes - steps.by_partition_bytes,
        pruned_by_metrics_count=steps.by_partition_count - steps.by_metrics_count,
        pruned_by_metrics_bytes=steps.by_partition_bytes - steps.by_metrics_bytes,
        data_files_count=steps.by_metrics_count,
        data_files_bytes=steps.by_metrics_bytes,
        record_count=totals.record_count,
        deletes=in_use,
        partitions_count=len(totals.bytes_by_partition),
        smallest_file_bytes=sizes.least,
        median_file_bytes=sizes.quantile(0.5),
        largest_file_bytes=sizes.greatest,
        file_skew=_skew(sizes),
        median_partition_bytes=partitions.quantile(0.5),
        largest_partition_bytes=partitions.greatest,
        partition_skew=_skew(partitions),
        reading=decoding,
        slow_manifests_count=steps.slow_manifests_count,
        largest_files=tuple(totals.largest),
        largest_partitions=tuple(largest),
    )


def _skew(sizes: SizeDistribution) -> float | None:
    median = sizes.quantile(0.5)
    return round(sizes.greatest / median, 1) if median and sizes.greatest is not None else None


def _deletes_in_use(scan: Scan, spark: SparkSource, totals: ScanTotals, decoder: ManifestDecoder) -> DeletesInUse:
    reached = None
    if totals.files is not None:
        reached = matched_on_driver(scan, pa.Table.from_batches(totals.files), decoder, EVERY_PAIR)
    if reached is None:
        in_use = count_deletes_in_use(planned_files_with_deletes(scan, spark, MATCHED_DATA_COLUMNS))
        [row] = collected(in_use, "looking for the deletes in use")
        return DeletesInUse(**row.asDict())
    used = reached.deletes.filter(pa.array(reached.used)).group_by(["file_path", "content_offset"], use_threads=False)
    columns = ("content", "file_format", "content_size_in_bytes", "file_size_in_bytes", "record_count")
    files = used.aggregate([(name, "first") for name in columns])
    content, file_format, blob_bytes, file_bytes, records = (files[f"{name}_first"] for name in columns)
    is_equality = pc.equal(content, int(FileContent.EQUALITY_DELETES)).to_numpy()
    is_vector = pc.equal(pc.utf8_lower(file_format), "puffin").to_numpy() & ~is_equality
    sizes = np.where(is_vector, pc.fill_null(blob_bytes, 0).to_numpy(), file_bytes.to_numpy())
    counts: dict[str, int] = {}
    for kind, are_of_kind in (
        ("deletion_vectors", is_vector),
        ("position_delete_files", ~is_vector & ~is_equality),
        ("equality_delete_files", is_equality),
    ):
        counts[f"{kind}_count"] = int(np.count_nonzero(are_of_kind))
        counts[f"{kind}_bytes"] = int(sizes[are_of_kind].sum())
        counts[f"{kind}_record_count"] = int(records.to_numpy()[are_of_kind].sum())
    return DeletesInUse(**counts)
