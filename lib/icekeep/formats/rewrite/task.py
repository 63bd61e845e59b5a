"""A task of a rewrite, its outcome, and its two ends: the live rows of its pieces, and the files that rows are written into.

Tasks and outcomes are sent between driver and executors.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepError, UnsupportedError
from icekeep.formats.deletes.apply import PIECE_BYTES, LivePiece, LiveRowsReader
from icekeep.formats.deletes.read import DeleteCache
from icekeep.formats.evaluate import split_by_partition
from icekeep.formats.machine import TaskMemory, task_memory_bytes
from icekeep.formats.options import FileNames, WriteOptions, attempt_name, write_options
from icekeep.formats.parquet.reader import repeating_strings
from icekeep.formats.reader import SourceFile, open_reader
from icekeep.formats.row_hash import RowHash, RowSequence, RowSum
from icekeep.formats.row_moves import MovedPiece, OriginsWriter, ReadNotes, RowMoves, TaskMoves
from icekeep.formats.sort.encode import KeyRange, Ordering
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.collections import NO_POSITIONS, Part, PositionSet
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import PartitionSpec, identity_values, partition_path
from icekeep.spec.reach import PathDigest
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, NameMapping, Schema, name_mapping_of
from icekeep.spec.sorting import UNSORTED, SortOrder
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage


class FilePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A data file to read, whole or in part.

    Attributes:
        record_count: of the whole file, by its manifest entry.
        size_bytes: of the piece.
        split: the first byte and the number of bytes of the row groups or stripes in the piece; null for the whole file.
        part_rows: an estimate of the piece's rows, if it is a part of a file.
        deleted_count: an estimate of how many of them are deleted.
        first_row_id, data_sequence_number: of the file's entry, which its rows inherit.
        deletes: indices in the task's `delete_files` of those that reach the file.
        first_ordinal: of the file's first row among the rows of all files of the group, if rows have origins.
    """

    location: str
    record_count: int
    size_bytes: int
    file_format: str = "PARQUET"
    spec_id: int = 0
    partition: tuple[Any, ...] = ()
    split: tuple[int, int] | None = None
    part_rows: int | None = None
    deleted_count: int = 0
    first_row_id: int | None = None
    data_sequence_number: int | None = None
    deletes: PositionSet = NO_POSITIONS
    first_ordinal: int | None = None


