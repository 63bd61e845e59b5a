"""Where the pages of a column chunk lie, and what is known of their values: Parquet's `OffsetIndex` and `ColumnIndex`.

An index says where pages are without a look at them. What of it can be held against the footer is checked here, and what can
be held against a page when that is read (`page_file`).
"""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.formats.parquet.page_choice.row_ranges import Boundaries
from icekeep.formats.parquet.thrift import LIST, STRUCT, Damaged, Struct, varint_at

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
