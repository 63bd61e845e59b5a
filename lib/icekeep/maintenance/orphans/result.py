"""The output column of Iceberg's `remove_orphan_files`, and what an operator wants to know besides."""

import msgspec

from icekeep.maintenance.deletion.file_kinds import FileKind, FilesOfKind
from icekeep.maintenance.deletion.reclaim import Reclaimed
from icekeep.maintenance.job_results import JobResult
from icekeep.maintenance.orphans.candidates import KeptFiles
from icekeep.maintenance.orphans.execute import Removal
from icekeep.maintenance.orphans.plan import RemoveOrphanFilesPlan


class RemoveOrphanFilesResult(JobResult, frozen=True, kw_only=True):
    """What went; bytes are those of the listing.

    Attributes:
        status: `partial` when files could not be deleted, of this run or of plans of earlier runs that are due.
        orphan_file_locations: the first thousand.
        deleted_files_count: in the trash, where `is_in_trash`.
        listed_files_count, reachable_files_count: what was looked at, and what of it metadata leads to.
        unlisted_reason: why the catalog could not be asked whether another table lies in the same place.
        unreadable_tables: tables that cannot be loaded and were accepted by name (`accept_unreadable`).
        untotalled_snapshots_count: snapshots that do not say how many files they have, so that nothing proves their manifest
            lists whole but the store's word.
        unmoved_files_count: files that cannot be moved to the trash; they stay in their places for its days, and go then.
        finished_files_count, emptied_trash_files_count: what earlier runs had left to be deleted, and what left the trash.
        kept_again_files_count: files that earlier runs were to delete, and that the table leads to again,
            or another plan keeps.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        problems: why it, or what earlier runs left, was not carried out to its end; the next run tries again.
        too_many: why so great a share of the files went only because the plan was approved.
        hash: what `approve` demands.
        waits_until_ms: where the option `grace` says so, or another run keeps some of the files, the moment from which a later
            run deletes them.
        left_reason: why they wait, empty if that is for the grace only.
        plan_location: the list of what went, as long as it can come back from the trash; of what was to go, where files
            failed or wait.
    """

    work = (
        "deleted_files_count",
        "unmoved_files_count",
        "waits_until_ms",
        "finished_files_count",
        "emptied_trash_files_count",
    )

    status: str = "done"
    orphan_files_count: int = 0
    orphan_bytes_count: int = 0
    orphan_file_locations: tuple[str, ...] = ()
    deleted_files_count: int = 0
    deleted_metadata_files_count: int = 0
    deleted_bytes_count: int = 0
    is_in_trash: bool = False
    missing_files_count: int = 0
    failed_files_count: int = 0
    failed_files: tuple[str, ...] = ()
    listed_files_count: int = 0
    reachable_files_count: int = 0
    kept: KeptFiles = KeptFiles()
    files_by_kind: tuple[FilesOfKind, ...] = ()
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()
    untotalled_snapshots_count: int = 0
    finished_files_count: int = 0
    emptied_trash_files_count: int = 0
    kept_again_files_count: int = 0
    swept_files_count: int = 0
    unmoved_files_count: int = 0
    problems: tuple[str, ...] = ()
    too_many: str | None = None
    hash: str | None = None
    waits_until_ms: int | None = None
    left_reason: str = ""
    plan_location: str | None = None
    elapsed_ms: int = 0
    run_id: str | None = None


def _found(planned: RemoveOrphanFilesPlan) -> RemoveOrphanFilesResult:
    return RemoveOrphanFilesResult(
        orphan_files_count=planned.orphan_files_count,
        orphan_bytes_count=planned.orphan_bytes_count,
        orphan_file_locations=planned.orphan_file_locations,
        files_by_kind=planned.files_by_kind,
        listed_files_count=planned.listed_files_count,
        reachable_files_count=planned.reachable_files_count,
        kept=planned.kept,
        too_many=planned.too_many,
        unlisted_reason=planned.unlisted_reason,
        unreadable_tables=planned.unreadable_tables,
        untotalled_snapshots_count=planned.untotalled_snapshots_count,
        hash=planned.hash,
    )


def _waits_until_ms(removal: Removal) -> int | None:
    if removal.plan is None or removal.reclaimed is not None:
        return None
    return removal.plan.not_before_ms if removal.kept is None else removal.kept.until_ms


def result(removal: Removal) -> RemoveOrphanFilesResult:
    """What a run did."""
    found, plan, done = _found(removal.planned), removal.plan, removal.reclaimed
    metadata_count = sum(f.files_count for f in (done.deleted if done else ()) if f.kind is FileKind.METADATA)
    done = done or Reclaimed()
    is_left = plan is not None and (removal.reclaimed is None or not done.is_complete)
    earlier = removal.earlier
    return msgspec.structs.replace(
        found,
        status="done" if done.is_complete and earlier.is_complete else "partial",
        deleted_files_count=done.deleted_count,
        deleted_metadata_files_count=metadata_count,
        deleted_bytes_count=done.deleted_bytes_count,
        is_in_trash=plan is not None and plan.is_trash and removal.reclaimed is not None,
        missing_files_count=done.missing_count,
        failed_files_count=done.failed_count + earlier.failed_count,
        failed_files=done.failed,
        kept=msgspec.structs.replace(found.kept, adopted_count=removal.adopted_count),
        finished_files_count=earlier.finished_count,
        emptied_trash_files_count=earlier.emptied_count,
        kept_again_files_count=earlier.kept_count + done.kept_count,
        swept_files_count=removal.swept_count,
        unmoved_files_count=done.unmoved_count,
        problems=(*((done.stopped,) if done.stopped else ()), *earlier.problems),
        left_reason=removal.kept.reason if removal.kept is not None else "",
        waits_until_ms=_waits_until_ms(removal),
        plan_location=plan.directory if plan is not None and (is_left or plan.is_trash) else None,
    )
