"""Small Parquet files put together without decoding all of their columns: data pages that need no dictionary are moved.

New row groups are made of whole files. In each, a column that all its files store as the table's writer would is moved page by
page; the others are decoded and encoded as in any rewrite, and so is at least one, by which rows are counted. The encoded columns
come as a file of one row group, in memory; the new file's schema and the way in which it says things are those of the writer. It
is done where rows stay as they are, and where it pays.

A column is moved where a reader cannot tell its pages from those that the writer would make, but for how many rows they have: it
is stored in the same way, by the same codec, without a dictionary, and what manifests and footers say of it is known without
looking at its values.

The proof notes what a row group shall hold before it is written, and holds that against the new file as it is read again. Of
columns that were moved these are their bytes, of which footers say where they are, not the code that walked through the pages;
and what readers go by beside these, since rows are not found by a wrong bound or index: bounds must be what the sources said
together, and each offset index must lead through the pages of its chunk.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, UnsupportedError
from icekeep.formats.arrow.schema import arrow_schema, field_id, stored_schema
from icekeep.formats.base import FileMetrics, translated
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.options import ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import (
    CODECS,
    LINEAGE_IDS,
    MAGIC,
    TAIL_BYTES,
    CannotMove,
    Footer,
    bytes_at,
    footer_errors,
    footer_length,
    page_range,
    read_footer,
)
from icekeep.formats.parquet.metrics import file_metrics
from icekeep.formats.parquet.pages import (
    CannotSplice,
    ChunkPages,
    Order,
    Page,
    PageBounds,
    chunk_pages,
    footer_bytes,
    moved_offset_index,
    order_of,
    pages_of_index,
)
from icekeep.formats.parquet.thrift import (
    BINARY,
    BYTE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Damaged,
    Struct,
    binary_bytes,
    integer_at,
    integer_bytes,
    list_bytes,
    struct_bytes,
    structs_at,
    walk_struct,
    walk_structs,
    with_integers,
)
from icekeep.formats.parquet.writer import ParquetWriter
from icekeep.formats.reader import open_reader
from icekeep.formats.rewrite.moves import reported_moves, whole_pieces
from icekeep.formats.rewrite.rows import FileNames, TaskRows, columns_to_write, removed_on_failure, task_options
from icekeep.formats.rewrite.task import FilePiece, RewriteOutcome, RewriteTask
from icekeep.formats.rewrite.verify import add_rows, not_as_written, of_new_file, rows_at_once
from icekeep.formats.row_hash import RowSequence, RowSum
from icekeep.formats.writer import ROW_GROUP_ROWS, DataFileWriter, next_row_group_bytes
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import MetricsMode, metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import BOOLEAN, DOUBLE, FLOAT, MAX_LONG, MIB, PrimitiveType
from icekeep.storage.base import Storage
from icekeep.storage.overlay import HeldFiles

MAX_SPLICED_BYTES = 32 * MIB
"""A larger file is no small file: its row groups are stitched, or it is cut into pieces."""

MIN_PAGE_BYTES = 4 * 1024
"""Smaller pages, on average of a row group, are better merged: a page costs its readers time, and compresses worse."""

MIN_SHARE = 0.2
"""The share of the bytes that must be moved, or splicing does not pay."""

_ENCODED = "memory:/encoded.parquet"

_NOT_COUNTED = (BOOLEAN, FLOAT, DOUBLE)
_OLD_WRITERS = re.compile(rb"parquet-mr version 1\.[0-7]\.")
"""Their pages of DELTA_BYTE_ARRAY need the one before them (PARQUET-246)."""

_RLE = 3
"""Parquet's number of the encoding of levels."""

_NULL_COUNT, _MAX_VALUE, _MIN_VALUE, _EXACT = 3, 5, 6, (7, 8)
"""Fields of statistics; the flags say whether both bounds are values."""

_OFFSET_INDEX, _COLUMN_INDEX = 4, 6
"""Fields of a column chunk that say where an index of it lies; the next one says how long it is."""

_CHUNK_FIELDS = {2, 3, 4, 5, 6, 7}
_UNORDERED, _ASCENDING, _DESCENDING = 0, 1, 2


class ChunkBounds(msgspec.Struct, frozen=True):
    """What is known of a chunk, and of each of its pages where that is known."""

    value_count: int
    null_count: int
    least: bytes | None
    greatest: bytes | None
    pages: tuple[PageBounds, ...] | None


class SpliceColumn(msgspec.Struct, frozen=True):
    """A column of the new files that may be spliced.

    Attributes:
        stored: how it is stored, as `stored_as` says it.
        has_statistics: whether the table wants statistics of it.
    """

    field_id: int
    physical_type: str
    is_optional: bool
    order: Order
    stored: tuple[object, ...]
    has_statistics: bool


class SpliceChunk(msgspec.Struct, frozen=True):
    """The pages of a column in one row group of a file; `bounds` are `None` where the table wants none."""

    pages: ChunkPages
    bounds: ChunkBounds | None


class SpliceSource(msgspec.Struct, frozen=True):
    """A file as bytes, and the chunks of its columns that may be spliced, by field id.

    Attributes:
        arrow_bytes: about how much memory its rows take.
    """

    piece: FilePiece
    data: bytes
    arrow_bytes: int
    chunks: Mapping[int, tuple[SpliceChunk, ...]]

    def chunk_bytes(self, field_id: int) -> int:
        """The compressed size of a column that may be spliced."""
        return sum(chunk.pages.compressed_bytes for chunk in self.chunks[field_id])


