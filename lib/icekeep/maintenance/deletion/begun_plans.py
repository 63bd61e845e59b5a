"""A plan that was given and carried out in part: its run died when files had begun to go, and it is carried out to its end."""

from icekeep.catalog.base import Table
from icekeep.events import Listener
from icekeep.maintenance.deletion.due_plans import ToDo, due_of
from icekeep.maintenance.deletion.earlier_runs import DeletionRequest, Earlier, finish_plans
from icekeep.maintenance.deletion.plans import plan_directories
from icekeep.planning.spark.session import SparkSource
from icekeep.runtime import Runtime


def finish_begun(
    table: Table,
    spark: SparkSource,
    now_ms: int,
    request: DeletionRequest,
    plan_hash: str,
    listener: Listener,
    runtime: Runtime,
) -> Earlier:
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
