"""The footers of many small Parquet files, walked for some of their columns (Parquet, `FileMetaData`).

A footer is a good part of a small file, and most of it is as in the file before: its schema, and what comes behind its row
groups. These parts are compared, and read only where they differ.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from icekeep.formats.parquet.footer import MAGIC, MAX_FOOTER_BYTES, TAIL_BYTES
from icekeep.formats.parquet.thrift import (
    BINARY,
    I64,
    LIST,
    Damaged,
    Struct,
    integer_at,
    structs_at,
    varint_at,
    walk_struct,
    walk_structs,
)


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
