"""The files that plans name.

Where one plan is asked about others, plans and parts that cannot be read are passed over: a damaged plan must not stop all
others. Whoever comes to that plan says so.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError
from icekeep.maintenance.deletion.claims import last_work
from icekeep.maintenance.deletion.garbage import GARBAGE
from icekeep.maintenance.deletion.plans import (
    DeletionPlan,
    PlanPart,
    is_whole_in_trash,
    plan_directories,
    read_part,
    read_plan,
)
from icekeep.planning.spark.source import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys, path_keys
from icekeep.storage.locations import canonical


def plan_files(plan: DeletionPlan, storage: Storage, spark: SparkSource) -> pa.Table | DataFrame:
    """The files of a plan, rows of `garbage.GARBAGE`; raises `InvalidTableError` where a part is not what was written."""
    if plan.files_count <= limits_of(spark).plan_files_count:
        return pa.concat_tables([GARBAGE.empty_table(), *(read_part(part, storage) for part in plan.parts)])
    payloads = [(part, storage) for part in plan.parts]
    return dataframe_from_tasks(started(spark), payloads, _read_part, GARBAGE)


def plan_keys(plan: DeletionPlan, storage: Storage) -> Keys:
    """Path keys of the files of a plan, those of parts left out that cannot be read."""
    keys = [np.empty(0, np.int64)]
    for part in plan.parts:
        with suppress(InvalidTableError):
            keys.append(path_keys(read_part(part, storage)["location"]))
    return np.unique(np.concatenate(keys))


def plans_that_share(plan: DeletionPlan, table: Table) -> list[DeletionPlan]:
    """The other plans of a table that name files of this one, and whose files may lie in their places."""
    others = [*_others_in_place(plan, table)]
    keys = plan_keys(plan, table.storage) if others else np.empty(0, np.int64)
    return [other for other in others if np.isin(keys, plan_keys(other, table.storage)).any()]


def keys_of_others(plan: DeletionPlan, table: Table) -> Keys:
    """Path keys of all files that other plans name, whose files may lie in their places."""
    keys = [plan_keys(other, table.storage) for other in _others_in_place(plan, table)]
    return np.unique(np.concatenate([np.empty(0, np.int64), *keys]))


def plans_with_files_in_place(table: Table) -> Iterator[str]:
    """The directories of plans whose files may lie in their places: all but those whose files are in the trash for certain."""
    storage = table.storage
    for directory in plan_directories(table.metadata, storage):
        if not is_in_trash_for_certain(directory, storage):
            yield directory


def is_in_trash_for_certain(directory: str, storage: Storage) -> bool:
    """Whether all files of a plan are in the trash, and no restore is bringing them back."""
    return is_whole_in_trash(directory, storage) and not last_work(directory, storage).restored_ms


def other_plans(plan: DeletionPlan, directories: Iterable[str], table: Table) -> Iterator[DeletionPlan]:
    """The other plans of a table that can be read, among those of some directories."""
    for directory in directories:
        # The table's location may be spelled in another way by now.
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
