"""What earlier runs left to be done: files that wait for their grace to pass, that a crash spared, or whose days in the
trash are over. Each goes only after a fresh mark of everything that the table leads to now.

A plan in `.icekeep/plans/` is there because it is not finished, one in `.icekeep/trash/` until its days are over. A plan
whose snapshots are still in the table was never committed, or its run is at it now: it is left alone, and forgotten when it
is a day old. So is a plan that another run has claimed.
"""

from enum import Enum

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from icekeep.catalog.base import Table
from icekeep.errors import ClaimedError, IcekeepError, InvalidTableError, MissingFileError
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.claims import Claim, last_work, released, take_claim
from icekeep.maintenance.deletion.keeping import (
    LookBesideOthers,
    days_in_trash_end_ms,
    done_file,
    kept_by_others,
    kept_in_trash,
    restore_ends_ms,
)
from icekeep.maintenance.deletion.looks import TableLook
from icekeep.maintenance.deletion.named_files import plan_files
from icekeep.maintenance.deletion.options import ReclaimOptions
from icekeep.maintenance.deletion.plans import (
    FILES,
    DeletionPlan,
    forget_plan,
    is_committed,
    is_forgotten,
    mark_done,
    mark_undone,
    plan_directories,
    read_plan,
    trash_location,
)
from icekeep.maintenance.deletion.reachability import Retained, path_keys_of, read_retained, still_garbage
from icekeep.maintenance.deletion.reclaim import Reclaimed, reclaim
from icekeep.maintenance.deletion.territory import Territory, territory
from icekeep.maintenance.deletion.writing import ClassifiedGarbage, PlanDraft, write_plan
from icekeep.planning.spark.source import SparkSource
from icekeep.planning.spark.tasks import streamed
from icekeep.runtime import Runtime
from icekeep.spec.units import DAY_MS
from icekeep.storage.base import Storage

_FINISHING = "a run that finishes what earlier ones left"


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """What came of plans of earlier runs.

    Attributes:
        finished_count: files of plans that had not been carried out to their end.
        emptied_count: files that were in the trash for long enough.
        kept_count: files of such plans that the table leads to again, or that another plan keeps; they stay.
        failed_count: files that could not be deleted.
        problems: why plans that are due were not carried out to their end; the next run tries again.
    """

    finished_count: int = 0
    emptied_count: int = 0
    kept_count: int = 0
    failed_count: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing that is due is left."""
        return not self.failed_count and not self.problems


class _ToDo(Enum):
    """What is to be done with a plan that is due."""

    FINISH = "finish"
    EMPTY_TRASH = "empty the trash"
    FORGET = "forget"


class _Due(msgspec.Struct, frozen=True):
    plan: DeletionPlan
    to_do: _ToDo

    @property
    def empties_trash(self) -> bool:
        return self.to_do is _ToDo.EMPTY_TRASH


class DeletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was told about deletion.

    Attributes:
        skips_trash: the operator wants files to go at once, also those of plans that wait to be moved to the trash.
        other_places: directories of other tables inside this one's, whose files are theirs.
    """

    options: ReclaimOptions
    max_concurrent_deletes: int | None
    trust_totals: bool
    skips_trash: bool = False
    other_places: tuple[str, ...] = ()


def finish_earlier(
    table: Table,
    spark: SparkSource,
    now_ms: int,
    request: DeletionRequest,
    *,
    but: str = "",
    listener: Listener,
    runtime: Runtime,
) -> Earlier:
    """Do what earlier runs left to be done, and is due; nothing is read where there is none.

    What stands in the way of a plan is told to the listener and in the result; the others are carried out. Each is claimed
    first, and proved on the table as it is after that.

    Args:
        table: as it is now.
        now_ms: the earlier of the clocks, epoch milliseconds.
        but: the directory of a plan that the run has just carried out itself.
    """
    proofs = _Proofs(table, spark, now_ms, trust_totals=request.trust_totals)
    total = Earlier()
    problems: list[str] = []
    for directory in plan_directories(table.metadata, table.storage):
        if directory == but:
            continue
        try:
            total = _sum(total, _finish(directory, proofs, spark, now_ms, request, listener, runtime))
        except IcekeepError as error:
            problems.append(f"plan {directory!r} is not carried out: {error.message}")
            listener.on(Warned(problems[-1]))
    return msgspec.structs.replace(total, problems=(*total.problems, *problems))


