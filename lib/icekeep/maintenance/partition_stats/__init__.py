"""The job `compute_partition_stats`."""

from icekeep.settings import CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="compute_partition_stats",
    summary="count files, rows and deletes by partition (Iceberg's compute_partition_stats)",
    rank=36,
    settings=(
        Setting("snapshot_id", SettingKind.NUMBER, "the snapshot that is counted (default: the current one)"),
        Setting(
            "count_rows",
            SettingKind.SWITCH,
            "also write total_record_count where metadata alone can tell it; Iceberg Java's next refresh does not update it",
        ),
    ),
    examples=(
        "--table db.events --dry-run",
        "--table db.events",
    ),
    plan="icekeep.maintenance.partition_stats.job:plan_compute_partition_stats",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.partition_stats.job:exact_compute_partition_stats",
    run="icekeep.maintenance.partition_stats.job:compute_partition_stats",
    check="icekeep.maintenance.partition_stats.job:check_arguments",
)
