"""Plans of earlier runs that are due: their grace is over, a crash spared them, or their days in the trash are over.

A plan in `.icekeep/plans/` is there because it is not finished, one in `.icekeep/trash/` until its days are over. A plan whose
snapshots are still in the table was never committed, or its run is at work: it is left alone, and deleted when it is a day old.

Files go only after all that the table leads to now was read again. A plan that another run has leased is left alone.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import ClaimedError, InvalidTableError, MissingFileError, reason_of
from icekeep.events import Listener, Warned
from icekeep.maintenance.delete.garbage import is_garbage, marked_garbage
from icekeep.maintenance.delete.kept import days_in_trash_end_ms, done_file, kept_in_trash, plan_files, restore_ends_ms
from icekeep.maintenance.delete.lease import PlanLease, holding, last_work, refuse_leased, take_lease
from icekeep.maintenance.delete.locations import DeletableLocations, table_locations
from icekeep.maintenance.delete.plan_file import (
    FILES,
    DeletionPlan,
    clear_done_mark,
    delete_plan,
    holds_files,
    is_committed,
    is_forgotten,
    plan_directories,
    read_part,
    read_plan,
    restore_command,
    trash_location,
)
from icekeep.maintenance.delete.reachable import GARBAGE, PathSet, Reached, fails_closed, read_reached
from icekeep.maintenance.delete.run import DeletionRun, Reclaimed
from icekeep.planning.spark.rows import streamed
from icekeep.planning.spark.session import from_arrow_schema
from icekeep.spec.types import DAY_MS
from icekeep.spelling import counted, counted_doing
from icekeep.storage.base import head_many
from icekeep.storage.location_keys import path_keys
from icekeep.storage.locations import is_under

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FINISHING = "a run that finishes what earlier ones left"


class PlanState(Enum):
    """What is to be done with a plan that is due."""

    READY = "its files are to be deleted, or moved to the trash"
    TRASH_IS_OVER = "its files in the trash are to be deleted"
    VOID = "the plan is to be deleted"


class PendingPlan(msgspec.Struct, frozen=True):
    """A plan whose time has come."""

    plan: DeletionPlan
    state: PlanState

    @property
    def empties_trash(self) -> bool:
        return self.state is PlanState.TRASH_IS_OVER


def pending_plan(directory: str, table: Table, now_ms: int, listener: Listener) -> PendingPlan | None:
    """The plan in a directory, if it is due; `None` where it is not, where it is being restored, or gone."""
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
            command = restore_command(table, plan.run)
            listener.on(Warned(f"snapshots are back whose files are in {directory!r}; run `{command}`"))
            return None
        return PendingPlan(plan, PlanState.VOID)
    if is_forgotten(plan, storage):
        return PendingPlan(plan, PlanState.VOID)
    work = last_work(directory, storage)
    done = done_file(plan, work, storage)
    if restore_ends_ms(plan, work) > now_ms:
        return None
    if done is None:
        return PendingPlan(plan, PlanState.READY) if plan.not_before_ms <= now_ms else None
    return PendingPlan(plan, PlanState.TRASH_IS_OVER) if days_in_trash_end_ms(plan, done) <= now_ms else None


class PendingPlans(msgspec.Struct, frozen=True, kw_only=True):
    """What came of plans of earlier runs.

    Attributes:
        finished_count: files of plans that had not been carried out to their end.
        emptied_count: files that were in the trash for long enough.
        kept_count: files of such plans that the table leads to again, or that another plan keeps; they stay.
        failed_count: files that could not be deleted.
        problems: why plans that are due were not carried out to their end; the next run tries again.
        may_have_deleted: "nothing was deleted" would be wrong, or is not known.
    """

    finished_count: int = 0
    emptied_count: int = 0
    kept_count: int = 0
    failed_count: int = 0
    problems: tuple[str, ...] = ()
    may_have_deleted: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing that is due is left."""
        return not self.failed_count and not self.problems

    @classmethod
    def of(cls, done: Reclaimed, *, empties_trash: bool = False) -> "PendingPlans":
        """What came of one plan."""
        return cls(
            finished_count=0 if empties_trash else done.deleted_count,
            emptied_count=done.deleted_count if empties_trash else 0,
            kept_count=done.kept_count,
            failed_count=done.failed_count,
            problems=(done.stopped,) if done.stopped else (),
            may_have_deleted=done.may_have_deleted,
        )

    @property
    def counts(self) -> dict[str, Any]:
        """As the plans and results of jobs call them."""
        return {
            "finished_files_count": self.finished_count,
            "emptied_trash_files_count": self.emptied_count,
            "kept_again_files_count": self.kept_count,
        }

    def __add__(self, other: "PendingPlans") -> "PendingPlans":
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        return PendingPlans(**sums | {"may_have_deleted": self.may_have_deleted or other.may_have_deleted})


