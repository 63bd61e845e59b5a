"""Which files plans name, and until when a plan keeps a file that another one names too.

One file can be in two plans: a snapshot came back and expired again. If the first of them to come due deleted it for good, a
restore of the other could not bring it back. So a file goes with the plan that keeps it longest.

    a plan that waits       keeps its files until its time has come
    whose files are moved   until their days in the trash are over
    that is being restored  for a day, or its days in the trash, after its restore said so last
    that deletes for good   not at all

The plan that is due leaves such a file to the other one. Where that will not delete it, the first plan waits as a whole: the
other is in the trash already, or being restored, or a run is at work on it, which may forget it, or leave files to this one.

Two plans may come to share files at any moment. So a run asks after the head of its own plan is written, and `restore` looks for
plans that share its files after it has leased its own: one of the two sees the other. Whoever deletes for hours asks again when
others have committed.

Where one plan is asked about others, plans and parts that cannot be read are passed over: a damaged plan must not stop all
others. A run that comes to that plan says so.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError, SafetyError
from icekeep.maintenance.delete.lease import LastWork, last_work
from icekeep.maintenance.delete.plan_file import (
    DONE,
    DeletionPlan,
    PlanPart,
    done_mark,
    is_committed,
    plan_directories,
    read_part,
    read_plan,
    trash_location,
)
from icekeep.maintenance.delete.reachable import (
    GARBAGE,
    NO_PATHS,
    PathSet,
    TableLook,
    union,
)
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.spec.types import DAY_MS
from icekeep.spec.values import format_timestamp
from icekeep.storage.base import REQUESTS_AT_ONCE, FileInfo, Storage, answer_each, head_many
from icekeep.storage.locations import canonical

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_files(plan: DeletionPlan, storage: Storage, spark: SparkSource) -> "pa.Table | DataFrame":
    """The files of a plan, rows of `GARBAGE`; raises `InvalidTableError` where a part is not what was written."""
    if plan.files_count <= limits_of(spark).plan_files_count:
        return pa.concat_tables([GARBAGE.empty_table(), *(read_part(part, storage) for part in plan.parts)])
    payloads = [(part, storage) for part in plan.parts]
    return dataframe_from_tasks(started(spark), payloads, _read_part, GARBAGE)


def part_paths(part: PlanPart, storage: Storage) -> PathSet:
    """The files of a part of a plan; none where the part is gone, as when its run has just finished it.

    Raises:
        InvalidTableError: it is not what was written.
    """
    try:
        return PathSet.of(read_part(part, storage)["location"])
    except MissingFileError:
        return NO_PATHS


def plan_paths(plan: DeletionPlan, storage: Storage) -> PathSet:
    """The files of a plan, those of parts left out that cannot be read."""

    def paths(part: PlanPart) -> PathSet:
        with suppress(InvalidTableError):
            return part_paths(part, storage)
        return NO_PATHS

    return union(answer_each(paths, plan.parts, lambda part: part.location, REQUESTS_AT_ONCE))


def plans_that_share(plan: DeletionPlan, table: Table) -> list[DeletionPlan]:
    """The other plans of a table that name files of this one, and whose files may lie in their places."""
    others = [*_others_in_place(plan, table)]
    own = plan_paths(plan, table.storage) if others else NO_PATHS
    return [other for other in others if own & plan_paths(other, table.storage)]


def paths_of_other_plans(plan: DeletionPlan, table: Table) -> PathSet:
    """All files that other plans name, whose files may lie in their places."""
    return union([plan_paths(other, table.storage) for other in _others_in_place(plan, table)])


def plans_with_files_in_place(table: Table) -> Iterator[str]:
    """The directories of plans whose files may lie in their places: all but those whose files are in the trash for certain."""
    storage = table.storage
    for directory in plan_directories(table.metadata, storage):
        if not is_in_trash_for_certain(directory, last_work(directory, storage), storage):
            yield directory


def is_in_trash_for_certain(directory: str, work: LastWork, storage: Storage) -> bool:
    """Whether all files of a plan are in the trash, and no restore is bringing them back."""
    return not work.restored_ms and done_mark(directory, storage).absent_count == 0


def other_plans(plan: DeletionPlan, directories: Iterable[str], table: Table) -> Iterator[DeletionPlan]:
    """The other plans of a table that can be read, among those of some directories."""
    for directory in directories:
        # The table's location may be spelled in another way now.
        if canonical(directory) == canonical(plan.directory):
            continue
        with suppress(InvalidTableError):
            other = read_plan(directory, table.storage)
            if other.table_uuid == plan.table_uuid:
                yield other


def _others_in_place(plan: DeletionPlan, table: Table) -> Iterator[DeletionPlan]:
    return other_plans(plan, plans_with_files_in_place(table), table)


def _read_part(payload: tuple[PlanPart, Storage]) -> Iterator[pa.RecordBatch]:
    yield from read_part(*payload).to_batches()


_LOOKED_AT_FILES = 10_000
"""How many files two plans may share before one waits for the other without a look at each file."""


class KeptByPlans(msgspec.Struct, frozen=True):
    """What others keep of a plan's files.

    Attributes:
        files: that stay, since another plan deletes them later.
        until_ms: epoch milliseconds until which all of the plan has to wait, or longer; `None`: it need not.
        run: for which it waits.
    """

    files: PathSet
    until_ms: int | None = None
    run: str = ""

    @property
    def reason(self) -> str:
        """Why the plan has to wait; empty where it need not."""
        if self.until_ms is None:
            return ""
        return f"run {self.run!r} keeps some of the files until {format_timestamp(self.until_ms, 1000)} UTC"


class _Keeper(msgspec.Struct, frozen=True):
    """Another plan, until when it keeps its files, epoch milliseconds, and whether it will delete them then."""

    plan: DeletionPlan
    until_ms: int
    will_delete: bool


def done_file(plan: DeletionPlan, work: LastWork, storage: Storage) -> FileInfo | None:
    """The mark that a plan's files are in the trash, if there is one.

    It does not count after a restore that said nothing of it: a run wrote it that seemed dead when the restore began.
    """
    if not plan.is_trash:
        return None
    is_overtaken = work.restored_ms and not work.deletes and not done_mark(plan.directory, storage).restored
    return None if is_overtaken else storage.head(f"{plan.directory}/{DONE}")


def days_in_trash_end_ms(plan: DeletionPlan, done: FileInfo) -> int:
    """When the days of a plan's files in the trash are over, epoch milliseconds.

    Args:
        done: the file `DONE`. A run that died may have been finished days later: its files are in the trash since then.
    """
    assert plan.trash_until_ms is not None
    return max(plan.trash_until_ms, done.modified_ms + _days_ms(plan))


def restore_ends_ms(plan: DeletionPlan, work: LastWork) -> int:
    """Until when a restore of a plan may be under way, epoch milliseconds: its commit may land long after it said so last."""
    return work.restored_ms + max(DAY_MS, _days_ms(plan)) if work.restored_ms and not work.deletes else 0


def kept_by_others(plan: DeletionPlan, table: Table, now_ms: int, *, skips_trash: bool) -> KeptByPlans:
    """Which files of a plan that is due other plans of the table keep for longer than that one will.

    Args:
        now_ms: the earlier of the clocks, epoch milliseconds.
        skips_trash: what is not in the trash yet is deleted at once, also what other plans were to move there.
    """
    own_ms = now_ms + (0 if skips_trash else _days_ms(plan))
    while True:
        directories = plan_directories(table.metadata, table.storage)
        keepers = [*_later(plan, directories, table, now_ms, own_ms, skips_trash=skips_trash)]
        kept = _kept(plan, keepers, table.storage)
        if {*plan_directories(table.metadata, table.storage)} <= {*directories}:
            return kept


class LookBesideOthers:
    """Looks at the table and, if the table has changed, at other plans: one of them may keep a file of this plan since.

    An expiration writes its plan before it commits. So where nobody has committed there is no such plan.
    """

    def __init__(
        self, look: TableLook, plan: DeletionPlan, asked: Table, kept: PathSet, now_ms: int, *, skips_trash: bool
    ):
        """Begin with the files that stay in any case.

        Args:
            asked: the table as it was when others were asked last (`kept_by_others`).
        """
        self._look, self._plan, self._asked = look, plan, asked
        self._kept, self._now_ms, self._skips_trash = kept, now_ms, skips_trash

    def __call__(self) -> PathSet:
        in_use, table = self._look(), self._look.table
        if table.metadata_location != self._asked.metadata_location:
            kept = kept_by_others(self._plan, table, self._now_ms, skips_trash=self._skips_trash)
            if kept.reason:
                raise SafetyError(
                    f"{kept.reason}; what was not deleted yet of plan {self._plan.directory!r} stays for now"
                )
            self._kept, self._asked = self._kept | kept.files, table
        return in_use | self._kept


def kept_in_trash(plan: DeletionPlan, table: Table, now_ms: int) -> KeptByPlans:
    """Whether a plan whose days in the trash are over has files there that another one lacks: it waits for that as a whole."""
    directories = plan_directories(table.metadata, table.storage)
    keepers = [*_later(plan, directories, table, now_ms, now_ms, skips_trash=False)]
    for keeper in sorted(keepers, key=lambda keeper: keeper.until_ms, reverse=True):
        if _lacks_files_of(keeper.plan, plan, table.storage):
            return KeptByPlans(NO_PATHS, keeper.until_ms, keeper.plan.run)
    return KeptByPlans(NO_PATHS)


def _kept(plan: DeletionPlan, keepers: list[_Keeper], storage: Storage) -> KeptByPlans:
    if not keepers:
        return KeptByPlans(NO_PATHS)
    own = plan_paths(plan, storage)
    shared = {keeper.plan.run: own & plan_paths(keeper.plan, storage) for keeper in keepers}
    left = union(shared[keeper.plan.run] for keeper in keepers if keeper.will_delete)
    for keeper in sorted(keepers, key=lambda keeper: keeper.until_ms, reverse=True):
        if not keeper.will_delete and not shared[keeper.plan.run] <= left:
            return KeptByPlans(left, keeper.until_ms, keeper.plan.run)
    return KeptByPlans(left)


def _lacks_files_of(keeper: DeletionPlan, plan: DeletionPlan, storage: Storage) -> bool:
    """Whether a plan names files that are in the trash of another, and neither in its own nor in their places."""
    theirs = plan_paths(keeper, storage)
    if len(plan_paths(plan, storage) & theirs) > _LOOKED_AT_FILES:
        return True
    for part in plan.parts:
        with suppress(InvalidTableError):
            locations = read_part(part, storage)["location"]
            shared = locations.filter(pa.array(theirs.mask(locations))).to_pylist()
            for where in (lambda location: location, partial(trash_location, keeper)):
                shared = [*_absent(shared, where, storage)]
            if [*_absent(shared, partial(trash_location, plan), storage)] != shared:
                return True
    return False


def _absent(locations: list[str], where: Callable[[str], str], storage: Storage) -> Iterator[str]:
    """Those of some files that are not at the location where each is looked for."""
    found = head_many([*map(where, locations)], storage)
    return (location for location, info in zip(locations, found, strict=True) if info is None)


def _later(
    plan: DeletionPlan, directories: list[str], table: Table, now_ms: int, own_ms: int, *, skips_trash: bool
) -> Iterator[_Keeper]:
    """The other plans that keep their files for longer, until `own_ms`, and those that are being restored."""
    storage = table.storage
    for other in other_plans(plan, directories, table):
        if not is_committed(other, table.metadata):
            continue
        work = last_work(other.directory, storage)
        if is_in_trash_for_certain(other.directory, work, storage):
            continue
        keeper = _keeper(other, work, now_ms, storage, skips_trash=skips_trash)
        restore_ms = restore_ends_ms(other, work)
        if restore_ms > now_ms:
            yield _Keeper(other, max(keeper.until_ms, restore_ms), will_delete=False)
        elif keeper.until_ms > now_ms and (keeper.until_ms, other.run) > (own_ms, plan.run):
            yield keeper


def _keeper(plan: DeletionPlan, work: LastWork, now_ms: int, storage: Storage, *, skips_trash: bool) -> _Keeper:
    done = done_file(plan, work, storage)
    if work.deletes:
        until_ms = 0
    elif done is not None:
        until_ms = days_in_trash_end_ms(plan, done)
    elif plan.is_trash and not skips_trash:
        until_ms = max(plan.not_before_ms, now_ms) + _days_ms(plan)
    else:
        until_ms = plan.not_before_ms
    # A run at work may not have committed, and forget it; or it has left files to the plan that asks.
    is_settled = not work.is_leased or now_ms - work.at_ms > DAY_MS
    return _Keeper(plan, until_ms, will_delete=done is None and is_settled)


def _days_ms(plan: DeletionPlan) -> int:
    return 0 if plan.trash_until_ms is None else plan.trash_until_ms - plan.not_before_ms
