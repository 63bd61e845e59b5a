"""The plans of runs that name a file: it is in the trash, or waits for its deletion."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.maintenance.deletion.claims import last_work
from icekeep.maintenance.deletion.kept_by_plans import days_in_trash_end_ms, done_file, restore_ends_ms
from icekeep.maintenance.deletion.plans import (
    DeletionPlan,
    PlanPart,
    is_committed,
    plan_directories,
    read_part,
    read_plan,
    trash_location,
)
from icekeep.maintenance.file_life.result import PlanOfFile
from icekeep.maintenance.file_life.target import Target, same_file
from icekeep.storage.base import FileInfo, Storage
from icekeep.storage.locations import is_under
from icekeep.storage.many import REQUESTS_AT_ONCE

TRASH, IN_PLACE, GONE = "trash", "in place", "gone"


class Named(msgspec.Struct, frozen=True):
    """A file in a plan: its place in the table, what it is, and where it is now."""

    plan: DeletionPlan
    location: str
    kind: str
    place: str = GONE
    found: FileInfo | None = None

    @property
    def counts(self) -> bool:
        """Whether the run has gone beyond its plan, so that the file waits for it or is in the trash."""
        return self.place != GONE


class PlansNaming(msgspec.Struct, frozen=True):
    """All plans that name files which may be meant, and those that cannot be read, each with the reason."""

    named: tuple[Named, ...] = ()
    unreadable: dict[str, str] = {}

    def of_file(self, location: str) -> tuple[Named, ...]:
        """Those of one file, the one in whose trash it is first."""
        own = [one for one in self.named if same_file(one.location, location)]
        return tuple(sorted(own, key=lambda one: (one.place != TRASH, -one.plan.created_ms)))


def plans_naming(table: Table, target: Target) -> PlansNaming:
    """Look for a file in all plans of a table; its place in the trash may be asked for too.

    Raises:
        UnavailableError: the store fails for now.
    """
    storage, unreadable = table.storage, dict[str, str]()
    found: list[Named] = []
    for directory in plan_directories(table.metadata, storage):
        try:
            plan = read_plan(directory, storage)
            if plan.table_uuid == table.metadata.table_uuid:
                found += _named_by(plan, target, storage)
        except MissingFileError:
            # Its run has just finished it.
            continue
        except InvalidTableError as error:
            unreadable[directory] = error.message
    placed = (_placed(one, storage) for one in found)
    counting = (one for one in placed if one.place == TRASH or is_committed(one.plan, table.metadata))
    return PlansNaming(tuple(counting), unreadable)


def told_of(named: Iterable[Named], storage: Storage) -> tuple[PlanOfFile, ...]:
    """What is told of the plans of one file."""
    return tuple(_told(one, storage) for one in named)


def _named_by(plan: DeletionPlan, target: Target, storage: Storage) -> Iterator[Named]:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for some in pool.map(partial(_named_in, plan=plan, target=target, storage=storage), plan.parts):
            yield from some


def _named_in(part: PlanPart, *, plan: DeletionPlan, target: Target, storage: Storage) -> list[Named]:
    files = read_part(part, storage)
    files = files.filter(pc.ends_with(files["location"], target.end))
    if not files.num_rows:
        return []
    is_asked = target.mask(files["location"])
    is_in_trash = target.is_location and is_under(target.text, plan.directory)
    return [
        Named(plan, row["location"], row["kind"])
        for row, asked in zip(files.to_pylist(), is_asked.tolist(), strict=True)
        if asked or (is_in_trash and same_file(trash_location(plan, row["location"]), target.text))
    ]


def _placed(named: Named, storage: Storage) -> Named:
    plan = named.plan
    in_trash = storage.head(trash_location(plan, named.location)) if plan.is_trash else None
    if in_trash is not None:
        return msgspec.structs.replace(named, place=TRASH, found=in_trash)
    in_place = storage.head(named.location)
    return msgspec.structs.replace(named, place=GONE if in_place is None else IN_PLACE, found=in_place)


def _told(named: Named, storage: Storage) -> PlanOfFile:
    plan = named.plan
    work = last_work(plan.directory, storage)
    done = done_file(plan, work, storage)
    until_ms = plan.not_before_ms if plan.trash_until_ms is None else plan.trash_until_ms
    if done is not None:
        until_ms = days_in_trash_end_ms(plan, done)
    return PlanOfFile(
        run=plan.run,
        job=plan.job,
        place=named.place,
        created_ms=plan.created_ms,
        until_ms=max(until_ms, restore_ends_ms(plan, work)),
        is_restorable=not work.deletes,
    )
