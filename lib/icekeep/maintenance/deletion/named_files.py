"""The files that plans name, and of two plans that name one file the younger, which decides: it stays for that one's days.

A snapshot that came back and expired again is in the plans of both runs, and so is a file that was adopted in between. The
older plan would delete for good what the younger one keeps, so that it can come back.
"""

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from icekeep.catalog.base import Table
from icekeep.errors import MissingFileError
from icekeep.maintenance.deletion.garbage import GARBAGE
from icekeep.maintenance.deletion.plans import (
    DeletionPlan,
    PlanPart,
    is_committed,
    plans_below,
    plans_directory,
    read_part,
    read_plan,
    trash_directory,
)
from icekeep.planning.sessions import SparkSource, started
from icekeep.planning.tasks import arrow_dataframe, dataframe_from_tasks
from icekeep.storage.base import Storage

_DRIVER_FILES = 200_000


def plan_files(plan: DeletionPlan, storage: Storage, spark: SparkSource) -> pa.Table | DataFrame:
    """The files of a plan, rows of `garbage.GARBAGE`.

    Raises:
        MissingFileError: a part of it is gone, since another run has just finished it.
        InvalidTableError: a part is not what was written.
    """
    if plan.files_count <= _DRIVER_FILES:
        return pa.concat_tables([GARBAGE.empty_table(), *(read_part(part, storage) for part in plan.parts)])
    payloads = [(part, storage) for part in plan.parts]
    return dataframe_from_tasks(started(spark), payloads, _read_part, GARBAGE)


def _read_part(payload: tuple[PlanPart, Storage]) -> Iterator[pa.RecordBatch]:
    yield from read_part(*payload).to_batches()


def without_younger(
    garbage: pa.Table | DataFrame, plan: DeletionPlan, table: Table, spark: SparkSource
) -> pa.Table | DataFrame:
    """The garbage of a plan without what a younger plan names, rows of `garbage.GARBAGE`.

    Raises:
        InvalidTableError: a plan cannot be read, so that it is not known what it names.
    """
    for younger in _younger(plan, table):
        try:
            named = plan_files(younger, table.storage, spark)
        except MissingFileError:
            continue
        if isinstance(garbage, pa.Table) and isinstance(named, pa.Table):
            is_named = pc.is_in(garbage["location"], value_set=named["location"].combine_chunks())
            garbage = garbage.filter(pc.invert(is_named))
            continue
        session = started(spark)
        rows = arrow_dataframe(session, garbage) if isinstance(garbage, pa.Table) else garbage
        names = arrow_dataframe(session, named) if isinstance(named, pa.Table) else named
        left = rows.join(names.select("location"), on="location", how="left_anti").select(*GARBAGE.names)
        garbage = left.toArrow().cast(GARBAGE) if isinstance(garbage, pa.Table) else left
    return garbage


def _younger(plan: DeletionPlan, table: Table) -> list[DeletionPlan]:
    found = []
    for above in (plans_directory(table.metadata), trash_directory(table.metadata)):
        for directory in plans_below(above, table.storage):
            # Where there is no head its run has just finished it.
            with suppress(MissingFileError):
                found.append(read_plan(directory, table.storage))
    # What was not committed yet may never be.
    return [other for other in found if other.created_ms > plan.created_ms and is_committed(other, table.metadata)]
