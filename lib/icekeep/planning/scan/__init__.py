"""Scan planning: what a scan reads, cut into tasks, and explained. The job `plan_scan`."""

from icekeep.settings import WHERE, Job, Setting, SettingKind

JOB = Job(
    name="plan_scan",
    summary="show the files that a filter would read, and what pruning saves",
    settings=(
        WHERE,
        Setting("ref", SettingKind.NAME, "the branch or tag to read (default: main)"),
        Setting("snapshot_id", SettingKind.NUMBER, "read this snapshot"),
        Setting("as_of", SettingKind.TIME, "read what was current at a time, or an age ago"),
        Setting("start_snapshot_id", SettingKind.NUMBER, "read only what was appended after this snapshot"),
        Setting("end_snapshot_id", SettingKind.NUMBER, "... up to this one (default: the current one)"),
        Setting(
            "explain",
            SettingKind.NAME,
            "say why this data file (its location, or the end of it) is read or pruned",
            shown="FILE",
        ),
    ),
    examples=(
        "--table db.events --where \"day = '2026-01-01' and kind = 'click'\"",
        '--table db.events --where "id = 7" --explain part-00000.parquet',
    ),
    run="icekeep.planning.scan.report:plan_scan_job",
    takes_listener=False,
)
