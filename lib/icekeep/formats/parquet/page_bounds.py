"""What Parquet says of the values of each page of a column chunk: bounds and nulls (Parquet, `ColumnIndex`).

Bounds are bytes as Parquet stores them, compared in the order that it defines for the column's type.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from icekeep.formats.parquet.thrift import Struct

LAYOUTS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
"""How values of a physical type of one width lie in bytes, as `struct` says it."""

_NUMBERS = LAYOUTS.keys() - {"BOOLEAN"}

Order = Callable[[bytes], Any]
"""A key that puts stored values into the order of their type; raises `ValueError` where the bytes are no value."""


class PageBounds(msgspec.Struct, frozen=True):
    """What is known of a page: how many nulls it has, and its bounds, which are null where it has nothing but nulls."""

    null_count: int | None
    least: bytes | None
    greatest: bytes | None


def order_of(physical_type: str, *, is_decimal: bool) -> Order:
    """The order of a type: numbers by value, decimals in bytes too, all else byte by byte. NaN is in no order."""

    def number(value: bytes) -> Any:
        try:
            return struct.unpack(LAYOUTS[physical_type], value)[0]
        except struct.error as error:
            raise ValueError(f"{physical_type} has another width") from error

    if physical_type in _NUMBERS:
        return number
    return (lambda value: int.from_bytes(value, "big", signed=True)) if is_decimal else lambda value: value


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
