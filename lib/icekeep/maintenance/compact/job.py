"""The job `compact` (Iceberg's `rewrite_data_files`): small and deleted-from files into fewer of the target size, in order.

strategy -> files of a scan with their deletes -> candidates -> plan of file groups -> how each group goes (copied, encoded
again, sorted, shuffled) -> rewritten groups -> `RewriteFiles` -> result; groups that others changed, once more
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.file_sets import Digest, entry_digest
from icekeep.commit.manifests import without_history
from icekeep.errors import NotFoundError
from icekeep.events import BYTES, Listener, StepFinished, StepStarted, Warned
from icekeep.formats.options import write_options
from icekeep.maintenance.compact import JOB
from icekeep.maintenance.compact.commit import (
    CommittedGroups,
    CompactionCommits,
    commit_groups,
    foreseen_removals,
    store_removed_files,
)
from icekeep.maintenance.compact.execute import STEP, CompactionRewriter
from icekeep.maintenance.compact.method import GroupContext, GroupMethod, choose_methods
from icekeep.maintenance.compact.options import (
    CompactionEstimate,
    RewriteDataFilesOptions,
    RewriteDataFilesResult,
    RewriteMethod,
    Work,
    estimate,
)
from icekeep.maintenance.compact.order import chosen_strategy, order_summary
from icekeep.maintenance.compact.plan import FileGroup, LeftAlone, RewritePlan, group_files, named_files, plan_locations
from icekeep.maintenance.compact.planner import IN_PLAN, plan
from icekeep.maintenance.compact.saved_plan import cost_of, exact_lines, plan_saved
from icekeep.maintenance.compact.tasks import GroupWork, Metrics, MetricsInParts, metrics_of
from icekeep.maintenance.delete.neighbours import refuse_files_of_others
from icekeep.maintenance.jobs import CommittingRequest, takes
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.plans import ExactPlan
from icekeep.maintenance.preconditions import NOTE_OF_REMOVALS, of_data_files, saved_removals
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.commit import keep_partial_result, warn_stopped_early
from icekeep.maintenance.rewrite.options import FileSizes, file_sizes
from icekeep.maintenance.rewrite.run import WRITTEN, RewriteRun, retry_with_replan, run_name
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.workers import Workers, chosen_workers, foreseen_workers, warn_of_memory
from icekeep.rendered import Rendered
from icekeep.runtime import Runtime
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import GIB
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.tables.refs import head_to_commit_to


class GroupPreview(msgspec.Struct, frozen=True, kw_only=True):
    """One group; sizes in bytes.

    Attributes:
        method: how most of its rows go.
        stitched_files_count: of its files, those whose row groups are copied byte for byte.
        reason: why the others are not, as far as that needs an answer.
    """

    partition: str
    files_count: int
    bytes: int
    record_count: int
    delete_files_count: int
    expected_files_count: int
    method: RewriteMethod
    stitched_files_count: int
    reason: str


class RewriteDataFilesPlan(Rendered, frozen=True, kw_only=True):
    """What a run with the same arguments would do now, under the names of its result.

    Attributes:
        applied_delete_files_count: those that reach any of the files.
        removed_delete_files_count: delete files that the commits would take out of the table as it is; `None` where only the
            commits can show it: rows move to another partition spec, or the plan has too many files.
        removed_delete_bytes_count: the size of these, of vectors that of their blobs.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        stitched_data_files_count: how many of the added files would be put together from whole row groups.
        reencoded_data_files_count: of the files, those whose rows are decoded and encoded again.
    """

    branch: str
    snapshot_id: int | None
    strategy: str
    target_file_size_bytes: int
    candidate_files_count: int
    rewritten_data_files_count: int
    rewritten_bytes_count: int
    applied_delete_files_count: int
    removed_delete_files_count: int | None
    removed_delete_bytes_count: int | None
    added_data_files_count: int
    stitched_data_files_count: int
    reencoded_data_files_count: int
    overlap_depth_before: float | None
    estimated: CompactionEstimate
    left_alone: tuple[LeftAlone, ...]
    groups: tuple[GroupPreview, ...]
    swept_files_count: int = 0


def preview(
    plan: RewritePlan,
    methods: dict[int, GroupMethod],
    removed: Sequence[ManifestEntry] | None,
    estimated: CompactionEstimate,
) -> RewriteDataFilesPlan:
    """A plan for people; `methods` by the number of the group, `removed` as `foreseen_removals` says."""
    groups = tuple(_group(group, methods[group.number]) for group in plan.groups)
    return RewriteDataFilesPlan(
        branch=plan.branch,
        snapshot_id=plan.snapshot_id,
        strategy=plan.strategy,
        target_file_size_bytes=plan.target_file_size_bytes,
        candidate_files_count=plan.candidate_files_count,
        rewritten_data_files_count=plan.rewritten_data_files_count,
        rewritten_bytes_count=plan.rewritten_bytes_count,
        applied_delete_files_count=sum(group.delete_files_count for group in groups),
        removed_delete_files_count=None if removed is None else len(removed),
        removed_delete_bytes_count=None if removed is None else sum(entry.data_file.own_bytes for entry in removed),
        added_data_files_count=sum(group.expected_files_count for group in groups),
        stitched_data_files_count=sum(len(methods[group.number].stitched) for group in plan.groups),
        reencoded_data_files_count=sum(group.files_count - group.stitched_files_count for group in groups),
        overlap_depth_before=plan.overlap_depth_before,
        estimated=estimated,
        left_alone=plan.left_alone,
        groups=groups,
    )


def _group(group: FileGroup, method: GroupMethod) -> GroupPreview:
    return GroupPreview(
        partition=group.partition,
        files_count=group.files_count,
        bytes=group.bytes,
        record_count=group.record_count,
        delete_files_count=group.delete_files_count,
        expected_files_count=method.files_count,
        method=method.method,
        stitched_files_count=method.stitched_files_count,
        reason=method.reason,
    )


Options = Mapping[str, Any] | RewriteDataFilesOptions

BUDGET_BYTES = GIB
"""The memory that a task orders rows in before it puts some on disk."""


class CompactRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `compact`, which says what each means."""

    strategy: str | None = None
    sort_order: str | None = None
    where: str | Expression = ALWAYS_TRUE
    options: Options | None = None
    branch: str = MAIN
    verify: bool = False


