"""What earlier runs left to be done: files that wait for their grace to pass, that a crash spared, or whose days in the
trash are over. Each goes only after a fresh mark of everything that the table leads to now.

A plan in `.icekeep/plans/` is there because it is not finished, one in `.icekeep/trash/` until its days are over. A plan
whose snapshots are still in the table was never committed, or its run is at it now: it is left alone, and forgotten when it
is a day old. Two runs may carry out one plan at once.
"""

from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, MissingFileError
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.garbage import GARBAGE
from icekeep.maintenance.deletion.options import DAY_MS, ReclaimOptions
from icekeep.maintenance.deletion.plans import (
    DONE,
    FILES,
    HEAD,
    DeletionPlan,
    PlanPart,
    forget_plan,
    plans_below,
    plans_directory,
    read_part,
    read_plan,
    trash_directory,
    trash_location,
)
from icekeep.maintenance.deletion.reachability import Retained, read_retained, still_garbage
from icekeep.maintenance.deletion.reclaim import Reclaimed, reclaim
from icekeep.maintenance.deletion.territory import Territory
from icekeep.maintenance.deletion.writing import PlanDraft, plan_directory, sort_files, write_plan
from icekeep.planning.sessions import SparkSource, started
from icekeep.planning.tasks import dataframe_from_tasks, streamed
from icekeep.runtime import Runtime
from icekeep.storage.base import Storage


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """What came of plans of earlier runs.

    Attributes:
        finished_count: files of plans that had not been carried out to their end.
        emptied_count: files that were in the trash for long enough.
        kept_count: files of such plans that the table leads to again; they stay where they are.
        failed_count: files that could not be deleted.
    """

    finished_count: int = 0
    emptied_count: int = 0
    kept_count: int = 0
    failed_count: int = 0


_DRIVER_FILES = 200_000


class _Due(msgspec.Struct, frozen=True):
    plan: DeletionPlan
    empties_trash: bool


def finish_earlier(  # noqa: PLR0913 - what a run was told
    table: Table,
    territory: Territory,
    spark: SparkSource,
    now_ms: int,
    *,
    but: str = "",
    options: ReclaimOptions,
    max_concurrent_deletes: int | None,
    trust_totals: bool,
    listener: Listener,
    runtime: Runtime,
) -> Earlier:
    """Do what earlier runs left to be done, and is due; nothing is read where there is none.

    Args:
        table: as it is now.
        now_ms: the earlier of the clocks, epoch milliseconds.
        but: the directory of a plan that the run has just carried out itself.

    Raises:
        SafetyError: not everything that is retained can be read; nothing is deleted.
    """
    due = [one for one in _due_plans(table, now_ms, listener) if one.plan.directory != but]
    if not due:
        return Earlier()
    retained = read_retained(table.metadata, table.metadata_location, table.storage, spark, trust_totals=trust_totals)
    finished = emptied = kept = failed = 0
    for one in due:
        try:
            plan, again_count = _proved(one, retained, table, territory, spark, runtime)
        except MissingFileError:
            # Another run has just finished it.
            continue
        kept += again_count
        if plan is None:
            _tell_kept(one, again_count, listener)
            continue
        if one.empties_trash:
            # From now on nobody can ask for it back.
            table.storage.delete_many([f"{plan.directory}/{HEAD}"])
        done = reclaim(
            plan,
            table,
            territory,
            spark,
            options=options,
            max_concurrent_deletes=max_concurrent_deletes,
            listener=listener,
            runtime=runtime,
            empties_trash=one.empties_trash,
        )
        failed += done.failed_count
        if one.empties_trash:
            emptied += done.deleted_count
        else:
            finished += done.deleted_count
        settle_plan(plan, done, table.storage, is_emptied=one.empties_trash)
    return Earlier(finished_count=finished, emptied_count=emptied, kept_count=kept, failed_count=failed)


def _tell_kept(due: _Due, again_count: int, listener: Listener) -> None:
    if due.empties_trash:
        listener.on(
            Warned(
                f"{again_count} files of {due.plan.directory!r} are in use again and in the trash: all of it stays; see whether "
                "`icekeep restore` should bring it back, or remove it"
            )
        )


def settle_plan(plan: DeletionPlan, done: Reclaimed, storage: Storage, *, is_emptied: bool = False) -> None:
    """After a plan was carried out: forget it, or mark it as the ledger of what is in the trash; keep it where files failed."""
    if done.failed_count and not is_emptied:
        return
    if plan.is_trash and not is_emptied and done.deleted_count + done.missing_count:
        _mark_done(plan, storage)
        return
    forget_plan(plan, storage)