def not_finished(error: Exception, listener: Listener) -> PendingPlans:
    """What came of plans that could not be looked at, for a run whose own work is done: a warning, no more."""
    problem = f"what earlier runs left is not finished: {reason_of(error)}"
    listener.on(Warned(problem))
    return PendingPlans(problems=(problem,))


def finish_pending(run: DeletionRun, *, but: str = "", plan_hash: str | None = None) -> PendingPlans:
    """Carry out the plans that earlier runs left and that are due; nothing else is read where there is none.

    What stands in the way of a plan is a warning and a problem of the result; the others are carried out.

    Args:
        but: the directory of a plan that the run has just carried out itself.
        plan_hash: only plans of this hash that are not carried out yet: their run died when files had begun to go.

    Returns:
        What came of them; `PendingPlans()` where there are none.
    """
    pending = _Pending(run)
    total = PendingPlans()
    for directory in plan_directories(run.table.metadata, run.table.storage):
        if directory == but:
            continue
        try:
            total += pending.finish(directory, plan_hash)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other plans may be carried out
            problem = f"plan {directory!r} is not carried out: {reason_of(error)}"
            run.listener.on(Warned(problem))
            total += PendingPlans(problems=(problem,))
    return total


def foreseen_pending(run: DeletionRun) -> PendingPlans:
    """What `finish_pending` would do; nothing is written.

    Args:
        run: on the table with the metadata that is going to be committed.
    """
    pending = _Pending(run)
    total = PendingPlans()
    for directory in plan_directories(run.table.metadata, run.table.storage):
        try:
            total += pending.foreseen(directory)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other plans may be carried out
            run.listener.on(Warned(f"plan {directory!r} would not be carried out: {reason_of(error)}"))
    return total