class RewriteTask(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces whose live rows are written into new files, in the table's default format and named by `FileNames`.

    Attributes:
        pieces: of one spec and partition, unless `ordering` has a spec to partition by.
        delete_files: those that reach any of the pieces, each once.
        schema: of the new files.
        table_schemas: all of the table's, for columns that deletes compare and `schema` lacks.
        specs: the partition specs of the pieces and of the new files, by id.
        spec_id, sort_order_id: of the new files.
        properties: of the table, for the writer, the locations of data files, and the name mapping.
        sort_order: of the table, whose columns keep bounds.
        ordering: null keeps the order of the rows.
        key_range: of this task's rows; null for all.
        files_count: the number of files for the rows of one partition, evenly, by estimated live rows if they are not ordered; a
            file still ends at the target size. Null: only there.
        budget_bytes: the memory for rows to be ordered before they are spilled to disk.
        keeps_lineage: whether the new files store row lineage; null: if a piece has a first row id. It must be the same for
            tasks that read and tasks that write the same rows.
        moves_pages: whether data pages of small Parquet files may be copied if no row changes.
        slots: how many tasks share the executor's memory, with this one.
        is_local: whether the executor is the only one of this machine, with a local master.
        is_shuffled: whether other tasks write the rows that this one reads: then they arrive in any order.
        verifies: whether the rows that go in and those in the new files are hashed.
        operation_id, partition_id, task_attempt_id: in the names of the new files.
        moves_directory: for moves that are too large for the report; null if moves are not requested.
    """

    pieces: tuple[FilePiece, ...]
    delete_files: tuple[DataFile, ...] = ()
    schema: Schema
    table_schemas: tuple[Schema, ...] = ()
    specs: Mapping[int, PartitionSpec]
    spec_id: int
    table_location: str
    properties: Mapping[str, str]
    target_file_size_bytes: int
    sort_order: SortOrder = UNSORTED
    sort_order_id: int | None = 0
    ordering: Ordering | None = None
    key_range: KeyRange | None = None
    files_count: int | None = None
    budget_bytes: int = 512 * MIB
    keeps_lineage: bool | None = None
    moves_pages: bool = True
    slots: int = 1
    is_local: bool = False
    is_shuffled: bool = False
    operation_id: str
    partition_id: int = 0
    task_attempt_id: int = 0
    verifies: bool = False
    moves_directory: str | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether rows may be written in another order than they are read in."""
        ordering = self.ordering
        if ordering is None:
            return False
        # Rows of one partition without an order are in place already.
        return bool(ordering.fields or ordering.curve or (ordering.partition_by and ordering.partition_by.fields))

    @property
    def has_origins(self) -> bool:
        """Whether each row has a column with its number among the rows of the group."""
        return self.moves_directory is not None and (self.is_ordered or self.is_shuffled)

    def file_names(self) -> FileNames:
        attempt = attempt_name(self.operation_id, self.partition_id, self.task_attempt_id)
        return FileNames(attempt, self.table_location, self.properties)

    def spilled_location(self, name: str) -> str:
        """The location of a file with some of the task's moves."""
        return (
            f"{self.moves_directory}/{name}-{attempt_name(self.operation_id, self.partition_id, self.task_attempt_id)}"
        )

    def partition_path(self, partition: tuple[Any, ...]) -> str:
        return partition_path(self.specs[self.spec_id], self.schema, partition)


class RewriteOutcome(TaskMoves, frozen=True, kw_only=True):
    """What a task did.

    Attributes:
        read_count: rows of the pieces, with deleted ones.
        live_count: those of them that are not deleted, whatever the key range.
        stitched_count: how many of `files` were stitched from whole row groups.
        peak_bytes: the peak memory of the process at the end of the task (resident set).
        proven: as in `DeleteCache`, of the delete files that the task has read whole.
        hash_in: of the live rows that were read, whatever the key range; null if the task verifies nothing.
        hash_out: of the rows in `files`, read from storage again; null if the task verifies nothing.
    """

    read_count: int
    live_count: int
    stitched_count: int = 0
    peak_bytes: int = 0
    proven: frozenset[PathDigest] = frozenset()
    hash_in: RowSum | None = None
    hash_out: RowSum | None = None


def numbered(task: RewriteTask) -> RewriteTask:
    """The task with ordinals for its files, in the order of its pieces, if rows have origins and ordinals are missing."""
    if not task.has_origins or all(piece.first_ordinal is not None for piece in task.pieces):
        return task
    firsts: dict[str, int] = {}
    total = 0
    for piece in task.pieces:
        if firsts.setdefault(piece.location, total) == total:
            total += piece.record_count
    pieces = [msgspec.structs.replace(piece, first_ordinal=firsts[piece.location]) for piece in task.pieces]
    return msgspec.structs.replace(task, pieces=tuple(pieces))


_LARGE_BYTES = 16 * MIB
"""From this size on, row groups of files are checked before anything is read."""


def columns_to_write(task: RewriteTask) -> Schema:
    """The table's columns, with those of row lineage if the new files must keep it (spec, "Row Lineage").

    Raises `UnsupportedError` if a column of the table has the name of one of lineage: no file can hold both.
    """
    keeps_lineage = task.keeps_lineage
    if keeps_lineage is None:
        keeps_lineage = any(piece.first_row_id is not None for piece in task.pieces)
    if not keeps_lineage:
        return task.schema
    for field in task.schema.fields:
        if field.name in (ROW_ID.name, LAST_UPDATED_SEQUENCE_NUMBER.name):
            raise UnsupportedError(
                f"the table has a column of its own named {field.name!r}, under which data files of format version 3 keep the "
                "lineage of rows: rename the column, then its data files can be rewritten",
                column=field.name,
            )
    return msgspec.structs.replace(task.schema, fields=(*task.schema.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER))


def task_options(task: RewriteTask) -> WriteOptions:
    """Raises `PropertyError` for an invalid table property."""
    options = write_options(
        task.properties, task.schema, task.sort_order, target_file_size_bytes=task.target_file_size_bytes
    )
    max_bytes = TaskMemory(task_memory_bytes(task.slots)).row_group_bytes
    return msgspec.structs.replace(options, row_group_arrow_bytes=min(options.row_group_arrow_bytes, max_bytes))


def source_of(piece: FilePiece, task: RewriteTask, name_mapping: NameMapping | None) -> SourceFile:
    return SourceFile(
        location=piece.location,
        file_format=piece.file_format,
        constants=identity_values(task.specs[piece.spec_id], piece.partition),
        name_mapping=name_mapping,
        first_row_id=piece.first_row_id,
        data_sequence_number=piece.data_sequence_number,
    )


class TaskRows:
    """The live rows of a task's pieces, in the order of the pieces.

    String columns that repeat may be dictionary-encoded.

    Attributes:
        columns: of the rows: `columns_to_write`.
        live_count: the number of rows returned so far.
        hashed: these rows; null if the task verifies nothing.
    """

    def __init__(self, task: RewriteTask, storage: Storage, *, in_order: bool = False) -> None:
        """`in_order`: hash the rows in their order, because the new files keep it.

        Raises `UnsupportedError`, before anything is read, if a large file has a row group that does not fit into memory.
        """
        self.columns = columns_to_write(task)
        self.live_count = 0
        self._task = task
        self._memory = TaskMemory(task_memory_bytes(task.slots), task.is_local)
        hashing = RowSequence if in_order else RowHash
        self.hashed = hashing(self.columns) if task.verifies else None
        origin_type = None
        if task.has_origins:
            # As narrow as the number of rows allows, as far as the task knows it.
            last = max(((piece.first_ordinal or 0) + piece.record_count for piece in task.pieces), default=0)
            origin_type = pa.uint32() if last < 1 << 32 else pa.int64()
        self._notes = None if task.moves_directory is None else ReadNotes(origin_type)
        # Columns that need not be decoded: the first file stands for all; where it misleads, only time is lost.
        first = task.pieces[0] if task.pieces else None
        is_parquet = first is not None and first.file_format.upper() == "PARQUET"
        self._cache = DeleteCache()
        self._reader = LiveRowsReader(
            storage,
            self.columns,
            table_schemas=task.table_schemas,
            cache=self._cache,
            kept_dictionaries=repeating_strings(storage, first.location) if first is not None and is_parquet else (),
            piece_bytes=min(PIECE_BYTES, self._memory.batch_bytes),
            notes=self._notes,
        )
        large = dict.fromkeys((p.location, p.file_format) for p in task.pieces if p.size_bytes >= _LARGE_BYTES)
        for location, file_format in large:
            with open_reader(storage, location, file_format) as reader:
                self._memory.batch_rows(reader.largest_part())

    @property
    def read_count(self) -> int:
        """Rows that were read so far, with deleted ones."""
        return self._reader.read_count

    @property
    def hash(self) -> RowSum | None:
        return None if self.hashed is None else self.hashed.total

    @property
    def proven(self) -> frozenset[PathDigest]:
        """As in `RewriteOutcome`, of the delete files that were read so far."""
        return frozenset(self._cache.proven)

    @property
    def pieces(self) -> tuple[MovedPiece, ...]:
        """Those that were read, with their dropped rows; complete after the last row. Empty if moves are not requested."""
        return () if self._notes is None else self._notes.pieces()

    def read(self, pieces: Iterable[FilePiece] | None = None) -> Iterator[pa.Table]:
        """The live rows of some pieces of the task, by default all.

        Raises as `LiveRowsReader.read`, and `UnsupportedError` for a row group that needs more memory than there is.
        """
        task, name_mapping = self._task, name_mapping_of(self._task.properties)
        live = (
            LivePiece(
                source=source_of(piece, task, name_mapping),
                deletes=Part(task.delete_files, piece.deletes),
                split=piece.split,
                record_count=piece.record_count if piece.split is None else None,
                first_ordinal=piece.first_ordinal,
            )
            for piece in (task.pieces if pieces is None else pieces)
        )
        for table in self._reader.read(live, batch_rows=self._memory.batch_rows):
            self.live_count += table.num_rows
            if self.hashed is not None:
                self.hashed.add(table)
            yield table


class WrittenRows(msgspec.Struct, frozen=True):
    """The new files of a task in the order of their rows, and the locations of the rows' origins, if they have any."""

    files: tuple[DataFile, ...]
    origins: tuple[str, ...] | None = None


MAX_REPORTED_BYTES = MIB
"""Larger reports go into storage."""


def reported_moves(
    task: RewriteTask,
    storage: Storage,
    pieces: Sequence[MovedPiece] | None = None,
    origins: tuple[str, ...] | None = None,
    max_bytes: int = MAX_REPORTED_BYTES,
) -> RowMoves | None:
    """The report of the pieces that a task read; null if its moves are not requested.

    `origins` are the locations of the rows' origins, if they have any; pieces above `max_bytes` go into storage. By default the
    task reads whole files and drops no row.
    """
    if task.moves_directory is None:
        return None
    if pieces is None:
        pieces = [MovedPiece(location=p.location, first_position=0, row_count=p.record_count) for p in task.pieces]
    if origins is not None:
        # Several threads have read them, in any order.
        pieces = sorted(pieces, key=lambda piece: (piece.first_ordinal, piece.first_position, piece.location))
    encoded = msgspec.msgpack.encode(pieces)
    reading = b""
    if task.key_range is not None:
        reading = blake2b(encoded, digest_size=16).digest()
        if task.key_range.lower is not None:
            return RowMoves(origins=origins, reading=reading)
    if len(encoded) <= max_bytes:
        return RowMoves(pieces=tuple(pieces), origins=origins, reading=reading)
    location = task.spilled_location("pieces")
    with storage.write(location) as stream:
        stream.write(encoded)
    return RowMoves(stored=(location,), origins=origins, reading=reading)


@contextmanager
def removed_on_failure(locations: Sequence[str], storage: Storage) -> Iterator[None]:
    """Delete the files if the block fails, unless the error keeps them as evidence (`kept_files`)."""
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, IcekeepError) and error.facts.get("kept_files")):
            storage.delete_many(locations)
        raise


