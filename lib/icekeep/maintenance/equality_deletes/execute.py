"""Data files -> deletes of their positions, in Spark tasks that each take a share of the data files.

Nothing is committed here. Either every share is done, or nothing that was written is left.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from icekeep.commit.filtering import without_history
from icekeep.errors import IcekeepBug, IcekeepError, job_failed
from icekeep.formats.deletes.equality import ConversionOutcome, ConversionTask, ReachedFile, convert
from icekeep.formats.deletes.positions import Granularity
from icekeep.maintenance.equality_deletes.plan import ConversionPlan, data_entry, delete_entry
from icekeep.maintenance.equality_deletes.reach import Reach
from icekeep.maintenance.runs.written_files import WrittenFiles
from icekeep.planning.spark.session import refuse_encrypted_file, task_context
from icekeep.planning.spark.tasks import run_over_partitions, run_tasks
from icekeep.planning.spark.workers import DATA_BYTES, Workers, attempt_id, in_turns, tasks_count
from icekeep.spec.collections import cut_evenly
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage
from icekeep.storage.stopping import stopping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEP = "looking for the rows that equality deletes remove"
_SHARES_A_SLOT = 3
_OPEN_COST_BYTES = 4 * MIB
"""What opening a data file costs, as an amount of data; Iceberg's scans reckon with the same."""

_MAX_FILES = 20_000
"""A task describes no more data files than this, where Spark holds them."""


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


def share_writer(
    plan: ConversionPlan,
    metadata: TableMetadata,
    storage: Storage,
    *,
    delete_format: str,
    granularity: Granularity,
    operation_id: str,
) -> ShareWriter:
    """What the tasks of a plan have in common."""
    return ShareWriter(
        metadata=without_history(metadata),
        reach=plan.reach,
        delete_format=delete_format,
        granularity=granularity,
        operation_id=operation_id,
        storage=storage,
    )


def execute(
    plan: ConversionPlan, writer: ShareWriter, workers: Workers, written: WrittenFiles
) -> list[ConversionOutcome]:
    """Look through the data files of a plan.

    Args:
        written: hears of the files of tasks.

    Raises:
        JobFailedError: a share failed; what others wrote is removed.
        UnsupportedError: the same, by what is not supported.
    """
    if not plan.preview.read_data_files_count:
        return []
    if workers.spark is not None:
        writer = msgspec.structs.replace(writer, storage=written.telling(writer.storage))
    seen: list[ConversionOutcome] = []
    try:
        done, errors = _run_all(plan, writer, workers, seen)
    except BaseException:
        discard(seen, written)
        raise
    written.hear(file.file_path for file in added_files(done))
    problem = errors[0] if errors else _count_problem(plan, done)
    if problem is not None:
        discard(done, written)
        raise job_failed(
            f"cannot convert equality deletes: {problem.message}; the table is as it was and the new files are removed",
            problem,
        ) from problem
    return done


def _run_all(
    plan: ConversionPlan, writer: ShareWriter, workers: Workers, seen: list[ConversionOutcome]
) -> tuple[list[ConversionOutcome], list[IcekeepError]]:
    """What all shares came to; `seen` has what those of this process did, also where an interrupt ends this."""
    if workers.spark is None or plan.files.few is not None:
        return _run_few(plan, writer, workers, seen)
    return _run_many(plan, writer, workers.spark)


def discard(outcomes: Iterable[ConversionOutcome], written: WrittenFiles) -> None:
    """Remove new delete files that no snapshot names."""
    written.discard(file.file_path for file in added_files(outcomes))


def _run_few(
    plan: ConversionPlan, writer: ShareWriter, workers: Workers, seen: list[ConversionOutcome]
) -> tuple[list[ConversionOutcome], list[IcekeepError]]:
    assert plan.files.few is not None
    spark, files = workers.spark, plan.files.few
    shares_count = _SHARES_A_SLOT * workers.slots if spark is None else _shares_count(plan, spark)
    some = cut_evenly(files, lambda row: row["file_size_in_bytes"] + _OPEN_COST_BYTES, shares_count)
    tasks = [writer.task(share, number) for number, share in enumerate(some)]
    storage, stop = stopping(writer.storage, in_threads=spark is None)
    work = in_turns(_converted if spark is not None else partial(_converted_here, seen), workers)
    return run_tasks(spark, tasks, work, storage, step=_STEP, threads=workers.slots, stop=stop)


def _run_many(
    plan: ConversionPlan, writer: ShareWriter, spark: "SparkSession"
) -> tuple[list[ConversionOutcome], list[IcekeepError]]:
    assert plan.files.many is not None
    order = ("spec_id", "partition", "sequence_number", "file_path")
    in_order = plan.files.many.repartitionByRange(_shares_count(plan, spark), *order).sortWithinPartitions(*order)
    done, errors = run_over_partitions(in_order, _converted_rows, writer, step=_STEP)
    return [one for one in done if one is not None], errors


def _shares_count(plan: ConversionPlan, spark: "SparkSession") -> int:
    """By the data that is read; deletes of the whole table are read for each share."""
    files_count = plan.preview.read_data_files_count
    size_bytes = plan.read_bytes + files_count * _OPEN_COST_BYTES
    by_bytes = tasks_count(spark, size_bytes, DATA_BYTES, a_slot=_SHARES_A_SLOT, beside=plan.shared_bytes)
    return max(by_bytes, -(-files_count // _MAX_FILES))


def _converted_rows(batches: Iterable[pa.RecordBatch], writer: ShareWriter) -> ConversionOutcome | None:
    rows = [row for batch in batches for row in batch.to_pylist()]
    context = task_context()
    number = 0 if context is None else context.partitionId()
    return _converted(writer.task(rows, number), writer.storage) if rows else None


def _converted(task: ConversionTask, storage: Storage) -> ConversionOutcome:
    """One attempt: only the files of the attempt that won are told, so each attempt names its own."""
    return convert(msgspec.structs.replace(task, task_attempt_id=attempt_id()), storage)


def _converted_here(seen: list[ConversionOutcome], task: ConversionTask, storage: Storage) -> ConversionOutcome:
    outcome = _converted(task, storage)
    seen.append(outcome)
    return outcome


def _count_problem(plan: ConversionPlan, done: Sequence[ConversionOutcome]) -> IcekeepError | None:
    """Every data file was looked through, and all of its rows; else no equality delete may go."""
    files = sum(len(one.data_files) for one in done)
    records = sum(one.read_count for one in done)
    planned = plan.preview.read_data_files_count, plan.preview.read_records_count
    if (files, records) != planned:
        return IcekeepBug(f"{files} data files of {records} rows were looked through where {planned} were planned")
    return None


def added_files(outcomes: Iterable[ConversionOutcome]) -> tuple[DataFile, ...]:
    """The delete files that were written."""
    return tuple(file for outcome in outcomes for file in outcome.added)
