"""Missing files that lie in the trash of a run of icekeep: found there, and put back in their places."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import ConflictError, IcekeepError, SafetyError, UnavailableError
from icekeep.maintenance.delete.lease import RESTORE, earlier_clock_ms, holding, last_work, take_lease
from icekeep.maintenance.delete.locations import deletable_locations
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.maintenance.delete.plan_file import (
    DeletionPlan,
    chosen_plan,
    clear_done_mark,
    plans_of,
    read_part,
    trash_location,
)
from icekeep.maintenance.repair.plan import TrashedFile
from icekeep.storage.base import MoveStatus
from icekeep.storage.local.links import confined_to
from icekeep.storage.locations import canonical


class Trash:
    """The trash of a table, searched once it is asked for a file."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def find(self, path: str, size_bytes: int | None = None) -> TrashedFile | None:
        """The file that was at a location, of a size if that is known; `None` also where that is no place of the table."""
        if not deletable_locations(self._table).holds(path):
            return None
        for plan in self._plans:
            trash = trash_location(plan, path)
            info = self._table.storage.head(trash)
            if info is not None and size_bytes in (None, info.size_bytes) and self._names(plan, path):
                return TrashedFile(location=path, trash=trash, run=plan.run, size_bytes=info.size_bytes)
        return None

    @cached_property
    def _plans(self) -> list[DeletionPlan]:
        storage, uuid = self._table.storage, self._table.metadata.table_uuid
        return [
            plan
            for plan in plans_of(self._table)
            # A table that was dropped may have left plans at the location of this one.
            if plan.is_trash and plan.table_uuid == uuid and not last_work(plan.directory, storage).deletes
        ]

    def _names(self, plan: DeletionPlan, path: str) -> bool:
        location = canonical(path)
        try:
            parts = (read_part(part, self._table.storage) for part in plan.parts)
            return any(canonical(one) == location for part in parts for one in part["location"].to_pylist())
        except IcekeepError:
            return False


def bring_back(table: Table, files: Sequence[TrashedFile]) -> Iterator[TrashedFile]:
    """Move files from the trash to their places; each is yielded once it is there.

    Raises:
        ClaimedError: a run is at work on the files of the trash.
        ConflictError: a file is no longer in the trash, or its place is taken.
        SafetyError: it is being deleted for good, no move leads to its place, or that is no place of the table.
        UnavailableError: the store failed; what was moved is in its place.
    """
    if not files:
        return
    around = neighbours(table, refuses_overlap=False)
    places = deletable_locations(table, (), around.other_roots)
    for file in files:
        if not places.reaches(pa.array([file.location]))[0]:
            raise SafetyError(
                f"file {file.location!r} of run {file.run!r} cannot come back from the trash: it lies outside the places of "
                f"table {table.name!r}; if it is its own, name its directory in reclaim.roots of the catalog"
            )
    for run in dict.fromkeys(file.run for file in files):
        plan, storage, runtime = chosen_plan(table, run), table.storage, table.runtime
        lease = take_lease(plan.directory, RESTORE, storage, runtime, earlier_clock_ms(table, runtime))
        with holding(lease, storage, runtime):
            if lease.deletes:
                raise SafetyError(f"the files of run {run!r} are being deleted for good; nothing was changed")
            # From now on a run that finishes this plan proves each file again, and sees that it is needed.
            clear_done_mark(plan, storage)
            for file in files:
                if file.run == run:
                    lease.check(storage, runtime)
                    with confined_to(places.roots):
                        _move(table, file)
                    yield file


def _move(table: Table, file: TrashedFile) -> None:
    storage = table.storage
    info = storage.head(file.trash)
    if info is None or info.size_bytes != file.size_bytes:
        raise ConflictError(f"file {file.location!r} is no longer in the trash of run {file.run!r} as it was")
    [outcome] = storage.move_many([(file.trash, file.location)])
    match outcome.status:
        case MoveStatus.MISSING | MoveStatus.TAKEN:
            raise ConflictError(f"file {file.location!r} cannot come back from the trash: {outcome.status.value}")
        case MoveStatus.IMPOSSIBLE:
            raise SafetyError(f"{file.trash!r} cannot be moved to {file.location!r}: {outcome.reason}; copy it by hand")
        case MoveStatus.FAILED:
            raise UnavailableError(f"file {file.location!r} cannot be moved back: {outcome.reason}; run it again")
