"""The data pages of a Parquet column chunk, found by their heads (Parquet, `PageHeader`): where each lies, and its rows.

Pages are looked at so that they can be moved as they are: whatever a reader would need from elsewhere in the chunk, such as a
dictionary, keeps a chunk from being moved. Only columns without repetition are: a value is a row.

Row groups as the footer of another file describes them: their places moved, and nothing else changed.

What lies between a file's magic and its footer is copied as one range, so everything in it moves by one distance, the shift.

What Parquet says of the values of each page of a column chunk: bounds and nulls (Parquet, `ColumnIndex`).

Bounds are bytes as Parquet stores them, compared in the order that it defines for the column's type.
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow.parquet as pq

from icekeep.formats.parquet.footer import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    CannotMove,
    Damaged,
    Footer,
    Integer,
    OffsetIndexPlace,
    RowGroup,
    Struct,
    bytes_at,
    integer_bytes,
    struct_bytes,
    struct_list_bytes,
    varint_at,
    with_integers,
)
from icekeep.spec.types import MAX_INT, MIB

DATA_PAGE, DATA_PAGE_V2 = 0, 3

_KIND, _UNCOMPRESSED, _COMPRESSED, _CHECKSUM = 1, 2, 3, 4
_HEADS = {DATA_PAGE: 5, DATA_PAGE_V2: 8}


class _Fields(NamedTuple):
    """The kinds of the fields that must be there, and of those that may: other libraries read no head that has others."""

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

_MAX_PAGE_BYTES = MAX_INT

_PLAIN, _RLE, _BIT_PACKED = 0, 3, 4
_SELF_CONTAINED = {
    _PLAIN: {"INT32", "INT64", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"},
    5: {"INT32", "INT64"},
    6: {"BYTE_ARRAY"},
    7: {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"},
    9: {"INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"},
}
"""The physical types of each encoding whose pages need nothing else of their chunk, by Parquet's number."""

_WIDTHS = {"INT32": 4, "INT64": 8}


class CannotSplice(Exception):
    """Pages of a chunk cannot be moved by themselves."""


class Page(NamedTuple):
    """A data page: its place in the file, head and values together, and how many rows it has."""

    start: int
    end: int
    row_count: int


class ChunkPages(msgspec.Struct, frozen=True):
    """The pages of a column chunk, in order and without gaps.

    Attributes:
        kind: of all pages, by Parquet's number.
        encodings: of all pages, by Parquet's numbers.
        uncompressed_bytes: of all pages, their heads among them.
    """

    pages: tuple[Page, ...]
    kind: int
    encodings: frozenset[int]
    uncompressed_bytes: int

    @property
    def compressed_bytes(self) -> int:
        """Of all pages, their heads among them."""
        return self.pages[-1].end - self.pages[0].start


def chunk_pages(
    data: bytes, start: int, end: int, *, physical_type: str, has_nulls: bool, row_count: int
) -> ChunkPages:
    """Find the pages of a chunk that lies at some bytes of a file, and check them against what the chunk must have.

    Args:
        data: the whole file.
        has_nulls: whether the column is optional, so that its pages have definition levels.
        row_count: of the chunk.

    Raises:
        CannotSplice: a page needs more than itself, or there are pages of both versions.
        Damaged: the pages are not those of the chunk, or one does not have the checksum that it says.
    """
    if not 4 <= start < end <= len(data) - 8 or row_count < 1:
        raise Damaged("a column chunk lies outside of the file's data")
    pages: list[Page] = []
    kinds: set[int] = set()
    encodings: set[int] = set()
    uncompressed_bytes = rows = 0
    position = start
    while position < end:
        head = Struct(data, position)
        _require_fields(head, _PAGE)
        kind = head.value(_KIND)
        size_bytes, plain_bytes = head.value(_COMPRESSED), head.value(_UNCOMPRESSED)
        page = Page(position, head.end + size_bytes, _values_count(head, kind, physical_type, has_nulls, encodings))
        if size_bytes < 0 or not 0 <= plain_bytes <= _MAX_PAGE_BYTES or page.end > end:
            raise Damaged("a page is longer than its column chunk")
        if page.row_count > row_count:
            raise Damaged("a page has more rows than its column chunk")
        if kind == DATA_PAGE_V2 and has_nulls:
            _check_levels(data, head)
        _check_plain_size(plain_bytes, page.row_count, physical_type, has_nulls, encodings)
        _check_sum(data, head, page)
        kinds.add(kind)
        pages.append(page)
        rows += page.row_count
        uncompressed_bytes += head.end - position + plain_bytes
        position = page.end
    if rows != row_count:
        raise Damaged(f"the pages of a column chunk have {rows} rows, the chunk has {row_count}")
    if len(kinds) > 1:
        raise CannotSplice("it has data pages of both versions")
    return ChunkPages(tuple(pages), kinds.pop(), frozenset(encodings), uncompressed_bytes)