def rewrite_spliced(task: RewriteTask, storage: Storage) -> RewriteOutcome | None:
    """Do what `rewrite` does by splicing; `None` where that cannot be done or does not pay, and then nothing was written.

    Raises what `rewrite` raises; if anything fails, no new file is left.
    """
    if not _may_splice(task):
        return None
    options = task_options(task)
    largest = max(task.pieces, key=lambda piece: piece.size_bytes)
    if not isinstance(options.encoding, ParquetOptions) or not _may_pay(largest, options.encoding, storage):
        return None
    with _Splicer(task, options, options.encoding, storage) as splicer:
        # The largest file speaks for all: where it is wrong, only time is lost.
        if not splicer.moved_columns([splicer.source(largest)]):
            return None
        for group in splicer.groups():
            splicer.write(group)
        files = splicer.close()
    with removed_on_failure([file.file_path for file in files], storage):
        row_count = sum(file.record_count for file in files)
        if row_count != sum(piece.record_count for piece in task.pieces):
            raise IcekeepBug(f"a rewrite of {len(task.pieces)} files wrote {row_count} rows; its files are deleted")
        proved = None if splicer.proof is None else splicer.proof.check(files, storage)
        moves = reported_moves(task, storage, whole_pieces(task), None)
    return RewriteOutcome(
        files=files,
        read_count=row_count,
        live_count=row_count,
        peak_bytes=peak_memory_bytes(),
        moves=moves,
        hash_in=proved,
        hash_out=proved,
    )


def _may_splice(task: RewriteTask) -> bool:
    """Whether all rows stay as they are, and come from small Parquet files."""
    return (
        task.moves_pages
        and task.ordering is None
        and task.key_range is None
        and task.files_count in (None, 1)
        and bool(task.pieces)
        and all(
            piece.file_format.upper() == "PARQUET"
            and not piece.deletes
            and piece.split is None
            and piece.size_bytes <= MAX_SPLICED_BYTES
            and piece.record_count <= ROW_GROUP_ROWS
            for piece in task.pieces
        )
    )


def _may_pay(piece: FilePiece, encoding: ParquetOptions, storage: Storage) -> bool:
    """Whether enough bytes of a file may be moved, as far as its footer alone tells: before pages are looked at and before the
    writer is asked how it would store the columns.
    """
    try:
        footer = read_footer(storage, piece.location, piece.size_bytes)
    except (InvalidTableError, UnsupportedError):
        # Left to who reads the whole file.
        return True
    moved_bytes = 0
    for chunks in zip(*(group.chunks for group in footer.full_groups), strict=True):
        size_bytes = sum(chunk.compressed_bytes for chunk in chunks)
        pages_count = sum(max(1, sum(count for _, count in chunk.data_pages())) for chunk in chunks)
        is_plain = all(chunk.codec == CODECS[encoding.compression] and not chunk.has_dictionary for chunk in chunks)
        if is_plain and size_bytes >= MIN_PAGE_BYTES * pages_count:
            moved_bytes += size_bytes
    return moved_bytes >= MIN_SHARE * piece.size_bytes


