"""The job `expire_rows`: time to live. Iceberg has no procedure for it."""

from icekeep.settings import BRANCH, SNAPSHOT_PROPERTY, CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="expire_rows",
    summary="delete rows above an age, or of any filter: whole files by metadata alone",
    rank=5,
    settings=(
        Setting("where", SettingKind.FILTER, 'the rows that expire, e.g. "ts < now - 90d"', is_required=True),
        Setting(
            "edge",
            SettingKind.NAME,
            "what becomes of files of which only some rows match: keep leaves them until all do, deletes writes deletes of "
            "positions, rewrite copies the other rows (default: keep)",
            shown="{keep,deletes,rewrite}",
            choices=("keep", "deletes", "rewrite"),
        ),
        Setting("allow_all_rows", SettingKind.SWITCH, "go on although the filter matches every row there can be"),
        BRANCH,
        SNAPSHOT_PROPERTY,
    ),
    examples=(
        '--table db.events --where "ts < now - 90d" --dry-run',
        "--table db.events --where \"ts < today - 2w and kind = 'debug'\" --edge deletes",
    ),
    plan="icekeep.maintenance.expire_rows.job:plan_expire_rows",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.expire_rows.job:exact_expire_rows",
    run="icekeep.maintenance.expire_rows.job:expire_rows",
    check="icekeep.maintenance.expire_rows.job:check_arguments",
)
