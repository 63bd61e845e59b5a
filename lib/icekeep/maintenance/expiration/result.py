"""The output columns of Iceberg's `expire_snapshots`, and what an operator wants to know besides."""

import msgspec

from icekeep.maintenance.reachability import FileKind, Unreachable
from icekeep.maintenance.reclaim import Reclaimed


class ExpireSnapshotsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What went; bytes are those that metadata records.

    `status` is `partial` when files could not be deleted: then `plan_location` names the list of what was to go.
    """

    status: str = "done"
    expired_snapshots_count: int = 0
    deleted_data_files_count: int = 0
    deleted_position_delete_files_count: int = 0
    deleted_equality_delete_files_count: int = 0
    deleted_manifest_files_count: int = 0
    deleted_manifest_lists_count: int = 0
    deleted_statistics_files_count: int = 0
    deleted_bytes: int = 0
    missing_files_count: int = 0
    failed_files_count: int = 0
    kept_outside_files_count: int = 0
    plan_location: str | None = None


def result(
    snapshots_count: int, garbage: Unreachable, reclaimed: Reclaimed, plan_location: str | None
) -> ExpireSnapshotsResult:
    """What a run did."""
    deleted = reclaimed.deleted
    return ExpireSnapshotsResult(
        status="partial" if reclaimed.failed else "done",
        expired_snapshots_count=snapshots_count,
        deleted_data_files_count=deleted.get(FileKind.DATA, 0),
        deleted_position_delete_files_count=deleted.get(FileKind.POSITION_DELETES, 0),
        deleted_equality_delete_files_count=deleted.get(FileKind.EQUALITY_DELETES, 0),
        deleted_manifest_files_count=deleted.get(FileKind.MANIFEST, 0),
        deleted_manifest_lists_count=deleted.get(FileKind.MANIFEST_LIST, 0),
        deleted_statistics_files_count=deleted.get(FileKind.STATISTICS, 0),
        deleted_bytes=reclaimed.deleted_bytes,
        missing_files_count=reclaimed.missing_count,
        failed_files_count=len(reclaimed.failed),
        kept_outside_files_count=len(garbage.outside),
        plan_location=plan_location if reclaimed.failed else None,
    )
