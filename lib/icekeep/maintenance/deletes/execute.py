"""A group of delete files as tasks: each takes the rows for a range of the paths of data files. Pure.

Groups of delete files -> new delete files or vectors; small groups on the driver, others in Spark tasks.

Nothing is committed here. A group either comes back with all its new files, or none of them is left.

Finished groups of delete files -> commits.

A commit that is refused since the table is not as it was planned on leaves its groups for the next plan, with what was
written for them: a group that is planned again as it was need not be rewritten again.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.changes.deletes import AddedDeletes, NamedFile, RewriteDeletes
from icekeep.commit.file_sets import ReadFile
from icekeep.commit.retry import CommitResult
from icekeep.errors import IcekeepError, InvalidTableError
from icekeep.events import Listener, StepAdvanced
from icekeep.formats.deletes.rewrite import DeleteSource, DeletesOutcome, DeletesTask, Granularity, rewrite_deletes
from icekeep.maintenance.deletes.live_rows import LivePart, load_live_files
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, RewritePositionDeletesResult
from icekeep.maintenance.deletes.plan import DeleteGroup, DeletesPlan
from icekeep.maintenance.rewrite.commit import FailedGroup, GroupCommits, GroupCommitter, of_partition, tell_early_end
from icekeep.maintenance.rewrite.groups import (
    TASKS_A_JOB,
    GroupResults,
    groups_at_once,
    in_one_job,
    jobs_of,
    side_by_side,
    told,
)
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.maintenance.rewrite.run import Heartbeat, WrittenFiles
from icekeep.planning.spark.jobs import described
from icekeep.planning.spark.session import Limits
from icekeep.planning.spark.tasks import attempt_id, finished_tasks
from icekeep.planning.spark.workers import Workers, in_turns
from icekeep.spec.collections import cut_evenly
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import PathDigest, sequence_number
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import stopping


class TaskContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run have in common; `run_id` is in the names of the new files."""

    metadata: TableMetadata
    sizes: FileSizes
    granularity: Granularity
    file_format: str
    run_id: str


class RangeTask(msgspec.Struct, frozen=True):
    """A task, and where it finds its live data files."""

    task: DeletesTask
    live: tuple[LivePart, ...]

    def loaded(self, storage: Storage) -> DeletesTask:
        """The task with its live data files; raises as `load_live_files`."""
        return msgspec.structs.replace(self.task, live=load_live_files(self.live, storage))


def deletes_tasks(group: DeleteGroup, context: TaskContext) -> list[RangeTask]:
    """Tasks that together read all rows of a group's files, those for one data file in one task."""
    whole = _whole_task(group, context)
    cuts = _cuts(group)
    tasks = []
    for number, (first, end) in enumerate(zip([None, *cuts], [*cuts, None], strict=True)):
        sources = tuple(source for source in whole.sources if _may_hold(source.file, first, end))
        part = {"sources": sources, "first_path": first, "end_path": end, "partition_id": number}
        live = tuple(part for part in group.live if part.meets(first, end))
        tasks.append(RangeTask(msgspec.structs.replace(whole, **part), live))
    return tasks


def _whole_task(group: DeleteGroup, context: TaskContext) -> DeletesTask:
    metadata = context.metadata
    return DeletesTask(
        sources=tuple(_source(read) for read in group.files),
        live={},
        makes_vectors=metadata.format_version > 2,
        file_format=context.file_format,
        granularity=context.granularity,
        target_file_size_bytes=context.sizes.write_max_bytes,
        schema=metadata.schema,
        spec_id=group.spec_id,
        partition=group.files[0].entry.data_file.partition,
        directory=group.partition,
        table_location=metadata.location,
        properties=metadata.properties,
        operation_id=f"{context.run_id}-{group.number}",
    )


def _source(read: ReadFile) -> DeleteSource:
    return DeleteSource(read.entry.data_file, sequence_number(read.entry))


def _may_hold(file: DataFile, first: str | None, end: str | None) -> bool:
    """Whether a file may have rows of a range of paths; only those that are for one data file say so for certain."""
    path = file.referenced_data_file
    return path is None or ((first is None or first <= path) and (end is None or path < end))


