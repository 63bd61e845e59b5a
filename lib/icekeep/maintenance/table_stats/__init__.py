"""The job `compute_table_stats`."""

from icekeep.settings import CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="compute_table_stats",
    summary="count the distinct values of columns by theta sketches (Iceberg's compute_table_stats)",
    rank=38,
    settings=(
        Setting("snapshot_id", SettingKind.NUMBER, "the snapshot whose rows are read (default: the current one)"),
        Setting(
            "column",
            SettingKind.TEXT,
            "the columns, separated by commas, with dots for those in structs (default: all of a primitive type)",
            keyword="columns",
        ),
    ),
    examples=(
        "--table db.events --dry-run",
        "--table db.events --column user_id,country",
    ),
    plan="icekeep.maintenance.table_stats.job:plan_compute_table_stats",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.table_stats.job:exact_compute_table_stats",
    run="icekeep.maintenance.table_stats.job:compute_table_stats",
    check="icekeep.maintenance.table_stats.job:check_arguments",
)
