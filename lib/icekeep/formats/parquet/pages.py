"""Pages of Parquet column chunks and their indexes, for copying (Parquet, `PageHeader`, `OffsetIndex`, `ColumnIndex`).

A chunk whose pages need anything else of it, such as a dictionary, cannot be moved page by page. Only columns without repetition
can: each value is a row.

Bounds are bytes as Parquet stores them, compared in the order that it defines for the column's type.
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow.parquet as pq

from icekeep.formats.parquet.footer import (
    DATA_PAGE,
    DATA_PAGE_V2,
    MAGIC,
    TAIL_BYTES,
    CannotMove,
    Footer,
    RowGroup,
    bytes_at,
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
    list_bytes,
    struct_bytes,
    varint_at,
    with_integers,
)
from icekeep.spec.types import MAX_INT, MIB

_HEADS = {DATA_PAGE: 5, DATA_PAGE_V2: 8}
"""By page type, the field of `PageHeader` with the header of that type; its statistics are in the field of the same number."""

_MAX_PAGE_BYTES = MAX_INT
_OFFSET_INDEX_FIELDS = {1, 2}


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

_INT96_BYTES = 12


class CannotMovePages(Exception):
    """The pages of a chunk cannot be moved; the message is the reason."""


class DataPage(NamedTuple):
    """A data page: its bounds in the file, with its header, and its number of rows."""

    start: int
    end: int
    row_count: int


class ChunkPages(msgspec.Struct, frozen=True):
    """The pages of a column chunk, in order and without gaps.

    Attributes:
        kind: the type of all pages, by Parquet's number.
        encodings: of all pages, by Parquet's numbers.
        uncompressed_bytes: of all pages with their headers.
    """

    pages: tuple[DataPage, ...]
    kind: int
    encodings: frozenset[int]
    uncompressed_bytes: int

    @property
    def compressed_bytes(self) -> int:
        """Of all pages with their headers."""
        return self.pages[-1].end - self.pages[0].start


def chunk_pages(
    data: bytes, start: int, end: int, *, physical_type: str, has_nulls: bool, row_count: int
) -> ChunkPages:
    """The pages of the chunk between `start` and `end`, checked against its metadata.

    Args:
        data: the whole file.
        has_nulls: whether the column is optional, so that its pages have definition levels.
        row_count: of the chunk.

    Raises:
        CannotMovePages: a page needs something else of the chunk, or there are pages of both versions.
        Damaged: the pages contradict the chunk's metadata or their checksums.
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
        if size_bytes < 0 or not 0 <= plain_bytes <= _MAX_PAGE_BYTES or page.end > end:
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
    return ChunkPages(tuple(pages), kinds.pop(), frozenset(encodings), uncompressed_bytes)


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
    if index.end != len(data) or not index.spans.keys() <= _OFFSET_INDEX_FIELDS:
        raise CannotMove("an offset index has fields that icekeep does not know")
    return with_integers(data, 0, len(data), [(place, place.value + shift) for place in places])


def footer_bytes(first: Footer, row_count: int, row_groups: list[bytes]) -> bytes:
    """A footer of encoded row groups, with everything else as in `first`."""
    return struct_bytes(
        [
            (1, I32, first.version),
            (2, LIST, first.schema),
            (3, I64, row_count),
            (4, LIST, list_bytes(STRUCT, row_groups)),
            (5, LIST, first.key_values),
            (6, BINARY, first.created_by),
            (7, LIST, first.column_orders),
        ]
    )


Order = Callable[[bytes], Any]
"""A sort key of stored values of a type; raises `ValueError` for bytes that are no value."""


class PageBounds(msgspec.Struct, frozen=True):
    """Nulls and bounds of a page; the count is null if the index has none, the bounds if the page has only nulls."""

    null_count: int | None
    least: bytes | None
    greatest: bytes | None


def value_bytes(leaf: pq.ColumnSchema) -> int | None:
    """The size of each value of a column in bytes; null for values of variable length."""
    match leaf.physical_type:
        case "BYTE_ARRAY":
            return None
        case "FIXED_LEN_BYTE_ARRAY":
            return int(leaf.length)
        case "INT96":
            return _INT96_BYTES
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
