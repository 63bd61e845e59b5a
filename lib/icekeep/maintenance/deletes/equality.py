"""Equality deletes -> deletes of positions: the same rows stay, and readers need not compare values any more.

equality deletes of a branch -> plan (which go, what they reach) -> data files looked through in their key columns, by Spark tasks
that each take a share of them -> position delete files or vectors -> `ConvertDeletes` -> result; planned again where others
changed what the deletes reach
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table, log_context
from icekeep.commit.changes.deletes import ConvertDeletes, EntryDigests
from icekeep.commit.manifests import without_history
from icekeep.errors import IcekeepBug, IcekeepError, job_failed
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.formats.deletes.rewrite import (
    ConversionOutcome,
    ConversionTask,
    Granularity,
    ReachedFile,
    convert,
    delete_format,
)
from icekeep.maintenance.deletes import JOB
from icekeep.maintenance.deletes.equality_plan import (
    ConversionPlan,
    ConvertEqualityDeletesPlan,
    Reach,
    data_entry,
    delete_entry,
    plan,
)
from icekeep.maintenance.deletes.options import (
    ConvertEqualityDeletesOptions,
    ConvertEqualityDeletesResult,
    chosen_granularity,
)
from icekeep.maintenance.jobs import JobRequest, takes
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.run import RewriteRun, WrittenFiles, retry_with_replan, run_name, undoing
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import open_scan, refuse_encrypted_file
from icekeep.planning.spark.session import task_context
from icekeep.planning.spark.tasks import attempt_id, run_over_partitions, run_tasks
from icekeep.planning.spark.workers import DATA_BYTES, Workers, chosen_workers, in_turns, tasks_count
from icekeep.spec.collections import cut_evenly
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import MIB
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import stopping
from icekeep.tables.refs import head_to_commit_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEP = "looking for the rows that equality deletes remove"
_SHARES_A_SLOT = 3
_OPEN_COST_BYTES = 4 * MIB
"""What opening a data file costs, as an amount of data; Iceberg's scans reckon with the same."""

_MAX_FILES = 20_000
"""How many data files a task describes at most, where Spark holds them."""


