"""The files that plans name.

Where one plan is asked about others, plans and parts that cannot be read are passed over: a damaged plan must not stop all
others. Whoever comes to that plan says so.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.maintenance.deletion.claims import LastWork, last_work
from icekeep.maintenance.deletion.file_kinds import GARBAGE
from icekeep.maintenance.deletion.path_set import NO_PATHS, PathSet, union
from icekeep.maintenance.deletion.plans import (
    DeletionPlan,
    PlanPart,
    is_whole_in_trash,
    plan_directories,
    read_part,
    read_plan,
)
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_files(plan: DeletionPlan, storage: Storage, spark: SparkSource) -> "pa.Table | DataFrame":
    """The files of a plan, rows of `file_kinds.GARBAGE`; raises `InvalidTableError` where a part is not what was written."""
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
    found = []
    for part in plan.parts:
        with suppress(InvalidTableError):
            found.append(part_paths(part, storage))
    return union(found)


def plans_that_share(plan: DeletionPlan, table: Table) -> list[DeletionPlan]:
    """The other plans of a table that name files of this one, and whose files may lie in their places."""
    others = [*_others_in_place(plan, table)]
    own = plan_paths(plan, table.storage) if others else NO_PATHS
    return [other for other in others if own & plan_paths(other, table.storage)]


def paths_of_others(plan: DeletionPlan, table: Table) -> PathSet:
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
    return not work.restored_ms and is_whole_in_trash(directory, storage)


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
