"""What a spliced file says of its pages beside their bytes: by bounds and indexes readers leave out row groups and pages.

Where one of these is wrong every row can be read, and who looks for some does not find them. So they are proved as well: what
a moved chunk says must be what its sources said together, and each offset index must lead through the pages of its chunk.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import BinaryIO

import msgspec

from icekeep.formats.parquet.footer import Footer, RowGroup, bytes_at
from icekeep.formats.parquet.page_bounds import Order, PageBounds, pages_of_index
from icekeep.formats.parquet.thrift import Damaged, Struct
from icekeep.formats.rewrite.page_copy.chunk_bounds import ChunkBounds
from icekeep.formats.rewrite.page_copy.sources import SpliceChunk

_OFFSETS, _BOUNDS = 4, 6
"""Fields of a column chunk that say where an index of it lies; the next one says how long it is."""

_ASCENDING, _DESCENDING = 1, 2


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
    if direction not in (_ASCENDING, _DESCENDING):
        return direction == 0
    for field_id in (2, 3):
        values = zip(index.booleans(1), index.binaries(field_id), strict=True)
        keys = [order(value) for is_null, value in values if not is_null]
        if keys != sorted(keys, reverse=direction == _DESCENDING):
            return False
    return True
