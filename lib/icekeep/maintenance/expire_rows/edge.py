"""The files at the edge, of which some rows expire and others do not: read, and their expired rows taken out.

Shares of the files go to Spark tasks, or to threads of this process where they are little to read. Either every share is done and
all rows were read, or nothing that was written is left.

Most often the edge is a few files, which the run before has left without a row that matches: then nothing is written, and no tag
holds the snapshot, which would be two commits each night. So deletes are written without one, and a rewrite searches the files
first and holds the snapshot while it copies. Where a file is gone that was to be read, since others replaced and deleted it, the
job plans again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.manifest_writer import refuse_unknown_transforms
from icekeep.commit.manifests import without_history
from icekeep.commit.retry import reloaded
from icekeep.errors import ConflictError, IcekeepBug, IcekeepError, MissingFileError, job_failed
from icekeep.formats.deletes.matched_rows import MatchedRowsOutcome, MatchedRowsTask, SearchedFile, TakenOut, take_out
from icekeep.formats.deletes.rewrite import delete_format, delete_granularity
from icekeep.formats.options import write_options
from icekeep.maintenance.delete.neighbours import refuse_files_of_others
from icekeep.maintenance.deletes.equality_plan import data_entry, delete_entry
from icekeep.maintenance.rewrite.run import RewriteRun, undoing
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.spark.tasks import attempt_id, run_tasks
from icekeep.planning.spark.workers import DATA_BYTES, Workers, chosen_workers, in_turns, tasks_count
from icekeep.spec.collections import cut_evenly
from icekeep.spec.filters.expressions import Expression
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import stopping

STEP = "taking out expired rows"
_SHARES_A_SLOT = 3
_OPEN_COST_BYTES = 4 * MIB
"""What opening a data file costs, as an amount of data; Iceberg's scans reckon with the same."""

_LEAST_SHARE_BYTES = 32 * MIB
"""What is worth a thread of its own."""


class TakenRows(msgspec.Struct, frozen=True):
    """What all tasks did, together."""

    outcomes: tuple[MatchedRowsOutcome, ...] = ()

    def all_of(self, name: str) -> tuple[Any, ...]:
        """One of the sequences of the outcomes, put together."""
        return tuple(one for outcome in self.outcomes for one in getattr(outcome, name))

    @property
    def locations(self) -> tuple[str, ...]:
        """Of the new files, each once."""
        files = (*self.all_of("added"), *self.all_of("added_deletes"))
        return tuple(dict.fromkeys(file.file_path for file in files))

    @property
    def removed(self) -> tuple[ManifestEntry, ...]:
        """The data files that go, whole or since others hold the rest of their rows."""
        return (*self.all_of("emptied"), *self.all_of("rewritten"))

    @property
    def matched_count(self) -> int:
        """Rows that matched, and were live."""
        return sum(outcome.matched_count for outcome in self.outcomes)

    @property
    def peak_bytes(self) -> int:
        """The most memory of a task's process."""
        return max((outcome.peak_bytes for outcome in self.outcomes), default=0)


def take_out_rows(
    run: RewriteRun,
    snapshot: Snapshot,
    files: Sequence[Mapping[str, Any]],
    rows: Expression,
    taken_out: TakenOut,
    spark: SparkSource,
) -> TakenRows:
    """Read files at the edge, and write what takes their matching rows out.

    Args:
        snapshot: whose files they are.
        files: rows of `plan.edge_files`.
        rows: the filter, bound to the table's schema.

    Raises:
        ConflictError: a file is gone, and the table has another version.
        JobFailedError: a file could not be read, or new ones not written; none of these is left.
        SafetyError: a file lies in a place of another table.
        UnsupportedError: files are of a partition spec with a transform that is not known.
    """
    if taken_out is not TakenOut.REWRITE:
        return _done(run, files, rows, taken_out, spark)
    found = _done(run, files, rows, TakenOut.NOT, spark)
    paths = {entry.data_file.file_path for entry in found.removed}
    if not paths:
        return found
    with run.pinned(snapshot.snapshot_id):
        return _done(run, [row for row in files if row["file_path"] in paths], rows, taken_out, spark)


