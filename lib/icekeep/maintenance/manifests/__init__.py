"""The job `rewrite_manifests`."""

from icekeep.settings import BRANCH, SNAPSHOT_PROPERTY, CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="rewrite_manifests",
    summary="cluster and resize manifests (Iceberg's rewrite_manifests)",
    rank=30,
    settings=(
        Setting(
            "spec_id",
            SettingKind.NUMBER_OR_ALL,
            "the partition spec whose manifests are rewritten, or all (default: the current one)",
        ),
        Setting(
            "sort_by",
            SettingKind.TEXT,
            "cluster by these partition fields, or columns' lower bounds, separated by commas",
        ),
        Setting(
            "where",
            SettingKind.MANIFEST_FILTER,
            'only manifests that match, e.g. "manifest_length < 1000000"; Iceberg\'s rewriteIf',
        ),
        Setting("workload", SettingKind.TEXT, "cluster for these filters over the table, separated by semicolons"),
        Setting(
            "use_caching", SettingKind.SWITCH, "for compatibility with Iceberg's, without effect: entries are read once"
        ),
        Setting("options", SettingKind.OPTIONS, "remove-dangling-deletes; may be repeated"),
        BRANCH,
        SNAPSHOT_PROPERTY,
    ),
    examples=(
        "--table db.events --dry-run",
        "--table db.events --sort-by day --option remove-dangling-deletes=true",
    ),
    plan="icekeep.maintenance.manifests.job:plan_rewrite_manifests",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.manifests.job:exact_rewrite_manifests",
    run="icekeep.maintenance.manifests.job:rewrite_manifests",
    options="icekeep.maintenance.manifests.options:RewriteManifestsOptions",
    check="icekeep.maintenance.manifests.rules:check_arguments",
)
