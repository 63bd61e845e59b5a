"""A footer of which single row groups are wanted, and which can be made that of another file with the same columns."""

from collections.abc import Collection, Mapping

from icekeep.formats.parquet.page_choice.indexes import CannotChoose
from icekeep.formats.parquet.thrift import (
    I64,
    LIST,
    STRUCT,
    Struct,
    integer_at,
    integer_bytes,
    struct_list_bytes,
    walk_struct,
    walk_structs,
)


class FooterPlaces:
    """Where a footer describes its row groups."""

    def __init__(self, data: bytes) -> None:
        """Raises `Damaged`, and `CannotChoose` where columns are encrypted."""
        self._data = data
        self._groups: list[int] = []
        self._rows = self._list = (-1, -1)
        self._ordered: list[bool] = []
        opened = {
            3: (I64, self._row_count),
            4: (LIST, self._row_groups),
            7: (LIST, self._orders),
            8: (STRUCT, _encrypted),
        }
        walk_struct(data, 0, opened)
        if self._rows[0] < 0 or not self._rows[1] <= self._list[0]:
            raise CannotChoose("a footer does not say its rows before its row groups")

    def chunks(self, number: int, positions: Collection[int]) -> Mapping[int, Struct]:
        """The column chunks at some positions of a row group; raises `Damaged` where there is one less."""
        found: dict[int, Struct] = {}
        count = 0

        def chunk(start: int) -> int:
            nonlocal count
            count += 1
            if count - 1 not in positions:
                return walk_struct(self._data, start, {})
            opened = found[count - 1] = Struct(self._data, start)
            return opened.end

        walk_struct(self._data, self._groups[number], {1: (LIST, lambda start: walk_structs(self._data, start, chunk))})
        if len(found) < len(positions):
            raise CannotChoose("a row group has fewer columns than its schema")
        return found

    def has_order(self, position: int) -> bool:
        """Whether bounds of a column are in the order of its type."""
        return position < len(self._ordered) and self._ordered[position]

    def of_row_groups(self, row_count: int, row_groups: list[bytes]) -> bytes:
        """The same footer, of other row groups."""
        data = self._data
        rows = data[: self._rows[0]] + integer_bytes(row_count) + data[self._rows[1] : self._list[0]]
        return rows + struct_list_bytes(row_groups) + data[self._list[1] :]

    def _row_count(self, start: int) -> int:
        self._rows = start, integer_at(self._data, start)[1]
        return self._rows[1]

    def _row_groups(self, start: int) -> int:
        def group(position: int) -> int:
            self._groups.append(position)
            return walk_struct(self._data, position, {})

        self._list = start, walk_structs(self._data, start, group)
        return self._list[1]

    def _orders(self, start: int) -> int:
        def order(position: int) -> int:
            known = Struct(self._data, position)
            self._ordered.append(known.span(1) is not None)
            return known.end

        return walk_structs(self._data, start, order)


def _encrypted(_: int) -> int:
    raise CannotChoose("columns are encrypted")
