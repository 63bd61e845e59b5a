"""A Parquet file whose row groups have some columns encoded anew, and some moved from other files page by page.

The columns that are encoded come as a file of one row group, in memory; the new file's schema and the way in which it says
things are those of the table's writer. Everything that lies behind the data, indexes and the footer, is written last.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.formats.base import FileMetrics
from icekeep.formats.parquet.footer import MAGIC, Footer
from icekeep.formats.parquet.footer_metrics import file_metrics
from icekeep.formats.parquet.page_headers import Page
from icekeep.formats.parquet.row_group_shift import footer_bytes, moved_offset_index
from icekeep.formats.parquet.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    integer_bytes,
    list_bytes,
    struct_bytes,
    struct_list_bytes,
    with_integers,
)
from icekeep.formats.rewrite.page_copy.chunk_bounds import column_index_bytes, statistics_bytes
from icekeep.formats.rewrite.page_copy.sources import SpliceChunk, SpliceColumn
from icekeep.spec.metrics_modes import MetricsMode
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

_RLE = 3
"""Parquet's number of the encoding of levels."""

MovedChunks = Sequence[tuple[bytes, SpliceChunk]]
"""Chunks of one column, in order, each with the bytes of the file that it lies in."""


class Shape(msgspec.Struct, frozen=True):
    """What all files of a rewrite have in common.

    Attributes:
        footer: of a file with all columns and no rows, as the table's writer makes it.
        columns: those that may be spliced, by field id.
        codec: Parquet's number of it.
        schema: of the table.
        modes: what manifests keep of each column, by field id.
    """

    footer: Footer
    columns: Mapping[int, SpliceColumn]
    codec: int
    schema: Schema
    modes: Mapping[int, MetricsMode]


class _Chunk(msgspec.Struct, frozen=True):
    """A column chunk in its place; what describes it is done, except for the places of its indexes."""

    start: int
    compressed_bytes: int
    uncompressed_bytes: int
    metadata: bytes
    column_index: bytes | None
    offset_index: bytes | None


class _RowGroup(msgspec.Struct, frozen=True):
    row_count: int
    chunks: tuple[_Chunk, ...]


