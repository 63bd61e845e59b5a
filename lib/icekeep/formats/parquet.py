"""Data files in Parquet: written in row groups and rolled at a target size, read a row group at a time.

Data goes in and comes out as Arrow tables in a table's columns (`arrow_schema`, `projection`). A writer's files are its
own until the caller has them all: if anything fails before that, they are deleted.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, UnavailableError, UnsupportedError
from icekeep.formats.arrow_schema import arrow_schema, field_id
from icekeep.formats.metrics import count_nans, file_metrics
from icekeep.formats.projection import KEPT_DICTIONARY, project, projected_columns
from icekeep.formats.write_options import MIB, WriteOptions
from icekeep.spec.manifests import DataFile
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

ROW_GROUP_ARROW_BYTES = 128 * MIB
"""A row group is written when its data takes this much memory, however well it compresses."""

ROW_GROUP_ROWS = 1_048_576
"""The most rows of a row group."""

_SAMPLE_ROWS = 16_384
_REPEATING_SHARE = 0.8

_ENCODED_VALUE_BYTES = 4
"""A string takes less as an entry of a dictionary, while its length alone takes as much outside of one."""


class DataFileWriter:
    """Writes tables of one partition into as many files as their size asks for.

    Use it as a context manager and call `close` at the end of the block: when the block ends without that, or raises,
    every file that was written is deleted. A file ends near the target size, at the end of a row group; no data makes
    no file. In memory is one row group, at most about `ROW_GROUP_ARROW_BYTES` beside the table that is being written.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        options: WriteOptions,
        new_location: Callable[[], str],
        *,
        spec_id: int = 0,
        partition: tuple[Any, ...] = (),
        sort_order_id: int | None = 0,
    ) -> None:
        self._storage = storage
        self._schema = schema
        self._options = options
        self._new_location = new_location
        self._file_template = DataFile(
            file_path="",
            file_format="PARQUET",
            spec_id=spec_id,
            partition=partition,
            sort_order_id=sort_order_id,
            record_count=0,
            file_size_in_bytes=0,
        )
        self._written_schema: pa.Schema | None = None
        self._row_group = _RowGroup()
        self._file: _OpenFile | None = None
        self._files: list[DataFile] = []
        self._flushed_arrow_bytes = 0.0
        self._flushed_bytes = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._closed:
            return
        locations = [file.file_path for file in self._files]
        if self._file is not None:
            locations.append(self._file.location)
            self._file.abandon(error)
            self._file = None
        self._storage.delete_many(locations)

    def write(self, table: pa.Table) -> None:
        """Add rows, in the columns of the writer's schema as `project` or `cast_to_schema` gives them.

        The first table decides which string columns are handed over as dictionaries; later ones are converted.
        """
        if not table.num_rows:
            return
        table = self._conform(table)
        bytes_per_row = max(table.nbytes, 1) / table.num_rows
        start = 0
        while start < table.num_rows:
            free_bytes = self._row_group_limit_bytes() - self._row_group.arrow_bytes
            free_rows = min(ROW_GROUP_ROWS - self._row_group.row_count, max(1, int(free_bytes / bytes_per_row)))
            piece = table.slice(start, free_rows)
            self._row_group.add(piece, bytes_per_row)
            start += piece.num_rows
            if piece.num_rows == free_rows:
                self._flush()

    def close(self) -> tuple[DataFile, ...]:
        """Finish the last file and return all of them, in the order of their rows."""
        if self._row_group.row_count:
            self._flush()
        self._finish_file()
        self._closed = True
        return tuple(self._files)

    def _conform(self, table: pa.Table) -> pa.Table:
        if self._written_schema is None:
            target = arrow_schema(self._schema)
            plain = pa.schema([f.with_type(pa.string()) if f.type == KEPT_DICTIONARY else f for f in table.schema])
            if not plain.equals(target):
                raise IcekeepBug(f"data to write has the columns {table.schema.names}, the schema has {target.names}")
            kept = {f.name for f in table.schema if f.type == KEPT_DICTIONARY}
            self._written_schema = pa.schema([f.with_type(KEPT_DICTIONARY) if f.name in kept else f for f in target])
        return table if table.schema.equals(self._written_schema) else table.cast(self._written_schema)

    def _row_group_limit_bytes(self) -> float:
        """How much Arrow data the row group in the making may take, going by how well earlier data compressed."""
        ratio = self._flushed_bytes / self._flushed_arrow_bytes if self._flushed_arrow_bytes else 1.0
        full_bytes = min(ROW_GROUP_ARROW_BYTES, self._options.row_group_size_bytes / ratio)
        written_bytes = self._file.written_bytes if self._file is not None else 0
        remaining_bytes = max(1, self._options.target_file_size_bytes - written_bytes) / ratio
        # Row groups of one size that end where the file shall end, not large ones and a small rest.
        return remaining_bytes / math.ceil(remaining_bytes / full_bytes)

    def _flush(self) -> None:
        table, arrow_bytes = self._row_group.take()
        if self._file is None:
            repeating = _repeating_columns(table)
            self._file = _OpenFile(self._storage, self._new_location(), self._written_schema, repeating, self._options)
        flushed_bytes = self._file.write_row_group(table, count_nans(table, self._schema))
        self._flushed_arrow_bytes += arrow_bytes
        self._flushed_bytes += flushed_bytes
        # An estimate that was a little off must not leave a splinter of a row group at the end of the file.
        if self._file.written_bytes + flushed_bytes / 4 >= self._options.target_file_size_bytes:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        metadata, file_size_bytes, nan_counts = self._file.finish()
        metrics = file_metrics(metadata, self._schema, nan_counts)
        file = msgspec.structs.replace(
            self._file_template,
            file_path=self._file.location,
            file_size_in_bytes=file_size_bytes,
            **msgspec.structs.asdict(metrics),
        )
        self._files.append(file)
        self._file = None


