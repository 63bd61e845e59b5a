"""What new delete files of a table are like: where they lie, their format, and how many data files one is for.

Table properties `write.delete.format.default`, `write.delete.granularity`.

Position delete files of one partition -> fewer of them, or deletion vectors: what one task of a rewrite of deletes does.

Delete files are streamed. What is held of their positions are bitmaps, one a data file: some two bytes a position where they
lie far apart, an eighth of one where they are dense. Rows that were stored beside positions are held as they are. A task is
given a range of paths of data files that bounds both.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from typing import Any, Literal, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeep.commit.changes.deletes import NamedFile
from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.projection import KEPT_DICTIONARY, cast_to_schema
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.read import BATCH_ROWS, Positions, delete_write_options, position_tables, rows_by_path
from icekeep.formats.options import WriteOptions, write_options
from icekeep.formats.puffin import FILE_FORMAT as PUFFIN
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.formats.row_moves import bitmap_from
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import partition_path
from icekeep.spec.properties import FULL, choice, data_layout, metrics_modes
from icekeep.spec.reach import PathDigest, path_digest
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema, deleted_row_column
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

Granularity = Literal["file", "partition"]
"""Whether a position delete file is for one data file or for all of a partition."""

_FORMATS = {name.lower(): name for name in ("PARQUET", "ORC", "AVRO")}
_GRANULARITIES: Mapping[str, Granularity] = {"file": "file", "partition": "partition"}


def delete_format(properties: Mapping[str, str]) -> str:
    """The format of new position and equality delete files: `PARQUET`, `ORC` or `AVRO`; that of data files by default.

    Raises:
        PropertyError: a table property names another one.
    """
    if (key := "write.delete.format.default") not in properties:
        return write_options(properties).file_format
    return choice(properties, key, properties[key], _FORMATS)


def delete_granularity(properties: Mapping[str, str]) -> Granularity:
    """What new position delete files are for: single data files where the table does not say, as in Iceberg's Spark writers.

    Raises:
        PropertyError: the table property names something else.
    """
    return choice(properties, "write.delete.granularity", "file", _GRANULARITIES)


class DeleteFileNames:
    """Locations of new delete files, where the table's data files go, named as Iceberg's writers name theirs."""

    def __init__(
        self, metadata: TableMetadata, operation_id: str, partition_id: int = 0, task_attempt_id: int = 0
    ) -> None:
        """Args:
        operation_id: that no other run has, such as a UUID.
        partition_id, task_attempt_id: of the task that writes, where several do.
        """
        self._metadata = metadata
        self._layout = data_layout(metadata.location, metadata.properties)
        self._names: Iterator[str] = (
            f"{partition_id:05d}-{task_attempt_id}-{operation_id}-{number:05d}-deletes" for number in count(1)
        )

    def location(self, spec_id: int, partition: tuple[Any, ...], file_format: str) -> str:
        """The location of the next file; that of vectors of several partitions is in none (`location_of_vectors`)."""
        metadata = self._metadata
        directory = partition_path(metadata.specs_by_id[spec_id], metadata.schema, partition)
        return self._layout.location(f"{next(self._names)}.{file_format.lower()}", directory)

    def location_of_vectors(self) -> str:
        """The location of the next Puffin file; its vectors may be for files of any partition."""
        return self._layout.location(f"{next(self._names)}.{PUFFIN.lower()}")


_POSITIONS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))


class LiveFile(msgspec.Struct, frozen=True):
    """A live data file of the partition: its data sequence number, and whether it has a deletion vector."""

    sequence_number: int
    has_vector: bool = False


class LiveFiles(Protocol):
    """The live data files that delete files may name; a dictionary by path will do."""

    def get(self, path: str, /) -> LiveFile | None:
        """The one at a path, if there is one."""


class DeleteSource(msgspec.Struct, frozen=True):
    """A live position delete file and its data sequence number."""

    file: DataFile
    sequence_number: int


class DeletesTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a task reads and writes; it can be pickled.

    Attributes:
        sources: delete files of one partition.
        live: at least the data files of the partition that they may name, in the task's range of paths.
        first_path, end_path: the range of paths whose rows the task takes; null: no bound. The end is not in it.
        makes_vectors: whether positions become deletion vectors, in one Puffin file, or position delete files.
        file_format: of position delete files: `PARQUET`, `ORC` or `AVRO`.
        granularity: whether a position delete file may be for several data files.
        directory: of the partition, in the locations of the new files.
        operation_id, partition_id, task_attempt_id: in the names of the new files.
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
        """Whether rows for a data file are this task's."""
        return (self.first_path is None or self.first_path <= path) and (self.end_path is None or path < self.end_path)


class DeletesOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has done.

    Attributes:
        files: the new delete files, or vectors.
        named: by the digest of its path, what became of the rows of each data file that the task met.
        read_count: rows that are the task's, the same position more than once where it is there more than once.
        dangling_count: of them, those that were dropped since their data file is not live or too new.
        replaced_count: of them, those that were dropped since a deletion vector stands for them.
    """

    files: tuple[DataFile, ...]
    named: Mapping[PathDigest, NamedFile]
    read_count: int
    dangling_count: int
    replaced_count: int


def rewrite_deletes(task: DeletesTask, storage: Storage) -> DeletesOutcome:
    """Read the delete files of a task and write what is left of their rows, each position once; no file is left on failure.

    Raises:
        MissingFileError: a delete file is not there.
        InvalidTableError: one is damaged.
        UnsupportedError: one is encrypted, or of a format that is not known.
        PropertyError: a table property of the writer is wrong.
    """
    found = _Found(task)
    for source in task.sources:
        for rows in _rows_of(source.file, task, storage):
            found.add(rows, source)
    files = _write_vectors(found, task, storage) if task.makes_vectors else _write_positions(found, task, storage)
    if (written := sum(file.record_count for file in files)) != found.kept_count:
        storage.delete_many({file.file_path for file in files})
        raise IcekeepBug(f"{found.kept_count} deleted positions are to be kept, and {written} were written")
    return DeletesOutcome(
        files=files,
        named={path_digest(path): named for path, named in found.named.items()},
        read_count=found.read_count,
        dangling_count=found.dangling_count,
        replaced_count=found.replaced_count,
    )


class _Found:
    """What was read so far: positions by data file, and rows that carry the values of what they delete."""

    def __init__(self, task: DeletesTask) -> None:
        self._task = task
        self._positions: dict[str, BitMap64] = {}
        self._with_values: dict[str, BitMap64] = {}
        self._values: list[pa.Table] = []
        self.named: dict[str, NamedFile] = {}
        self.read_count = self.dangling_count = self.replaced_count = 0

    @property
    def kept_count(self) -> int:
        return sum(map(len, self.positions.values())) + sum(map(len, self._with_values.values()))

    def add(self, rows: pa.Table, source: DeleteSource) -> None:
        """Take in some rows of a delete file."""
        positions = rows.column(1).to_numpy()
        has_values = None if rows.num_columns < 3 else pc.is_valid(rows.column(2)).to_numpy(zero_copy_only=False)
        for path, at in rows_by_path(rows.column(0)):
            if not self._task.takes(path):
                continue
            self.read_count += len(at)
            if not self._is_kept(path, source.sequence_number, len(at)):
                continue
            if has_values is None or not (valued := has_values[at]).any():
                _gather(self._positions, path, positions[at])
                continue
            _gather(self._positions, path, positions[at[~valued]])
            _gather(self._with_values, path, positions[at[valued]])
            self._values.append(rows.take(pa.array(at[valued])))

    @cached_property
    def positions(self) -> dict[str, BitMap64]:
        """What is kept without values, by path in order; what is there with values, too, is not. Asked for once all is read."""
        less = {
            path: some - self._with_values[path] if path in self._with_values else some
            for path, some in self._positions.items()
        }
        return {path: less[path] for path in sorted(less) if less[path]}

    def values(self) -> pa.Table | None:
        """Rows that carry values, by path and position, each once; `None` if there are none."""
        if not self._values:
            return None
        path, position = DELETE_FILE_PATH.name, DELETE_FILE_POS.name
        plain = [table.set_column(0, path, table.column(0).cast(pa.string())) for table in self._values]
        table = pa.concat_tables(plain)
        table = table.take(pc.sort_indices(table, sort_keys=[(path, "ascending"), (position, "ascending")]))
        paths, positions = table.column(0), table.column(1).to_numpy()
        again = pc.equal(paths.slice(1), paths.slice(0, len(paths) - 1)).to_numpy() & (np.diff(positions) == 0)
        return table.take(pa.array(np.flatnonzero(np.concatenate([[True], ~again]))))

    def _is_kept(self, path: str, number: int, rows_count: int) -> bool:
        file = self._task.live.get(path)
        if file is None or file.sequence_number > number:
            became, self.dangling_count = NamedFile(dropped_up_to=number), self.dangling_count + rows_count
        elif file.has_vector:
            became, self.replaced_count = NamedFile(has_vector=True), self.replaced_count + rows_count
        else:
            became = NamedFile(kept_from=number)
        known = self.named.get(path)
        self.named[path] = became if known is None else known.and_also(became)
        return became.kept_from is not None


def _gather(bitmaps: dict[str, BitMap64], path: str, positions: Positions) -> None:
    if len(positions):
        found = bitmap_from(positions)
        known = bitmaps.setdefault(path, found)
        if known is not found:
            known |= found


def _rows_of(file: DataFile, task: DeletesTask, storage: Storage) -> Iterator[pa.Table]:
    """The rows of a delete file, with the values of what they delete if those are to be carried on.

    Row groups that name no data file of the task's range of paths are left out: each range would read all of them.
    """
    schema = _POSITIONS if task.makes_vectors else _with_values(task.schema, required=False)
    return position_tables(storage, file, schema, task.first_path, task.end_path)


def _with_values(schema: Schema, *, required: bool) -> Schema:
    column = deleted_row_column(_optional(schema.as_struct()))
    return Schema(fields=(*_POSITIONS.fields, msgspec.structs.replace(column, required=required)))


def _optional(struct: StructType) -> StructType:
    """The struct with no field required: a delete file may hold any of the table's columns and leave others out."""
    return StructType(
        tuple(
            msgspec.structs.replace(
                field, required=False, type=_optional(field.type) if isinstance(field.type, StructType) else field.type
            )
            for field in struct.fields
        )
    )


