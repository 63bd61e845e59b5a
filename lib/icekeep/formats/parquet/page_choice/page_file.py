"""Chosen pages of a row group as a Parquet file in memory, for a library that reads no single pages.

The columns of its row groups are those of the file that the pages come from, in the same schema; a row group has the columns
of which the same rows were chosen, and of the others no more than a place. Each page is held against what the offset index
says of it before anything is made of it: an index that is wrong would give rows other values.
"""

from collections.abc import Callable, Sequence

import msgspec

from icekeep.formats.arrow.masks import Mask
from icekeep.formats.parquet.footer import MAGIC
from icekeep.formats.parquet.page_choice.footer_places import FooterPlaces
from icekeep.formats.parquet.page_choice.indexes import CannotChoose, IndexedChunk, PagePlaces, Range
from icekeep.formats.parquet.page_choice.row_ranges import runs
from icekeep.formats.parquet.thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    integer_bytes,
    struct_bytes,
    struct_list_bytes,
)

_DATA_PAGES = {0: 5, 3: 8}
"""Where the head of a page says more of it, by its kind."""

_DICTIONARY_PAGE, _OF_SECOND_VERSION = 2, 3
_NO_COLUMN = struct_bytes([(2, I64, integer_bytes(0))])


class ChosenPages(msgspec.Struct, frozen=True):
    """Pages of the column chunk at a position of the row group."""

    position: int
    chunk: IndexedChunk
    places: PagePlaces
    pages: Mask

    @property
    def ranges(self) -> list[Range]:
        """Their bytes in the file, those before the first page first: a dictionary, if any."""
        starts = self.places.starts
        found = [Range(int(starts[a]), int(starts[b] - starts[a])) for a, b in runs(self.pages)]
        return [self.places.dictionary, *found]


class ChosenRows(msgspec.Struct, frozen=True):
    """Columns of which the same rows were chosen."""

    row_count: int
    columns: Sequence[ChosenPages]


def page_file(
    footer: FooterPlaces,
    columns_count: int,
    chosen: Sequence[ChosenRows],
    read: Callable[[Sequence[Range]], Sequence[bytes]],
) -> bytes:
    """A file with a row group for each of `chosen`.

    Args:
        columns_count: of the row group that the pages come from.
        read: brings bytes of the file.

    Raises:
        CannotChoose: a page is not what its offset index says.
        Damaged: it is none.
    """
    ranges = [one for rows in chosen for column in rows.columns for one in column.ranges]
    data = iter(read(ranges))
    parts, end = [MAGIC], len(MAGIC)
    row_groups: list[bytes] = []
    for rows in chosen:
        chunks = [_NO_COLUMN] * columns_count
        for column in rows.columns:
            own = [next(data) for _ in column.ranges]
            _check(column, own)
            length = sum(map(len, own))
            chunks[column.position] = _chunk_bytes(column, rows.row_count, end, length)
            parts += own
            end += length
        fields = [(1, LIST, struct_list_bytes(chunks)), (2, I64, integer_bytes(end))]
        row_groups.append(struct_bytes([*fields, (3, I64, integer_bytes(rows.row_count))]))
    tail = footer.of_row_groups(sum(rows.row_count for rows in chosen), row_groups)
    return b"".join([*parts, tail, len(tail).to_bytes(4, "little"), MAGIC])


def _chunk_bytes(column: ChosenPages, row_count: int, start: int, length: int) -> bytes:
    """What the footer says of a chunk whose pages lie at `start`."""
    about, dictionary_bytes = column.chunk.description, column.places.dictionary.length
    fields = [(id_, kind, about.raw(id_)) for id_, kind in ((1, I32), (2, LIST), (3, LIST), (4, I32))]
    fields += [
        (5, I64, integer_bytes(row_count)),
        (6, I64, about.raw(6)),
        (7, I64, integer_bytes(length)),
        (9, I64, integer_bytes(start + dictionary_bytes)),
    ]
    if dictionary_bytes:
        fields.append((11, I64, integer_bytes(start)))
    if any(value is None for *_, value in fields):
        raise CannotChoose("a column chunk is not described whole")
    described = struct_bytes((id_, kind, value or b"") for id_, kind, value in fields)
    return struct_bytes([(2, I64, integer_bytes(0)), (3, STRUCT, described)])


def _check(column: ChosenPages, data: Sequence[bytes]) -> None:
    """Hold the heads of pages against what the index says of them."""
    dictionary, *pages = data
    if [len(one) for one in data] != [one.length for one in column.ranges]:
        raise CannotChoose("the file ends before its pages")
    if dictionary:
        head = Struct(dictionary)
        if head.value(1) != _DICTIONARY_PAGE or head.end + head.value(3) != len(dictionary):
            raise CannotChoose("what lies before the data pages is no dictionary")
    for (first, behind), stored in zip(runs(column.pages), pages, strict=True):
        starts = (column.places.starts[first : behind + 1] - column.places.starts[first]).tolist()
        rows = column.places.rows[first : behind + 1].tolist()
        for number in range(behind - first):
            _check_page(Struct(stored, starts[number]), starts[number + 1], rows[number + 1] - rows[number])


def _check_page(head: Struct, end: int, row_count: int) -> None:
    kind = head.value(1)
    about = head.struct(_DATA_PAGES[kind]) if kind in _DATA_PAGES else None
    if about is None or head.end + head.value(3) != end:
        raise CannotChoose("a page is not as long as its offset index says, or no data page")
    if about.value(1) != row_count or (kind == _OF_SECOND_VERSION and about.value(3) != row_count):
        raise CannotChoose("a page has not the rows that its offset index says")
