"""The job `compute_table_stats`: how many distinct values columns have, as theta sketches in a file that the metadata names.

snapshot and columns -> what is known already -> rows that are read -> sketches -> Puffin file -> `ChangeStatistics`

No snapshot is made. The file is written before the commit that names it, and removed where that does not land. What a snapshot's
statistics hold beside these sketches, of other kinds and other columns, is copied into the new file, since a snapshot has one.
"""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.errors import ConflictError, UnsupportedError, UsageError, argument, reason_of
from icekeep.events import Noted, StepFinished, StepStarted, Warned
from icekeep.formats.puffin import BlobMetadata, PuffinWriter, read_puffin_footer, read_range
from icekeep.formats.theta import BLOB_TYPE, ThetaSketch
from icekeep.maintenance.jobs import JobResult, PlannedRequest, takes
from icekeep.maintenance.partition_stats.job import RegisterStatistics, saved_snapshot
from icekeep.maintenance.plans import SNAPSHOT, ExactPlan, PlanCost, PlanLine
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.run import RewriteRun, discard_files, run_name, undoing
from icekeep.maintenance.table_stats import JOB
from icekeep.maintenance.table_stats.kept import SketchedColumn
from icekeep.maintenance.table_stats.sketching import (
    OF_ROWS,
    SketchingWork,
    chosen_columns,
    ids_of_rows,
    planned_work,
    sketch,
    sketched_ids,
)
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import metadata_directory
from icekeep.spec.snapshots import MAIN, Snapshot, StatisticsFile
from icekeep.spec.updates import Update
from icekeep.spelling import counted

_LOG = logging.getLogger(__name__)
_STEP = "sketching columns"
_DO = "count"
_CPU_BYTES_A_SECOND = 50_000_000


class ComputeTableStatsRequest(PlannedRequest, frozen=True, kw_only=True):
    """The arguments of `compute_table_stats`, which says what each means."""

    snapshot_id: int | None = None
    columns: Sequence[str] | str | None = None


class ColumnStats(msgspec.Struct, frozen=True, kw_only=True):
    """A column.

    Attributes:
        column: its full name.
        field_id: its id in the schema.
        distinct_values_count: about how many values its rows have that are not null; exact up to 4,096.
    """

    column: str
    field_id: int
    distinct_values_count: int


class ComputeTableStatsResult(JobResult, frozen=True, kw_only=True):
    """What was written.

    Attributes:
        snapshot_id: whose statistics they are; `None` for a table without one.
        statistics_file: the file that the metadata names now; `None` where none was written.
        statistics_file_bytes: its size.
        base_snapshot_id: of the ancestor whose sketches were gone on from; `None` where none was.
        read_files_count: data files that were read; those of a table that Spark plans are not counted.
        reused_files_count: data files whose sketches earlier runs have kept.
        reason: why nothing was written.
        columns: what was found.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
    """

    work = ("statistics_file",)

    status: str = "done"
    snapshot_id: int | None = None
    statistics_file: str | None = None
    statistics_file_bytes: int = 0
    base_snapshot_id: int | None = None
    read_files_count: int = 0
    reused_files_count: int = 0
    reason: str = ""
    columns: tuple[ColumnStats, ...] = ()
    swept_files_count: int = 0
    elapsed_ms: int = 0
    run_id: str | None = None


