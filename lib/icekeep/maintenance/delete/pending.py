"""After a plan was carried out: it is forgotten, or stays while its files are in the trash, or until what failed is done.

What earlier runs left to be done: files that wait for their grace to pass, that a crash spared, or whose days in the
trash are over. Each goes only after a fresh mark of everything that the table leads to now.

A plan that is not due (`due_plans`), or that another run has claimed, is left alone.

A plan that was given and carried out in part: its run died when files had begun to go, and it is carried out to its end.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import ClaimedError, reason_of
from icekeep.events import Listener, Warned
from icekeep.maintenance.delete.execute import Reclaimed, reclaim
from icekeep.maintenance.delete.garbage import marked_garbage, still_garbage
from icekeep.maintenance.delete.kept import (
    DuePlan,
    KeptByPlans,
    LookBesideOthers,
    ToDo,
    due_of,
    kept_by_others,
    kept_in_trash,
    plan_files,
)
from icekeep.maintenance.delete.lease import PlanLease, last_work, refuse_held, released, take_claim
from icekeep.maintenance.delete.locations import Territory, table_roots, territory
from icekeep.maintenance.delete.options import ReclaimOptions
from icekeep.maintenance.delete.plan_file import (
    FILES,
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    forget_plan,
    holds_files,
    mark_done,
    mark_undone,
    plan_directories,
    read_part,
    restore_command,
    trash_location,
    write_plan,
)
from icekeep.maintenance.delete.reachable import GARBAGE, PathSet, Reached, TableLook, fails_closed, read_reached
from icekeep.planning.spark.rows import streamed
from icekeep.planning.spark.session import SparkSource
from icekeep.runtime import Runtime
from icekeep.spelling import counted, counted_doing
from icekeep.storage.base import Storage, head_many
from icekeep.storage.locations import is_under

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def settled(settle: Callable[[], None], plan: DeletionPlan, done: Reclaimed, listener: Listener) -> Reclaimed:
    """What became of a plan's files, after `settle` has seen to the plan; what stands in the way of that costs no count."""
    try:
        settle()
    except Exception as error:  # noqa: BLE001 - whatever it is, the files are gone; the next run goes on
        stopped = f"plan {plan.directory!r} is carried out, and stays: {reason_of(error)}"
        listener.on(Warned(stopped))
        return msgspec.structs.replace(done, stopped=stopped)
    return done


def settle_plan(
    plan: DeletionPlan, claim: PlanLease, done: Reclaimed, table: Table, runtime: Runtime, listener: Listener
) -> None:
    """Forget a plan, or mark it as done where it has moved files to the trash; keep it as it is where files failed.

    What could not be moved to the trash waits in its place, by a plan of its own. Where another run has taken the plan over,
    all that is left to that.
    """
    if not done.is_complete or not _is_held(claim, table.storage, runtime, listener):
        return
    if done.unmoved:
        _write_unmoved(plan, done, table, runtime, listener)
    absent_count = done.missing_count + done.kept_count + done.unmoved_count
    has_moved = done.deleted_count + done.missing_count + done.unmoved_count or holds_files(plan, table.storage)
    if plan.is_trash and has_moved:
        mark_done(plan, absent_count, table.storage)
    else:
        forget_plan(plan, table.storage)


def settle_emptied(
    plan: DeletionPlan, claim: PlanLease, done: Reclaimed, table: Table, runtime: Runtime, listener: Listener
) -> None:
    """Forget a plan whose files were in the trash; keep it where some of them are there still."""
    if done.is_complete and not done.kept_count and _is_held(claim, table.storage, runtime, listener):
        forget_plan(plan, table.storage)


def settle_at_once(plan: DeletionPlan, storage: Storage) -> None:
    """Forget a plan whose files did not go to the trash, though it says so; what it had moved before waits for its day."""
    if holds_files(plan, storage):
        mark_done(plan, plan.files_count, storage)
    else:
        forget_plan(plan, storage)


def _is_held(claim: PlanLease, storage: Storage, runtime: Runtime, listener: Listener) -> bool:
    try:
        claim.check(storage, runtime)
    except ClaimedError as error:
        listener.on(Warned(error.message))
        return False
    return True


