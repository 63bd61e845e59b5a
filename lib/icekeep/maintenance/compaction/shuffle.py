"""The rows of a group that outgrows tasks, through Spark's shuffle: read by some tasks, ordered and written by others.

Each row goes to the task of the range that its key falls in. Rows travel as Arrow, many of them in one value: Spark moves bytes
and converts nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import IcekeepBug
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.rewrite.moves import MAX_REPORTED_BYTES, reported_moves
from icekeep.formats.rewrite.rows import TaskRows, columns_to_write
from icekeep.formats.rewrite.run import write_rows
from icekeep.formats.rewrite.task import FilePiece, RewriteOutcome, RewriteTask, numbered
from icekeep.formats.rewrite.verify import hash_of_written
from icekeep.formats.row_hash import RowSum
from icekeep.formats.row_moves import MovedPiece, RowMoves
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import range_numbers, sort_keys
from icekeep.maintenance.compaction.rewriting import Done, Ran
from icekeep.planning.spark.tasks import run_exchange
from icekeep.planning.spark.workers import attempt_id
from icekeep.runtime import process_cpu_ms
from icekeep.spec.collections import packed
from icekeep.spec.reach import PathDigest
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READ_BYTES = 64 * MIB
"""What a task reads of files: so little that a slow one is not waited for, and much against what its start costs."""

_PARCELS_BYTES = 16 * MIB
"""Rows that a reading task divides among ranges at a time: few rows a range would be more names of columns than values."""


class _Report(msgspec.Struct, frozen=True):
    """What a reading task tells of the rows that it read; only attempts that won are told in this way, and once."""

    read_count: int
    live_count: int
    cpu_ms: int
    moves: RowMoves | None
    proven: frozenset[PathDigest]
    hash: RowSum | None


_Sent: TypeAlias = bytes | _Report
"""Rows of one range as an Arrow stream, or a report, which goes to the task of the first range."""


class _Reading(msgspec.Struct, frozen=True):
    number: int
    pieces: tuple[FilePiece, ...]


class _Exchange(msgspec.Struct, frozen=True):
    """What all tasks share.

    Attributes:
        task: without the pieces that others read, but one, which says what partition new files are of.
        points: where ranges end.
        files_counts: how many files come of each; `None` where their size alone says it.
        max_bytes: what is told of moves that takes more goes into storage.
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
) -> Ran:
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
    readings = [_Reading(number, tuple(some)) for number, some in enumerate(bins)]
    exchange = _Exchange(
        msgspec.structs.replace(whole, pieces=whole.pieces[:1]),
        tuple(points),
        None if files_counts is None else tuple(files_counts),
        storage,
        # One task is told the moves of all that read, and tells them all.
        MAX_REPORTED_BYTES // max(1, len(readings)),
    )
    done, errors = run_exchange(spark, readings, _read, parts, _written, exchange, step="rewriting rows in order")
    return Ran(done, errors)


def _read(reading: _Reading, exchange: _Exchange) -> Iterator[tuple[int, _Sent]]:
    """The live rows of a task's pieces for the range that each must go to; last, what was read."""
    began_ms = process_cpu_ms()
    task = msgspec.structs.replace(
        exchange.task, pieces=reading.pieces, partition_id=reading.number, task_attempt_id=attempt_id()
    )
    assert task.ordering is not None
    rows = TaskRows(task, exchange.storage)
    waiting: list[pa.Table] = []
    for table in rows:
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
        read_count, live_count, cpu_ms: what reading tasks told, in all; complete after the last row.
        pieces, stored: what they told of the rows that they read, as in `RowMoves`; likewise.
        proven: what they told of delete files; likewise.
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
            if isinstance(one, _Report):
                self._take(one)
            else:
                with pa.ipc.open_stream(one) as stream:
                    yield stream.read_all()

    def _take(self, report: _Report) -> None:
        self.read_count += report.read_count
        self.live_count += report.live_count
        self.cpu_ms += report.cpu_ms
        if report.moves is not None:
            self.pieces += report.moves.pieces
            self.stored += report.moves.stored
        self.proven |= report.proven
        self.hash += report.hash or RowSum()