def _cuts(group: DeleteGroup) -> list[str]:
    """Paths where one task's range ends and the next begins, so that each has about as many rows.

    Rows of a file that is for several data files are taken to be spread over all of the partition.
    """
    if group.tasks_count < 2:
        return []
    files = [read.entry.data_file for read in group.files]
    # Every path takes some time, however few rows there are for it.
    rows = {file.referenced_data_file: 1.0 for file in files if file.referenced_data_file is not None}
    spread = [file.record_count for file in files if file.referenced_data_file is None]
    if spread:
        rows_a_file = 1 + sum(spread) / max(1, sum(part.files_count for part in group.live))
        for part in group.live:
            rows.update(dict.fromkeys(part.samples, rows_a_file * part.files_count / len(part.samples)))
    for file in files:
        if file.referenced_data_file is not None:
            rows[file.referenced_data_file] += file.record_count
    paths = sorted(rows)
    return [some[0] for some in cut_evenly(paths, rows.__getitem__, group.tasks_count)[1:]] if paths else []


_LOG = logging.getLogger(__name__)

STEP = "rewriting delete files"


class RewrittenDeletes(msgspec.Struct, frozen=True, kw_only=True):
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


Finished = RewrittenDeletes | FailedGroup[DeleteGroup]


class DeletesExecution(msgspec.Struct, frozen=True, kw_only=True):
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


