"""What can be restored, and what a restore has done."""

from icekeep.maintenance.deletion.plans import DeletionPlan
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata


class Restorable(Rendered, frozen=True, kw_only=True):
    """A run that `restore` takes. Of a repair, which deletes nothing, there are no files.

    Attributes:
        created_ms: when it made its plan, epoch milliseconds.
        trash_until_ms: files stay in the trash until then; `None`: they are in their places until a later run deletes them.
        snapshots_count: of the snapshots that it expired, those that are not in the table.
    """

    run: str
    job: str
    created_ms: int
    trash_until_ms: int | None
    snapshots_count: int
    files_count: int
    bytes: int


class RestoreResult(Rendered, frozen=True, kw_only=True):
    """What came back of one run.

    Attributes:
        status: `partial` where files were taken away again while the snapshots came back, or branches keep a repair: the note
            says which.
        restored_files_count: files that were moved back now; those that were in their places are not counted.
        restored_tags: under which the snapshots came back.
        restored_branches: of a repair, those that went back to the snapshot before it.
        note: what did not come back and why, or what is to be done yet; `None`: nothing.
    """

    status: str
    run: str
    job: str
    restored_files_count: int
    restored_bytes_count: int
    restored_snapshots_count: int
    restored_tags: tuple[str, ...]
    restored_branches: tuple[str, ...] = ()
    note: str | None


def described(plan: DeletionPlan, metadata: TableMetadata) -> Restorable:
    """What a plan holds for the table as it is."""
    return Restorable(
        run=plan.run,
        job=plan.job,
        created_ms=plan.created_ms,
        trash_until_ms=plan.trash_until_ms,
        snapshots_count=sum(i not in metadata.snapshots_by_id for i in plan.snapshot_ids),
        files_count=plan.files_count,
        bytes=sum(f.bytes for f in plan.files),
    )
