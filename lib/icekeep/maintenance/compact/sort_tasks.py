"""The tasks of a group whose rows are put in order, each of which takes a range of keys.

Where all slots are on one machine, a task has a thread for each of them, and they read the files once together: nothing else has
a use for the other slots meanwhile. What outgrows their memory is put on disk in order. For 190 MB of lineitem, 14 times that
memory, it took 17 seconds of a processor, to read them seven times 31, and Spark's shuffle 44.

On a cluster, and above `method.MAX_RANGES` times what a thread orders at a time, rows go through Spark's shuffle: some tasks read
each file once, and send each row to the task of the range that its key falls in, which orders and writes. Rows travel as Arrow,
many of them in one value: Spark moves bytes and converts nothing.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.rewrite.proof import hash_of_written
from icekeep.formats.rewrite.run import sample_task, write_rows
from icekeep.formats.rewrite.task import (
    MAX_REPORTED_BYTES,
    FilePiece,
    RewriteOutcome,
    RewriteTask,
    TaskRows,
    columns_to_write,
    numbered,
    reported_moves,
)
from icekeep.formats.row_hash import RowSum
from icekeep.formats.row_moves import MovedPiece, RowMoves
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import KeySample, key_ranges, range_numbers, ranges_of_files, sort_keys, split_points
from icekeep.maintenance.compact.options import RewriteMethod
from icekeep.maintenance.compact.plan import FileGroup
from icekeep.maintenance.compact.tasks import Done, TaskOutcomes, rewritten
from icekeep.planning.spark.tasks import attempt_id, run_exchange, run_tasks
from icekeep.planning.spark.workers import DATA_BYTES, Workers, tasks_count
from icekeep.runtime import process_cpu_ms
from icekeep.spec.collections import balanced, packed
from icekeep.spec.reach import PathDigest
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLED_FILES_COUNT = 128
_SAMPLED_FILES_A_PART = 16


def run_ordered(
    whole: RewriteTask,
    group: FileGroup,
    method: RewriteMethod,
    workers: Workers,
    storage: Storage,
    *,
    slots: int,
    parts_a_file: int,
) -> TaskOutcomes:
    """Rewrite a group in the order that its task says.

    Args:
        whole: the task that would do all of it.
        slots: how many tasks this group may have at once.
        parts_a_file: into how many parts a file is cut to find where it ends (option `shuffle-partitions-per-file`).
    """
    shuffles = method is RewriteMethod.SHUFFLE
    files_count = max(1, group.expected_files_count)
    parts = files_count if shuffles else min(slots, files_count)
    if parts == 1 and not shuffles:
        return rewritten(workers, storage, [whole])
    samples, errors = _samples(whole, parts, workers, storage, slots)
    if errors:
        return TaskOutcomes((), errors)
    if whole.files_count is None:
        points, files_counts = split_points(samples, parts * parts_a_file if shuffles else parts), None
    else:
        points, files_counts = ranges_of_files(samples, whole.files_count, parts, finer=parts_a_file)
    if shuffles:
        assert workers.spark is not None
        return shuffled(whole, points, files_counts, workers.spark, storage)
    return rewritten(workers, storage, [tuple(range_tasks(whole, points, files_counts))])


def range_tasks(whole: RewriteTask, points: Sequence[bytes], files_counts: Sequence[int] | None) -> list[RewriteTask]:
    """The same work for several tasks: each reads all files and takes the rows of its range of keys.

    Args:
        points: where ranges end and the next begin, ascending.
        files_counts: how many files come of each range; `None` where their size alone says it.
    """
    ranges = key_ranges(points)
    counts = [None] * len(ranges) if files_counts is None else files_counts
    return [
        msgspec.structs.replace(whole, key_range=one, partition_id=number, files_count=count)
        for number, (one, count) in enumerate(zip(ranges, counts, strict=True))
    ]


def _samples(
    whole: RewriteTask, parts: int, workers: Workers, storage: Storage, slots: int
) -> tuple[Sequence[KeySample], Sequence[IcekeepError]]:
    """Samples of the keys of every n-th file."""
    files_count = min(_SAMPLED_FILES_COUNT, _SAMPLED_FILES_A_PART * parts)
    pieces = whole.pieces[:: math.ceil(len(whole.pieces) / files_count)]
    size_bytes = sum(piece.size_bytes for piece in pieces)
    spark = None if size_bytes <= workers.limits.sort_sample_bytes else workers.spark
    bins = balanced(
        pieces, attrgetter("size_bytes"), slots if spark is None else tasks_count(spark, size_bytes, DATA_BYTES)
    )
    tasks = [msgspec.structs.replace(whole, pieces=tuple(some), delete_files=()) for some in bins]
    threads = min(slots, REQUESTS_AT_ONCE)
    return run_tasks(spark, tasks, sample_task, storage, step="sampling sort keys", threads=threads)


_READ_BYTES = 64 * MIB
"""What a task reads of files: little enough that a slow one does not keep the others waiting, and much against its start."""

_PARCELS_BYTES = 16 * MIB
"""Rows that a reading task divides among ranges at a time: few rows a range would be more names of columns than values."""


class _Report(msgspec.Struct, frozen=True):
    """What a reading task reports of the rows that it read; only attempts that won are reported in this way, and once."""

    read_count: int
    live_count: int
    cpu_ms: int
    moves: RowMoves | None
    proven: frozenset[PathDigest]
    hash: RowSum | None


_Sent: TypeAlias = bytes | _Report
"""Rows of one range as an Arrow stream, or a report, which goes to the task of the first range."""


_Reading: TypeAlias = tuple[int, tuple[FilePiece, ...]]
"""The number of a reading task, and what it reads."""


class _Exchange(msgspec.Struct, frozen=True):
    """What all tasks share.

    Attributes:
        task: with one of the pieces, which says what partition new files are of.
        points, files_counts: as for `shuffled`.
        max_bytes: a report of moves that takes more goes into storage.
    """

    task: RewriteTask
    points: tuple[bytes, ...]
    files_counts: tuple[int, ...] | None
    storage: Storage
    max_bytes: int


def shuffled(
    whole: RewriteTask,
    points: Sequence[bytes],
    files_counts: Sequence[int] | None,
    spark: "SparkSession",
    storage: Storage,
) -> TaskOutcomes:
    """Rewrite the pieces of a task in its order, each range of keys by a task of its own.

    Args:
        whole: the task that would do all of it.
        points: where ranges end and the next begin, ascending, each a whole key.
        files_counts: how many files come of each range; `None` where their size alone says it.
    """
    whole = numbered(msgspec.structs.replace(whole, is_shuffled=True))
    whole = msgspec.structs.replace(whole, keeps_lineage=len(columns_to_write(whole).fields) > len(whole.schema.fields))
    parts = len(points) + 1
    bins = packed(whole.pieces, (attrgetter("size_bytes"), _READ_BYTES))
    readings: list[_Reading] = [(number, tuple(some)) for number, some in enumerate(bins)]
    exchange = _Exchange(
        msgspec.structs.replace(whole, pieces=whole.pieces[:1]),
        tuple(points),
        None if files_counts is None else tuple(files_counts),
        storage,
        # One task gets the reports of all that read, and hands them all on.
        MAX_REPORTED_BYTES // max(1, len(readings)),
    )
    done, errors = run_exchange(spark, readings, _read, parts, _written, exchange, step="rewriting rows in order")
    return TaskOutcomes(done, errors)


def _read(reading: _Reading, exchange: _Exchange) -> Iterator[tuple[int, _Sent]]:
    """The live rows of a task's pieces for the range that each must go to; last, what was read."""
    began_ms = process_cpu_ms()
    number, pieces = reading
    task = msgspec.structs.replace(exchange.task, pieces=pieces, partition_id=number, task_attempt_id=attempt_id())
    assert task.ordering is not None
    rows = TaskRows(task, exchange.storage)
    waiting: list[pa.Table] = []
    for table in rows.read():
        waiting.append(_as_sent(table, has_origins=task.has_origins))
        if sum(one.nbytes for one in waiting) >= _PARCELS_BYTES:
            yield from _parcels(waiting, task.ordering, rows.columns, exchange.points)
            waiting = []
    if waiting:
        yield from _parcels(waiting, task.ordering, rows.columns, exchange.points)
    origins = () if task.has_origins else None
    moves = reported_moves(task, exchange.storage, rows.pieces, origins, exchange.max_bytes)
    yield 0, _Report(rows.read_count, rows.live_count, process_cpu_ms() - began_ms, moves, rows.proven, rows.hash)


