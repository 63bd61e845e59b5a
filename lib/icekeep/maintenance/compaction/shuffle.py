"""The rows of a group that outgrows tasks, through Spark's shuffle: read by some tasks, ordered and written by others.

Each row goes to the task of the range that its key falls in. Spark moves rows in types of its own that have the same
bits: what is not a number, a string or a decimal crosses as one of these (`formats.arrow.plain_types`).
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession

from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.formats.arrow.projection import project
from icekeep.formats.arrow.schema import stored_schema
from icekeep.formats.arrow.spark_types import crossed, crossing_types, returned
from icekeep.formats.memory import peak_memory_bytes
from icekeep.formats.rewrite.input import TaskRows, columns_to_write
from icekeep.formats.rewrite.moves_report import MAX_REPORTED_BYTES, reported_moves
from icekeep.formats.rewrite.run import write_rows
from icekeep.formats.rewrite.task import RewriteOutcome, RewriteTask, numbered
from icekeep.formats.rewrite.verify import hash_of_written
from icekeep.formats.row_hash.multiset import RowSum
from icekeep.formats.row_mapping.row_moves import ORIGIN, MovedPiece, RowMoves
from icekeep.formats.sort.keys import sort_keys
from icekeep.formats.sort.ranges import range_numbers
from icekeep.maintenance.compaction.rewriting import Done, Ran
from icekeep.planning.spark.tasks import attempt_id, dataframe_from_tasks, hash_keys, parallelism, run_over_partitions
from icekeep.runtime import process_cpu_ms
from icekeep.spec.bins import balanced, cut_evenly, each_once
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

_READERS_A_SLOT = 4
"""Reading tasks for each that runs at once: so many that a slow one is not waited for, and few since each costs a start."""

_BATCH_ROWS = 16_384
"""Rows that go to Spark at one time."""

_PLACE = "place"
_COUNTS = ("read_count", "live_count", "cpu_ms")
_TOLD = "moves"
"""What a reading task tells beside rows, in a row of its own: only attempts that won are told in this way, and once."""

_ORIGIN = "origin"

_FACTS = pa.schema(
    [
        pa.field(_PLACE, pa.int32()),
        *(pa.field(name, pa.int64()) for name in _COUNTS),
        pa.field(_TOLD, pa.binary()),
        pa.field(_ORIGIN, pa.int64()),
    ]
)
"""What crosses beside the columns that files hold; all of it may be null."""


class _Reading(msgspec.Struct, frozen=True):
    """`max_bytes`: what is told of moves that takes more goes into storage."""

    task: RewriteTask
    points: tuple[bytes, ...]
    storage: Storage
    max_bytes: int


class _Report(msgspec.Struct, frozen=True):
    """What a reading task tells of the rows that it read, beside their numbers."""

    moves: RowMoves | None
    hash: RowSum | None


class _Writing(msgspec.Struct, frozen=True):
    task: RewriteTask
    places: tuple[int, ...]
    storage: Storage


def shuffled(whole: RewriteTask, points: Sequence[bytes], spark: SparkSession, storage: Storage) -> Ran:
    """Rewrite the pieces of a task in its order, each range of keys by a task of its own.

    Args:
        whole: the task that would do all of it.
        points: where ranges end and the next begin, ascending, each a whole key. Of more ranges than the task's
            `files_count` several make one file.

    Raises:
        UnsupportedError: the rows have a column that cannot be read.
    """
    if whole.files_count is not None:
        ranges = cut_evenly(range(len(points) + 1), each_once, whole.files_count)
        points = [points[some[0] - 1] for some in ranges[1:]]
    whole = numbered(msgspec.structs.replace(whole, is_shuffled=True))
    whole = msgspec.structs.replace(whole, keeps_lineage=len(columns_to_write(whole).fields) > len(whole.schema.fields))
    parts = len(points) + 1
    bins = balanced(whole.pieces, attrgetter("size_bytes"), parallelism(spark) * _READERS_A_SLOT)
    # One task is told the moves of all that read, and tells them all.
    max_bytes = MAX_REPORTED_BYTES // max(1, len(bins))
    readings = [
        _Reading(
            msgspec.structs.replace(whole, pieces=tuple(some), partition_id=number),
            tuple(points),
            storage,
            max_bytes,
        )
        for number, some in enumerate(bins)
    ]
    files_count = None if whole.files_count is None else max(1, round(whole.files_count / parts))
    task = msgspec.structs.replace(whole, pieces=whole.pieces[:1], delete_files=(), files_count=files_count)
    writing = _Writing(task, hash_keys(parts), storage)
    rows = dataframe_from_tasks(spark, readings, _read, _crossing_schema(columns_to_write(whole)))
    try:
        done, errors = run_over_partitions(
            rows.repartition(parts, _PLACE), _written, writing, step="rewriting rows in order"
        )
    # Of a task that reads: no row is written before all are read.
    except IcekeepError as error:
        return Ran((), [error])
    return Ran(done, errors)


def _crossing_schema(columns: Schema) -> pa.Schema:
    """A place, what readers tell, the origin of a row, and the columns that files hold; all may be null."""
    return pa.schema([*_FACTS, *crossing_types(stored_schema(columns))])


def _read(reading: _Reading) -> Iterator[pa.RecordBatch]:
    """The live rows of a task's pieces with the place that each must go to; last, a row of what was read."""
    began_ms = process_cpu_ms()
    task = msgspec.structs.replace(reading.task, task_attempt_id=attempt_id())
    assert task.ordering is not None
    rows = TaskRows(task, reading.storage)
    stored, schema = stored_schema(rows.columns), _crossing_schema(rows.columns)
    places = np.array(hash_keys(len(reading.points) + 1), dtype=np.int32)
    for table in rows:
        keys = sort_keys(table, task.ordering, rows.columns)
        place = pa.array(places[range_numbers(keys, reading.points)])
        origins = pa.nulls(table.num_rows, pa.int64())
        if task.has_origins:
            origins = table.column(table.num_columns - 1).combine_chunks().cast(pa.int64())
            table = table.remove_column(table.num_columns - 1)
        start = 0
        for batch in crossed(project(table, stored)).to_batches(max_chunksize=_BATCH_ROWS):
            size = batch.num_rows
            untold = [pa.nulls(size, field.type) for field in list(_FACTS)[1:-1]]
            facts = [place.slice(start, size), *untold, origins.slice(start, size)]
            yield pa.RecordBatch.from_arrays([*facts, *batch.columns], schema=schema)
            start += size
    moves = reported_moves(task, reading.storage, rows.pieces, () if task.has_origins else None, reading.max_bytes)
    told = (
        int(places[0]),
        rows.read_count,
        rows.live_count,
        process_cpu_ms() - began_ms,
        msgspec.msgpack.encode(_Report(moves, rows.hash)),
    )
    values = [pa.array([value], field.type) for value, field in zip(told, schema, strict=False)]
    absent = [pa.nulls(1, field.type) for field in list(schema)[len(told) :]]
    yield pa.RecordBatch.from_arrays([*values, *absent], schema=schema)