def _write_vectors(found: _Found, task: DeletesTask, storage: Storage) -> tuple[DataFile, ...]:
    vectors = found.positions
    if not vectors:
        return ()
    targets = (
        (VectorTarget(location=path, spec_id=task.spec_id, partition=task.partition), positions)
        for path, positions in vectors.items()
    )
    return write_deletion_vectors(storage, _locations(task, ".puffin")(), targets)


def _write_positions(found: _Found, task: DeletesTask, storage: Storage) -> tuple[DataFile, ...]:
    """Positions with values go to files of their own: in a file that has the column each row must have a value."""
    tables = [(_POSITIONS, _tables(found.positions, task.granularity))]
    values = found.values()
    if values is not None:
        schema = _with_values(task.schema, required=True)
        tables.append((schema, _split(cast_to_schema(values, schema), task.granularity)))
    new_location = _locations(task, f".{task.file_format.lower()}")
    with ExitStack() as stack:
        writers = [stack.enter_context(_Writer(task, schema, new_location, storage)) for schema, _ in tables]
        for writer, (_, some) in zip(writers, tables, strict=True):
            for table in some:
                writer.write(table)
        return tuple(file for writer in writers for file in writer.close())


class _Writer:
    """Writes position delete files of one set of columns; a table of another data file begins another file, if asked."""

    def __init__(self, task: DeletesTask, schema: Schema, new_location: Callable[[], str], storage: Storage) -> None:
        options = _write_options(task, schema)
        self._ends_with_path = task.granularity == "file"
        self._path: str | None = None
        self._writer = DataFileWriter(
            storage,
            schema,
            options,
            new_location,
            spec_id=task.spec_id,
            partition=task.partition,
            sort_order_id=None,
        )

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._writer.__exit__(*failure)

    def write(self, table: pa.Table) -> None:
        """Add rows in order; for single files all of one data file."""
        path = table.column(0)[0].as_py()
        if self._ends_with_path and self._path not in (None, path):
            self._writer.end_file()
        self._path = path
        self._writer.write(table)

    def close(self) -> tuple[DataFile, ...]:
        return tuple(map(_as_deletes, self._writer.close()))


