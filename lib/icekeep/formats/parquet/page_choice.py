"""Ranges of rows of one row group: an array of pairs, a first row and the row behind the last, ascending and apart.

Where the pages of a column chunk lie, and what is known of their values: Parquet's `OffsetIndex` and `ColumnIndex`.

An index says where pages are without a look at them. What of it can be held against the footer is checked here, and what can
be held against a page when that is read (`page_file`).

A footer of which single row groups are wanted, and which can be made that of another file with the same columns.

Chosen pages of a row group as a Parquet file in memory, for a library that reads no single pages.

The columns of its row groups are those of the file that the pages come from, in the same schema; a row group has the columns
of which the same rows were chosen, and of the others no more than a place. Each page is held against what the offset index
says of it before anything is made of it: an index that is wrong would give rows other values.

Rows of a row group that a filter needs, read with as few pages as the file's page indexes allow.

Bounds of pages say which rows may match; of these the columns that the filter looks at are decoded, and the filter itself says
which rows do; of all other columns come the pages that have one of those rows. So a row group is cut into some ranges of rows.
Columns whose pages are not known for sure, and those of which most pages are needed, are read whole, as ever.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.arrays import Mask
from icekeep.formats.base import NeededRows
from icekeep.formats.filter import evaluate
from icekeep.formats.parquet.footer import (
    I32,
    I64,
    LIST,
    MAGIC,
    STRUCT,
    Damaged,
    Struct,
    integer_at,
    integer_bytes,
    struct_bytes,
    struct_list_bytes,
    varint_at,
    walk_struct,
    walk_structs,
)
from icekeep.formats.parquet.metrics import PartMetrics, leaf_positions, page_metrics
from icekeep.formats.parquet.pages import order_of, pages_of_index
from icekeep.spec.filters.evaluators import file_may_match
from icekeep.spec.filters.expressions import BoundPredicate
from icekeep.spec.types import MIB

Ranges: TypeAlias = NDArray[np.int64]
"""Pairs of rows."""

Boundaries: TypeAlias = NDArray[np.int64]
"""The first row of each page, ascending, and last the number of rows."""


def whole(row_count: int) -> Ranges:
    """All rows."""
    return np.array([[0, row_count]], np.int64)


def rows_in(ranges: Ranges) -> int:
    """How many rows ranges have."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def runs(mask: Mask) -> Ranges:
    """The runs of what is true."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return edges.reshape(-1, 2).astype(np.int64)


def ranges_of_pages(chosen: Mask, boundaries: Boundaries) -> Ranges:
    """The rows of some pages; pages that lie side by side are one range."""
    return boundaries[runs(chosen)].reshape(-1, 2)


def pages_of_ranges(ranges: Ranges, boundaries: Boundaries) -> Mask:
    """Which pages have a row of the ranges."""
    first = np.searchsorted(boundaries, ranges[:, 0], "right") - 1
    behind = np.searchsorted(boundaries, ranges[:, 1], "left")
    steps = np.zeros(len(boundaries), np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, behind, -1)
    return np.cumsum(steps[:-1]) > 0


def joined(ranges: Ranges, gap: int) -> Ranges:
    """The same ranges, and what lies between two that are at most `gap` rows apart."""
    if len(ranges) < 2:
        return ranges
    apart = np.flatnonzero(ranges[1:, 0] - ranges[:-1, 1] > gap)
    return np.stack((ranges[np.append(0, apart + 1), 0], ranges[np.append(apart, len(ranges) - 1), 1]), axis=1)


def few(ranges: Ranges, gap: int, most: int) -> Ranges:
    """As `joined`, with as large a gap as makes them no more than `most`."""
    ranges = joined(ranges, gap)
    while len(ranges) > most:
        gap = 4 * max(1, gap)
        ranges = joined(ranges, gap)
    return ranges


_LONG_LIST = 15
_PLACE_OF_A_PAGE = np.array([0x16, 0x15, 0x16, 0])
"""The heads of the three fields of a `PageLocation` and its end, between which stand a place, a length and a row."""

_MAX_VARINT_BYTES = 10


class CannotChoose(Exception):
    """Pages of a row group cannot be chosen, or not for sure: it is to be read as if the file said nothing of its pages."""


class Range(NamedTuple):
    """Bytes of a file."""

    start: int
    length: int


class IndexedChunk(msgspec.Struct, frozen=True):
    """A column chunk as the footer describes it.

    Attributes:
        start, end: of its pages in the file.
        offsets, bounds: where its indexes lie, `None` where it has none.
        description: the footer's `ColumnMetaData`.
    """

    start: int
    end: int
    offsets: Range | None
    bounds: Range | None
    description: Struct


class PagePlaces(msgspec.Struct, frozen=True):
    """The data pages of a chunk, one behind the other.

    Attributes:
        rows: the first row of each page, and last the number of rows.
        starts: the first byte of each page, and last the end of the chunk.
        dictionary: what lies before them in the chunk.
    """

    rows: Boundaries
    starts: NDArray[np.int64]
    dictionary: Range


def indexed_chunk(chunk: Struct) -> IndexedChunk:
    """Read what a footer says of a chunk; raises `CannotChoose` where it is encrypted, or lies in another file."""
    about = chunk.struct(3)
    if about is None or chunk.field_ids & {1, 8, 9}:
        raise CannotChoose("a column chunk is encrypted, or in another file")
    data_start, dictionary_start = about.required_integer(9).value, about.value(11)
    start = dictionary_start if 0 < dictionary_start < data_start else data_start
    return IndexedChunk(
        start=start,
        end=start + about.required_integer(7).value,
        offsets=_range(chunk, 4),
        bounds=_range(chunk, 6),
        description=about,
    )


def page_places(data: bytes, chunk: IndexedChunk, row_count: int) -> PagePlaces:
    """The pages that an offset index names, which must fill the chunk and have all its rows.

    Raises:
        CannotChoose: it is damaged, leaves out bytes or rows, or says things in a way that we do not know.
    """
    places = _page_locations(data)
    starts = np.append(places[:, 0], chunk.end)
    rows = np.append(places[:, 2], row_count)
    is_whole = (
        rows[0] == 0 and chunk.start <= starts[0] and bool(np.array_equal(starts[:-1] + places[:, 1], starts[1:]))
    )
    if not is_whole or (np.diff(rows) < 1).any() or (places[:, 1] < 1).any():
        raise CannotChoose("an offset index does not name the pages of its column chunk")
    return PagePlaces(rows, starts, Range(chunk.start, int(starts[0]) - chunk.start))


def _range(chunk: Struct, field_id: int) -> Range | None:
    start, length = chunk.value(field_id), chunk.value(field_id + 1)
    return Range(start, length) if start > 0 and length > 0 else None


def _page_locations(data: bytes) -> NDArray[np.int64]:
    """Place, length and first row of each page: all numbers of the list are decoded at once."""
    try:
        if data[0] != 1 << 4 | LIST or data[1] & 15 != STRUCT:
            raise CannotChoose("an offset index does not begin with its pages")
        count, position = data[1] >> 4, 2
        if count == _LONG_LIST:
            count, position = varint_at(data, position)
    except (IndexError, Damaged) as error:
        raise CannotChoose("an offset index is cut short") from error
    stored = np.frombuffer(data, np.uint8, offset=position)
    # Heads and the end of a struct are numbers of one byte to whom counts them.
    ends = np.flatnonzero(stored < 128)[: 7 * count]
    if not count or len(ends) < 7 * count:
        raise CannotChoose("an offset index has fewer pages than it says")
    begins = np.append(0, ends[:-1] + 1)
    if (ends - begins).max() >= _MAX_VARINT_BYTES - 1:
        raise CannotChoose("an offset index has numbers of more than 63 bits")
    used = stored[: ends[-1] + 1].astype(np.int64)
    shifts = 7 * (np.arange(len(used)) - np.repeat(begins, ends - begins + 1))
    numbers = np.add.reduceat((used & 127) << shifts, begins).reshape(count, 7)
    if (numbers[:, ::2] != _PLACE_OF_A_PAGE).any() or (numbers[:, 1::2] & 1).any():
        raise CannotChoose("an offset index has pages that say other things, or something less than nothing")
    return numbers[:, 1::2] >> 1


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


GAP_ROWS = 4096
"""Rows that do not match are read with those around them: a table of its own takes as long as so many rows."""

_MOST_RANGES = 64
_MOST_SHARE = 0.5
"""Where more of a column's bytes are needed, it is read whole."""