def _mark_done(plan: DeletionPlan, storage: Storage) -> None:
    with suppress(FileExistsError):
        storage.create(f"{plan.directory}/{DONE}", b"{}")


def _due_plans(table: Table, now_ms: int, listener: Listener) -> Iterator[_Due]:
    storage, metadata = table.storage, table.metadata
    for above in (plans_directory(metadata), trash_directory(metadata)):
        for directory in plans_below(above, storage):
            try:
                plan = read_plan(directory, storage)
            except MissingFileError:
                continue
            except IcekeepError as error:
                listener.on(Warned(f"{error.message}; look at it and remove {directory!r}"))
                continue
            if plan.table_uuid != metadata.table_uuid:
                listener.on(Warned(f"plan {directory!r} is of another table; look at it and remove it"))
                continue
            if not is_committed(plan, table):
                if now_ms - plan.created_ms > DAY_MS and not any(storage.list(f"{directory}/{FILES}")):
                    forget_plan(plan, storage)
                continue
            is_done = plan.is_trash and storage.head(f"{directory}/{DONE}") is not None
            if not is_done and plan.not_before_ms <= now_ms:
                yield _Due(plan, empties_trash=False)
            if is_done and plan.trash_until_ms is not None and plan.trash_until_ms <= now_ms:
                yield _Due(plan, empties_trash=True)


def is_committed(plan: DeletionPlan, table: Table) -> bool:
    """Whether all snapshots are gone that were to go with a plan's files; they may have come back since."""
    return not table.metadata.snapshots_by_id.keys() & set(plan.snapshot_ids)


def _proved(
    due: _Due, retained: Retained, table: Table, territory: Territory, spark: SparkSource, runtime: Runtime
) -> tuple[DeletionPlan | None, int]:
    """What of a plan is garbage by the newest metadata, as a plan; and how many of its files are in use again."""
    plan, storage = due.plan, table.storage
    files = _files(plan, storage, spark)
    garbage = still_garbage(files, retained, storage, spark)
    found = sort_files(garbage, territory, None, storage)
    again_count = plan.files_count - sum(f.files_count for f in found.files)
    if not again_count:
        return plan, 0
    if due.empties_trash:
        in_trash = (storage.head(trash_location(plan, location)) for location in _difference(files, garbage))
        # What is in use and was never moved has nothing to do with what is in the trash.
        return (None if any(in_trash) else plan), again_count
    rest = None
    if found.parts:
        draft = PlanDraft(
            job=plan.job,
            run=str(runtime.new_uuid()),
            not_before_ms=plan.not_before_ms,
            trash_until_ms=plan.trash_until_ms,
        )
        rest = write_plan(sort_files(garbage, territory, plan_directory(table, draft), storage), draft, table, runtime)
    # What it has moved already waits for its day; else nothing is left of it to be done.
    if any(storage.list(f"{plan.directory}/{FILES}")):
        _mark_done(plan, storage)
    else:
        forget_plan(plan, storage)
    return rest, again_count


def _difference(files: pa.Table | DataFrame, fewer: pa.Table | DataFrame) -> list[str]:
    """The locations of files that are in the one and not in the other."""
    if isinstance(files, pa.Table) and isinstance(fewer, pa.Table):
        mask = pc.is_in(files["location"], value_set=fewer["location"].combine_chunks())
        return list(files.filter(pc.invert(mask))["location"].to_pylist())
    assert not isinstance(files, pa.Table)
    assert not isinstance(fewer, pa.Table)
    rows = files.select("location").join(fewer.select("location"), on="location", how="left_anti")
    return [row["location"] for row in streamed(rows)]


def _files(plan: DeletionPlan, storage: Storage, spark: SparkSource) -> pa.Table | DataFrame:
    if plan.files_count <= _DRIVER_FILES:
        return pa.concat_tables([GARBAGE.empty_table(), *(read_part(part, storage) for part in plan.parts)])
    payloads = [(part, storage) for part in plan.parts]
    return dataframe_from_tasks(started(spark), payloads, _read_part, GARBAGE)


def _read_part(payload: tuple[PlanPart, Storage]) -> Iterator[pa.RecordBatch]:
    yield from read_part(*payload).to_batches()
