"""The job `drop`, which deletes the files of a table where it is told to."""

import msgspec

from icekeep.maintenance.delete.settings import ACCEPT_UNREADABLE, APPROVE, MAX_CONCURRENT_DELETES, OPTIONS
from icekeep.settings import CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="drop",
    summary="remove a table from its catalog and, with --purge, delete its files",
    settings=(
        Setting(
            "purge",
            SettingKind.SWITCH,
            "also delete every file that its metadata leads to, for good, and whatever other tables name it",
        ),
        MAX_CONCURRENT_DELETES,
        APPROVE,
        ACCEPT_UNREADABLE,
        msgspec.structs.replace(OPTIONS, help="max-deletes-per-second, reclaim.roots; may be repeated"),
    ),
    examples=(
        "--table db.old_events --purge --dry-run",
        "--table db.old_events --purge --approve HASH",
    ),
    plan="icekeep.maintenance.drop.job:plan_drop_table",
    asks=CatalogChange.DROP,
    exact="icekeep.maintenance.drop.job:exact_drop_table",
    run="icekeep.maintenance.drop.job:drop_table",
    options="icekeep.maintenance.delete.options:ReclaimOptions",
    check="icekeep.maintenance.drop.job:check_arguments",
    unreadable="icekeep.maintenance.drop.job:drop_unreadable",
    plan_unreadable="icekeep.maintenance.drop.job:plan_drop_unreadable",
)
