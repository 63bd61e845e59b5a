"""Equality deletes -> deletes of positions: the same rows stay, and readers need not compare values any more.

equality deletes of a branch -> plan (which go, what they reach) -> data files looked through in their key columns -> position
delete files or vectors -> `ConvertDeletes` -> result; planned anew where others changed what the deletes reach
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.log_context import log_context
from icekeep.commit.changes.deletes import ConvertDeletes, EntryDigests
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.formats.deletes.equality import ConversionOutcome
from icekeep.formats.deletes.positions import delete_format
from icekeep.maintenance.equality_deletes.execute import added_files, discard, execute, share_writer
from icekeep.maintenance.equality_deletes.options import ConvertEqualityDeletesOptions, chosen_granularity
from icekeep.maintenance.equality_deletes.plan import ConversionPlan, ConvertEqualityDeletesPlan, plan
from icekeep.maintenance.equality_deletes.result import ConvertEqualityDeletesResult
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.planning_anew import plan_till_done
from icekeep.maintenance.requests import JobRequest, takes
from icekeep.maintenance.runs.heartbeat import Heartbeat, beating
from icekeep.maintenance.runs.left_behind import sweep_runs
from icekeep.maintenance.runs.names import run_name
from icekeep.maintenance.runs.start_tag import hold_start
from icekeep.maintenance.runs.written_files import WrittenFiles, written_files
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.workers import chosen_workers
from icekeep.runtime import Runtime
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.snapshots import MAIN
from icekeep.spelling import counted
from icekeep.tables.refs import head_to_commit_to

_LOG = logging.getLogger(__name__)

__all__ = [
    "ConvertEqualityDeletesOptions",
    "ConvertEqualityDeletesPlan",
    "ConvertEqualityDeletesResult",
    "convert_equality_deletes",
    "plan_convert_equality_deletes",
]

Options = Mapping[str, Any] | ConvertEqualityDeletesOptions

STEP = "converting equality deletes"


class ConvertEqualityDeletesRequest(JobRequest, frozen=True, kw_only=True):
    """The arguments of `convert_equality_deletes`, which says what each means."""

    where: str | Expression = ALWAYS_TRUE
    options: Options | None = None
    branch: str = MAIN


@takes(ConvertEqualityDeletesRequest)
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
    runtime = table.runtime

    def converted(now: Table, number: int) -> ConvertEqualityDeletesResult:
        return msgspec.structs.replace(_Run(now, request, runtime, number).convert(), attempts_count=number)

    return plan_till_done(table, converted, what=lambda: "equality deletes", listener=request.listener)


@takes(ConvertEqualityDeletesRequest)
def plan_convert_equality_deletes(table: Table, request: ConvertEqualityDeletesRequest) -> ConvertEqualityDeletesPlan:
    """Say what `convert_equality_deletes` with the same arguments would do; raises as it does, and writes nothing."""
    with _Run(table, request, table.runtime).planned() as planned:
        return planned.preview


@takes(ConvertEqualityDeletesRequest)
def check_arguments(metadata: TableMetadata, request: ConvertEqualityDeletesRequest) -> None:
    """Hold the arguments against the table, before Spark starts; raises as `convert_equality_deletes` does."""
    chosen_granularity(parse_options(ConvertEqualityDeletesOptions, request.options or {}), metadata.properties)
    delete_format(metadata.properties)
    data_layout(metadata.location, metadata.properties)


class _Run:
    """One round: its arguments, understood, and the version of the table that it works on, that of its `number`th plan."""

    def __init__(self, table: Table, request: ConvertEqualityDeletesRequest, runtime: Runtime, number: int = 1) -> None:
        check_arguments(table.metadata, options=request.options)
        head_to_commit_to(table.metadata, request.branch)
        self._table, self._branch, self._spark = table, request.branch, request.spark
        self._listener, self._runtime, self._number = request.listener, runtime, number
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

    def convert(self) -> ConvertEqualityDeletesResult:
        with self.planned() as planned:
            return self._converted(planned)

    def _converted(self, planned: ConversionPlan) -> ConvertEqualityDeletesResult:
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
        run_id = run_name(self._table, self._number)
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
        sweep_runs(self._table, self._runtime, keep=run_id, listener=self._listener)
        self._listener.on(StepStarted(STEP, len(planned.deletes), "delete files"))
        with (
            beating(self._table, run_id, "convert_equality_deletes", self._runtime, self._listener) as heartbeat,
            hold_start(self._table, preview.snapshot_id, run_id, self._runtime, self._listener, heartbeat),
            written_files(self._table, run_id, self._listener) as written,
        ):
            done = self._execute(planned, run_id, written)
            self._commit(planned, done, heartbeat, written)
        result = _result(planned, done)
        note = f"{counted(len(planned.deletes), 'equality delete files')} -> {result.added_delete_files_count:,} of positions"
        self._listener.on(StepFinished(STEP, note))
        return result

    def _execute(self, planned: ConversionPlan, run_id: str, written: WrittenFiles) -> list[ConversionOutcome]:
        metadata = self._table.metadata
        writer = share_writer(
            planned,
            metadata,
            self._table.storage,
            delete_format=delete_format(metadata.properties),
            granularity=self._granularity,
            operation_id=run_id,
        )
        workers = chosen_workers(self._spark, planned.opened_bytes, planned.opened_count)
        return execute(planned, writer, workers, written)

    def _commit(
        self, planned: ConversionPlan, done: list[ConversionOutcome], heartbeat: Heartbeat, written: WrittenFiles
    ) -> None:
        undo = partial(discard, done, written)
        try:
            change, reader = self._change(planned, done), SparkManifestReader(self._spark, self._table.storage)
        except BaseException:
            undo()
            raise
        looking = heartbeat.looking(change, [file.file_path for file in change.added])
        try:
            commit(self._table, looking, reader=reader, runtime=self._runtime, listener=self._listener, undo=undo)
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            # Only an error of ours proves that nothing landed.
            undo()
            raise
        written.settle(file.file_path for file in change.added)

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
