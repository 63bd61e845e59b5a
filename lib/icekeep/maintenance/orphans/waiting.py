"""Files that plans of other runs name, and that lie where they belong: they are not orphans yet, though nothing leads to them.

An expiration with a grace leaves its files in their places, so that its snapshots can come back; what cannot be moved to the
trash waits as well; and `restore` moves files back before the commit that names them. Each has a plan that says so.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError, SafetyError
from icekeep.maintenance.deletion.named_files import part_paths, plans_with_files_in_place
from icekeep.maintenance.deletion.path_set import PathSet, union
from icekeep.maintenance.deletion.plans import DeletionPlan, PlanPart, read_plan
from icekeep.maintenance.orphans.kept_rows import RowKeeper
from icekeep.maintenance.orphans.listing import LISTED, Rows
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.planning.spark.workers import SHUFFLED_KEYS, tasks_count
from icekeep.storage.base import Storage
from icekeep.storage.many import REQUESTS_AT_ONCE

_KEYS = pa.schema([pa.field("path_key", pa.int64(), nullable=False)])


def without_waiting(
    files: Rows, files_count: int, table: Table, spark: SparkSource, keeper: RowKeeper
) -> tuple[Rows, int]:
    """Listed files without those that a plan of another run names, and how many these are.

    Args:
        files: rows of `LISTED`; there are `files_count`.
        keeper: keeps what tasks find.

    Raises:
        SafetyError: a plan cannot be read, so that it is not known what it names.
    """
    if not files_count:
        return files, 0
    parts = [part for plan in _plans(table) for part in plan.parts]
    planned_count = sum(part.files_count for part in parts)
    if isinstance(files, pa.Table) and planned_count <= limits_of(spark).plan_files_count:
        return _without(files, _paths_of(parts, table.storage))
    session = started(spark)
    if isinstance(files, pa.Table):
        # Few listed files and long plans: the tasks tell which of the few they name.
        wanted = PathSet.of_keys(files["path_key"].to_numpy())
        tasks = [(part, table.storage, wanted) for part in parts]
        named = arrow_table(dataframe_from_tasks(session, tasks, _read_wanted, _KEYS), "reading other plans")[
            "path_key"
        ]
        return _without(files, PathSet.of_keys(named.to_numpy()))
    if not parts:
        return files, 0
    bins_count = tasks_count(session, files_count + planned_count, SHUFFLED_KEYS, a_slot=2)
    keys_of_plans = dataframe_from_tasks(session, [(part, table.storage, None) for part in parts], _read_wanted, _KEYS)
    left = files.repartition(bins_count, "path_key").join(
        keys_of_plans.repartition(bins_count, "path_key"), on="path_key", how="left_anti"
    )
    kept = keeper.keep(left.select(*LISTED.names), LISTED, "free", "leaving out files that other plans name")
    return kept.frame(session), files_count - kept.rows_count


def _without(files: pa.Table, waiting: PathSet) -> tuple[pa.Table, int]:
    is_waiting = waiting.mask_of_keys(files["path_key"].to_numpy())
    return files.filter(pa.array(~is_waiting, pa.bool_())), int(np.count_nonzero(is_waiting))


def _plans(table: Table) -> Iterator[DeletionPlan]:
    """The plans whose files may lie in their places; fails closed where one cannot be read."""
    for directory in plans_with_files_in_place(table):
        try:
            yield read_plan(directory, table.storage)
        except MissingFileError:
            # Its run has just finished it.
            continue
        except InvalidTableError as error:
            raise SafetyError(
                f"{error.message}; files that it names would look like orphans, so nothing is deleted; look at it, and "
                f"remove {directory!r} if nobody needs it",
                location=directory,
            ) from error


def _paths_of(parts: list[PlanPart], storage: Storage) -> PathSet:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return union(pool.map(lambda part: _read(part, storage), parts))


def _read(part: PlanPart, storage: Storage) -> PathSet:
    try:
        # Of a part that is gone the files are gone as well, or metadata leads to them.
        return part_paths(part, storage)
    except InvalidTableError as error:
        raise SafetyError(
            f"{error.message}; files that it names would look like orphans, so nothing is deleted"
        ) from error


def _read_wanted(task: tuple[PlanPart, Storage, PathSet | None]) -> Iterator[pa.RecordBatch]:
    part, storage, wanted = task
    found = _read(part, storage)
    named = found if wanted is None else found & wanted
    yield pa.record_batch([pa.array(named.keys, pa.int64())], schema=_KEYS)