class _Splicer:
    """Writes row groups of whole files into new files, of which none is left unless `close` was reached.

    Attributes:
        proof: notes what is written; `None` where the task verifies nothing.
    """

    def __init__(self, task: RewriteTask, options: WriteOptions, encoding: ParquetOptions, storage: Storage) -> None:
        columns = columns_to_write(task)
        self._task = msgspec.structs.replace(task, keeps_lineage=columns is not task.schema)
        self._storage, self._held = storage, HeldFiles(storage)
        self._options, self._encoding = options, encoding
        self._partition = task.pieces[0].partition
        self._new_location = FileNames(task, options).in_partition(self._partition)
        stored = stored_schema(columns)
        modes = metrics_modes({}, columns) if options.metrics_modes is None else options.metrics_modes
        # A file without rows shows what new files have in common.
        empty = pa.Table.from_batches([], schema=arrow_schema(stored))
        size_bytes, _ = ParquetWriter(self._held, _ENCODED, stored, encoding, modes, empty, ()).finish()
        footer = read_footer(self._held, _ENCODED, size_bytes)
        self._examiner = SpliceExaminer(
            stored, encoding, pq.ParquetFile(pa.BufferReader(self._held.files.pop(_ENCODED)))
        )
        self._shape = Shape(footer, self._examiner.columns, CODECS[encoding.compression], stored, modes)
        self._file: SplicedFile | None = None
        self._location = ""
        self._files: list[DataFile] = []
        self._closed = False
        self._ratio = 1.0
        self.proof = SpliceProof(task) if task.verifies else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed or (error is None and not self._files and self._file is None):
            return
        locations = [file.file_path for file in self._files]
        if self._file is not None:
            if self._file.is_made:
                locations.append(self._location)
            else:
                self._file.abandon(error or IcekeepBug("a rewrite was not finished"))
            self._file = None
        self._storage.delete_many(locations)

    def close(self) -> tuple[DataFile, ...]:
        """Finish the last file and return all of them, in the order of their rows."""
        self._finish_file()
        self._closed = True
        return tuple(self._files)

    def source(self, piece: FilePiece, wanted: Collection[int] | None = None) -> SpliceSource:
        """A file, held as bytes from now on unless it is longer or shorter than its entry says."""
        with self._held.open(piece.location) as stream:
            data = stream.read(piece.size_bytes + 1)
        if len(data) == piece.size_bytes:
            self._held.files[piece.location] = data
            return self._examiner.examine(piece, data, wanted)
        return SpliceSource(piece, b"", piece.size_bytes, {})

    def groups(self) -> Iterator[list[SpliceSource]]:
        """The files of each new row group. They are held as bytes until the group is written."""
        group: list[SpliceSource] = []
        size_bytes = arrow_bytes = row_count = 0
        for piece in self._task.pieces:
            # A column that one file of the row group cannot give need not be looked for in the others.
            source = self.source(piece, group[-1].chunks if group else None)
            size_bytes += piece.size_bytes
            arrow_bytes += source.arrow_bytes
            row_count += piece.record_count
            # The half of a file that is nearer to the limit decides.
            if group and not self._fits(row_count, size_bytes - piece.size_bytes // 2, arrow_bytes):
                yield group
                source = self.source(piece)
                group, row_count, size_bytes, arrow_bytes = [], piece.record_count, piece.size_bytes, source.arrow_bytes
            group.append(source)
        if group:
            yield group

    def _fits(self, row_count: int, size_bytes: int, arrow_bytes: int) -> bool:
        """Whether as much goes into one row group: the limits are those of `DataFileWriter`."""
        full_bytes = min(self._options.row_group_arrow_bytes * self._ratio, self._encoding.row_group_size_bytes)
        written_bytes = self._file.written_bytes if self._file is not None else 0
        remaining_bytes = max(1, self._options.target_file_size_bytes - written_bytes)
        return (
            row_count <= ROW_GROUP_ROWS
            and arrow_bytes <= self._options.row_group_arrow_bytes
            and size_bytes <= next_row_group_bytes(remaining_bytes, full_bytes)
        )

    def moved_columns(self, group: list[SpliceSource]) -> set[int]:
        """Field ids of the columns that are moved, none where that does not pay."""
        sizes: dict[int, int] = {}
        for id_ in set.intersection(*(set(source.chunks) for source in group)):
            pages = [chunk.pages for source in group for chunk in source.chunks[id_]]
            size_bytes = sum(chunk.compressed_bytes for chunk in pages)
            is_large = size_bytes >= MIN_PAGE_BYTES * sum(len(chunk.pages) for chunk in pages)
            # A chunk has pages of one version.
            if is_large and len({chunk.kind for chunk in pages}) <= 1:
                sizes[id_] = size_bytes
        if len(sizes) == len(self._shape.schema.fields):
            # Rows are counted, and a row group is made, by a column that is encoded.
            del sizes[min(sizes, key=lambda id_: sizes[id_])]
        pays = sum(sizes.values()) >= MIN_SHARE * sum(source.piece.size_bytes for source in group)
        return set(sizes) if pays else set()

    def write(self, group: list[SpliceSource]) -> None:
        """Write the rows of some files as one row group, or as several where they take more memory than was expected."""
        moved = self.moved_columns(group)
        fields = tuple(field for field in self._task.schema.fields if field.field_id not in moved)
        schema = msgspec.structs.replace(self._task.schema, fields=fields, identifier_field_ids=())
        pieces = tuple(source.piece for source in group)
        task = msgspec.structs.replace(self._task, pieces=pieces, schema=schema, moves_directory=None, verifies=False)
        rows = TaskRows(task, self._held)
        read: list[SpliceSource] = []
        tables: list[pa.Table] = []
        hashed = RowSequence(rows.columns)
        arrow_bytes = 0
        for source in group:
            for table in rows.read([source.piece]):
                if self.proof is not None:
                    # While they are still in the processor's cache.
                    hashed.add(table)
                tables.append(table)
                arrow_bytes += table.nbytes
            read.append(source)
            if arrow_bytes >= self._options.row_group_arrow_bytes:
                self._write_row_group(read, tables, hashed, moved)
                read, tables, hashed, arrow_bytes = [], [], RowSequence(rows.columns), 0
        self._write_row_group(read, tables, hashed, moved)
        for source in group:
            self._held.files.pop(source.piece.location, None)
        expected_bytes = sum(source.arrow_bytes for source in group)
        self._ratio = sum(piece.size_bytes for piece in pieces) / max(1, expected_bytes)

    def _write_row_group(
        self, sources: list[SpliceSource], tables: list[pa.Table], hashed: RowSequence, moved: set[int]
    ) -> None:
        """Write the rows of files; `tables` are what was read of them in the columns of `hashed`, the others are moved."""
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
            self._file = SplicedFile(self._storage, self._location, self._shape)
        if self.proof is not None:
            self.proof.take(sources, moved, hashed, begins_file=is_first)
        before_bytes = self._file.written_bytes
        chunks: dict[int, MovedChunks] = {
            id_: [(source.data, chunk) for source in sources for chunk in source.chunks[id_]] for id_ in moved
        }
        self._file.add(self._held.files.pop(_ENCODED), footer, chunks, encoded.nan_value_counts or {})
        added_bytes = self._file.written_bytes - before_bytes
        if self._file.written_bytes + added_bytes / 4 >= self._options.target_file_size_bytes:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        size_bytes, metrics = self._file.finish()
        self._files.append(
            DataFile(
                file_path=self._location,
                file_format="PARQUET",
                spec_id=self._task.spec_id,
                partition=self._partition,
                sort_order_id=self._task.sort_order_id,
                file_size_in_bytes=size_bytes,
                **msgspec.structs.asdict(metrics),
            )
        )
        self._file = None


class FooterHead(msgspec.Struct, frozen=True):
    """What files of one schema have in common.

    Attributes:
        data: the bytes of a footer up to the end of its schema.
        positions: where in row groups the columns stand that are asked for, by field id.
        columns_count: of a row group.
        row_bytes: about how long a row is in memory.
    """

    data: bytes
    positions: Mapping[int, int]
    columns_count: int
    row_bytes: int


class FooterEnd(msgspec.Struct, frozen=True):
    """What comes behind the row groups.

    Attributes:
        data: its bytes.
        created_by: who wrote the file.
        ordered: positions of the columns whose order is defined, so that their bounds mean something.
    """

    data: bytes
    created_by: bytes
    ordered: frozenset[int]


class RowGroupChunks(NamedTuple):
    """A row group: how many rows it has, and the column chunks that were asked for, by position."""

    row_count: int
    chunks: Mapping[int, Struct]


class WalkedFooter(NamedTuple):
    """What a footer says of the columns that were asked for."""

    row_count: int
    row_groups: list[RowGroupChunks]
    end: FooterEnd

    def has_rows(self, row_count: int) -> bool:
        """Whether footer and row groups agree on the number of rows."""
        return self.row_count == row_count == sum(group.row_count for group in self.row_groups)


def footer_of(data: bytes) -> bytes:
    """The footer of a file in memory; raises `Damaged` and `CannotMove` where there is none in plain text."""
    return data[-TAIL_BYTES - footer_length(data, len(data)) : -TAIL_BYTES]


def head_bytes(footer: bytes) -> bytes:
    """A footer up to the end of its schema."""
    schema = Struct(footer).spans.get(2)
    if schema is None:
        raise Damaged("it has no schema")
    return footer[: schema.end]


def walk_footer(
    footer: bytes, head: FooterHead, positions: Collection[int], known_end: FooterEnd | None
) -> WalkedFooter:
    """Read what a footer that begins with `head` says of the columns at some positions.

    A footer is a good part of a small file, and most of it is as in the file before: its schema, and what comes behind its row
    groups. These parts are compared, and read only where they differ.

    Args:
        known_end: of another file, which this one may share.

    Raises:
        Damaged: it is no footer, or a row group has not the columns of the schema.
    """
    rows: list[int] = []
    groups: list[RowGroupChunks] = []
    ends: list[int] = []

    # Each of these goes through the value at a position and returns where that ends.
    def take_rows(start: int) -> int:
        row_count, after = integer_at(footer, start)
        rows.append(row_count)
        return after

    def take_groups(start: int) -> int:
        ends.append(walk_structs(footer, start, take_group))
        # The rest is looked at below.
        return len(footer) - 1

    def take_group(start: int) -> int:
        chunks: dict[int, Struct] = {}
        row_count = columns_count = 0

        def take_chunk(position: int) -> int:
            nonlocal columns_count
            columns_count += 1
            if columns_count - 1 not in positions:
                return walk_struct(footer, position, {})
            chunk = chunks[columns_count - 1] = Struct(footer, position)
            return chunk.end

        def take_row_count(position: int) -> int:
            nonlocal row_count
            row_count, after = integer_at(footer, position)
            return after

        chunk_list = (LIST, lambda position: walk_structs(footer, position, take_chunk))
        after = walk_struct(footer, start, {1: chunk_list, 3: (I64, take_row_count)})
        if columns_count != head.columns_count or row_count < 0:
            raise Damaged("a row group has not the columns of its schema")
        groups.append(RowGroupChunks(row_count, chunks))
        return after

    walk_struct(footer, 0, {2: (LIST, lambda _: len(head.data)), 3: (I64, take_rows), 4: (LIST, take_groups)})
    if not rows or not ends:
        raise Damaged("a footer does not say its rows before its row groups")
    end = footer[ends[0] :]
    return WalkedFooter(rows[0], groups, known_end if known_end and known_end.data == end else _footer_end(end))


def _footer_end(data: bytes) -> FooterEnd:
    # Fields say their ids as steps from the one before: what comes behind field 4 is read behind a field 4 of one byte.
    before = bytes([4 << 4 | BYTE, 0])
    struct = Struct(before + data)
    if struct.end != len(before + data):
        raise Damaged("a footer has bytes behind its end")
    ordered = frozenset(n for n, order in enumerate(struct.structs(7)) if 1 in order.spans)
    return FooterEnd(data, struct.binary(6) or b"", ordered)


class SpliceExaminer:
    """Says of files which columns may be spliced; what files of one schema have in common is found out once.

    Attributes:
        columns: those that may be spliced, by field id.
    """

    def __init__(self, schema: Schema, options: ParquetOptions, written: pq.ParquetFile) -> None:
        """Args:
        schema: of the new files, without columns that files do not store.
        options: of the new files.
        written: a file with these columns as the table's writer makes it.
        """
        self._codec = CODECS[options.compression]
        self._head: FooterHead | None = None
        self._end: FooterEnd | None = None
        places, wishes = _leaf_positions(written), options.columns
        columns: dict[int, SpliceColumn] = {}
        for field in schema.fields:
            id_, type_ = field.field_id, field.type
            if not isinstance(type_, PrimitiveType) or type_ in _NOT_COUNTED or id_ in LINEAGE_IDS or id_ not in places:
                continue
            if wishes.bloom_filters.get(field.name) or wishes.dictionaries.get(field.name):
                continue
            leaf = written.metadata.schema.column(places[id_])
            columns[id_] = SpliceColumn(
                field_id=id_,
                physical_type=leaf.physical_type,
                is_optional=leaf.max_definition_level > 0,
                order=order_of(leaf),
                stored=stored_as(leaf),
                has_statistics=wishes.statistics.get(field.name, True),
            )
        self.columns: Mapping[int, SpliceColumn] = columns

    def examine(self, piece: FilePiece, data: bytes, wanted: Collection[int] | None = None) -> SpliceSource:
        """The chunks of a file that may be spliced, none where that cannot be told: whoever decodes it judges damage.

        `wanted` are the ids of the columns that are looked at, all of them where nothing is said.
        """
        nothing = SpliceSource(piece, data, piece.size_bytes, {})
        try:
            footer = footer_of(data)
            head = self._head_of(footer, data)
            positions = {id_: n for id_, n in head.positions.items() if wanted is None or id_ in wanted}
            walked = walk_footer(footer, head, {*positions.values()}, self._end)
        except (pa.ArrowException, OSError, ValueError, CannotMove):
            return nothing
        self._end = walked.end
        if _OLD_WRITERS.match(walked.end.created_by) or not walked.has_rows(piece.record_count):
            return nothing
        chunks: dict[int, tuple[SpliceChunk, ...]] = {}
        for id_, position in positions.items():
            # All row groups that have rows, or none.
            with suppress(CannotSplice, ValueError):
                chunks[id_] = tuple(
                    self._chunk(group.chunks[position], group.row_count, self.columns[id_], position, data)
                    for group in walked.row_groups
                    if group.row_count
                )
        source = SpliceSource(piece, data, 0, chunks)
        texts = sum(source.chunk_bytes(id_) for id_ in chunks if self.columns[id_].physical_type == "BYTE_ARRAY")
        return msgspec.structs.replace(source, arrow_bytes=piece.record_count * head.row_bytes + 2 * texts)

    def _head_of(self, footer: bytes, data: bytes) -> FooterHead:
        """The head of a footer: where the columns stand that are stored as in the new files."""
        if self._head is None or not footer.startswith(self._head.data):
            file = pq.ParquetFile(pa.BufferReader(data))
            schema, places = file.metadata.schema, _leaf_positions(file)
            positions = {
                id_: places[id_]
                for id_, column in self.columns.items()
                if id_ in places and stored_as(schema.column(places[id_])) == column.stored
            }
            row_bytes = sum(_width(field.type) for field in file.schema_arrow)
            self._head = FooterHead(head_bytes(footer), positions, len(schema), row_bytes)
        return self._head

    def _chunk(self, chunk: Struct, row_count: int, column: SpliceColumn, position: int, data: bytes) -> SpliceChunk:
        about = chunk.struct(3)
        if about is None or about.value(11) or about.value(4) != self._codec:
            raise CannotSplice("it has a dictionary, or another codec")
        if about.value(5) != row_count or not chunk.spans.keys() <= _CHUNK_FIELDS:
            raise CannotSplice("it has not one value a row, or is encrypted or in another file")
        start, length = page_range(about)
        pages = chunk_pages(
            data,
            start,
            start + length,
            physical_type=column.physical_type,
            has_nulls=column.is_optional,
            row_count=row_count,
        )
        if pages.uncompressed_bytes != about.required_integer(6).value:
            raise Damaged("the pages of a column chunk are longer or shorter than it says")
        if not pages.encodings <= {*about.integers(2)}:
            raise Damaged("a page is encoded in a way that its column chunk does not name")
        if not column.has_statistics:
            return SpliceChunk(pages, None)
        if self._end is None or position not in self._end.ordered:
            raise CannotSplice("the order of its bounds is not known")
        return SpliceChunk(pages, _bounds(chunk, about, column, pages, data))


def _leaf_positions(file: pq.ParquetFile) -> dict[int, int]:
    """Where in row groups the columns at the top stand that hold values, by field id; those with an id, or a path, that is
    not one's own are left out: `a.b` is a column's name and the path of a field in another.
    """
    schema = file.metadata.schema
    paths: dict[str, list[int]] = {}
    for position in range(len(schema)):
        paths.setdefault(schema.column(position).path, []).append(position)
    ids: dict[int, list[int]] = {}
    for field in file.schema_arrow:
        id_ = field_id(field)
        if id_ is not None:
            ids.setdefault(id_, []).extend(paths.get(field.name, ()) if not field.type.num_fields else [-1])
    return {id_: places[0] for id_, places in ids.items() if len(places) == 1 and places[0] >= 0}


def stored_as(leaf: pq.ColumnSchema) -> tuple[object, ...]:
    """All that says how the values of a column are to be read."""
    levels = leaf.max_definition_level, leaf.max_repetition_level
    return leaf.physical_type, str(leaf.logical_type), leaf.length, leaf.precision, leaf.scale, *levels


def _width(type_: pa.DataType) -> int:
    """The bytes of a value, or of where a text begins."""
    try:
        return max(1, type_.bit_width // 8)
    except ValueError:
        return 4


def _bounds(chunk: Struct, about: Struct, column: SpliceColumn, pages: ChunkPages, data: bytes) -> ChunkBounds:
    """What the file says of a chunk's values; raises `CannotSplice` where it does not say all."""
    statistics, value_count = about.struct(12), about.value(5)
    if statistics is None or _NULL_COUNT not in statistics.spans:
        raise CannotSplice("its nulls are not counted")
    null_count = statistics.value(_NULL_COUNT)
    if not 0 <= null_count <= (value_count if column.is_optional else 0):
        raise Damaged("a column chunk has more nulls than it can have")
    least = greatest = None
    if null_count < value_count:
        least, greatest = statistics.binary(_MIN_VALUE), statistics.binary(_MAX_VALUE)
        if least is None or greatest is None:
            raise CannotSplice("its bounds are not known")
        if any(flag in statistics.spans and not statistics.boolean(flag) for flag in _EXACT):
            # Manifests of a table that asks for full metrics hold least and greatest values, not cut ones.
            raise CannotSplice("its bounds were cut")
        if column.order(least) > column.order(greatest):
            raise Damaged("the bounds of a column chunk are the wrong way round")
    if len(pages.pages) == 1:
        return ChunkBounds(value_count, null_count, least, greatest, (PageBounds(null_count, least, greatest),))
    start, length = chunk.value(_COLUMN_INDEX), chunk.value(_COLUMN_INDEX + 1)
    of_pages = None
    if len(MAGIC) <= start < start + length <= len(data):
        counts = [page.row_count for page in pages.pages]
        of_pages = pages_of_index(data[start : start + length], counts, column.order)
    return ChunkBounds(value_count, null_count, least, greatest, of_pages)


def statistics_bytes(chunks: Sequence[ChunkBounds], order: Order) -> bytes:
    """The statistics of all chunks together, each of which knows its bounds unless all its values are null."""
    least, greatest = _extremes(chunks, order)
    return struct_bytes(
        [
            (_NULL_COUNT, I64, sum(chunk.null_count for chunk in chunks)),
            (_MAX_VALUE, BINARY, None if greatest is None else binary_bytes(greatest)),
            (_MIN_VALUE, BINARY, None if least is None else binary_bytes(least)),
        ]
    )


def _extremes(chunks: Sequence[ChunkBounds], order: Order) -> tuple[bytes | None, bytes | None]:
    """The bounds of all chunks together, those of nothing but nulls left out."""
    least = [chunk.least for chunk in chunks if chunk.least is not None]
    greatest = [chunk.greatest for chunk in chunks if chunk.greatest is not None]
    return min(least, key=order, default=None), max(greatest, key=order, default=None)


def column_index_bytes(chunks: Sequence[ChunkBounds], order: Order) -> bytes | None:
    """The column index of all chunks' pages together; null where one of them does not tell its pages."""
    pages: list[PageBounds] = []
    for chunk in chunks:
        if chunk.pages is None:
            return None
        pages += chunk.pages
    sides = [[order(bound) for bound in bounds if bound is not None] for bounds in _sides(pages)]
    direction = _UNORDERED
    if all(a <= b for keys in sides for a, b in pairwise(keys)):
        direction = _ASCENDING
    elif all(a >= b for keys in sides for a, b in pairwise(keys)):
        direction = _DESCENDING
    least, greatest = (list_bytes(BINARY, [binary_bytes(bound or b"") for bound in side]) for side in _sides(pages))
    counts = [page.null_count for page in pages if page.null_count is not None]
    return struct_bytes(
        [
            (1, LIST, list_bytes(TRUE, [b"\1" if page.least is None else b"\2" for page in pages])),
            (2, LIST, least),
            (3, LIST, greatest),
            (4, I32, direction),
            (5, LIST, list_bytes(I64, [*map(integer_bytes, counts)]) if len(counts) == len(pages) else None),
        ]
    )


def _sides(pages: Sequence[PageBounds]) -> tuple[list[bytes | None], list[bytes | None]]:
    return [page.least for page in pages], [page.greatest for page in pages]


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


class _WrittenChunk(msgspec.Struct):
    """A column chunk in its place.

    Attributes:
        metadata: what describes it, whole.
        indexes: its column index and its offset index, by the fields that say where they lie.
        places: these fields, once the indexes are written.
    """

    start: int
    compressed_bytes: int
    uncompressed_bytes: int
    metadata: bytes
    indexes: dict[int, bytes | None]
    places: dict[int, int] = {}


class SplicedFile:
    """A file that is being put together, a row group at a time; indexes and the footer are written last."""

    def __init__(self, storage: Storage, location: str, shape: Shape) -> None:
        self._shape = shape
        self._location = location
        self._row_groups: list[tuple[int, list[_WrittenChunk]]] = []
        self._nan_counts: dict[int, int] = {}
        nodes = structs_at(shape.footer.schema, 0)
        self._nodes = {node.value(9): node for node in nodes if 9 in node.spans}
        with ExitStack() as stack:
            self._stream = stack.enter_context(storage.write(location))
            self._stream.write(MAGIC)
            self.written_bytes = len(MAGIC)
            self._stack = stack.pop_all()
        self.is_made = False

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
        chunks: list[_WrittenChunk] = []
        # Bloom filters come right behind the data, which is as long as all chunks.
        moved_bytes = sum(chunk.pages.compressed_bytes for of_column in moved.values() for _, chunk in of_column)
        filters_start = self.written_bytes + footer.row_groups[0].compressed_bytes + moved_bytes
        for leaf in self._shape.footer.stored.leaves:
            if leaf.field_id is not None and leaf.field_id in moved:
                column = self._shape.columns[leaf.field_id]
                chunks.append(self._write_moved(column, moved[leaf.field_id], row_count))
            else:
                start = filters_start + sum(map(len, filters))
                chunks.append(self._write_encoded(encoded, footer, next(rest), start, filters))
        if next(rest, None) is not None or self.written_bytes != filters_start:
            raise IcekeepBug(f"a row group of file {self._location!r} has not the columns of its schema")
        for bloom_filter in filters:
            self._write(bloom_filter)
        self._row_groups.append((row_count, chunks))
        for id_, count in nan_counts.items():
            self._nan_counts[id_] = self._nan_counts.get(id_, 0) + count

    def finish(self) -> tuple[int, FileMetrics]:
        """Write indexes and the footer, and take the metrics from it."""
        for number in (_COLUMN_INDEX, _OFFSET_INDEX):
            for chunk in (chunk for _, chunks in self._row_groups for chunk in chunks):
                if (index := chunk.indexes[number]) is not None:
                    chunk.places |= {number: self.written_bytes, number + 1: len(index)}
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
        self._stack.close()
        self.is_made = True
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + tail))
        metrics = file_metrics(metadata, self._shape.schema, self._shape.modes, self._nan_counts)
        return self.written_bytes, metrics

    def abandon(self, error: BaseException) -> None:
        """Give the file up; nothing that goes wrong with it now matters beside `error`."""
        with suppress(IcekeepError, OSError, ValueError):
            self._stack.__exit__(type(error), error, error.__traceback__)

    def _write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self.written_bytes += len(data)

    def _write_encoded(
        self, encoded: bytes, footer: Footer, chunk: Struct, filter_start: int, filters: list[bytes]
    ) -> _WrittenChunk:
        """Move a chunk of the file that was encoded; its bloom filter is added to those that `add` writes."""
        column = chunk.required_struct(3)
        start, length = page_range(column)
        new_start, shift = self.written_bytes, self.written_bytes - start
        places = [place for place in (column.integer(9), column.integer(11)) if place is not None and place.value]
        changes = [(place, place.value + shift) for place in places]
        bloom_filter = column.integer(14)
        if bloom_filter is not None and bloom_filter.value:
            end = bloom_filter.value + column.required_integer(15).value
            filters.append(encoded[bloom_filter.value : end])
            changes.append((bloom_filter, filter_start))
        indexes = {
            number: encoded[place : place + chunk.value(number + 1)] if (place := chunk.value(number)) else None
            for number in (_COLUMN_INDEX, _OFFSET_INDEX)
        }
        if (offsets := indexes[_OFFSET_INDEX]) is not None:
            indexes[_OFFSET_INDEX] = moved_offset_index(offsets, shift)
        self._write(memoryview(encoded)[start : start + length])
        return _WrittenChunk(
            start=new_start,
            compressed_bytes=length,
            uncompressed_bytes=column.required_integer(6).value,
            metadata=with_integers(footer.data, column.start, column.end, changes),
            indexes=indexes,
        )

    def _write_moved(self, column: SpliceColumn, chunks: MovedChunks, row_count: int) -> _WrittenChunk:
        """Write the pages of a column one behind the other."""
        start = self.written_bytes
        places: list[bytes] = []
        first_row = 0
        for data, chunk in chunks:
            pages = chunk.pages.pages
            shift = self.written_bytes - pages[0].start
            for page in pages:
                places.append(_page_place(page, shift, first_row))
                first_row += page.row_count
            self._write(memoryview(data)[pages[0].start : pages[-1].end])
        if first_row != row_count:
            raise IcekeepBug(f"a row group of file {self._location!r} has {row_count} rows, a column has {first_row}")
        compressed_bytes = self.written_bytes - start
        uncompressed_bytes = sum(chunk.pages.uncompressed_bytes for _, chunk in chunks)
        bounds = [chunk.bounds for _, chunk in chunks if chunk.bounds is not None]
        has_bounds = len(bounds) == len(chunks)
        encodings = sorted({_RLE}.union(*(chunk.pages.encodings for _, chunk in chunks)))
        node = self._nodes[column.field_id]
        metadata = struct_bytes(
            [
                (1, I32, node.value(1)),
                (2, LIST, list_bytes(I32, [*map(integer_bytes, encodings)])),
                (3, LIST, list_bytes(BINARY, [node.raw(4) or b"\0"])),
                (4, I32, self._shape.codec),
                (5, I64, row_count),
                (6, I64, uncompressed_bytes),
                (7, I64, compressed_bytes),
                (9, I64, start),
                (12, STRUCT, statistics_bytes(bounds, column.order) if has_bounds else None),
            ]
        )
        indexes = {
            _COLUMN_INDEX: column_index_bytes(bounds, column.order) if has_bounds else None,
            _OFFSET_INDEX: struct_bytes([(1, LIST, list_bytes(STRUCT, places))]),
        }
        return _WrittenChunk(start, compressed_bytes, uncompressed_bytes, metadata, indexes)


