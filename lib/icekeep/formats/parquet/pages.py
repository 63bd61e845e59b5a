"""Data pages of Parquet column chunks that may be moved to other files, and their indexes and bounds.

A chunk may be moved page by page if a reader cannot distinguish its pages, except by their number of rows, from those of the
table's writer: it is stored in the same way, with the same codec, its pages need nothing else of it, such as a dictionary, and
the metrics for manifests and footers are known without reading its values. Only columns without repetition can be: each value is
a row. Bounds are bytes as Parquet stores them, compared in the order that it defines for the column's type.
"""

import re
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.formats.arrow.schema import field_id
from icekeep.formats.base import value_width
from icekeep.formats.options import ParquetOptions
from icekeep.formats.parquet.footer import (
    CODECS,
    DATA_PAGE,
    DATA_PAGE_V2,
    LINEAGE_IDS,
    MAGIC,
    TAIL_BYTES,
    CannotMove,
    Footer,
    RowGroup,
    bytes_at,
    footer_length,
    page_range,
)
from icekeep.formats.parquet.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Damaged,
    Struct,
    binary_bytes,
    list_bytes,
    struct_bytes,
    varint_at,
    with_integers,
)
from icekeep.spec.avro import encode_long
from icekeep.spec.schema import Schema
from icekeep.spec.types import BOOLEAN, FLOATING_TYPES, MAX_INT, MIB, PrimitiveType

_HEADS = {DATA_PAGE: 5, DATA_PAGE_V2: 8}
"""By page type, the field of `PageHeader` with the header of that type; its statistics are in the field of the same number."""


class _Fields(NamedTuple):
    """The kinds of required and of allowed fields, by id: other libraries read no header with any others."""

    needed: Mapping[int, int]
    allowed: Mapping[int, int]


_PAGE = _Fields({1: I32, 2: I32, 3: I32}, {1: I32, 2: I32, 3: I32, 4: I32, 5: STRUCT, 8: STRUCT})
_COUNTS = {1: I32, 2: I32, 3: I32, 4: I32}
_LEVELS = {5: I32, 6: I32}
_DATA = {
    DATA_PAGE: _Fields(_COUNTS, {**_COUNTS, 5: STRUCT}),
    DATA_PAGE_V2: _Fields({**_COUNTS, **_LEVELS}, {**_COUNTS, **_LEVELS, 7: TRUE, 8: STRUCT}),
}
_STATISTICS = _Fields({}, {1: BINARY, 2: BINARY, 3: I64, 4: I64, 5: BINARY, 6: BINARY, 7: TRUE, 8: TRUE})

