"""Data files -> deletes of their positions, in Spark tasks that each take a share of the data files.

Nothing is committed here. Either every share is done, or nothing that was written is left.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icekeep.commit.filtering import without_history
from icekeep.errors import IcekeepBug, IcekeepError, JobFailedError
from icekeep.events import SILENT, Listener
from icekeep.formats.deletes.equality_to_positions import (
    ConversionOutcome,
    ConversionTask,
    ReachedFile,
    convert,
)
from icekeep.formats.deletes.options import Granularity
from icekeep.maintenance.discarding import discard_files
from icekeep.maintenance.equality_deletes.plan import ConversionPlan, data_entry, delete_entry, partition_codecs
from icekeep.maintenance.equality_deletes.reach import Reach
from icekeep.maintenance.side_by_side import spark_failed
from icekeep.planning.refusals import refuse_encrypted_file
from icekeep.planning.spark.tasks import (
    REPORT,
    attempt_id,
    dataframe_from_tasks,
    max_task_failures,
    parallelism,
    read_reports,
    reported,
)
from icekeep.spec.bins import cut_evenly
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage

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
    max_failures: int

    def task(self, rows: Sequence[Mapping[str, Any]], number: int) -> ConversionTask:
        """A task for some planned data files, with the deletes that reach any of them and no others."""
        codecs = partition_codecs(self.metadata)
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
    spark: SparkSession,
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
        max_failures=max_task_failures(spark),
    )


def execute(
    plan: ConversionPlan, writer: ShareWriter, spark: SparkSession, listener: Listener = SILENT
) -> list[ConversionOutcome]:
    """Look through the data files of a plan.

    Raises:
        JobFailedError: a share failed; what others wrote is removed.
    """
    if not plan.preview.read_data_files_count:
        return []
    done, errors = _run_all(plan, writer, spark)
    problem = errors[0] if errors else _count_problem(plan, done)
    if problem is not None:
        discard(writer.storage, done, listener)
        raise JobFailedError(
            f"cannot convert equality deletes: {problem.message}; the table is as it was and the new files are removed"
        ) from problem
    return done


def _run_all(
    plan: ConversionPlan, writer: ShareWriter, spark: SparkSession
) -> tuple[list[ConversionOutcome], list[IcekeepError]]:
    reports = _few(plan.files.few, writer, spark) if plan.files.few is not None else _many(plan, writer, spark)
    context, tag = spark.sparkContext, f"icekeep-convert-{writer.operation_id}"
    context.addJobTag(tag)
    try:
        return read_reports(reports)
    except IcekeepError:
        raise
    except (PySparkException, Py4JJavaError) as error:
        raise spark_failed(error) from error
    except BaseException:
        context.cancelJobsWithTag(tag)
        raise
    finally:
        context.removeJobTag(tag)


def discard(storage: Storage, outcomes: Iterable[ConversionOutcome], listener: Listener) -> None:
    """Remove new delete files that no snapshot names."""
    discard_files(storage, (file.file_path for outcome in outcomes for file in outcome.added), listener)


def _few(rows: Sequence[Mapping[str, Any]], writer: ShareWriter, spark: SparkSession) -> DataFrame:
    shares = cut_evenly(
        rows, lambda row: row["file_size_in_bytes"] + _OPEN_COST_BYTES, _SHARES_A_SLOT * parallelism(spark)
    )
    work = [_Work(writer.task(share, n), writer.storage, writer.max_failures) for n, share in enumerate(shares)]
    return dataframe_from_tasks(spark, work, _run, REPORT)


def _many(plan: ConversionPlan, writer: ShareWriter, spark: SparkSession) -> DataFrame:
    assert plan.files.many is not None
    order = ("spec_id", "partition", "sequence_number", "file_path")
    shares_count = max(_SHARES_A_SLOT * parallelism(spark), -(-plan.preview.read_data_files_count // _MAX_FILES))
    in_order = plan.files.many.repartitionByRange(shares_count, *order).sortWithinPartitions(*order)
    return in_order.mapInArrow(partial(_run_rows, writer), from_arrow_schema(REPORT))


class _Work(msgspec.Struct, frozen=True):
    task: ConversionTask
    storage: Storage
    max_failures: int


def _run(work: _Work) -> Iterator[pa.RecordBatch]:
    yield reported(lambda: _converted(work.task, work.storage), work.max_failures)


def _run_rows(writer: ShareWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    context = TaskContext.get()
    if rows:
        number = 0 if context is None else context.partitionId()
        yield reported(lambda: _converted(writer.task(rows, number), writer.storage), writer.max_failures)


def _converted(task: ConversionTask, storage: Storage) -> ConversionOutcome:
    """One attempt: only the files of the attempt that won are told, so each attempt names its own."""
    return convert(msgspec.structs.replace(task, task_attempt_id=attempt_id()), storage)


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