def execute(groups: Sequence[DeleteGroup], execution: DeletesExecution) -> Generator[Finished, None, None]:
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
        if isinstance(finished, RewrittenDeletes):
            discard(finished.added, execution.written)

    def tell(finished: Finished) -> None:
        group, is_done = finished.group, isinstance(finished, RewrittenDeletes)
        outcome = (
            counted(len(finished.added), "files") if isinstance(finished, RewrittenDeletes) else finished.error.message
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


def _items(groups: Sequence[DeleteGroup], execution: DeletesExecution) -> list[Sequence[DeleteGroup]]:
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
    groups: Sequence[DeleteGroup], execution: DeletesExecution, storage: Storage
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


def _finished(ran: GroupResults[DeleteGroup, DeletesOutcome], execution: DeletesExecution) -> Finished:
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
    return RewrittenDeletes(
        group=group,
        added=added,
        named={digest: named for one in done for digest, named in one.named.items()},
        dangling_count=sum(one.dangling_count for one in done),
        replaced_count=sum(one.replaced_count for one in done),
    )


def _rewrite(task: RangeTask, storage: Storage) -> DeletesOutcome:
    return rewrite_deletes(msgspec.structs.replace(task.loaded(storage), task_attempt_id=attempt_id()), storage)


class DeletesCommits(GroupCommits, frozen=True, kw_only=True):
    """What all commits of a run are made with; `table` is any version of it, `written` hears of the files of tasks."""

    options: RewritePositionDeletesOptions
    branch: str
    written: WrittenFiles


class Committer(GroupCommitter[RewrittenDeletes, RewriteDeletes]):
    """Commits groups of the plans of one run, and keeps count; refused ones keep their new files for the next plan."""

    files = "delete files"

    def __init__(self, commits: DeletesCommits, heartbeat: Heartbeat) -> None:
        super().__init__(commits, heartbeat)
        self._branch, self._written = commits.branch, commits.written
        self._dangling: Sequence[ReadFile] = ()
        self._format_version = self._dangling_count = self._dangling_bytes = 0
        self._done = RewritePositionDeletesResult()
        self._added_paths: set[str] = set()
        self._landed_numbers: set[int] = set()
        self._is_cut_short = False

    def take_refused(self) -> list[RewrittenDeletes]:
        """The groups that were left for another plan; who takes them sees to their new files."""
        refused, self.refused = self.refused, []
        return refused

    def without_landed(self, plan: DeletesPlan) -> DeletesPlan:
        """A later plan of the run, but for groups of nothing but what the run has put there: they are as they should be."""
        added = self._added_paths
        groups = [one for one in plan.groups if any(file.entry.data_file.file_path not in added for file in one.files)]
        return msgspec.structs.replace(plan, groups=tuple(groups))

    def end_early(self, error: Exception, plan: DeletesPlan) -> None:
        """Take all groups of a plan that are in no commit for failed, and say why."""
        left = [group for group in plan.groups if group.number not in self._landed_numbers]
        self.failed_files_count = sum(group.files_count for group in left)
        self.failed_commits_count += self.refusal is not None
        # Perhaps only files that reach nothing were left.
        self._is_cut_short = True
        tell_early_end(self.commits_count, error, self._listener)

    def run(self, plan: DeletesPlan, finished: Iterator[Finished], format_version: int) -> None:
        """Commit a plan's groups as they come; `format_version` is that of the table that was planned on.

        Raises:
            JobFailedError: a group failed, and partial progress is off.
            ConflictError: no other plan helps (`is_outpaced`); where one may, `refusal` and `refused` tell.
            OutcomeUnknownError: as `commit` raises it.
        """
        self.refusal, self._format_version = None, format_version
        self._dangling = plan.dangling
        self._landed_numbers = set()
        # What failed in an earlier plan is planned anew in this one.
        self.failed_files_count = 0
        self.commit_finished(finished, len(plan.groups), has_more=bool(plan.dangling))

    def discard(self, groups: Iterable[RewrittenDeletes]) -> None:
        """Remove the new files of groups that are not committed."""
        for group in groups:
            discard(group.added, self._written)

    def result(self) -> RewritePositionDeletesResult:
        """What was done.

        Raises:
            JobFailedError: more commits failed than are allowed, or all groups, and none landed.
        """
        self.check_failures()
        return msgspec.structs.replace(
            self._done,
            status="partial" if self.has_failures or self._is_cut_short else "done",
            failed_delete_files_count=self.failed_files_count,
            removed_dangling_delete_files_count=self._dangling_count,
            removed_dangling_bytes_count=self._dangling_bytes,
            commits_count=self.commits_count,
            failed_commits_count=self.failed_commits_count,
        )

    def commit(self, groups: Sequence[RewrittenDeletes], *, is_last: bool) -> None:
        """As ever; the first commit takes what is dangling along."""
        if groups or self._dangling:
            super().commit(groups, is_last=is_last)

    def count(self, groups: Sequence[RewrittenDeletes], change: RewriteDeletes, result: CommitResult) -> None:
        super().count(groups, change, result)
        dangling = [one for one in groups if one.group.seems_dangling and not one.added]
        rewritten = [one for one in groups if one not in dangling]
        self._dangling_count += len(change.dangling) + sum(one.group.files_count for one in dangling)
        self._dangling_bytes += sum(entry.data_file.own_bytes for entry in change.dangling)
        self._dangling_bytes += sum(one.group.bytes for one in dangling)
        self._landed_numbers.update(one.group.number for one in groups)
        added = {file.file_path for one in groups for file in one.added}
        self._added_paths |= added
        self._written.settle(added)
        self._done = self._done.followed_by(_sums(rewritten))

    def change(self, groups: Sequence[RewrittenDeletes], *, is_last: bool) -> RewriteDeletes:
        dangling, self._dangling = self._dangling, ()
        rewritten = [read for group in groups for read in group.group.files]
        named = dict(groups[0].named) if groups else {}
        for group in groups[1:]:
            for digest, one in group.named.items():
                named[digest] = named[digest].and_also(one) if digest in named else one
        return RewriteDeletes(
            rewritten=tuple(read.entry for read in rewritten),
            added=tuple(added for group in groups for added in group.added_deletes),
            named=named,
            dangling=tuple(read.entry for read in dangling),
            format_version=self._format_version,
            manifest_paths=frozenset(read.manifest_path for read in (*rewritten, *dangling)),
            branch=self._branch,
        )


def _sums(groups: Sequence[RewrittenDeletes]) -> RewritePositionDeletesResult:
    added = [file for one in groups for file in one.added]
    return RewritePositionDeletesResult(
        rewritten_delete_files_count=sum(one.group.files_count for one in groups),
        added_delete_files_count=len(added),
        rewritten_bytes_count=sum(one.group.bytes for one in groups),
        added_bytes_count=sum(file.own_bytes for file in added),
        removed_dangling_positions_count=sum(one.dangling_count for one in groups),
        replaced_positions_count=sum(one.replaced_count for one in groups),
    )