class SplicedFile:
    """A file that is being put together, a row group at a time."""

    def __init__(self, storage: Storage, location: str, shape: Shape) -> None:
        self._shape = shape
        self._location = location
        self._row_groups: list[_RowGroup] = []
        self._nan_counts: dict[int, int] = {}
        nodes = Struct(struct_bytes([(2, LIST, shape.footer.schema)])).structs(2)
        self._nodes = {node.value(9): node for node in nodes if node.span(9) is not None}
        with ExitStack() as stack:
            self._stream = stack.enter_context(storage.write(location))
            self._stream.write(MAGIC)
            self._end = len(MAGIC)
            self._stack = stack.pop_all()
        self.is_made = False

    @property
    def written_bytes(self) -> int:
        return self._end

    def add(
        self, encoded: bytes, footer: Footer, moved: Mapping[int, MovedChunks], nan_counts: Mapping[int, int]
    ) -> None:
        """Write a row group.

        Args:
            encoded: a file of one row group with all columns that are not moved, in the order of the schema.
            footer: of that file.
            moved: the chunks of each column that is moved, by field id, one behind the other.
            nan_counts: of the columns that are encoded, by field id.
        """
        (group,) = Struct(footer.data).structs(4)
        row_count = group.value(3)
        rest = iter(group.structs(1))
        filters: list[bytes] = []
        chunks: list[_Chunk] = []
        # Bloom filters come right behind the data, which is as long as all chunks.
        filters_start = self._end + _sizes(footer, moved)
        for leaf in self._shape.footer.stored.leaves:
            if leaf.field_id is not None and leaf.field_id in moved:
                column = self._shape.columns[leaf.field_id]
                chunks.append(self._moved(column, moved[leaf.field_id], row_count))
            else:
                chunk = next(rest)
                start = filters_start + sum(map(len, filters))
                chunks.append(self._encoded(encoded, footer, chunk, start, filters))
        if next(rest, None) is not None or self._end != filters_start:
            raise IcekeepBug(f"a row group of file {self._location!r} has not the columns of its schema")
        for bloom_filter in filters:
            self._write(bloom_filter)
        self._row_groups.append(_RowGroup(row_count, tuple(chunks)))
        for id_, count in nan_counts.items():
            self._nan_counts[id_] = self._nan_counts.get(id_, 0) + count

    def finish(self) -> tuple[int, FileMetrics]:
        """Write indexes and the footer, and take the metrics from it."""
        footer = self._shape.footer
        places = self._write_indexes()
        row_groups = [_row_group_bytes(group, places[number], number) for number, group in enumerate(self._row_groups)]
        data = footer_bytes(footer, sum(group.row_count for group in self._row_groups), row_groups)
        tail = data + len(data).to_bytes(4, "little") + MAGIC
        self._write(tail)
        self._stack.close()
        self.is_made = True
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + tail))
        return self._end, file_metrics(metadata, self._shape.schema, self._shape.modes, self._nan_counts)

    def abandon(self, error: BaseException) -> None:
        """Give the file up; nothing that goes wrong with it now matters beside `error`."""
        with suppress(IcekeepError, OSError, ValueError):
            self._stack.__exit__(type(error), error, error.__traceback__)

    def _write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._end += len(data)

    def _encoded(
        self, encoded: bytes, footer: Footer, chunk: Struct, filter_start: int, filters: list[bytes]
    ) -> _Chunk:
        """Move a chunk of the file that was encoded; its bloom filter is handed to whoever writes it."""
        column = chunk.struct(3)
        assert column is not None
        data_start, dictionary_start = column.required_integer(9).value, column.value(11)
        start = dictionary_start if 0 < dictionary_start < data_start else data_start
        length = column.required_integer(7).value
        shift = self._end - start
        places = [place for place in (column.integer(9), column.integer(11)) if place is not None and place.value]
        changes = [(place, place.value + shift) for place in places]
        bloom_filter = column.integer(14)
        if bloom_filter is not None and bloom_filter.value:
            size_bytes = column.required_integer(15).value
            filters.append(encoded[bloom_filter.value : bloom_filter.value + size_bytes])
            changes.append((bloom_filter, filter_start))
        index, offsets = (_range(encoded, chunk.value(n), chunk.value(n + 1)) for n in (6, 4))
        result = _Chunk(
            start=self._end,
            compressed_bytes=length,
            uncompressed_bytes=column.required_integer(6).value,
            metadata=with_integers(footer.data, column.start, column.end, changes),
            column_index=index,
            offset_index=None if offsets is None else moved_offset_index(offsets, shift),
        )
        self._write(memoryview(encoded)[start : start + length])
        return result

    def _moved(self, column: SpliceColumn, chunks: MovedChunks, row_count: int) -> _Chunk:
        """Write the pages of a column one behind the other."""
        start = self._end
        places: list[bytes] = []
        first_row = 0
        for data, chunk in chunks:
            shift = self._end - chunk.pages.pages[0].start
            for page in chunk.pages.pages:
                places.append(_page_place(page, shift, first_row))
                first_row += page.row_count
            self._write(memoryview(data)[chunk.pages.pages[0].start : chunk.pages.pages[-1].end])
        if first_row != row_count:
            raise IcekeepBug(f"a row group of file {self._location!r} has {row_count} rows, a column has {first_row}")
        bounds = [chunk.bounds for _, chunk in chunks if chunk.bounds is not None]
        known = len(bounds) == len(chunks)
        uncompressed_bytes = sum(chunk.pages.uncompressed_bytes for _, chunk in chunks)
        return _Chunk(
            start=start,
            compressed_bytes=self._end - start,
            uncompressed_bytes=uncompressed_bytes,
            metadata=self._column_metadata(
                column,
                chunks,
                row_count,
                uncompressed_bytes,
                start,
                statistics_bytes(bounds, column.order) if known else None,
            ),
            column_index=column_index_bytes(bounds, column.order) if known else None,
            offset_index=struct_bytes([(1, LIST, struct_list_bytes(places))]),
        )

    def _column_metadata(
        self,
        column: SpliceColumn,
        chunks: MovedChunks,
        row_count: int,
        uncompressed_bytes: int,
        start: int,
        statistics: bytes | None,
    ) -> bytes:
        node = self._nodes[column.field_id]
        name, physical = node.raw(4), node.raw(1)
        assert name is not None
        assert physical is not None
        encodings = sorted({_RLE}.union(*(chunk.pages.encodings for _, chunk in chunks)))
        fields = [
            (1, I32, physical),
            (2, LIST, list_bytes(I32, [integer_bytes(encoding) for encoding in encodings])),
            (3, LIST, list_bytes(BINARY, [name])),
            (4, I32, integer_bytes(self._shape.codec)),
            (5, I64, integer_bytes(row_count)),
            (6, I64, integer_bytes(uncompressed_bytes)),
            (7, I64, integer_bytes(self._end - start)),
            (9, I64, integer_bytes(start)),
        ]
        if statistics is not None:
            fields.append((12, STRUCT, statistics))
        return struct_bytes(fields)

    def _write_indexes(self) -> list[list[dict[int, int]]]:
        """Write the indexes of all chunks; returns the fields that say where those of each lie."""
        places: list[list[dict[int, int]]] = [[{} for _ in group.chunks] for group in self._row_groups]
        for field_id in (6, 4):
            for group, found in zip(self._row_groups, places, strict=True):
                for chunk, fields in zip(group.chunks, found, strict=True):
                    index = chunk.column_index if field_id == 6 else chunk.offset_index
                    if index is not None:
                        fields |= {field_id: self._end, field_id + 1: len(index)}
                        self._write(index)
        return places


