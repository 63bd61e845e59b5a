"""What an executor does to compact a file group: old data files in, new ones out, the rows and their order unchanged.

A task is a value that can be pickled; the driver makes it, a Spark task (or the driver itself) runs it with `rewrite`.
Nothing here commits: until the files that come back are committed, they belong to nobody.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.parquet import DataFileWriter, read_row_groups, repeating_strings
from icekeep.formats.write_options import write_options
from icekeep.spec.manifests import DataFile
from icekeep.spec.partitioning import PartitionSpec, partition_path
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Identity
from icekeep.storage.base import Storage
from icekeep.storage.locations import join


class FilePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A data file to read, whole or in some of its row groups only; counts and sizes are of the piece."""

    location: str
    record_count: int
    size_bytes: int
    row_groups: tuple[int, ...] | None = None


class RewriteTask(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of one partition, and the files that shall hold their rows.

    The new files are named `<partition_id>-<task_attempt_id>-<operation_id>-<count>.parquet` as Iceberg's Spark writers
    name theirs, in the partition's directory below `data_location`. Two attempts at one task need different
    `task_attempt_id`s, since only the files of the attempt that won are committed.
    """

    pieces: tuple[FilePiece, ...]
    schema: Schema
    spec: PartitionSpec
    partition: tuple[Any, ...]
    data_location: str
    target_file_size_bytes: int
    properties: Mapping[str, str]
    operation_id: str
    partition_id: int = 0
    task_attempt_id: int = 0
    sort_order_id: int | None = 0


def rewrite(task: RewriteTask, storage: Storage) -> tuple[DataFile, ...]:
    """Stream all pieces, in order, into new files; if anything fails, none of these is left.

    The process is set to one thread of Arrow each for computing and reading: the slot of a task is the unit of
    parallelism.

    Raises:
        MissingFileError: a file of the table is not there.
        InvalidTableError: a file is damaged, does not fit the schema, or has not the rows that its manifest says.
        UnsupportedError: a file needs a feature of the format that we do not handle.
        UsageError: a table property of the writer is wrong.
    """
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    read_count = 0
    # The first file speaks for all: where it is wrong, only the time is lost.
    kept_dictionaries = repeating_strings(storage, task.pieces[0].location) if task.pieces else frozenset()
    with _writer(task, storage) as writer:
        for piece in task.pieces:
            for table in _read(piece, task, storage, kept_dictionaries):
                read_count += table.num_rows
                writer.write(table)
        files = writer.close()
        written_count = sum(file.record_count for file in files)
        if written_count != read_count:
            raise IcekeepBug(f"a rewrite read {read_count} rows and wrote {written_count}; its files are deleted")
    return files


def _read(
    piece: FilePiece, task: RewriteTask, storage: Storage, kept_dictionaries: frozenset[int]
) -> Iterator[pa.Table]:
    read_count = 0
    for table in read_row_groups(
        storage,
        piece.location,
        task.schema,
        piece.row_groups,
        constants=_constants(task),
        kept_dictionaries=kept_dictionaries,
    ):
        read_count += table.num_rows
        yield table
    if piece.row_groups is None and read_count != piece.record_count:
        raise InvalidTableError(
            f"data file {piece.location!r} has {read_count} rows where its manifest says {piece.record_count}",
            location=piece.location,
        )


def _constants(task: RewriteTask) -> dict[int, Any]:
    """Values that a file may leave to the partition (spec, "Column Projection")."""
    return {
        field.source_id: value
        for field, value in zip(task.spec.fields, task.partition, strict=True)
        if isinstance(field.transform, Identity)
    }


def _writer(task: RewriteTask, storage: Storage) -> DataFileWriter:
    return DataFileWriter(
        storage,
        task.schema,
        write_options(task.properties, target_file_size_bytes=task.target_file_size_bytes),
        _new_locations(task),
        spec_id=task.spec.spec_id,
        partition=task.partition,
        sort_order_id=task.sort_order_id,
    )


def _new_locations(task: RewriteTask) -> Callable[[], str]:
    directory = partition_path(task.spec, task.schema, task.partition)
    numbers = count(1)

    def new_location() -> str:
        name = f"{task.partition_id:05d}-{task.task_attempt_id}-{task.operation_id}-{next(numbers):05d}.parquet"
        return join(task.data_location, directory, name) if directory else join(task.data_location, name)

    return new_location