def _values_count(head: Struct, kind: int, physical_type: str, has_nulls: bool, encodings: set[int]) -> int:
    """How many values a data page has, nulls among them; its encoding is added to those that are known."""
    about = head.struct(_HEADS[kind]) if kind in _HEADS else None
    if about is None:
        raise CannotSplice("a page is no data page")
    _require_fields(about, _DATA[kind])
    if statistics := about.struct(_HEADS[kind]):
        _require_fields(statistics, _STATISTICS)
    count = about.value(1)
    if count < 1:
        raise CannotSplice("a page has no values")
    if kind == DATA_PAGE:
        encoding = about.value(2)
        levels = about.value(3), about.value(4)
        if not {*levels} <= {_RLE, _BIT_PACKED} or (has_nulls and levels[0] != _RLE):
            raise CannotSplice("its levels are encoded in an old way")
    else:
        encoding = about.value(4)
        levels_bytes, repetition_bytes = about.value(5), about.value(6)
        nulls = about.value(2)
        if about.value(3) != count or repetition_bytes or not 0 <= nulls <= count:
            raise Damaged("a page has not one value a row")
        if levels_bytes < 0 or (levels_bytes and not has_nulls) or levels_bytes > head.value(_COMPRESSED):
            raise Damaged("a page has levels that its column has not")
        is_compressed = about.span(7) is None or about.boolean(7)
        if not is_compressed and head.value(_COMPRESSED) != head.value(_UNCOMPRESSED):
            raise Damaged("a page that is not compressed has two sizes")
    if physical_type not in _SELF_CONTAINED.get(encoding, ()):
        raise CannotSplice("a page is encoded by a dictionary, or in a way that icekeep does not know")
    encodings.add(encoding)
    return count


def _check_levels(data: bytes, head: Struct) -> None:
    """Raise `Damaged` unless the levels of a page of version 2 are as long, and say as many nulls, as its head says: no
    checksum covers that (Parquet, "RLE / Bit-Packing Hybrid").
    """
    about = head.struct(_HEADS[DATA_PAGE_V2])
    assert about is not None
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


def _require_fields(struct: Struct, fields: _Fields) -> None:
    """Raise `CannotSplice` unless a struct has the fields that it must have, and others only that it may have."""
    kinds = {id_: TRUE if kind == FALSE else kind for id_, kind in struct.kinds.items()}
    if not fields.needed.items() <= kinds.items() or not kinds.items() <= fields.allowed.items():
        raise CannotSplice("the head of a page has fields that icekeep does not know")


def _check_plain_size(plain_bytes: int, count: int, physical_type: str, has_nulls: bool, encodings: set[int]) -> None:
    """Raise `Damaged` where numbers that lie one after the other do not take the bytes that they must."""
    width = _WIDTHS.get(physical_type)
    if not has_nulls and width is not None and encodings == {_PLAIN} and plain_bytes != width * count:
        raise Damaged("a page has more or fewer bytes than its values take")


def _check_sum(data: bytes, head: Struct, page: Page) -> None:
    stated = head.integer(_CHECKSUM)
    if stated is not None and zlib.crc32(memoryview(data)[head.end : page.end]) != stated.value & 0xFFFFFFFF:
        raise Damaged("a page does not have the checksum that it says")


_OFFSET_INDEX_FIELDS = {1, 2}
_MAX_OFFSET_INDEX_BYTES = 64 * MIB


class MovedFile(msgspec.Struct, frozen=True):
    """A file whose data is in its new place.

    Attributes:
        shift: how many bytes further on that is.
        offset_indexes: with their places moved, by the byte at which they lie in the old file.
    """

    footer: Footer
    shift: int
    offset_indexes: dict[int, bytes]

    def offset_indexes_of(self, group: RowGroup) -> list[bytes]:
        """Of the columns that have one, in order; none of an empty row group, which is left out."""
        places = (chunk.offset_index for chunk in group.chunks) if group.row_count else ()
        return [self.offset_indexes[place.offset.value] for place in places if place is not None]


def moved_row_group(group: RowGroup, file: MovedFile, ordinal: int, indexes_start: int) -> bytes:
    """A row group's description with its places moved, its offset indexes from `indexes_start` on."""
    changes: list[tuple[Integer, int]] = []
    for chunk in group.chunks:
        changes += [(position, position.value + file.shift) for position in chunk.positions]
        if chunk.offset_index is not None:
            length = len(file.offset_indexes[chunk.offset_index.offset.value])
            changes += [(chunk.offset_index.offset, indexes_start), (chunk.offset_index.length, length)]
            indexes_start += length
    if group.file_offset is not None:
        # Not moved but set: old writers said a wrong place here (PARQUET-2078).
        changes.append((group.file_offset, group.start + file.shift))
    if group.ordinal is not None:
        changes.append((group.ordinal, ordinal))
    return with_integers(file.footer.data, group.data_start, group.data_end, changes)