_PLAIN, _RLE, _BIT_PACKED = 0, 3, 4
_SELF_CONTAINED = {
    _PLAIN: {"INT32", "INT64", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"},
    5: {"INT32", "INT64"},
    6: {"BYTE_ARRAY"},
    7: {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"},
    9: {"INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"},
}
"""By Parquet's number of an encoding, the physical types whose pages need nothing else of their chunk."""

_LAYOUTS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
"""The formats of fixed-width values for `struct`, by physical type."""

_OLD_WRITERS = re.compile(rb"parquet-mr version 1\.[0-7]\.")
"""Their pages of DELTA_BYTE_ARRAY depend on the page before (PARQUET-246)."""

NULL_COUNT, MAX_VALUE, MIN_VALUE, _EXACT = 3, 5, 6, (7, 8)
"""Fields of statistics; the flags are whether each bound is exact."""

OFFSET_INDEX, COLUMN_INDEX = 4, 6
"""Fields of a column chunk with the offset of an index; its length is in the next field."""

_CHUNK_FIELDS = {2, 3, 4, 5, 6, 7}
UNORDERED, ASCENDING, DESCENDING = 0, 1, 2

Order = Callable[[bytes], Any]
"""A sort key of stored values of a type; raises `ValueError` for bytes that are no value."""


class CannotMovePages(Exception):
    """The pages of a chunk cannot be moved; the message is the reason."""


class DataPage(NamedTuple):
    """A data page: its bounds in the file, with its header, and its number of rows."""

    start: int
    end: int
    row_count: int


class PageBounds(msgspec.Struct, frozen=True):
    """Nulls and bounds of a page; the count is null if the index has none, the bounds if the page has only nulls."""

    null_count: int | None
    least: bytes | None
    greatest: bytes | None


class ChunkBounds(msgspec.Struct, frozen=True):
    """Nulls and bounds of a chunk, and of each of its pages if the file has them."""

    null_count: int
    least: bytes | None
    greatest: bytes | None
    pages: tuple[PageBounds, ...] | None


class MovableChunk(msgspec.Struct, frozen=True):
    """The pages of a column chunk, in order and without gaps.

    Attributes:
        kind: the type of all pages, by Parquet's number.
        encodings: of all pages, by Parquet's numbers.
        compressed_bytes, uncompressed_bytes: of all pages with their headers.
        bounds: null if the new files have no statistics of the column.
    """

    pages: tuple[DataPage, ...]
    kind: int
    encodings: frozenset[int]
    compressed_bytes: int
    uncompressed_bytes: int
    bounds: ChunkBounds | None = None


class MovableColumn(msgspec.Struct, frozen=True):
    """A column of the new files whose pages may be moved; `has_statistics`: whether these have statistics of it."""

    leaf: pq.ColumnSchema
    order: Order
    has_statistics: bool


class PageSource(msgspec.Struct, frozen=True):
    """A file as bytes, and the chunks of its columns that may be moved, by field id.

    Attributes:
        arrow_bytes: an estimate of the memory that its rows take.
    """

    data: bytes
    arrow_bytes: int
    chunks: Mapping[int, tuple[MovableChunk, ...]] = {}


class _Layout(NamedTuple):
    """What files of equal `key` have in common: the encoded schema and orders of their footers.

    `positions` are those of the columns that may be moved, by field id; `row_bytes` is an estimate of a row's memory.
    """

    key: tuple[bytes | None, bytes | None]
    columns_count: int
    row_bytes: int
    positions: Mapping[int, int]


class PageExaminer:
    """Finds the columns of files that may be moved; `columns` are the candidates by field id."""

    def __init__(self, schema: Schema, options: ParquetOptions, written: pq.ParquetFile) -> None:
        """Args:
        schema: of the new files, without columns that files do not store.
        options: of the new files.
        written: a file with these columns by the table's writer.
        """
        self._codec = CODECS[options.compression]
        self._layout: _Layout | None = None
        places, wishes = _leaf_positions(written), options.columns
        columns: dict[int, MovableColumn] = {}
        for field in schema.fields:
            id_, type_ = field.field_id, field.type
            # Manifests count the NaNs of floating-point numbers, which footers do not.
            is_counted = isinstance(type_, PrimitiveType) and type_ not in (BOOLEAN, *FLOATING_TYPES)
            if not is_counted or id_ in LINEAGE_IDS or id_ not in places:
                continue
            if wishes.bloom_filters.get(field.name) or wishes.dictionaries.get(field.name):
                continue
            leaf = written.metadata.schema.column(places[id_])
            columns[id_] = MovableColumn(leaf, order_of(leaf), wishes.statistics.get(field.name, True))
        self.columns: Mapping[int, MovableColumn] = columns

    def examine(self, data: bytes, record_count: int, field_ids: Collection[int] | None = None) -> PageSource:
        """The chunks of a file, of some columns, that may be moved; none if its footer is damaged, which the decoder reports."""
        nothing = PageSource(data, len(data))
        try:
            encoded = data[-TAIL_BYTES - footer_length(data, len(data)) : -TAIL_BYTES]
            footer = Struct(encoded)
            key = footer.raw(2), footer.raw(7)
            if self._layout is None or self._layout.key != key:
                self._layout = self._read_layout(footer, data)
            layout = self._layout
            groups = [(group.value(3, -1), group.structs(1)) for group in footer.structs(4)]
            counts = [footer.required_integer(3).value, sum(count for count, _ in groups)]
            if (
                footer.end != len(encoded)
                or counts != [record_count] * 2
                or any(count < 0 or len(chunks) != layout.columns_count for count, chunks in groups)
                or _OLD_WRITERS.match(footer.binary(6) or b"")
            ):
                return nothing
        except (pa.ArrowException, OSError, ValueError, CannotMove):
            return nothing
        found: dict[int, tuple[MovableChunk, ...]] = {}
        text_bytes = 0
        for id_, position in layout.positions.items():
            if field_ids is not None and id_ not in field_ids:
                continue
            column = self.columns[id_]
            # All row groups that have rows, or none.
            with suppress(CannotMovePages, ValueError):
                found[id_] = tuple(self._chunk(of[position], count, column, data) for count, of in groups if count)
                if column.leaf.physical_type == "BYTE_ARRAY":
                    text_bytes += sum(chunk.compressed_bytes for chunk in found[id_])
        return PageSource(data, record_count * layout.row_bytes + 2 * text_bytes, found)

    def _read_layout(self, footer: Struct, data: bytes) -> _Layout:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema, places = file.metadata.schema, _leaf_positions(file)
        ordered = {n for n, order in enumerate(footer.structs(7)) if 1 in order.spans}
        positions = {
            id_: places[id_]
            for id_, column in self.columns.items()
            if id_ in places
            and stored_as(schema.column(places[id_])) == stored_as(column.leaf)
            and (places[id_] in ordered or not column.has_statistics)
        }
        row_bytes = sum(max(1, value_width(field.type)) for field in file.schema_arrow)
        return _Layout((footer.raw(2), footer.raw(7)), len(schema), row_bytes, positions)

    def _chunk(self, chunk: Struct, row_count: int, column: MovableColumn, data: bytes) -> MovableChunk:
        about = chunk.struct(3)
        if about is None or about.value(11) or about.value(4) != self._codec:
            raise CannotMovePages("it has a dictionary, or another codec")
        if about.value(5) != row_count or not chunk.spans.keys() <= _CHUNK_FIELDS:
            raise CannotMovePages("it has not one value a row, or is encrypted or in another file")
        start, length = page_range(about)
        is_optional = column.leaf.max_definition_level > 0
        pages = chunk_pages(
            data,
            start,
            start + length,
            physical_type=column.leaf.physical_type,
            has_nulls=is_optional,
            row_count=row_count,
        )
        if pages.uncompressed_bytes != about.required_integer(6).value:
            raise Damaged("the pages of a column chunk are longer or shorter than it says")
        if not pages.encodings <= {*about.integers(2)}:
            raise Damaged("a page is encoded in a way that its column chunk does not name")
        if not column.has_statistics:
            return pages
        bounds = _bounds(chunk, about, row_count if is_optional else 0, column.order, pages.pages, data)
        return msgspec.structs.replace(pages, bounds=bounds)


def _leaf_positions(file: pq.ParquetFile) -> dict[int, int]:
    """The positions in row groups of the top-level columns with values, by field id.

    Those whose id or path is not unique are left out: `a.b` may be the name of a column and the path of a field in another.
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
    """Everything that decides how the values of a column are decoded."""
    levels = leaf.max_definition_level, leaf.max_repetition_level
    return leaf.physical_type, str(leaf.logical_type), leaf.length, leaf.precision, leaf.scale, *levels


def _bounds(
    chunk: Struct, about: Struct, max_nulls: int, order: Order, pages: Sequence[DataPage], data: bytes
) -> ChunkBounds:
    """The bounds of a chunk in its file; raises `CannotMovePages` if they are incomplete."""
    statistics = about.struct(12)
    if statistics is None or NULL_COUNT not in statistics.spans:
        raise CannotMovePages("its nulls are not counted")
    null_count = statistics.value(NULL_COUNT)
    if not 0 <= null_count <= max_nulls:
        raise Damaged("a column chunk has more nulls than it can have")
    least = greatest = None
    if null_count < about.value(5):
        least, greatest = statistics.binary(MIN_VALUE), statistics.binary(MAX_VALUE)
        if least is None or greatest is None:
            raise CannotMovePages("its bounds are not known")
        if any(flag in statistics.spans and not statistics.boolean(flag) for flag in _EXACT):
            # Manifests of a table that asks for full metrics hold least and greatest values, not cut ones.
            raise CannotMovePages("its bounds were cut")
        if order(least) > order(greatest):
            raise Damaged("the bounds of a column chunk are the wrong way round")
    if len(pages) == 1:
        return ChunkBounds(null_count, least, greatest, (PageBounds(null_count, least, greatest),))
    start, length = chunk.value(COLUMN_INDEX), chunk.value(COLUMN_INDEX + 1)
    of_pages = None
    if len(MAGIC) <= start < start + length <= len(data):
        of_pages = pages_of_index(data[start : start + length], [page.row_count for page in pages], order)
    return ChunkBounds(null_count, least, greatest, of_pages)


def chunk_pages(
    data: bytes, start: int, end: int, *, physical_type: str, has_nulls: bool, row_count: int
) -> MovableChunk:
    """The pages of the chunk between `start` and `end` of a file; `has_nulls`: whether they have definition levels.

    Raises `CannotMovePages` if a page needs something else of the chunk, or there are pages of both versions, and `Damaged` if
    the pages contradict the chunk's metadata or their checksums.
    """
    if not len(MAGIC) <= start < end <= len(data) - TAIL_BYTES or row_count < 1:
        raise Damaged("a column chunk lies outside of the file's data")
    pages: list[DataPage] = []
    kinds: set[int] = set()
    encodings: set[int] = set()
    uncompressed_bytes = rows = 0
    position = start
    while position < end:
        head = Struct(data, position)
        _require_fields(head, _PAGE)
        kind, plain_bytes, size_bytes = head.value(1), head.value(2), head.value(3)
        count, encoding = _values_of(head, kind, physical_type, has_nulls)
        page = DataPage(position, head.end + size_bytes, count)
        if size_bytes < 0 or not 0 <= plain_bytes <= MAX_INT or page.end > end:
            raise Damaged("a page is longer than its column chunk")
        if count > row_count:
            raise Damaged("a page has more rows than its column chunk")
        if kind == DATA_PAGE_V2 and has_nulls:
            _check_levels(data, head)
        encodings.add(encoding)
        # Plain numbers of one width: their size follows from their count.
        width = {"INT32": 4, "INT64": 8}.get(physical_type)
        if not has_nulls and width is not None and encodings == {_PLAIN} and plain_bytes != width * count:
            raise Damaged("a page has more or fewer bytes than its values take")
        checksum = head.integer(4)
        if checksum is not None and zlib.crc32(memoryview(data)[head.end : page.end]) != checksum.value & 0xFFFFFFFF:
            raise Damaged("a page does not have the checksum that it says")
        kinds.add(kind)
        pages.append(page)
        rows += count
        uncompressed_bytes += head.end - position + plain_bytes
        position = page.end
    if rows != row_count:
        raise Damaged(f"the pages of a column chunk have {rows} rows, the chunk has {row_count}")
    if len(kinds) > 1:
        raise CannotMovePages("it has data pages of both versions")
    return MovableChunk(tuple(pages), kinds.pop(), frozenset(encodings), end - start, uncompressed_bytes)


def _values_of(head: Struct, kind: int, physical_type: str, has_nulls: bool) -> tuple[int, int]:
    """The number of values of a data page, with nulls, and their encoding."""
    about = head.struct(_HEADS[kind]) if kind in _HEADS else None
    if about is None:
        raise CannotMovePages("a page is no data page")
    _require_fields(about, _DATA[kind])
    if statistics := about.struct(_HEADS[kind]):
        _require_fields(statistics, _STATISTICS)
    count = about.value(1)
    if count < 1:
        raise CannotMovePages("a page has no values")
    if kind == DATA_PAGE:
        encoding = about.value(2)
        levels = about.value(3), about.value(4)
        if not {*levels} <= {_RLE, _BIT_PACKED} or (has_nulls and levels[0] != _RLE):
            raise CannotMovePages("its levels are encoded in an old way")
    else:
        encoding, levels_bytes = about.value(4), about.value(5)
        if about.value(3) != count or about.value(6) or not 0 <= about.value(2) <= count:
            raise Damaged("a page has not one value a row")
        if levels_bytes < 0 or (levels_bytes and not has_nulls) or levels_bytes > head.value(3):
            raise Damaged("a page has levels that its column has not")
        is_compressed = 7 not in about.spans or about.boolean(7)
        if not is_compressed and head.value(3) != head.value(2):
            raise Damaged("a page that is not compressed has two sizes")
    if physical_type not in _SELF_CONTAINED.get(encoding, ()):
        raise CannotMovePages("a page is encoded by a dictionary, or in a way that icekeep does not know")
    return count, encoding


def _check_levels(data: bytes, head: Struct) -> None:
    """Raise `Damaged` unless the levels of a version 2 page have the length and the nulls of its header.

    No checksum covers that (Parquet, "RLE / Bit-Packing Hybrid").
    """
    about = head.required_struct(_HEADS[DATA_PAGE_V2])
    count, nulls, length = about.value(1), about.value(2), about.value(5)
    if not length:
        if nulls:
            raise Damaged("a page has nulls without levels")
        return
    position, end = head.end, head.end + length
    seen = present = 0
    while position < end and seen < count:
        run, position = varint_at(data, position)
        if run & 1:
            width = run >> 1
            bits = int.from_bytes(data[position : position + width], "little")
            present += (bits & ((1 << max(0, min(8 * width, count - seen))) - 1)).bit_count()
            position += width
            seen += 8 * width
        else:
            present += (run >> 1) * data[position]
            position += 1
            seen += run >> 1
    if position != end or seen < count or present != count - nulls:
        raise Damaged("a page has not the levels that its head says")


def _require_fields(of: Struct, fields: _Fields) -> None:
    kinds = {id_: TRUE if span.kind == FALSE else span.kind for id_, span in of.spans.items()}
    if not fields.needed.items() <= kinds.items() or not kinds.items() <= fields.allowed.items():
        raise CannotMovePages("the head of a page has fields that icekeep does not know")


def offset_indexes(source: BinaryIO, footer: Footer, groups: Sequence[RowGroup] | None = None) -> dict[int, bytes]:
    """The encoded offset indexes of a file or some of its row groups, by offset; raises `Damaged` if the file ends before one."""
    chunks = (chunk for group in (footer.full_groups if groups is None else groups) for chunk in group.chunks)
    places = sorted(
        (chunk.offset_index[0].value, chunk.offset_index[1].value) for chunk in chunks if chunk.offset_index
    )
    if not places:
        return {}
    # In most files they are contiguous: one request reads them all.
    start, end = places[0][0], max(offset + length for offset, length in places)
    if end - start > 2 * sum(length for _, length in places) + MIB:
        return {offset: bytes_at(source, offset, length) for offset, length in places}
    data = bytes_at(source, start, end - start)
    return {offset: data[offset - start : offset - start + length] for offset, length in places}


def moved_offset_index(data: bytes, shift: int) -> bytes:
    """An offset index with the offsets of its pages shifted; raises `CannotMove` if it is damaged or has unknown fields."""
    try:
        index = Struct(data)
        places = [page.required_integer(1) for page in index.structs(1)]
    except Damaged as error:
        # A reader of all rows does not use it, so the file can still be decoded and encoded again.
        raise CannotMove("an offset index is damaged") from error
    if index.end != len(data) or not index.spans.keys() <= {1, 2}:
        raise CannotMove("an offset index has fields that icekeep does not know")
    return with_integers(data, 0, len(data), [(place, place.value + shift) for place in places])


def footer_bytes(first: Footer, row_count: int, row_groups: list[bytes]) -> bytes:
    """A footer of encoded row groups, with everything else as in `first`."""
    version, schema, key_values, created_by, column_orders = first.common_fields
    return struct_bytes(
        [
            (1, I32, version),
            (2, LIST, schema),
            (3, I64, row_count),
            (4, LIST, list_bytes(STRUCT, row_groups)),
            (5, LIST, key_values),
            (6, BINARY, created_by),
            (7, LIST, column_orders),
        ]
    )


def value_bytes(leaf: pq.ColumnSchema) -> int | None:
    """The size of each value of a column in bytes; null for values of variable length."""
    match leaf.physical_type:
        case "BYTE_ARRAY":
            return None
        case "FIXED_LEN_BYTE_ARRAY":
            return int(leaf.length)
        case "INT96":
            return 12
    return struct.calcsize(_LAYOUTS[leaf.physical_type])


def order_of(leaf: pq.ColumnSchema) -> Order:
    """The order of a column: numbers, with decimals in bytes, by value, all else byte by byte. NaN has no order."""
    layout = None if leaf.physical_type == "BOOLEAN" else _LAYOUTS.get(leaf.physical_type)
    length, is_decimal = value_bytes(leaf), leaf.logical_type.type == "DECIMAL"

    def order(value: bytes) -> Any:
        if length is not None and len(value) != length:
            raise ValueError(f"a value of {length} bytes has {len(value)}")
        if layout:
            return struct.unpack(layout, value)[0]
        return int.from_bytes(value, "big", signed=True) if is_decimal else value

    return order


def pages_of_index(data: bytes, row_counts: Sequence[int], order: Order) -> tuple[PageBounds, ...] | None:
    """The pages of a column index; null if it is damaged or does not fit pages with these numbers of rows."""
    try:
        index = Struct(data)
        nulls, least, greatest = index.booleans(1), index.binaries(2), index.binaries(3)
        counts: Sequence[int | None] = index.integers(5) if 5 in index.spans else [None] * len(row_counts)
        if {len(nulls), len(least), len(greatest), len(counts)} != {len(row_counts)}:
            return None
        pages: list[PageBounds] = []
        for is_null, low, high, count, rows in zip(nulls, least, greatest, counts, row_counts, strict=True):
            if count is not None and (not 0 <= count <= rows or (count == rows) != is_null):
                return None
            if not is_null and order(low) > order(high):
                return None
            pages.append(PageBounds(count, None, None) if is_null else PageBounds(count, low, high))
    except ValueError:
        return None
    return tuple(pages)


def bounds_of_all(chunks: Sequence[ChunkBounds], order: Order) -> tuple[bytes | None, bytes | None]:
    """The bounds of all chunks together; those with only nulls are left out."""
    least = [chunk.least for chunk in chunks if chunk.least is not None]
    greatest = [chunk.greatest for chunk in chunks if chunk.greatest is not None]
    return min(least, key=order, default=None), max(greatest, key=order, default=None)


def statistics_bytes(chunks: Sequence[ChunkBounds], order: Order) -> bytes:
    """The encoded statistics of all chunks together; each has bounds unless all its values are null."""
    least, greatest = bounds_of_all(chunks, order)
    return struct_bytes(
        [
            (NULL_COUNT, I64, sum(chunk.null_count for chunk in chunks)),
            (MAX_VALUE, BINARY, None if greatest is None else binary_bytes(greatest)),
            (MIN_VALUE, BINARY, None if least is None else binary_bytes(least)),
        ]
    )


def column_index_bytes(chunks: Sequence[ChunkBounds], order: Order) -> bytes | None:
    """The encoded column index of all chunks' pages; null if a chunk has no bounds of its pages."""
    pages: list[PageBounds] = []
    for chunk in chunks:
        if chunk.pages is None:
            return None
        pages += chunk.pages
    least, greatest = [page.least for page in pages], [page.greatest for page in pages]
    sides = [[order(bound) for bound in side if bound is not None] for side in (least, greatest)]
    direction = UNORDERED
    if all(a <= b for keys in sides for a, b in pairwise(keys)):
        direction = ASCENDING
    elif all(a >= b for keys in sides for a, b in pairwise(keys)):
        direction = DESCENDING
    counts = [page.null_count for page in pages if page.null_count is not None]
    return struct_bytes(
        [
            (1, LIST, list_bytes(TRUE, [b"\1" if bound is None else b"\2" for bound in least])),
            (2, LIST, list_bytes(BINARY, [binary_bytes(bound or b"") for bound in least])),
            (3, LIST, list_bytes(BINARY, [binary_bytes(bound or b"") for bound in greatest])),
            (4, I32, direction),
            (5, LIST, list_bytes(I64, [*map(encode_long, counts)]) if len(counts) == len(pages) else None),
        ]
    )
