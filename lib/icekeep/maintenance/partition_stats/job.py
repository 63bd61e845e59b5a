"""The job `compute_partition_stats`: the partition statistics of a snapshot, in a file that the metadata names.

snapshot -> the statistics of an ancestor, and what manifests add since, or all manifests -> Parquet file -> `ChangeStatistics`

No snapshot is made, and no data file is read. The file is written before the commit that names it, and removed where that does
not land. A run that is killed in between leaves a file that nothing names, which `remove_orphan_files` finds.
"""

import logging
from typing import Any

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.errors import ConflictError
from icekeep.events import Noted, StepFinished, StepStarted
from icekeep.maintenance.jobs import ENTRY_CPU_MS, JobResult, PlannedRequest, takes
from icekeep.maintenance.partition_stats import JOB
from icekeep.maintenance.partition_stats.counts import Counted, count_partitions
from icekeep.maintenance.partition_stats.file import write_partition_stats
from icekeep.maintenance.plans import SNAPSHOT, ExactPlan, PlanCost, PlanLine, SavedPlan
from icekeep.maintenance.preconditions import AlreadyApplied, moved
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.run import RewriteRun, discard_files, run_name, undoing
from icekeep.planning.entries import entries_count
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import metadata_directory
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, Snapshot
from icekeep.spec.updates import Update
from icekeep.spelling import counted

_LOG = logging.getLogger(__name__)
_STEP = "counting partitions"
_DO = "count"


class ComputePartitionStatsRequest(PlannedRequest, frozen=True, kw_only=True):
    """The arguments of `compute_partition_stats`, which says what each means."""

    snapshot_id: int | None = None
    count_rows: bool = False


class ComputePartitionStatsResult(JobResult, frozen=True, kw_only=True):
    """What was written.

    Attributes:
        snapshot_id: whose statistics they are; `None` for a table without one.
        statistics_file: the file that the metadata names now; `None` where none was written, or the snapshot has no partition.
        statistics_file_bytes: its size.
        partitions_count: partitions in it.
        base_snapshot_id: of the ancestor whose statistics were counted on from; `None` where all manifests were read.
        opened_manifests_count: manifests that were read.
        reason: why nothing was written, or all manifests were read; empty where neither was so.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
    """

    work = ("statistics_file",)

    status: str = "done"
    snapshot_id: int | None = None
    statistics_file: str | None = None
    statistics_file_bytes: int = 0
    partitions_count: int = 0
    base_snapshot_id: int | None = None
    opened_manifests_count: int = 0
    reason: str = ""
    swept_files_count: int = 0
    elapsed_ms: int = 0
    run_id: str | None = None


class ComputePartitionStatsPlan(Rendered, frozen=True, kw_only=True):
    """What would be written.

    Attributes:
        snapshot_id: whose statistics they would be; `None` for a table without one.
        partitions_count: partitions in the file; none where no file would be written.
        base_snapshot_id: of the ancestor whose statistics would be counted on from; `None` where all manifests are read.
        opened_manifests_count: manifests that are read.
        reason: why nothing would be written, or all manifests are read; empty where neither is so.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
    """

    snapshot_id: int | None = None
    partitions_count: int = 0
    base_snapshot_id: int | None = None
    opened_manifests_count: int = 0
    reason: str = ""
    swept_files_count: int = 0