def _done(
    run: RewriteRun, files: Sequence[Mapping[str, Any]], rows: Expression, taken_out: TakenOut, spark: SparkSource
) -> TakenRows:
    if not files:
        return TakenRows()
    table = run.table
    refuse_unknown_transforms({row["spec_id"] for row in files}, table.metadata.specs_by_id)
    deletes = (delete["file_path"] for row in files for delete in row.get("deletes") or ())
    refuse_files_of_others(table, [[row["file_path"] for row in files], [*dict.fromkeys(deletes)]])
    size_bytes = sum(row["file_size_in_bytes"] for row in files)
    workers = chosen_workers(spark, size_bytes, len(files))
    is_here = workers.spark is None
    storage = table.storage if is_here else run.written.naming(table.storage)
    tasks = _tasks(table, files, rows, taken_out, workers, run.run_id, size_bytes)
    done_here: list[MatchedRowsOutcome] = []

    def taken_here(task: MatchedRowsTask, storage: Storage) -> MatchedRowsOutcome:
        outcome = _taken(task, storage)
        done_here.append(outcome)
        return outcome

    storage, stop = stopping(storage, in_threads=is_here)
    with undoing(lambda: discard(run, done_here)):
        work = in_turns(taken_here if is_here else _taken, workers)
        done, errors = run_tasks(workers.spark, tasks, work, storage, step=STEP, threads=workers.slots, stop=stop)
    taken = TakenRows(tuple(done))
    run.written.report(taken.locations)
    problem = errors[0] if errors else _count_problem(files, done)
    if problem is not None:
        discard(run, done)
        if isinstance(problem, MissingFileError) and reloaded(table).metadata_location != table.metadata_location:
            raise ConflictError(f"{problem.message}; others changed the table meanwhile") from problem
        raise job_failed(
            f"cannot take out expired rows: {problem.message}; the table is as it was and the new files are removed",
            problem,
        ) from problem
    return taken


def discard(run: RewriteRun, outcomes: Iterable[MatchedRowsOutcome]) -> None:
    """Remove new files that no snapshot names."""
    run.written.discard(TakenRows(tuple(outcomes)).locations)


def _tasks(
    table: Table,
    files: Sequence[Mapping[str, Any]],
    rows: Expression,
    taken_out: TakenOut,
    workers: Workers,
    run_id: str,
    size_bytes: int,
) -> list[MatchedRowsTask]:
    metadata, codecs = table.metadata, PartitionCodecs(table.metadata.partition_types)
    weight = size_bytes + len(files) * _OPEN_COST_BYTES
    # Little work is not divided, so that delete files may be for a whole partition.
    count = min(_SHARES_A_SLOT * workers.slots, -(-weight // _LEAST_SHARE_BYTES))
    if workers.spark is not None:
        count = tasks_count(workers.spark, weight, DATA_BYTES, a_slot=_SHARES_A_SLOT)
    tasks = []
    shares = cut_evenly(files, lambda row: row["file_size_in_bytes"] + _OPEN_COST_BYTES, count)
    for number, share in enumerate(shares):
        places: dict[tuple[Any, ...], int] = {}
        deletes: list[ManifestEntry] = []
        searched = []
        for row in share:
            own = []
            for delete in row.get("deletes") or ():
                # Some writers share the same bytes between the vectors of two data files.
                key = delete["file_path"], delete["content_offset"], delete["referenced_data_file"]
                if key not in places:
                    places[key] = len(deletes)
                    deletes.append(delete_entry(delete, codecs))
                own.append(places[key])
            searched.append(SearchedFile(data_entry(row, codecs), tuple(own)))
        tasks.append(
            MatchedRowsTask(
                files=tuple(searched),
                deletes=tuple(deletes),
                rows=rows,
                taken_out=taken_out,
                metadata=without_history(metadata),
                delete_format=delete_format(metadata.properties),
                granularity=delete_granularity(metadata.properties),
                target_file_size_bytes=write_options(metadata.properties, metadata.schema).target_file_size_bytes,
                slots=workers.process_slots,
                operation_id=run_id,
                partition_id=number,
            )
        )
    return tasks


def _taken(task: MatchedRowsTask, storage: Storage) -> MatchedRowsOutcome:
    """One attempt: only the files of the attempt that won are reported, so each attempt names its own."""
    return take_out(msgspec.structs.replace(task, task_attempt_id=attempt_id()), storage)


def _count_problem(files: Sequence[Mapping[str, Any]], done: Sequence[MatchedRowsOutcome]) -> IcekeepError | None:
    planned, read = sum(row["record_count"] for row in files), sum(one.read_count for one in done)
    if planned != read:
        return IcekeepBug(f"data files of {read} rows were looked through where {planned} were planned")
    return None