_NEARLY_ALL = 0.9

_MOST_INDEX_BYTES = 16 * MIB
_MOST_PAGES = 100_000
_MOST_ROUNDS = 16


class OpenedFile(msgspec.Struct, frozen=True):
    """A file that is open.

    Attributes:
        file: as the ordinary reader has it, which reads columns whole.
        footer: its bytes.
        opened: a file of the same kind that is in memory.
        read: brings bytes of the file by place and length; fewer come where it ends.
    """

    file: pq.ParquetFile
    footer: bytes
    opened: Callable[[bytes], pq.ParquetFile]
    read: Callable[[Sequence[Range]], Sequence[bytes]]


class NeededPages:
    """Reads the row groups of one file."""

    def __init__(self, opened: OpenedFile, needed: NeededRows) -> None:
        """Raises `CannotChoose` where columns cannot be told apart by their names, and `Damaged`."""
        self._opened, self._needed = opened, needed
        self._footer = FooterPlaces(opened.footer)
        self._leaves = _leaves_by_name(opened.file)
        found = leaf_positions(opened.file.metadata, needed.columns, needed.types)
        # A column of which nothing is known rules nothing out.
        self._positions = {} if found is None else found

    def tables(self, number: int, columns: Sequence[str], most_rows: int | None) -> list[tuple[int, pa.Table]]:
        """The rows of a row group that are needed and some beside them, each range with its first row in the row group.

        Args:
            columns: names of the top-level columns to read, among them those that the filter looks at.
            most_rows: so many may be held at one time; null for a whole row group.

        Raises:
            CannotChoose: the row group is to be read as a whole, or in batches.
            Damaged: something is not what it must be; whoever reads all of it may say what.
        """
        group = _RowGroup(self._opened, self._footer, self._leaves, number, columns, self._positions.values())
        looked_at = [name for name in columns if name in self._needed.names]
        others = [name for name in columns if name not in self._needed.names]
        ranges = few(self._candidates(group), GAP_ROWS, _MOST_RANGES)
        may_be_all = rows_in(ranges) >= _NEARLY_ALL * group.row_count
        if not looked_at or (may_be_all and not self._needed.looks.are_worth_it()):
            raise CannotChoose("nothing is known, or nothing to be gained")
        found: dict[str, _Column] = {}
        if len(ranges):
            found |= group.read(looked_at, ranges, most_rows)
        if others and len(ranges):
            matching = self._matching(found, looked_at, ranges)
            found |= group.read(others, matching, most_rows) if len(matching) else {}
            if len(matching) and all(rows_in(found[name].rows) == group.row_count for name in others):
                # Cut into many ranges, what was read anyway would only take longer.
                self._needed.looks.did_not_pay()
            else:
                ranges = matching
        return [(int(first), _table(found, columns, first, end)) for first, end in ranges]

    def _candidates(self, group: "_RowGroup") -> Ranges:
        """The rows that may match by the bounds of their pages."""
        known = {id_: found for id_ in self._positions if (found := self._pages(group, id_)) is not None}
        edges = np.unique(np.concatenate([np.array([0, group.row_count]), *(rows for rows, _ in known.values())]))

        def may_match(predicate: BoundPredicate) -> Mask:
            found = known.get(predicate.field.field_id)
            if found is None:
                return np.ones(len(edges) - 1, np.bool_)
            rows, pages = found
            mask = np.array([file_may_match(predicate, metrics) for metrics in pages], np.bool_)
            return mask[np.searchsorted(rows, edges[:-1], "right") - 1]

        return ranges_of_pages(evaluate(self._needed.bound, may_match, len(edges) - 1), edges)

    def _pages(self, group: "_RowGroup", id_: int) -> tuple[Boundaries, list[PartMetrics]] | None:
        """Where the pages of a column begin, and what is known of each."""
        position = self._positions[id_]
        leaf = self._opened.file.schema.column(position)
        places, data = group.places(position), group.bounds(position)
        if places is None or data is None or leaf.physical_type == "INT96":
            return None
        counts = np.diff(places.rows).tolist()
        pages = pages_of_index(data, counts, order_of(leaf))
        if pages is None or not self._footer.has_order(position):
            return None
        return places.rows, page_metrics(pages, counts, id_, self._needed.types[id_], leaf)

    def _matching(self, found: "Mapping[str, _Column]", names: Sequence[str], ranges: Ranges) -> Ranges:
        """The rows of some ranges that match, and what lies between two that are near to each other."""
        tables = [_table(found, names, first, end) for first, end in ranges]
        mask = self._needed.matches(pa.concat_tables(tables))
        matching: list[Ranges] = []
        begin = 0
        for first, end in ranges:
            of_range = runs(mask[begin : begin + end - first]) + first
            matching.append(few(of_range, GAP_ROWS, max(1, _MOST_RANGES // len(ranges))))
            begin += end - first
        return np.concatenate(matching)


class _Column(msgspec.Struct, frozen=True):
    """Values of a column; `rows` are their rows in the row group."""

    field: pa.Field
    values: pa.ChunkedArray
    rows: Ranges
    metadata: Any

    def of_rows(self, first: int, end: int) -> pa.ChunkedArray:
        """The values of a range that lies in one of `rows`."""
        number = int(np.searchsorted(self.rows[:, 0], first, "right")) - 1
        if number < 0 or end > self.rows[number, 1]:
            raise CannotChoose("rows that are needed were not read")
        before = rows_in(self.rows[:number]) + first - self.rows[number, 0]
        return self.values.slice(before, end - first)


class _RowGroup:
    """A row group of which some columns are read."""

    def __init__(
        self,
        opened: OpenedFile,
        footer: FooterPlaces,
        leaves: Mapping[str, Sequence[int]],
        number: int,
        columns: Sequence[str],
        bounded: Any,
    ) -> None:
        self._opened, self._footer, self._leaves, self._number = opened, footer, leaves, number
        self.row_count = opened.file.metadata.row_group(number).num_rows
        wanted = [position for name in columns for position in leaves[name]]
        chunks = footer.chunks(number, {*wanted, *bounded})
        self._chunks = {position: indexed_chunk(chunk) for position, chunk in chunks.items()}
        ranges = [chunk.offsets for chunk in self._chunks.values() if chunk.offsets is not None]
        ranges += [chunk.bounds for n in bounded if (chunk := self._chunks[n]).bounds is not None]
        if sum(one.length for one in ranges) > _MOST_INDEX_BYTES:
            raise CannotChoose("the page indexes are too large")
        self._indexes = dict(zip(ranges, opened.read(ranges), strict=True))
        self._places: dict[int, PagePlaces | None] = {}

    def bounds(self, position: int) -> bytes | None:
        """The column index of a leaf."""
        place = self._chunks[position].bounds
        return None if place is None else self._indexes[place]

    def places(self, position: int) -> PagePlaces | None:
        """The pages of a leaf; null where they are not known for sure, or do not begin with a row."""
        if position not in self._places:
            self._places[position] = self._found(position)
        return self._places[position]

    def read(self, names: Sequence[str], ranges: Ranges, most_rows: int | None) -> dict[str, _Column]:
        """Some columns, of the rows of some ranges at least."""
        read_whole: list[str] = []
        by_rows: dict[bytes, tuple[Ranges, list[str], list[ChosenPages]]] = {}
        for name in names:
            chosen = self._chosen(self._leaves[name], ranges)
            if chosen is None:
                read_whole.append(name)
                continue
            rows, pages = chosen
            _, own, all_pages = by_rows.setdefault(rows.tobytes(), (rows, [], []))
            own.append(name)
            all_pages += pages
        counts = [rows_in(rows) for rows, *_ in by_rows.values()] + [self.row_count] * bool(read_whole)
        if most_rows is not None and max(counts) > most_rows:
            raise CannotChoose("too many rows are needed at a time")
        found: dict[str, _Column] = {}
        if by_rows:
            of_rows = [ChosenRows(rows_in(rows), pages) for rows, _, pages in by_rows.values()]
            data = page_file(self._footer, len(self._opened.file.schema), of_rows, self._opened.read)
            with _left_to_others():
                file = self._opened.opened(data)
                for number, (rows, own, _) in enumerate(by_rows.values()):
                    found |= _columns(file, number, own, rows)
        if read_whole:
            found |= _columns(self._opened.file, self._number, read_whole, whole(self.row_count))
        return found

    def _found(self, position: int) -> PagePlaces | None:
        chunk: IndexedChunk = self._chunks[position]
        if chunk.offsets is None or self._opened.file.schema.column(position).max_repetition_level:
            return None
        try:
            places = page_places(self._indexes[chunk.offsets], chunk, self.row_count)
        except CannotChoose:
            return None
        return places if len(places.rows) <= _MOST_PAGES else None

    def _chosen(self, positions: Sequence[int], ranges: Ranges) -> tuple[Ranges, list[ChosenPages]] | None:
        """The pages of the leaves of a column that have some rows, and as many rows of each; null to read it whole."""
        known = {position: places for position in positions if (places := self.places(position)) is not None}
        if len(known) < len(positions):
            return None
        rows, before = ranges, -1
        for _ in range(_MOST_ROUNDS):
            if rows_in(rows) == before:
                break
            before = rows_in(rows)
            for places in known.values():
                rows = ranges_of_pages(pages_of_ranges(rows, places.rows), places.rows)
        else:
            return None
        chosen = [
            ChosenPages(position, self._chunks[position], places, pages_of_ranges(rows, places.rows))
            for position, places in known.items()
        ]
        chosen_bytes = sum(one.length for pages in chosen for one in pages.ranges)
        all_bytes = sum(self._chunks[position].end - self._chunks[position].start for position in positions)
        return (rows, chosen) if chosen_bytes <= _MOST_SHARE * all_bytes else None


@contextmanager
def _left_to_others() -> Iterator[None]:
    """What is wrong with a file in memory is told, if it is the pages, by whoever reads the row group as it is."""
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, InvalidTableError) as error:
        raise CannotChoose("the chosen pages cannot be decoded") from error


def _columns(file: pq.ParquetFile, number: int, names: Sequence[str], rows: Ranges) -> dict[str, _Column]:
    """Columns of a row group of a file; they are those of some rows of another."""
    table = file.read_row_group(number, columns=list(names), use_threads=False)
    if table.num_rows != rows_in(rows):
        raise InvalidTableError(f"a row group has {table.num_rows} rows where the footer says {rows_in(rows)}")
    fields = map(table.schema.field, names)
    return {field.name: _Column(field, table.column(field.name), rows, table.schema.metadata) for field in fields}


def _table(columns: Mapping[str, _Column], names: Sequence[str], first: int, end: int) -> pa.Table:
    chosen = [columns[name] for name in names]
    schema = pa.schema([column.field for column in chosen], metadata=chosen[0].metadata)
    return pa.Table.from_arrays([column.of_rows(first, end) for column in chosen], schema=schema)


def _leaves_by_name(file: pq.ParquetFile) -> dict[str, list[int]]:
    """The positions of the leaves of each top-level column; raises `CannotChoose` where a name is that of several."""
    found: dict[str, list[int]] = {}
    for position in range(len(file.schema)):
        found.setdefault(file.schema.column(position).path.split(".")[0], []).append(position)
    names = file.schema_arrow.names
    # A column named `a.b` has the path of a field in another, and libraries read both.
    if len(set(names)) < len(names) or any("." in name for name in names) or found.keys() != set(names):
        raise CannotChoose("columns cannot be told apart by their names")
    return found
