"""Files that are put together byte for byte: the task, and what manifests say of its files.

Only these files' metrics are ever wanted by a compaction: they are read from the manifests a second time, since they are
too wide to be carried along for all candidates.

Tasks of a rewrite: each attempt names its files by itself, and only those of the attempt that won are told.

The tasks of groups whose rows need no other task: what all share travels once, a task is told a group and a number.

The rows of a group that outgrows tasks, through Spark's shuffle: read by some tasks, ordered and written by others.

Each row goes to the task of the range that its key falls in. Rows travel as Arrow, many of them in one value: Spark moves bytes
and converts nothing.

A group whose rows several threads or tasks order: each takes a range of keys.

Where all slots are on one machine, a task has a thread for each of them, and they read the files once together: nobody else has
a use for the other slots meanwhile. On a cluster, and above `methods.MAX_RANGES` times what a thread orders at a time, rows go
through Spark's shuffle, and each file is read once too.

In threads of this process what outgrows their memory is put on disk in order. For 190 MB of lineitem, 14 times that memory, it
took 17 seconds of a processor, to read them seven times 31, and Spark's shuffle 44.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.decoding import from_msgpack
from icekeep.errors import ConflictError, IcekeepBug, IcekeepError, UnsupportedError
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.options import write_options
from icekeep.formats.rewrite.copy_row_groups import stitch
from icekeep.formats.rewrite.proof import hash_of_written, rows_of_copy
from icekeep.formats.rewrite.run import rewrite, rewrite_together, sample_task, write_rows
from icekeep.formats.rewrite.task import (
    MAX_REPORTED_BYTES,
    FilePiece,
    RewriteOutcome,
    RewriteTask,
    TaskRows,
    columns_to_write,
    numbered,
    removed_on_failure,
    reported_moves,
)
from icekeep.formats.row_hash import RowSum
from icekeep.formats.row_moves import MovedPiece, RowMoves
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import KeySample, range_numbers, ranges_of_files, sort_keys, split_points
from icekeep.maintenance.compact.method import (
    GroupContext,
    GroupMethod,
    ordering_of,
    range_tasks,
    share_task,
    shares_of_group,
    whole_task,
)
from icekeep.maintenance.compact.options import RewriteMethod
from icekeep.maintenance.compact.plan import FileGroup, group_files
from icekeep.planning.entries import DecodedEntries, folded
from icekeep.planning.manifests import METRICS
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.session import SparkSource, task_context
from icekeep.planning.spark.tasks import attempt_id, run_exchange, run_tasks
from icekeep.planning.spark.workers import DATA_BYTES, Workers, in_turns, tasks_count
from icekeep.runtime import process_cpu_ms, thread_cpu_ms
from icekeep.spec.collections import balanced, packed
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.reach import PathDigest
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ColumnMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a data file that are of `planning.manifests.METRICS`; packed they take a fifth of the memory."""

    column_sizes: dict[int, int] | None = None
    value_counts: dict[int, int] | None = None
    null_value_counts: dict[int, int] | None = None
    nan_value_counts: dict[int, int] | None = None
    lower_bounds: dict[int, bytes] | None = None
    upper_bounds: dict[int, bytes] | None = None


Metrics = bytes
"""`ColumnMetrics`, as msgpack."""

STITCHED_FILES_A_JOB = 20_000
"""The metrics of so many files of a hundred columns take some hundred megabytes."""

_COLUMNS = frozenset({"file_path", *METRICS.names})


class StitchTask(msgspec.Struct, frozen=True, kw_only=True):
    """Files to put into one, and the task that encodes them anew where that turns out not to be allowed.

    Attributes:
        files: as their entries describe them, metrics included.
        rewrite: what encodes them anew.
        may_reencode: false where the user wants no file to be encoded anew.
    """

    files: tuple[DataFile, ...]
    rewrite: RewriteTask
    may_reencode: bool


