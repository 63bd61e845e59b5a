"""Parquet data files, read and written in row groups (spec, Appendix A "Parquet")."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeep.errors import IcekeepError, InvalidTableError
from icekeep.formats.arrow_schema import field_id
from icekeep.formats.base import FileMetrics, translated
from icekeep.formats.file_ids import INSTANT, STORED_AS_KEY, Metadata, map_fields
from icekeep.formats.metrics import count_nans
from icekeep.formats.parquet_metrics import file_metrics, row_group_offset
from icekeep.formats.write_options import ParquetOptions
from icekeep.spec.metrics_modes import MetricsMode
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

_SAMPLE_ROWS = 16_384
_REPEATING_SHARE = 0.8

_ENCODED_VALUE_BYTES = 4
"""A string takes less as an entry of a dictionary, while its length alone takes as much outside of one."""


class ParquetReader:
    """A Parquet file; its parts are row groups."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._file = _open_parquet(stream)
        self.schema = _with_instants(self._file)

    def part_offsets(self) -> Sequence[int]:
        """The bytes at which row groups begin."""
        metadata = self._file.metadata
        return [row_group_offset(metadata.row_group(i)) for i in range(metadata.num_row_groups)]

    def parts_that_may_hold(self, column: str, text: str) -> Sequence[int] | None:
        """The row groups between whose bounds of the column the text lies."""
        metadata = self._file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [n for n, group in enumerate(groups) if _may_hold(group, column, text.encode())]

    def tables(
        self,
        columns: Sequence[str],
        parts: Sequence[int] | None,
        kept_dictionaries: Sequence[str],
        batch_rows: int | None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """One table a row group, or several of at most `batch_rows`."""
        file = self._file
        if kept_dictionaries:
            file = _open_parquet(self._stream, metadata=file.metadata, read_dictionary=list(kept_dictionaries))
        counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        for position in range(len(counts)) if parts is None else parts:
            if position >= len(counts):
                raise InvalidTableError(f"there is no row group {position}, only {len(counts)}")
            first = sum(counts[:position])
            if not columns or batch_rows is None or counts[position] <= batch_rows:
                yield first, file.read_row_group(position, columns=list(columns), use_threads=False)
                continue
            for batch in file.iter_batches(batch_rows, [position], columns=list(columns), use_threads=False):
                yield first, pa.Table.from_batches([batch])
                first += batch.num_rows


def _may_hold(group: pq.RowGroupMetaData, column: str, text: bytes) -> bool:
    for chunk in map(group.column, range(group.num_columns)):
        if chunk.path_in_schema == column:
            bounds = chunk.statistics
            return bounds is None or not bounds.has_min_max or bool(bounds.min_raw <= text <= bounds.max_raw)
    return True


class ParquetWriter:
    """A Parquet file that is being written; each table becomes a row group."""

    def __init__(
        self,
        storage: Storage,
        location: str,
        schema: Schema,
        options: ParquetOptions,
        modes: Mapping[int, MetricsMode],
        first: pa.Table,
    ) -> None:
        """`first` is the first row group: it decides which columns are worth a dictionary."""
        self._schema = schema
        self._modes = modes
        self._nan_counts: dict[int, int] = {}
        self._footers: list[pq.FileMetaData] = []
        with ExitStack() as stack:
            self._stream = stack.enter_context(storage.write(location))
            self._writer = pq.ParquetWriter(
                self._stream,
                first.schema,
                version="2.6",
                compression=options.compression,
                compression_level=options.compression_level,
                data_page_size=options.page_size_bytes,
                use_dictionary=_repeating_columns(first),
                dictionary_pagesize_limit=options.dictionary_size_bytes,
                store_schema=False,
                store_decimal_as_integer=True,
                write_page_index=True,
                write_page_checksum=True,
                metadata_collector=self._footers,
            )
            self._stack = stack.pop_all()

    @property
    def written_bytes(self) -> float:
        return self._stream.tell()

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group."""
        self._writer.write_table(table, row_group_size=table.num_rows)
        for id_, count in count_nans(table, self._schema).items():
            self._nan_counts[id_] = self._nan_counts.get(id_, 0) + count

    def finish(self) -> tuple[int, FileMetrics]:
        """Write the footer, and take the metrics from it."""
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stack.close()
        return size_bytes, file_metrics(self._footers[0], self._schema, self._modes, self._nan_counts)

    def abandon(self, error: BaseException | None) -> None:
        """Give the file up; nothing that goes wrong with it now matters beside `error`."""
        # After a row group that failed, pyarrow has no footer to hand out, and says so as a RuntimeError.
        with suppress(IcekeepError, pa.ArrowException, OSError, ValueError, RuntimeError):
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


def repeating_strings(storage: Storage, location: str) -> frozenset[int]:
    """Field ids of the top-level string columns of a file whose values repeat so much that a dictionary pays.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it is not a Parquet file.
    """
    with storage.open(location) as stream, translated(location):
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


def _with_instants(file: pq.ParquetFile) -> pa.Schema:
    """The file's schema; timestamps stored as INT96, which are in UTC, are marked so."""
    arrow, stored = file.schema_arrow, file.schema
    leaves = [stored.column(position).physical_type for position in range(len(stored))]
    if "INT96" not in leaves:
        return arrow
    kinds = iter(leaves)

    def marked(field: pa.Field, _: object) -> Metadata:
        metadata: dict[bytes, bytes] = dict(field.metadata or {})
        if not field.type.num_fields and next(kinds, None) == "INT96":
            metadata[STORED_AS_KEY] = INSTANT
        return metadata

    return map_fields(arrow, marked)
