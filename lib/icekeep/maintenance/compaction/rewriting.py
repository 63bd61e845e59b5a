"""Tasks of a rewrite: each attempt names its files by itself, and only those of the attempt that won are told."""

from collections.abc import Callable, Sequence

import msgspec

from icekeep.errors import IcekeepError
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import RewriteOutcome, RewriteTask
from icekeep.maintenance.compaction.stitched import StitchTask, run_stitch
from icekeep.planning.spark.session import task_context
from icekeep.planning.spark.tasks import run_tasks
from icekeep.planning.spark.workers import Workers, attempt_id, in_turns
from icekeep.runtime import process_cpu_ms, thread_cpu_ms
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
"""What a task does; several tasks of a rewrite that differ in their ranges of keys alone read their files once."""


def rewritten(workers: Workers, storage: Storage, tasks: Sequence[Task]) -> Ran:
    """Run tasks side by side; in Spark, as one job."""
    work = in_turns(run_task, workers, _threads_count)
    done, errors = run_tasks(workers.spark, tasks, work, storage, threads=workers.slots)
    return Ran(done, errors)


def _threads_count(task: Task) -> int:
    """A task of several ranges has a thread for each."""
    return len(task) if isinstance(task, tuple) else 1


def _timed(work: Callable[[], RewriteOutcome], *, is_alone: bool) -> Done:
    """Do the work of a task and say what it cost; `is_alone`: whether nothing else runs in this process meanwhile."""
    cpu_ms = process_cpu_ms if is_alone else thread_cpu_ms
    began_ms = cpu_ms()
    outcome = work()
    return Done(outcome, cpu_ms() - began_ms)


def run_task(task: Task, storage: Storage) -> Done:
    """Do a task, with a number of this attempt in the names of its files."""

    def rewrite_task() -> RewriteOutcome:
        if isinstance(task, StitchTask):
            return run_stitch(msgspec.structs.replace(task, rewrite=_named(task.rewrite)), storage)
        if isinstance(task, tuple):
            return rewrite_together([*map(_named, task)], storage)
        return rewrite(_named(task), storage)

    return _timed(rewrite_task, is_alone=isinstance(task, tuple) or task_context() is not None)


def _named(task: RewriteTask) -> RewriteTask:
    return msgspec.structs.replace(task, task_attempt_id=attempt_id())