def _write_unmoved(plan: DeletionPlan, done: Reclaimed, table: Table, runtime: Runtime, listener: Listener) -> None:
    assert plan.trash_until_ms is not None
    # A plan that is finished late gives its files their days all the same.
    until_ms = max(plan.trash_until_ms, runtime.now_ms() + plan.trash_until_ms - plan.not_before_ms)
    directory = done.unmoved[0].location.rpartition("/")[0]
    draft = PlanDraft(job=plan.job, run=directory.rpartition("/")[2], not_before_ms=until_ms, roots=plan.roots)
    write_plan(ClassifiedGarbage(parts=done.unmoved), draft, table, runtime)
    count = sum(part.files_count for part in done.unmoved)
    listener.on(
        Warned(
            f"{counted(count, 'files')} cannot be moved to the trash, which is in another store, bucket or mount: they stay "
            f"where they are for as long, and are deleted then ({directory!r})"
        )
    )


_FINISHING = "a run that finishes what earlier ones left"


class EarlierPlans(msgspec.Struct, frozen=True, kw_only=True):
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


def not_finished(error: Exception, listener: Listener) -> EarlierPlans:
    """What came of earlier runs' plans that could not be looked at, by a run whose own work is done: it is told, no more."""
    problem = f"what earlier runs left is not finished: {reason_of(error)}"
    listener.on(Warned(problem))
    return EarlierPlans(problems=(problem,))


class DeletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was told about deletion.

    Attributes:
        skips_trash: the operator wants files to go at once, also those of plans that wait to be moved to the trash.
        other_roots: places of other tables, whose files are theirs (`Neighbours.other_roots`).
    """

    options: ReclaimOptions
    max_concurrent_deletes: int | None
    trust_manifest_list: bool
    skips_trash: bool = False
    other_roots: tuple[str, ...] = ()


def finish_earlier(
    table: Table,
    spark: SparkSource,
    now_ms: int,
    request: DeletionRequest,
    *,
    but: str = "",
    listener: Listener,
    runtime: Runtime,
) -> EarlierPlans:
    """Do what earlier runs left to be done, and is due; nothing is read where there is none.

    What stands in the way of a plan is told to the listener and in the result; the others are carried out. Each is claimed
    first, and proved on the table as it is after that.

    Args:
        table: as it is now.
        now_ms: the earlier of the clocks, epoch milliseconds.
        but: the directory of a plan that the run has just carried out itself.
    """
    directories = [one for one in plan_directories(table.metadata, table.storage) if one != but]
    return finish_plans(directories, table, spark, now_ms, request, listener, runtime)


def finish_plans(
    directories: Iterable[str],
    table: Table,
    spark: SparkSource,
    now_ms: int,
    request: DeletionRequest,
    listener: Listener,
    runtime: Runtime,
) -> EarlierPlans:
    """The same for the plans in some directories."""
    roots = territory(table, request.options.roots, request.other_roots).roots
    proofs = _Proofs(table, spark, now_ms, trust_manifest_list=request.trust_manifest_list, roots=roots)
    total = EarlierPlans()
    problems: list[str] = []
    for directory in directories:
        try:
            total = _sum(total, _finish(directory, proofs, spark, now_ms, request, listener, runtime))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other plans may be carried out
            problems.append(f"plan {directory!r} is not carried out: {reason_of(error)}")
            listener.on(Warned(problems[-1]))
    return msgspec.structs.replace(total, problems=(*total.problems, *problems))


def foreseen_earlier(
    table: Table, spark: SparkSource, now_ms: int, request: DeletionRequest, listener: Listener
) -> EarlierPlans:
    """What `finish_earlier` would do; nothing is written.

    Args:
        table: as the run will find it then: with the metadata that it is going to commit.
    """
    roots = territory(table, request.options.roots, request.other_roots).roots
    proofs = _Proofs(table, spark, now_ms, trust_manifest_list=request.trust_manifest_list, roots=roots)
    total = EarlierPlans()
    for directory in plan_directories(table.metadata, table.storage):
        try:
            due = due_of(directory, table, now_ms, listener)
            if due is None or due.to_do is ToDo.FORGET:
                continue
            refuse_held(directory, table.storage, now_ms)
            total = _sum(total, _DuePlan(due, proofs, spark, request, listener).foreseen())
        except Exception as error:  # noqa: BLE001 - whatever it is, the other plans may be carried out
            listener.on(Warned(f"plan {directory!r} would not be carried out: {reason_of(error)}"))
    return total


class _Proofs:
    """The table as it is, and what it retains, read anew where it has moved on."""

    def __init__(
        self, table: Table, spark: SparkSource, now_ms: int, *, trust_manifest_list: bool, roots: Sequence[str]
    ) -> None:
        self.table, self.now_ms, self.roots = table, now_ms, roots
        self._spark, self._trust_manifest_list = spark, trust_manifest_list
        self._retained: Reached | None = None

    def load(self) -> Table:
        """The table as it is now."""
        now = self.table.catalog.load(self.table.identifier)
        if now.metadata_location != self.table.metadata_location:
            self._retained = None
        self.table = now
        return now

    def retained(self) -> Reached:
        """What the table retained when it was loaded last.

        Raises:
            SafetyError: not everything of it can be read.
        """
        if self._retained is None:
            table = self.table
            self._retained = read_reached(
                table.metadata,
                table.metadata_location,
                table.storage,
                self._spark,
                trust_manifest_list=self._trust_manifest_list,
                roots=self.roots,
            )
        return self._retained


def _finish(
    directory: str,
    proofs: _Proofs,
    spark: SparkSource,
    now_ms: int,
    request: DeletionRequest,
    listener: Listener,
    runtime: Runtime,
) -> EarlierPlans:
    """One plan, if it is due and nobody is at it."""
    storage = proofs.table.storage
    if due_of(directory, proofs.table, now_ms, listener) is None:
        return EarlierPlans()
    try:
        claim = take_claim(directory, _FINISHING, storage, runtime, now_ms)
    except ClaimedError as error:
        listener.on(Warned(f"what an earlier run left is not finished now: {error.message}"))
        return EarlierPlans()
    with released(claim, storage, runtime):
        # Another run may have finished it, or an operator taken it back, since it was looked at.
        due = due_of(directory, proofs.load(), now_ms, listener)
        if due is None:
            return EarlierPlans()
        if due.to_do is ToDo.FORGET:
            forget_plan(due.plan, storage)
            return EarlierPlans()
        return _DuePlan(due, proofs, spark, request, listener).carried_out(claim, runtime)


class _DuePlan:
    """A plan that is due, and that nobody else carries out."""

    def __init__(
        self, due: DuePlan, proofs: _Proofs, spark: SparkSource, request: DeletionRequest, listener: Listener
    ) -> None:
        self._due, self._plan, self._listener = due, due.plan, listener
        self._table, self._proofs, self._spark, self._request = proofs.table, proofs, spark, request
        self._places = territory(proofs.table, request.options.roots, request.other_roots)
        self._goes_at_once = request.skips_trash and due.plan.is_trash and not due.empties_trash

    def carried_out(self, claim: PlanLease, runtime: Runtime) -> EarlierPlans:
        """Delete what is garbage by the newest metadata, or move it to the trash; nothing where something stands in the way."""
        due, plan, table = self._due, self._plan, self._table
        staying = self._staying_files(is_for_good=claim.deletes)
        if isinstance(staying, EarlierPlans):
            return staying
        if plan.is_trash and not due.empties_trash:
            claim.check(table.storage, runtime)
            mark_undone(plan, table.storage)
        # It is proved that nothing came back.
        claim.restored_ms = 0
        done = self._reclaimed(staying, claim, runtime)
        done = settled(partial(self._settle, done, claim, runtime), plan, done, self._listener)
        return EarlierPlans(
            finished_count=0 if due.empties_trash else done.deleted_count,
            emptied_count=done.deleted_count if due.empties_trash else 0,
            kept_count=done.kept_count,
            failed_count=done.failed_count,
            problems=(done.stopped,) if done.stopped else (),
            may_have_deleted=done.may_have_deleted,
        )

    def foreseen(self) -> EarlierPlans:
        """What would come of it; a file that is not where it is to go from does not count."""
        plan, storage, empties_trash = self._plan, self._table.storage, self._due.empties_trash
        staying = self._staying_files(is_for_good=last_work(plan.directory, storage).deletes)
        if isinstance(staying, EarlierPlans):
            return staying
        kept_count = there_count = 0
        for part in plan.parts:
            locations = read_part(part, storage)["location"]
            stays = staying.mask(locations)
            if empties_trash and len(staying):
                stays |= staying.mask([trash_location(plan, location) for location in locations.to_pylist()])
            going = locations.filter(pa.array(~stays)).to_pylist()
            places = [trash_location(plan, location) for location in going] if empties_trash else going
            kept_count += int(stays.sum())
            there_count += sum(info is not None for info in head_many(places, storage))
        return EarlierPlans(
            finished_count=0 if empties_trash else there_count,
            emptied_count=there_count if empties_trash else 0,
            kept_count=kept_count,
        )

    def _staying_files(self, *, is_for_good: bool) -> "PathSet | EarlierPlans":
        """The files that stay when the plan is carried out; where it is not, what comes of it, and the listener hears why.

        Args:
            is_for_good: files of the plan have been deleted for good.
        """
        due, plan, table, places = self._due, self._plan, self._table, self._places
        kept = self._kept_by_others()
        if kept.reason:
            self._listener.on(Warned(f"plan {plan.directory!r} is not carried out yet: {kept.reason}"))
            return EarlierPlans()
        again, strays = _staying(due, self._proofs.retained(), table, places, self._spark)
        if self._leads_to_the_trash(again, is_for_good=is_for_good):
            return EarlierPlans(kept_count=len(again))
        unnamed = unnamed_root(plan, table, places, strays)
        if unnamed is not None:
            self._listener.on(
                Warned(
                    f"plan {plan.directory!r} is not carried out: it has files below {unnamed!r}, which is not a place of "
                    f"table {table.name!r}; if the files belong to the table, name that directory in reclaim.roots, otherwise "
                    "remove the plan"
                )
            )
            return EarlierPlans()
        if strays:
            self._listener.on(
                Warned(
                    f"{counted(len(strays), 'files')} of plan {plan.directory!r} {'lies' if len(strays) == 1 else 'lie'} "
                    f"outside the places of table {table.name!r}, "
                    f"{strays[0]!r} among them: they stay, and icekeep does not look for them any more"
                )
            )
        return PathSet.of([*again, *strays]) | kept.files

    def _kept_by_others(self) -> KeptByPlans:
        now_ms = self._proofs.now_ms
        if self._due.empties_trash:
            return kept_in_trash(self._plan, self._table, now_ms)
        return kept_by_others(self._plan, self._table, now_ms, skips_trash=self._request.skips_trash)

    def _leads_to_the_trash(self, again: list[str], *, is_for_good: bool) -> bool:
        """Whether the table leads to files where they lie in the trash, or to their places while they lie there; it is told."""
        plan = self._plan
        held = [location for location in again if is_under(location, f"{plan.directory}/{FILES}")]
        if held:
            self._listener.on(
                Warned(
                    f"the table leads to {counted(len(held), 'files')} in the trash, where they lie, {held[0]!r} among them: "
                    "nothing of "
                    f"run {plan.run!r} is deleted; copy them to the table's own places, and let the table lead to the copies"
                )
            )
            return True
        trashed = _in_trash(self._due, again, self._table.storage)
        if trashed:
            _tell_kept(self._table, self._due, trashed, self._listener, is_for_good=is_for_good)
        return bool(trashed)

    def _reclaimed(self, staying: PathSet, claim: PlanLease, runtime: Runtime) -> Reclaimed:
        due, plan, table, request, places = self._due, self._plan, self._table, self._request, self._places
        look = TableLook(
            table,
            self._proofs.retained().seen,
            self._spark,
            trust_manifest_list=request.trust_manifest_list,
            roots=places.roots,
        )
        beside = LookBesideOthers(look, plan, table, staying, self._proofs.now_ms, skips_trash=request.skips_trash)
        return reclaim(
            msgspec.structs.replace(plan, trash_until_ms=None) if self._goes_at_once else plan,
            claim,
            # What is in use and was never moved has nothing to do with what is in the trash.
            look if due.empties_trash else beside,
            table,
            places,
            self._spark,
            options=request.options,
            max_concurrent_deletes=request.max_concurrent_deletes,
            listener=self._listener,
            runtime=runtime,
            empties_trash=due.empties_trash,
        )

    def _settle(self, done: Reclaimed, claim: PlanLease, runtime: Runtime) -> None:
        plan, table = self._plan, self._table
        if self._goes_at_once and done.is_complete:
            settle_at_once(plan, table.storage)
        elif self._due.empties_trash:
            settle_emptied(plan, claim, done, table, runtime, self._listener)
        else:
            settle_plan(plan, claim, done, table, runtime, self._listener)


def unnamed_root(plan: DeletionPlan, table: Table, places: Territory, strays: Sequence[str]) -> str | None:
    """A directory for which a plan waits: the run that made it, or the table, says that files are there, and the operator may."""
    claimed = (*plan.roots, *table_roots(table.metadata))
    waited_for = (root for root in claimed if not places.holds(f"{root.rstrip('/')}/any"))
    return next((root for root in waited_for if any(Territory((root,)).holds(one) for one in strays)), None)


def _staying(
    due: DuePlan, retained: Reached, table: Table, places: Territory, spark: SparkSource
) -> tuple[list[str], list[str]]:
    """The files of a plan that are no garbage by the newest metadata, and those that lie outside the table's places by now.

    Where a file is in the trash says the plan alone, so none of these lies outside. There the table may lead to it as well:
    whoever missed it may have added it as it lies.
    """
    files = plan_files(due.plan, table.storage, spark)
    if due.empties_trash:
        files = _and_in_trash(files, due.plan)
    if not isinstance(files, pa.Table):
        return _staying_of_many(files, due, retained, places, spark)
    garbage = still_garbage(files, retained, spark)
    is_inside = pa.array(due.empties_trash | places.reaches(garbage["location"]), pa.bool_())
    return _difference(files, garbage), garbage.filter(pc.invert(is_inside))["location"].to_pylist()


def _staying_of_many(
    files: "DataFrame", due: DuePlan, retained: Reached, places: Territory, spark: SparkSource
) -> tuple[list[str], list[str]]:
    """The same where Spark holds the files: they are held against what is retained once, and those that stay come here."""
    empties_trash, columns = due.empties_trash, ["location", "is_garbage"]

    def staying(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_inside = pa.array(empties_trash | places.reaches(batch["location"]), pa.bool_())
            yield batch.filter(pc.invert(pc.and_(batch["is_garbage"], is_inside))).select(columns)

    with fails_closed():
        marked = marked_garbage(files, due.plan.files_count, retained, spark)
        left = marked.mapInArrow(staying, marked.select(*columns).schema)
        rows = [*streamed(left, "holding an earlier plan against the table")]
    again, strays = ([row["location"] for row in rows if row["is_garbage"] is is_stray] for is_stray in (False, True))
    return again, strays


def _in_trash(due: DuePlan, locations: list[str], storage: Storage) -> list[str]:
    """Which of some files are in the trash, and not in their places, where a plan is to be carried out to its end."""
    plan = due.plan
    if not plan.is_trash or not locations:
        return []
    trashed = {trash_location(plan, location): location for location in locations}
    found = [trashed[f.location] for f in storage.list(f"{plan.directory}/{FILES}") if f.location in trashed]
    return [location for location in found if due.empties_trash or storage.head(location) is None]


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


def _tell_kept(table: Table, due: DuePlan, trashed: list[str], listener: Listener, *, is_for_good: bool) -> None:
    plan = due.plan
    back = "move them back" if is_for_good else f"run `{restore_command(table, plan.run)}`"
    listener.on(
        Warned(
            f"{counted_doing(len(trashed), 'files', 'are')} in the trash, and the table leads to them again, {trashed[0]!r} "
            "among them: nothing of "
            f"run {plan.run!r} is deleted; if they are missing in their places, {back}, else delete them in "
            f"{plan.directory}/{FILES}"
        )
    )


def _difference(files: pa.Table, fewer: pa.Table) -> list[str]:
    """The locations of files that are in the one and not in the other."""
    mask = pc.is_in(files["location"], value_set=fewer["location"].combine_chunks())
    return list(files.filter(pc.invert(mask))["location"].to_pylist())


def _sum(one: EarlierPlans, other: EarlierPlans) -> EarlierPlans:
    return EarlierPlans(
        finished_count=one.finished_count + other.finished_count,
        emptied_count=one.emptied_count + other.emptied_count,
        kept_count=one.kept_count + other.kept_count,
        failed_count=one.failed_count + other.failed_count,
        problems=one.problems + other.problems,
        may_have_deleted=one.may_have_deleted or other.may_have_deleted,
    )


def finish_begun(
    table: Table,
    spark: SparkSource,
    now_ms: int,
    request: DeletionRequest,
    plan_hash: str,
    listener: Listener,
    runtime: Runtime,
) -> EarlierPlans:
    """Finish the plans of one hash that are not carried out yet, as `finish_earlier` does; no other plan is looked at.

    Returns:
        What came of them; `Earlier()` where there are none.
    """
    directories = [
        directory
        for directory in plan_directories(table.metadata, table.storage)
        if _is_begun(directory, plan_hash, table, now_ms, listener)
    ]
    return finish_plans(directories, table, spark, now_ms, request, listener, runtime)


def _is_begun(directory: str, plan_hash: str, table: Table, now_ms: int, listener: Listener) -> bool:
    due = due_of(directory, table, now_ms, listener)
    return due is not None and due.to_do is ToDo.FINISH and due.plan.hash == plan_hash
