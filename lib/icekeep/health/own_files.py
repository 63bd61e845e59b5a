"""What icekeep itself keeps of a table, below its directory `.icekeep`: plans that wait, and what lies in the trash.

One listing for a table that has nothing there, and for others two more and two requests a plan: the heads of plans say what they
sum up to, so that neither their parts nor the files in the trash are looked at.
"""

from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, MissingFileError
from icekeep.health.metered import MeteredStorage
from icekeep.health.values import OwnFiles, TableHealth
from icekeep.maintenance.delete.plan_file import DONE, DeletionPlan, plan_directories, read_plan
from icekeep.spec.properties import own_directory


def with_own_files(health: TableHealth, table: Table) -> TableHealth:
    """The health of a table with what icekeep keeps of it; with a note where that cannot be told."""
    storage = MeteredStorage(table.storage)
    metered: Any = storage
    try:
        with storage:
            found = _own_files(msgspec.structs.replace(table, storage=metered))
        told: dict[str, Any] = {"own_files": found}
    except IcekeepError as error:
        note = f"plans that wait, and the trash: {error.message}"
        told = {"not_measured": (*health.not_measured, note)}
    return msgspec.structs.replace(
        health,
        requests_count=health.requests_count + storage.requests_count,
        read_bytes=health.read_bytes + storage.read_bytes,
        **told,
    )


def _own_files(table: Table) -> OwnFiles:
    storage = table.storage
    if not storage.child_names(own_directory(table.metadata, "").rstrip("/")):
        return OwnFiles()
    plans = [_plan(directory, table) for directory in plan_directories(table.metadata, storage)]
    known = [plan for plan in plans if plan is not None]
    trash = [plan for plan in known if plan.is_trash]
    done = {p.directory for p in trash if storage.head(f"{p.directory}/{DONE}") is not None}
    waiting = [plan for plan in known if plan.directory not in done]
    return OwnFiles(
        waiting_plans_count=len(waiting),
        waiting_bytes=_bytes(waiting),
        waiting_created_ms=min((plan.created_ms for plan in waiting), default=None),
        trash_files_count=sum(plan.files_count for plan in trash),
        trash_bytes=_bytes(trash),
        trash_until_ms=min((plan.trash_until_ms for plan in trash if plan.trash_until_ms is not None), default=None),
    )


def _plan(directory: str, table: Table) -> DeletionPlan | None:
    try:
        return read_plan(directory, table.storage)
    except MissingFileError:
        # A run has just finished with it.
        return None


def _bytes(plans: list[DeletionPlan]) -> int:
    return sum(files.bytes for plan in plans for files in plan.files)
