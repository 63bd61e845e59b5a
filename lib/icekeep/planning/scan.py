"""Plan a scan: the files that a filter would read, and what each pruning step saved.

manifest list -> manifests (by partition summaries) -> entries (by partition, by bounds) -> files
"""

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from icekeep.catalog.base import Table
from icekeep.errors import UnsupportedError
from icekeep.planning.columns import PRUNED_BY_METRICS, PRUNED_BY_PARTITION
from icekeep.planning.decode import EntryFilter
from icekeep.planning.entries import entries
from icekeep.planning.manifests import delete_manifests, select_manifests, snapshot_manifests
from icekeep.planning.tasks import collected
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, Snapshot


class ScanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one snapshot that a filter needs; `files` is lazy, with the columns of `columns.ENTRIES`.

    `live_files_count` counts all live data files of the snapshot; null where a manifest list of version 1 does not say.
    """

    snapshot: Snapshot | None
    manifests: tuple[ManifestFile, ...]
    skipped_manifests_count: int
    live_files_count: int | None
    files: DataFrame


def refuse_encrypted(metadata: TableMetadata, job: str) -> None:
    """Refuse a table that a job could not read, before anything is planned; raises `UnsupportedError`."""
    if metadata.is_encrypted:
        raise UnsupportedError(
            f"{job} refuses the table at {metadata.location!r}: it is encrypted, which is not supported yet"
        )


def refuse_delete_files(metadata: TableMetadata, manifests: list[ManifestFile], job: str) -> None:
    """Refuse a snapshot with row-level deletes; raises `UnsupportedError`."""
    found = delete_manifests(manifests)
    if found:
        raise UnsupportedError(
            f"{job} refuses the table at {metadata.location!r}: it has delete files (in {len(found)} manifests), which are "
            "not supported yet"
        )


def plan_files(
    table: Table,
    spark: SparkSession,
    *,
    where: str | Expression = ALWAYS_TRUE,
    ref: str = MAIN,
    keep_pruned: bool = False,
    runtime: Runtime = SYSTEM,
) -> ScanPlan:
    """Plan the files that hold rows of a filter.

    Args:
        where: a filter over the table's columns, as text or as an unbound expression.
        ref: the branch or tag to read.
        keep_pruned: keep entries that were pruned, with the step in the column `pruned`.

    Raises:
        ExpressionError, NotFoundError: the filter does not fit the table's schema, or there is no such ref.
        UnsupportedError: the table is of a kind that cannot be planned yet.
    """
    metadata = table.metadata
    refuse_encrypted(metadata, "scan planning")
    rows = bound_filter(where, metadata, runtime.now_ms())
    snapshot = metadata.head(ref)
    manifests = snapshot_manifests(table, snapshot)
    refuse_delete_files(metadata, manifests, "scan planning")
    selection = select_manifests(metadata, manifests, rows)
    wanted = EntryFilter(specs=selection.specs, rows=rows, keep_pruned=keep_pruned)
    return ScanPlan(
        snapshot=snapshot,
        manifests=selection.opened,
        skipped_manifests_count=selection.skipped_count,
        live_files_count=_live_files_count(manifests),
        files=entries(table, spark, selection.opened, wanted),
    )


class PlanScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan would read; sizes in bytes, counts of live files before and after each pruning step."""

    snapshot_id: int | None
    manifests_count: int
    opened_manifests_count: int
    skipped_manifests_count: int
    total_data_files_count: int | None
    opened_data_files_count: int
    pruned_by_partition_count: int
    pruned_by_metrics_count: int
    data_files_count: int
    data_files_bytes: int
    record_count: int
    partitions_count: int
    smallest_file_bytes: int | None
    median_file_bytes: int | None
    largest_file_bytes: int | None
    planning_time_ms: int = 0


def plan_scan(
    table: Table,
    spark: SparkSession,
    *,
    where: str | Expression = ALWAYS_TRUE,
    ref: str = MAIN,
    runtime: Runtime = SYSTEM,
) -> PlanScanResult:
    """Say what a scan with this filter would read; raises as `plan_files` does."""
    began_ms = runtime.monotonic_ms()
    result = summarize(plan_files(table, spark, where=where, ref=ref, keep_pruned=True, runtime=runtime))
    return msgspec.structs.replace(result, planning_time_ms=runtime.monotonic_ms() - began_ms)


def bound_filter(where: str | Expression, metadata: TableMetadata, moment_ms: int) -> Expression:
    """A filter given as text or as an expression, bound to the table's schema.

    Args:
        moment_ms: what `now` in the text is, in epoch milliseconds.

    Raises:
        ExpressionError, NotFoundError: the filter does not fit the schema.
    """
    expression = parse_where(where, moment_ms) if isinstance(where, str) else where
    return bind(expression, metadata.schema, metadata.partition_specs)


def summarize(plan: ScanPlan) -> PlanScanResult:
    """Run the plan and count what it keeps and what each step dropped; plan with `keep_pruned`."""
    kept = F.col("pruned").isNull()
    size = F.when(kept, F.col("file_size_in_bytes"))
    [row] = collected(
        plan.files.agg(
            F.count("*").alias("opened"),
            F.count_if(F.col("pruned") == PRUNED_BY_PARTITION).alias("by_partition"),
            F.count_if(F.col("pruned") == PRUNED_BY_METRICS).alias("by_metrics"),
            F.count_if(kept).alias("files"),
            F.coalesce(F.sum(size), F.lit(0)).alias("bytes"),
            F.coalesce(F.sum(F.when(kept, F.col("record_count"))), F.lit(0)).alias("records"),
            F.count_distinct(F.when(kept, F.struct("spec_id", "partition"))).alias("partitions"),
            F.min(size).alias("smallest"),
            F.percentile_approx(size, 0.5).alias("median"),
            F.max(size).alias("largest"),
        )
    )
    return PlanScanResult(
        snapshot_id=None if plan.snapshot is None else plan.snapshot.snapshot_id,
        manifests_count=len(plan.manifests) + plan.skipped_manifests_count,
        opened_manifests_count=len(plan.manifests),
        skipped_manifests_count=plan.skipped_manifests_count,
        total_data_files_count=plan.live_files_count,
        opened_data_files_count=row["opened"],
        pruned_by_partition_count=row["by_partition"],
        pruned_by_metrics_count=row["by_metrics"],
        data_files_count=row["files"],
        data_files_bytes=row["bytes"],
        record_count=row["records"],
        partitions_count=row["partitions"],
        smallest_file_bytes=row["smallest"],
        median_file_bytes=row["median"],
        largest_file_bytes=row["largest"],
    )


def _live_files_count(manifests: list[ManifestFile]) -> int | None:
    counts = [m.live_files_count for m in manifests if m.content is ManifestContent.DATA]
    return None if None in counts else sum(c for c in counts if c is not None)
