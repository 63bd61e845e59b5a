"""The plans of runs whose files are in the trash, or have not been deleted yet, and which of them is meant."""

from collections.abc import Iterable

from icekeep.catalog.base import Table
from icekeep.errors import MissingFileError, NotFoundError, UsageError
from icekeep.maintenance.deletion.claims import last_work
from icekeep.maintenance.deletion.plans import (
    DeletionPlan,
    is_committed,
    plan_directories,
    plans_directory,
    read_plan,
    trash_directory,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import Storage
from icekeep.storage.locations import join

_ID_LENGTH_MIN = 4


def plans_of(table: Table) -> list[DeletionPlan]:
    """All plans of a table that count, the newest first; raises `InvalidTableError` where one cannot be read."""
    found = (_plan(directory, table.storage) for directory in plan_directories(table.metadata, table.storage))
    plans = [plan for plan in found if plan is not None]
    return sorted(plans, key=lambda plan: (plan.created_ms, plan.run), reverse=True)


def chosen_plan(table: Table, run: str | None) -> DeletionPlan:
    """The plan of a run, or the newest that has something to bring back.

    Raises:
        NotFoundError: there is none; says which there are.
    """
    if run is None:
        plans = plans_of(table)
        # What is being deleted for good comes last: the newest of it is chosen to say so.
        for plan in sorted(plans, key=lambda plan: last_work(plan.directory, table.storage).deletes):
            if _has_something(plan, table.metadata):
                return plan
        raise NotFoundError(
            f"there is nothing to restore for table {table.full_name!r}{_known(plans)}; a compaction is undone by "
            "`icekeep rollback --table NAME --snapshot-id ID`, and `icekeep history --table NAME` shows the snapshot before it"
        )
    for above in (trash_directory(table.metadata), plans_directory(table.metadata)) if _is_name(run) else ():
        found = _plan(join(above, run), table.storage)
        if found is not None:
            return found
    plans = plans_of(table)
    whole = whole_run(run, [plan.run for plan in plans])
    if whole is not None:
        return next(plan for plan in plans if plan.run == whole)
    raise NotFoundError(f"there is no run {run!r} to restore for table {table.full_name!r}{_known(plans)}", run=run)


def whole_run(beginning: str, runs: Iterable[str]) -> str | None:
    """The run of that id, or whose id begins so, as the list of runs shows it; `None` where there is none.

    A beginning has the name of the job, and some of the characters behind that: of `repair-` nobody knows which repair is meant.

    Raises:
        UsageError: several begin so.
    """
    runs = {*runs}
    if beginning in runs:
        return beginning
    if len(beginning.partition("-")[2]) < _ID_LENGTH_MIN:
        return None
    found = sorted(one for one in runs if one.startswith(beginning))
    if len(found) > 1:
        raise UsageError(f"{beginning!r} is the beginning of several runs: {', '.join(found)}; give one of them whole")
    return found[0] if found else None


def _is_name(run: str) -> bool:
    return "/" not in run and run not in ("", ".", "..")


def _plan(directory: str, storage: Storage) -> DeletionPlan | None:
    try:
        return read_plan(directory, storage)
    except MissingFileError:
        return None


def _has_something(plan: DeletionPlan, metadata: TableMetadata) -> bool:
    """Whether a plan has snapshots that the table lacks, or files of no snapshot in the trash."""
    if plan.snapshot_ids:
        return is_committed(plan, metadata)
    return plan.is_trash and bool(plan.files_count)


def _known(plans: Iterable[DeletionPlan]) -> str:
    names = ", ".join(repr(plan.run) for plan in plans)
    return f"; there is {names}" if names else ""