def _page_place(page: Page, shift: int, first_row: int) -> bytes:
    """A `PageLocation`."""
    return struct_bytes([(1, I64, page.start + shift), (2, I32, page.end - page.start), (3, I64, first_row)])


def _chunk_bytes(chunk: _WrittenChunk) -> bytes:
    """A `ColumnChunk`; the place of its description elsewhere is none, as writers say it today."""
    places = [
        (id_, I64 if id_ in (_OFFSET_INDEX, _COLUMN_INDEX) else I32, chunk.places.get(id_)) for id_ in range(4, 8)
    ]
    return struct_bytes([(2, I64, 0), (3, STRUCT, chunk.metadata), *places])


class _Place(NamedTuple):
    """A column among those of a file, how its values are stored, and their order."""

    position: int
    stored: tuple[object, ...]
    order: Order


class _NotedGroup(msgspec.Struct, frozen=True):
    """What a row group shall hold: the chunks that were moved and a digest of their bytes, and the rows that were encoded."""

    moved: Mapping[int, tuple[SpliceChunk, ...]]
    digests: Mapping[int, tuple[Any, ...]]
    rows: RowSequence


class SpliceProof:
    """Notes what goes into the row groups of new files, in their order, and holds it against these."""

    def __init__(self, task: RewriteTask) -> None:
        self._task = task
        self._files: list[list[_NotedGroup]] = []
        self._places: tuple[pq.ParquetSchema, dict[int, _Place]] | None = None

    def take(
        self, sources: Sequence[SpliceSource], moved: Collection[int], rows: RowSequence, *, begins_file: bool
    ) -> None:
        """A row group of some files is going to be written: the columns that are moved, and the rows of the others."""
        if begins_file:
            self._files.append([])
        digests = {id_: _Digest() for id_ in moved}
        for source in sources:
            metadata = pq.read_metadata(pa.BufferReader(source.data))
            places = self._places_in(metadata)
            data = memoryview(source.data)
            for id_, digest in digests.items():
                for number in range(metadata.num_row_groups):
                    digest.add(metadata, number, places[id_], partial(_bytes_in, data))
        chunks = {id_: tuple(chunk for source in sources for chunk in source.chunks[id_]) for id_ in moved}
        self._files[-1].append(_NotedGroup(chunks, {id_: one.total() for id_, one in digests.items()}, rows))

    def check(self, files: Sequence[DataFile], storage: Storage) -> RowSum:
        """How many rows new files hold, once it is proved that they are those that were taken.

        The sum has no digest: each row group was compared by itself.

        Raises:
            IcekeepBug: a file is not there, is damaged, or holds something else; the files must be kept.
            UnavailableError: storage is out of reach.
        """
        if len(files) != len(self._files):
            raise IcekeepBug(f"a rewrite wrote {len(self._files)} files and told of {len(files)}; they are deleted")
        for file, groups in zip(files, self._files, strict=True):
            with of_new_file(file):
                self._check_file(file, groups, storage)
        return RowSum(sum(group.rows.row_count for groups in self._files for group in groups))

    def _check_file(self, file: DataFile, groups: Sequence[_NotedGroup], storage: Storage) -> None:
        footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
        counts = [group.rows.row_count for group in groups]
        if [group.row_count for group in footer.row_groups] != counts or file.record_count != sum(counts):
            raise not_as_written(f"row groups of other sizes than {counts} rows", [file])
        if not footer.codecs <= {*CODECS.values()}:
            raise not_as_written("pages of a codec that there is not", [file])
        with storage.open(file.file_path) as stream, footer_errors(file.file_path), translated(file.file_path):
            metadata = pq.read_metadata(stream)
            places = self._places_in(metadata)
            described = [Struct(footer.data, group.data_start).structs(1) for group in footer.row_groups]
            index_of = _indexes(stream, footer, [chunk for chunks in described for chunk in chunks])
            for number, group in enumerate(groups):
                moved = {places[id_].position: id_ for id_ in group.moved if id_ in places}
                for position, chunk in enumerate(described[number]):
                    id_ = moved.get(position)
                    pages = None if id_ is None else group.moved[id_]
                    if not _leads_through_pages(chunk, index_of(chunk, _OFFSET_INDEX), counts[number], pages):
                        what = f"an offset index of column {position} that does not lead through its pages"
                        raise not_as_written(what, [file])
                    if id_ is not None and not _has_bounds_of(
                        chunk, index_of(chunk, _COLUMN_INDEX), group.moved[id_], places[id_].order
                    ):
                        raise not_as_written(f"other bounds of the column with id {id_} than its sources", [file])
                for id_, expected in group.digests.items():
                    digest = _Digest()
                    digest.add(metadata, number, places.get(id_), partial(bytes_at, stream))
                    if digest.total() != expected or digest.value_count != counts[number]:
                        raise not_as_written(f"other pages of the column with id {id_} than went in", [file])
        self._check_rows(file, groups, storage)

    def _check_rows(self, file: DataFile, groups: Sequence[_NotedGroup], storage: Storage) -> None:
        with open_reader(storage, file.file_path, "PARQUET") as reader:
            batch_rows = rows_at_once(reader, file, self._task)
            for number, group in enumerate(groups):
                rows = group.rows.again()
                add_rows(rows, reader, group.rows.coded_ids, batch_rows, [number])
                if rows.total != group.rows.total:
                    what = f"{rows.row_count} rows in row group {number}, where {group.rows.row_count} with other values went in"
                    raise not_as_written(what, [file])

    def _places_in(self, metadata: pq.FileMetaData) -> Mapping[int, _Place]:
        """The top-level columns that hold values, by field id; worked out only where a file differs from the one before."""
        schema = metadata.schema
        if self._places is None or not self._places[0].equals(schema):
            ids = {field.name: field_id(field) for field in schema.to_arrow_schema()}
            leaves = [schema.column(position) for position in range(len(schema))]
            places = {ids.get(leaf.path): _Place(n, stored_as(leaf), order_of(leaf)) for n, leaf in enumerate(leaves)}
            self._places = schema, {id_: place for id_, place in places.items() if id_ is not None}
        return self._places[1]