class CompactionRun:
    """One run: its arguments, understood, and the version of the table that it works on.

    `only` names the files that it may rewrite, `None` for all; `number` is that of its plan.
    """

    def __init__(
        self,
        table: Table,
        request: CompactRequest,
        runtime: Runtime,
        only: frozenset[str] | None = None,
        number: int = 1,
    ) -> None:
        self.table, self.runtime = table, runtime
        self._request, self._only, self._number = request, only, number
        self.options = parse_options(RewriteDataFilesOptions, request.options or {})
        self.strategy = chosen_strategy(request.strategy, request.sort_order, table.metadata, self.options)
        self.sizes = chosen_sizes(table.metadata, self.options)
        head_to_commit_to(table.metadata, request.branch)
        self.scan = open_scan(table, where=request.where, ref=request.branch, for_commit=True)
        self.where, self.branch = request.where, request.branch
        self.spark = request.spark
        self.run_id = run_name(table, number)

    def on(self, table: Table, only: frozenset[str] | None) -> "CompactionRun":
        """The same on another version of the table, for some files, or all as before."""
        return CompactionRun(table, self._request, self.runtime, only, self._number + 1)

    def plan(self, directory: str | None) -> RewritePlan:
        """The groups, those of the saved plan if there is one; `directory` as for `planner.plan`.

        Raises:
            SafetyError: a file that is to be read lies in a place of another table.
        """
        planned = self._planned(directory)
        refuse_files_of_others(self.table, named_files(planned.groups, self.table.storage))
        return planned

    def _planned(self, directory: str | None) -> RewritePlan:
        if self._request.saved is not None:
            return plan_saved(self.scan, self.spark, self.strategy, self.options, self._request.saved, directory)
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
        """The plan; what it has put into storage is removed when the block ends."""
        directory = own_directory(self.table.metadata, f"plans/{self.run_id}")
        storage = self.table.storage
        locations: Iterable[str] = ()
        try:
            planned = self.plan(directory)
            locations = plan_locations(planned)
            yield planned
        except BaseException:
            # Tasks that succeeded beside one that failed have not reported what they wrote.
            with suppress(Exception):
                locations = locations or [file.location for file in storage.list(directory)]
                moves = own_directory(self.table.metadata, f"runs/{self.run_id}")
                # Names of files that tasks were writing stay until it is known what became of them.
                found = (file.location for file in storage.list(moves))
                storage.delete_many([location for location in found if f"/{WRITTEN}/" not in location])
            raise
        finally:
            # After a commit nothing that is left behind makes the run a failed one; a later run sweeps it.
            with suppress(Exception):
                storage.delete_many(locations)

    def workers(self, planned: RewritePlan, *, is_preview: bool = False) -> Workers:
        """Threads or Spark tasks, whichever are to rewrite the groups; for a preview no session is started."""
        deletes_bytes = sum(group.delete_bytes for group in planned.groups)
        deletes_count = sum(group.delete_files_count for group in planned.groups)
        return (foreseen_workers if is_preview else chosen_workers)(
            self.spark,
            planned.rewritten_bytes_count + deletes_bytes,
            planned.rewritten_data_files_count + deletes_count,
        )

    def context(self, workers: Workers) -> GroupContext:
        """What all tasks have in common."""
        return GroupContext(
            metadata=without_history(self.table.metadata),
            sizes=self.sizes,
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
        context, options = self.context(workers), self.options
        storage = self.table.storage
        return choose_methods(planned, context, options.stitch, options.min_input_files, storage, workers)

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

    def rewriter(
        self, rewrite: RewriteRun, planned: RewritePlan, methods: Mapping[int, GroupMethod], workers: Workers
    ) -> CompactionRewriter:
        """What rewrites all groups."""
        work = GroupWork(
            context=self.context(workers),
            groups={group.number: group for group in planned.groups},
            methods=methods,
            metrics={},
            may_reencode=self.options.stitch != "always",
            storage=self.table.storage,
        )
        return CompactionRewriter(
            rewrite,
            planned,
            workers,
            work,
            MetricsInParts(planned.groups, methods, partial(self.metrics, methods=methods)),
            concurrency=self.options.max_concurrent_file_group_rewrites,
            shuffle_partitions_per_file=self.strategy.shuffle_partitions_per_file,
        )

    def removals(self, planned: RewritePlan, methods: Mapping[int, GroupMethod]) -> list[ManifestEntry] | None:
        """The delete files that the commits take out of the table as it is, as `foreseen_removals` says.

        Raises:
            SafetyError: the saved plan names one that is not among them.
        """
        found, saved = foreseen_removals(self.table, planned, self.options, methods), self._request.saved
        return found if found is None or saved is None else saved_removals(saved, found, self.table.metadata)

    def only_dangling(self, planned: RewritePlan, methods: Mapping[int, GroupMethod]) -> frozenset[Digest] | None:
        """Which of the delete files that reach nothing may go; `None` for all. Raises as `removals`."""
        found = None if self._request.saved is None else self.removals(planned, methods)
        return None if found is None else frozenset(map(entry_digest, found))

    def commits(
        self, rewrite: RewriteRun, planned: RewritePlan, only_dangling: frozenset[Digest] | None
    ) -> CompactionCommits:
        """What all commits are made with."""
        return CompactionCommits(
            run=rewrite,
            plan=planned,
            options=self.options,
            reader=SparkManifestReader(self.spark, self.table.storage),
            store=partial(store_removed_files, self.table, self.spark),
            summary=order_summary(self.strategy),
            only_dangling=only_dangling,
        )

    def estimated(
        self, planned: RewritePlan, methods: Mapping[int, GroupMethod], workers: Workers
    ) -> CompactionEstimate:
        """What it will take."""
        works = [work for group in planned.groups for work in _works(group, methods[group.number])]
        return estimate(
            works,
            slots=workers.slots,
            groups_count=len(planned.groups),
            files_count=planned.rewritten_data_files_count + sum(group.delete_files_count for group in planned.groups),
            new_files_count=sum(methods[group.number].files_count for group in planned.groups),
            delete_bytes=sum(group.delete_bytes for group in planned.groups),
            pace=1.0 if self.table.run is None else self.table.run.cpu_pace,
        )


def _works(group: FileGroup, method: GroupMethod) -> Sequence[Work]:
    left_bytes = group.bytes - method.stitched_bytes
    other = method.method if method.method is not RewriteMethod.STITCH else RewriteMethod.REENCODE
    works = []
    if method.stitched:
        works.append(Work(RewriteMethod.STITCH, method.stitched_bytes, len(method.stitched)))
    if left_bytes:
        works.append(Work(other, left_bytes, max(1, method.files_count - len(method.stitched))))
    return works


def chosen_sizes(metadata: TableMetadata, options: RewriteDataFilesOptions) -> FileSizes:
    """The sizes of files that the options ask for.

    Raises:
        NotFoundError: the table has no such partition spec.
        OptionError: a size is wrong.
    """
    if options.output_spec_id is not None and options.output_spec_id not in metadata.specs_by_id:
        raise NotFoundError(
            f"the table has no partition spec {options.output_spec_id} (option output-spec-id); it has "
            f"{', '.join(map(str, sorted(metadata.specs_by_id)))}"
        )
    return file_sizes(options, write_options(metadata.properties).target_file_size_bytes)


_LOG = logging.getLogger(__name__)

Count = Callable[[RewriteDataFilesResult, Sequence[FileGroup]], None]
"""Takes in what the commits of a plan did, and the groups that they left out."""


@takes(CompactRequest, asks=JOB.asks)
def compact(table: Table, request: CompactRequest) -> RewriteDataFilesResult:
    """Rewrite badly sized data files, apply their row-level deletes, and sort them if asked; the table's rows do not change.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. What is too little to
            be worth a Spark job is rewritten by threads of this process.
        strategy: `binpack` (the order of rows stays) or `sort`; by default `sort` where an order is given.
        sort_order: of a sort, such as `day, id DESC NULLS LAST`, `zorder(a, b)` or `hilbert(a, b)`; by default the table's.
        where: chooses files; a chosen file is rewritten whole.
        options: of Iceberg's `rewrite_data_files`, under its names, and `stitch`.
        branch: whose files are rewritten, and where that is committed; no other branch moves.
        verify: compare the content of the rows that went in with that of the new files, read from storage again, before
            anything is committed; where they differ nothing is, and the new files are kept. The numbers of rows are always
            compared.
        saved: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        OptionError, ExpressionError, NotFoundError, UsageError: an argument is wrong, such as a tag in place of a branch;
            nothing was done.
        UnsupportedError: the table has something that cannot be rewritten; nothing was done.
        JobFailedError: a file could not be rewritten; the table is as it was, and new files are removed. Once a commit has
            landed the result is `partial` instead, and a warning says what failed.
        ConflictError: others kept changing files that were to be replaced, however often these were planned again
            (`commit.retry.num-retries`).
        SafetyError: the table was dropped and made again meanwhile, or moved; or the saved plan does not hold any more; or a
            file that is to be read lies in a place of another table.
        OutcomeUnknownError: a commit may or may not have landed; its files are kept.
    """
    listener, runtime = request.listener, table.runtime
    run = CompactionRun(table, request, runtime)
    for warning in run.strategy.warnings:
        listener.on(Warned(warning))
    swept_count = sweep_runs(table, runtime, keep=run.run_id, listener=listener) if request.saved is None else 0
    plans = _Plans(run, listener)
    with keep_partial_result(plans.has_landed, plans.end_early):
        retry_with_replan(
            table, plans.plan_and_commit, what=plans.what, listener=listener, only_once=request.saved is not None
        )
    return msgspec.structs.replace(plans.result(), swept_files_count=swept_count)


@takes(CompactRequest)
def plan_compact(table: Table, request: CompactRequest) -> RewriteDataFilesPlan:
    """Say what `compact` with the same arguments would do; raises as it does, and writes nothing.

    Position delete files are read, as the run reads them, where only their rows show that they go.
    """
    return _foreseen(table, request, None).shown


@takes(CompactRequest, "compact")
def exact_compact(table: Table, request: CompactRequest) -> ExactPlan:
    """What `compact` with the same arguments would do, with all files; raises as it does, and writes nothing."""
    return _foreseen(table, request, IN_PLAN)


def _foreseen(table: Table, request: CompactRequest, directory: str | None) -> ExactPlan:
    run = CompactionRun(table, request, table.runtime)
    planned = run.plan(directory)
    for note in planned.notes:
        request.listener.on(Warned(note))
    workers = run.workers(planned, is_preview=True)
    methods = run.methods(planned, workers)
    removed = run.removals(planned, methods)
    shown = preview(planned, methods, removed, run.estimated(planned, methods, workers))
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep="", listener=request.listener, is_plan=True)
        shown = msgspec.structs.replace(shown, swept_files_count=swept_count)
    return ExactPlan(
        shown=shown,
        branch=planned.branch,
        snapshot_id=planned.snapshot_id,
        lines=exact_lines(planned, methods, removed or (), table.storage),
        decided_by=of_data_files(table.metadata),
        cost=cost_of(shown.estimated),
        notes=(NOTE_OF_REMOVALS,) if removed is None else (),
    )


