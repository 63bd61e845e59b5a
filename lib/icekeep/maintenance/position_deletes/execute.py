"""Groups of delete files -> new delete files or vectors; small groups on the driver, others in Spark tasks.

Nothing is committed here. A group either comes back with all its new files, or none of them is left.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrite_deletes import AddedDeletes, NamedFile
from icekeep.errors import IcekeepError, InvalidTableError
from icekeep.events import Listener, StepAdvanced
from icekeep.formats.deletes.rewrite_positions import DeletesOutcome, rewrite_deletes
from icekeep.maintenance.discarding import discard_files
from icekeep.maintenance.groups.commits import FailedGroup
from icekeep.maintenance.groups.side_by_side import side_by_side
from icekeep.maintenance.position_deletes.plan import DeleteGroup
from icekeep.maintenance.position_deletes.tasks import RangeTask, TaskContext, deletes_tasks
from icekeep.planning.spark.tasks import attempt_id, described, run_tasks, spark_failed
from icekeep.planning.spark.workers import Workers
from icekeep.spec.applicability import PathDigest, sequence_number
from icekeep.spec.manifests.structs import DataFile
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
    """What all groups of a run are rewritten with; `concurrency` is how many at a time."""

    table: Table
    workers: Workers
    context: TaskContext
    concurrency: int
    listener: Listener


def execute(groups: Sequence[DeleteGroup], execution: Execution) -> Generator[Finished, None, None]:
    """Rewrite groups, at most `concurrency` at a time, and yield each as it is finished.

    When the caller stops early, groups that have not begun are dropped, running ones are cancelled, and the files of those
    that were not yielded are removed.
    """
    workers, table = execution.workers, execution.table
    storage, stop = stopping(table.storage, in_threads=workers.spark is None)

    def run(group: DeleteGroup) -> Finished:
        where = group.partition or table.name
        with described(workers.spark, f"{table.name}: rewriting {group.files_count} delete files of {where}"):
            return _rewrite_group(group, execution, storage)

    def undo(finished: Finished) -> None:
        if isinstance(finished, RewrittenGroup):
            discard(table, finished.added, execution.listener)

    tag = f"icekeep-rewrite-deletes-{execution.context.run_id}"
    running = side_by_side(groups, run, workers.spark, tag=tag, concurrency=execution.concurrency, stop=stop, undo=undo)
    with closing(running) as done:
        for finished in done:
            group, is_done = finished.group, isinstance(finished, RewrittenGroup)
            outcome = f"{len(finished.added)} files" if isinstance(finished, RewrittenGroup) else finished.error.message
            _LOG.info(
                "%s: %d delete files of partition %r %s: %s",
                table.name,
                group.files_count,
                group.partition,
                "are rewritten" if is_done else "failed",
                outcome,
            )
            execution.listener.on(StepAdvanced(STEP, group.files_count))
            yield finished


def discard(table: Table, files: Sequence[DataFile], listener: Listener) -> None:
    """Remove new files that no snapshot names."""
    discard_files(table.storage, (file.file_path for file in files), listener)


def _rewrite_group(group: DeleteGroup, execution: Execution, storage: Storage) -> Finished:
    try:
        done, errors = _run(group, execution, storage)
    except IcekeepError as error:
        return FailedGroup(group, error)
    except Exception as error:  # noqa: BLE001 - a lost executor, a worker without our packages: the other groups go on
        return FailedGroup(group, spark_failed(error))
    added = tuple(file for one in done for file in one.files)
    read_count = sum(one.read_count for one in done)
    if not errors and read_count != group.record_count:
        text = f"delete files of partition {group.partition!r} hold {read_count} rows, but manifests say {group.record_count}"
        errors = [InvalidTableError(text)]
    if errors:
        discard(execution.table, added, execution.listener)
        return FailedGroup(group, errors[0])
    return RewrittenGroup(
        group=group,
        added=added,
        named={digest: named for one in done for digest, named in one.named.items()},
        dangling_count=sum(one.dangling_count for one in done),
        replaced_count=sum(one.replaced_count for one in done),
    )


def _run(group: DeleteGroup, execution: Execution, storage: Storage) -> tuple[list[DeletesOutcome], list[IcekeepError]]:
    workers, limits = execution.workers, execution.workers.limits
    tasks = deletes_tasks(group, execution.context)
    is_little = group.files_count <= limits.delete_group_files_count and group.bytes <= limits.delete_group_bytes
    is_small = len(tasks) == 1 and is_little
    return run_tasks(None if is_small else workers.spark, tasks, _rewrite, storage, threads=workers.slots)


def _rewrite(task: RangeTask, storage: Storage) -> DeletesOutcome:
    return rewrite_deletes(msgspec.structs.replace(task.loaded(storage), task_attempt_id=attempt_id()), storage)