class ShareWriter(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run have in common."""

    metadata: TableMetadata
    reach: Reach
    delete_format: str
    granularity: Granularity
    operation_id: str
    storage: Storage

    def task(self, rows: Sequence[Mapping[str, Any]], number: int) -> ConversionTask:
        """A task for some planned data files, with the deletes that reach any of them and no others."""
        codecs = PartitionCodecs(self.metadata.partition_types)
        scopes: dict[int, int] = {}
        positions: dict[tuple[str, int | None], int] = {}
        deletes: list[ManifestEntry] = []
        files = []
        for row in rows:
            refuse_encrypted_file(row)
            reach = self.reach.of_file(row["spec_id"], bytes(row["partition"]), row["sequence_number"])
            own = []
            for delete in row.get("deletes") or ():
                key = delete["file_path"], delete["content_offset"]
                if key not in positions:
                    positions[key] = len(deletes)
                    deletes.append(delete_entry(delete, codecs))
                own.append(positions[key])
            files.append(
                ReachedFile(
                    entry=data_entry(row, codecs),
                    reach=tuple((scopes.setdefault(scope, len(scopes)), first) for scope, first in reach),
                    position_deletes=tuple(own),
                )
            )
        return ConversionTask(
            files=tuple(files),
            equality_deletes=tuple(self.reach.scopes[scope] for scope in scopes),
            position_deletes=tuple(deletes),
            metadata=self.metadata,
            delete_format=self.delete_format,
            granularity=self.granularity,
            operation_id=self.operation_id,
            partition_id=number,
        )


class _Shares:
    """The data files of a plan on their way through tasks. Either every share is done, or nothing that was written is left.

    Args:
        written: takes in the files of tasks.
    """

    def __init__(self, plan: ConversionPlan, writer: ShareWriter, workers: Workers, written: WrittenFiles) -> None:
        self._plan, self._workers, self._written = plan, workers, written
        is_here = workers.spark is None
        storage = writer.storage if is_here else written.naming(writer.storage)
        self._writer = msgspec.structs.replace(writer, storage=storage)
        # What threads of this process did, also where an interrupt ends the run.
        self._done_here: list[ConversionOutcome] = []

    def done(self) -> list[ConversionOutcome]:
        """Look through all data files."""
        if not self._plan.preview.read_data_files_count:
            return []
        with undoing(lambda: discard(self._done_here, self._written)):
            spark = self._workers.spark
            done, errors = self._few() if spark is None or self._plan.files.few is not None else self._many(spark)
        self._written.report(file.file_path for file in added_files(done))
        problem = errors[0] if errors else self._count_problem(done)
        if problem is not None:
            discard(done, self._written)
            raise job_failed(
                f"cannot convert equality deletes: {problem.message}; the table is as it was and the new files are removed",
                problem,
            ) from problem
        return done

    def _few(self) -> tuple[list[ConversionOutcome], list[IcekeepError]]:
        files, spark, slots = self._plan.files.few, self._workers.spark, self._workers.slots
        assert files is not None
        count = _SHARES_A_SLOT * slots if spark is None else self._shares_count(spark)
        shares = cut_evenly(files, lambda row: row["file_size_in_bytes"] + _OPEN_COST_BYTES, count)
        tasks = [self._writer.task(share, number) for number, share in enumerate(shares)]
        storage, stop = stopping(self._writer.storage, in_threads=spark is None)
        work = in_turns(self._converted_here if spark is None else _converted, self._workers)
        return run_tasks(spark, tasks, work, storage, step=_STEP, threads=slots, stop=stop)

    def _converted_here(self, task: ConversionTask, storage: Storage) -> ConversionOutcome:
        outcome = _converted(task, storage)
        self._done_here.append(outcome)
        return outcome

    def _many(self, spark: "SparkSession") -> tuple[list[ConversionOutcome], list[IcekeepError]]:
        assert self._plan.files.many is not None
        order = ("spec_id", "partition", "sequence_number", "file_path")
        shares = self._plan.files.many.repartitionByRange(self._shares_count(spark), *order)
        in_order = shares.sortWithinPartitions(*order)
        done, errors = run_over_partitions(in_order, _converted_rows, self._writer, step=_STEP)
        return [one for one in done if one is not None], errors

    def _shares_count(self, spark: "SparkSession") -> int:
        """By the data that is read; deletes of the whole table are read for each share."""
        files_count = self._plan.preview.read_data_files_count
        size_bytes = self._plan.read_bytes + files_count * _OPEN_COST_BYTES
        by_bytes = tasks_count(spark, size_bytes, DATA_BYTES, a_slot=_SHARES_A_SLOT, beside=self._plan.shared_bytes)
        return max(by_bytes, -(-files_count // _MAX_FILES))

    def _count_problem(self, done: Sequence[ConversionOutcome]) -> IcekeepError | None:
        """Every data file was looked through, and all of its rows; else no equality delete may go."""
        files = sum(len(one.data_files) for one in done)
        records = sum(one.read_count for one in done)
        planned = self._plan.preview.read_data_files_count, self._plan.preview.read_records_count
        if (files, records) != planned:
            return IcekeepBug(f"{files} data files of {records} rows were looked through where {planned} were planned")
        return None


def discard(outcomes: Iterable[ConversionOutcome], written: WrittenFiles) -> None:
    """Remove new delete files that no snapshot names."""
    written.discard(file.file_path for file in added_files(outcomes))


def _converted_rows(batches: Iterable[pa.RecordBatch], writer: ShareWriter) -> ConversionOutcome | None:
    rows = [row for batch in batches for row in batch.to_pylist()]
    context = task_context()
    number = 0 if context is None else context.partitionId()
    return _converted(writer.task(rows, number), writer.storage) if rows else None


def _converted(task: ConversionTask, storage: Storage) -> ConversionOutcome:
    """One attempt: only the files of the attempt that won are reported, so each attempt names its own."""
    return convert(msgspec.structs.replace(task, task_attempt_id=attempt_id()), storage)


def added_files(outcomes: Iterable[ConversionOutcome]) -> tuple[DataFile, ...]:
    """The delete files that were written."""
    return tuple(file for outcome in outcomes for file in outcome.added)


_LOG = logging.getLogger(__name__)


Options = Mapping[str, Any] | ConvertEqualityDeletesOptions

STEP = "converting equality deletes"


class ConvertEqualityDeletesRequest(JobRequest, frozen=True, kw_only=True):
    """The arguments of `convert_equality_deletes`, which says what each means."""

    where: str | Expression = ALWAYS_TRUE
    options: Options | None = None
    branch: str = MAIN


@takes(ConvertEqualityDeletesRequest, asks=JOB.asks)
def convert_equality_deletes(table: Table, request: ConvertEqualityDeletesRequest) -> ConvertEqualityDeletesResult:
    """Put position delete files, or vectors in format version 3, in the place of equality deletes; no row comes or goes.

    Every equality delete file that is converted goes in the commit that adds the deletes of its rows. Deletes and rows that
    others add meanwhile stay as they are. Where others changed what the deletes reach it is planned again, as often as
    `commit.retry.num-retries` says.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. What is too little to
            be worth a Spark job is done by threads of this process.
        where: chooses partitions, those that it may match; deletes of all partitions go only where all data files that they
            reach are in such partitions. By default all equality deletes go.
        options: `delete-granularity`, as Iceberg's Spark writer knows it.
        branch: whose deletes are converted, and where that is committed; no other branch moves.

    Raises:
        OptionError, ExpressionError, NotFoundError, UsageError: an argument or a table property is wrong; nothing was done.
        UnsupportedError: the table has something that cannot be read; nothing was done.
        JobFailedError: a data file could not be looked through; the table is as it was, and new files are removed.
        ConflictError: others kept changing what the deletes reach.
        OutcomeUnknownError: a commit may or may not have landed; its files are kept.
    """

    def converted(now: Table, number: int) -> ConvertEqualityDeletesResult:
        round_ = _Round(now, request)
        with round_.planned() as planned:
            return msgspec.structs.replace(round_.convert(planned, number), attempts_count=number)

    return retry_with_replan(table, converted, what=lambda: "equality deletes", listener=request.listener)


@takes(ConvertEqualityDeletesRequest)
def plan_convert_equality_deletes(table: Table, request: ConvertEqualityDeletesRequest) -> ConvertEqualityDeletesPlan:
    """Say what `convert_equality_deletes` with the same arguments would do; raises as it does, and writes nothing."""
    with _Round(table, request).planned() as planned:
        return planned.preview


@takes(ConvertEqualityDeletesRequest)
def check_arguments(metadata: TableMetadata, request: ConvertEqualityDeletesRequest) -> None:
    """Hold the arguments against the table, before Spark starts; raises as `convert_equality_deletes` does."""
    chosen_granularity(parse_options(ConvertEqualityDeletesOptions, request.options or {}), metadata.properties)
    delete_format(metadata.properties)
    data_layout(metadata.location, metadata.properties)


class _Round:
    """The conversion on one version of the table: its arguments, understood."""

    def __init__(self, table: Table, request: ConvertEqualityDeletesRequest) -> None:
        check_arguments(table.metadata, options=request.options)
        head_to_commit_to(table.metadata, request.branch)
        self._table, self._branch, self._spark, self._listener = table, request.branch, request.spark, request.listener
        self._granularity = chosen_granularity(
            parse_options(ConvertEqualityDeletesOptions, request.options or {}), table.metadata.properties
        )
        self._scan = open_scan(table, where=request.where, ref=request.branch, for_commit=True)

    @contextmanager
    def planned(self) -> Iterator[ConversionPlan]:
        """What this round does; many files are forgotten when the block ends."""
        found = plan(self._scan, self._spark, self._branch)
        try:
            yield found
        finally:
            # After a commit nothing that is left behind makes the run a failed one.
            with suppress(Exception):
                found.files.forget()

    def convert(self, planned: ConversionPlan, number: int) -> ConvertEqualityDeletesResult:
        """Carry out a plan, that of a number."""
        preview = planned.preview
        if left_count := preview.left_equality_delete_files_count:
            left = "they lie in partitions that `where` leaves out, or reach data files there"
            files, stay = counted(left_count, "equality delete files"), "stays" if left_count == 1 else "stay"
            self._listener.on(Warned(f"{files} of {self._table.name!r} {stay}: {left}"))
        if not planned.deletes:
            return ConvertEqualityDeletesResult(
                left_equality_delete_files_count=preview.left_equality_delete_files_count
            )
        assert preview.snapshot_id is not None
        run_id = run_name(self._table, number)
        _LOG.info(
            "%s: run %s on snapshot %d: %d equality delete files, %d data files of %d rows to look through",
            self._table.name,
            run_id,
            preview.snapshot_id,
            len(planned.deletes),
            preview.read_data_files_count,
            preview.read_records_count,
            extra=log_context(self._table),
        )
        sweep_runs(self._table, self._table.runtime, keep=run_id, listener=self._listener)
        self._listener.on(StepStarted(STEP, len(planned.deletes), "delete files"))
        with (
            RewriteRun(self._table, "convert_equality_deletes", run_id, self._listener) as run,
            run.pinned(preview.snapshot_id),
        ):
            done = _Shares(
                planned,
                self._share_writer(planned, run_id),
                chosen_workers(self._spark, *planned.opened),
                run.written,
            ).done()
            undo = partial(discard, done, run.written)
            with undoing(undo):
                change, reader = self._change(planned, done), SparkManifestReader(self._spark, self._table.storage)
            run.commit(change, [file.file_path for file in change.added], undo, reader)
        result = _result(planned, done)
        note = f"{counted(len(planned.deletes), 'equality delete files')} -> {result.added_delete_files_count:,} of positions"
        self._listener.on(StepFinished(STEP, note))
        return result

    def _share_writer(self, planned: ConversionPlan, run_id: str) -> ShareWriter:
        metadata = self._table.metadata
        return ShareWriter(
            metadata=without_history(metadata),
            reach=planned.reach,
            delete_format=delete_format(metadata.properties),
            granularity=self._granularity,
            operation_id=run_id,
            storage=self._table.storage,
        )

    def _change(self, planned: ConversionPlan, done: list[ConversionOutcome]) -> ConvertDeletes:
        return ConvertDeletes(
            converted=tuple(delete.entry for delete in planned.deletes),
            data_files=EntryDigests.union(outcome.data_files for outcome in done),
            added=added_files(done),
            named=tuple(file for outcome in done for file in outcome.named),
            replaced=tuple(entry for outcome in done for entry in outcome.replaced),
            format_version=self._table.metadata.format_version,
            starting_sequence_number=planned.sequence_number,
            branch=self._branch,
        )


def _result(planned: ConversionPlan, done: list[ConversionOutcome]) -> ConvertEqualityDeletesResult:
    preview, added = planned.preview, added_files(done)
    return ConvertEqualityDeletesResult(
        converted_equality_delete_files_count=preview.converted_equality_delete_files_count,
        removed_dangling_equality_delete_files_count=preview.removed_dangling_equality_delete_files_count,
        left_equality_delete_files_count=preview.left_equality_delete_files_count,
        removed_position_delete_files_count=sum(len(one.replaced) for one in done),
        added_delete_files_count=len(added),
        converted_bytes_count=preview.converted_bytes_count,
        added_bytes_count=sum(file.own_bytes for file in added),
        deleted_positions_count=sum(one.positions_count for one in done),
        read_data_files_count=preview.read_data_files_count,
        read_records_count=preview.read_records_count,
        peak_task_bytes=max((one.peak_bytes for one in done), default=0),
    )