def _sizes(footer: Footer, moved: Mapping[int, MovedChunks]) -> int:
    """The bytes of all chunks of a row group."""
    spliced = sum(chunk.pages.compressed_bytes for chunks in moved.values() for _, chunk in chunks)
    return footer.row_groups[0].compressed_bytes + spliced


def _page_place(page: Page, shift: int, first_row: int) -> bytes:
    return struct_bytes(
        [
            (1, I64, integer_bytes(page.start + shift)),
            (2, I32, integer_bytes(page.end - page.start)),
            (3, I64, integer_bytes(first_row)),
        ]
    )


def _range(data: bytes, start: int, length: int) -> bytes | None:
    return data[start : start + length] if start else None


def _row_group_bytes(group: _RowGroup, places: list[dict[int, int]], ordinal: int) -> bytes:
    columns = [_chunk_bytes(chunk, fields) for chunk, fields in zip(group.chunks, places, strict=True)]
    return struct_bytes(
        [
            (1, LIST, struct_list_bytes(columns)),
            (2, I64, integer_bytes(sum(chunk.uncompressed_bytes for chunk in group.chunks))),
            (3, I64, integer_bytes(group.row_count)),
            (5, I64, integer_bytes(group.chunks[0].start)),
            (6, I64, integer_bytes(sum(chunk.compressed_bytes for chunk in group.chunks))),
            (7, I16, integer_bytes(ordinal)),
        ]
    )


def _chunk_bytes(chunk: _Chunk, places: Mapping[int, int]) -> bytes:
    """A column chunk as a footer describes it; the place of its description elsewhere is none, as writers say it today."""
    fields = [(2, I64, integer_bytes(0)), (3, STRUCT, chunk.metadata)]
    fields += [(id_, I32 if id_ in (5, 7) else I64, integer_bytes(place)) for id_, place in sorted(places.items())]
    return struct_bytes(fields)
