"""What a repair did."""

import msgspec

from icekeep.maintenance.job_results import JobResult
from icekeep.maintenance.repairing.plan import Mend, NotMended


class RepairedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A commit on a branch: its head before and after it."""

    branch: str
    previous_snapshot_id: int | None
    snapshot_id: int


class RepairResult(JobResult, frozen=True, kw_only=True):
    """What was mended.

    Attributes:
        status: `done`, or `partial` where a branch has faults still, or something stood in the way once a part was mended.
        run: in the summaries of its snapshots, as `icekeep.run-id`.
        branches: the commits, in order.
        lost_records_count: of all mends together; `None` where that is not known.
        problems: why not all that was planned is mended; the next run tries again.
        metadata_location_before, metadata_location: of the table.
        hash: of the first plan.
    """

    work = ("mended",)

    status: str = "done"
    run: str
    mended: tuple[Mend, ...] = ()
    not_mended: tuple[NotMended, ...] = ()
    branches: tuple[RepairedBranch, ...] = ()
    lost_records_count: int | None = 0
    problems: tuple[str, ...] = ()
    metadata_location_before: str
    metadata_location: str
    hash: str = ""
    elapsed_ms: int = 0
