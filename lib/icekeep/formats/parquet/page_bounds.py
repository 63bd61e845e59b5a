"""What Parquet says of the values of each page of a column chunk: bounds and nulls (Parquet, `ColumnIndex`).

Bounds are bytes as Parquet stores them, compared in the order that it defines for the column's type.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow.parquet as pq

from icekeep.formats.parquet.thrift import Struct

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
