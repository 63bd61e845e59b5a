"""Parquet data files, read in row groups (spec, Appendix A "Parquet")."""

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.projection import INSTANT, STORED_AS_KEY
from icekeep.formats.arrow.schema import Metadata, field_id, map_fields
from icekeep.formats.base import translated, value_width
from icekeep.formats.machine import PartSize
from icekeep.formats.parquet.footer import TAIL_BYTES
from icekeep.formats.parquet.metrics import row_group_metrics, row_group_offset
from icekeep.spec.filters.evaluators import Metrics
from icekeep.spec.types import MIB, PrimitiveType
from icekeep.storage.base import Storage

_SMALL_BYTES = MIB
_BUFFER_BYTES = 256 * 1024
_PAGE_BYTES = 2 * MIB

_ENCODED_VALUE_BYTES = 4
"""Per string: with a dictionary it takes less, without one its length alone takes as much."""


class ParquetReader:
    """A Parquet file; its parts are row groups."""

    def __init__(self, stream: BinaryIO) -> None:
        # A small file is read whole: each of its columns would take a request of its own.
        size_bytes = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        is_small = size_bytes <= _SMALL_BYTES
        self._source: Any = pa.BufferReader(stream.read(size_bytes)) if is_small else stream
        self._is_remote = not is_small and not is_local(stream)
        self._file = _open_parquet(self._source, pre_buffer=self._is_remote)
        self.schema = _with_instants(self._file)

    @cached_property
    def _groups(self) -> list[pq.RowGroupMetaData]:
        return [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]

    def row_count(self) -> int | None:
        return int(self._file.metadata.num_rows)

    def part_offsets(self) -> Sequence[int]:
        return [row_group_offset(group) for group in self._groups]

    def parts_that_may_hold(self, column_id: int, first: str | None, end: str | None) -> Sequence[int] | None:
        names = [field.name for field in self.schema if field_id(field) == column_id]
        if len(names) != 1:
            return None
        lower, upper = (None if text is None else text.encode() for text in (first, end))
        return [n for n, group in enumerate(self._groups) if _may_hold(group, names[0], lower, upper)]

    def part_metrics(self, columns: pa.Schema, types: Mapping[int, PrimitiveType]) -> Sequence[Metrics] | None:
        return row_group_metrics(self._file.metadata, columns, types, self._read_footer)

    def _read_footer(self) -> bytes:
        length = self._file.metadata.serialized_size
        end = self._source.seek(0, io.SEEK_END) - TAIL_BYTES
        self._source.seek(end - length)
        return bytes(self._source.read(length))

    def largest_part(self, columns: Collection[str] | None = None) -> PartSize | None:
        """The row group with the most data; in batches, its columns are read page by page."""
        leaves = self._leaves(columns)
        row_bytes = sum(value_width(field.type) for field in self.schema if columns is None or field.name in columns)
        largest: tuple[int, pq.RowGroupMetaData] | None = None
        largest_bytes = -1
        for number, group in enumerate(self._groups):
            if leaves is None:
                stored_bytes = int(group.total_byte_size)
            else:
                stored_bytes = sum(group.column(position).total_uncompressed_size for position in leaves)
            size_bytes = max(stored_bytes, group.num_rows * row_bytes)
            if size_bytes > largest_bytes:
                largest, largest_bytes = (number, group), size_bytes
        if largest is None:
            return None
        number, group = largest
        # In memory are a page of each column, its dictionary, and the read-ahead buffer.
        held_bytes = 0
        for chunk in map(group.column, range(group.num_columns) if leaves is None else leaves):
            size_bytes = chunk.total_uncompressed_size
            held_bytes += min(size_bytes, max(_PAGE_BYTES, 2 * (size_bytes // max(1, chunk.num_values))))
            held_bytes += min(size_bytes, _PAGE_BYTES) if chunk.has_dictionary_page else 0
            held_bytes += min(_BUFFER_BYTES, chunk.total_compressed_size)
        return PartSize(number=number, row_count=group.num_rows, size_bytes=largest_bytes, held_bytes=held_bytes)

    def _leaves(self, columns: Collection[str] | None) -> list[int] | None:
        """The positions of the leaves of some top-level columns; null for all."""
        if columns is None or len(columns) == len(self.schema):
            return None
        stored = self._file.schema
        paths = [stored.column(position).path for position in range(len(stored))]
        return [n for n, path in enumerate(paths) if any(f"{path}.".startswith(f"{name}.") for name in columns)]

    def tables(
        self,
        columns: Sequence[str],
        parts: Sequence[int] | None,
        kept_dictionaries: Sequence[str],
        batch_rows: int | None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """One table per row group, or several of at most `batch_rows`."""
        file = self._file
        counts = [group.num_rows for group in self._groups]
        asked = [*range(len(counts))] if parts is None else parts
        in_batches = batch_rows is not None and any(counts[n] > batch_rows for n in asked if n < len(counts))
        if kept_dictionaries or in_batches:
            # Without read-ahead, a row group that is read in batches is not held in memory whole.
            file = _open_parquet(
                self._source,
                metadata=file.metadata,
                read_dictionary=list(kept_dictionaries),
                buffer_size=_BUFFER_BYTES if in_batches else 0,
                pre_buffer=self._is_remote and not in_batches,
            )
        for position in asked:
            if position >= len(counts):
                raise InvalidTableError(f"there is no row group {position}, only {len(counts)}")
            first = sum(counts[:position])
            if not columns or batch_rows is None or counts[position] <= batch_rows:
                table = file.read_row_group(position, columns=list(columns), use_threads=False)
                if table.num_rows != counts[position]:
                    raise InvalidTableError(
                        f"row group {position} has {table.num_rows} rows where the footer says {counts[position]}"
                    )
                yield first, table
                continue
            for batch in file.iter_batches(batch_rows, [position], columns=list(columns), use_threads=False):
                yield first, pa.Table.from_batches([batch])
                first += batch.num_rows


def _may_hold(group: pq.RowGroupMetaData, column: str, first: bytes | None, end: bytes | None) -> bool:
    for chunk in map(group.column, range(group.num_columns)):
        if chunk.path_in_schema == column:
            # pyarrow aborts the process at bounds of fixed-length values that have another length; texts are safe.
            bounds = chunk.statistics if chunk.physical_type == "BYTE_ARRAY" else None
            if bounds is None or not bounds.has_min_max:
                return True
            lower, upper = bounds.min_raw, bounds.max_raw
            if lower > upper:
                return True
            # Some writers cut an upper bound and forget to increment it.
            from_first = first is None or upper >= first or first.startswith(upper)
            return bool(from_first and (end is None or lower < end))
    return True


def repeating_strings(storage: Storage, location: str) -> frozenset[int]:
    """Field ids of the top-level string columns of a file whose values repeat enough for a dictionary to pay."""
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


def is_local(stream: BinaryIO) -> bool:
    """Whether a stream reads a local file: then single columns are read fastest, else contiguous ranges of several."""
    try:
        stream.fileno()
    except (AttributeError, OSError):
        return False
    return True


def _open_parquet(stream: Any, **options: Any) -> pq.ParquetFile:
    """Open a file with settings for one thread that reads whole row groups."""
    settings = {"pre_buffer": False, "coerce_int96_timestamp_unit": "us", "page_checksum_verification": True, **options}
    return pq.ParquetFile(stream, **settings)


def _with_instants(file: pq.ParquetFile) -> pa.Schema:
    """The file's schema, its timestamps marked as instants however they are stored."""

    def marked(field: pa.Field, _: object) -> Metadata:
        metadata: dict[bytes, bytes] = dict(field.metadata or {})
        return metadata | {STORED_AS_KEY: INSTANT} if pa.types.is_timestamp(field.type) else metadata

    # Mostly there are none: their types are part of the text of those around them.
    arrow = file.schema_arrow
    return map_fields(arrow, marked) if any("timestamp" in str(type_) for type_ in arrow.types) else arrow