class ComputeTableStatsPlan(Rendered, frozen=True, kw_only=True):
    """What would be read.

    Attributes:
        snapshot_id: whose statistics they would be; `None` for a table without one.
        base_snapshot_id: of the ancestor whose sketches would be gone on from; `None` where none is.
        read_files_count: data files that would be read; those of a table that Spark plans are not counted.
        read_bytes: their size; columns that are not asked for are not read.
        reused_files_count: data files whose sketches earlier runs have kept.
        reason: why nothing would be written.
        column_names: whose sketches would be made.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
    """

    snapshot_id: int | None = None
    base_snapshot_id: int | None = None
    read_files_count: int = 0
    read_bytes: int = 0
    reused_files_count: int = 0
    reason: str = ""
    column_names: tuple[str, ...] = ()
    swept_files_count: int = 0


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done: nothing where `work` is `None`, and why."""

    snapshot: Snapshot | None
    work: SketchingWork | None
    reason: str
    old: StatisticsFile | None


@takes(ComputeTableStatsRequest, asks=JOB.asks)
def compute_table_stats(table: Table, request: ComputeTableStatsRequest) -> ComputeTableStatsResult:
    """Make theta sketches of columns of a snapshot, and register them as its statistics.

    Rows that deletes remove do not count, nor do nulls. Only what is new is read: where an ancestor has sketches of the columns
    and rows were only appended since, what was appended; else data files of which no earlier run has kept sketches, and those
    that deletes reach. A snapshot that has sketches of all columns keeps them, and nothing is committed.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for up to
            2 GB of data files that are read.
        snapshot_id: the snapshot; the current one if `None`.
        columns: full names, with dots for columns in structs, by the schema of the snapshot; as a list, or text with commas. By
            default all of a primitive type that lie in no other.
        saved: a plan that was written before (`apply_plan` reads it): the statistics of the snapshot that it names.

    Raises:
        NotFoundError: the table has no such snapshot or column.
        UsageError: no sketch is made of columns of that type.
        UnsupportedError: the table is encrypted, or its statistics are.
        InvalidTableError, MissingFileError: a manifest or data file cannot be read whole.
        ConflictError: the snapshot expired meanwhile, or others set its statistics, or kept changing the table.
        SafetyError: the table was dropped and made again meanwhile, or the saved plan does not hold any more.
        OutcomeUnknownError: the commit may or may not have landed; the file is kept.
    """
    check_arguments(table.metadata, snapshot_id=request.snapshot_id, columns=request.columns)
    run_id, listener, swept_count = run_name(table), request.listener, 0
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep=run_id, listener=listener)
    asked = _asked(table, request)
    snapshot, work = asked.snapshot, asked.work
    result = ComputeTableStatsResult(
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        reason=asked.reason,
        swept_files_count=swept_count,
    )
    if snapshot is None or work is None:
        listener.on(Noted(f"no statistics are written: {asked.reason}"))
        return result
    storage = table.storage
    location = f"{metadata_directory(table.metadata)}/{snapshot.snapshot_id}-{run_id}.stats"
    with RewriteRun(table, JOB.name, run_id, listener) as run:
        listener.on(StepStarted(_STEP, work.read_files_count, "files"))
        with run.pinned(snapshot.snapshot_id):
            sketches, work = sketch(table, snapshot, work, request.spark, run_id)
        note = (
            f"{counted(work.read_files_count, 'files')} read, sketches of {counted(len(work.reused), 'files')} reused"
        )
        listener.on(StepFinished(_STEP, note))

        def undo() -> None:
            discard_files(storage, [location], listener)

        with undoing(undo):
            file = _written(table, snapshot, location, asked.old, work.columns, sketches)
            change = _ReplaceStatistics(
                RegisterStatistics(ChangeStatistics(updates=(file,)), snapshot.snapshot_id),
                asked.old,
                snapshot.snapshot_id,
            )
        run.commit(change, [location], undo)
        try:
            # What a scan of a part of the rows does not name may be live all the same.
            removed = work.kept.remove_unused(work.live) if work.live else 0
            if removed:
                _LOG.info("%s: %d files of sketches are removed", table.name, removed, extra=log_context(table))
        except Exception as error:  # noqa: BLE001 - the statistics are registered
            listener.on(Warned(f"sketches of files that are gone could not be removed: {reason_of(error)}"))
    return msgspec.structs.replace(
        result,
        statistics_file=location,
        statistics_file_bytes=file.file_size_in_bytes,
        base_snapshot_id=None if work.base is None else work.base.snapshot_id,
        read_files_count=work.read_files_count,
        reused_files_count=len(work.reused),
        columns=tuple(
            ColumnStats(column=column.name, field_id=column.field_id, distinct_values_count=one.estimate)
            for column, one in zip(work.columns, sketches, strict=True)
        ),
    )


@takes(ComputeTableStatsRequest)
def plan_compute_table_stats(table: Table, request: ComputeTableStatsRequest) -> ComputeTableStatsPlan:
    """Say what `compute_table_stats` would read with these arguments; raises as it does before it writes anything."""
    return _foreseen(table, request)


@takes(ComputeTableStatsRequest, "compute_table_stats")
def exact_compute_table_stats(table: Table, request: ComputeTableStatsRequest) -> ExactPlan:
    """What `compute_table_stats` would do with these arguments, for a file; raises as it does, and writes nothing."""
    shown = _foreseen(table, request)
    head = table.metadata.head(MAIN)
    lines = []
    if shown.snapshot_id is not None and shown.column_names:
        lines = [PlanLine(do=_DO, kind=SNAPSHOT, name=str(shown.snapshot_id), says={"columns": shown.column_names})]
    return ExactPlan(
        shown=shown,
        snapshot_id=None if head is None else head.snapshot_id,
        lines=lines,
        cost=PlanCost(
            read_bytes=shown.read_bytes,
            requests_count=shown.read_files_count,
            cpu_ms=shown.read_bytes * 1000 // _CPU_BYTES_A_SECOND,
        ),
    )


@takes(ComputeTableStatsRequest, "compute_table_stats")
def check_arguments(metadata: TableMetadata, request: ComputeTableStatsRequest) -> None:
    """Hold the arguments against the table, before Spark starts; raises as `compute_table_stats` does."""
    refuse_encrypted(metadata, JOB.name)
    _names(request.columns)
    snapshot = metadata.current_snapshot if request.snapshot_id is None else metadata.snapshot(request.snapshot_id)
    if snapshot is not None:
        chosen_columns(metadata, snapshot, _names(request.columns))


def _names(given: Sequence[str] | str | None) -> Sequence[str] | None:
    """The columns that are asked for; `None` for all. Raises `UsageError` where none is named."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    if names is not None and (not names or not all(names)):
        raise UsageError(f"{argument('column')} is {given!r}; name one column at least")
    return names