class _PickedMetrics:
    """The metrics of the files at some paths; a `Fold`."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = pa.array(sorted(paths), pa.string())
        self.found: dict[str, Metrics] = {}

    def add(self, decoded: DecodedEntries) -> None:
        """Pick them out of some entries."""
        entries = decoded.entries
        chosen = entries.filter(pc.is_in(entries["file_path"], value_set=self._paths))
        for row in chosen.to_pylist():
            maps = {name: None if row[name] is None else dict(row[name]) for name in METRICS.names}
            self.found[row["file_path"]] = msgspec.msgpack.encode(ColumnMetrics(**maps))

    def merge(self, other: Self) -> None:
        """Take in what was picked elsewhere."""
        self.found.update(other.found)


def metrics_of(
    scan: Scan, spark: SparkSource, paths: Iterable[str], manifest_paths: Iterable[str]
) -> dict[str, Metrics]:
    """What the manifests of a scan say of the columns of some of its files, by path.

    Args:
        manifest_paths: where the files were found.
    """
    wanted, where = frozenset(paths), frozenset(manifest_paths)
    manifests = [manifest for manifest in scan.data.opened if manifest.manifest_path in where]
    picked = folded(scan.table.storage, spark, manifests, scan.wanted, _COLUMNS, partial(_PickedMetrics, wanted))
    missing = wanted - picked.found.keys()
    if missing:
        raise ConflictError(f"data file {min(missing)!r} was planned and is in no manifest")
    return picked.found


class MetricsInParts:
    """The metrics of a plan's files that are put together byte for byte: of all at once, or where they are many of some groups.

    Where they are many, manifests are read again for each part of them, so that the driver never holds all.
    """

    def __init__(
        self,
        groups: Sequence[FileGroup],
        methods: Mapping[int, GroupMethod],
        read: Callable[[Sequence[FileGroup]], Mapping[str, Metrics]],
    ) -> None:
        self._groups, self._read = groups, read
        self._are_few = sum(methods[group.number].stitched_files_count for group in groups) <= STITCHED_FILES_A_JOB
        self._all: Mapping[str, Metrics] | None = None
        self._lock = threading.Lock()

    def of(self, groups: Sequence[FileGroup]) -> Mapping[str, Metrics]:
        """By path, of the files of some groups at least; raises what reading manifests raises."""
        if not self._are_few:
            return self._read(groups)
        with self._lock:
            if self._all is None:
                self._all = self._read(self._groups)
            return self._all


def stitch_task(whole: RewriteTask, metrics: Mapping[str, Metrics], *, may_reencode: bool) -> StitchTask:
    """The task for the files of a rewrite of whole files without deletes.

    Args:
        metrics: by path (`metrics_of`).
    """
    files = tuple(
        DataFile(
            file_path=piece.location,
            file_format=piece.file_format,
            spec_id=piece.spec_id,
            partition=piece.partition,
            record_count=piece.record_count,
            file_size_in_bytes=piece.size_bytes,
            first_row_id=piece.first_row_id,
            **msgspec.structs.asdict(from_msgpack(metrics[piece.location], ColumnMetrics)),
        )
        for piece in whole.pieces
    )
    return StitchTask(files=files, rewrite=whole, may_reencode=may_reencode)


def run_stitch(task: StitchTask, storage: Storage) -> RewriteOutcome:
    """Put the files into one, or encode them anew if their footers have something against it.

    Raises:
        UnsupportedError: they have, and may not be encoded anew.
        MissingFileError, InvalidTableError: as `stitch` and `rewrite`.
    """
    told = task.rewrite
    options = write_options(told.properties, told.schema, told.sort_order)
    location = told.file_names().location(options.file_suffix, told.partition_path(task.files[0].partition))
    try:
        file = stitch(task.files, storage, location, schema=told.schema, modes=options.metrics_modes)
    except UnsupportedError:
        if not task.may_reencode:
            raise
        return rewrite(told, storage)
    with removed_on_failure([location], storage):
        moves = reported_moves(told, storage)
        proved = rows_of_copy(told.pieces, file, storage) if told.verifies else None
    return RewriteOutcome(
        files=(file,),
        read_count=file.record_count,
        live_count=file.record_count,
        stitched_count=1,
        moves=moves,
        hash_in=proved,
        hash_out=proved,
        peak_bytes=peak_memory_bytes(),
    )


class Done(msgspec.Struct, frozen=True):
    """What a task did, and the processor time that it took, milliseconds."""

    outcome: RewriteOutcome
    cpu_ms: int


class TaskOutcomes(msgspec.Struct, frozen=True):
    """The tasks that succeeded, and the errors of those that did not."""

    done: Sequence[Done]
    errors: Sequence[IcekeepError] = ()


Task = RewriteTask | StitchTask | tuple[RewriteTask, ...]
"""What a task does; several tasks of a rewrite that differ in their ranges of keys alone read their files once."""


def rewritten(workers: Workers, storage: Storage, tasks: Sequence[Task]) -> TaskOutcomes:
    """Run tasks side by side; in Spark, as one job."""
    work = in_turns(run_task, workers, _threads_count)
    done, errors = run_tasks(workers.spark, tasks, work, storage, threads=workers.slots)
    return TaskOutcomes(done, errors)


def _threads_count(task: Task) -> int:
    """A task of several ranges has a thread for each."""
    return len(task) if isinstance(task, tuple) else 1


def _timed(work: Callable[[], RewriteOutcome], *, is_alone: bool) -> Done:
    """Do the work of a task and say what it cost; `is_alone`: whether nothing else runs in this process meanwhile."""
    cpu_ms = process_cpu_ms if is_alone else thread_cpu_ms
    began_ms = cpu_ms()
    outcome = work()
    return Done(outcome, cpu_ms() - began_ms)


def run_task(task: Task, storage: Storage) -> Done:
    """Do a task, with a number of this attempt in the names of its files."""

    def rewrite_task() -> RewriteOutcome:
        if isinstance(task, StitchTask):
            return run_stitch(msgspec.structs.replace(task, rewrite=_named(task.rewrite)), storage)
        if isinstance(task, tuple):
            return rewrite_together([*map(_named, task)], storage)
        return rewrite(_named(task), storage)

    return _timed(rewrite_task, is_alone=isinstance(task, tuple) or task_context() is not None)


def _named(task: RewriteTask) -> RewriteTask:
    return msgspec.structs.replace(task, task_attempt_id=attempt_id())


class GroupTask(NamedTuple):
    """One of the tasks of a group, by the numbers of both."""

    group_number: int
    number: int


class GroupWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of some groups share.

    Attributes:
        groups, methods: by the number of the group.
        metrics: of the files that are put together byte for byte, by path.
        may_reencode: whether these may be encoded anew where that fails.
    """

    context: GroupContext
    groups: Mapping[int, FileGroup]
    methods: Mapping[int, GroupMethod]
    metrics: Mapping[str, Metrics]
    may_reencode: bool
    storage: Storage

    def part(self, numbers: Collection[int]) -> "GroupWork":
        """What the tasks of some of the groups share."""
        return msgspec.structs.replace(
            self,
            groups={number: self.groups[number] for number in numbers},
            methods={number: self.methods[number] for number in numbers},
        )

    def tasks(self, group: FileGroup) -> list[RewriteTask | StitchTask]:
        """All tasks of a group."""
        return [self._ready(task) for task in self._bare_tasks(group)]

    def task(self, one: GroupTask) -> RewriteTask | StitchTask:
        """One of the tasks of a group."""
        return self._ready(self._bare_tasks(self.groups[one.group_number])[one.number])

    def _bare_tasks(self, group: FileGroup) -> list[tuple[RewriteTask, bool]]:
        """All tasks of a group, each with whether it puts its files together byte for byte; without metrics, which are wide."""
        method, files = self.methods[group.number], group_files(group, self.storage)
        if ordering_of(group, self.context) is not None:
            return [(whole_task(group, files, self.context), False)]
        copied = {*method.stitched}
        return [
            (share_task(group, files, share, self.context, number), share.whole_files in copied)
            for number, share in enumerate(shares_of_group(files, method.stitched, self.context.sizes))
        ]

    def _ready(self, bare: tuple[RewriteTask, bool]) -> RewriteTask | StitchTask:
        task, is_stitched = bare
        return stitch_task(task, self.metrics, may_reencode=self.may_reencode) if is_stitched else task