def _written(batches: Iterable[pa.RecordBatch], writing: _Writing) -> Done:
    began_ms = process_cpu_ms()
    context = TaskContext.get()
    part = 0 if context is None else int(context.partitionId())
    task = msgspec.structs.replace(writing.task, partition_id=part, task_attempt_id=attempt_id())
    columns = columns_to_write(task)
    arrived = _Arrived(batches, columns, writing.places[part], has_origins=task.has_origins)
    written = write_rows(task, columns, arrived, writing.storage)
    read_count, live_count, cpu_ms = arrived.counts
    moves = None
    if written.origins is not None:
        moves = RowMoves(pieces=tuple(arrived.pieces), stored=tuple(arrived.stored), origins=written.origins)
    outcome = RewriteOutcome(
        files=written.files,
        read_count=read_count,
        live_count=live_count,
        peak_bytes=peak_memory_bytes(),
        moves=moves,
        hash_in=arrived.hash if task.verifies else None,
        hash_out=hash_of_written(task, written.files, writing.storage),
    )
    return Done(outcome, cpu_ms + process_cpu_ms() - began_ms)


class _Arrived:
    """The rows of a partition of the shuffle in a table's columns, their origins behind these if they have any.

    Attributes:
        counts: what reading tasks told, in all, in the order of `_COUNTS`; complete after the last row.
        pieces, stored: what they told of the rows that they read, as in `RowMoves`; likewise.
        hash: of the rows that they read, where they were asked for it; likewise.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], columns: Schema, place: int, *, has_origins: bool) -> None:
        self._batches, self._columns, self._place = batches, columns, place
        self._stored, self._has_origins = stored_schema(columns), has_origins
        self.counts = [0] * len(_COUNTS)
        self.pieces: list[MovedPiece] = []
        self.stored: list[str] = []
        self.hash = RowSum()

    def __iter__(self) -> Iterator[pa.Table]:
        for batch in self._batches:
            if pc.any(pc.not_equal(batch.column(0), self._place)).as_py():
                raise IcekeepBug("Spark sent a row to another partition than its place says")
            told = batch.column(1).is_valid()
            if told.true_count:
                self._take(batch.filter(told))
                batch = batch.filter(pc.invert(told))
            if batch.num_rows:
                table = project(returned(batch.columns[len(_FACTS) :], self._stored), self._columns)
                if self._has_origins:
                    table = table.append_column(ORIGIN, batch.column(_ORIGIN))
                yield table

    def _take(self, told: pa.RecordBatch) -> None:
        for number, name in enumerate(_COUNTS):
            self.counts[number] += pc.sum(told.column(name)).as_py()
        for encoded in told.column(_TOLD).to_pylist():
            one = msgspec.msgpack.decode(encoded, type=_Report)
            if one.moves is not None:
                self.pieces += one.moves.pieces
                self.stored += one.moves.stored
            self.hash += one.hash or RowSum()