def settle_plan(
    plan: DeletionPlan,
    claim: Claim,
    done: Reclaimed,
    table: Table,
    runtime: Runtime,
    listener: Listener,
    *,
    is_emptied: bool = False,
) -> None:
    """After a plan was carried out: forget it, or mark it as the ledger of what is in the trash; keep it where files failed.

    What could not be moved to the trash waits in its place, by a plan of its own. Where another run has taken the plan over,
    all that is left to that.
    """
    if done.stopped or done.failed_count or (done.kept_count and is_emptied):
        return
    try:
        claim.check(table.storage, runtime)
    except ClaimedError as error:
        listener.on(Warned(error.message))
        return
    if done.unmoved:
        _write_unmoved(plan, done, table, runtime, listener)
    absent_count = done.missing_count + done.kept_count + done.unmoved_count
    has_moved = done.deleted_count + done.missing_count + done.unmoved_count or _holds_files(plan, table.storage)
    if plan.is_trash and not is_emptied and has_moved:
        mark_done(plan, absent_count, table.storage)
        return
    forget_plan(plan, table.storage)


class _Proofs:
    """The table as it is, and what it retains, read anew where it has moved on."""

    def __init__(self, table: Table, spark: SparkSource, now_ms: int, *, trust_totals: bool) -> None:
        self.table, self.now_ms = table, now_ms
        self._spark, self._trust_totals = spark, trust_totals
        self._retained: Retained | None = None

    def load(self) -> Table:
        """The table as it is now."""
        now = self.table.catalog.load(self.table.identifier)
        if now.metadata_location != self.table.metadata_location:
            self._retained = None
        self.table = now
        return now

    def retained(self) -> Retained:
        """What the table retained when it was loaded last.

        Raises:
            SafetyError: not everything of it can be read.
        """
        if self._retained is None:
            table = self.table
            self._retained = read_retained(
                table.metadata, table.metadata_location, table.storage, self._spark, trust_totals=self._trust_totals
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
) -> Earlier:
    """One plan, if it is due and nobody is at it."""
    storage = proofs.table.storage
    if _due(directory, proofs.table, now_ms, listener) is None:
        return Earlier()
    try:
        claim = take_claim(directory, _FINISHING, storage, runtime, now_ms)
    except ClaimedError as error:
        listener.on(Warned(f"what an earlier run left is not finished now: {error.message}"))
        return Earlier()
    with released(claim, storage, runtime):
        # Another run may have finished it, or an operator taken it back, since it was looked at.
        due = _due(directory, proofs.load(), now_ms, listener)
        if due is None:
            return Earlier()
        if due.to_do is _ToDo.FORGET:
            forget_plan(due.plan, storage)
            return Earlier()
        return _carried_out(due, claim, proofs, spark, request, listener, runtime)


def _due(directory: str, table: Table, now_ms: int, listener: Listener) -> _Due | None:
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
        if _holds_files(plan, storage):
            listener.on(
                Warned(f"snapshots are back whose files are in {directory!r}; run `icekeep restore --run {plan.run}`")
            )
            return None
        return _Due(plan, _ToDo.FORGET)
    if is_forgotten(plan, storage):
        return _Due(plan, _ToDo.FORGET)
    work = last_work(directory, storage)
    done = done_file(plan, work, storage)
    if restore_ends_ms(plan, work) > now_ms:
        return None
    if done is None:
        return _Due(plan, _ToDo.FINISH) if plan.not_before_ms <= now_ms else None
    return _Due(plan, _ToDo.EMPTY_TRASH) if days_in_trash_end_ms(plan, done) <= now_ms else None


def _carried_out(
    due: _Due,
    claim: Claim,
    proofs: _Proofs,
    spark: SparkSource,
    request: DeletionRequest,
    listener: Listener,
    runtime: Runtime,
) -> Earlier:
    table, plan = proofs.table, due.plan
    if due.empties_trash:
        kept = kept_in_trash(plan, table, proofs.now_ms)
    else:
        kept = kept_by_others(plan, table, proofs.now_ms, skips_trash=request.skips_trash)
    if kept.reason:
        listener.on(Warned(f"plan {plan.directory!r} is not carried out yet: {kept.reason}"))
        return Earlier()
    places = territory(table.metadata, (*plan.roots, *request.options.roots), request.other_places)
    retained = proofs.retained()
    again, strays = _staying(due, retained, table, places, spark)
    trashed = _in_trash(due, again, table.storage)
    if trashed:
        _tell_kept(due, claim, trashed, listener)
        return Earlier(kept_count=len(again))
    if strays:
        listener.on(
            Warned(
                f"{len(strays)} files of plan {plan.directory!r} lie outside the places of table {table.name!r} by now, "
                f"{strays[0]!r} among them: they stay, and icekeep does not look for them any more"
            )
        )
    if plan.is_trash and not due.empties_trash:
        claim.check(table.storage, runtime)
        mark_undone(plan, table.storage)
    # By now it is proved that nothing came back.
    claim.restored_ms = 0
    look = TableLook(table, retained.manifest_keys, spark, trust_totals=request.trust_totals)
    beside = LookBesideOthers(
        look,
        plan,
        table,
        np.union1d(path_keys_of([*again, *strays]), kept.keys),
        proofs.now_ms,
        skips_trash=request.skips_trash,
    )
    goes_at_once = request.skips_trash and plan.is_trash and not due.empties_trash
    done = reclaim(
        msgspec.structs.replace(plan, trash_until_ms=None) if goes_at_once else plan,
        claim,
        # What is in use and was never moved has nothing to do with what is in the trash.
        look if due.empties_trash else beside,
        table,
        places,
        spark,
        options=request.options,
        max_concurrent_deletes=request.max_concurrent_deletes,
        listener=listener,
        runtime=runtime,
        empties_trash=due.empties_trash,
    )
    if goes_at_once and done.is_complete:
        _end(plan, table.storage)
    else:
        settle_plan(plan, claim, done, table, runtime, listener, is_emptied=due.empties_trash)
    return Earlier(
        finished_count=0 if due.empties_trash else done.deleted_count,
        emptied_count=done.deleted_count if due.empties_trash else 0,
        kept_count=done.kept_count,
        failed_count=done.failed_count,
        problems=(done.stopped,) if done.stopped else (),
    )