@takes(CompactRequest)
def check_arguments(metadata: TableMetadata, request: CompactRequest) -> None:
    """Hold the arguments against each other and the table, before Spark starts; raises as `compact` does."""
    chosen = parse_options(RewriteDataFilesOptions, request.options or {})
    chosen_strategy(request.strategy, request.sort_order, metadata, chosen)
    chosen_sizes(metadata, chosen)


class _Plans:
    """The plans of one run, and what came of them together: each after the first is for what the one before had to leave."""

    def __init__(self, run: CompactionRun, listener: Listener) -> None:
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
            _announce(run, planned, self._listener)
            if not planned.groups and (planned.snapshot_id is None or not run.options.remove_dangling_deletes):
                self._add(RewriteDataFilesResult(overlap_depth_before=planned.overlap_depth_before), ())
                return
            committed = _rewritten(run, planned, self._listener, self._add)
            self._left = _paths(committed.deferred, run.table.storage)
        if committed.conflict is not None:
            raise committed.conflict

    def what(self) -> str:
        """What another plan is for."""
        return counted(self._left_count, "data files") if self._left_count else "data files"

    def has_landed(self) -> bool:
        """Whether a commit is in the table."""
        return self._result is not None and self._result.commits_count > 0

    def end_early(self, error: Exception) -> None:
        """Leave the remaining groups as they are, and say why."""
        self._is_cut_short = True
        warn_stopped_early(self.result().commits_count, error, self._listener)

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


