"""Tasks that write delete files: position deletes of one partition rewritten, and equality deletes converted to positions.

A rewrite streams delete files. In memory are a bitmap per data file, of some two bytes per position if they are sparse and an
eighth of a byte if they are dense, and the rows that are stored with positions; the task's range of data file paths bounds both.

A conversion computes the deleted positions with the code of a reader (`apply`), within the same bounds of memory: of a data file
only the compared columns are read. In format version 2 the positions are written even if other deletes have them, so that they do
not depend on those. In version 3 a vector replaces all position deletes of its data file, so it includes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import chain, groupby, islice
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap64

from icekeep.commit.changes.deletes import ConvertedFile, EntryDigests, NamedFile
from icekeep.commit.file_sets import entry_digest
from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.projection import KEPT_DICTIONARY, cast_to_schema
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.apply import LivePiece, LiveRowsReader, deleted_positions
from icekeep.formats.deletes.read import (
    BATCH_ROWS,
    POSITION_COLUMNS,
    DeleteCache,
    Positions,
    as_position_deletes,
    delete_write_options,
    position_tables,
    rows_by_path,
    sorted_once,
    write_position_deletes,
)
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.options import FileNames, attempt_name, write_options
from icekeep.formats.puffin import FILE_FORMAT, VectorTarget, write_deletion_vectors
from icekeep.formats.reader import SourceFile
from icekeep.formats.row_moves import bitmap_from, positions_in
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import identity_values
from icekeep.spec.properties import FULL, choice, metrics_modes
from icekeep.spec.reach import PathDigest, is_deletion_vector, partition_key, path_digest
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, DELETED, Schema, deleted_row_column, name_mapping_of
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

Granularity = Literal["file", "partition"]
"""Whether a position delete file is for one data file or for all of a partition."""

VECTORS_A_FILE = 500
"""The most vectors in a Puffin file."""

POSITIONS_A_FILE = 4_000_000
"""Positions, in memory and sorted, at which a delete file for a whole partition ends."""

_MARKS = Schema(fields=(DELETED,))
_FORMATS = {name.lower(): name for name in ("PARQUET", "ORC", "AVRO")}
_GRANULARITIES: Mapping[str, Granularity] = {"file": "file", "partition": "partition"}


def delete_format(properties: Mapping[str, str]) -> str:
    """The format of new delete files: `PARQUET`, `ORC` or `AVRO`; that of data files by default."""
    if (key := "write.delete.format.default") not in properties:
        return write_options(properties).file_format
    return choice(properties, key, properties[key], _FORMATS)


def delete_granularity(properties: Mapping[str, str]) -> Granularity:
    """The granularity of new position delete files; that of Iceberg's Spark writers, `file`, by default."""
    return choice(properties, "write.delete.granularity", "file", _GRANULARITIES)


def delete_suffix(file_format: str) -> str:
    """The end of the names of delete files, for `FileNames.location`."""
    return f"-deletes.{file_format.lower()}"


class LiveFile(msgspec.Struct, frozen=True):
    """A live data file of the partition: its data sequence number, and whether it has a deletion vector."""

    sequence_number: int
    has_vector: bool = False


class LiveFiles(Protocol):
    """The live data files that delete files may name; a dictionary by path will do."""

    def get(self, path: str, /) -> LiveFile | None: ...


class DeleteSource(msgspec.Struct, frozen=True):
    """A live position delete file and its data sequence number."""

    file: DataFile
    sequence_number: int


class DeletesTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a task reads and writes; it can be pickled.

    Attributes:
        sources: delete files of one partition.
        live: at least the data files of the partition in the task's range of paths.
        first_path, end_path: the task's range of data file paths, without the end; null: no bound.
        makes_vectors: whether positions become deletion vectors, in one Puffin file, or position delete files of `file_format`.
        directory: of the partition, in the locations of the new files.
        operation_id, partition_id, task_attempt_id: in their names.
    """

    sources: tuple[DeleteSource, ...]
    live: LiveFiles
    first_path: str | None = None
    end_path: str | None = None
    makes_vectors: bool
    file_format: str = "PARQUET"
    granularity: Granularity = "file"
    target_file_size_bytes: int
    schema: Schema
    spec_id: int
    partition: tuple[Any, ...]
    directory: str
    table_location: str
    properties: Mapping[str, str]
    operation_id: str
    partition_id: int = 0
    task_attempt_id: int = 0

    def takes(self, path: str) -> bool:
        """Whether the deletes of a data file are this task's."""
        return (self.first_path is None or self.first_path <= path) and (self.end_path is None or path < self.end_path)


class DeletesOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did.

    Attributes:
        files: the new delete files, or vectors.
        named: what became of the deletes of each data file, by the digest of its path.
        read_count: rows in the task's range, with duplicates.
        dangling_count: those of them that were dropped because their data file is not live, or is too new.
        replaced_count: those of them that were dropped because the data file has a deletion vector.
    """

    files: tuple[DataFile, ...]
    named: Mapping[PathDigest, NamedFile]
    read_count: int
    dangling_count: int
    replaced_count: int


def rewrite_deletes(task: DeletesTask, storage: Storage) -> DeletesOutcome:
    """Read the delete files of a task and write the positions that are still needed, each once; on failure no file is left."""
    # Stored values of deleted rows are kept, but a vector has none.
    schema = POSITION_COLUMNS if task.makes_vectors else _with_values(task.schema, required=False)
    left = _LeftRows(task)
    for source in task.sources:
        # Row groups without data files of the task's range are skipped, or every task would read all of them.
        for rows in position_tables(storage, source.file, schema, task.first_path, task.end_path):
            left.add(rows, source)
    attempt = attempt_name(task.operation_id, task.partition_id, task.task_attempt_id)
    names = FileNames(attempt, task.table_location, task.properties)
    if not task.makes_vectors:
        files = _write_positions(left, task, names, storage)
    elif left.positions:
        location = names.location(delete_suffix(FILE_FORMAT), task.directory)
        vectors = (
            (VectorTarget(location=path, spec_id=task.spec_id, partition=task.partition), positions)
            for path, positions in left.positions.items()
        )
        files = write_deletion_vectors(storage, location, vectors)
    else:
        files = ()
    kept = sum(map(len, left.positions.values())) + sum(map(len, left.with_values.values()))
    if (written := sum(file.record_count for file in files)) != kept:
        storage.delete_many({file.file_path for file in files})
        raise IcekeepBug(f"{kept} deleted positions are to be kept, and {written} were written")
    return DeletesOutcome(
        files=files,
        named={path_digest(path): named for path, named in left.named.items()},
        read_count=left.read_count,
        dangling_count=left.dangling_count,
        replaced_count=left.replaced_count,
    )


class _LeftRows:
    """The kept ones of the rows read so far: positions by data file, and rows with the values of deleted rows."""

    def __init__(self, task: DeletesTask) -> None:
        self._task = task
        self._positions: dict[str, BitMap64] = {}
        self.with_values: dict[str, BitMap64] = {}
        self._values: list[pa.Table] = []
        self.named: dict[str, NamedFile] = {}
        self.read_count = self.dangling_count = self.replaced_count = 0

    def add(self, rows: pa.Table, source: DeleteSource) -> None:
        """Add rows of a delete file that are in the task's range."""
        task, positions = self._task, rows.column(1).to_numpy()
        has_values = None if rows.num_columns < 3 else pc.is_valid(rows.column(2)).to_numpy(zero_copy_only=False)
        for path, at in rows_by_path(rows.column(0)):
            if not task.takes(path):
                continue
            self.read_count += len(at)
            file, number = task.live.get(path), source.sequence_number
            if file is None or file.sequence_number > number:
                became, self.dangling_count = NamedFile(dropped_up_to=number), self.dangling_count + len(at)
            elif file.has_vector:
                became, self.replaced_count = NamedFile(has_vector=True), self.replaced_count + len(at)
            else:
                became = NamedFile(kept_from=number)
            earlier = self.named.get(path)
            self.named[path] = became if earlier is None else earlier.and_also(became)
            if became.kept_from is None:
                continue
            valued = np.zeros(len(at), dtype=bool) if has_values is None else has_values[at]
            for bitmaps, kept in ((self._positions, at[~valued]), (self.with_values, at[valued])):
                if len(kept):
                    bitmaps.setdefault(path, BitMap64()).update(bitmap_from(positions[kept]))
            if valued.any():
                self._values.append(rows.take(pa.array(at[valued])))

    @cached_property
    def positions(self) -> dict[str, BitMap64]:
        """The kept positions by sorted path, without those that are kept with values. Read it after the last `add`."""
        less = {
            path: bitmap - self.with_values[path] if path in self.with_values else bitmap
            for path, bitmap in self._positions.items()
        }
        return {path: less[path] for path in sorted(less) if less[path]}

    def values(self) -> pa.Table | None:
        """Rows with values, sorted by path and position, each once."""
        if not self._values:
            return None
        path = DELETE_FILE_PATH.name
        plain = [table.set_column(0, path, table.column(0).cast(pa.string())) for table in self._values]
        return sorted_once(pa.concat_tables(plain))


