"""What Parquet says of the values of column chunks that are put together (Parquet, `Statistics`, `ColumnIndex`).

Of chunks that are put together, both are put together from what the chunks said; a value is never looked at. Bounds are
bytes as Parquet stores them, compared in the order that it defines for the column's type.

The footers of many small Parquet files, walked for some of their columns (Parquet, `FileMetaData`).

A footer is a good part of a small file, and most of it is as in the file before: its schema, and what comes behind its row
groups. These parts are compared, and read only where they differ.

Small Parquet files whose data pages may be moved, and for which columns (`spliced_file` says how they are put together).

A column is spliced where a reader cannot tell its pages from those that the table's writer would make, but for how many rows
they have: it is stored in the same way, by the same codec, without a dictionary, and what manifests and footers say of it is
known without looking at its values.

What a spliced file says of its pages beside their bytes: by bounds and indexes readers leave out row groups and pages.

Where one of these is wrong every row can be read, and who looks for some does not find them. So they are proved as well: what
a moved chunk says must be what its sources said together, and each offset index must lead through the pages of its chunk.

Proof of a spliced file: pages that were moved by their bytes, columns that were encoded by their rows.

What a row group shall hold is taken down before it is written, and held against the new file as it is read again. Of columns
that were moved, footers say where their bytes are, not the code that walked through the pages; what a reader goes by beside
these, bounds and indexes, must be what the sources said (`said`).

A Parquet file whose row groups have some columns encoded anew, and some moved from other files page by page.

The columns that are encoded come as a file of one row group, in memory; the new file's schema and the way in which it says
things are those of the table's writer. Everything that lies behind the data, indexes and the footer, is written last.

Small Parquet files put together without decoding all of their columns: data pages that need no dictionary are moved.

Row groups that are as large as any are made of whole files. In each, a column that all its files store as the table's writer
would is moved page by page; the others are decoded and encoded as in any rewrite, and so is at least one. It is done where
rows stay as they are, and where it pays.
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

from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.formats.arrow.schema import arrow_schema, field_id, stored_schema
from icekeep.formats.base import FileMetrics, translated
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.options import ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import (
    BINARY,
    CODECS,
    I16,
    I32,
    I64,
    LIST,
    MAGIC,
    MAX_FOOTER_BYTES,
    STRUCT,
    TAIL_BYTES,
    TRUE,
    Damaged,
    Footer,
    RowGroup,
    Struct,
    binary_bytes,
    bytes_at,
    footer_errors,
    integer_at,
    integer_bytes,
    list_bytes,
    read_footer,
    struct_bytes,
    struct_list_bytes,
    structs_at,
    varint_at,
    walk_struct,
    walk_structs,
    with_integers,
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
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, Schema
from icekeep.spec.types import BOOLEAN, DOUBLE, FLOAT, MAX_LONG, MIB, PrimitiveType
from icekeep.storage.base import Storage
from icekeep.storage.overlay import HeldFiles

_NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 3, 5, 6
_UNORDERED, _ASCENDING, _DESCENDING = 0, 1, 2


class ChunkBounds(msgspec.Struct, frozen=True):
    """What is known of a chunk, and of each of its pages where that is known."""

    value_count: int
    null_count: int
    least: bytes | None
    greatest: bytes | None
    pages: tuple[PageBounds, ...] | None


def statistics_bytes(chunks: Sequence[ChunkBounds], order: Order) -> bytes:
    """The statistics of all chunks together, each of which knows its bounds unless all its values are null."""
    fields = [(_NULL_COUNT, I64, integer_bytes(sum(chunk.null_count for chunk in chunks)))]
    least = [chunk.least for chunk in chunks if chunk.least is not None]
    greatest = [chunk.greatest for chunk in chunks if chunk.greatest is not None]
    if least and greatest:
        fields.append((_MAX_VALUE, BINARY, binary_bytes(max(greatest, key=order))))
        fields.append((_MIN_VALUE, BINARY, binary_bytes(min(least, key=order))))
    return struct_bytes(fields)


def column_index_bytes(chunks: Sequence[ChunkBounds], order: Order) -> bytes | None:
    """The column index of all chunks' pages together; null where one of them does not tell its pages."""
    pages: list[PageBounds] = []
    for chunk in chunks:
        if chunk.pages is None:
            return None
        pages += chunk.pages
    fields = [
        (1, LIST, list_bytes(TRUE, [b"\1" if page.least is None else b"\2" for page in pages])),
        (2, LIST, list_bytes(BINARY, [binary_bytes(page.least or b"") for page in pages])),
        (3, LIST, list_bytes(BINARY, [binary_bytes(page.greatest or b"") for page in pages])),
        (4, I32, integer_bytes(_boundary_order(pages, order))),
    ]
    counts = [page.null_count for page in pages if page.null_count is not None]
    if len(counts) == len(pages):
        fields.append((5, LIST, list_bytes(I64, [integer_bytes(count) for count in counts])))
    return struct_bytes(fields)


