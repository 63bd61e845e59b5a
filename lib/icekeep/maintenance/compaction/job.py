"""The job `compact` (Iceberg's `rewrite_data_files`): small and deleted-from files into fewer of the target size, in order.

strategy -> files of a scan with their deletes -> candidates -> plan of file groups -> how each group goes (copied, encoded
anew, sorted, shuffled) -> rewritten groups -> `RewriteFiles` -> result; groups that others were in the way of, once more
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.filtering import without_history
from icekeep.errors import IcekeepError, NotFoundError
from icekeep.events import Listener, StepFinished, StepStarted, Warned
from icekeep.formats.write_options import write_options
from icekeep.maintenance.compaction.commits import Commits, CommittedGroups, commit_groups
from icekeep.maintenance.compaction.estimate import Estimate, RewriteMethod, Work, estimate
from icekeep.maintenance.compaction.execute import STEP, Execution, execute
from icekeep.maintenance.compaction.group_tasks import GroupWork
from icekeep.maintenance.compaction.methods import GroupMethod, choose_methods, is_shuffled
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import FileGroup, RewritePlan, group_files, plan_locations
from icekeep.maintenance.compaction.planner import measured_overlap, plan
from icekeep.maintenance.compaction.preview import RewriteDataFilesPlan, preview
from icekeep.maintenance.compaction.removed_files import store_removed_files
from icekeep.maintenance.compaction.result import RewriteDataFilesResult
from icekeep.maintenance.compaction.stitched import Metrics, MetricsInParts, metrics_of
from icekeep.maintenance.compaction.strategy import chosen_strategy, order_summary
from icekeep.maintenance.compaction.tasks import GroupContext
from icekeep.maintenance.figures import or_warned
from icekeep.maintenance.groups.commits import files_text, partial_once_landed, tell_early_end
from icekeep.maintenance.groups.file_sizes import FileSizes, file_sizes
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.planning_anew import plan_till_done
from icekeep.maintenance.requests import JobRequest, takes
from icekeep.maintenance.runs.heartbeat import beating
from icekeep.maintenance.runs.left_behind import sweep_runs
from icekeep.maintenance.runs.start_tag import hold_start
from icekeep.maintenance.runs.written_files import WrittenFiles, written_files
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.memory_settings import warn_of_memory
from icekeep.planning.spark.source import started
from icekeep.planning.spark.workers import Workers, chosen_workers, spark_workers
from icekeep.planning.transcode.commit_reader import SparkManifestReader
from icekeep.runtime import Runtime
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.layout import own_directory
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.units import GIB
from icekeep.storage.base import Storage
from icekeep.tables.refs import head_to_commit_to

_LOG = logging.getLogger(__name__)

__all__ = ["RewriteDataFilesOptions", "RewriteDataFilesPlan", "RewriteDataFilesResult", "compact", "plan_compact"]

Options = Mapping[str, Any] | RewriteDataFilesOptions

BUDGET_BYTES = GIB
"""The memory that a task orders rows in before it puts some on disk."""


class CompactRequest(JobRequest, frozen=True, kw_only=True):
    """The arguments of `compact`, which says what each means."""

    strategy: str | None = None
    sort_order: str | None = None
    where: str | Expression = ALWAYS_TRUE
    options: Options | None = None
    branch: str = MAIN
    verify: bool = False


@takes(CompactRequest)
def compact(table: Table, request: CompactRequest) -> RewriteDataFilesResult:
    """Rewrite badly sized data files, apply their row-level deletes, and sort them if asked; the table's rows do not change.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. What is too little to
            be worth a session is rewritten by threads of this process, unless a session is given.
        strategy: `binpack` (the order of rows stays) or `sort`; by default `sort` where an order is given.
        sort_order: of a sort, such as `day, id DESC NULLS LAST`, `zorder(a, b)` or `hilbert(a, b)`; by default the table's.
        where: chooses files; a chosen file is rewritten whole.
        options: of Iceberg's `rewrite_data_files`, under its names, and `stitch`.
        branch: whose files are rewritten, and where that is committed; no other branch moves.
        verify: compare the content of the rows that went in with that of the new files, read from storage again, before
            anything is committed; where they differ nothing is, and the new files are kept. The numbers of rows are always
            compared.

    Raises:
        OptionError, ExpressionError, NotFoundError, UsageError: an argument is wrong, such as a tag in place of a branch;
            nothing was done.
        UnsupportedError: the table has something that cannot be rewritten; nothing was done.
        JobFailedError: a file could not be rewritten; the table is as it was, and new files are removed. Once a commit has
            landed the result is `partial` instead, and a warning says what failed.
        ConflictError: others kept changing files that were to be replaced, however often these were planned anew
            (`commit.retry.num-retries`).
        SafetyError: the table was dropped and made again meanwhile, or moved.
        OutcomeUnknownError: a commit may or may not have landed; its files are kept.
    """
    listener, runtime = request.listener, table.runtime
    run = _Run(table, request, runtime)
    for warning in run.strategy.warnings:
        listener.on(Warned(warning))
    sweep_runs(table, runtime, keep=run.run_id, listener=listener)
    plans = _Plans(run, listener)
    with partial_once_landed(plans.has_landed, plans.end_early):
        plan_till_done(table, plans.plan_and_commit, what=plans.what, listener=listener)
    return plans.result()


@takes(CompactRequest)
def plan_compact(table: Table, request: CompactRequest) -> RewriteDataFilesPlan:
    """Say what `compact` with the same arguments would do; raises as it does, and writes nothing."""
    run = _Run(table, request, table.runtime)
    planned = run.plan(None)
    for note in planned.notes:
        request.listener.on(Warned(note))
    workers = run.workers(planned)
    methods = run.methods(planned, workers)
    return preview(planned, methods, run.estimated(planned, methods, workers))


@takes(CompactRequest)
def check_arguments(metadata: TableMetadata, request: CompactRequest) -> None:
    """Hold the arguments against each other and the table, before Spark starts; raises as `compact` does."""
    chosen = parse_options(RewriteDataFilesOptions, request.options or {})
    chosen_strategy(request.strategy, request.sort_order, metadata, chosen)
    _sizes(metadata, chosen)


class _Run:
    """One run: its arguments, understood, and the version of the table that it works on.

    `only` names the files that it may rewrite, `None` for all.
    """

    def __init__(
        self, table: Table, request: CompactRequest, runtime: Runtime, only: frozenset[str] | None = None
    ) -> None:
        self.table, self.runtime = table, runtime
        self._request, self._only = request, only
        self.options = parse_options(RewriteDataFilesOptions, request.options or {})
        self.strategy = chosen_strategy(request.strategy, request.sort_order, table.metadata, self.options)
        self.sizes = _sizes(table.metadata, self.options)
        head_to_commit_to(table.metadata, request.branch)
        self.scan = open_scan(table, where=request.where, ref=request.branch)
        self.where, self.branch = request.where, request.branch
        self.spark = request.spark
        self.run_id = str(runtime.new_uuid())

    def on(self, table: Table, only: frozenset[str] | None) -> "_Run":
        """The same on another version of the table, for some files, or all as before."""
        return _Run(table, self._request, self.runtime, only)

    def plan(self, directory: str | None) -> RewritePlan:
        """The groups; where there are many, tasks put their files into `directory`, or nowhere if it is `None`."""
        return plan(
            self.scan,
            self.spark,
            self.strategy,
            self.options,
            branch=self.branch,
            only=self._only,
            directory=directory,
        )

    @contextmanager
    def kept_plan(self) -> Iterator[RewritePlan]:
        """The plan, with what is put in storage for as long as the block runs."""
        directory = own_directory(self.table.metadata, f"plans/{self.run_id}")
        storage = self.table.storage
        locations: Iterable[str] = ()
        try:
            planned = self.plan(directory)
            locations = plan_locations(planned)
            yield planned
        except BaseException:
            # Tasks that succeeded beside one that failed have told nobody what they wrote.
            with suppress(IcekeepError):
                locations = locations or [file.location for file in storage.list(directory)]
                moves = own_directory(self.table.metadata, f"runs/{self.run_id}")
                storage.delete_many([file.location for file in storage.list(moves)])
            raise
        finally:
            # After a commit nothing that is left behind makes the run a failed one; a later run sweeps it.
            with suppress(IcekeepError):
                storage.delete_many(locations)

    def workers(self, planned: RewritePlan) -> Workers:
        """Who rewrites the groups."""
        is_sorted = self.strategy.ordering is not None
        if any(
            (is_sorted or group.is_moved) and is_shuffled(group, BUDGET_BYTES, on_cluster=False)
            for group in planned.groups
        ):
            return spark_workers(started(self.spark))
        deletes_bytes = sum(group.delete_bytes for group in planned.groups)
        return chosen_workers(self.spark, planned.rewritten_bytes_count + deletes_bytes)

    def context(self, workers: Workers) -> GroupContext:
        """What all tasks have in common."""
        return GroupContext(
            metadata=without_history(self.table.metadata),
            ordering=self.strategy.ordering,
            sort_order_id=self.strategy.sort_order_id,
            run_id=self.run_id,
            budget_bytes=BUDGET_BYTES,
            moves_pages=self.options.stitch != "never",
            slots=workers.process_slots,
            is_local=workers.is_local,
            verifies=self._request.verify,
        )

    def methods(self, planned: RewritePlan, workers: Workers) -> dict[int, GroupMethod]:
        """How each group is rewritten."""
        context = self.context(workers)
        return choose_methods(planned, context, self.sizes, self.options.stitch, self.table.storage, workers)

    def metrics(self, groups: Iterable[FileGroup], methods: Mapping[int, GroupMethod]) -> dict[str, Metrics]:
        """What manifests say of the files of some groups that are put together byte for byte."""
        paths: set[str] = set()
        manifests: set[str] = set()
        for group in groups:
            if not methods[group.number].stitched:
                continue
            files = group_files(group, self.table.storage).files
            for some in methods[group.number].stitched:
                paths.update(files[position].file_path for position in some)
                manifests.update(files[position].manifest_path for position in some)
        return metrics_of(self.scan, self.spark, paths, manifests) if paths else {}

    def execution(
        self,
        planned: RewritePlan,
        methods: Mapping[int, GroupMethod],
        workers: Workers,
        written: WrittenFiles,
        listener: Listener,
    ) -> Execution:
        """What all groups are rewritten with."""
        return Execution(
            table=self.table,
            workers=workers,
            work=GroupWork(
                context=self.context(workers),
                sizes=self.sizes,
                groups={group.number: group for group in planned.groups},
                methods=methods,
                metrics={},
                may_reencode=self.options.stitch != "always",
                storage=self.table.storage,
            ),
            metrics=MetricsInParts(planned.groups, methods, partial(self.metrics, methods=methods)),
            shuffle_partitions_per_file=self.strategy.shuffle_partitions_per_file,
            concurrency=self.options.max_concurrent_file_group_rewrites,
            written=written,
            listener=listener,
        )

    def commits(self, planned: RewritePlan, written: WrittenFiles, listener: Listener) -> Commits:
        """What all commits are made with."""
        return Commits(
            table=self.table,
            run_id=self.run_id,
            plan=planned,
            options=self.options,
            reader=SparkManifestReader(self.spark, self.table.storage),
            store=partial(store_removed_files, self.table, self.spark),
            listener=listener,
            runtime=self.runtime,
            summary=order_summary(self.strategy),
            written=written,
        )

    def overlap_after(self, listener: Listener) -> float | None:
        """How many files a look-up by key meets now; `None` where nothing was ordered, or where that cannot be found out."""
        if self.strategy.ordering is None:
            return None

        def measured() -> float | None:
            after = self.table.catalog.load(self.table.identifier)
            scan = open_scan(after, where=self.where, ref=self.branch)
            return measured_overlap(scan, self.spark, self.strategy)

        return or_warned("how far the files overlap now", measured, None, listener)

    def estimated(self, planned: RewritePlan, methods: Mapping[int, GroupMethod], workers: Workers) -> Estimate:
        """What it will take."""
        works = [work for group in planned.groups for work in _works(group, methods[group.number])]
        return estimate(
            works,
            slots=workers.slots,
            groups_count=len(planned.groups),
            files_count=planned.rewritten_data_files_count + sum(group.delete_files_count for group in planned.groups),
            new_files_count=planned.expected_files_count,
            delete_bytes=sum(group.delete_bytes for group in planned.groups),
        )


class _Plans:
    """The plans of one run, and what came of them together: each after the first is for what the one before had to leave."""

    def __init__(self, run: _Run, listener: Listener) -> None:
        self._run, self._listener = run, listener
        self._result: RewriteDataFilesResult | None = None
        self._left: frozenset[str] | None = None
        self._left_count = 0
        self._is_cut_short = False

    def plan_and_commit(self, table: Table, number: int) -> None:
        """Plan, rewrite and commit.

        Raises:
            ConflictError: some groups are left for another plan.
        """
        if number > 1:
            self._run = self._run.on(table, self._left)
        run = self._run
        with run.kept_plan() as planned:
            _tell(run, planned, self._listener)
            if not planned.groups and (planned.snapshot_id is None or not run.options.remove_dangling_deletes):
                depth = planned.overlap_depth_before
                self._add(RewriteDataFilesResult(overlap_depth_before=depth, overlap_depth_after=depth), ())
                return
            committed = _rewritten(run, planned, self._listener)
            self._add(committed.result, committed.refused)
            self._left = _paths(committed.refused, run.table.storage)
        if committed.refusal is not None:
            raise committed.refusal

    def what(self) -> str:
        """What another plan is for."""
        return files_text(self._left_count, "data files")

    def has_landed(self) -> bool:
        """Whether a commit is in the table."""
        return self._result is not None and self._result.commits_count > 0

    def end_early(self, error: Exception) -> None:
        """Leave what is left as it is, and say why."""
        self._is_cut_short = True
        tell_early_end(self.result().commits_count, error, self._listener)

    def result(self) -> RewriteDataFilesResult:
        """What came of all plans; files that are left are failed ones."""
        result = self._result or RewriteDataFilesResult()
        return msgspec.structs.replace(
            result,
            status="partial" if self._is_cut_short else result.status,
            failed_data_files_count=result.failed_data_files_count + self._left_count,
        )

    def _add(self, result: RewriteDataFilesResult, refused: Sequence[FileGroup]) -> None:
        self._result = result if self._result is None else self._result.followed_by(result)
        self._left_count = sum(group.files_count for group in refused)


def _tell(run: _Run, planned: RewritePlan, listener: Listener) -> None:
    for note in planned.notes:
        listener.on(Warned(note))
    _LOG.info(
        "%s: run %s on snapshot %s: %d of %d candidates (%d bytes) in %d groups, %d new files expected",
        run.table.name,
        run.run_id,
        planned.snapshot_id,
        planned.rewritten_data_files_count,
        planned.candidate_files_count,
        planned.rewritten_bytes_count,
        len(planned.groups),
        planned.expected_files_count,
    )


def _paths(groups: Iterable[FileGroup], storage: Storage) -> frozenset[str]:
    return frozenset(file.file_path for group in groups for file in group_files(group, storage).files)


def _rewritten(run: _Run, planned: RewritePlan, listener: Listener) -> CommittedGroups:
    workers = run.workers(planned)
    methods = run.methods(planned, workers)
    assert planned.snapshot_id is not None
    estimated = run.estimated(planned, methods, workers)
    if run.strategy.ordering is not None or any(group.is_moved for group in planned.groups):
        warn_of_memory(workers, BUDGET_BYTES, listener)
    listener.on(StepStarted(STEP, planned.rewritten_data_files_count, "files"))
    run_id = run.run_id
    with (
        beating(run.table, run_id, "compact", run.runtime, listener) as heartbeat,
        hold_start(run.table, planned.snapshot_id, run_id, run.runtime, listener, heartbeat),
        written_files(run.table, run_id, listener) as written,
        closing(execute(planned, run.execution(planned, methods, workers, written, listener))) as finished,
    ):
        committed = commit_groups(finished, run.commits(planned, written, listener), heartbeat)
    result = committed.result
    listener.on(StepFinished(STEP, f"{result.rewritten_data_files_count} files -> {result.added_data_files_count}"))
    result = msgspec.structs.replace(
        result,
        overlap_depth_before=planned.overlap_depth_before,
        overlap_depth_after=run.overlap_after(listener),
        estimated=estimated,
    )
    return msgspec.structs.replace(committed, result=result)


def _works(group: FileGroup, method: GroupMethod) -> Sequence[Work]:
    left_bytes = group.bytes - method.stitched_bytes
    other = method.method if method.method is not RewriteMethod.STITCH else RewriteMethod.REENCODE
    works = []
    if method.stitched:
        works.append(Work(RewriteMethod.STITCH, method.stitched_bytes, len(method.stitched)))
    if left_bytes:
        works.append(Work(other, left_bytes, max(1, group.expected_files_count - len(method.stitched))))
    return works


def _sizes(metadata: TableMetadata, options: RewriteDataFilesOptions) -> FileSizes:
    if options.output_spec_id is not None and options.output_spec_id not in metadata.specs_by_id:
        raise NotFoundError(
            f"the table has no partition spec {options.output_spec_id} (option output-spec-id); it has "
            f"{', '.join(map(str, sorted(metadata.specs_by_id)))}"
        )
    return file_sizes(options, write_options(metadata.properties).target_file_size_bytes)
