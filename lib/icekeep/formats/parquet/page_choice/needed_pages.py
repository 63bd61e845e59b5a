"""Rows of a row group that a filter needs, read with as few pages as the file's page indexes allow.

Bounds of pages say which rows may match; of these the columns that the filter looks at are decoded, and the filter itself says
which rows do; of all other columns come the pages that have one of those rows. So a row group is cut into some ranges of rows.
Columns whose pages are not known for sure, and those of which most pages are needed, are read whole, as ever.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.masks import Mask
from icekeep.formats.base import NeededRows
from icekeep.formats.filter import evaluate
from icekeep.formats.parquet.footer_metrics import PartMetrics, leaf_positions, page_metrics
from icekeep.formats.parquet.page_bounds import order_of, pages_of_index
from icekeep.formats.parquet.page_choice.footer_places import FooterPlaces
from icekeep.formats.parquet.page_choice.indexes import (
    CannotChoose,
    IndexedChunk,
    PagePlaces,
    Range,
    indexed_chunk,
    page_places,
)
from icekeep.formats.parquet.page_choice.page_file import ChosenPages, ChosenRows, page_file
from icekeep.formats.parquet.page_choice.row_ranges import (
    Boundaries,
    Ranges,
    few,
    pages_of_ranges,
    ranges_of_pages,
    rows_in,
    runs,
    whole,
)
from icekeep.spec.filters.evaluators import file_may_match
from icekeep.spec.filters.expressions import BoundPredicate
from icekeep.spec.units import MIB

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