def _with_values(schema: Schema, *, required: bool) -> Schema:
    """The columns of a delete file with values of deleted rows, which may have any subset of the table's columns."""

    def optional(struct: StructType) -> StructType:
        fields = (
            msgspec.structs.replace(
                field, required=False, type=optional(field.type) if isinstance(field.type, StructType) else field.type
            )
            for field in struct.fields
        )
        return StructType(tuple(fields))

    column = deleted_row_column(optional(schema.as_struct()))
    return Schema(fields=(*POSITION_COLUMNS.fields, msgspec.structs.replace(column, required=required)))


def _write_positions(left: _LeftRows, task: DeletesTask, names: FileNames, storage: Storage) -> tuple[DataFile, ...]:
    """Positions with values go to files of their own: in a file with the column every row must have a value."""
    tables = [(POSITION_COLUMNS, _tables(left.positions, task.granularity))]
    values = left.values()
    if values is not None:
        schema = _with_values(task.schema, required=True)
        tables.append((schema, _split(cast_to_schema(values, schema), task.granularity)))
    new_location = partial(names.location, delete_suffix(task.file_format), task.directory)
    with ExitStack() as stack:
        writers = []
        for schema, _ in tables:
            # Exact bounds of paths: they identify the data files of a delete file.
            modes = metrics_modes(task.properties, Schema(fields=task.schema.fields)) if len(schema.fields) > 2 else {}
            options = delete_write_options(
                task.properties, task.file_format, schema, target_file_size_bytes=task.target_file_size_bytes
            )
            options = msgspec.structs.replace(
                options, metrics_modes={**modes, **{field.field_id: FULL for field in POSITION_COLUMNS.fields}}
            )
            writer = DataFileWriter(
                storage,
                schema,
                options,
                new_location,
                spec_id=task.spec_id,
                partition=task.partition,
                sort_order_id=None,
            )
            writers.append(stack.enter_context(writer))
        for writer, (_, parts) in zip(writers, tables, strict=True):
            last_path = None
            for table in parts:
                path = table.column(0)[0].as_py()
                if task.granularity == "file" and last_path not in (None, path):
                    writer.end_file()
                last_path = path
                writer.write(table)
        return tuple(as_position_deletes(file) for writer in writers for file in writer.close())


def _tables(positions: Mapping[str, BitMap64], granularity: Granularity) -> Iterator[pa.Table]:
    """Positions in order, in tables of at most `BATCH_ROWS`; with granularity `file` each of one data file."""
    pending: list[tuple[str, Positions]] = []
    rows_count = 0
    for path, bitmap in positions.items():
        of_path = positions_in(bitmap)
        for start in range(0, len(of_path), BATCH_ROWS):
            part = of_path[start : start + BATCH_ROWS]
            if pending and (rows_count + len(part) > BATCH_ROWS or granularity == "file"):
                yield _table(pending)
                pending, rows_count = [], 0
            pending.append((path, part))
            rows_count += len(part)
    if pending:
        yield _table(pending)


def _table(parts: list[tuple[str, Positions]]) -> pa.Table:
    paths, positions = zip(*parts, strict=True)
    codes = np.repeat(np.arange(len(paths), dtype=np.int32), [*map(len, positions)])
    column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(paths, pa.string()))
    path, position = arrow_schema(POSITION_COLUMNS)
    schema = pa.schema([path.with_type(KEPT_DICTIONARY), position])
    return pa.Table.from_arrays([column, pa.array(np.concatenate(positions))], schema=schema)


def _split(table: pa.Table, granularity: Granularity) -> Iterator[pa.Table]:
    """Rows in order; with granularity `file` those of one data file at a time."""
    if granularity == "partition":
        yield table
        return
    paths = table.column(0)
    borders = np.flatnonzero(~pc.equal(paths.slice(1), paths.slice(0, len(paths) - 1)).to_numpy()) + 1
    for start, end in zip([0, *borders], [*borders, table.num_rows], strict=True):
        yield table.slice(start, end - start)


