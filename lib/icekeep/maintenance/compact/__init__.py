"""The job `compact` (Iceberg's `rewrite_data_files`)."""

from icekeep.settings import BRANCH, SNAPSHOT_PROPERTY, WHERE, CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="compact",
    summary="rewrite badly sized data files (Iceberg's rewrite_data_files)",
    rank=10,
    settings=(
        Setting(
            "strategy",
            SettingKind.NAME,
            "binpack or sort (default: binpack, or sort where an order is given)",
            shown="{binpack,sort}",
        ),
        Setting(
            "sort_order",
            SettingKind.TEXT,
            'of a sort, e.g. "day, id DESC NULLS LAST", "zorder(a, b)", "hilbert(a, b)" (default: the table\'s)',
        ),
        WHERE,
        Setting(
            "options",
            SettingKind.OPTIONS,
            "an option of Iceberg's rewrite_data_files; may be repeated; "
            "without max-concurrent-file-group-rewrites all groups are tasks of one Spark job",
        ),
        BRANCH,
        Setting(
            "verify",
            SettingKind.SWITCH,
            "before each commit, read the new files again and compare the content of all rows",
        ),
        SNAPSHOT_PROPERTY,
    ),
    examples=(
        "--table db.events --where \"day >= '2026-01-01'\" --dry-run",
        '--table db.events --sort-order "day, id" --option partial-progress.enabled=true',
        "--match 'db.*' --dry-run",
    ),
    plan="icekeep.maintenance.compact.job:plan_compact",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.compact.job:exact_compact",
    run="icekeep.maintenance.compact.job:compact",
    has_estimate=True,
    options="icekeep.maintenance.compact.options:RewriteDataFilesOptions",
    check="icekeep.maintenance.compact.job:check_arguments",
)
