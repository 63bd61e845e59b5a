"""File groups -> new data files, in Spark tasks; groups run side by side and come back as they finish.

Nothing is committed here. A group either comes back with all its new files, or none of them is left.
"""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.events import Listener, StepAdvanced
from icekeep.formats.rewrite.moved_positions import moves_locations
from icekeep.formats.rewrite.task import RewriteOutcome, RewriteTask
from icekeep.formats.rewrite.verify import problem_of_rows
from icekeep.maintenance.compaction.methods import GroupMethod
from icekeep.maintenance.compaction.ordered import run_ordered
from icekeep.maintenance.compaction.plan import FileGroup, GroupFiles, RewritePlan, group_files
from icekeep.maintenance.compaction.rewriting import Done, Ran, rewritten
from icekeep.maintenance.compaction.stitched import Metrics, StitchTask, set_of, stitch_task
from icekeep.maintenance.compaction.tasks import GroupContext, ordering_of, rewrite_tasks, whole_task
from icekeep.maintenance.discarding import discard_files
from icekeep.maintenance.groups.commits import FailedGroup
from icekeep.maintenance.groups.file_sizes import FileSizes
from icekeep.maintenance.groups.side_by_side import side_by_side
from icekeep.planning.spark.failures import spark_failed
from icekeep.planning.spark.steps import described
from icekeep.planning.spark.workers import Workers
from icekeep.spec.manifests.structs import DataFile
from icekeep.storage.base import Storage
from icekeep.storage.stopping import stopping

_LOG = logging.getLogger(__name__)

STEP = "rewriting data files"


class RewrittenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group and the files that hold its live rows now.

    Attributes:
        outcomes: of its tasks.
        cpu_ms: of its tasks together.
    """

    group: FileGroup
    outcomes: tuple[RewriteOutcome, ...]
    cpu_ms: int = 0

    @property
    def added(self) -> tuple[DataFile, ...]:
        """The new files."""
        return tuple(file for outcome in self.outcomes for file in outcome.files)

    @property
    def stitched_count(self) -> int:
        """How many of the new files were put together from whole row groups."""
        return sum(outcome.stitched_count for outcome in self.outcomes)

    @property
    def peak_bytes(self) -> int:
        """The most memory of a task's process."""
        return max((outcome.peak_bytes for outcome in self.outcomes), default=0)

    @property
    def deleted_records_count(self) -> int:
        """Rows of the group's files that are in none of the new ones."""
        return self.group.record_count - sum(file.record_count for file in self.added)


Finished = RewrittenGroup | FailedGroup[FileGroup]


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """What all groups of a run are rewritten with.

    Attributes:
        methods: by the number of the group.
        metrics: of the files that are put together byte for byte, by path.
        may_reencode: whether these may be encoded anew where that fails.
        concurrency: how many groups are rewritten at a time.
    """

    table: Table
    workers: Workers
    context: GroupContext
    sizes: FileSizes
    methods: Mapping[int, GroupMethod]
    metrics: Mapping[str, Metrics]
    may_reencode: bool
    shuffle_partitions_per_file: int
    concurrency: int
    listener: Listener


def execute(plan: RewritePlan, execution: Execution) -> Generator[Finished, None, None]:
    """Rewrite the groups of a plan, at most `concurrency` at a time, and yield each as it is finished.

    When the caller stops early, groups that have not begun are dropped, running ones are cancelled, and the files of those
    that were not yielded are removed.
    """
    workers, table = execution.workers, execution.table
    storage, stop = stopping(table.storage, in_threads=workers.spark is None)

    def run(group: FileGroup) -> Finished:
        step = f"rewriting group {group.number + 1} of {len(plan.groups)}"
        with described(f"{step}, {group.files_count} files{f' of {group.partition}' if group.partition else ''}"):
            return _rewrite_group(group, execution, storage, len(plan.groups))

    def undo(finished: Finished) -> None:
        if isinstance(finished, RewrittenGroup):
            discard(table, finished.outcomes, execution.listener)

    tag = f"icekeep-rewrite-{execution.context.run_id}"
    groups = side_by_side(
        plan.groups, run, workers.spark, tag=tag, concurrency=execution.concurrency, stop=stop, undo=undo
    )
    with closing(groups) as done:
        for finished in done:
            _LOG.info(
                "%s: group %d of %d: %s",
                table.name,
                finished.group.number + 1,
                len(plan.groups),
                _outcome_line(finished),
            )
            execution.listener.on(StepAdvanced(STEP, finished.group.files_count))
            yield finished


