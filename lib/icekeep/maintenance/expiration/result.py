"""The output columns of Iceberg's `expire_snapshots`, and what an operator wants to know besides."""

import msgspec

from icekeep.maintenance.deletion.earlier_runs import Earlier
from icekeep.maintenance.deletion.file_kinds import FileKind
from icekeep.maintenance.deletion.neighbours import Neighbours
from icekeep.maintenance.expiration.execute import Expiration
from icekeep.maintenance.job_results import JobResult
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Expired, KeptForWriter


class ExpireSnapshotsResult(JobResult, frozen=True, kw_only=True):
    """What went; bytes are those that metadata records. Files in the trash count as deleted.

    Attributes:
        status: `partial` when the snapshots are gone and not all files are; the next run tries again.
        deleted_files_count: of all kinds.
        left_files_count: files that a later run deletes, after the grace.
        missing_files_count: files that were gone already.
        kept_outside_files_count: files that are garbage and lie outside the table's places: they may belong to others.
        kept_for_writers: snapshots that stay only because a writer's progress is in them or before them.
        unreadable_files: files of expired snapshots that cannot be read; what only they lead to stays.
        untotalled_snapshots_count: retained snapshots whose summaries have no totals to hold their manifest lists against.
        finished_files_count, emptied_trash_files_count, kept_again_files_count: what came of plans of earlier runs.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        problems: why plans of earlier runs that are due were not carried out.
        unmoved_files_count: files that cannot be moved to the trash; they stay in their places for its days, and go then.
        plan_location: where the plan lies, also that of files in the trash: `icekeep restore` takes its last name.
        hash: of the plan.
    """

    work = (
        "expired_snapshots_count",
        "expired_ref_names",
        "removed_schemas_count",
        "removed_specs_count",
        "deleted_files_count",
        "left_files_count",
        "unmoved_files_count",
        "finished_files_count",
        "emptied_trash_files_count",
    )

    status: str = "done"
    expired_snapshots_count: int = 0
    retained_snapshots_count: int = 0
    expired_ref_names: tuple[str, ...] = ()
    removed_schemas_count: int = 0
    removed_specs_count: int = 0
    deleted_files_count: int = 0
    deleted_data_files_count: int = 0
    deleted_position_delete_files_count: int = 0
    deleted_equality_delete_files_count: int = 0
    deleted_manifest_files_count: int = 0
    deleted_manifest_lists_count: int = 0
    deleted_statistics_files_count: int = 0
    deleted_metadata_files_count: int = 0
    deleted_bytes_count: int = 0
    is_in_trash: bool = False
    left_files_count: int = 0
    left_reason: str = ""
    missing_files_count: int = 0
    failed_files_count: int = 0
    kept_outside_files_count: int = 0
    untotalled_snapshots_count: int = 0
    kept_for_writers: tuple[KeptForWriter, ...] = ()
    unreadable_files: tuple[str, ...] = ()
    finished_files_count: int = 0
    emptied_trash_files_count: int = 0
    kept_again_files_count: int = 0
    swept_files_count: int = 0
    problems: tuple[str, ...] = ()
    unmoved_files_count: int = 0
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()
    plan_location: str | None = None
    hash: str | None = None
    elapsed_ms: int = 0
    run_id: str | None = None


def result(
    metadata: TableMetadata, expired: Expired, done: Expiration | None, earlier: Earlier, around: Neighbours
) -> ExpireSnapshotsResult:
    """What a run did; `metadata` is the table's before it."""
    result = ExpireSnapshotsResult(
        status="done" if earlier.is_complete else "partial",
        retained_snapshots_count=len(metadata.snapshots),
        kept_for_writers=expired.kept,
        finished_files_count=earlier.finished_count,
        emptied_trash_files_count=earlier.emptied_count,
        kept_again_files_count=earlier.kept_count,
        problems=earlier.problems,
        failed_files_count=earlier.failed_count,
        unlisted_reason=around.unlisted_reason,
        unreadable_tables=around.unreadable,
    )
    return result if done is None else _with_run(result, done)


def _with_run(result: ExpireSnapshotsResult, done: Expiration) -> ExpireSnapshotsResult:
    plan, reclaimed = done.plan, done.reclaimed
    counts = {} if reclaimed is None else {f.kind: f.files_count for f in reclaimed.deleted}
    left_count = plan.files_count if plan is not None and (reclaimed is None or reclaimed.stopped) else 0
    if left_count and reclaimed is not None:
        left_count -= reclaimed.deleted_count + reclaimed.missing_count + reclaimed.kept_count + reclaimed.unmoved_count
    failed_count = 0 if reclaimed is None else reclaimed.failed_count
    is_there = plan is not None and (plan.is_trash or left_count or failed_count)
    return msgspec.structs.replace(
        result,
        status="partial" if failed_count or done.is_cut_off else result.status,
        expired_snapshots_count=done.snapshots_count,
        retained_snapshots_count=done.retained_count,
        expired_ref_names=done.ref_names,
        removed_schemas_count=done.schemas_count,
        removed_specs_count=done.specs_count,
        deleted_files_count=sum(counts.values()),
        deleted_data_files_count=counts.get(FileKind.DATA, 0),
        deleted_position_delete_files_count=counts.get(FileKind.POSITION_DELETES, 0),
        deleted_equality_delete_files_count=counts.get(FileKind.EQUALITY_DELETES, 0),
        deleted_manifest_files_count=counts.get(FileKind.MANIFEST, 0),
        deleted_manifest_lists_count=counts.get(FileKind.MANIFEST_LIST, 0),
        deleted_statistics_files_count=counts.get(FileKind.STATISTICS, 0),
        deleted_metadata_files_count=counts.get(FileKind.METADATA, 0),
        deleted_bytes_count=0 if reclaimed is None else reclaimed.deleted_bytes_count,
        is_in_trash=plan is not None and plan.is_trash and reclaimed is not None,
        left_files_count=left_count,
        left_reason=(done.kept_reason or "the grace has not passed") if left_count or done.is_cut_off else "",
        unmoved_files_count=0 if reclaimed is None else reclaimed.unmoved_count,
        missing_files_count=0 if reclaimed is None else reclaimed.missing_count,
        failed_files_count=result.failed_files_count + failed_count,
        kept_again_files_count=result.kept_again_files_count + (0 if reclaimed is None else reclaimed.kept_count),
        kept_outside_files_count=done.found.outside_count,
        untotalled_snapshots_count=done.untotalled_count,
        unreadable_files=done.found.unreadable,
        plan_location=plan.directory if plan is not None and is_there else None,
        hash=None if plan is None else plan.hash,
    )
