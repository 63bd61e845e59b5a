"""The job `expire_snapshots`."""

from icekeep.maintenance.delete.settings import (
    APPROVE,
    MAX_CONCURRENT_DELETES,
    OPTIONS,
    STREAM_RESULTS,
    TRASH,
    TRUST_MANIFEST_LIST,
)
from icekeep.settings import CatalogChange, Job, Setting, SettingKind

JOB = Job(
    name="expire_snapshots",
    summary="expire snapshots by retention, then delete the files that only they needed",
    rank=40,
    settings=(
        Setting(
            "older_than", SettingKind.TIME, "expire snapshots older than a time or an age (default: as the table says)"
        ),
        Setting("retain_last", SettingKind.NUMBER, "keep this many snapshots of each branch at least", minimum=1),
        Setting("snapshot_ids", SettingKind.IDS, "expire these snapshots, whatever their age"),
        Setting(
            "clean_expired_metadata",
            SettingKind.SWITCH,
            "drop schemas and partition specs that no snapshot needs any more",
        ),
        Setting(
            "clean",
            SettingKind.NAME,
            "which files of expired snapshots go: all, metadata (no data and no delete files), or none (default: all)",
            shown="{none,metadata,all}",
        ),
        MAX_CONCURRENT_DELETES,
        STREAM_RESULTS,
        TRASH,
        APPROVE,
        TRUST_MANIFEST_LIST,
        OPTIONS,
    ),
    examples=(
        "--table db.events --older-than 7d --retain-last 10 --dry-run",
        "--table db.events --older-than 2026-01-01T00:00:00Z --trash 3d",
    ),
    plan="icekeep.maintenance.expire.job:plan_expire_snapshots",
    asks=CatalogChange.COMMIT,
    exact="icekeep.maintenance.expire.job:exact_expire_snapshots",
    run="icekeep.maintenance.expire.job:expire_snapshots",
    options="icekeep.maintenance.delete.options:ExpirationOptions",
    check="icekeep.maintenance.expire.job:check_arguments",
)
