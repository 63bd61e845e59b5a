"""File groups -> new data files, in Spark tasks; groups run side by side and come back as they finish.

Nothing is committed here. A group either comes back with all its new files, or none of them is left.
"""

import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.formats.rewrite.proof import problem_of_rows
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.formats.row_moves import moves_locations
from icekeep.maintenance.compact.method import group_task, ordering_of
from icekeep.maintenance.compact.options import RewriteMethod
from icekeep.maintenance.compact.plan import FileGroup, RewritePlan, group_files
from icekeep.maintenance.compact.sort_tasks import run_ordered
from icekeep.maintenance.compact.tasks import (
    STITCHED_FILES_A_JOB,
    Done,
    GroupTask,
    GroupWork,
    MetricsInParts,
    TaskOutcomes,
    rewritten,
    run_group_task,
)
from icekeep.maintenance.rewrite.commit import FailedGroup, of_partition
from icekeep.maintenance.rewrite.groups import TASKS_A_JOB, ByteProgress, GroupRewriter, in_one_job, run_groups
from icekeep.maintenance.rewrite.run import RewriteRun, WrittenFiles
from icekeep.planning.spark.failures import spark_failed
from icekeep.planning.spark.jobs import described
from icekeep.planning.spark.tasks import finished_tasks
from icekeep.planning.spark.workers import Workers
from icekeep.spec.manifests.structs import DataFile
from icekeep.spelling import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


