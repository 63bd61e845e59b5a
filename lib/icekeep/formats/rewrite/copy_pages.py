"""Small Parquet files merged without decoding all columns: data pages that need no dictionary are moved.

New row groups are made of whole files. A column that all files of a row group store as the table's writer would is moved page by
page (`parquet.pages`); the others are decoded and encoded as in any rewrite, at least one of them, which counts the rows. The
encoded columns are a file of one row group, in memory; the new file has the schema and the conventions of the writer. It is done
for rows that do not change, and where it pays.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.formats.arrow.schema import arrow_schema, stored_schema
from icekeep.formats.base import FileMetrics, NewFile
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.options import ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import CODECS, MAGIC, Footer, page_range, read_footer
from icekeep.formats.parquet.metrics import file_metrics
from icekeep.formats.parquet.pages import (
    COLUMN_INDEX,
    OFFSET_INDEX,
    DataPage,
    MovableChunk,
    MovableColumn,
    PageExaminer,
    PageSource,
    column_index_bytes,
    footer_bytes,
    moved_offset_index,
    statistics_bytes,
)
from icekeep.formats.parquet.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    Damaged,
    Struct,
    list_bytes,
    struct_bytes,
    structs_at,
    with_integers,
)
from icekeep.formats.parquet.writer import ParquetWriter
from icekeep.formats.rewrite.proof import PageProof
from icekeep.formats.rewrite.task import (
    FilePiece,
    RewriteOutcome,
    RewriteTask,
    TaskRows,
    columns_to_write,
    removed_on_failure,
    reported_moves,
    task_options,
)
from icekeep.formats.row_hash import RowSequence
from icekeep.formats.writer import ROW_GROUP_ROWS, DataFileWriter, RollingWriter, next_row_group_bytes
from icekeep.spec.avro import encode_long
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import MetricsMode, metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import MAX_LONG, MIB
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import Overlay

MAX_SOURCE_BYTES = 32 * MIB
"""Larger files are not small: their row groups are stitched, or they are read in pieces."""

MIN_PAGE_BYTES = 4 * 1024
"""Pages that are smaller on average of a row group are better merged: each costs readers time, and compresses worse."""

MIN_SHARE = 0.2
"""Moving pages pays from this share of the bytes."""

_ENCODED = "memory:/encoded.parquet"

_RLE = 3
"""Parquet's number of the encoding of levels."""


def rewrite_by_pages(task: RewriteTask, storage: Storage) -> RewriteOutcome | None:
    """`rewrite` by moving pages; null, with nothing written, if that is not possible or does not pay. Raises as `rewrite`."""
    keeps_rows = task.ordering is None and task.key_range is None and task.files_count in (None, 1)
    are_small = all(
        piece.file_format.upper() == "PARQUET"
        and not piece.deletes
        and piece.split is None
        and piece.size_bytes <= MAX_SOURCE_BYTES
        and piece.record_count <= ROW_GROUP_ROWS
        for piece in task.pieces
    )
    if not task.moves_pages or not task.pieces or not keeps_rows or not are_small:
        return None
    options = task_options(task)
    largest = max(task.pieces, key=lambda piece: piece.size_bytes)
    if not isinstance(options.encoding, ParquetOptions) or not _may_pay(largest, options.encoding, storage):
        return None
    with _PageCopier(task, options, options.encoding, storage) as copier:
        # The largest file stands for all: where it misleads, only time is lost.
        if not copier.moved_columns([(largest, copier.source(largest))]):
            return None
        for group in copier.groups():
            copier.write(group)
        files = copier.close()
    with removed_on_failure([file.file_path for file in files], storage):
        row_count = sum(file.record_count for file in files)
        if row_count != sum(piece.record_count for piece in task.pieces):
            raise IcekeepBug(f"a rewrite of {len(task.pieces)} files wrote {row_count} rows; its files are deleted")
        proved = None if copier.proof is None else copier.proof.check(files, storage)
        moves = reported_moves(task, storage)
    return RewriteOutcome(
        files=files,
        read_count=row_count,
        live_count=row_count,
        peak_bytes=peak_memory_bytes(),
        moves=moves,
        hash_in=proved,
        hash_out=proved,
    )