def _announce(run: CompactionRun, planned: RewritePlan, listener: Listener) -> None:
    for note in planned.notes:
        listener.on(Warned(note))
    _LOG.info(
        "%s: run %s on snapshot %s: %d of %d candidates (%d bytes) in %d groups",
        run.table.name,
        run.run_id,
        planned.snapshot_id,
        planned.rewritten_data_files_count,
        planned.candidate_files_count,
        planned.rewritten_bytes_count,
        len(planned.groups),
        extra=log_context(run.table),
    )


def _paths(groups: Iterable[FileGroup], storage: Storage) -> frozenset[str]:
    return frozenset(file.file_path for group in groups for file in group_files(group, storage).files)


def _rewritten(run: CompactionRun, planned: RewritePlan, listener: Listener, count: Count) -> CommittedGroups:
    """Rewrite and commit the groups of a plan; what landed is counted before anything else can fail."""
    workers = run.workers(planned)
    methods = run.methods(planned, workers)
    assert planned.snapshot_id is not None
    estimated = run.estimated(planned, methods, workers)
    if run.strategy.ordering is not None or any(group.is_moved for group in planned.groups):
        warn_of_memory(workers, BUDGET_BYTES, listener)
    listener.on(StepStarted(STEP, planned.rewritten_bytes_count, BYTES))
    run_id = run.run_id
    only_dangling = run.only_dangling(planned, methods)
    with (
        RewriteRun(run.table, "compact", run_id, listener) as rewrite,
        rewrite.pinned(planned.snapshot_id) if planned.groups else nullcontext(),
        closing(run.rewriter(rewrite, planned, methods, workers).finished()) as finished,
    ):
        committed = commit_groups(finished, run.commits(rewrite, planned, only_dangling))
        result = committed.result
        replaced = counted(result.rewritten_data_files_count, "files")
        listener.on(StepFinished(STEP, f"{replaced} -> {result.added_data_files_count:,}"))
        result = msgspec.structs.replace(
            result,
            overlap_depth_before=planned.overlap_depth_before,
            estimated=estimated,
        )
        count(result, committed.deferred)
    return committed