class _Pending:
    """A run that carries out plans of others, and what the table retained when it was loaded last."""

    def __init__(self, run: DeletionRun) -> None:
        self._run = run
        self._retained: Reached | None = None

    def finish(self, directory: str, plan_hash: str | None) -> PendingPlans:
        """Carry out one plan, if it is due and nobody else has it."""
        run = self._run
        storage = run.table.storage
        pending = pending_plan(directory, run.table, run.now_ms, run.listener)
        if pending is None:
            return PendingPlans()
        if plan_hash is not None and (pending.state is not PlanState.READY or pending.plan.hash != plan_hash):
            return PendingPlans()
        try:
            lease = take_lease(directory, _FINISHING, storage, run.table.runtime, run.now_ms)
        except ClaimedError as error:
            run.listener.on(Warned(f"what an earlier run left is not finished now: {error.message}"))
            return PendingPlans()
        with holding(lease, storage, run.table.runtime):
            # Another run may have finished it, or an operator taken it back, since it was looked at.
            now = run.table.catalog.load(run.table.identifier)
            if now.metadata_location != run.table.metadata_location:
                self._retained = None
            self._run = DeletionRun.of(now, run.spark, run.request, run.listener, run.now_ms)
            pending = pending_plan(directory, now, run.now_ms, run.listener)
            if pending is None:
                return PendingPlans()
            if pending.state is PlanState.VOID:
                delete_plan(pending.plan, storage)
                return PendingPlans()
            return self._carried_out(pending, lease)

    def foreseen(self, directory: str) -> PendingPlans:
        """What would come of a plan; a file that is not where it is to go from does not count."""
        table, run = self._run.table, self._run
        pending = pending_plan(directory, table, run.now_ms, run.listener)
        if pending is None or pending.state is PlanState.VOID:
            return PendingPlans()
        refuse_leased(directory, table.storage, run.now_ms)
        plan, empties_trash = pending.plan, pending.empties_trash
        staying = self._staying_files(pending, is_for_good=last_work(directory, table.storage).deletes)
        if isinstance(staying, PendingPlans):
            return staying
        kept_count = there_count = 0
        for part in plan.parts:
            locations = read_part(part, table.storage)["location"]
            stays = staying.mask(locations)
            if empties_trash and len(staying):
                stays |= staying.mask([trash_location(plan, location) for location in locations.to_pylist()])
            going = locations.filter(pa.array(~stays)).to_pylist()
            going = [trash_location(plan, location) for location in going] if empties_trash else going
            kept_count += int(stays.sum())
            there_count += sum(info is not None for info in head_many(going, table.storage))
        return PendingPlans(
            finished_count=0 if empties_trash else there_count,
            emptied_count=there_count if empties_trash else 0,
            kept_count=kept_count,
        )

    def _carried_out(self, pending: PendingPlan, lease: PlanLease) -> PendingPlans:
        """Delete what is garbage by the newest metadata, or move it to the trash; nothing where something stands in the way."""
        run, plan, storage = self._run, pending.plan, self._run.table.storage
        staying = self._staying_files(pending, is_for_good=lease.deletes)
        if isinstance(staying, PendingPlans):
            return staying
        if plan.is_trash and not pending.empties_trash:
            lease.check(storage, run.table.runtime)
            clear_done_mark(plan, storage)
        # It is proved that nothing came back.
        lease.restored_ms = 0
        skips_trash = run.request.skips_trash and plan.is_trash and not pending.empties_trash
        seen = self._reached().seen
        # What is in use and was never moved has nothing to do with what is in the trash.
        look = run.look(seen) if pending.empties_trash else run.look_beside_others(plan, seen, staying)
        what = msgspec.structs.replace(plan, trash_until_ms=None) if skips_trash else plan
        done = run.reclaim(what, lease, look, empties_trash=pending.empties_trash)
        done = run.settle(plan, lease, done, empties_trash=pending.empties_trash, skips_trash=skips_trash)
        return PendingPlans.of(done, empties_trash=pending.empties_trash)

    def _staying_files(self, pending: PendingPlan, *, is_for_good: bool) -> PathSet | PendingPlans:
        """The files that stay when a plan is carried out; where it is not, what comes of it, and a warning why.

        Args:
            is_for_good: files of the plan have been deleted for good.
        """
        run, plan, table = self._run, pending.plan, self._run.table

        def warn(text: str) -> None:
            run.listener.on(Warned(text))

        kept = kept_in_trash(plan, table, run.now_ms) if pending.empties_trash else run.kept_by_others(plan)
        if kept.reason:
            warn(f"plan {plan.directory!r} is not carried out yet: {kept.reason}")
            return PendingPlans()
        staying = self._read_staying(pending)
        if staying.trash_count:
            warn(
                f"the table leads to {counted(staying.trash_count, 'files')} in the trash, where they lie, "
                f"{staying.trash_example!r} among them: nothing of run {plan.run!r} is deleted; copy them to the table's own "
                "places, and let the table lead to the copies"
            )
            return PendingPlans(kept_count=len(staying.again))
        count, example = self._again_in_trash(pending, staying.again)
        if count:
            back = "move them back" if is_for_good else f"run `{restore_command(table, plan.run)}`"
            warn(
                f"{counted_doing(count, 'files', 'are')} in the trash, and the table leads to them again, {example!r} among "
                f"them: nothing of run {plan.run!r} is deleted; if they are missing in their places, {back}, else delete them "
                f"in {plan.directory}/{FILES}"
            )
            return PendingPlans(kept_count=len(staying.again))
        unnamed = unnamed_root(plan, table, run.locations, staying.outside_examples)
        if unnamed is not None:
            warn(
                f"plan {plan.directory!r} is not carried out: it has files below {unnamed!r}, which is not a place of table "
                f"{table.name!r}; if the files belong to the table, name that directory in reclaim.roots, otherwise remove the "
                "plan"
            )
            return PendingPlans()
        if staying.outside_examples:
            count = len(staying.outside)
            warn(
                f"{counted(count, 'files')} of plan {plan.directory!r} {'lies' if count == 1 else 'lie'} outside the places of "
                f"table {table.name!r}, {staying.outside_examples[0]!r} among them: they stay, and icekeep does not look for "
                "them any more"
            )
        return staying.again | staying.outside | kept.files

    def _reached(self) -> Reached:
        """What the table retains; raises `SafetyError` where not everything of it can be read."""
        if self._retained is None:
            table, run = self._run.table, self._run
            self._retained = read_reached(
                table.metadata,
                table.metadata_location,
                table.storage,
                run.spark,
                trust_manifest_list=run.request.trust_manifest_list,
                roots=run.locations.roots,
            )
        return self._retained

    def _read_staying(self, pending: PendingPlan) -> "_Staying":
        """The files of a plan that are no garbage by the newest metadata, and those that lie outside the table's locations now.

        Where a file is in the trash says the plan alone, so none of these lies outside. There the table may lead to it as well:
        whoever missed it may have added it as it lies.
        """
        run, plan, retained = self._run, pending.plan, self._reached()
        files = plan_files(plan, run.table.storage, run.spark)
        if pending.empties_trash:
            files = _and_in_trash(files, plan)
        sift = _Sift(
            None if pending.empties_trash else run.locations,
            f"{plan.directory}/{FILES}",
            _waited_for(plan, run.table, run.locations),
        )
        if isinstance(files, pa.Table):
            marks = pa.array(is_garbage(files, retained, run.spark), pa.bool_())
            marked = files.append_column("is_garbage", marks).select(_MARKED)
            rows = (row for batch in sift(marked.to_batches()) for row in batch.to_pylist())
            return _Staying.of(rows)
        with fails_closed():
            many = marked_garbage(files, plan.files_count, retained, run.spark).select(*_MARKED)
            left = many.mapInArrow(sift, from_arrow_schema(_STAYING))
            return _Staying.of(streamed(left, "holding an earlier plan against the table"))

    def _again_in_trash(self, pending: PendingPlan, again: PathSet) -> tuple[int, str]:
        """How many files that the table leads to are in the trash, and not in their places, where those are deleted last.

        Returns:
            The count, and one of them.
        """
        plan, storage = pending.plan, self._run.table.storage
        if not plan.is_trash or not len(again):
            return 0, ""
        trashed = PathSet.of([file.location for file in storage.list(f"{plan.directory}/{FILES}")])
        count, example = 0, ""
        for part in plan.parts if len(trashed) else ():
            locations = read_part(part, storage)["location"]
            some = locations.filter(pa.array(again.mask(locations))).to_pylist()
            is_there = trashed.mask([trash_location(plan, location) for location in some])
            some = [location for location, there in zip(some, is_there, strict=True) if there]
            if not pending.empties_trash:
                some = [at for at, info in zip(some, head_many(some, storage), strict=True) if info is None]
            count, example = count + len(some), example or (some[0] if some else "")
        return count, example