def run_group_task(one: GroupTask, work: GroupWork) -> Done:
    """Do one of the tasks."""
    return run_task(work.task(one), work.storage)


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
    return TaskOutcomes(done, errors)


def _read(reading: _Reading, exchange: _Exchange) -> Iterator[tuple[int, _Sent]]:
    """The live rows of a task's pieces for the range that each must go to; last, what was read."""
    began_ms = process_cpu_ms()
    task = msgspec.structs.replace(
        exchange.task, pieces=reading.pieces, partition_id=reading.number, task_attempt_id=attempt_id()
    )
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
    # What outgrows the memory of a range is put on disk.
    return rewritten(workers, storage, [tuple(range_tasks(whole, points, files_counts))])


def _samples(
    whole: RewriteTask, parts: int, workers: Workers, storage: Storage, slots: int
) -> tuple[Sequence[KeySample], Sequence[IcekeepError]]:
    """Samples of the keys of some files, chosen by no chance."""
    files_count = min(_SAMPLED_FILES_COUNT, _SAMPLED_FILES_A_PART * parts)
    pieces = whole.pieces[:: math.ceil(len(whole.pieces) / files_count)]
    size_bytes = sum(piece.size_bytes for piece in pieces)
    spark = None if size_bytes <= workers.limits.sort_sample_bytes else workers.spark
    bins = balanced(
        pieces, attrgetter("size_bytes"), slots if spark is None else tasks_count(spark, size_bytes, DATA_BYTES)
    )
    tasks = [msgspec.structs.replace(whole, pieces=tuple(some), delete_files=()) for some in bins]
    return run_tasks(
        spark,
        tasks,
        sample_task,
        storage,
        step="sampling sort keys",
        threads=min(slots, REQUESTS_AT_ONCE),
    )