def _boundary_order(pages: Sequence[PageBounds], order: Order) -> int:
    """Whether both bounds of the pages that have some go up or down."""
    least = [order(page.least) for page in pages if page.least is not None]
    greatest = [order(page.greatest) for page in pages if page.greatest is not None]
    if all(a <= b for keys in (least, greatest) for a, b in pairwise(keys)):
        return _ASCENDING
    if all(a >= b for keys in (least, greatest) for a, b in pairwise(keys)):
        return _DESCENDING
    return _UNORDERED


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
        """Whether the file, and its row groups together, have so many rows."""
        return self.row_count == row_count == sum(group.row_count for group in self.row_groups)


def footer_of(data: bytes) -> bytes:
    """The footer of a file in memory; raises `Damaged` where there is none in plain text."""
    length = int.from_bytes(data[-TAIL_BYTES:-4], "little")
    if data[-4:] != MAGIC or length > min(MAX_FOOTER_BYTES, len(data) - TAIL_BYTES):
        raise Damaged("its footer is too large, encrypted, or missing")
    return data[-TAIL_BYTES - length : -TAIL_BYTES]


def head_bytes(footer: bytes) -> bytes:
    """A footer up to the end of its schema."""
    schema = Struct(footer).span(2)
    if schema is None:
        raise Damaged("it has no schema")
    return footer[: schema.end]


def walk_footer(
    footer: bytes, head: FooterHead, positions: Collection[int], known_end: FooterEnd | None
) -> WalkedFooter:
    """Read what a footer that begins with `head` says of the columns at some positions.

    Args:
        known_end: of another file, which this one may share.

    Raises:
        Damaged: it is no footer, or a row group has not the columns of the schema.
    """
    return _Walk(footer, head, positions, known_end).walked()


class _Walk:
    """One way through a footer; each method goes through the value at a position and returns where that ends."""

    def __init__(
        self, footer: bytes, head: FooterHead, positions: Collection[int], known_end: FooterEnd | None
    ) -> None:
        self._footer, self._head, self._positions, self._known_end = footer, head, positions, known_end
        self._row_count = -1
        self._row_groups: list[RowGroupChunks] = []
        self._end: FooterEnd | None = None
        self._end_start = len(footer)
        self._created_by = b""
        self._ordered: frozenset[int] = frozenset()

    def walked(self) -> WalkedFooter:
        opened = {
            2: (LIST, lambda _: len(self._head.data)),
            3: (I64, self._file_rows),
            4: (LIST, self._groups),
            6: (BINARY, self._writer),
            7: (LIST, self._orders),
        }
        if walk_struct(self._footer, 0, opened) != len(self._footer) or self._row_count < 0:
            raise Damaged("there is more, or less, than a footer")
        end = self._end or FooterEnd(self._footer[self._end_start :], self._created_by, self._ordered)
        return WalkedFooter(self._row_count, self._row_groups, end)

    def _file_rows(self, start: int) -> int:
        self._row_count, end = integer_at(self._footer, start)
        return end

    def _groups(self, start: int) -> int:
        self._end_start = walk_structs(self._footer, start, self._group)
        if self._known_end is not None and self._footer[self._end_start :] == self._known_end.data:
            self._end = self._known_end
            return len(self._footer) - 1
        return self._end_start

    def _group(self, start: int) -> int:
        chunks: dict[int, Struct] = {}
        row_count = columns_count = 0

        def chunk(position: int) -> int:
            nonlocal columns_count
            columns_count += 1
            if columns_count - 1 not in self._positions:
                return walk_struct(self._footer, position, {})
            found = chunks[columns_count - 1] = Struct(self._footer, position)
            return found.end

        def rows(position: int) -> int:
            nonlocal row_count
            row_count, end = integer_at(self._footer, position)
            return end

        chunk_list = (LIST, lambda position: walk_structs(self._footer, position, chunk))
        end = walk_struct(self._footer, start, {1: chunk_list, 3: (I64, rows)})
        if columns_count != self._head.columns_count or row_count < 0:
            raise Damaged("a row group has not the columns of its schema")
        self._row_groups.append(RowGroupChunks(row_count, chunks))
        return end

    def _writer(self, start: int) -> int:
        length, position = varint_at(self._footer, start)
        self._created_by = self._footer[position : position + length]
        return position + length

    def _orders(self, start: int) -> int:
        orders = structs_at(self._footer, start)
        self._ordered = frozenset(n for n, order in enumerate(orders) if order.span(1) is not None)
        return orders[-1].end if orders else start + 1


