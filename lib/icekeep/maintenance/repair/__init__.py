"""The job `repair`: fixes what `check` finds, by commits that change no row that can be read.

check -> what each fault is on the heads of the branches, measured again -> plan -> one commit for each branch

Where a fix loses something it is done only for files that `accept_loss` names. No file is deleted: what is replaced stays where
it is, for older snapshots name it.
"""

from icekeep.maintenance.delete.settings import APPROVE
from icekeep.settings import SNAPSHOT_PROPERTY, CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="repair",
    summary="fix faults that check finds, by commits that change no readable row",
    settings=(
        Setting(
            "fault",
            SettingKind.IDS,
            "the kinds of faults to fix, by the numbers that check shows",
            shown="N,N",
            is_required=True,
        ),
        Setting(
            "accept_loss",
            SettingKind.LOCATIONS,
            "locations of files that may be lost, or whose rows readers may lose",
        ),
        APPROVE,
        SNAPSHOT_PROPERTY,
    ),
    examples=(
        "--table db.events --fault 215,302 --dry-run",
        "--table db.events --fault 301 --accept-loss s3://lake/db/events/data/a.parquet",
    ),
    plan="icekeep.maintenance.repair.job:plan_repair",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.repair.job:exact_repair",
    run="icekeep.maintenance.repair.job:repair",
    check="icekeep.maintenance.repair.job:check_arguments",
    unreadable="icekeep.maintenance.repair.job:repair_unreadable",
    plan_unreadable="icekeep.maintenance.repair.job:plan_repair_unreadable",
    for_people="icekeep.operations.shown.results:repair_shown",
)