def _bytes_in(data: memoryview, start: int, length: int) -> memoryview:
    return data[start : start + length]


class _Digest:
    """Of the chunks of a column, one behind the other: their bytes, and how they are to be read."""

    def __init__(self) -> None:
        self._bytes = xxhash.xxh3_128()
        self._codecs: set[str] = set()
        self._stored: set[tuple[object, ...]] = set()
        self.value_count = 0

    def add(
        self, metadata: pq.FileMetaData, number: int, place: _Place | None, read: Callable[[int, int], Any]
    ) -> None:
        """Add the chunk of a row group, whose bytes `read` gives by their place and number; nothing where there is no column."""
        if place is None or not metadata.row_group(number).num_rows:
            return
        chunk = metadata.row_group(number).column(place.position)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        self._bytes.update(read(start, chunk.total_compressed_size))
        self._codecs.add(chunk.compression)
        self._stored.add((*place.stored, chunk.physical_type))
        self.value_count += chunk.num_values

    def total(self) -> tuple[Any, ...]:
        return self._bytes.digest(), self.value_count, self._codecs, self._stored


def _indexes(stream: BinaryIO, footer: Footer, chunks: Sequence[Struct]) -> Callable[[Struct, int], bytes | None]:
    """What gives the indexes of a file's chunks, `None` where there is none: they lie side by side before the footer."""
    places = [chunk.value(kind) for chunk in chunks for kind in (_OFFSET_INDEX, _COLUMN_INDEX)]
    first = min((place for place in places if place), default=footer.start)
    data = bytes_at(stream, first, max(0, footer.start - first))

    def index_of(chunk: Struct, kind: int) -> bytes | None:
        place, length = chunk.value(kind), chunk.value(kind + 1)
        if not place:
            return None
        if length < 1 or place - first + length > len(data):
            raise Damaged("an index lies outside of its place")
        return data[place - first : place - first + length]

    return index_of


