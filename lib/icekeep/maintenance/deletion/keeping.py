"""Until when a plan keeps its files, and which files of one plan others keep.

One file can be in two plans: a snapshot came back and expired again. If the first of them to come due deleted it for good, a
restore of the other could not bring it back. So a file goes with the plan that keeps it longest.

    a plan that waits       keeps its files until its time has come
    whose files are moved   until their days in the trash are over
    that is being restored  for a day after its restore said so last
    that deletes for good   not at all

Two plans may become each other's neighbours at any moment. So a run asks after the head of its own plan is written, and
`restore` looks for plans that share its files after it has claimed its own: one of the two sees the other.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.maintenance.deletion.claims import RESTORE, LastWork, last_work
from icekeep.maintenance.deletion.named_files import plan_keys
from icekeep.maintenance.deletion.options import DAY_MS
from icekeep.maintenance.deletion.plans import (
    DONE,
    DeletionPlan,
    is_committed,
    is_whole_in_trash,
    plan_directories,
    read_plan,
)
from icekeep.planning.location_keys import Keys
from icekeep.spec.iso8601 import format_timestamp
from icekeep.storage.base import FileInfo, Storage
from icekeep.storage.locations import canonical

_NONE = np.empty(0, np.int64)


class Kept(msgspec.Struct, frozen=True):
    """What other plans keep of a plan's files.

    Attributes:
        keys: path keys of files that stay now, since another plan removes them later. Others may be among them.
        until_ms: where another plan keeps some of the files and removes none of them later, the moment until which all of
            them have to wait; null: there is none.
        run: of that plan.
    """

    keys: Keys
    until_ms: int | None = None
    run: str = ""

    @property
    def reason(self) -> str:
        """Why the files have to wait; empty where they need not."""
        if self.until_ms is None:
            return ""
        return f"run {self.run!r} keeps some of the files until {format_timestamp(self.until_ms, 1000)} UTC"


class _Keeper(msgspec.Struct, frozen=True):
    """Another plan and until when it keeps its files; `is_done`: it removes none any more that is in its place."""

    plan: DeletionPlan
    until_ms: int
    is_done: bool


def days_in_trash_end_ms(plan: DeletionPlan, done: FileInfo, work: LastWork) -> int:
    """When the days of a plan's files in the trash are over, epoch milliseconds.

    Args:
        done: the file `DONE`. A run that died may have been finished days later: its files are in the trash since then.
        work: who was at work on the plan last. A restore that was cut off has moved files back, and this plan alone says
            whose they are: its days are counted anew.
    """
    assert plan.trash_until_ms is not None
    days_ms = plan.trash_until_ms - plan.not_before_ms
    until_ms = max(plan.trash_until_ms, done.modified_ms + days_ms)
    return max(until_ms, work.at_ms + days_ms) if work.job == RESTORE and not work.deletes else until_ms


def kept_by_others(plan: DeletionPlan, table: Table, now_ms: int, *, goes_for_good: bool) -> Kept:
    """Which files of a plan other plans of the table keep for longer than this one does.

    Args:
        now_ms: the earlier of the clocks, epoch milliseconds.
        goes_for_good: the files are deleted now, and do not move to the trash for some days.
    """
    own_ms = now_ms if goes_for_good else now_ms + _days_ms(plan)
    later = [
        keeper
        for keeper in _keepers(plan, table, now_ms)
        if keeper.until_ms > now_ms and (keeper.until_ms, keeper.plan.run) > (own_ms, plan.run)
    ]
    keys = [plan_keys(keeper.plan, table.storage) for keeper in later if not keeper.is_done]
    last = _last_that_shares(plan, [keeper for keeper in later if keeper.is_done], table.storage)
    return msgspec.structs.replace(last, keys=np.unique(np.concatenate([_NONE, *keys])))


def keeper_of_trash(plan: DeletionPlan, table: Table, now_ms: int) -> Kept:
    """Whether another plan keeps files that are in the trash of this one; then nothing of that is emptied now."""
    later = [keeper for keeper in _keepers(plan, table, now_ms) if keeper.until_ms > now_ms]
    return _last_that_shares(plan, later, table.storage)


def _last_that_shares(plan: DeletionPlan, keepers: list[_Keeper], storage: Storage) -> Kept:
    """The one of some plans that keeps files of a plan for longest."""
    own = plan_keys(plan, storage) if keepers else _NONE
    for keeper in sorted(keepers, key=lambda keeper: keeper.until_ms, reverse=True):
        if np.isin(own, plan_keys(keeper.plan, storage)).any():
            return Kept(_NONE, keeper.until_ms, keeper.plan.run)
    return Kept(_NONE)


def _keepers(plan: DeletionPlan, table: Table, now_ms: int) -> Iterator[_Keeper]:
    storage = table.storage
    for directory in plan_directories(table.metadata, storage):
        # The table's location may be spelled in another way by now.
        if canonical(directory) == canonical(plan.directory):
            continue
        try:
            other = read_plan(directory, storage)
        except (MissingFileError, InvalidTableError):
            # One damaged plan must not stop all others; whoever comes to it says so.
            continue
        if other.table_uuid == plan.table_uuid and is_committed(other, table.metadata):
            work = last_work(directory, storage)
            if work.job == RESTORE or not is_whole_in_trash(directory, storage):
                yield _keeper(other, work, now_ms, storage)


def _keeper(plan: DeletionPlan, work: LastWork, now_ms: int, storage: Storage) -> _Keeper:
    done = storage.head(f"{plan.directory}/{DONE}") if plan.is_trash else None
    if work.deletes:
        until_ms = 0
    elif done is not None:
        until_ms = days_in_trash_end_ms(plan, done, work)
    else:
        until_ms = max(plan.not_before_ms, now_ms) + _days_ms(plan) if plan.is_trash else plan.not_before_ms
    if work.job == RESTORE and not work.deletes:
        until_ms = max(until_ms, work.at_ms + DAY_MS)
    return _Keeper(plan, until_ms, done is not None)


def _days_ms(plan: DeletionPlan) -> int:
    return 0 if plan.trash_until_ms is None else plan.trash_until_ms - plan.not_before_ms
