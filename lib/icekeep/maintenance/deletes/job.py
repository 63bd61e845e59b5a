"""The job `rewrite_position_deletes` (Iceberg's `rewrite_position_delete_files`): fewer position delete files, or vectors.

equality deletes, where that is asked for, are turned into deletes of positions first; then
live delete files -> those that reach nothing, and groups of one partition -> merged groups -> `RewriteDeletes` -> result
"""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Any

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.retry import reloaded
from icekeep.errors import OutcomeUnknownError, UsageError, argument, one_line
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.formats.deletes.read import hold_own_path
from icekeep.formats.deletes.rewrite import delete_format
from icekeep.maintenance.delete.neighbours import refuse_files_of_others
from icekeep.maintenance.deletes import JOB
from icekeep.maintenance.deletes import equality as equality_deletes
from icekeep.maintenance.deletes.execute import (
    STEP,
    DeletesCommitter,
    DeletesRewriter,
    Finished,
    RewrittenDeletes,
    TaskContext,
    is_small,
)
from icekeep.maintenance.deletes.live_rows import load_live_files
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, RewritePositionDeletesResult
from icekeep.maintenance.deletes.plan import (
    DeleteGroup,
    DeletesPlan,
    RewritePositionDeletesPlan,
    becomes_of,
    cost_of,
    exact_lines,
    group_rules,
    plan,
    preview,
)
from icekeep.maintenance.jobs import CommittingRequest, takes
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.plans import ExactPlan
from icekeep.maintenance.preconditions import of_delete_files
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.commit import keep_partial_result
from icekeep.maintenance.rewrite.groups import run_groups
from icekeep.maintenance.rewrite.run import RewriteRun, retry_with_replan, run_name
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.session import limits_of
from icekeep.planning.spark.workers import chosen_workers
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.snapshots import MAIN
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.tables.refs import head_to_commit_to

_LOG = logging.getLogger(__name__)


Options = Mapping[str, Any] | RewritePositionDeletesOptions


class RewritePositionDeletesRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `rewrite_position_deletes`, which says what each means."""

    where: str | Expression = ALWAYS_TRUE
    options: Options | None = None
    branch: str = MAIN
    convert_equality_deletes: bool = False


@takes(RewritePositionDeletesRequest, asks=JOB.asks)
def rewrite_position_deletes(table: Table, request: RewritePositionDeletesRequest) -> RewritePositionDeletesResult:
    """Merge small position delete files, and drop those, and rows of them, that reach no data file; no row changes.

    In format version 3 position delete files become deletion vectors, one a data file. A data file that has a vector keeps
    it: it stands for all older deletes of positions. Where others change what is being rewritten, so that a commit is
    refused, what they changed is planned again, as often as `commit.retry.num-retries` says.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. What is too little to
            be worth a Spark job is rewritten by threads of this process.
        where: chooses delete files by their partition: those that a matching row may lie in.
        options: of Iceberg's `rewrite_position_delete_files`, under its names.
        branch: whose delete files are rewritten, and where that is committed; no other branch moves.
        convert_equality_deletes: turn equality deletes into deletes of positions first (`convert_equality_deletes` in
            `equality` says how), in a commit of its own.
        saved: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        OptionError, ExpressionError, NotFoundError, UsageError: an argument is wrong, such as a tag in place of a branch, or
            a property of the table; nothing was done.
        UnsupportedError: the table is encrypted; nothing was done.
        JobFailedError: a delete file could not be rewritten; the table is as it was, and new files are removed. Once a commit
            has landed, that of the conversion or one of several, the result is `partial` instead, and a warning says why.
        ConflictError: others kept changing what was to be replaced, however often it was planned again.
        SafetyError: the table was dropped and made again meanwhile, or moved; or the saved plan does not hold any more; or a
            delete file that is to be read lies in a place of another table.
        OutcomeUnknownError: a commit may or may not have landed; its files are kept.
    """
    listener = request.listener
    run = _Run(table, request)
    swept_count = 0
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep=run.run_id, listener=listener)
    converted = None
    if request.convert_equality_deletes:
        converted = equality_deletes.convert_equality_deletes(
            table, request.spark, where=request.where, branch=request.branch, listener=listener
        )
    try:
        if converted is not None:
            run.table = reloaded(table)
        result = RewritePositionDeletesResult()
        with run.stored():
            planned = run.plan(run.directory)
            if planned.groups or planned.dangling:
                with RewriteRun(run.table, "rewrite_position_deletes", run.run_id, listener) as rewrite:
                    result = _Plans(run, planned, rewrite).result()
    except OutcomeUnknownError:
        raise
    except Exception as error:
        if converted is None or converted.is_idle:
            raise
        listener.on(Warned(f"equality deletes are converted, position deletes were not rewritten: {one_line(error)}"))
        result = RewritePositionDeletesResult(status="partial")
    return msgspec.structs.replace(result, conversion=converted, swept_files_count=swept_count)


@takes(RewritePositionDeletesRequest)
def plan_rewrite_position_deletes(table: Table, request: RewritePositionDeletesRequest) -> RewritePositionDeletesPlan:
    """Say what `rewrite_position_deletes` with the same arguments would do; raises as it does, and writes nothing.

    Position delete files are read where only their rows show that they reach nothing. Deletes that a conversion would make are
    not planned for, since they are not known yet.
    """
    run = _Run(table, request)
    shown = _shown(run, run.plan(None))
    if not request.convert_equality_deletes:
        return shown
    conversion = equality_deletes.plan_convert_equality_deletes(
        table, request.spark, where=request.where, branch=request.branch, listener=request.listener
    )
    return msgspec.structs.replace(shown, conversion=conversion)


@takes(RewritePositionDeletesRequest, "rewrite_position_deletes")
def exact_rewrite_position_deletes(table: Table, request: RewritePositionDeletesRequest) -> ExactPlan:
    """What `rewrite_position_deletes` with the same arguments would do, with all files; raises as it does, and writes nothing.

    Raises:
        UsageError: equality deletes are to be converted first.
    """
    if request.convert_equality_deletes:
        raise UsageError(
            "which deletes a conversion makes is known only when it is done, so that no plan can name what is rewritten after "
            f"it; leave out {argument('convert_equality_deletes')} for a plan, or run the job without one"
        )
    run = _Run(table, request)
    planned = run.plan(None)
    return ExactPlan(
        shown=_shown(run, planned),
        branch=planned.branch,
        snapshot_id=planned.snapshot_id,
        lines=exact_lines(planned, becomes_of(table.metadata.format_version)),
        decided_by=of_delete_files(table.metadata),
        cost=cost_of(planned),
    )


@takes(RewritePositionDeletesRequest)
def check_arguments(metadata: TableMetadata, request: RewritePositionDeletesRequest) -> None:
    """Hold the arguments against the table, before Spark starts; raises as `rewrite_position_deletes` does."""
    if request.convert_equality_deletes:
        equality_deletes.check_arguments(metadata)
    group_rules(metadata, parse_options(RewritePositionDeletesOptions, request.options or {}))
    delete_format(metadata.properties)


def _shown(run: "_Run", planned: DeletesPlan) -> RewritePositionDeletesPlan:
    """A plan for people. As in the run, a group counts as one that reaches nothing only if its rows show that."""
    table, swept_count = run.table, 0
    if run.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep="", listener=run.listener, is_plan=True)
    groups = []
    for group in planned.groups:
        files = [read.entry.data_file for read in group.files]
        is_dangling = group.seems_dangling and len(hold_own_path(table.storage, files)) == len(files)
        groups.append(msgspec.structs.replace(group, seems_dangling=is_dangling))
    shown = preview(msgspec.structs.replace(planned, groups=tuple(groups)), table.metadata.format_version)
    return msgspec.structs.replace(shown, swept_files_count=swept_count)


class _Run:
    """One run: its arguments, understood, and the version of the table that it works on."""

    def __init__(self, table: Table, request: RewritePositionDeletesRequest) -> None:
        self.table, self.listener = table, request.listener
        self.options = parse_options(RewritePositionDeletesOptions, request.options or {})
        check_arguments(table.metadata, options=self.options)
        head_to_commit_to(table.metadata, request.branch)
        self.spark = request.spark
        self.where, self.branch, self.saved = request.where, request.branch, request.saved
        self.run_id = run_name(table)
        self.directory = own_directory(table.metadata, f"plans/{self.run_id}")
        self._has_stored = False

    def plan(self, directory: str | None) -> DeletesPlan:
        """What there is to do in the table as it is held; where there is much of it, tasks use `directory`, unless `None`."""
        scan = open_scan(self.table, where=self.where, ref=self.branch, for_commit=True)
        planned = plan(scan, self.spark, self.options, branch=self.branch, directory=directory, saved=self.saved)
        self._has_stored = self._has_stored or planned.has_stored
        named = ([read.entry.data_file.file_path for read in group.files] for group in planned.groups)
        refuse_files_of_others(self.table, named)
        return planned

    @contextmanager
    def stored(self) -> Iterator[None]:
        """Remove what plans have put into storage when the block ends."""
        try:
            yield
        except BaseException:
            # Tasks that succeeded beside one that failed have not reported what they wrote.
            self._has_stored = True
            raise
        finally:
            # After a commit nothing that is left behind makes the run a failed one; a later run sweeps it.
            with suppress(Exception):
                storage = self.table.storage
                storage.delete_many([f.location for f in storage.list(self.directory)] if self._has_stored else ())


class _Plans:
    """The plans of one run: each after the first is for what the one before had to defer."""

    def __init__(self, run: _Run, planned: DeletesPlan, rewrite: RewriteRun) -> None:
        self._run, self._planned, self._rewrite = run, planned, rewrite
        reader = SparkManifestReader(run.spark, run.table.storage)
        self._committer = DeletesCommitter(rewrite, run.options, reader, run.branch)
        _LOG.info(
            "%s: run %s on snapshot %s: %d delete files in %d groups, %d that reach nothing",
            run.table.name,
            run.run_id,
            planned.snapshot_id,
            sum(group.files_count for group in planned.groups),
            len(planned.groups),
            len(planned.dangling),
            extra=log_context(run.table),
        )

    def result(self) -> RewritePositionDeletesResult:
        """Rewrite and commit, and say what was done."""
        run, committer = self._run, self._committer

        def what() -> str:
            count = committer.deferred_files_count
            return counted(count, committer.files) if count else committer.files

        with keep_partial_result(lambda: committer.has_landed, lambda error: committer.end_early(error, self._planned)):
            try:
                only_once = run.saved is not None
                retry_with_replan(
                    run.table, self._plan_and_commit, what=what, listener=run.listener, only_once=only_once
                )
            finally:
                committer.discard(committer.take_deferred())
        return committer.result()

    def _plan_and_commit(self, table: Table, number: int) -> None:
        run = self._run
        run.table = self._rewrite.table = table
        if number > 1:
            self._planned = self._committer.without_landed(run.plan(run.directory))
        run_id, snapshot_id = f"{run.run_id}-{number}", self._planned.snapshot_id
        # Files of a snapshot that only it may lead to are read for groups alone.
        if self._planned.groups:
            assert snapshot_id is not None
            with self._rewrite.pinned(snapshot_id, run_id):
                self._rewrite_plan(run_id)
        else:
            self._rewrite_plan(run_id)
        if self._committer.conflict is not None:
            raise self._committer.conflict

    def _rewrite_plan(self, run_id: str) -> None:
        """Rewrite and commit the groups of a plan; those that were rewritten before as they are planned now are taken over."""
        run, planned, committer = self._run, self._planned, self._committer
        metadata = run.table.metadata
        taken = _taken_over(planned.groups, committer.deferred, metadata.format_version, run.table.storage)
        numbers = {one.group.number for one in taken}
        groups = [group for group in planned.groups if group.number not in numbers]
        rules = group_rules(metadata, run.options)
        context = TaskContext(
            metadata=metadata,
            sizes=rules.sizes,
            granularity=rules.granularity,
            file_format=delete_format(metadata.properties),
            run_id=run_id,
        )
        large = [group for group in groups if not is_small(group, limits_of(run.spark))]
        large_bytes, large_count = sum(group.bytes for group in large), sum(group.files_count for group in large)
        workers = chosen_workers(run.spark, large_bytes, large_count)
        rewriter = DeletesRewriter(self._rewrite, workers, context, run.options.max_concurrent_file_group_rewrites)
        deferred, waiting = committer.take_deferred(), deque(taken)
        files_count = sum(group.files_count for group in groups)
        try:
            committer.discard(group for group in deferred if all(group.added is not one.added for one in taken))
            run.listener.on(StepStarted(STEP, files_count, "files"))
            with closing(run_groups(groups, rewriter, f"icekeep-rewrite-deletes-{run_id}")) as finished:
                both: Iterator[Finished] = chain(_handed_over(waiting), finished)
                committer.run(planned, both, metadata.format_version)
        finally:
            # Those that never came to the committer, since something ended the plan before.
            committer.discard(waiting)
        run.listener.on(StepFinished(STEP, counted(files_count, "files")))


def _handed_over(waiting: deque[RewrittenDeletes]) -> Iterator[RewrittenDeletes]:
    while waiting:
        yield waiting.popleft()


def _taken_over(
    groups: Sequence[DeleteGroup], left: Sequence[RewrittenDeletes], format_version: int, storage: Storage
) -> list[RewrittenDeletes]:
    """Groups that an earlier plan had rewritten, where that is what this one asks for."""
    done = {group.group.digests: group for group in left}
    taken = []
    for group in groups:
        before = done.get(group.digests)
        if before is not None and _is_still_right(before, group, storage, makes_vectors=format_version > 2):
            taken.append(msgspec.structs.replace(before, group=group))
    return taken


def _is_still_right(before: RewrittenDeletes, group: DeleteGroup, storage: Storage, *, makes_vectors: bool) -> bool:
    if any(is_deletion_vector(file) is not makes_vectors for file in before.added):
        return False
    live = load_live_files(group.live, storage)
    for digest, named in before.named.items():
        file = live.at(digest)
        number, has_vector = (None, False) if file is None else (file.sequence_number, file.has_vector)
        if named.problem(number, has_vector=has_vector, makes_vectors=makes_vectors) is not None:
            return False
    return True