def _as_sent(table: pa.Table, *, has_origins: bool) -> pa.Table:
    """Without dictionaries, of which each slice would carry all, and with origins of one type whatever a task has read."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    if has_origins:
        columns[-1] = columns[-1].cast(pa.int64())
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _parcels(
    tables: Sequence[pa.Table], ordering: Ordering, columns: Schema, points: Sequence[bytes]
) -> Iterator[tuple[int, bytes]]:
    """Some rows, those of each range together."""
    table = pa.concat_tables(tables).combine_chunks()
    numbers = range_numbers(sort_keys(table, ordering, columns), points)
    by_range = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[by_range], np.arange(len(points) + 2))
    table = table.take(pa.array(by_range)).combine_chunks()
    for number in np.unique(numbers):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.slice(ends[number], ends[number + 1] - ends[number]))
        yield int(number), sink.getvalue().to_pybytes()


def _written(part: int, sent: Iterable[tuple[int, _Sent]], exchange: _Exchange) -> Done:
    began_ms = process_cpu_ms()
    files_count = None if exchange.files_counts is None else exchange.files_counts[part]
    task = msgspec.structs.replace(
        exchange.task, delete_files=(), files_count=files_count, partition_id=part, task_attempt_id=attempt_id()
    )
    arrived = _Arrived(sent, part)
    written = write_rows(task, columns_to_write(task), arrived, exchange.storage)
    moves = None
    if written.origins is not None:
        moves = RowMoves(pieces=tuple(arrived.pieces), stored=tuple(arrived.stored), origins=written.origins)
    outcome = RewriteOutcome(
        files=written.files,
        read_count=arrived.read_count,
        live_count=arrived.live_count,
        peak_bytes=peak_memory_bytes(),
        moves=moves,
        proven=frozenset(arrived.proven),
        hash_in=arrived.hash if task.verifies else None,
        hash_out=hash_of_written(task, written.files, exchange.storage),
    )
    return Done(outcome, arrived.cpu_ms + process_cpu_ms() - began_ms)


class _Arrived:
    """The rows of a range, their origins behind them if they have any.

    Attributes:
        read_count, live_count, cpu_ms, proven: what reading tasks report, in all; complete after the last row.
        pieces, stored: what they report of the rows that they read, as in `RowMoves`; likewise.
        hash: of the rows that they read, where they were asked for it; likewise.
    """

    def __init__(self, sent: Iterable[tuple[int, _Sent]], part: int) -> None:
        self._sent, self._part = sent, part
        self.read_count = self.live_count = self.cpu_ms = 0
        self.pieces: list[MovedPiece] = []
        self.stored: list[str] = []
        self.proven: set[PathDigest] = set()
        self.hash = RowSum()

    def __iter__(self) -> Iterator[pa.Table]:
        for number, one in self._sent:
            if number != self._part:
                raise IcekeepBug("Spark sent rows to another task than their range says")
            if not isinstance(one, _Report):
                with pa.ipc.open_stream(one) as stream:
                    yield stream.read_all()
                continue
            self.read_count += one.read_count
            self.live_count += one.live_count
            self.cpu_ms += one.cpu_ms
            if one.moves is not None:
                self.pieces += one.moves.pieces
                self.stored += one.moves.stored
            self.proven |= one.proven
            self.hash += one.hash or RowSum()
