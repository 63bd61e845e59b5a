"""The job `rewrite_position_deletes` (Iceberg's `rewrite_position_delete_files`)."""

from icekeep.settings import BRANCH, SNAPSHOT_PROPERTY, WHERE, CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="rewrite_position_deletes",
    summary="merge position deletes, drop dangling ones (Iceberg's rewrite_position_delete_files)",
    rank=20,
    settings=(
        WHERE,
        Setting(
            "options",
            SettingKind.OPTIONS,
            "an option of Iceberg's rewrite_position_delete_files; may be repeated; "
            "without max-concurrent-file-group-rewrites all groups are tasks of one Spark job",
        ),
        BRANCH,
        Setting(
            "convert_equality_deletes",
            SettingKind.SWITCH,
            "turn equality deletes into position deletes or vectors first",
        ),
        SNAPSHOT_PROPERTY,
    ),
    examples=(
        "--table db.events --dry-run",
        "--table db.events --convert-equality-deletes --option rewrite-all=true",
    ),
    plan="icekeep.maintenance.deletes.job:plan_rewrite_position_deletes",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.deletes.job:exact_rewrite_position_deletes",
    run="icekeep.maintenance.deletes.job:rewrite_position_deletes",
    options="icekeep.maintenance.deletes.options:RewritePositionDeletesOptions",
    check="icekeep.maintenance.deletes.job:check_arguments",
)