class _ReplaceStatistics(msgspec.Struct, frozen=True):
    """Statistics that replace those that were read, and no others."""

    change: RegisterStatistics
    old: StatisticsFile | None
    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        updates = self.change.apply(base, attempt)
        now = next((file for file in base.statistics if file.snapshot_id == self.snapshot_id), None)
        if updates and now != self.old:
            raise ConflictError(
                f"others have set the statistics of snapshot {self.snapshot_id} meanwhile; run it again",
                snapshot_id=self.snapshot_id,
            )
        return updates


def _foreseen(table: Table, request: ComputeTableStatsRequest) -> ComputeTableStatsPlan:
    check_arguments(table.metadata, snapshot_id=request.snapshot_id, columns=request.columns)
    swept_count = 0
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep="", listener=request.listener, is_plan=True)
    asked = _asked(table, request)
    shown = ComputeTableStatsPlan(
        snapshot_id=None if asked.snapshot is None else asked.snapshot.snapshot_id,
        reason=asked.reason,
        swept_files_count=swept_count,
    )
    work = asked.work
    if work is None:
        return shown
    return msgspec.structs.replace(
        shown,
        base_snapshot_id=None if work.base is None else work.base.snapshot_id,
        read_files_count=work.read_files_count,
        read_bytes=work.read_bytes,
        reused_files_count=len(work.reused),
        column_names=tuple(column.name for column in work.columns),
    )


def _asked(table: Table, request: ComputeTableStatsRequest) -> _Asked:
    metadata = table.metadata
    if request.saved is not None:
        columns = request.columns
        done = [
            file.snapshot_id
            for file in metadata.statistics
            if not _missing(metadata, metadata.snapshots_by_id.get(file.snapshot_id), file, columns)
        ]
        snapshot = saved_snapshot(request.saved, metadata, done)
    elif request.snapshot_id is None:
        snapshot = metadata.current_snapshot
    else:
        snapshot = metadata.snapshot(request.snapshot_id)
    if snapshot is None:
        return _Asked(snapshot=None, work=None, reason="the table has no snapshot", old=None)
    old = next((file for file in metadata.statistics if file.snapshot_id == snapshot.snapshot_id), None)
    missing = _missing(metadata, snapshot, old, request.columns)
    if not missing:
        reason = f"snapshot {snapshot.snapshot_id} has sketches of all of these columns already"
        return _Asked(snapshot=snapshot, work=None, reason=reason, old=old)
    if old is not None and old.key_metadata is not None:
        raise UnsupportedError(
            f"the statistics of snapshot {snapshot.snapshot_id} of {table.name!r} are encrypted, which is not supported yet"
        )
    work = planned_work(table, snapshot, missing, request.spark)
    return _Asked(snapshot=snapshot, work=work, reason="", old=old)


def _missing(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    old: StatisticsFile | None,
    given: Sequence[str] | str | None,
) -> tuple[SketchedColumn, ...]:
    """The columns that are asked for of which a snapshot has no sketch."""
    if snapshot is None:
        return ()
    known = set() if old is None else set(sketched_ids(old))
    return tuple(one for one in chosen_columns(metadata, snapshot, _names(given)) if one.field_id not in known)


def _written(
    table: Table,
    snapshot: Snapshot,
    location: str,
    old: StatisticsFile | None,
    columns: Sequence[SketchedColumn],
    sketches: Sequence[ThetaSketch],
) -> StatisticsFile:
    """Write the file of statistics: the new sketches, and what the old file has beside."""
    storage = table.storage
    blobs: list[BlobMetadata] = []
    footer = None if old is None else read_puffin_footer(storage, old.statistics_path)
    of_rows = {column.field_id for column in columns} | (set() if footer is None else ids_of_rows(footer))
    with PuffinWriter(storage, location, {OF_ROWS: ",".join(map(str, sorted(of_rows)))}) as writer:
        for blob in () if footer is None else footer.blobs:
            assert old is not None
            data = read_range(storage, old.statistics_path, blob.offset, blob.length)
            blobs.append(
                writer.add(
                    data,
                    blob.type,
                    fields=blob.fields,
                    snapshot_id=blob.snapshot_id,
                    sequence_number=blob.sequence_number,
                    properties=blob.properties,
                    compression_codec=blob.compression_codec,
                )
            )
        for column, one in zip(columns, sketches, strict=True):
            blobs.append(
                writer.add(
                    one.to_bytes(),
                    BLOB_TYPE,
                    fields=(column.field_id,),
                    snapshot_id=snapshot.snapshot_id,
                    sequence_number=snapshot.sequence_number,
                    properties={"ndv": str(one.estimate)},
                )
            )
    return StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=location,
        file_size_in_bytes=writer.length_bytes,
        file_footer_size_in_bytes=writer.footer_bytes,
        blob_metadata=[_in_metadata(blob) for blob in blobs],
    )


def _in_metadata(blob: BlobMetadata) -> dict[str, Any]:
    """A blob as table metadata describes it (spec, "Table Statistics")."""
    return {
        "type": blob.type,
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "fields": [*blob.fields],
        "properties": dict(blob.properties),
    }