def _outcome_line(finished: Finished) -> str:
    group = finished.group
    before = f"{group.files_count} files of partition {group.partition!r}, {group.bytes} bytes"
    if isinstance(finished, FailedGroup):
        return f"{before}, failed: {finished.error.message}"
    added = finished.added
    return (
        f"{before} -> {len(added)} files, {sum(f.file_size_in_bytes for f in added)} bytes, {finished.cpu_ms} ms of CPU"
    )


def discard(table: Table, outcomes: Iterable[RewriteOutcome], listener: Listener) -> None:
    """Remove new files that no snapshot names, and what was kept of where rows went."""
    outcomes = tuple(outcomes)
    discard_files(table.storage, (file.file_path for outcome in outcomes for file in outcome.files), listener)
    forget_moves(table, outcomes)


def forget_moves(table: Table, outcomes: Iterable[RewriteOutcome]) -> None:
    """Remove what was put into storage of where rows went: of use to nobody once a commit has ended."""
    with suppress(IcekeepError):
        table.storage.delete_many(moves_locations([*outcomes]))


def _rewrite_group(group: FileGroup, execution: Execution, storage: Storage, groups_count: int) -> Finished:
    try:
        ran = _run(group, execution, storage, groups_count)
    except IcekeepError as error:
        return FailedGroup(group, error)
    except Exception as error:  # noqa: BLE001 - a lost executor, a worker without our packages: the other groups go on
        return FailedGroup(group, spark_failed(error))
    outcomes = tuple(one.outcome for one in ran.done)
    wrong = ran.errors[0] if ran.errors else _count_problem(group, ran.done)
    if wrong is not None:
        discard(execution.table, outcomes, execution.listener)
        return FailedGroup(group, wrong)
    if (wrong := _content_problem(outcomes)) is not None:
        # The new files are kept as evidence.
        forget_moves(execution.table, outcomes)
        return FailedGroup(group, wrong)
    return RewrittenGroup(group=group, outcomes=outcomes, cpu_ms=sum(one.cpu_ms for one in ran.done))


def _run(group: FileGroup, execution: Execution, storage: Storage, groups_count: int) -> Ran:
    context, workers = execution.context, execution.workers
    files, method = group_files(group, storage), execution.methods[group.number]
    if ordering_of(group, context) is None:
        return rewritten(workers, storage, _tasks_in_order(group, files, method, execution))
    slots = max(1, workers.slots // min(groups_count, execution.concurrency))
    return run_ordered(
        whole_task(group, files, context),
        group,
        method.method,
        workers,
        storage,
        slots=slots,
        parts_a_file=execution.shuffle_partitions_per_file,
    )


def _tasks_in_order(
    group: FileGroup, files: GroupFiles, method: GroupMethod, execution: Execution
) -> list[RewriteTask | StitchTask]:
    """Sets of files that are put together byte for byte, and tasks for the other files."""
    copied = {position for some in method.stitched for position in some}
    left = [file for position, file in enumerate(files.files) if position not in copied]
    tasks: list[RewriteTask | StitchTask] = [
        *rewrite_tasks(group, GroupFiles(tuple(left), files.deletes), execution.context, execution.sizes)
    ]
    if copied:
        whole = whole_task(group, files, execution.context)
        for number, some in enumerate(method.stitched, start=len(tasks)):
            part = set_of(whole, some, number)
            tasks.append(stitch_task(part, execution.metrics, may_reencode=execution.may_reencode))
    return tasks


def _count_problem(group: FileGroup, done: Sequence[Done]) -> IcekeepError | None:
    """Every row was read, and every one that no delete removes was written; else nothing of it may be committed."""
    read = sum(one.outcome.read_count for one in done)
    live = sum(one.outcome.live_count for one in done)
    written = sum(file.record_count for one in done for file in one.outcome.files)
    if read != group.record_count:
        return IcekeepBug(f"a rewrite of {group.record_count} rows read {read}; nothing of it is committed")
    if written != live:
        return IcekeepBug(f"a rewrite of {live} live rows wrote {written}; nothing of it is committed")
    return None


def _content_problem(outcomes: Sequence[RewriteOutcome]) -> IcekeepError | None:
    """Where rows were hashed, those that stand in the new files are those that went in."""
    read = [outcome.hash_in for outcome in outcomes if outcome.hash_in is not None]
    written = [outcome.hash_out for outcome in outcomes if outcome.hash_out is not None]
    return problem_of_rows(read, written, [file for outcome in outcomes for file in outcome.files])
