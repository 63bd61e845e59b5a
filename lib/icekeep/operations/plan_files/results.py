"""What comes of carrying a plan out."""

from typing import Any

import msgspec

from icekeep.errors import NotFoundError
from icekeep.maintenance import purge


class AppliedBefore(msgspec.Struct, frozen=True):
    """In place of a job's result: nothing of the plan is left to be done, and how that shows."""

    applied_before: str
    status: str = "done"


class ApplyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a plan.

    Attributes:
        status: that of the job; `planned` where the plan was only held against the table, `done` where there was nothing to do.
        job: whose plan it is.
        hash: of the file.
        applied_before: how it shows that the plan was carried out before; `None` where it was not.
        result: of the job; its plan, where nothing was to be changed; `None` where the plan was carried out before.
    """

    status: str
    job: str
    hash: str
    applied_before: str | None = None
    result: Any = None


def applied_before_dropped(job: str, missing: NotFoundError) -> AppliedBefore:
    """That the table is gone which a plan drops; raises the error where the plan of the job does anything else."""
    if job != purge.JOB.name:
        raise missing
    return AppliedBefore(f"{missing.message}: it was carried out before, or somebody else dropped the table")
