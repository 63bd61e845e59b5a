"""The job `upgrade`: a newer format version for a table, once nothing stands in its way. There is no way back."""

from icekeep.settings import CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="upgrade",
    summary="give a table a newer format version, once nothing stands in its way; there is no way back",
    settings=(
        Setting("to", SettingKind.NUMBER, "the format version: 2 or 3", minimum=1, is_required=True),
        Setting(
            "force",
            SettingKind.TEXT,
            "obstacles that do not hold it up, by the names that --dry-run shows, separated by commas",
            shown="NAME,NAME",
        ),
    ),
    examples=(
        "--table db.events --to 3 --dry-run",
        "--table db.events --to 3 --force equality-deletes",
    ),
    plan="icekeep.maintenance.upgrade.job:plan_upgrade_table",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.upgrade.job:exact_upgrade_table",
    run="icekeep.maintenance.upgrade.job:upgrade_table",
    check="icekeep.maintenance.upgrade.job:check_arguments",
)