def _leads_through_pages(
    chunk: Struct, offset_index: bytes | None, row_count: int, moved: Sequence[SpliceChunk] | None
) -> bool:
    """Whether the offset index of a chunk, if it has one, names its pages one behind the other, none left out.

    Args:
        moved: what a moved chunk was made of; it must have an index.
    """
    column = chunk.struct(3)
    if offset_index is None or column is None:
        return moved is None
    pages = [tuple(page.required_integer(id_).value for id_ in (1, 2, 3)) for page in Struct(offset_index).structs(1)]
    start, length = page_range(column)
    ends = [place + size for place, size, _ in pages]
    rows = [row for *_, row in pages] + [row_count]
    if [place for place, *_ in pages] != [column.required_integer(9).value, *ends[:-1]] or ends[-1] != start + length:
        return False
    if rows[0] or rows != sorted(rows):
        return False
    counts = [after - before for before, after in pairwise(rows)]
    sizes = [(size, count) for (_, size, _), count in zip(pages, counts, strict=True)]
    return moved is None or sizes == [
        (page.end - page.start, page.row_count) for one in moved for page in one.pages.pages
    ]


def _has_bounds_of(chunk: Struct, column_index: bytes | None, moved: Sequence[SpliceChunk], order: Order) -> bool:
    """Whether what a moved chunk says of its values, and of those of each page, is what its sources said together."""
    column = chunk.struct(3)
    statistics = None if column is None else column.struct(12)
    bounds = [one.bounds for one in moved if one.bounds is not None]
    if len(bounds) < len(moved):
        return statistics is None and column_index is None
    if (
        statistics is None
        or (statistics.binary(_MIN_VALUE), statistics.binary(_MAX_VALUE)) != _extremes(bounds, order)
        or statistics.required_integer(_NULL_COUNT).value != sum(one.null_count for one in bounds)
    ):
        return False
    if column_index is None:
        return True
    pages = pages_of_index(column_index, [page.row_count for one in moved for page in one.pages.pages], order)
    if pages is None or any(one.pages is None for one in bounds):
        return False
    expected = [page for one in bounds for page in one.pages or ()]
    # Of nulls an index need say nothing.
    if len(pages) != len(expected) or any(
        (page.least, page.greatest) != (other.least, other.greatest) or page.null_count not in (None, other.null_count)
        for page, other in zip(pages, expected, strict=True)
    ):
        return False
    # Readers look for the first page by halves where the index says that bounds go up or down.
    direction = Struct(column_index).value(4)
    if direction not in (_ASCENDING, _DESCENDING):
        return direction == _UNORDERED
    sides = [[order(bound) for bound in side if bound is not None] for side in _sides(pages)]
    return all(keys == sorted(keys, reverse=direction == _DESCENDING) for keys in sides)