def moved_offset_indexes(source: BinaryIO, footer: Footer, shift: int) -> dict[int, bytes]:
    """The offset indexes of a file with the places of its pages moved, by the byte at which they lie in the file.

    Raises `CannotMove` where one is damaged, or has what we do not know.
    """
    if sum(place.length.value for place in _places_of(footer.row_groups)) > _MAX_OFFSET_INDEX_BYTES:
        raise CannotMove("its offset indexes are too large")
    stored = offset_indexes(source, footer.row_groups)
    return {offset: moved_offset_index(data, shift) for offset, data in stored.items()}


def offset_indexes(source: BinaryIO, row_groups: Sequence[RowGroup]) -> dict[int, bytes]:
    """The offset indexes of some row groups of a file as they are, by the byte at which they lie in the file.

    Raises `Damaged` where the file ends before one of them.
    """
    places = sorted((place.offset.value, place.length.value) for place in _places_of(row_groups))
    if not places:
        return {}
    # They lie side by side in most files: one range brings them all.
    start, end = places[0][0], max(offset + length for offset, length in places)
    together = end - start <= 2 * sum(length for _, length in places) + MIB
    data = bytes_at(source, start, end - start) if together else b""
    return {
        offset: data[offset - start : offset - start + length] if together else bytes_at(source, offset, length)
        for offset, length in places
    }


def _places_of(row_groups: Sequence[RowGroup]) -> list[OffsetIndexPlace]:
    """Where the offset indexes lie of row groups that have rows."""
    chunks = (chunk for group in row_groups if group.row_count for chunk in group.chunks)
    return [chunk.offset_index for chunk in chunks if chunk.offset_index is not None]


def footer_bytes(first: Footer, row_count: int, row_groups: list[bytes]) -> bytes:
    """A footer of row groups that are bytes already, which says all else as `first` does."""
    fields = [
        (1, I32, integer_bytes(first.version)),
        (2, LIST, first.schema),
        (3, I64, integer_bytes(row_count)),
        (4, LIST, struct_list_bytes(row_groups)),
    ]
    for field_id, kind, value in (
        (5, LIST, first.key_values),
        (6, BINARY, first.created_by),
        (7, LIST, first.column_orders),
    ):
        if value is not None:
            fields.append((field_id, kind, value))
    return struct_bytes(fields)


def moved_offset_index(data: bytes, shift: int) -> bytes:
    """An offset index with the places of its pages moved (Parquet, `OffsetIndex`)."""
    try:
        index = Struct(data)
        places = [page.required_integer(1) for page in index.structs(1)]
    except Damaged as error:
        # Whoever reads all rows does without it, so the file may still be encoded again.
        raise CannotMove("an offset index is damaged") from error
    if index.end != len(data) or not index.field_ids <= _OFFSET_INDEX_FIELDS:
        raise CannotMove("an offset index has fields that icekeep does not know")
    return with_integers(data, 0, len(data), [(place, place.value + shift) for place in places])


LAYOUTS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
"""How values of a physical type of one width lie in bytes, as `struct` says it."""

_NUMBERS = LAYOUTS.keys() - {"BOOLEAN"}
_INT96_BYTES = 12

Order = Callable[[bytes], Any]
"""A key that puts stored values into the order of their type; raises `ValueError` where the bytes are no value."""


class PageBounds(msgspec.Struct, frozen=True):
    """What is known of a page: how many nulls it has, and its bounds, which are null where it has nothing but nulls."""

    null_count: int | None
    least: bytes | None
    greatest: bytes | None


def value_bytes(leaf: pq.ColumnSchema) -> int | None:
    """The bytes that each value of a column takes; null where values have lengths of their own."""
    match leaf.physical_type:
        case "BYTE_ARRAY":
            return None
        case "FIXED_LEN_BYTE_ARRAY":
            return int(leaf.length)
        case "INT96":
            return _INT96_BYTES
    return struct.calcsize(LAYOUTS[leaf.physical_type])


def order_of(leaf: pq.ColumnSchema) -> Order:
    """The order of a column: numbers by value, decimals in bytes too, all else byte by byte. NaN is in no order."""
    layout = LAYOUTS[leaf.physical_type] if leaf.physical_type in _NUMBERS else None
    length, is_decimal = value_bytes(leaf), leaf.logical_type.type == "DECIMAL"

    def order(value: bytes) -> Any:
        if length is not None and len(value) != length:
            raise ValueError(f"a value of {length} bytes has {len(value)}")
        if layout:
            return struct.unpack(layout, value)[0]
        return int.from_bytes(value, "big", signed=True) if is_decimal else value

    return order


def pages_of_index(data: bytes, row_counts: Sequence[int], order: Order) -> tuple[PageBounds, ...] | None:
    """The pages of a column index; null where it is damaged, or is not one of pages with these numbers of rows."""
    try:
        index = Struct(data)
        nulls, least, greatest = index.booleans(1), index.binaries(2), index.binaries(3)
        counts: Sequence[int | None] = index.integers(5) if index.span(5) else [None] * len(row_counts)
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
