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
from icekeep.formats.parquet import repeating_strings
from icekeep.formats.reading import SourceFile, read_file
from icekeep.formats.write_options import write_options
from icekeep.formats.writing import DataFileWriter
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata_columns import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.name_mapping import name_mapping_of
from icekeep.spec.partitioning import PartitionSpec, identity_values, partition_path
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import UNSORTED, SortOrder
from icekeep.storage.base import Storage
from icekeep.storage.locations import join


class FilePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A data file to read, whole or in some of its parts (row groups, stripes); counts and sizes are of the piece.

    `first_row_id` and `data_sequence_number` are those of its manifest entry, which its rows inherit.
    """

    location: str
    record_count: int
    size_bytes: int
    file_format: str = "PARQUET"
    parts: tuple[int, ...] | None = None
    first_row_id: int | None = None
    data_sequence_number: int | None = None


class RewriteTask(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of one partition, and the files that shall hold their rows.

    The new files are in the table's default format and named `<partition_id>-<task_attempt_id>-<operation_id>-<count>`
    with the format's suffix, as Iceberg's Spark writers name theirs, in the partition's directory below `data_location`.
    Two attempts at one task need different `task_attempt_id`s, since only the files of the attempt that won are committed.

    Attributes:
        properties: of the table: how to write, and the name mapping that files without field ids are read with.
        sort_order: of the table, whose columns keep bounds; the rows themselves are in the order `sort_order_id`.
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
    sort_order: SortOrder = UNSORTED


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
    name_mapping = name_mapping_of(task.properties)
    kept_dictionaries = _kept_dictionaries(task, storage)
    columns, constants = _columns(task), identity_values(task.spec, task.partition)
    with _writer(task, columns, storage) as writer:
        for piece in task.pieces:
            source = SourceFile(
                location=piece.location,
                file_format=piece.file_format,
                constants=constants,
                name_mapping=name_mapping,
                first_row_id=piece.first_row_id,
                data_sequence_number=piece.data_sequence_number,
            )
            for table in _read(piece, source, columns, storage, kept_dictionaries):
                read_count += table.num_rows
                writer.write(table)
        files = writer.close()
        written_count = sum(file.record_count for file in files)
        if written_count != read_count:
            raise IcekeepBug(f"a rewrite read {read_count} rows and wrote {written_count}; its files are deleted")
    return files


def _columns(task: RewriteTask) -> Schema:
    """The table's columns, and the lineage of rows that have one: they keep it in their new file (spec, "Row Lineage")."""
    if all(piece.first_row_id is None for piece in task.pieces):
        return task.schema
    lineage = (ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    return msgspec.structs.replace(task.schema, fields=(*task.schema.fields, *lineage))


def _kept_dictionaries(task: RewriteTask, storage: Storage) -> frozenset[int]:
    """Columns that need not be decoded; the first file speaks for all: where it is wrong, only the time is lost."""
    first = task.pieces[0] if task.pieces else None
    if first is None or first.file_format.upper() != "PARQUET":
        return frozenset()
    return repeating_strings(storage, first.location)


def _read(
    piece: FilePiece, source: SourceFile, schema: Schema, storage: Storage, kept_dictionaries: frozenset[int]
) -> Iterator[pa.Table]:
    read_count = 0
    for table in read_file(storage, source, schema, piece.parts, kept_dictionaries=kept_dictionaries):
        read_count += table.num_rows
        yield table
    if piece.parts is None and read_count != piece.record_count:
        raise InvalidTableError(
            f"data file {piece.location!r} has {read_count} rows where its manifest says {piece.record_count}",
            location=piece.location,
        )


def _writer(task: RewriteTask, columns: Schema, storage: Storage) -> DataFileWriter:
    options = write_options(
        task.properties, task.schema, task.sort_order, target_file_size_bytes=task.target_file_size_bytes
    )
    return DataFileWriter(
        storage,
        columns,
        options,
        _new_locations(task, options.file_suffix),
        spec_id=task.spec.spec_id,
        partition=task.partition,
        sort_order_id=task.sort_order_id,
    )


def _new_locations(task: RewriteTask, suffix: str) -> Callable[[], str]:
    directory = partition_path(task.spec, task.schema, task.partition)
    numbers = count(1)

    def new_location() -> str:
        name = f"{task.partition_id:05d}-{task.task_attempt_id}-{task.operation_id}-{next(numbers):05d}{suffix}"
        return join(task.data_location, directory, name) if directory else join(task.data_location, name)

    return new_location
