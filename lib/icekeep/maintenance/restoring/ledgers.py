"""The plans of runs whose files are in the trash, or have not been deleted yet, and which of them is meant."""

from collections.abc import Iterable
from contextlib import suppress

from icekeep.catalog.base import Table
from icekeep.errors import MissingFileError, NotFoundError
from icekeep.maintenance.deletion.plans import (
    DONE,
    DeletionPlan,
    plans_below,
    plans_directory,
    read_plan,
    trash_directory,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import Storage
from icekeep.storage.locations import join

_RESTORED = b'{"restored": true}'


def plans_of(table: Table) -> list[DeletionPlan]:
    """All plans of a table that count, the newest first; raises `InvalidTableError` where one cannot be read."""
    plans = []
    for above in _above(table.metadata):
        for directory in plans_below(above, table.storage):
            plan = _plan(directory, table.storage)
            if plan is not None:
                plans.append(plan)
    return sorted(plans, key=lambda plan: (plan.created_ms, plan.run), reverse=True)


def chosen_plan(table: Table, run: str | None) -> DeletionPlan:
    """The plan of a run, or the newest that has something to bring back.

    Raises:
        NotFoundError: there is none; says which there are.
    """
    if run is None:
        plans = plans_of(table)
        for plan in plans:
            if _has_something(plan, table.metadata):
                return plan
        raise NotFoundError(f"there is nothing to restore for table {table.name!r}{_known(plans)}")
    for above in _above(table.metadata) if _is_name(run) else ():
        found = _plan(join(above, run), table.storage)
        if found is not None:
            return found
    raise NotFoundError(
        f"there is no run {run!r} to restore for table {table.name!r}{_known(plans_of(table))}", run=run
    )


def close_plan(plan: DeletionPlan, storage: Storage) -> None:
    """Leave a plan whose run may be at work to hold what that still moves to the trash, and have no later run go on with it."""
    with suppress(FileExistsError):
        storage.create(f"{plan.directory}/{DONE}", _RESTORED)


def _is_name(run: str) -> bool:
    return "/" not in run and run not in ("", ".", "..")


def _above(metadata: TableMetadata) -> tuple[str, str]:
    return trash_directory(metadata), plans_directory(metadata)


def _plan(directory: str, storage: Storage) -> DeletionPlan | None:
    try:
        return read_plan(directory, storage)
    except MissingFileError:
        return None


def _has_something(plan: DeletionPlan, metadata: TableMetadata) -> bool:
    if plan.is_trash and plan.files_count:
        return True
    return not metadata.snapshots_by_id.keys() >= {*plan.snapshot_ids}


def _known(plans: Iterable[DeletionPlan]) -> str:
    names = ", ".join(repr(plan.run) for plan in plans)
    return f"; there is {names}" if names else ""