def _staying(
    due: _Due, retained: Retained, table: Table, places: Territory, spark: SparkSource
) -> tuple[list[str], list[str]]:
    """The files of a plan that are no garbage by the newest metadata, and those that lie outside the table's places by now.

    Where a file is in the trash says the plan alone, so none of these lies outside.
    """
    files = plan_files(due.plan, table.storage, spark)
    garbage = still_garbage(files, retained, table.storage, spark)
    strays = [] if due.empties_trash else _difference(garbage, _inside(garbage, places))
    return _difference(files, garbage), strays


def _in_trash(due: _Due, locations: list[str], storage: Storage) -> list[str]:
    """Which of some files are in the trash, and not in their places, where a plan is to be carried out to its end."""
    plan = due.plan
    if not plan.is_trash or not locations:
        return []
    trashed = {trash_location(plan, location): location for location in locations}
    found = [trashed[f.location] for f in storage.list(f"{plan.directory}/{FILES}") if f.location in trashed]
    return [location for location in found if due.empties_trash or storage.head(location) is None]


def _inside(files: pa.Table | DataFrame, places: Territory) -> pa.Table | DataFrame:
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pa.array(places.mask(batch["location"]), pa.bool_()))

    if isinstance(files, pa.Table):
        return pa.Table.from_batches(map(keep, files.to_batches()), files.schema)
    return files.mapInArrow(lambda batches: map(keep, batches), files.schema)


def _end(plan: DeletionPlan, storage: Storage) -> None:
    """Nothing is left to be done of a plan; what it has moved already waits for its day."""
    if _holds_files(plan, storage):
        mark_done(plan, plan.files_count, storage)
    else:
        forget_plan(plan, storage)


def _holds_files(plan: DeletionPlan, storage: Storage) -> bool:
    return any(storage.list(f"{plan.directory}/{FILES}"))


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
            f"{count} files cannot be moved to the trash, which is in another store, bucket or mount: they stay where they are "
            f"for as long, and are deleted then ({directory!r})"
        )
    )


def _tell_kept(due: _Due, claim: Claim, trashed: list[str], listener: Listener) -> None:
    plan = due.plan
    back = "move them back" if claim.deletes else f"run `icekeep restore --run {plan.run}`"
    listener.on(
        Warned(
            f"{len(trashed)} files are in the trash, and the table leads to them again, {trashed[0]!r} among them: nothing of "
            f"run {plan.run!r} is deleted; if they are missing in their places, {back}, else delete them in "
            f"{plan.directory}/{FILES}"
        )
    )


def _difference(files: pa.Table | DataFrame, fewer: pa.Table | DataFrame) -> list[str]:
    """The locations of files that are in the one and not in the other."""
    if isinstance(files, pa.Table) and isinstance(fewer, pa.Table):
        mask = pc.is_in(files["location"], value_set=fewer["location"].combine_chunks())
        return list(files.filter(pc.invert(mask))["location"].to_pylist())
    assert not isinstance(files, pa.Table)
    assert not isinstance(fewer, pa.Table)
    rows = files.select("location").join(fewer.select("location"), on="location", how="left_anti")
    return [row["location"] for row in streamed(rows)]


def _sum(one: Earlier, other: Earlier) -> Earlier:
    return Earlier(
        finished_count=one.finished_count + other.finished_count,
        emptied_count=one.emptied_count + other.emptied_count,
        kept_count=one.kept_count + other.kept_count,
        failed_count=one.failed_count + other.failed_count,
        problems=one.problems + other.problems,
    )