def read_row_groups(
    storage: Storage,
    location: str,
    schema: Schema,
    row_groups: Sequence[int] | None = None,
    *,
    constants: Mapping[int, Any] | None = None,
    kept_dictionaries: Collection[int] = (),
) -> Iterator[pa.Table]:
    """Read a data file in the columns of a table's schema, one row group at a time.

    Args:
        storage: where the file is.
        location: of the file.
        schema: the columns that are wanted; see `project` for how the file's become these.
        row_groups: their positions in the file, all of them if None.
        constants: values of columns that the file may lack, by field id; see `project`.
        kept_dictionaries: field ids of top-level string columns that shall not be decoded.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it is not a Parquet file, is damaged, or does not fit the schema.
        UnsupportedError: it has no field ids.
    """
    with storage.open(location) as stream:
        with _translated(location):
            file = _open_parquet(stream)
            file_schema = file.schema_arrow
            columns = projected_columns(file_schema, schema)
            kept = [f.name for f in file_schema if field_id(f) in kept_dictionaries and f.type == pa.string()]
            if kept:
                file = _open_parquet(stream, metadata=file.metadata, read_dictionary=kept)
        for position in range(file.num_row_groups) if row_groups is None else row_groups:
            with _translated(location):
                if position >= file.num_row_groups:
                    raise InvalidTableError(f"there is no row group {position}, only {file.num_row_groups}")
                data = file.read_row_group(position, columns=columns, use_threads=False)
                table = project(data, schema, constants)
            yield table


def repeating_strings(storage: Storage, location: str) -> frozenset[int]:
    """Field ids of the top-level string columns of a file whose values repeat so much that a dictionary pays.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it is not a Parquet file.
    """
    with storage.open(location) as stream, _translated(location):
        file = _open_parquet(stream)
        ids = {field.name: field_id(field) for field in file.schema_arrow if field.type == pa.string()}
        metadata = file.metadata
    paying: set[int | None] = set()
    others: set[int | None] = set()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            small = chunk.total_uncompressed_size <= chunk.num_values * _ENCODED_VALUE_BYTES
            (paying if chunk.has_dictionary_page and small else others).add(ids.get(chunk.path_in_schema))
    return frozenset(id_ for id_ in paying - others if id_ is not None)


def _open_parquet(stream: BinaryIO, **options: Any) -> pq.ParquetFile:
    """The file behind a stream, with its footer read, tuned for one thread that reads whole row groups."""
    return pq.ParquetFile(
        stream, pre_buffer=False, coerce_int96_timestamp_unit="us", page_checksum_verification=True, **options
    )