@takes(ComputePartitionStatsRequest, asks=JOB.asks)
def compute_partition_stats(table: Table, request: ComputePartitionStatsRequest) -> ComputePartitionStatsResult:
    """Count the files, rows and deletes of a snapshot by partition, and register them as its partition statistics.

    Where an ancestor has partition statistics, only manifests that came since are read. A snapshot that has some keeps them, and
    nothing is committed; nor is it for a table whose specs have no fields.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for
            tables of up to two million entries.
        snapshot_id: the snapshot; the current one if `None`.
        count_rows: also write `total_record_count`, where the snapshot has no delete file. Iceberg Java's incremental refresh
            takes the number over from the file before as it is, so leave it out where Java refreshes the statistics.
        saved: a plan that was written before (`apply_plan` reads it): the statistics of the snapshot that it names.

    Raises:
        NotFoundError: the table has no such snapshot.
        UnsupportedError: the table is encrypted, or a spec has a transform that is not known.
        InvalidTableError, MissingFileError: a manifest cannot be read whole.
        ConflictError: the snapshot expired meanwhile, or others kept changing the table.
        SafetyError: the table was dropped and made again meanwhile, or the saved plan does not hold any more.
        OutcomeUnknownError: the commit may or may not have landed; the file is kept.
    """
    check_arguments(table.metadata, snapshot_id=request.snapshot_id)
    run_id, listener, swept_count = run_name(table), request.listener, 0
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep=run_id, listener=listener)
    snapshot = _snapshot(table.metadata, request)
    found, reason = _counted(table, snapshot, request)
    result = ComputePartitionStatsResult(
        snapshot_id=None if snapshot is None else snapshot.snapshot_id, reason=reason, swept_files_count=swept_count
    )
    if snapshot is None or found is None or not found.rows:
        listener.on(Noted(f"no partition statistics are written: {reason or 'the snapshot has no partition'}"))
        return result
    metadata, storage = table.metadata, table.storage
    location = f"{metadata_directory(metadata)}/partition-stats-{snapshot.snapshot_id}-{run_id}.parquet"
    with RewriteRun(table, JOB.name, run_id, listener) as run:
        size_bytes = write_partition_stats(storage, location, found.rows, found.partition, metadata.format_version)

        def undo() -> None:
            discard_files(storage, [location], listener)

        with undoing(undo):
            file = PartitionStatisticsFile(
                snapshot_id=snapshot.snapshot_id, statistics_path=location, file_size_in_bytes=size_bytes
            )
            change = RegisterStatistics(ChangeStatistics(updates=(file,)), snapshot.snapshot_id)
        run.commit(change, [location], undo)
    _LOG.info(
        "%s: statistics of %d partitions of snapshot %d are in %s",
        table.name,
        len(found.rows),
        snapshot.snapshot_id,
        location,
        extra=log_context(table),
    )
    return msgspec.structs.replace(
        result, statistics_file=location, statistics_file_bytes=size_bytes, **_figures(found)
    )


@takes(ComputePartitionStatsRequest)
def plan_compute_partition_stats(table: Table, request: ComputePartitionStatsRequest) -> ComputePartitionStatsPlan:
    """Say what `compute_partition_stats` would write with these arguments; raises as it does before it writes anything."""
    return _foreseen(table, request)[0]


@takes(ComputePartitionStatsRequest, "compute_partition_stats")
def exact_compute_partition_stats(table: Table, request: ComputePartitionStatsRequest) -> ExactPlan:
    """What `compute_partition_stats` would do with these arguments, for a file; raises as it does, and writes nothing."""
    shown, found = _foreseen(table, request)
    head = table.metadata.head(MAIN)
    lines = []
    if shown.snapshot_id is not None and shown.partitions_count:
        lines = [
            PlanLine(do=_DO, kind=SNAPSHOT, name=str(shown.snapshot_id), says={"partitions": shown.partitions_count})
        ]
    manifests = () if found is None else found.manifests
    return ExactPlan(
        shown=shown,
        snapshot_id=None if head is None else head.snapshot_id,
        lines=lines,
        cost=PlanCost(
            read_bytes=sum(manifest.manifest_length for manifest in manifests),
            requests_count=len(manifests) + 1,
            cpu_ms=int(ENTRY_CPU_MS * entries_count(manifests)),
        ),
    )