def _may_pay(piece: FilePiece, encoding: ParquetOptions, storage: Storage) -> bool:
    """Whether enough bytes of a file may be moved, judged by its footer alone, before pages are read."""
    codec = CODECS[encoding.compression]
    moved_bytes = 0
    try:
        footer = read_footer(storage, piece.location, piece.size_bytes)
        for chunks in zip(*(group.chunks for group in footer.full_groups), strict=True):
            size_bytes = sum(chunk.compressed_bytes for chunk in chunks)
            pages_count = sum(max(1, sum(count for _, count in chunk.data_pages())) for chunk in chunks)
            is_plain = all(chunk.codec == codec and not chunk.has_dictionary for chunk in chunks)
            if is_plain and size_bytes >= MIN_PAGE_BYTES * pages_count:
                moved_bytes += size_bytes
    except (Damaged, InvalidTableError, UnsupportedError):
        # Left to the reader of the whole file.
        return True
    return moved_bytes >= MIN_SHARE * piece.size_bytes


_Source = tuple[FilePiece, PageSource]


class _PageCopier(RollingWriter):
    """Writes row groups of whole files into new files; `proof` is null if the task verifies nothing."""

    def __init__(self, task: RewriteTask, options: WriteOptions, encoding: ParquetOptions, storage: Storage) -> None:
        columns, partition = columns_to_write(task), task.pieces[0].partition
        template = DataFile(
            file_path="",
            file_format="PARQUET",
            spec_id=task.spec_id,
            partition=partition,
            sort_order_id=task.sort_order_id,
            record_count=0,
            file_size_in_bytes=0,
        )
        super().__init__(storage, template)
        self._task = msgspec.structs.replace(task, keeps_lineage=columns is not task.schema)
        self._held = Overlay(storage)
        self._options, self._encoding = options, encoding
        self._new_location = partial(task.file_names().location, options.file_suffix, task.partition_path(partition))
        stored = stored_schema(columns)
        modes = metrics_modes({}, columns) if options.metrics_modes is None else options.metrics_modes
        # A file without rows has what new files have in common.
        empty = pa.Table.from_batches([], schema=arrow_schema(stored))
        size_bytes, _ = ParquetWriter(self._held, _ENCODED, stored, encoding, modes, empty, ()).finish()
        footer = read_footer(self._held, _ENCODED, size_bytes)
        self._examiner = PageExaminer(stored, encoding, pq.ParquetFile(pa.BufferReader(self._held.files.pop(_ENCODED))))
        self._shape = Shape(footer, self._examiner.columns, CODECS[encoding.compression], stored, modes)
        self._file: PagesFile | None = None
        self._ratio = 1.0
        self.proof = PageProof(task) if task.verifies else None

    def source(self, piece: FilePiece, field_ids: Collection[int] | None = None) -> PageSource:
        """Read a file and keep its bytes, unless it has another length than its entry."""
        with self._held.open(piece.location) as stream:
            data = stream.read(piece.size_bytes + 1)
        if len(data) != piece.size_bytes:
            return PageSource(b"", piece.size_bytes)
        self._held.files[piece.location] = data
        return self._examiner.examine(data, piece.record_count, field_ids)

    def groups(self) -> Iterator[list[_Source]]:
        """The files of each new row group, whose bytes are kept until it is written."""
        group: list[_Source] = []
        size_bytes = arrow_bytes = row_count = 0
        for piece in self._task.pieces:
            # Columns that one file of the row group cannot give are not looked for in the others.
            source = self.source(piece, group[-1][1].chunks if group else None)
            size_bytes += piece.size_bytes
            arrow_bytes += source.arrow_bytes
            row_count += piece.record_count
            # The half of a file that is nearer to the limit decides.
            if group and not self._fits(row_count, size_bytes - piece.size_bytes // 2, arrow_bytes):
                yield group
                source = self.source(piece)
                group, row_count, size_bytes, arrow_bytes = [], piece.record_count, piece.size_bytes, source.arrow_bytes
            group.append((piece, source))
        yield group

    def _fits(self, row_count: int, size_bytes: int, arrow_bytes: int) -> bool:
        """Whether this fits into one row group, by the limits of `DataFileWriter`."""
        full_bytes = min(self._options.row_group_arrow_bytes * self._ratio, self._encoding.row_group_size_bytes)
        written_bytes = self._file.written_bytes if self._file is not None else 0
        remaining_bytes = max(1, self._options.target_file_size_bytes - written_bytes)
        return (
            row_count <= ROW_GROUP_ROWS
            and arrow_bytes <= self._options.row_group_arrow_bytes
            and size_bytes <= next_row_group_bytes(remaining_bytes, full_bytes)
        )

    def moved_columns(self, group: Sequence[_Source]) -> set[int]:
        """Field ids of the columns to move; none if that does not pay."""
        sizes: dict[int, int] = {}
        for id_ in set.intersection(*(set(source.chunks) for _, source in group)):
            chunks = [chunk for _, source in group for chunk in source.chunks[id_]]
            size_bytes = sum(chunk.compressed_bytes for chunk in chunks)
            is_large = size_bytes >= MIN_PAGE_BYTES * sum(len(chunk.pages) for chunk in chunks)
            # A chunk has pages of one version.
            if is_large and len({chunk.kind for chunk in chunks}) <= 1:
                sizes[id_] = size_bytes
        if len(sizes) == len(self._shape.schema.fields):
            # At least one column is encoded: it makes the row group and counts the rows.
            del sizes[min(sizes, key=lambda id_: sizes[id_])]
        pays = sum(sizes.values()) >= MIN_SHARE * sum(piece.size_bytes for piece, _ in group)
        return set(sizes) if pays else set()

    def write(self, group: Sequence[_Source]) -> None:
        """Write the rows of some files as one row group, or several if they take more memory than expected."""
        moved = self.moved_columns(group)
        fields = tuple(field for field in self._task.schema.fields if field.field_id not in moved)
        schema = msgspec.structs.replace(self._task.schema, fields=fields, identifier_field_ids=())
        pieces = tuple(piece for piece, _ in group)
        task = msgspec.structs.replace(self._task, pieces=pieces, schema=schema, moves_directory=None, verifies=False)
        rows = TaskRows(task, self._held)
        read: list[PageSource] = []
        tables: list[pa.Table] = []
        hashed = RowSequence(rows.columns)
        arrow_bytes = 0
        for piece, source in group:
            for table in rows.read([piece]):
                if self.proof is not None:
                    # While they are in the processor's cache.
                    hashed.add(table)
                tables.append(table)
                arrow_bytes += table.nbytes
            read.append(source)
            if arrow_bytes >= self._options.row_group_arrow_bytes:
                self._write_row_group(read, tables, hashed, moved)
                read, tables, hashed, arrow_bytes = [], [], RowSequence(rows.columns), 0
        self._write_row_group(read, tables, hashed, moved)
        for piece in pieces:
            self._held.files.pop(piece.location, None)
        expected_bytes = sum(source.arrow_bytes for _, source in group)
        self._ratio = sum(piece.size_bytes for piece in pieces) / max(1, expected_bytes)

    def _write_row_group(
        self, sources: list[PageSource], tables: list[pa.Table], hashed: RowSequence, moved: set[int]
    ) -> None:
        """Write the rows of files: the columns of `hashed` from `tables`, the others by moving pages."""
        if not any(table.num_rows for table in tables):
            return
        # The columns that are not moved, as a file of one row group.
        encoding = msgspec.structs.replace(self._encoding, row_group_size_bytes=MAX_LONG)
        options = msgspec.structs.replace(
            self._options, encoding=encoding, target_file_size_bytes=MAX_LONG, row_group_arrow_bytes=MAX_LONG
        )
        with DataFileWriter(self._held, hashed.columns, options, lambda: _ENCODED) as writer:
            for table in tables:
                writer.write(table)
            (encoded,) = writer.close()
        footer = read_footer(self._held, _ENCODED, encoded.file_size_in_bytes)
        is_first = self._file is None
        if self._file is None:
            self._location = self._new_location()
            self._file = PagesFile(self._storage, self._location, self._shape)
        if self.proof is not None:
            self.proof.take(sources, moved, hashed, begins_file=is_first)
        before_bytes = self._file.written_bytes
        chunks: dict[int, MovedChunks] = {
            id_: [(source.data, chunk) for source in sources for chunk in source.chunks[id_]] for id_ in moved
        }
        self._file.add(self._held.files.pop(_ENCODED), footer, chunks, encoded.nan_value_counts or {})
        added_bytes = self._file.written_bytes - before_bytes
        if self._file.written_bytes + added_bytes / 4 >= self._options.target_file_size_bytes:
            self.end_file()


MovedChunks = Sequence[tuple[bytes, MovableChunk]]
"""Chunks of one column, in order, each with the bytes of its file."""


class Shape(msgspec.Struct, frozen=True):
    """What all files of a rewrite have in common.

    Attributes:
        footer: of a file with all columns and no rows, as the table's writer makes it.
        columns: those that may be moved, by field id.
        codec: Parquet's number.
        schema: of the table.
        modes: by field id.
    """

    footer: Footer
    columns: Mapping[int, MovableColumn]
    codec: int
    schema: Schema
    modes: Mapping[int, MetricsMode]


class _WrittenChunk(msgspec.Struct):
    """A column chunk of a new file.

    Attributes:
        metadata: its encoded `ColumnMetaData`.
        indexes: its column index and its offset index, by the fields of `ColumnChunk` for their offsets.
        places: the values of the fields for offsets and lengths, once the indexes are written.
    """

    start: int
    compressed_bytes: int
    uncompressed_bytes: int
    metadata: bytes
    indexes: dict[int, bytes | None]
    places: dict[int, int] = {}


class PagesFile(NewFile):
    """Writes a new file, one row group at a time; indexes and the footer come last."""

    def __init__(self, storage: Storage, location: str, shape: Shape) -> None:
        self._shape, self._end = shape, len(MAGIC)
        self._row_groups: list[tuple[int, list[_WrittenChunk]]] = []
        self._nan_counts: dict[int, int] = {}
        self._nodes = {node.value(9): node for node in structs_at(shape.footer.common_fields[1], 0) if 9 in node.spans}
        super().__init__(storage, location, head=MAGIC)

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
            moved: the chunks of the other columns, by field id, in the order of their rows.
            nan_counts: of the columns that are encoded, by field id.
        """
        (group,) = Struct(footer.data).structs(4)
        row_count = group.value(3)
        rest = iter(group.structs(1))
        filters: list[bytes] = []
        chunks: list[_WrittenChunk] = []
        # Bloom filters follow the chunks.
        moved_bytes = sum(chunk.compressed_bytes for of_column in moved.values() for _, chunk in of_column)
        filters_start = self._end + footer.row_groups[0].compressed_bytes + moved_bytes
        for leaf in self._shape.footer.stored.leaves:
            if leaf.field_id is not None and leaf.field_id in moved:
                chunks.append(self._write_moved(leaf.field_id, moved[leaf.field_id], row_count))
            else:
                start = filters_start + sum(map(len, filters))
                chunks.append(self._write_encoded(encoded, footer, next(rest), start, filters))
        if next(rest, None) is not None or self._end != filters_start:
            raise IcekeepBug(f"a row group of file {self._location!r} has not the columns of its schema")
        for bloom_filter in filters:
            self._write(bloom_filter)
        self._row_groups.append((row_count, chunks))
        for id_, count in nan_counts.items():
            self._nan_counts[id_] = self._nan_counts.get(id_, 0) + count

    def finish(self) -> tuple[int, FileMetrics]:
        """Write indexes and the footer; returns the size of the file in bytes and its metrics."""
        for number in (COLUMN_INDEX, OFFSET_INDEX):
            for chunk in (chunk for _, chunks in self._row_groups for chunk in chunks):
                if (index := chunk.indexes[number]) is not None:
                    chunk.places |= {number: self._end, number + 1: len(index)}
                    self._write(index)
        row_groups = [
            struct_bytes(
                [
                    (1, LIST, list_bytes(STRUCT, [*map(_chunk_bytes, chunks)])),
                    (2, I64, sum(chunk.uncompressed_bytes for chunk in chunks)),
                    (3, I64, row_count),
                    (5, I64, chunks[0].start),
                    (6, I64, sum(chunk.compressed_bytes for chunk in chunks)),
                    (7, I16, ordinal),
                ]
            )
            for ordinal, (row_count, chunks) in enumerate(self._row_groups)
        ]
        data = footer_bytes(self._shape.footer, sum(row_count for row_count, _ in self._row_groups), row_groups)
        tail = data + len(data).to_bytes(4, "little") + MAGIC
        self._write(tail)
        self.end()
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + tail))
        metrics = file_metrics(metadata, self._shape.schema, self._shape.modes, self._nan_counts)
        return self._end, metrics

    def _write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._end += len(data)

    def _write_encoded(
        self, encoded: bytes, footer: Footer, chunk: Struct, filter_start: int, filters: list[bytes]
    ) -> _WrittenChunk:
        """Copy a chunk of the encoded file; its bloom filter is appended to `filters`, which `add` writes."""
        column = chunk.required_struct(3)
        start, length = page_range(column)
        new_start, shift = self._end, self._end - start
        places = [place for place in (column.integer(9), column.integer(11)) if place is not None and place.value]
        changes = [(place, place.value + shift) for place in places]
        bloom_filter = column.integer(14)
        if bloom_filter is not None and bloom_filter.value:
            end = bloom_filter.value + column.required_integer(15).value
            filters.append(encoded[bloom_filter.value : end])
            changes.append((bloom_filter, filter_start))
        indexes = {
            number: encoded[place : place + chunk.value(number + 1)] if (place := chunk.value(number)) else None
            for number in (COLUMN_INDEX, OFFSET_INDEX)
        }
        if (offsets := indexes[OFFSET_INDEX]) is not None:
            indexes[OFFSET_INDEX] = moved_offset_index(offsets, shift)
        self._write(memoryview(encoded)[start : start + length])
        return _WrittenChunk(
            start=new_start,
            compressed_bytes=length,
            uncompressed_bytes=column.required_integer(6).value,
            metadata=with_integers(footer.data, column.start, column.end, changes),
            indexes=indexes,
        )

    def _write_moved(self, field_id: int, chunks: MovedChunks, row_count: int) -> _WrittenChunk:
        start, order = self._end, self._shape.columns[field_id].order
        places: list[bytes] = []
        first_row = 0
        for data, chunk in chunks:
            pages = chunk.pages
            shift = self._end - pages[0].start
            for page in pages:
                places.append(_page_place(page, shift, first_row))
                first_row += page.row_count
            self._write(memoryview(data)[pages[0].start : pages[-1].end])
        if first_row != row_count:
            raise IcekeepBug(f"a row group of file {self._location!r} has {row_count} rows, a column has {first_row}")
        compressed_bytes = self._end - start
        uncompressed_bytes = sum(chunk.uncompressed_bytes for _, chunk in chunks)
        bounds = [chunk.bounds for _, chunk in chunks if chunk.bounds is not None]
        has_bounds = len(bounds) == len(chunks)
        encodings = sorted({_RLE}.union(*(chunk.encodings for _, chunk in chunks)))
        node = self._nodes[field_id]
        metadata = struct_bytes(
            [
                (1, I32, node.value(1)),
                (2, LIST, list_bytes(I32, [*map(encode_long, encodings)])),
                (3, LIST, list_bytes(BINARY, [node.raw(4) or b"\0"])),
                (4, I32, self._shape.codec),
                (5, I64, row_count),
                (6, I64, uncompressed_bytes),
                (7, I64, compressed_bytes),
                (9, I64, start),
                (12, STRUCT, statistics_bytes(bounds, order) if has_bounds else None),
            ]
        )
        indexes = {
            COLUMN_INDEX: column_index_bytes(bounds, order) if has_bounds else None,
            OFFSET_INDEX: struct_bytes([(1, LIST, list_bytes(STRUCT, places))]),
        }
        return _WrittenChunk(start, compressed_bytes, uncompressed_bytes, metadata, indexes)


def _page_place(page: DataPage, shift: int, first_row: int) -> bytes:
    """An encoded `PageLocation`."""
    return struct_bytes([(1, I64, page.start + shift), (2, I32, page.end - page.start), (3, I64, first_row)])


def _chunk_bytes(chunk: _WrittenChunk) -> bytes:
    """An encoded `ColumnChunk`; `file_offset` is deprecated and 0."""
    places = [(id_, I64 if id_ in (OFFSET_INDEX, COLUMN_INDEX) else I32, chunk.places.get(id_)) for id_ in range(4, 8)]
    return struct_bytes([(2, I64, 0), (3, STRUCT, chunk.metadata), *places])