_MARKED = ("location", "is_garbage")
_STAYING = pa.schema(
    [
        pa.field("path_key", pa.int64()),
        pa.field("is_outside", pa.bool_()),
        pa.field("is_in_trash", pa.bool_()),
        pa.field("location", pa.string()),
    ]
)
"""A file that stays: in use by the table, or garbage outside its locations. Only a few have their names here: a plan may have
tens of millions of files that are all in use again, and the driver holds eight bytes of each."""


class _Sift(msgspec.Struct, frozen=True):
    """Finds the files that stay among those of a plan; can be pickled.

    Attributes:
        locations: where files may be deleted; `None` for files in the trash, which all may be.
        trash: the directory of the plan's files in it.
        waited_for: directories for which the plan waits; of the files outside one below each is named.
    """

    locations: DeletableLocations | None
    trash: str
    waited_for: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of `_STAYING`, of rows of `_MARKED`."""
        for batch in batches:
            files, garbage = batch["location"], batch["is_garbage"].to_numpy(zero_copy_only=False)
            inside = np.ones(len(files), np.bool_) if self.locations is None else self.locations.reaches(files)
            stays = ~(garbage & inside)
            files, is_outside = files.filter(pa.array(stays)), garbage[stays]
            names = files.to_pylist()
            in_trash = np.array([is_under(name, self.trash) for name in names], np.bool_) & ~is_outside
            below = [DeletableLocations((root,)).mask(files) & is_outside for root in self.waited_for]
            shown = {int(row) for mask in (in_trash, is_outside, *below) for row in np.flatnonzero(mask)[:1]}
            columns = [pa.array(path_keys(files), pa.int64()), pa.array(is_outside), pa.array(in_trash)]
            named = pa.array([name if row in shown else None for row, name in enumerate(names)], pa.string())
            yield pa.record_batch([*columns, named], schema=_STAYING)


class _Staying(msgspec.Struct, frozen=True):
    """The files of a plan that stay.

    Attributes:
        again: in use by the table.
        outside: garbage that lies where nothing may be deleted; `outside_examples` are the first of each batch.
        trash_count, trash_example: those in use where they lie in the trash.
    """

    again: PathSet
    outside: PathSet
    outside_examples: tuple[str, ...]
    trash_count: int
    trash_example: str

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> "_Staying":
        """Rows of `_STAYING`."""
        again, outside = array("q"), array("q")
        examples: list[str] = []
        trash_count, trash_example = 0, ""
        for row in rows:
            (outside if row["is_outside"] else again).append(row["path_key"])
            trash_count += row["is_in_trash"]
            if row["location"] is not None and row["is_outside"]:
                examples.append(row["location"])
            elif row["location"] is not None:
                trash_example = trash_example or row["location"]
        return cls(
            again=PathSet.of_keys(np.frombuffer(again, np.int64)),
            outside=PathSet.of_keys(np.frombuffer(outside, np.int64)),
            outside_examples=tuple(examples),
            trash_count=trash_count,
            trash_example=trash_example,
        )


def unnamed_root(plan: DeletionPlan, table: Table, locations: DeletableLocations, outside: Sequence[str]) -> str | None:
    """A directory for which a plan waits: the run that made it, or the table, says that files are there, and the operator may."""
    roots = _waited_for(plan, table, locations)
    return next((root for root in roots if any(DeletableLocations((root,)).holds(one) for one in outside)), None)


def _waited_for(plan: DeletionPlan, table: Table, locations: DeletableLocations) -> tuple[str, ...]:
    named = (*plan.roots, *table_locations(table.metadata))
    return tuple(root for root in named if not locations.holds(f"{root.rstrip('/')}/any"))


def _and_in_trash(files: "pa.Table | DataFrame", plan: DeletionPlan) -> "pa.Table | DataFrame":
    """Files of a plan by their own locations and by those in the trash."""

    def trashed(batch: pa.RecordBatch) -> pa.RecordBatch:
        there = [trash_location(plan, location) for location in batch["location"].to_pylist()]
        return batch.set_column(
            batch.schema.names.index("location"), GARBAGE.field("location"), pa.array(there, pa.string())
        )

    if isinstance(files, pa.Table):
        return pa.concat_tables([files, pa.Table.from_batches(map(trashed, files.to_batches()), files.schema)])
    return files.union(files.mapInArrow(lambda batches: map(trashed, batches), files.schema))