class TaskWriter:
    """Writes the rows of a task into data files, and their origins, if they have any, into a file of their own.

    Use it as a context manager and call `close` at the end of the block; a block that ends without it, or raises, leaves no file.
    Rows that move to another spec must come partition by partition: a partition that comes again gets another file.
    """

    def __init__(self, task: RewriteTask, columns: Schema, storage: Storage) -> None:
        """`columns` are `columns_to_write`, without origins."""
        self._task, self._columns, self._storage = task, columns, storage
        self._options = task_options(task)
        self._names = task.file_names()
        self._partition_by = None if task.ordering is None else task.ordering.partition_by
        self._writer: DataFileWriter | None = None
        self._partition: tuple[Any, ...] = ()
        self._files: list[DataFile] = []
        self._closed = False
        self._origins = OriginsWriter(storage, task.spilled_location("origins")) if task.has_origins else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._closed:
            return
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)
        self._storage.delete_many([file.file_path for file in self._files])
        if self._origins is not None:
            self._origins.__exit__(kind, error, trace)

    def write(self, rows: pa.Table) -> None:
        """Add rows from `TaskRows`; origins are the last column."""
        if not rows.num_rows:
            return
        pieces = self._task.pieces
        parts: Iterable[tuple[tuple[Any, ...], pa.Table]] = [(pieces[0].partition if pieces else (), rows)]
        if self._partition_by is not None:
            parts = split_by_partition(rows, self._partition_by, self._task.schema)
        for partition, part in parts:
            if self._origins is not None:
                self._origins.write(part.column(part.num_columns - 1))
                part = part.remove_column(part.num_columns - 1)
            self._writer_for(partition).write(part)

    def end_file(self) -> None:
        """Start a new file with the next rows."""
        if self._writer is not None:
            self._writer.end_file()

    def close(self) -> WrittenRows:
        """Finish the last file; returns all, in the order of their rows."""
        self._end_partition()
        origins = None if self._origins is None else self._origins.close()
        self._closed = True
        return WrittenRows(tuple(self._files), origins)

    def _writer_for(self, partition: tuple[Any, ...]) -> DataFileWriter:
        # As text, since NaN is one partition and 0.0 and -0.0 are two.
        if self._writer is None or repr(partition) != repr(self._partition):
            self._end_partition()
            self._partition = partition
            task = self._task
            self._writer = DataFileWriter(
                self._storage,
                self._columns,
                self._options,
                partial(self._names.location, self._options.file_suffix, task.partition_path(partition)),
                spec_id=task.spec_id,
                partition=partition,
                sort_order_id=task.sort_order_id,
            )
        return self._writer

    def _end_partition(self) -> None:
        if self._writer is not None:
            self._files += self._writer.close()
            self._writer = None