class _RowGroup:
    """Tables that wait to be written as one row group."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self.row_count = 0
        self.arrow_bytes = 0.0

    def add(self, table: pa.Table, bytes_per_row: float) -> None:
        self._tables.append(table)
        self.row_count += table.num_rows
        self.arrow_bytes += table.num_rows * bytes_per_row

    def take(self) -> tuple[pa.Table, float]:
        """The tables as one, and its size; nothing stays behind."""
        # pyarrow's writer stops encoding a column as a dictionary when a second one comes along.
        table, arrow_bytes = pa.concat_tables(self._tables).unify_dictionaries(), self.arrow_bytes
        self._tables = []
        self.row_count = 0
        self.arrow_bytes = 0.0
        return table, arrow_bytes


class _OpenFile:
    """A file that is being written; it exists for good only after `finish`."""

    def __init__(
        self, storage: Storage, location: str, schema: pa.Schema, dictionary_columns: list[str], options: WriteOptions
    ) -> None:
        self.location = location
        self._nan_counts: dict[int, int] = {}
        self._footers: list[pq.FileMetaData] = []
        with ExitStack() as stack:
            self._stream = stack.enter_context(storage.write(location))
            self._writer = pq.ParquetWriter(
                self._stream,
                schema,
                version="2.6",
                compression=options.compression,
                compression_level=options.compression_level,
                data_page_size=options.page_size_bytes,
                use_dictionary=dictionary_columns,
                dictionary_pagesize_limit=options.dictionary_size_bytes,
                store_schema=False,
                store_decimal_as_integer=True,
                write_page_index=True,
                write_page_checksum=True,
                metadata_collector=self._footers,
            )
            self._stack = stack.pop_all()

    @property
    def written_bytes(self) -> int:
        return self._stream.tell()

    def write_row_group(self, table: pa.Table, nan_counts: Mapping[int, int]) -> int:
        """Write a table as one row group; returns the bytes that it took."""
        before_bytes = self.written_bytes
        self._writer.write_table(table, row_group_size=table.num_rows)
        for id_, count in nan_counts.items():
            self._nan_counts[id_] = self._nan_counts.get(id_, 0) + count
        return self.written_bytes - before_bytes

    def finish(self) -> tuple[pq.FileMetaData, int, dict[int, int]]:
        """Make the file complete and durable; returns its footer, its size and the NaN of each column."""
        self._writer.close()
        file_size_bytes = self.written_bytes
        self._stack.close()
        return self._footers[0], file_size_bytes, self._nan_counts

    def abandon(self, error: BaseException | None) -> None:
        """Give the file up; nothing that goes wrong with it now matters beside `error`."""
        with suppress(IcekeepError, pa.ArrowException, OSError, ValueError):
            self._writer.close()
        with suppress(IcekeepError, OSError, ValueError):
            if error is None:
                self._stack.close()
            else:
                self._stack.__exit__(type(error), error, error.__traceback__)


def _repeating_columns(table: pa.Table) -> list[str]:
    """Paths of the columns that are worth a dictionary: not those with hardly a value that occurs twice in a sample.

    Building a dictionary that is too large costs time, and a larger file when it is given up.
    """
    step = max(1, table.num_rows // _SAMPLE_ROWS)
    positions = pa.array(range(0, table.num_rows, step), pa.int64())
    paths: list[str] = []
    for field, column in zip(table.schema, table.columns, strict=True):
        if field.type.num_fields or pa.types.is_dictionary(field.type):
            paths += _leaf_paths(field)
            continue
        sample = column.take(positions).drop_null()
        if field.type == pa.uuid():
            sample = sample.cast(pa.binary(16))
        if pc.count_distinct(sample).as_py() <= len(sample) * _REPEATING_SHARE:
            paths.append(field.name)
    return paths


def _leaf_paths(field: pa.Field) -> Iterator[str]:
    """The columns of Parquet below a field, as paths in the three-level form of lists and maps."""
    if pa.types.is_struct(field.type):
        children = [(child.name, child) for child in field.type]
    elif pa.types.is_list(field.type):
        children = [("list.element", field.type.value_field)]
    elif pa.types.is_map(field.type):
        children = [("key_value.key", field.type.key_field), ("key_value.value", field.type.item_field)]
    else:
        yield field.name
        return
    for name, child in children:
        yield from (f"{field.name}.{path}" for path in _leaf_paths(child.with_name(name)))


@contextmanager
def _translated(location: str) -> Iterator[None]:
    """What pyarrow raises on a bad file as an invalid table, and the file's name in every error."""
    try:
        yield
    except (InvalidTableError, UnsupportedError) as error:
        facts = {**error.facts, "location": location}
        raise type(error)(f"data file {location!r}: {error.message}", **facts) from error
    except OSError as error:
        # pyarrow's own have no number: those say that the bytes are wrong, not that they cannot be had.
        if error.errno is not None:
            raise UnavailableError(f"cannot read {location!r}: {error}", location=location) from error
        raise InvalidTableError(f"data file {location!r} is damaged: {error}", location=location) from error
    except pa.ArrowException as error:
        raise InvalidTableError(f"data file {location!r} is damaged: {error}", location=location) from error
