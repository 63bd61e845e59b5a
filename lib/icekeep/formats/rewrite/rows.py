"""The two ends of a rewrite: the live rows of a task's pieces, and the data files that rows are written into."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepError, UnsupportedError
from icekeep.formats.deletes.apply import PIECE_BYTES, LivePiece, LiveRowsReader
from icekeep.formats.deletes.read import DeleteCache
from icekeep.formats.machine import TaskMemory, task_memory_bytes
from icekeep.formats.options import WriteOptions, write_options
from icekeep.formats.parquet.reader import repeating_strings
from icekeep.formats.reader import SourceFile, open_reader
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.row_hash import RowHash, RowSequence, RowSum
from icekeep.formats.row_moves import MovedPiece, OriginsWriter, ReadNotes
from icekeep.formats.transforms import split_by_partition
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.collections import Part
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import identity_values
from icekeep.spec.reach import PathDigest
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, NameMapping, Schema, name_mapping_of
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

_LARGE_BYTES = 16 * MIB
"""From this size on, row groups of files are checked before anything is read."""


def columns_to_write(task: RewriteTask) -> Schema:
    """The table's columns, with those of row lineage if the new files must keep it (spec, "Row Lineage").

    Raises:
        UnsupportedError: a column of the table has the name of one of lineage: no file can hold both.
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
    """The write options of a task's new files; raises `PropertyError` for an invalid table property."""
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
    """The live rows of a task's pieces, in the order of the pieces; iterate once.

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
        """The pieces that were read, with their dropped rows; complete after the last row. Empty if moves are not requested."""
        return () if self._notes is None else self._notes.pieces()

    def __iter__(self) -> Iterator[pa.Table]:
        """Raises as `LiveRowsReader.read`, and `UnsupportedError` for a row group that needs more memory than there is."""
        yield from self.read(self._task.pieces)

    def read(self, pieces: Iterable[FilePiece]) -> Iterator[pa.Table]:
        """The live rows of some pieces of the task; raises as iteration."""
        task, name_mapping = self._task, name_mapping_of(self._task.properties)
        live = (
            LivePiece(
                source=source_of(piece, task, name_mapping),
                deletes=Part(task.delete_files, piece.deletes),
                split=piece.split,
                record_count=piece.record_count if piece.split is None else None,
                first_ordinal=piece.first_ordinal,
            )
            for piece in pieces
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

    @property
    def locations(self) -> tuple[str, ...]:
        return (*(file.file_path for file in self.files), *(self.origins or ()))


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
        """`columns` are `columns_to_write`, without origins; raises as `task_options` and `FileNames`."""
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
