"""What comes of carrying a plan out."""

from collections.abc import Callable
from typing import Any

import msgspec

from icekeep.commit.summary import run_of
from icekeep.errors import NotFoundError
from icekeep.maintenance import drop as purge
from icekeep.maintenance.saved_plans import AlreadyApplied, GivenPlan
from icekeep.rendered import Rendered


class AppliedBefore(msgspec.Struct, frozen=True, kw_only=True):
    """In place of a job's result: nothing of the plan is left to be done, and how that shows.

    Attributes:
        applied_before: that, for people.
        snapshot_id, run_id: the newest of the snapshots by which it was carried out, and the run that made it; `None` where it
            shows in another way.
    """

    applied_before: str
    snapshot_id: int | None = None
    run_id: str | None = None
    status: str = "done"


class ApplyResult(Rendered, frozen=True, kw_only=True):
    """What came of a plan.

    Attributes:
        status: that of the job; `planned` where the plan was only held against the table, `done` where there was nothing to do.
        job: whose plan it is.
        plan_hash: of the file.
        applied_before: how it shows that the plan was carried out before, for people; `None` where it was not.
        applied_snapshot_id, applied_run_id: the newest of the snapshots by which it was, and the run that made it; `None` where
            no snapshot of the table says so.
        result: of the job; its plan, where nothing was to be changed; `None` where the plan was carried out before.
    """

    status: str
    job: str
    plan_hash: str
    applied_before: str | None = None
    applied_snapshot_id: int | None = None
    applied_run_id: str | None = None
    result: Any = None


def applied_before(found: AlreadyApplied) -> AppliedBefore:
    """What a job found that was given a plan of which nothing is left."""
    if not found.snapshots:
        return AppliedBefore(applied_before=str(found))
    newest = max(found.snapshots, key=lambda one: one.sequence_number)
    return AppliedBefore(
        applied_before=str(found), snapshot_id=newest.snapshot_id, run_id=run_of(newest.summary) or None
    )


def dropped_before(job: str, given: GivenPlan, missing: NotFoundError, identity: Callable[[], str]) -> AppliedBefore:
    """That the table is gone which a plan drops.

    Args:
        identity: gives that of the catalog that has no such table.

    Raises:
        NotFoundError: the plan does anything else, or was made of a table of another catalog.
    """
    if job != purge.JOB.name:
        raise missing
    asked = identity()
    if given.catalog != asked:
        made_in = "a catalog that it does not name" if given.catalog is None else repr(given.catalog)
        raise NotFoundError(
            f"{missing.message}, which is {asked!r}; the plan was made in {made_in}: name that catalog with --catalog, or "
            "make a new plan",
            catalog=asked,
        )
    return AppliedBefore(
        applied_before=f"{missing.message}: it was carried out before, or somebody else dropped the table"
    )
