"""A run of many entries rewritten in Spark tasks: some read, a shuffle brings the records of a range of keys to one that writes.

Ranges are cut by a survey of the keys, so that all have about as many entries, and a partition that is too large for one
is spread over several.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.maintenance.manifests.survey import Survey, cut_weights
from icekeep.maintenance.manifests.writing import RunWriter
from icekeep.planning.entries import manifests_by_task
from icekeep.planning.spark.rows import hash_keys
from icekeep.planning.spark.tasks import dataframe_from_tasks, run_over_partitions
from icekeep.planning.spark.workers import NEW_MANIFESTS, tasks_count
from icekeep.planning.transcode import PLACES_A_MANIFEST, RECORDS, RecordsTask, joined, live_records, value_offsets
from icekeep.spec.manifests.structs import ManifestFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCH_ROWS = 4096
_RANGE = "range"
_CROSSING = pa.schema([pa.field(_RANGE, pa.int32(), nullable=False), *RECORDS])


class _Reading(msgspec.Struct, frozen=True):
    """Manifests to read, the keys at which ranges end, and how many manifests there are in all."""

    task: RecordsTask
    points: tuple[bytes, ...]
    manifests_count: int


class _Writing(msgspec.Struct, frozen=True):
    """What a task that writes is told; a task has about so many entries."""

    writer: RunWriter
    entries_count: int


def rewritten_in_tasks(
    task: RecordsTask, writer: RunWriter, found: Survey, expected_count: int, spark: "SparkSession"
) -> list[ManifestFile]:
    """The same as `held_records.rewritten_here`, by tasks; about `expected_count` manifests come of it.

    Args:
        found: how the entries lie.

    Raises:
        IcekeepError: a task failed; what the others wrote is removed.
    """
    parts = cut_weights(found.weights(), tasks_count(spark, expected_count, NEW_MANIFESTS))
    points = tuple(part[0].key for part in parts[1:])
    entries_count = sum(weight.count for part in parts for weight in part)
    bins = manifests_by_task(task.manifests, spark)
    readings = [_Reading(_share(task, some), points, len(task.manifests)) for some in bins]
    writing = _Writing(writer, max(1, entries_count // len(parts)))
    rows = dataframe_from_tasks(spark, readings, _read, _CROSSING)
    in_order = rows.repartition(len(parts), _RANGE).sortWithinPartitions("key", "place")
    results, errors = run_over_partitions(in_order, _write, writing, step="writing manifests")
    manifests = [manifest for result in results for manifest in result]
    if errors:
        writer.discard(manifests)
        raise errors[0]
    return sorted(manifests, key=lambda m: m.manifest_path)


def _share(task: RecordsTask, some: Sequence[ManifestFile]) -> RecordsTask:
    numbers = {manifest.manifest_path: task.numbers[manifest.manifest_path] for manifest in some}
    return msgspec.structs.replace(task, manifests=tuple(some), numbers=numbers)


def _read(reading: _Reading) -> Iterator[pa.RecordBatch]:
    places = np.array(hash_keys(len(reading.points) + 1), np.int32)
    for batch in live_records(reading.task):
        ranges = pa.array(places[range_numbers(batch, reading.points, reading.manifests_count)])
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch.slice(start, _BATCH_ROWS)
            yield pa.RecordBatch.from_arrays([ranges.slice(start, _BATCH_ROWS), *part.columns], schema=_CROSSING)


def range_numbers(batch: pa.RecordBatch, points: Sequence[bytes], manifests_count: int) -> NDArray[np.int64]:
    """The range that each record falls into.

    A key at which ranges end belongs to all that begin or end with it: those get its records manifest by manifest.

    Args:
        batch: of `RECORDS`.
        points: the first key of each range but the first; several are equal where one key fills whole ranges.
        manifests_count: of how many manifests the records come.
    """
    coded = batch["key"].dictionary_encode()
    keys = coded.dictionary.to_pylist()
    codes = coded.indices.to_numpy()
    first = np.array([bisect_left(points, key) for key in keys], np.int64)[codes]
    last = np.array([bisect_right(points, key) for key in keys], np.int64)[codes]
    numbers = batch["place"].to_numpy() // PLACES_A_MANIFEST
    return first + numbers * (last - first + 1) // manifests_count


def _write(batches: Iterable[pa.RecordBatch], writing: _Writing) -> list[ManifestFile]:
    """Write sorted records as manifests of about even size; what was written is removed if that fails."""
    written: list[ManifestFile] = []
    try:
        for records in _parts(writing, batches):
            written.append(writing.writer.write([records]))
    except BaseException:
        writing.writer.discard(written)
        raise
    return written


def _parts(writing: _Writing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Records in the order in which they come, cut evenly; the last part takes a rest of less than half a part with it."""
    pending: list[pa.RecordBatch] = []
    held = room = 0
    for batch in (batch for batch in batches if batch.num_rows):
        room = room or _rows_a_manifest(writing, batch)
        pending.append(batch.select(RECORDS.names))
        held += batch.num_rows
        while held >= room + room // 2:
            whole = pa.Table.from_batches(pending, RECORDS)
            yield whole[:room]
            pending = whole[room:].to_batches()
            held -= room
    if held:
        yield pa.Table.from_batches(pending, RECORDS)


def _rows_a_manifest(writing: _Writing, rows: pa.RecordBatch) -> int:
    """How many records make one manifest, so that the task's entries are dealt out evenly; judged by the first ones."""
    records = rows["record"]
    ratio = writing.writer.packed_ratio([joined(records)])
    task_bytes = int(np.diff(value_offsets(records)).mean()) * writing.entries_count
    return max(2, -(-writing.entries_count // writing.writer.parts_count(task_bytes, ratio)))