def equality_positions(
    storage: Storage,
    pieces: Sequence[LivePiece],
    table_schemas: Sequence[Schema],
    *,
    cache: DeleteCache | None = None,
) -> Iterator[Positions]:
    """The ascending positions that equality deletes remove from each data file, in order; raises as `LiveRowsReader`.

    `pieces` are whole data files, with the number of their rows and equality deletes only.
    """
    for piece in pieces:
        if piece.record_count is None or piece.split is not None:
            raise IcekeepBug(f"positions in a part of data file {piece.source.location!r} were asked for")
    reader = LiveRowsReader(storage, _MARKS, table_schemas=table_schemas, cache=cache)
    # Deleted rows are read too: all rows of a file come in order, so their positions need not be read.
    marks = (table.column(0).to_numpy() for table in reader.read(pieces))
    waiting: NDArray[np.bool_] = np.empty(0, np.bool_)
    for piece in pieces:
        assert piece.record_count is not None
        parts: list[Positions] = [np.empty(0, np.int64)]
        start = 0
        while start < piece.record_count:
            if not len(waiting):
                waiting = next(marks)
            mine, waiting = waiting[: piece.record_count - start], waiting[piece.record_count - start :]
            parts.append(np.flatnonzero(mine) + start)
            start += len(mine)
        yield np.concatenate(parts)
    # To the end, where the reader checks the number of rows of the last file.
    if len(waiting) or any(map(len, marks)):
        raise IcekeepBug("more rows were read than the data files have")


class ReachedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A live data file of a task.

    Attributes:
        entry: as it was read.
        reach: the task's `equality_deletes` that reach it: pairs of a scope and the first of its deletes, which all follow.
        position_deletes: indices in the task's `position_deletes` of those that reach it; used in version 3 only.
    """

    entry: ManifestEntry
    reach: tuple[tuple[int, int], ...]
    position_deletes: tuple[int, ...] = ()


class ConversionTask(msgspec.Struct, frozen=True, kw_only=True):
    """Data files, and the deletes that reach them.

    Attributes:
        files: those of one partition side by side.
        equality_deletes: by scope, such as one partition; within one, those that reach more files come last.
        metadata: with the schemas, specs, location and properties of the table.
        delete_format: of position delete files.
        operation_id, partition_id, task_attempt_id: in the names of the new files.
    """

    files: tuple[ReachedFile, ...]
    equality_deletes: tuple[tuple[DataFile, ...], ...]
    position_deletes: tuple[ManifestEntry, ...] = ()
    metadata: TableMetadata
    delete_format: str = "PARQUET"
    granularity: Granularity = "file"
    operation_id: str
    partition_id: int = 0
    task_attempt_id: int = 0


class ConversionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did.

    Attributes:
        added: the new delete files or vectors.
        named: the data files with rows that equality deletes remove.
        replaced: vectors and position delete files for one data file, whose positions are in `added`.
        positions_count: how many positions equality deletes remove.
        peak_bytes: the peak memory of the process at the end of the task (resident set).
    """

    data_files: EntryDigests
    added: tuple[DataFile, ...] = ()
    named: tuple[ConvertedFile, ...] = ()
    replaced: tuple[ManifestEntry, ...] = ()
    positions_count: int = 0
    read_count: int = 0
    peak_bytes: int = 0


def convert(task: ConversionTask, storage: Storage) -> ConversionOutcome:
    """Find the positions that the equality deletes of a task remove and write them; on failure no file is left."""
    work = _Work(task, storage)
    try:
        work.run()
    except BaseException:
        storage.delete_many({file.file_path for file in work.added})
        raise
    return ConversionOutcome(
        data_files=EntryDigests.of(entry_digest(file.entry) for file in task.files),
        added=tuple(work.added),
        named=tuple(work.named),
        replaced=tuple(work.replaced),
        positions_count=work.positions_count,
        read_count=sum(file.entry.data_file.record_count for file in task.files),
        peak_bytes=peak_memory_bytes(),
    )


def is_of_one_file(delete: ManifestEntry) -> bool:
    """Whether it goes where a new vector holds its positions: it names the data file that it is for."""
    return is_deletion_vector(delete.data_file) or delete.data_file.referenced_data_file is not None


_Deleted = tuple[DataFile, Positions]


