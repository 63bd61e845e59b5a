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
    """What was fixed.

    Attributes:
        status: `done`, or `partial` where a branch still has faults, or something went wrong after a part was fixed.
        run: in the summaries of its snapshots, as `icekeep.run-id`.
        branches: the commits, in order.
        lost_records_count: of all fixes together; `None` where that is not known.
        problems: why not everything planned was fixed; the next run tries again.
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