_NOT_COUNTED = (BOOLEAN, FLOAT, DOUBLE)
_OLD_WRITERS = re.compile(rb"parquet-mr version 1\.[0-7]\.")
"""Their pages of DELTA_BYTE_ARRAY need the one before them (PARQUET-246)."""

_EXACT = 7, 8
"""Flags of statistics: whether both bounds are values."""

_CHUNK_FIELDS = {2, 3, 4, 5, 6, 7}
_LINEAGE = (ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id)


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


class SpliceExaminer:
    """Says of files which columns may be spliced; what files of one schema have in common is found out once."""

    def __init__(self, schema: Schema, options: ParquetOptions, written: pq.ParquetFile) -> None:
        """Args:
        schema: of the new files, without columns that files do not store.
        options: of the new files.
        written: a file with these columns as the table's writer makes it.
        """
        self._codec = CODECS[options.compression]
        self._columns = _splice_columns(schema, options, written)
        self._head: FooterHead | None = None
        self._end: FooterEnd | None = None

    @property
    def columns(self) -> Mapping[int, SpliceColumn]:
        """Those that may be spliced, by field id."""
        return self._columns

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
        except (pa.ArrowException, OSError, ValueError):
            return nothing
        self._end = walked.end
        if _OLD_WRITERS.match(walked.end.created_by) or not walked.has_rows(piece.record_count):
            return nothing
        found = {
            id_: chunks
            for id_, position in positions.items()
            if (chunks := self._chunks(walked, position, self._columns[id_], data)) is not None
        }
        source = SpliceSource(piece, data, 0, found)
        texts = sum(source.chunk_bytes(id_) for id_ in found if self._columns[id_].physical_type == "BYTE_ARRAY")
        return msgspec.structs.replace(source, arrow_bytes=piece.record_count * head.row_bytes + 2 * texts)

    def _head_of(self, footer: bytes, data: bytes) -> FooterHead:
        """The head of a footer: where the columns stand that are stored as in the new files."""
        if self._head is None or not footer.startswith(self._head.data):
            file = pq.ParquetFile(pa.BufferReader(data))
            schema, places = file.metadata.schema, _leaf_positions(file)
            positions = {
                id_: places[id_]
                for id_, column in self._columns.items()
                if id_ in places and stored_as(schema.column(places[id_])) == column.stored
            }
            row_bytes = sum(_width(field.type) for field in file.schema_arrow)
            self._head = FooterHead(head_bytes(footer), positions, len(schema), row_bytes)
        return self._head

    def _chunks(
        self, walked: WalkedFooter, position: int, column: SpliceColumn, data: bytes
    ) -> tuple[SpliceChunk, ...] | None:
        """The chunks of a column in all row groups that have rows; `None` unless all may be spliced."""
        has_order = position in walked.end.ordered
        try:
            return tuple(
                self._chunk(chunks[position], row_count, column, has_order, data)
                for row_count, chunks in walked.row_groups
                if row_count
            )
        except (CannotSplice, ValueError):
            return None

    def _chunk(self, chunk: Struct, row_count: int, column: SpliceColumn, has_order: bool, data: bytes) -> SpliceChunk:
        about = chunk.struct(3)
        if about is None or about.value(11) or about.value(4) != self._codec:
            raise CannotSplice("it has a dictionary, or another codec")
        if about.value(5) != row_count or not chunk.field_ids <= _CHUNK_FIELDS:
            raise CannotSplice("it has not one value a row, or is encrypted or in another file")
        start = about.required_integer(9).value
        pages = chunk_pages(
            data,
            start,
            start + about.required_integer(7).value,
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
        if not has_order:
            raise CannotSplice("the order of its bounds is not known")
        return SpliceChunk(pages, _bounds(chunk, about, column, pages, data))


def _splice_columns(schema: Schema, options: ParquetOptions, written: pq.ParquetFile) -> dict[int, SpliceColumn]:
    places = _leaf_positions(written)
    columns: dict[int, SpliceColumn] = {}
    for field in schema.fields:
        id_, type_, wishes = field.field_id, field.type, options.columns
        if not isinstance(type_, PrimitiveType) or type_ in _NOT_COUNTED or id_ in _LINEAGE or id_ not in places:
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
    return columns


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
    return {id_: found[0] for id_, found in ids.items() if len(found) == 1 and found[0] >= 0}


def stored_as(leaf: pq.ColumnSchema) -> tuple[object, ...]:
    """All that says how the values of a column are to be read."""
    levels = leaf.max_definition_level, leaf.max_repetition_level
    return leaf.physical_type, str(leaf.logical_type), leaf.length, leaf.precision, leaf.scale, *levels


def _bounds(chunk: Struct, about: Struct, column: SpliceColumn, pages: ChunkPages, data: bytes) -> ChunkBounds:
    """What the file says of a chunk's values; raises `CannotSplice` where it does not say all."""
    statistics, value_count = about.struct(12), about.value(5)
    if statistics is None or statistics.span(3) is None:
        raise CannotSplice("its nulls are not counted")
    null_count = statistics.value(3)
    if not 0 <= null_count <= (value_count if column.is_optional else 0):
        raise Damaged("a column chunk has more nulls than it can have")
    least = greatest = None
    if null_count < value_count:
        least, greatest = statistics.binary(6), statistics.binary(5)
        if least is None or greatest is None:
            raise CannotSplice("its bounds are not known")
        if any(statistics.span(flag) is not None and not statistics.boolean(flag) for flag in _EXACT):
            # Manifests of a table that asks for full metrics hold least and greatest values, not cut ones.
            raise CannotSplice("its bounds were cut")
        if column.order(least) > column.order(greatest):
            raise Damaged("the bounds of a column chunk are the wrong way round")
    if len(pages.pages) == 1:
        return ChunkBounds(value_count, null_count, least, greatest, (PageBounds(null_count, least, greatest),))
    start, length = chunk.value(6), chunk.value(7)
    known = None
    if 4 <= start < start + length <= len(data):
        counts = [page.row_count for page in pages.pages]
        known = pages_of_index(data[start : start + length], counts, column.order)
    return ChunkBounds(value_count, null_count, least, greatest, known)


def _width(type_: pa.DataType) -> int:
    """The bytes of a value, or of where a text begins."""
    try:
        return max(1, type_.bit_width // 8)
    except ValueError:
        return 4


_OFFSETS, _BOUNDS = 4, 6
"""Fields of a column chunk that say where an index of it lies; the next one says how long it is."""

_said_ASCENDING, _said_DESCENDING = 1, 2


class SaidOfChunk(msgspec.Struct, frozen=True):
    """What a moved column chunk must say.

    Attributes:
        pages: how long each is with its head, bytes, and how many rows it has.
        bounds: of the chunks that it was made of, `None` where nothing is to be said of values.
    """

    pages: tuple[tuple[int, int], ...]
    bounds: tuple[ChunkBounds, ...] | None

    @classmethod
    def of(cls, chunks: Sequence[SpliceChunk]) -> "SaidOfChunk":
        """Of chunks that lie one behind the other."""
        pages = tuple((page.end - page.start, page.row_count) for chunk in chunks for page in chunk.pages.pages)
        known = tuple(chunk.bounds for chunk in chunks if chunk.bounds is not None)
        return cls(pages, known if len(known) == len(chunks) else None)


class Indexes:
    """The indexes of a file, which lie side by side before its footer: one range brings them all."""

    def __init__(self, stream: BinaryIO, footer: Footer) -> None:
        """Raises `Damaged` where the file ends before its footer."""
        chunks = [chunk for group in footer.row_groups for chunk in chunks_of(footer, group)]
        places = [chunk.value(kind) for chunk in chunks for kind in (_OFFSETS, _BOUNDS)]
        self._start = min((place for place in places if place), default=footer.start)
        self._data = bytes_at(stream, self._start, max(0, footer.start - self._start))

    def offsets(self, chunk: Struct) -> bytes | None:
        """The offset index of a chunk, `None` where it has none."""
        return self._of(chunk, _OFFSETS)

    def bounds(self, chunk: Struct) -> bytes | None:
        """The column index of a chunk, `None` where it has none."""
        return self._of(chunk, _BOUNDS)

    def _of(self, chunk: Struct, kind: int) -> bytes | None:
        place, length = chunk.value(kind), chunk.value(kind + 1)
        if not place:
            return None
        start = place - self._start
        if length < 1 or start + length > len(self._data):
            raise Damaged("an index lies outside of its place")
        return self._data[start : start + length]


def chunks_of(footer: Footer, group: RowGroup) -> list[Struct]:
    """The column chunks of a row group as the footer describes them."""
    return Struct(footer.data, group.data_start).structs(1)


def has_right_pages(chunk: Struct, indexes: Indexes, row_count: int, said: SaidOfChunk | None) -> bool:
    """Whether the offset index of a chunk, if it has one, names its pages one behind the other, none left out.

    Args:
        said: of a chunk that was moved, which must have one.

    Raises:
        Damaged: the index is none.
    """
    data, column = indexes.offsets(chunk), chunk.struct(3)
    if data is None or column is None:
        return said is None
    pages = [tuple(page.required_integer(id_).value for id_ in (1, 2, 3)) for page in Struct(data).structs(1)]
    first = column.required_integer(9).value
    start = min(first, column.value(11) or first)
    ends = [place + length for place, length, _ in pages]
    rows = [row for *_, row in pages] + [row_count]
    is_whole = [place for place, *_ in pages] == [first, *ends[:-1]]
    is_whole = is_whole and ends[-1] == start + column.required_integer(7).value
    counts = [after - before for before, after in pairwise(rows)]
    if not is_whole or rows[0] or rows != sorted(rows):
        return False
    return said is None or [(length, count) for (_, length, _), count in zip(pages, counts, strict=True)] == [
        *said.pages
    ]


def has_right_bounds(chunk: Struct, indexes: Indexes, said: SaidOfChunk, order: Order) -> bool:
    """Whether what a moved chunk says of its values, and of those of each page, is what its sources said.

    Raises:
        Damaged: statistics or an index are none.
    """
    column = chunk.struct(3)
    statistics = None if column is None else column.struct(12)
    index = indexes.bounds(chunk)
    if said.bounds is None:
        return statistics is None and index is None
    known = [one for one in said.bounds if one.least is not None and one.greatest is not None]
    least = min((one.least or b"" for one in known), key=order, default=None)
    greatest = max((one.greatest or b"" for one in known), key=order, default=None)
    if (
        statistics is None
        or (statistics.binary(6), statistics.binary(5)) != (least, greatest)
        or statistics.required_integer(3).value != sum(one.null_count for one in said.bounds)
    ):
        return False
    if index is None:
        return True
    counts = [count for _, count in said.pages]
    return _are_alike(pages_of_index(index, counts, order), said.bounds) and _is_ordered(index, order)


def _are_alike(found: Sequence[PageBounds] | None, chunks: Sequence[ChunkBounds]) -> bool:
    """Whether pages have the bounds that their sources' indexes said; of nulls nothing need be said."""
    if found is None or any(chunk.pages is None for chunk in chunks):
        return False
    expected = [page for chunk in chunks for page in chunk.pages or ()]
    return len(found) == len(expected) and all(
        (one.least, one.greatest) == (other.least, other.greatest) and one.null_count in (None, other.null_count)
        for one, other in zip(found, expected, strict=True)
    )


def _is_ordered(data: bytes, order: Order) -> bool:
    """Whether the bounds of pages go up or down where the index says so: readers look for the first page by halves."""
    index = Struct(data)
    direction = index.value(4)
    if direction not in (_said_ASCENDING, _said_DESCENDING):
        return direction == 0
    for number in (2, 3):
        values = zip(index.booleans(1), index.binaries(number), strict=True)
        keys = [order(value) for is_null, value in values if not is_null]
        if keys != sorted(keys, reverse=direction == _said_DESCENDING):
            return False
    return True


class _Moved(msgspec.Struct, frozen=True):
    """A column of a row group whose pages were moved: a digest of their bytes, and how they are to be read."""

    digest: bytes
    value_count: int
    codecs: frozenset[str]
    stored: frozenset[tuple[object, ...]]


class _RowGroup(msgspec.Struct, frozen=True):
    """What a row group shall hold; `rows` are those of the columns that were encoded, `said` is said of those that were moved."""

    row_count: int
    said: Mapping[int, SaidOfChunk]
    moved: Mapping[int, _Moved]
    rows: RowSequence


class SpliceProof:
    """Takes down what goes into the row groups of new files, in their order, and holds it against these."""

    def __init__(self, task: RewriteTask) -> None:
        self._task = task
        self._columns = _Columns()
        self._rows: RowSequence | None = None
        self._files: list[list[_RowGroup]] = []

    def begin_file(self) -> None:
        """The row groups that come next are those of another file."""
        self._files.append([])

    def begin_rows(self, columns: Schema) -> None:
        """The rows that come next are those of the columns that are not moved, in another row group."""
        self._rows = RowSequence(columns)

    def add(self, table: pa.Table) -> None:
        """Rows that were read, while they are still in the processor's cache."""
        assert self._rows is not None
        self._rows.add(table)

    def take(self, sources: Sequence[SpliceSource], moved: Collection[int]) -> None:
        """A row group of some files is going to be written: the rows that were added, and the columns that are moved."""
        assert self._rows is not None
        found = {id_: _Digest() for id_ in moved}
        for source in sources:
            metadata = pq.read_metadata(pa.BufferReader(source.data))
            places = self._columns.of(metadata)
            data = memoryview(source.data)
            for id_, digest in found.items():
                for number in range(metadata.num_row_groups):
                    digest.add(metadata, number, places[id_], partial(_bytes_of, data))
        said = {id_: SaidOfChunk.of([chunk for source in sources for chunk in source.chunks[id_]]) for id_ in moved}
        totals = {id_: one.total for id_, one in found.items()}
        self._files[-1].append(_RowGroup(self._rows.row_count, said, totals, self._rows))

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
        return RowSum(sum(group.row_count for groups in self._files for group in groups))

    def _check_file(self, file: DataFile, groups: Sequence[_RowGroup], storage: Storage) -> None:
        footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
        counts = [group.row_count for group in groups]
        if [group.row_count for group in footer.row_groups] != counts or file.record_count != sum(counts):
            raise not_as_written(f"row groups of other sizes than {counts} rows", [file])
        if not footer.codecs <= {*CODECS.values()}:
            raise not_as_written("pages of a codec that there is not", [file])
        with storage.open(file.file_path) as stream, footer_errors(file.file_path), translated(file.file_path):
            metadata = pq.read_metadata(stream)
            places = self._columns.of(metadata)
            indexes = Indexes(stream, footer)
            for number, group in enumerate(groups):
                _check_said(file, chunks_of(footer, footer.row_groups[number]), group, places, indexes)
                for id_, moved in group.moved.items():
                    digest = _Digest()
                    digest.add(metadata, number, places.get(id_), partial(bytes_at, stream))
                    if digest.total != moved or moved.value_count != group.row_count:
                        raise not_as_written(f"other pages of the column with id {id_} than went in", [file])
        with open_reader(storage, file.file_path, "PARQUET") as reader:
            batch_rows = rows_at_once(reader, file, self._task)
            for number, group in enumerate(groups):
                found = group.rows.again()
                add_rows(found, reader, group.rows.coded_ids, batch_rows, [number])
                if found.total != group.rows.total:
                    what = f"{found.row_count} rows in row group {number}, where {group.row_count} with other values went in"
                    raise not_as_written(what, [file])


def _check_said(
    file: DataFile, chunks: Sequence[Struct], group: _RowGroup, places: Mapping[int, "_Place"], indexes: Indexes
) -> None:
    """Raise `IcekeepBug` unless the chunks of a row group say what they shall of their pages, beside the bytes of these."""
    moved = {places[id_].position: (id_, said) for id_, said in group.said.items() if id_ in places}
    orders = {place.position: place.order for place in places.values()}
    for position, chunk in enumerate(chunks):
        id_, said = moved.get(position, (None, None))
        if not has_right_pages(chunk, indexes, group.row_count, said):
            raise not_as_written(f"an offset index of column {position} that does not lead through its pages", [file])
        if said is not None and not has_right_bounds(chunk, indexes, said, orders[position]):
            raise not_as_written(f"other bounds of the column with id {id_} than its sources", [file])


def _bytes_of(data: memoryview, start: int, length: int) -> memoryview:
    return data[start : start + length]


class _Place(msgspec.Struct, frozen=True):
    """A column among those of a file, how its values are stored, and their order."""

    position: int
    stored: tuple[object, ...]
    order: Order


class _Columns:
    """Where the columns of files are; worked out anew only where a file differs from the one before."""

    def __init__(self) -> None:
        self._last: tuple[pq.ParquetSchema, dict[int, _Place]] | None = None

    def of(self, metadata: pq.FileMetaData) -> Mapping[int, _Place]:
        """By field id, of the top-level columns that hold values."""
        schema = metadata.schema
        if self._last is None or not self._last[0].equals(schema):
            ids = {field.name: field_id(field) for field in schema.to_arrow_schema()}
            leaves = [schema.column(position) for position in range(len(schema))]
            places = {ids.get(leaf.path): _Place(n, stored_as(leaf), order_of(leaf)) for n, leaf in enumerate(leaves)}
            self._last = schema, {id_: place for id_, place in places.items() if id_ is not None}
        return self._last[1]


class _Digest:
    """Of the chunks of a column, one behind the other."""

    def __init__(self) -> None:
        self._bytes = xxhash.xxh3_128()
        self._value_count = 0
        self._codecs: set[str] = set()
        self._stored: set[tuple[object, ...]] = set()

    def add(
        self, metadata: pq.FileMetaData, number: int, place: _Place | None, read: Callable[[int, int], Any]
    ) -> None:
        """Add the chunk of a row group, whose bytes `read` gives by their place and number; nothing where there is no column."""
        if place is None or not metadata.row_group(number).num_rows:
            return
        chunk = metadata.row_group(number).column(place.position)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        self._bytes.update(read(start, chunk.total_compressed_size))
        self._value_count += chunk.num_values
        self._codecs.add(chunk.compression)
        self._stored.add((*place.stored, chunk.physical_type))

    @property
    def total(self) -> _Moved:
        """What was added so far."""
        return _Moved(self._bytes.digest(), self._value_count, frozenset(self._codecs), frozenset(self._stored))


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


class _spliced_file_RowGroup(msgspec.Struct, frozen=True):
    row_count: int
    chunks: tuple[_Chunk, ...]


class SplicedFile:
    """A file that is being put together, a row group at a time."""

    def __init__(self, storage: Storage, location: str, shape: Shape) -> None:
        self._shape = shape
        self._location = location
        self._row_groups: list[_spliced_file_RowGroup] = []
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
        self._row_groups.append(_spliced_file_RowGroup(row_count, tuple(chunks)))
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
        for number in (6, 4):
            for group, found in zip(self._row_groups, places, strict=True):
                for chunk, fields in zip(group.chunks, found, strict=True):
                    index = chunk.column_index if number == 6 else chunk.offset_index
                    if index is not None:
                        fields |= {number: self._end, number + 1: len(index)}
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


def _row_group_bytes(group: _spliced_file_RowGroup, places: list[dict[int, int]], ordinal: int) -> bytes:
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


MAX_SPLICED_BYTES = 32 * MIB
"""A larger file is no small file: its row groups are stitched, or it is cut into pieces."""

MIN_PAGE_BYTES = 4 * 1024
"""Smaller pages, on average of a row group, are better merged: a page costs its readers time, and compresses worse."""

MIN_SHARE = 0.2
"""The share of the bytes that must be moved, or splicing does not pay."""

_ENCODED = "memory:/encoded.parquet"


def rewrite_spliced(task: RewriteTask, storage: Storage) -> RewriteOutcome | None:
    """Do what `rewrite` does by splicing; `None` where that cannot be done or does not pay, and then nothing was written.

    Raises what `rewrite` raises; if anything fails, no new file is left.
    """
    if not _may_splice(task):
        return None
    options = task_options(task)
    if not isinstance(options.encoding, ParquetOptions):
        return None
    columns = columns_to_write(task)
    with _Splicer(task, columns, options, options.encoding, storage) as splicer:
        if not splicer.pays():
            return None
        for group in splicer.groups():
            splicer.write(group)
        files = splicer.close()
        proof = splicer.proof
    with removed_on_failure([file.file_path for file in files], storage):
        row_count = sum(file.record_count for file in files)
        if row_count != sum(piece.record_count for piece in task.pieces):
            raise IcekeepBug(f"a rewrite of {len(task.pieces)} files wrote {row_count} rows; its files are deleted")
        proved = None if proof is None else proof.check(files, storage)
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


class _Splicer:
    """Writes row groups of whole files into new files, of which none is left unless `close` was reached.

    Attributes:
        proof: takes down what is written; `None` where nobody asks for it.
    """

    def __init__(
        self, task: RewriteTask, columns: Schema, options: WriteOptions, encoding: ParquetOptions, storage: Storage
    ) -> None:
        self._storage = storage
        self._held = HeldFiles(storage)
        self._keeps_lineage = columns is not task.schema
        self._task = msgspec.structs.replace(task, keeps_lineage=self._keeps_lineage)
        self._options, self._encoding = options, encoding
        self._modes = metrics_modes({}, columns) if options.metrics_modes is None else options.metrics_modes
        self._stored = stored_schema(columns)
        self._shape, self._examiner = self._described()
        self._partition = task.pieces[0].partition
        self._new_location = FileNames(task, options).in_partition(self._partition)
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

    def pays(self) -> bool:
        """Whether splicing pays for the largest file, which speaks for all: where it is wrong, only time is lost."""
        largest = self._source(max(self._task.pieces, key=lambda piece: piece.size_bytes))
        return bool(self.moved_columns([largest]))

    def groups(self) -> Iterator[list[SpliceSource]]:
        """The files of each new row group. They are held as bytes until the group is written."""
        group: list[SpliceSource] = []
        size_bytes = arrow_bytes = row_count = 0
        for piece in self._task.pieces:
            # A column that one file of the row group cannot give need not be looked for in the others.
            source = self._source(piece, group[-1].chunks if group else None)
            size_bytes += piece.size_bytes
            arrow_bytes += source.arrow_bytes
            row_count += piece.record_count
            # The half of a file that is nearer to the limit decides.
            if group and not self._fits(row_count, size_bytes - piece.size_bytes // 2, arrow_bytes):
                yield group
                source = self._source(piece)
                group, row_count, size_bytes, arrow_bytes = [], piece.record_count, piece.size_bytes, source.arrow_bytes
            group.append(source)
        if group:
            yield group

    def moved_columns(self, group: list[SpliceSource]) -> set[int]:
        """Field ids of the columns that are moved, none where that does not pay."""
        shared = set.intersection(*(set(source.chunks) for source in group))
        sizes = {id_: size for id_ in shared if (size := _moved_bytes(group, id_)) is not None}
        if len(sizes) == len(self._stored.fields):
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
        arrow_bytes = 0
        if self.proof is not None:
            self.proof.begin_rows(rows.columns)
        for source in group:
            found = [self._noted(table) for table in rows.read([source.piece])]
            read.append(source)
            tables += found
            arrow_bytes += sum(table.nbytes for table in found)
            if arrow_bytes >= self._options.row_group_arrow_bytes:
                self._write_row_group(read, tables, rows.columns, moved)
                read, tables, arrow_bytes = [], [], 0
                if self.proof is not None:
                    self.proof.begin_rows(rows.columns)
        self._write_row_group(read, tables, rows.columns, moved)
        for source in group:
            self._held.files.pop(source.piece.location, None)
        self._ratio = sum(source.piece.size_bytes for source in group) / max(
            1, sum(source.arrow_bytes for source in group)
        )

    def _noted(self, table: pa.Table) -> pa.Table:
        if self.proof is not None:
            self.proof.add(table)
        return table

    def _source(self, piece: FilePiece, wanted: Collection[int] | None = None) -> SpliceSource:
        """A file, held as bytes from now on unless it is longer or shorter than was said."""
        with self._held.open(piece.location) as stream:
            data = stream.read(piece.size_bytes + 1)
        if len(data) == piece.size_bytes:
            self._held.files[piece.location] = data
            return self._examiner.examine(piece, data, wanted)
        return SpliceSource(piece, b"", piece.size_bytes, {})

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

    def _write_row_group(
        self, sources: list[SpliceSource], tables: list[pa.Table], columns: Schema, moved: set[int]
    ) -> None:
        """Write the rows of files; `tables` are what was read of them in `columns`, the others are moved."""
        if not any(table.num_rows for table in tables):
            return
        footer, encoded, nan_counts = self._encoded(tables, columns)
        if self._file is None:
            self._location = self._new_location()
            self._file = SplicedFile(self._storage, self._location, self._shape)
            if self.proof is not None:
                self.proof.begin_file()
        if self.proof is not None:
            self.proof.take(sources, moved)
        before_bytes = self._file.written_bytes
        chunks: dict[int, MovedChunks] = {
            id_: [(source.data, chunk) for source in sources for chunk in source.chunks[id_]] for id_ in moved
        }
        self._file.add(encoded, footer, chunks, nan_counts)
        added_bytes = self._file.written_bytes - before_bytes
        if self._file.written_bytes + added_bytes / 4 >= self._options.target_file_size_bytes:
            self._finish_file()

    def _encoded(self, tables: list[pa.Table], columns: Schema) -> tuple[Footer, bytes, Mapping[int, int]]:
        """Rows as a file of one row group; and how many NaN they have."""
        encoding = msgspec.structs.replace(self._encoding, row_group_size_bytes=MAX_LONG)
        options = msgspec.structs.replace(
            self._options, encoding=encoding, target_file_size_bytes=MAX_LONG, row_group_arrow_bytes=MAX_LONG
        )
        with DataFileWriter(self._held, columns, options, lambda: _ENCODED) as writer:
            for table in tables:
                writer.write(table)
            (file,) = writer.close()
        footer = read_footer(self._held, _ENCODED, file.file_size_in_bytes)
        return footer, self._held.files.pop(_ENCODED), file.nan_value_counts or {}

    def _described(self) -> tuple[Shape, SpliceExaminer]:
        """What new files have in common, by way of one without rows."""
        empty = pa.Table.from_batches([], schema=arrow_schema(self._stored))
        writer = ParquetWriter(self._held, _ENCODED, self._stored, self._encoding, self._modes, empty, ())
        size_bytes, _ = writer.finish()
        footer = read_footer(self._held, _ENCODED, size_bytes)
        with self._held.open(_ENCODED) as stream:
            examiner = SpliceExaminer(self._stored, self._encoding, pq.ParquetFile(stream))
        del self._held.files[_ENCODED]
        return Shape(footer, examiner.columns, CODECS[self._encoding.compression], self._stored, self._modes), examiner

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


def _moved_bytes(group: list[SpliceSource], field_id: int) -> int | None:
    """How many bytes of a column are there to be moved; `None` where its pages are small, or of both versions."""
    pages = [chunk.pages for source in group for chunk in source.chunks[field_id]]
    if len({chunk.kind for chunk in pages}) > 1:
        return None
    size_bytes = sum(chunk.compressed_bytes for chunk in pages)
    return size_bytes if size_bytes >= MIN_PAGE_BYTES * sum(len(chunk.pages) for chunk in pages) else None
