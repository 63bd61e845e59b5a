"""Tasks of a rewrite in Spark: each attempt names its files by itself, and only those of the attempt that won are told."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from icekeep.errors import IcekeepError
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import RewriteOutcome, RewriteTask
from icekeep.maintenance.compaction.stitched import StitchTask, run_stitch
from icekeep.planning.spark.tasks import (
    REPORT,
    attempt_id,
    dataframe_from_tasks,
    max_task_failures,
    read_reports,
    reported,
)
from icekeep.runtime import process_cpu_ms
from icekeep.storage.base import Storage


class Done(msgspec.Struct, frozen=True):
    """What a task did, and the processor time that it took, milliseconds."""

    outcome: RewriteOutcome
    cpu_ms: int


class Ran(msgspec.Struct, frozen=True):
    """The tasks that succeeded, and the errors of those that did not."""

    done: Sequence[Done]
    errors: Sequence[IcekeepError] = ()


Task = RewriteTask | StitchTask | tuple[RewriteTask, ...]
"""What a Spark task does; several tasks of a rewrite that differ in their ranges of keys alone read their files once."""


class _Work(msgspec.Struct, frozen=True):
    task: Task
    storage: Storage
    max_failures: int


def run_tasks(spark: SparkSession, storage: Storage, tasks: Sequence[Task]) -> Ran:
    """Run tasks side by side, as one Spark job."""
    tries = max_task_failures(spark)
    work = [_Work(task, storage, tries) for task in tasks]
    done, errors = read_reports(dataframe_from_tasks(spark, work, _run, REPORT))
    return Ran(done, errors)


def timed(work: Callable[[], RewriteOutcome]) -> Done:
    """Do the work of a task and say what it cost."""
    began_ms = process_cpu_ms()
    outcome = work()
    return Done(outcome, process_cpu_ms() - began_ms)


def _run(work: _Work) -> Iterator[pa.RecordBatch]:
    def rewritten() -> RewriteOutcome:
        task: Any = work.task
        if isinstance(task, StitchTask):
            return run_stitch(msgspec.structs.replace(task, rewrite=_named(task.rewrite)), work.storage)
        if isinstance(task, tuple):
            return rewrite_together([*map(_named, task)], work.storage)
        return rewrite(_named(task), work.storage)

    yield reported(lambda: timed(rewritten), work.max_failures)


def _named(task: RewriteTask) -> RewriteTask:
    return msgspec.structs.replace(task, task_attempt_id=attempt_id())