class PositionsWriter:
    """Writes the positions of deleted rows, as vectors in format version 3, else as position delete files.

    Attributes:
        added: the files so far; their user removes them where it fails.
    """

    def __init__(
        self, metadata: TableMetadata, storage: Storage, names: FileNames, delete_format: str, granularity: Granularity
    ) -> None:
        self._metadata, self._storage, self._names = metadata, storage, names
        self._delete_format, self._granularity = delete_format, granularity
        self.added: list[DataFile] = []

    def write(self, deleted: Iterator[tuple[DataFile, Positions]]) -> None:
        """Write the positions of data files, each once and those of one partition side by side; of a vector all positions."""
        if self._metadata.format_version > 2:
            self._write_vectors(deleted)
            return
        # Positions of one delete file; of a single data file they exceed 0.
        most = 0 if self._granularity == "file" else POSITIONS_A_FILE
        for _, of_partition in groupby(deleted, lambda one: partition_key(one[0])):
            for batch in packed(of_partition, (lambda one: len(one[1]), most)):
                self._write_positions(batch)

    def _write_positions(self, deleted: Sequence[_Deleted]) -> None:
        first, _ = deleted[0]
        paths = [
            pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int8), [file.file_path]).cast("string")
            for file, positions in deleted
        ]
        rows = pa.table(
            [pa.chunked_array(paths), pa.chunked_array([positions for _, positions in deleted])],
            names=[DELETE_FILE_PATH.name, DELETE_FILE_POS.name],
        )
        file = write_position_deletes(
            self._storage,
            self._new_location(first, self._delete_format),
            self._delete_format,
            rows,
            spec_id=first.spec_id,
            partition=first.partition,
            properties=self._metadata.properties,
        )
        self.added.append(file)

    def _write_vectors(self, deleted: Iterator[_Deleted]) -> None:
        for first in deleted:
            vectors = (
                (
                    VectorTarget(location=file.file_path, spec_id=file.spec_id, partition=file.partition),
                    bitmap_from(positions),
                )
                for file, positions in chain([first], islice(deleted, VECTORS_A_FILE - 1))
            )
            location = self._new_location(first[0], FILE_FORMAT)
            self.added += write_deletion_vectors(self._storage, location, vectors)

    def _new_location(self, file: DataFile, file_format: str) -> str:
        directory = self._metadata.partition_path(file.spec_id, file.partition)
        return self._names.location(delete_suffix(file_format), directory)


class _Work:
    """One attempt at a task, and its results so far."""

    def __init__(self, task: ConversionTask, storage: Storage) -> None:
        self._task, self._storage = task, storage
        self._cache = DeleteCache()
        attempt = attempt_name(task.operation_id, task.partition_id, task.task_attempt_id)
        names = FileNames(attempt, task.metadata.location, task.metadata.properties)
        self._writer = PositionsWriter(task.metadata, storage, names, task.delete_format, task.granularity)
        self.named: list[ConvertedFile] = []
        self.replaced: list[ManifestEntry] = []
        self.positions_count = 0

    @property
    def added(self) -> list[DataFile]:
        return self._writer.added

    def run(self) -> None:
        self._writer.write(self._deleted())

    def _pieces(self) -> Iterator[LivePiece]:
        metadata, scopes = self._task.metadata, self._task.equality_deletes
        reach: tuple[tuple[int, int], ...] | None = None
        deletes: list[DataFile] = []
        for reached in self._task.files:
            file = reached.entry.data_file
            # One list for neighbours of the same reach, since it may be long.
            if reached.reach != reach:
                reach = reached.reach
                deletes = [delete for scope, first in reach for delete in scopes[scope][first:]]
            source = SourceFile(
                location=file.file_path,
                file_format=file.file_format,
                constants=identity_values(metadata.specs_by_id[file.spec_id], file.partition),
                name_mapping=name_mapping_of(metadata.properties),
            )
            yield LivePiece(source=source, deletes=deletes, record_count=file.record_count)

    def _deleted(self) -> Iterator[_Deleted]:
        """The data files with rows that equality deletes remove.

        In version 3 with the positions that are deleted already, and without files of which these are all.
        """
        task, pieces = self._task, [*self._pieces()]
        deleted = equality_positions(self._storage, pieces, task.metadata.schemas, cache=self._cache)
        for reached, positions in zip(task.files, deleted, strict=True):
            if not len(positions):
                continue
            self.positions_count += len(positions)
            file = reached.entry.data_file
            includes_earlier = task.metadata.format_version > 2
            earlier = [task.position_deletes[n] for n in reached.position_deletes] if includes_earlier else []
            self.named.append(ConvertedFile(reached.entry, tuple(earlier)))
            if earlier:
                files = [entry.data_file for entry in earlier]
                gone = deleted_positions(self._storage, files, file.file_path, self._cache)
                # Positions beyond the end of the file delete nothing, but the vector that is replaced has them.
                if np.isin(positions, gone, kind="sort").all():
                    continue
                positions = np.union1d(positions, gone)
                # Delete files for several data files are kept.
                self.replaced += filter(is_of_one_file, earlier)
            yield file, positions
