"""File groups -> new data files, in Spark tasks; groups run side by side and come back as they finish.

Nothing is committed here. A group either comes back with all its new files, or none of them is left.
"""

from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import msgspec
import pyarrow as pa
from pyspark import TaskContext, inheritable_thread_target
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepBug, IcekeepError, JobFailedError
from icekeep.events import Listener, StepAdvanced
from icekeep.formats.rewrite import FilePiece, RewriteTask, rewrite
from icekeep.maintenance.compaction.packing import pack
from icekeep.maintenance.compaction.plan import CandidateFile, FileGroup, RewritePlan
from icekeep.planning.tasks import REPORT, dataframe_from_tasks, max_task_failures, read_reports, reported
from icekeep.runtime import Runtime
from icekeep.spec.layout import data_directory
from icekeep.spec.manifests.encode import PartitionCodec
from icekeep.spec.manifests.structs import DataFile
from icekeep.storage.base import Storage

STEP = "rewriting data files"


class RewrittenGroup(msgspec.Struct, frozen=True):
    """A group and the files that hold its rows now."""

    group: FileGroup
    added: tuple[DataFile, ...]


class FailedGroup(msgspec.Struct, frozen=True):
    """A group that could not be rewritten; none of its new files is left."""

    group: FileGroup
    error: IcekeepError


class _Work(msgspec.Struct, frozen=True):
    task: RewriteTask
    storage: Storage
    max_failures: int


def execute(
    plan: RewritePlan, table: Table, spark: SparkSession, *, concurrency: int, listener: Listener, runtime: Runtime
) -> Generator[RewrittenGroup | FailedGroup, None, None]:
    """Rewrite the groups of a plan, at most `concurrency` at a time, and yield each as it is finished.

    When the caller stops early, groups that have not begun are dropped, running ones are cancelled, and the files of those
    that were not yielded are removed.
    """
    operation = str(runtime.new_uuid())
    tag = f"icekeep-rewrite-{operation}"

    def run(number: int, group: FileGroup) -> RewrittenGroup | FailedGroup:
        spark.sparkContext.addJobTag(tag)
        spark.sparkContext.setJobDescription(f"rewrite {group.files_count} files of {group.partition or table.name}")
        return _rewrite_group(group, table, spark, f"{operation}-{number}")

    target = inheritable_thread_target(spark)(run)
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="rewrite")
    running: set[Future[RewrittenGroup | FailedGroup]] = set()
    try:
        running = {pool.submit(target, number, group) for number, group in enumerate(plan.groups)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                finished = future.result()
                listener.on(StepAdvanced(STEP, finished.group.files_count))
                yield finished
    finally:
        if running:
            pool.shutdown(wait=False, cancel_futures=True)
            spark.sparkContext.cancelJobsWithTag(tag)
        pool.shutdown(wait=True)
        for future in running:
            _discard_unseen(future, table)


def discard(table: Table, files: tuple[DataFile, ...]) -> None:
    """Remove new files that no snapshot names."""
    table.storage.delete_many([file.file_path for file in files])


def _discard_unseen(future: "Future[RewrittenGroup | FailedGroup]", table: Table) -> None:
    if not future.cancelled() and future.exception() is None:
        finished = future.result()
        if isinstance(finished, RewrittenGroup):
            discard(table, finished.added)


def _rewrite_group(
    group: FileGroup, table: Table, spark: SparkSession, operation_id: str
) -> RewrittenGroup | FailedGroup:
    tries = max_task_failures(spark)
    work = [_Work(task, table.storage, tries) for task in _tasks(group, table, operation_id)]
    results, errors = read_reports(dataframe_from_tasks(spark, work, _run, REPORT))
    added = tuple(file for files in results for file in files)
    if not errors:
        before, after = sum(f.record_count for f in group.files), sum(f.record_count for f in added)
        if before == after:
            return RewrittenGroup(group, added)
        errors = [IcekeepBug(f"a rewrite of {before} rows made {after}; nothing of it is committed")]
    discard(table, added)
    return FailedGroup(group, errors[0])


def _run(work: _Work) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    attempt_id = 0 if context is None else context.taskAttemptId()
    task = msgspec.structs.replace(work.task, task_attempt_id=attempt_id)
    yield reported(lambda: rewrite(task, work.storage), work.max_failures)


def _tasks(group: FileGroup, table: Table, operation_id: str) -> list[RewriteTask]:
    """Tasks that read about as much as makes one file each."""
    metadata = table.metadata
    pieces = [piece for file in group.files for piece in _pieces(file, group.split_bytes)]
    codec = PartitionCodec(metadata.partition_type(group.spec_id))
    return [
        RewriteTask(
            pieces=tuple(some),
            schema=metadata.schema,
            spec=metadata.specs_by_id[group.spec_id],
            partition=codec.decode(group.files[0].partition),
            data_location=data_directory(metadata),
            target_file_size_bytes=group.write_max_bytes,
            properties=metadata.properties,
            operation_id=operation_id,
            partition_id=number,
            sort_order=metadata.sort_order,
        )
        for number, some in enumerate(pack(pieces, lambda p: p.size_bytes, group.split_bytes))
    ]


def _pieces(file: CandidateFile, split_bytes: int) -> Iterator[FilePiece]:
    """A file whole, or by row groups or stripes where it is larger than one task's share and says where they begin."""
    whole = FilePiece(
        location=file.file_path,
        file_format=file.file_format,
        record_count=file.record_count,
        size_bytes=file.file_size_in_bytes,
        first_row_id=file.first_row_id,
        data_sequence_number=file.sequence_number,
    )
    offsets = file.split_offsets or ()
    splits = file.file_format.upper() in ("PARQUET", "ORC")
    if not splits or file.file_size_in_bytes <= split_bytes or len(offsets) < 2:
        yield whole
        return
    ends = [*offsets[1:], file.file_size_in_bytes]
    sizes = [end - start for start, end in zip(offsets, ends, strict=True)]
    for some in pack(range(len(offsets)), lambda number: sizes[number], split_bytes):
        size_bytes = sum(sizes[number] for number in some)
        yield msgspec.structs.replace(whole, record_count=0, size_bytes=size_bytes, parts=tuple(some))


def failed_job(failed: FailedGroup) -> JobFailedError:
    """The error for a run that stops at its first failed group."""
    return JobFailedError(
        f"cannot rewrite {failed.group.files_count} files of partition {failed.group.partition!r}: {failed.error.message}; "
        "the table is as it was and the new files are removed",
    )