def _as_deletes(file: DataFile) -> DataFile:
    """A file of positions as manifests describe it; what bounds say of its paths is exact."""
    lower = (file.lower_bounds or {}).get(DELETE_FILE_PATH.field_id)
    upper = (file.upper_bounds or {}).get(DELETE_FILE_PATH.field_id)
    return msgspec.structs.replace(
        file,
        content=FileContent.POSITION_DELETES,
        sort_order_id=None,
        referenced_data_file=lower.decode() if lower is not None and lower == upper else None,
    )


def _tables(positions: Mapping[str, BitMap64], granularity: Granularity) -> Iterator[pa.Table]:
    """Positions in order as tables of at most `BATCH_ROWS`; for single files each of one data file."""
    pending: list[tuple[str, Positions]] = []
    rows_count = 0
    for path, bitmap in positions.items():
        some = np.array(bitmap.to_array(), dtype=np.int64)
        for start in range(0, len(some), BATCH_ROWS):
            part = some[start : start + BATCH_ROWS]
            if pending and (rows_count + len(part) > BATCH_ROWS or granularity == "file"):
                yield _table(pending)
                pending, rows_count = [], 0
            pending.append((path, part))
            rows_count += len(part)
    if pending:
        yield _table(pending)


def _table(parts: Iterable[tuple[str, Positions]]) -> pa.Table:
    paths, positions = zip(*parts, strict=True)
    codes = np.repeat(np.arange(len(paths), dtype=np.int32), [len(some) for some in positions])
    column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(paths, pa.string()))
    path, position = arrow_schema(_POSITIONS)
    schema = pa.schema([path.with_type(KEPT_DICTIONARY), position])
    return pa.Table.from_arrays([column, pa.array(np.concatenate(positions))], schema=schema)


def _split(table: pa.Table, granularity: Granularity) -> Iterator[pa.Table]:
    """Rows in order; for single files those of one data file at a time."""
    if granularity == "partition":
        yield table
        return
    paths = table.column(0)
    borders = np.flatnonzero(~pc.equal(paths.slice(1), paths.slice(0, len(paths) - 1)).to_numpy()) + 1
    for start, end in zip([0, *borders], [*borders, table.num_rows], strict=True):
        yield table.slice(start, end - start)


def _write_options(task: DeletesTask, schema: Schema) -> WriteOptions:
    """How the table wants delete files to be written, with the bounds that say which data files they are for."""
    modes = dict(metrics_modes(task.properties, Schema(fields=task.schema.fields))) if len(schema.fields) > 2 else {}
    modes |= {field.field_id: FULL for field in _POSITIONS.fields}
    options = delete_write_options(
        task.properties, task.file_format, schema, target_file_size_bytes=task.target_file_size_bytes
    )
    return msgspec.structs.replace(options, metrics_modes=modes)


def _locations(task: DeletesTask, suffix: str) -> Callable[[], str]:
    """Gives locations of new files, one after the other."""
    layout = data_layout(task.table_location, task.properties)
    numbers = count(1)

    def new_location() -> str:
        name = f"{task.partition_id:05d}-{task.task_attempt_id}-{task.operation_id}-{next(numbers):05d}-deletes{suffix}"
        return layout.location(name, task.directory)

    return new_location
