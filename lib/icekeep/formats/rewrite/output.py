"""What a rewrite writes: rows as they come, into files named and placed as the table wants it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepError
from icekeep.formats.memory import TaskMemory, task_memory_bytes
from icekeep.formats.partitioner import split_by_partition
from icekeep.formats.rewrite.moves_report import spilled_location
from icekeep.formats.rewrite.task import RewriteTask
from icekeep.formats.rolling_writer import DataFileWriter
from icekeep.formats.row_mapping.origins import OriginsWriter
from icekeep.formats.write_options import WriteOptions, write_options
from icekeep.spec.layout import data_layout
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import partition_path
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage


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
