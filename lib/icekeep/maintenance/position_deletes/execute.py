"""Groups of delete files -> new delete files or vectors; small groups on the driver, others in Spark tasks.

Nothing is committed here. A group either comes back with all its new files, or none of them is left.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from functools import partial

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.log_context import log_context
from icekeep.commit.changes.deletes import AddedDeletes, NamedFile
from icekeep.errors import IcekeepError, InvalidTableError
from icekeep.events import Listener, StepAdvanced
from icekeep.formats.deletes.positions import DeletesOutcome, rewrite_deletes
from icekeep.maintenance.groups.commits import FailedGroup, of_partition
from icekeep.maintenance.groups.one_job import TASKS_A_JOB, Answered, groups_at_once, in_one_job, jobs_of
from icekeep.maintenance.groups.side_by_side import side_by_side, told
from icekeep.maintenance.position_deletes.plan import DeleteGroup
from icekeep.maintenance.position_deletes.tasks import RangeTask, TaskContext, deletes_tasks
from icekeep.maintenance.runs.written_files import WrittenFiles
from icekeep.planning.spark.jobs import described
from icekeep.planning.spark.session import Limits
from icekeep.planning.spark.tasks import finished_tasks
from icekeep.planning.spark.workers import Workers, attempt_id, in_turns
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.reach import PathDigest, sequence_number
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.stopping import stopping

_LOG = logging.getLogger(__name__)

STEP = "rewriting delete files"


class RewrittenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group and the files that hold its rows now; see `DeletesOutcome` for the fields of that name."""

    group: DeleteGroup
    added: tuple[DataFile, ...]
    named: Mapping[PathDigest, NamedFile]
    dangling_count: int = 0
    replaced_count: int = 0

    @property
    def added_deletes(self) -> tuple[AddedDeletes, ...]:
        """The new files with the sequence number that they are given."""
        number = max(sequence_number(read.entry) for read in self.group.files)
        return tuple(AddedDeletes(file, number) for file in self.added)


Finished = RewrittenGroup | FailedGroup[DeleteGroup]


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """What all groups of a run are rewritten with.

    Attributes:
        concurrency: how many groups at a time; `None` as many as fill the slots.
        written: what hears of the files of tasks.
    """

    table: Table
    workers: Workers
    context: TaskContext
    concurrency: int | None
    written: WrittenFiles
    listener: Listener


def execute(groups: Sequence[DeleteGroup], execution: Execution) -> Generator[Finished, None, None]:
    """Rewrite groups, at most `concurrency` at a time, and yield each as it is finished.

    When the caller stops early, groups that have not begun are dropped, running ones are cancelled, and the files of those
    that were not yielded are removed.
    """
    workers, table = execution.workers, execution.table
    storage, stop = stopping(table.storage, in_threads=workers.spark is None)
    if workers.spark is not None:
        storage = execution.written.telling(storage)

    def run(some: Sequence[DeleteGroup]) -> Generator[Finished, None, None]:
        return _rewrite_groups(some, execution, storage)

    def undo(finished: Finished) -> None:
        if isinstance(finished, RewrittenGroup):
            discard(finished.added, execution.written)

    def tell(finished: Finished) -> None:
        group, is_done = finished.group, isinstance(finished, RewrittenGroup)
        outcome = (
            counted(len(finished.added), "files") if isinstance(finished, RewrittenGroup) else finished.error.message
        )
        _LOG.info(
            "%s: %d delete files of partition %r %s: %s",
            table.name,
            group.files_count,
            group.partition,
            "are rewritten" if is_done else "failed",
            outcome,
            extra=log_context(table, STEP),
        )
        execution.listener.on(StepAdvanced(STEP, group.files_count))

    running = side_by_side(
        _items(groups, execution),
        run,
        workers.spark,
        tag=f"icekeep-rewrite-deletes-{execution.context.run_id}",
        concurrency=execution.concurrency or groups_at_once(workers),
        stop=stop,
        undo=undo,
    )
    yield from told(running, tell, undo)


def discard(files: Sequence[DataFile], written: WrittenFiles) -> None:
    """Remove new files that no snapshot names."""
    written.discard({file.file_path for file in files})


def _items(groups: Sequence[DeleteGroup], execution: Execution) -> list[Sequence[DeleteGroup]]:
    """Groups that are one Spark job together, and groups alone."""
    if execution.workers.spark is None or execution.concurrency is not None:
        return [(group,) for group in groups]
    return jobs_of(
        groups, lambda group: is_small(group, execution.workers.limits), (lambda group: group.tasks_count, TASKS_A_JOB)
    )


def is_small(group: DeleteGroup, limits: Limits) -> bool:
    """Whether the driver rewrites a group by itself, whoever does the others."""
    is_little = group.files_count <= limits.delete_group_files_count and group.bytes <= limits.delete_group_bytes
    return group.tasks_count == 1 and is_little


def _rewrite_groups(
    groups: Sequence[DeleteGroup], execution: Execution, storage: Storage
) -> Generator[Finished, None, None]:
    workers = execution.workers
    spark = None if is_small(groups[0], execution.workers.limits) else workers.spark
    where = (
        f" of {len(groups)} groups" if len(groups) > 1 else f" of {groups[0].partition}" if groups[0].partition else ""
    )
    files_count = sum(group.files_count for group in groups)
    try:
        with_tasks = [(group, deletes_tasks(group, execution.context)) for group in groups]
    except IcekeepError as error:
        yield from (FailedGroup(group, error) for group in groups)
        return
    run = partial(finished_tasks, spark, work=in_turns(_rewrite, workers), shared=storage, threads=workers.slots)
    with (
        described(f"rewriting {counted(files_count, 'delete files')}{where}"),
        closing(in_one_job(with_tasks, run)) as answered,
    ):
        for one in answered:
            yield _finished(one, execution)


def _finished(ran: Answered[DeleteGroup, DeletesOutcome], execution: Execution) -> Finished:
    group, done, errors = ran.group, ran.results, ran.errors
    added = tuple(file for one in done for file in one.files)
    execution.written.hear(file.file_path for file in added)
    read_count = sum(one.read_count for one in done)
    if not errors and read_count != group.record_count:
        where = of_partition(group.partition)
        text = f"delete files{where} hold {read_count} rows, but manifests say {group.record_count}"
        errors = (InvalidTableError(text),)
    if errors:
        discard(added, execution.written)
        return FailedGroup(group, errors[0])
    return RewrittenGroup(
        group=group,
        added=added,
        named={digest: named for one in done for digest, named in one.named.items()},
        dangling_count=sum(one.dangling_count for one in done),
        replaced_count=sum(one.replaced_count for one in done),
    )


def _rewrite(task: RangeTask, storage: Storage) -> DeletesOutcome:
    return rewrite_deletes(msgspec.structs.replace(task.loaded(storage), task_attempt_id=attempt_id()), storage)