@takes(ComputePartitionStatsRequest, "compute_partition_stats")
def check_arguments(metadata: TableMetadata, request: ComputePartitionStatsRequest) -> None:
    """Hold the arguments against the table; raises `NotFoundError` and `UnsupportedError` as `compute_partition_stats`."""
    refuse_encrypted(metadata, JOB.name)
    if request.snapshot_id is not None:
        metadata.snapshot(request.snapshot_id)


class RegisterStatistics(msgspec.Struct, frozen=True):
    """Statistics of one snapshot, which are no use once it has expired."""

    change: ChangeStatistics
    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.snapshot_id not in base.snapshots_by_id:
            raise ConflictError(
                f"snapshot {self.snapshot_id}, whose statistics were computed, expired meanwhile; run it again",
                snapshot_id=self.snapshot_id,
            )
        return self.change.apply(base, attempt)


def _foreseen(table: Table, request: ComputePartitionStatsRequest) -> tuple[ComputePartitionStatsPlan, Counted | None]:
    check_arguments(table.metadata, snapshot_id=request.snapshot_id)
    swept_count = 0
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep="", listener=request.listener, is_plan=True)
    snapshot = _snapshot(table.metadata, request)
    found, reason = _counted(table, snapshot, request)
    shown = ComputePartitionStatsPlan(
        snapshot_id=None if snapshot is None else snapshot.snapshot_id, reason=reason, swept_files_count=swept_count
    )
    return shown if found is None else msgspec.structs.replace(shown, **_figures(found)), found


def _figures(found: Counted) -> dict[str, Any]:
    return {
        "partitions_count": len(found.rows),
        "base_snapshot_id": None if found.base is None else found.base.snapshot_id,
        "opened_manifests_count": len(found.manifests),
    }


def _snapshot(metadata: TableMetadata, request: ComputePartitionStatsRequest) -> Snapshot | None:
    """The snapshot that is asked for; of a saved plan the one that it names, or it is refused."""
    if request.saved is not None:
        return saved_snapshot(request.saved, metadata, [file.snapshot_id for file in metadata.partition_statistics])
    return metadata.current_snapshot if request.snapshot_id is None else metadata.snapshot(request.snapshot_id)


def saved_snapshot(saved: SavedPlan, metadata: TableMetadata, done: list[int]) -> Snapshot | None:
    """The snapshot of the one line of a saved plan of statistics; `None` where the plan has none.

    Args:
        done: snapshots that have such statistics.

    Raises:
        AlreadyApplied: it has them.
        SafetyError: it has expired.
    """
    snapshot_id = next((int(line.name) for line in saved.lines() if line.do == _DO), None)
    if snapshot_id is None:
        return None
    if snapshot_id not in metadata.snapshots_by_id:
        raise moved(saved, metadata, f"snapshot {snapshot_id}, whose statistics were planned, expired")
    if snapshot_id in done:
        raise AlreadyApplied(
            f"snapshot {snapshot_id} has statistics: the plan was carried out before, or somebody else computed them"
        )
    return metadata.snapshots_by_id[snapshot_id]


def _counted(
    table: Table, snapshot: Snapshot | None, request: ComputePartitionStatsRequest
) -> tuple[Counted | None, str]:
    """What is to be written of a snapshot; `None` for nothing. And why nothing, or all manifests were read."""
    metadata = table.metadata
    if snapshot is None:
        return None, "the table has no snapshot"
    if all(spec.is_unpartitioned for spec in metadata.partition_specs):
        return None, "the table is not partitioned"
    if any(file.snapshot_id == snapshot.snapshot_id for file in metadata.partition_statistics):
        return None, f"snapshot {snapshot.snapshot_id} has them already"
    request.listener.on(StepStarted(_STEP))
    found = count_partitions(table, snapshot, request.spark, request.listener, count_rows=request.count_rows)
    note = f"{counted(len(found.rows), 'partitions')}, {counted(len(found.manifests), 'manifests')} read"
    request.listener.on(StepFinished(_STEP, note))
    return found, found.why_full
