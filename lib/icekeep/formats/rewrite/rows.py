"""What a rewrite reads: the live rows of a task's pieces, in the columns that its new files have.

What a rewrite writes: rows as they come, into files named and placed as the table wants it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepError, UnsupportedError
from icekeep.formats.deletes.apply import PIECE_BYTES, LivePiece, LiveRowsReader
from icekeep.formats.machine import TaskMemory, task_memory_bytes
from icekeep.formats.options import WriteOptions, write_options
from icekeep.formats.parquet.reader import repeating_strings
from icekeep.formats.partitioner import split_by_partition
from icekeep.formats.reader import SourceFile, open_reader
from icekeep.formats.rewrite.moves import spilled_location
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.row_hash import RowHash, RowSequence, RowSum
from icekeep.formats.row_moves import MovedPiece, OriginsWriter, ReadNotes
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.collections import Part
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import identity_values, partition_path
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import PathDigest
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, NameMapping, Schema, name_mapping_of
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

_LARGE_BYTES = 16 * MIB
"""A file as large is looked at before anything is read; a smaller one when its turn comes."""


def columns_to_write(task: RewriteTask) -> Schema:
    """The table's columns, and the lineage of rows that have one: they keep it in their new file (spec, "Row Lineage").

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


class TaskRows:
    """The rows of a task's pieces without those that are deleted, in the order of the pieces.

    Iterate once. Columns are `columns_to_write`; string columns that repeat may be dictionaries.

    Attributes:
        columns: of the rows.
        read_count: rows that were read so far, deleted ones among them.
        live_count: rows that were handed out so far.
        hashed: what has hashed these; `None` where nobody asks for it.
    """

    def __init__(self, task: RewriteTask, storage: Storage, *, in_order: bool = False) -> None:
        """`in_order` says whether the rows are to be hashed in their order, since whoever takes them keeps it.

        Raises:
        UnsupportedError: a large file has a row group that this task could not hold; nothing was read.
        """
        self.columns = columns_to_write(task)
        self.live_count = 0
        self._task, self._storage = task, storage
        self._memory = TaskMemory(task_memory_bytes(task.slots), task.is_local)
        self._name_mapping = name_mapping_of(task.properties)
        hashing = RowSequence if in_order else RowHash
        self.hashed = hashing(self.columns) if task.verifies else None
        self._notes = None if task.moves_directory is None else ReadNotes(_origin_type(task))
        self._reader = LiveRowsReader(
            storage,
            self.columns,
            table_schemas=task.table_schemas,
            kept_dictionaries=self._kept_dictionaries(),
            piece_bytes=min(PIECE_BYTES, self._memory.batch_bytes),
            notes=self._notes,
        )
        for location, file_format in dict.fromkeys((p.location, p.file_format) for p in task.pieces if _is_large(p)):
            with open_reader(storage, location, file_format) as reader:
                self._memory.batch_rows(reader.largest_part())

    @property
    def read_count(self) -> int:
        return self._reader.read_count

    @property
    def hash(self) -> RowSum | None:
        """Of the rows that were handed out so far; `None` where nobody asks for it."""
        return None if self.hashed is None else self.hashed.total

    @property
    def proven(self) -> frozenset[PathDigest]:
        """As in `RewriteOutcome`, of the delete files that were read so far."""
        return self._reader.proven

    @property
    def pieces(self) -> tuple[MovedPiece, ...]:
        """What was read, and which rows of it are dropped; complete after the last row; empty where nobody asks for it."""
        return () if self._notes is None else self._notes.pieces()

    def __iter__(self) -> Iterator[pa.Table]:
        """Raises:
        MissingFileError: a file is not there.
        InvalidTableError: a file is damaged, does not fit the schema, or has not the rows that its manifest says.
        UnsupportedError: a file needs a feature of the format that we do not handle, or more memory than there is.
        """
        yield from self.read(self._task.pieces)

    def read(self, pieces: Iterable[FilePiece]) -> Iterator[pa.Table]:
        """The rows of some pieces of the task; raises what iterating raises."""
        found = (_live_piece(piece, self._task, self._name_mapping) for piece in pieces)
        for table in self._reader.read(found, batch_rows=self._memory.batch_rows):
            self.live_count += table.num_rows
            if self.hashed is not None:
                self.hashed.add(table)
            yield table

    def _kept_dictionaries(self) -> frozenset[int]:
        """Columns that need not be decoded; the first file speaks for all: where it is wrong, only time is lost."""
        first = self._task.pieces[0] if self._task.pieces else None
        if first is None or first.file_format.upper() != "PARQUET":
            return frozenset()
        return repeating_strings(self._storage, first.location)


def _is_large(piece: FilePiece) -> bool:
    return piece.size_bytes >= _LARGE_BYTES


def _live_piece(piece: FilePiece, task: RewriteTask, name_mapping: NameMapping | None) -> LivePiece:
    source = SourceFile(
        location=piece.location,
        file_format=piece.file_format,
        constants=identity_values(task.specs[piece.spec_id], piece.partition),
        name_mapping=name_mapping,
        first_row_id=piece.first_row_id,
        data_sequence_number=piece.data_sequence_number,
    )
    return LivePiece(
        source=source,
        deletes=Part(task.delete_files, piece.deletes),
        split=piece.split,
        record_count=piece.record_count if piece.split is None else None,
        first_ordinal=piece.first_ordinal,
    )


