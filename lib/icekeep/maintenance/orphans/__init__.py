"""The job `remove_orphan_files`."""

import msgspec

from icekeep.maintenance.delete.settings import (
    ACCEPT_UNREADABLE,
    APPROVE,
    MAX_CONCURRENT_DELETES,
    OPTIONS,
    STREAM_RESULTS,
    TRASH,
    TRUST_MANIFEST_LIST,
)
from icekeep.settings import Job, Setting, SettingKind

JOB = Job(
    name="remove_orphan_files",
    summary="delete files that no snapshot refers to (Iceberg's remove_orphan_files)",
    rank=50,
    settings=(
        Setting(
            "older_than", SettingKind.TIME, "files that are older than a time or an age, 24h at least (default: 3d)"
        ),
        Setting(
            "location", SettingKind.TEXT, "the directory to look at (default: the table's location)", shown="LOCATION"
        ),
        MAX_CONCURRENT_DELETES,
        Setting(
            "file_list_view",
            SettingKind.TEXT,
            "a view, table or Parquet inventory of files, in place of a listing",
            shown="VIEW",
        ),
        Setting("equal_schemes", SettingKind.PAIRS, "schemes that mean one store, e.g. s3a,s3n=s3; may be repeated"),
        Setting(
            "equal_authorities", SettingKind.PAIRS, "authorities that mean one store, e.g. nn1,nn2=nn; may be repeated"
        ),
        Setting(
            "prefix_mismatch_mode",
            SettingKind.NAME,
            "where only scheme or authority differ (default: ERROR)",
            shown="{ERROR,IGNORE}",
        ),
        Setting(
            "prefix_listing",
            SettingKind.SWITCH,
            "for compatibility with Iceberg's, without effect: listings are always flat",
        ),
        STREAM_RESULTS,
        TRASH,
        APPROVE,
        Setting("force", SettingKind.SWITCH, "go on although more than max-orphan-ratio of the files would go"),
        TRUST_MANIFEST_LIST,
        ACCEPT_UNREADABLE,
        msgspec.structs.replace(
            OPTIONS,
            help="grace, max-orphan-ratio, ignore-metadata-of, max-deletes-per-second, reclaim.roots; may be repeated",
        ),
    ),
    examples=(
        "--table db.events --older-than 7d --dry-run",
        "--table db.events --approve HASH",
    ),
    plan="icekeep.maintenance.orphans.job:plan_remove_orphan_files",
    exact="icekeep.maintenance.orphans.job:exact_remove_orphan_files",
    run="icekeep.maintenance.orphans.job:remove_orphan_files",
    options="icekeep.maintenance.delete.options:OrphanOptions",
    check="icekeep.maintenance.orphans.job:check_arguments",
)
