"""The job `compact` (Iceberg's `rewrite_data_files`): small and deleted-from files into fewer of the target size, in order.

strategy -> files of a scan with their deletes -> candidates -> plan of file groups -> how each group goes (copied, encoded
anew, sorted, shuffled) -> rewritten groups -> `RewriteFiles` -> result; groups that others were in the way of, once more
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from typing import NamedTuple

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.log_context import log_context
from icekeep.events import BYTES, Listener, StepFinished, StepStarted, Warned
from icekeep.maintenance.compaction.commits import CommittedGroups, commit_groups
from icekeep.maintenance.compaction.execute import STEP, execute
from icekeep.maintenance.compaction.given_groups import cost_of, exact_lines
from icekeep.maintenance.compaction.methods import GroupMethod
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import FileGroup, RewritePlan, group_files
from icekeep.maintenance.compaction.planner import IN_PLAN
from icekeep.maintenance.compaction.preview import RewriteDataFilesPlan, preview
from icekeep.maintenance.compaction.result import RewriteDataFilesResult
from icekeep.maintenance.compaction.run import BUDGET_BYTES, CompactRequest, Run, chosen_sizes
from icekeep.maintenance.compaction.strategy import chosen_strategy
from icekeep.maintenance.deciding import of_data_files
from icekeep.maintenance.exact_plans import NOTE_OF_REMOVALS, ExactPlan
from icekeep.maintenance.groups.commits import files_text, partial_once_landed, tell_early_end
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.planning_anew import plan_till_done
from icekeep.maintenance.requests import takes
from icekeep.maintenance.runs.heartbeat import beating
from icekeep.maintenance.runs.left_behind import sweep_runs
from icekeep.maintenance.runs.start_tag import hold_start
from icekeep.maintenance.runs.written_files import written_files
from icekeep.planning.spark.workers import warn_of_memory
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spelling import counted
from icekeep.storage.base import Storage

_LOG = logging.getLogger(__name__)

Count = Callable[[RewriteDataFilesResult, Sequence[FileGroup]], None]
"""Takes in what the commits of a plan did, and the groups that they left out."""

__all__ = ["RewriteDataFilesOptions", "RewriteDataFilesPlan", "RewriteDataFilesResult", "compact", "plan_compact"]


@takes(CompactRequest)
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
        given: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        OptionError, ExpressionError, NotFoundError, UsageError: an argument is wrong, such as a tag in place of a branch;
            nothing was done.
        UnsupportedError: the table has something that cannot be rewritten; nothing was done.
        JobFailedError: a file could not be rewritten; the table is as it was, and new files are removed. Once a commit has
            landed the result is `partial` instead, and a warning says what failed.
        ConflictError: others kept changing files that were to be replaced, however often these were planned again
            (`commit.retry.num-retries`).
        SafetyError: the table was dropped and made again meanwhile, or moved; or what was given does not hold any more; or a
            file that is to be read lies in a place of another table.
        OutcomeUnknownError: a commit may or may not have landed; its files are kept.
    """
    listener, runtime = request.listener, table.runtime
    run = Run(table, request, runtime)
    for warning in run.strategy.warnings:
        listener.on(Warned(warning))
    swept_count = sweep_runs(table, runtime, keep=run.run_id, listener=listener) if request.given is None else 0
    plans = _Plans(run, listener)
    with partial_once_landed(plans.has_landed, plans.end_early):
        plan_till_done(
            table, plans.plan_and_commit, what=plans.what, listener=listener, only_once=request.given is not None
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
    foreseen = _foreseen(table, request, IN_PLAN)
    planned, removed = foreseen.planned, foreseen.removed
    return ExactPlan(
        shown=foreseen.shown,
        branch=planned.branch,
        snapshot_id=planned.snapshot_id,
        lines=exact_lines(planned, foreseen.methods, removed or (), table.storage),
        decided_by=of_data_files(table.metadata),
        cost=cost_of(foreseen.shown.estimated),
        notes=(NOTE_OF_REMOVALS,) if removed is None else (),
    )


class _Foreseen(NamedTuple):
    """A plan, and what it is made of; `removed` as `Run.removals` says."""

    shown: RewriteDataFilesPlan
    planned: RewritePlan
    methods: dict[int, GroupMethod]
    removed: list[ManifestEntry] | None


def _foreseen(table: Table, request: CompactRequest, directory: str | None) -> _Foreseen:
    run = Run(table, request, table.runtime)
    planned = run.plan(directory)
    for note in planned.notes:
        request.listener.on(Warned(note))
    workers = run.workers(planned)
    methods = run.methods(planned, workers)
    removed = run.removals(planned, methods)
    shown = preview(planned, methods, removed, run.estimated(planned, methods, workers))
    if request.given is None:
        swept_count = sweep_runs(table, table.runtime, keep="", listener=request.listener, is_plan=True)
        shown = msgspec.structs.replace(shown, swept_files_count=swept_count)
    return _Foreseen(shown, planned, methods, removed)


@takes(CompactRequest)
def check_arguments(metadata: TableMetadata, request: CompactRequest) -> None:
    """Hold the arguments against each other and the table, before Spark starts; raises as `compact` does."""
    chosen = parse_options(RewriteDataFilesOptions, request.options or {})
    chosen_strategy(request.strategy, request.sort_order, metadata, chosen)
    chosen_sizes(metadata, chosen)


class _Plans:
    """The plans of one run, and what came of them together: each after the first is for what the one before had to leave."""

    def __init__(self, run: Run, listener: Listener) -> None:
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
            committed = _rewritten(run, planned, self._listener, self._add)
            # This plans the whole table, which takes minutes: what has landed is counted before.
            depth = run.overlap_after(self._listener)
            assert self._result is not None
            self._result = msgspec.structs.replace(self._result, overlap_depth_after=depth)
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


def _tell(run: Run, planned: RewritePlan, listener: Listener) -> None:
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


def _rewritten(run: Run, planned: RewritePlan, listener: Listener, count: Count) -> CommittedGroups:
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
        beating(run.table, run_id, "compact", run.runtime, listener) as heartbeat,
        hold_start(run.table, planned.snapshot_id, run_id, run.runtime, listener, heartbeat)
        if planned.groups
        else nullcontext(),
        written_files(run.table, run_id, listener) as written,
        closing(execute(planned, run.execution(planned, methods, workers, written, listener))) as finished,
    ):
        committed = commit_groups(finished, run.commits(planned, written, only_dangling, listener), heartbeat)
        result = committed.result
        replaced = counted(result.rewritten_data_files_count, "files")
        listener.on(StepFinished(STEP, f"{replaced} -> {result.added_data_files_count:,}"))
        result = msgspec.structs.replace(
            result,
            overlap_depth_before=planned.overlap_depth_before,
            estimated=estimated,
        )
        count(result, committed.refused)
    return committed
