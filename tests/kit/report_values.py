"""Reports made of values alone, for tests of how they are shown: a table with all that a table can have, and one with nothing."""

from typing import Any

from msgspec.structs import replace

from icekeep.health.values import (
    DataHealth,
    DeletesHealth,
    FaultsCount,
    Growth,
    JobAdvice,
    MaintenanceSeen,
    MetadataHealth,
    PartitionsHealth,
    RefHealth,
    ScorePart,
    SizeBucket,
    SnapshotsHealth,
    StreamSeen,
    TableHealth,
)
from icekeep.maintenance.history import GrowthPoint, TableTotals
from icekeep.reports.values import MaintenanceRun, NotRead, ReportResult, TableHistory
from icekeep.spec.types import DAY_MS, MIB

NOW_MS = 1_790_000_000_000
_JOBS = ("compact", "rewrite_position_deletes", "rewrite_manifests", "expire_snapshots", "remove_orphan_files")


def bare_table(name: str = "lake.db.bare") -> TableHealth:
    """A table without a snapshot, of which nothing could be measured."""
    return TableHealth(
        table=name,
        table_uuid=None,
        format="v1",
        location="file:///wh/bare",
        snapshot_id=None,
        score=100.0,
        score_parts=(),
        snapshots=SnapshotsHealth(),
        refs=(),
        metadata=MetadataHealth(),
        data=DataHealth(target_file_bytes=512 * MIB),
        deletes=DeletesHealth(),
        partitions=PartitionsHealth(),
        jobs=(),
    )


def full_table(
    name: str = "lake.db.full", *, said: str = "it is so", score: float = 42.0, **changed: Any
) -> TableHealth:
    """A table with many of all that a report tells.

    Args:
        said: every text of it that is not a word of ours.
    """
    table = replace(
        bare_table(name),
        table_uuid="1f0e",
        format="v2",
        location=f"s3://bucket/{said}",
        snapshot_id=7,
        score=score,
        score_parts=(
            ScorePart(name="files", lost=30.5, reason=said),
            ScorePart(name="manifests", lost=9.0, reason=said),
        ),
        snapshots=SnapshotsHealth(
            snapshots_count=60, expirable_count=50, oldest_timestamp_ms=NOW_MS - 60 * DAY_MS, newest_timestamp_ms=NOW_MS
        ),
        refs=tuple(
            RefHealth(
                ref=f"{said}{number}",
                type="tag",
                snapshot_id=number,
                snapshots_count=1,
                only_snapshots_count=1,
                files_count=9,
                bytes=9000 + number,
                only_files_count=1,
                only_bytes=number,
            )
            for number in range(30)
        ),
        metadata=MetadataHealth(metadata_bytes=50_000, manifests_count=60, ideal_manifests_count=1, mean_overlap=7.5),
        data=DataHealth(
            target_file_bytes=512 * MIB,
            data_files_count=1_234,
            data_files_bytes=77 * MIB,
            record_count=1_000_000,
            small_files_count=1_000,
            histogram=tuple(
                SizeBucket(least_bytes=1 << power, files_count=power, bytes=power << power) for power in range(10, 32)
            ),
        ),
        deletes=DeletesHealth(
            position_delete_files_count=3,
            position_delete_files_bytes=999,
            deleted_ratio=0.125,
            scan_read_bytes=123_456,
            mean_deletes=2.5,
        ),
        partitions=PartitionsHealth(partitions_count=4, largest_partition=said, largest_partition_bytes=9, skew=2.5),
        jobs=tuple(
            JobAdvice(
                job=job,
                has_work=number % 2 == 0,
                reason=said,
                gain=said,
                files_count=10,
                freed_bytes=2048,
                read_bytes=4096,
                written_bytes=1024,
                requests_count=12,
                cpu_ms=1500,
                cost=0.25,
                command=said,
            )
            for number, job in enumerate(_JOBS)
        ),
        last_maintenance=(MaintenanceSeen(job=said, timestamp_ms=NOW_MS - 3 * DAY_MS, snapshot_id=3, made_by=said),),
        streams=tuple(
            StreamSeen(writer=said, key=said, snapshots_count=3, timestamp_ms=NOW_MS - number) for number in range(12)
        ),
        growth=Growth(since_timestamp_ms=NOW_MS - 7 * DAY_MS, daily_bytes=MIB, daily_data_files_count=9),
        faults=(FaultsCount(fault_id=208, name=said, faults_count=2),),
        not_measured=(said,),
    )
    return replace(table, **changed)


def full_history(name: str = "lake.db.full", *, said: str = "it is so") -> TableHistory:
    """A history with points and runs, some of them marked on the plots."""
    return TableHistory(
        table=name,
        growth=tuple(
            GrowthPoint(
                timestamp_ms=NOW_MS - (200 - number) * DAY_MS,
                snapshot_id=number,
                data_files_count=10 + number % 40,
                bytes=(10 + number) * MIB,
                delete_files_count=number % 7,
                metadata_bytes=None if number == 3 else 10_000 * number,
            )
            for number in range(200)
        ),
        commits_count=5_000,
        runs=tuple(full_run(number, said) for number in range(20)),
        left_out_runs_count=11,
    )


def full_run(number: int = 0, said: str = "it is so") -> MaintenanceRun:
    """A run with all that is told of one; each is ten days before the last."""
    return MaintenanceRun(
        job=said,
        run_id=said,
        made_by=said,
        policy=said,
        status=said,
        timestamp_ms=NOW_MS - 10 * number * DAY_MS,
        elapsed_ms=90_000,
        snapshots_count=1,
        snapshot_id=199 - 10 * number,
        before=TableTotals(data_files_count=40 + number, delete_files_count=5, bytes=9 * MIB),
        after=TableTotals(data_files_count=3, delete_files_count=0, bytes=8 * MIB),
        error=said,
        figures={said: 3, "freed_bytes": 4096, "deleted_files_count": 5},
    )


def not_read(name: str = "lake.db.gone", said: str = "it is so") -> NotRead:
    """A table that could not be read."""
    return NotRead(
        name=name, kind="invalid-table", reason=said, faults=(FaultsCount(fault_id=101, name=said, faults_count=1),)
    )


def report_of(*tables: TableHealth, **changed: Any) -> ReportResult:
    """A report over tables, in their order."""
    told: dict[str, Any] = {
        "status": "done",
        "catalogs": ("lake",),
        "tables_count": len(tables),
        "tables": tables,
        "timestamp_ms": NOW_MS,
    }
    return ReportResult(**{**told, **changed})
