"""The job `check`: whether a table is what the spec says, from its metadata file down to the rows.

metadata file -> manifest lists -> manifests -> entries of all of them together -> files -> with `deep` what files hold
"""

from icekeep.settings import Job, Setting, SettingKind

DEEP = Setting(
    "deep", SettingKind.SWITCH, "read data and delete files too, and hold what metadata says of them against their rows"
)

JOB = Job(
    name="check",
    summary="check a table against the spec: its metadata, manifests and files, with --deep their rows",
    rank=70,
    settings=(
        DEEP,
        Setting(
            "all_of",
            SettingKind.IDS,
            "show every fault of these kinds, by number, and not only the first 20",
            shown="N,N",
        ),
        Setting("ref", SettingKind.NAME, "only the snapshot of this branch or tag (default: all snapshots)"),
    ),
    examples=("--table db.events", "--table db.events --deep --all-of 301,303 --output json"),
    run="icekeep.maintenance.check.job:check",
    unreadable="icekeep.maintenance.check.job:check_unreadable",
    for_people="icekeep.operations.shown.results:check_shown",
)
