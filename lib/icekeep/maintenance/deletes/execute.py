"""Groups of position delete files -> new delete files or vectors -> commits.

A group becomes tasks that each take the rows for a range of the paths of data files; small groups are done on the driver. It
either comes back with all its new files, or none of them is left.

A commit that is refused since the table is not as it was planned on defers its groups to the next plan, with what was written for
them: a group that is planned again as it was need not be rewritten again.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import msgspec

from icekeep.catalog.base import log_context
from icekeep.commit.changes.deletes import AddedDeletes, NamedFile, RewriteDeletes
from icekeep.commit.file_sets import ReadFile
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import CommitResult
from icekeep.errors import IcekeepError, InvalidTableError
from icekeep.events import StepAdvanced
from icekeep.formats.deletes.rewrite import DeleteSource, DeletesOutcome, DeletesTask, Granularity, rewrite_deletes
from icekeep.maintenance.deletes.live_rows import LivePart, load_live_files
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, RewritePositionDeletesResult
from icekeep.maintenance.deletes.plan import DeleteGroup, DeletesPlan
from icekeep.maintenance.rewrite.commit import FailedGroup, GroupCommitter, of_partition, warn_stopped_early
from icekeep.maintenance.rewrite.groups import TASKS_A_JOB, GroupRewriter, in_one_job
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.maintenance.rewrite.run import RewriteRun
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


def deletes_tasks(group: DeleteGroup, context: TaskContext) -> list[RangeTask]:
    """Tasks that together read all rows of a group's files, those for one data file in one task."""
    metadata, cuts = context.metadata, _cuts(group)
    whole = DeletesTask(
        sources=tuple(DeleteSource(read.entry.data_file, sequence_number(read.entry)) for read in group.files),
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
    tasks = []
    for number, (first, end) in enumerate(zip([None, *cuts], [*cuts, None], strict=True)):
        # Only files that are for one data file say for certain that they have no rows of a range of paths.
        paths = ((source, source.file.referenced_data_file) for source in whole.sources)
        sources = tuple(
            source
            for source, path in paths
            if path is None or ((first is None or first <= path) and (end is None or path < end))
        )
        part = {"sources": sources, "first_path": first, "end_path": end, "partition_id": number}
        live = tuple(part for part in group.live if part.meets(first, end))
        tasks.append(RangeTask(msgspec.structs.replace(whole, **part), live))
    return tasks


def _cuts(group: DeleteGroup) -> list[str]:
    """Paths where one task's range ends and the next begins, so that all have about the same number of rows.

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


class DeletesRewriter(GroupRewriter[DeleteGroup, Finished]):
    """Rewrites the groups of a plan; files of each plan have names of their own."""

    limits = ((lambda group: group.tasks_count, TASKS_A_JOB),)

    def __init__(self, run: RewriteRun, workers: Workers, context: TaskContext, concurrency: int | None) -> None:
        super().__init__(run, workers, concurrency)
        self._context = context

    def is_alone(self, group: DeleteGroup) -> bool:
        return is_small(group, self.workers.limits)

    def rewrite(self, groups: Sequence[DeleteGroup]) -> Generator[Finished, None, None]:
        workers = self.workers
        spark = None if is_small(groups[0], workers.limits) else workers.spark
        where = f" of {groups[0].partition}" if groups[0].partition else ""
        where = f" of {len(groups)} groups" if len(groups) > 1 else where
        files_count = sum(group.files_count for group in groups)
        try:
            with_tasks = [(group, deletes_tasks(group, self._context)) for group in groups]
        except IcekeepError as error:
            yield from (FailedGroup(group, error) for group in groups)
            return
        work = in_turns(_rewrite, workers)
        run = partial(finished_tasks, spark, work=work, shared=self.storage, threads=workers.slots)
        with (
            described(f"rewriting {counted(files_count, 'delete files')}{where}"),
            closing(in_one_job(with_tasks, run)) as answered,
        ):
            for one in answered:
                yield self._checked(one.group, one.results, one.errors)

    def report(self, finished: Finished) -> None:
        group, table = finished.group, self.run.table
        if isinstance(finished, FailedGroup):
            what, outcome = "failed", finished.error.message
        else:
            what, outcome = "are rewritten", counted(len(finished.added), "files")
        text = "%s: %d delete files of partition %r %s: %s"
        context = log_context(table, STEP)
        _LOG.info(text, table.name, group.files_count, group.partition, what, outcome, extra=context)
        self.run.listener.on(StepAdvanced(STEP, group.files_count))

    def undo(self, finished: Finished) -> None:
        if isinstance(finished, RewrittenDeletes):
            self.run.written.discard(file.file_path for file in finished.added)

    def _checked(self, group: DeleteGroup, done: Sequence[DeletesOutcome], errors: Sequence[IcekeepError]) -> Finished:
        """A group whose tasks have read all rows; else nothing of it is left."""
        added = tuple(file for one in done for file in one.files)
        paths = [file.file_path for file in added]
        self.run.written.report(paths)
        read_count = sum(one.read_count for one in done)
        if not errors and read_count != group.record_count:
            where = of_partition(group.partition)
            text = f"delete files{where} hold {read_count} rows, but manifests say {group.record_count}"
            errors = (InvalidTableError(text),)
        if errors:
            self.run.written.discard(paths)
            return FailedGroup(group, errors[0])
        return RewrittenDeletes(
            group=group,
            added=added,
            named={digest: named for one in done for digest, named in one.named.items()},
            dangling_count=sum(one.dangling_count for one in done),
            replaced_count=sum(one.replaced_count for one in done),
        )


def is_small(group: DeleteGroup, limits: Limits) -> bool:
    """Whether the driver rewrites a group by itself, also where Spark does the others."""
    is_little = group.files_count <= limits.delete_group_files_count and group.bytes <= limits.delete_group_bytes
    return group.tasks_count == 1 and is_little


def _rewrite(task: RangeTask, storage: Storage) -> DeletesOutcome:
    live = load_live_files(task.live, storage)
    return rewrite_deletes(msgspec.structs.replace(task.task, live=live, task_attempt_id=attempt_id()), storage)


class DeletesCommitter(GroupCommitter[RewrittenDeletes, RewriteDeletes]):
    """Commits groups of the plans of one run, and keeps count; deferred ones keep their new files for the next plan."""

    files = "delete files"

    def __init__(
        self, run: RewriteRun, options: RewritePositionDeletesOptions, reader: ManifestReader, branch: str
    ) -> None:
        super().__init__(run, options, reader)
        self._branch = branch
        self._dangling: Sequence[ReadFile] = ()
        self._format_version = self._dangling_count = self._dangling_bytes = 0
        self._done = RewritePositionDeletesResult()
        self._added_paths: set[str] = set()
        self._landed_numbers: set[int] = set()
        self._is_cut_short = False

    def take_deferred(self) -> list[RewrittenDeletes]:
        """The groups that were left for another plan; the caller takes over their new files."""
        deferred, self.deferred = self.deferred, []
        return deferred

    def without_landed(self, plan: DeletesPlan) -> DeletesPlan:
        """A later plan of the run, without groups that hold only files which the run itself has written."""
        added = self._added_paths
        groups = [one for one in plan.groups if any(file.entry.data_file.file_path not in added for file in one.files)]
        return msgspec.structs.replace(plan, groups=tuple(groups))

    def end_early(self, error: Exception, plan: DeletesPlan) -> None:
        """Take all groups of a plan that are in no commit for failed, and say why."""
        left = [group for group in plan.groups if group.number not in self._landed_numbers]
        self.failed_files_count = sum(group.files_count for group in left)
        self.failed_commits_count += self.conflict is not None
        # Perhaps only files that reach nothing were left.
        self._is_cut_short = True
        warn_stopped_early(self.commits_count, error, self._listener)

    def run(self, plan: DeletesPlan, finished: Iterator[Finished], format_version: int) -> None:
        """Commit a plan's groups as they come; `format_version` is that of the table that was planned on.

        Raises:
            JobFailedError: a group failed, and partial progress is off.
            ConflictError: no other plan helps (`is_outpaced`); where one may, `conflict` and `deferred` say so.
            OutcomeUnknownError: as `commit` raises it.
        """
        self.conflict, self._format_version = None, format_version
        self._dangling = plan.dangling
        self._landed_numbers = set()
        # What failed in an earlier plan is planned again in this one.
        self.failed_files_count = 0
        self.commit_finished(finished, len(plan.groups), has_more=bool(plan.dangling))

    def discard(self, groups: Iterable[RewrittenDeletes]) -> None:
        for group in groups:
            self._run.written.discard({file.file_path for file in group.added})

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
        """Commit groups; the first commit also removes dangling deletes."""
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
        self._run.written.settle(added)
        files = [file for one in rewritten for file in one.added]
        self._done = self._done.followed_by(
            RewritePositionDeletesResult(
                rewritten_delete_files_count=sum(one.group.files_count for one in rewritten),
                added_delete_files_count=len(files),
                rewritten_bytes_count=sum(one.group.bytes for one in rewritten),
                added_bytes_count=sum(file.own_bytes for file in files),
                removed_dangling_positions_count=sum(one.dangling_count for one in rewritten),
                replaced_positions_count=sum(one.replaced_count for one in rewritten),
            )
        )

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
