"""Until when a plan keeps its files, and whether another plan keeps files of one for longer.

One file can be in two plans: a snapshot came back and expired again. If the first of them to come due deleted it for good, a
restore of the other could not bring it back. So a plan waits while another one keeps any of its files for longer than it will.

    a plan that waits       keeps its files until its time has come
    whose files are moved   until their days in the trash are over
    that is being restored  for a day, or its days in the trash, after its restore said so last
    that deletes for good   not at all

Two plans may become each other's neighbours at any moment. So a run asks after the head of its own plan is written, and
`restore` looks for plans that share its files after it has claimed its own: one of the two sees the other.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.maintenance.deletion.claims import RESTORE, last_work
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
from icekeep.spec.iso8601 import format_timestamp
from icekeep.storage.base import FileInfo, Storage
from icekeep.storage.locations import canonical


class Keeper(msgspec.Struct, frozen=True):
    """Another plan, and until when it keeps its files, epoch milliseconds."""

    plan: DeletionPlan
    until_ms: int

    @property
    def reason(self) -> str:
        """Why files have to wait."""
        return f"run {self.plan.run!r} keeps some of the files until {format_timestamp(self.until_ms, 1000)} UTC"


def days_in_trash_end_ms(plan: DeletionPlan, done: FileInfo) -> int:
    """When the days of a plan's files in the trash are over, epoch milliseconds.

    Args:
        done: the file `DONE`. A run that died may have been finished days later: its files are in the trash since then.
    """
    assert plan.trash_until_ms is not None
    return max(plan.trash_until_ms, done.modified_ms + _days_ms(plan))


def restore_ends_ms(plan: DeletionPlan, storage: Storage) -> int:
    """Until when a restore of a plan may be under way, epoch milliseconds: its commit may land long after it said so last."""
    work = last_work(plan.directory, storage)
    return work.at_ms + max(DAY_MS, _days_ms(plan)) if work.job == RESTORE and not work.deletes else 0


def later_keeper(plan: DeletionPlan, table: Table, now_ms: int, *, skips_trash: bool) -> Keeper | None:
    """The plan that keeps files of a plan which is due for longest, if it keeps them for longer than that one will.

    Args:
        now_ms: the earlier of the clocks, epoch milliseconds.
        skips_trash: what is not in the trash yet is deleted at once, also what other plans were to move there.
    """
    own_ms = now_ms + (0 if skips_trash else _days_ms(plan))
    return _last_keeper(plan, table, now_ms, own_ms, skips_trash=skips_trash)


def keeper_of_trash(plan: DeletionPlan, table: Table, now_ms: int) -> Keeper | None:
    """The same for a plan whose days in the trash are over."""
    return _last_keeper(plan, table, now_ms, now_ms, skips_trash=False)


def _last_keeper(plan: DeletionPlan, table: Table, now_ms: int, own_ms: int, *, skips_trash: bool) -> Keeper | None:
    while True:
        directories = plan_directories(table.metadata, table.storage)
        try:
            found = [
                keeper
                for keeper in _keepers(plan, directories, table, now_ms, skips_trash=skips_trash)
                if keeper.until_ms > now_ms and (keeper.until_ms, keeper.plan.run) > (own_ms, plan.run)
            ]
            last = _last_that_shares(plan, found, table.storage)
        except MissingFileError:
            # It was forgotten just now, and another plan may stand for it.
            continue
        if last is not None or {*plan_directories(table.metadata, table.storage)} <= {*directories}:
            return last


def _last_that_shares(plan: DeletionPlan, keepers: list[Keeper], storage: Storage) -> Keeper | None:
    keys = plan_keys(plan, storage) if keepers else np.empty(0, np.int64)
    for keeper in sorted(keepers, key=lambda keeper: keeper.until_ms, reverse=True):
        if np.isin(keys, plan_keys(keeper.plan, storage)).any():
            return keeper
    return None


def _keepers(
    plan: DeletionPlan, directories: list[str], table: Table, now_ms: int, *, skips_trash: bool
) -> Iterator[Keeper]:
    storage = table.storage
    for directory in directories:
        # The table's location may be spelled in another way by now.
        if canonical(directory) == canonical(plan.directory):
            continue
        try:
            other = read_plan(directory, storage)
        except InvalidTableError:
            # One damaged plan must not stop all others; whoever comes to it says so.
            continue
        is_meant = other.table_uuid == plan.table_uuid and is_committed(other, table.metadata)
        if is_meant and not is_whole_in_trash(directory, storage):
            yield Keeper(other, _until_ms(other, now_ms, storage, skips_trash=skips_trash))


def _until_ms(plan: DeletionPlan, now_ms: int, storage: Storage, *, skips_trash: bool) -> int:
    if last_work(plan.directory, storage).deletes:
        return 0
    done = storage.head(f"{plan.directory}/{DONE}") if plan.is_trash else None
    if done is not None:
        until_ms = days_in_trash_end_ms(plan, done)
    elif plan.is_trash and not skips_trash:
        until_ms = max(plan.not_before_ms, now_ms) + _days_ms(plan)
    else:
        until_ms = plan.not_before_ms
    return max(until_ms, restore_ends_ms(plan, storage))


def _days_ms(plan: DeletionPlan) -> int:
    return 0 if plan.trash_until_ms is None else plan.trash_until_ms - plan.not_before_ms
