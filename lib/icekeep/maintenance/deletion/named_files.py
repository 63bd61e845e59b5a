"""The files that plans name, and which of them other plans keep: what two plans name stays for as long as either says.

A snapshot that came back and expired again is in the plans of both runs, and so is a file that was adopted in between. The
plan that is due first would delete for good what the other one keeps, so that it can come back.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.maintenance.deletion.claims import RESTORE, last_job
from icekeep.maintenance.deletion.garbage import GARBAGE
from icekeep.maintenance.deletion.plans import (
    DONE,
    DeletionPlan,
    PlanPart,
    is_committed,
    plans_below,
    plans_directory,
    read_part,
    read_plan,
    trash_directory,
)
from icekeep.planning.location_keys import Keys, path_keys
from icekeep.planning.sessions import SparkSource, started
from icekeep.planning.tasks import dataframe_from_tasks
from icekeep.storage.base import Storage

_DRIVER_FILES = 200_000


def plan_files(plan: DeletionPlan, storage: Storage, spark: SparkSource) -> pa.Table | DataFrame:
    """The files of a plan, rows of `garbage.GARBAGE`; raises `InvalidTableError` where a part is not what was written."""
    if plan.files_count <= _DRIVER_FILES:
        return pa.concat_tables([GARBAGE.empty_table(), *(read_part(part, storage) for part in plan.parts)])
    payloads = [(part, storage) for part in plan.parts]
    return dataframe_from_tasks(started(spark), payloads, _read_part, GARBAGE)


def keys_kept_by_others(plan: DeletionPlan, table: Table, now_ms: int) -> Keys:
    """Path keys of the files that other plans of a table keep for longer than now, or until they are in the trash.

    A plan that cannot be read keeps nothing here; whoever comes to it says so.
    """
    keeping = (
        other
        for other in other_plans(plan, table)
        if (other.is_trash or other.not_before_ms > now_ms) and is_committed(other, table.metadata)
    )
    return _keys_of(keeping, table.storage)


def plans_that_share(plan: DeletionPlan, table: Table) -> list[DeletionPlan]:
    """The other plans of a table that name files of this one, and whose files may lie in their places."""
    keys = _keys_of([plan], table.storage)
    return [
        other
        for other in other_plans(plan, table)
        if any(np.isin(some, keys).any() for some in _keys(other, table.storage))
    ]


def keys_of_others(plan: DeletionPlan, table: Table) -> Keys:
    """Path keys of all files that other plans name, whose files may lie in their places."""
    return _keys_of(other_plans(plan, table), table.storage)


def other_plans(plan: DeletionPlan, table: Table) -> Iterator[DeletionPlan]:
    """The other plans of a table that can be read, but for those whose files are in the trash for certain."""
    for directory in directories_in_place(table, but=plan.directory):
        try:
            other = read_plan(directory, table.storage)
        except (MissingFileError, InvalidTableError):
            continue
        if other.table_uuid == plan.table_uuid:
            yield other


def directories_in_place(table: Table, but: str = "") -> Iterator[str]:
    """The directories of plans whose files may lie in their places: all but those whose files are in the trash for certain."""
    storage = table.storage
    for above in (plans_directory(table.metadata), trash_directory(table.metadata)):
        for directory in plans_below(above, storage):
            if directory == but:
                continue
            is_in_trash = storage.head(f"{directory}/{DONE}") is not None
            if not is_in_trash or last_job(directory, storage)[0] == RESTORE:
                yield directory


def _keys_of(plans: Iterable[DeletionPlan], storage: Storage) -> Keys:
    keys = [some for plan in plans for some in _keys(plan, storage)]
    return np.unique(np.concatenate([np.empty(0, np.int64), *keys]))


def _keys(plan: DeletionPlan, storage: Storage) -> Iterator[Keys]:
    for part in plan.parts:
        try:
            yield path_keys(read_part(part, storage)["location"])
        except (MissingFileError, InvalidTableError):
            continue


def _read_part(payload: tuple[PlanPart, Storage]) -> Iterator[pa.RecordBatch]:
    yield from read_part(*payload).to_batches()