class CompactionRewriter(GroupRewriter[FileGroup, Finished]):
    """Rewrites the groups of a plan: those whose tasks need nothing of each other in one Spark job, others each by itself.

    Args:
        work: what tasks share, but for metrics; its groups are those of the plan.
        metrics: of the files that are put together byte for byte.
    """

    def __init__(
        self,
        run: RewriteRun,
        plan: RewritePlan,
        workers: Workers,
        work: GroupWork,
        metrics: MetricsInParts,
        *,
        concurrency: int | None,
        shuffle_partitions_per_file: int,
    ) -> None:
        super().__init__(run, workers, concurrency)
        self._plan, self._metrics, self._parts_a_file = plan, metrics, shuffle_partitions_per_file
        are_workers_here = workers.spark is not None and workers.is_local
        self._progress = ByteProgress(run.listener, STEP, plan.rewritten_bytes_count, are_workers_here=are_workers_here)
        self._work = msgspec.structs.replace(work, storage=self._progress.counting(self.storage))
        self.limits = (
            (lambda group: work.methods[group.number].tasks_count, TASKS_A_JOB),
            (lambda group: work.methods[group.number].stitched_files_count, STITCHED_FILES_A_JOB),
        )

    def finished(self) -> Generator[Finished, None, None]:
        """All groups, each as it is finished; see `run_groups`."""
        with self._progress:
            yield from run_groups(self._plan.groups, self, f"icekeep-rewrite-{self._work.context.run_id}")

    def report(self, finished: Finished) -> None:
        table, number = self.run.table, finished.group.number + 1
        text, context = "%s: group %d of %d: %s", log_context(table, STEP)
        _LOG.info(text, table.name, number, len(self._plan.groups), _outcome_line(finished), extra=context)
        added = finished.added if isinstance(finished, RewrittenGroup) else ()
        self._progress.finish(finished.group.bytes, sum(file.file_size_in_bytes for file in added))

    def undo(self, finished: Finished) -> None:
        if isinstance(finished, RewrittenGroup):
            discard(self.run.table, finished.outcomes, self.run.written)

    def rewrite(self, groups: Sequence[FileGroup]) -> Generator[Finished, None, None]:
        spark = self.workers.spark
        with described(f"rewriting {_groups_text(groups, len(self._plan.groups))}"):
            if spark is None or self.is_alone(groups[0]):
                for group in groups:
                    yield self._rewritten_alone(group)
            else:
                yield from self._rewritten_together(groups, spark)

    def is_alone(self, group: FileGroup) -> bool:
        """Whether its rows are divided among tasks by keys that are not known yet."""
        method = self._work.methods[group.number].method
        return method is RewriteMethod.SHUFFLE or (method is RewriteMethod.SORT and self.workers.is_local)

    def _rewritten_together(
        self, groups: Sequence[FileGroup], spark: "SparkSession"
    ) -> Generator[Finished, None, None]:
        try:
            work = self._part(groups)
        except IcekeepError as error:
            yield from (FailedGroup(group, error) for group in groups)
            return
        with_tasks = [
            (group, [GroupTask(group.number, one) for one in range(work.methods[group.number].tasks_count)])
            for group in groups
        ]
        run = partial(finished_tasks, spark, work=run_group_task, shared=work)
        with closing(in_one_job(with_tasks, run)) as answered:
            for one in answered:
                yield self._finished(one.group, one.results, one.errors)

    def _part(self, groups: Sequence[FileGroup]) -> GroupWork:
        """What the tasks of some groups share."""
        part = self._work.part([group.number for group in groups])
        return msgspec.structs.replace(part, metrics=self._metrics.of(groups))

    def _rewritten_alone(self, group: FileGroup) -> Finished:
        try:
            ran = self._run(group)
        except IcekeepError as error:
            return FailedGroup(group, error)
        except Exception as error:  # noqa: BLE001 - a lost executor, a worker without our packages: the other groups go on
            return FailedGroup(group, spark_failed(error))
        return self._finished(group, ran.done, ran.errors)

    def _run(self, group: FileGroup) -> TaskOutcomes:
        work, workers = self._work, self.workers
        if ordering_of(group, work.context) is None:
            return rewritten(workers, work.storage, self._part([group]).tasks(group))
        return run_ordered(
            group_task(group, group_files(group, work.storage), work.context),
            group,
            work.methods[group.number].method,
            workers,
            work.storage,
            slots=max(1, workers.slots // min(len(self._plan.groups), self.concurrency)),
            parts_a_file=self._parts_a_file,
        )

    def _finished(self, group: FileGroup, done: Sequence[Done], errors: Sequence[IcekeepError]) -> Finished:
        table, written = self.run.table, self.run.written
        outcomes = tuple(one.outcome for one in done)
        written.report(_locations(outcomes))
        wrong = errors[0] if errors else _count_problem(group, done)
        if wrong is not None:
            discard(table, outcomes, written)
            return FailedGroup(group, wrong)
        if (wrong := _content_problem(outcomes)) is not None:
            # The new files are kept as evidence.
            settle(table, outcomes, written)
            return FailedGroup(group, wrong)
        return RewrittenGroup(group=group, outcomes=outcomes, cpu_ms=sum(one.cpu_ms for one in done))


def _groups_text(groups: Sequence[FileGroup], groups_count: int) -> str:
    """What Spark's pages say of groups that go together."""
    files_count = sum(group.files_count for group in groups)
    if len(groups) > 1:
        return f"{len(groups)} of {groups_count} groups, {counted(files_count, 'files')}"
    where = f" of {groups[0].partition}" if groups[0].partition else ""
    return f"group {groups[0].number + 1} of {groups_count}, {counted(files_count, 'files')}{where}"


def _outcome_line(finished: Finished) -> str:
    group = finished.group
    before = f"{counted(group.files_count, 'files')}{of_partition(group.partition)}, {group.bytes} bytes"
    if isinstance(finished, FailedGroup):
        return f"{before}, failed: {finished.error.message}"
    added = finished.added
    after = f"{counted(len(added), 'files')}, {sum(f.file_size_in_bytes for f in added)} bytes"
    return f"{before} -> {after}, {finished.cpu_ms} ms of CPU"


def discard(table: Table, outcomes: Iterable[RewriteOutcome], written: WrittenFiles) -> None:
    """Remove new files that no snapshot names, and what was kept of where rows went."""
    outcomes = tuple(outcomes)
    written.discard(_locations(outcomes))
    _forget_moves(table, outcomes)


def settle(table: Table, outcomes: Iterable[RewriteOutcome], written: WrittenFiles) -> None:
    """Remove what nobody needs once a commit has ended."""
    outcomes = tuple(outcomes)
    written.settle(_locations(outcomes))
    _forget_moves(table, outcomes)


def _locations(outcomes: Iterable[RewriteOutcome]) -> list[str]:
    return [file.file_path for outcome in outcomes for file in outcome.files]


def _forget_moves(table: Table, outcomes: Sequence[RewriteOutcome]) -> None:
    with suppress(Exception):
        table.storage.delete_many(moves_locations([*outcomes]))


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
    """Where rows were hashed, the new files must hold the rows that went in."""
    read = [outcome.hash_in for outcome in outcomes if outcome.hash_in is not None]
    written = [outcome.hash_out for outcome in outcomes if outcome.hash_out is not None]
    return problem_of_rows(read, written, [file for outcome in outcomes for file in outcome.files])