def _origin_type(task: RewriteTask) -> pa.DataType | None:
    """As narrow as the rows of all files allow, as far as the task knows of them."""
    if not task.has_origins:
        return None
    last = max(((piece.first_ordinal or 0) + piece.record_count for piece in task.pieces), default=0)
    return pa.uint32() if last < 1 << 32 else pa.int64()


class Written(msgspec.Struct, frozen=True):
    """The new files of a task in the order of their rows, and where the origins of these were put, if they have any."""

    files: tuple[DataFile, ...]
    origins: tuple[str, ...] | None = None

    @property
    def locations(self) -> tuple[str, ...]:
        """Everything that was written."""
        return (*(file.file_path for file in self.files), *(self.origins or ()))


def together(parts: Iterable[Written]) -> Written:
    """What several parts of a task wrote, one behind the other."""
    parts = list(parts)
    files = tuple(file for part in parts for file in part.files)
    if any(part.origins is None for part in parts):
        return Written(files)
    return Written(files, tuple(location for part in parts for location in part.origins or ()))


@contextmanager
def removed_on_failure(locations: Sequence[str], storage: Storage) -> Iterator[None]:
    """Unless the block ends well, the files that were written before it are not left, but as evidence (`kept_files`)."""
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, IcekeepError) and error.facts.get("kept_files")):
            storage.delete_many(locations)
        raise


class TaskWriter:
    """Writes the rows of a task into data files.

    Use it as a context manager and call `close` at the end of the block: when the block ends without that, or raises,
    none of its files is left. Rows that move to another spec must come partition by partition: a partition that comes
    again gets another file. Where rows have origins, these are taken off and put into a file of their own.
    """

    def __init__(self, task: RewriteTask, columns: Schema, storage: Storage) -> None:
        """`columns` are those of the rows except their origins, as `columns_to_write` gives them.

        Raises:
            PropertyError: a table property of the writer is wrong.
            UnsupportedError: code of another engine says where the table's data files go.
        """
        self._task, self._columns, self._storage = task, columns, storage
        self._options = task_options(task)
        self._names = FileNames(task, self._options)
        self._partition_by = None if task.ordering is None else task.ordering.partition_by
        self._writer: DataFileWriter | None = None
        self._partition: tuple[Any, ...] = ()
        self._files: list[DataFile] = []
        self._closed = False
        self._origins = OriginsWriter(storage, spilled_location(task, "origins")) if task.has_origins else None

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
        """Add rows, in the writer's columns as `TaskRows` gives them, their origins behind the others."""
        if not rows.num_rows:
            return
        if self._partition_by is None:
            pieces = self._task.pieces
            self._write_to(pieces[0].partition if pieces else (), rows)
            return
        for partition, part in split_by_partition(rows, self._partition_by, self._task.schema):
            self._write_to(partition, part)

    def end_file(self) -> None:
        """The rows that come next begin a new file."""
        if self._writer is not None:
            self._writer.end_file()

    def close(self) -> Written:
        """Finish the last file and return all of them, in the order of their rows."""
        self._end_partition()
        origins = None if self._origins is None else self._origins.close()
        self._closed = True
        return Written(tuple(self._files), origins)

    def _write_to(self, partition: tuple[Any, ...], rows: pa.Table) -> None:
        if self._origins is not None:
            self._origins.write(rows.column(rows.num_columns - 1))
            rows = rows.remove_column(rows.num_columns - 1)
        self._writer_for(partition).write(rows)

    def _writer_for(self, partition: tuple[Any, ...]) -> DataFileWriter:
        # As text, since NaN is one partition and 0.0 and -0.0 are two.
        if self._writer is None or repr(partition) != repr(self._partition):
            self._end_partition()
            self._partition = partition
            self._writer = DataFileWriter(
                self._storage,
                self._columns,
                self._options,
                self._names.in_partition(partition),
                spec_id=self._task.spec_id,
                partition=partition,
                sort_order_id=self._task.sort_order_id,
            )
        return self._writer

    def _end_partition(self) -> None:
        if self._writer is not None:
            self._files += self._writer.close()
            self._writer = None


class FileNames:
    """Names the new files of a task, one after the other, and says where they go."""

    def __init__(self, task: RewriteTask, options: WriteOptions) -> None:
        """Raises `UnsupportedError` where code of another engine says where the table's data files go."""
        self._task, self._suffix = task, options.file_suffix
        self._layout = data_layout(task.table_location, task.properties)
        self._numbers = count(1)

    def in_partition(self, partition: tuple[Any, ...]) -> Callable[[], str]:
        """Gives locations of new files of a partition."""
        task = self._task
        path = partition_path(task.specs[task.spec_id], task.schema, partition)

        def new_location() -> str:
            number = f"{next(self._numbers):05d}"
            name = f"{task.partition_id:05d}-{task.task_attempt_id}-{task.operation_id}-{number}{self._suffix}"
            return self._layout.location(name, path)

        return new_location


def task_options(task: RewriteTask) -> WriteOptions:
    """How the new files of a task are written; raises `PropertyError` where a table property of the writer is wrong."""
    options = write_options(
        task.properties, task.schema, task.sort_order, target_file_size_bytes=task.target_file_size_bytes
    )
    max_bytes = TaskMemory(task_memory_bytes(task.slots)).row_group_bytes
    return msgspec.structs.replace(options, row_group_arrow_bytes=min(options.row_group_arrow_bytes, max_bytes))
