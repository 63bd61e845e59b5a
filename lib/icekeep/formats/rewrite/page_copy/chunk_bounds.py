"""What Parquet says of the values of column chunks that are put together (Parquet, `Statistics`, `ColumnIndex`).

Of chunks that are put together, both are put together from what the chunks said; a value is never looked at. Bounds are
bytes as Parquet stores them, compared in the order that it defines for the column's type.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from icekeep.formats.parquet.page_bounds import Order, PageBounds
from icekeep.formats.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    TRUE,
    binary_bytes,
    integer_bytes,
    list_bytes,
    struct_bytes,
)

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
