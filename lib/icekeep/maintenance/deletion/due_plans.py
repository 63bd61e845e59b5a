"""What is to be done, by now, with a plan that an earlier run left.

A plan in `.icekeep/plans/` is there because it is not finished, one in `.icekeep/trash/` until its days are over. A plan
whose snapshots are still in the table was never committed, or its run is at it now: it is left alone, and forgotten when it
is a day old.
"""

from enum import Enum

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.claims import last_work
from icekeep.maintenance.deletion.kept_by_plans import days_in_trash_end_ms, done_file, restore_ends_ms
from icekeep.maintenance.deletion.plans import (
    DeletionPlan,
    holds_files,
    is_committed,
    is_forgotten,
    read_plan,
    restore_command,
)
from icekeep.spec.types import DAY_MS


class ToDo(Enum):
    """What is to be done with a plan that is due."""

    FINISH = "finish"
    EMPTY_TRASH = "empty the trash"
    FORGET = "forget"


class Due(msgspec.Struct, frozen=True):
    """A plan whose time has come."""

    plan: DeletionPlan
    to_do: ToDo

    @property
    def empties_trash(self) -> bool:
        return self.to_do is ToDo.EMPTY_TRASH


def due_of(directory: str, table: Table, now_ms: int, listener: Listener) -> Due | None:
    """What is to be done with a plan; `None` where it is not due, being restored, or gone."""
    storage = table.storage
    try:
        plan = read_plan(directory, storage)
    except MissingFileError:
        return None
    except InvalidTableError as error:
        listener.on(Warned(f"{error.message}; look at it and remove {directory!r}"))
        return None
    if plan.table_uuid != table.metadata.table_uuid:
        listener.on(Warned(f"plan {directory!r} is of another table; look at it and remove it"))
        return None
    if not is_committed(plan, table.metadata):
        if now_ms - plan.created_ms <= DAY_MS:
            return None
        if holds_files(plan, storage):
            listener.on(
                Warned(f"snapshots are back whose files are in {directory!r}; run `{restore_command(table, plan.run)}`")
            )
            return None
        return Due(plan, ToDo.FORGET)
    if is_forgotten(plan, storage):
        return Due(plan, ToDo.FORGET)
    work = last_work(directory, storage)
    done = done_file(plan, work, storage)
    if restore_ends_ms(plan, work) > now_ms:
        return None
    if done is None:
        return Due(plan, ToDo.FINISH) if plan.not_before_ms <= now_ms else None
    return Due(plan, ToDo.EMPTY_TRASH) if days_in_trash_end_ms(plan, done) <= now_ms else None
