"""Proof that row groups and pages were copied as they are: bytes prove bytes, and of these nothing is decoded.

Row groups: the new file holds the rows of its sources if any reader must read both alike. That is the same schema and key-values,
row groups that are described in the same words except for their places, behind these the same bytes, and offset indexes that say
the same of the same pages. Sources are read again, as is the new file.

Pages: what a row group shall hold is noted before it is written, and held against the new file as it is read again. Of columns
that were moved these are their bytes, of which footers say where they are, not the code that walked through the pages; and what
readers go by beside these, since rows are not found by a wrong bound or index: bounds must be those of the sources together, and
each offset index must lead through the pages of its chunk. Columns that were encoded are proved by their rows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.schema import field_id
from icekeep.formats.base import translated
from icekeep.formats.parquet.footer import (
    CODECS,
    LINEAGE_IDS,
    MAGIC,
    Footer,
    RowGroup,
    bytes_at,
    footer_errors,
    page_range,
    read_footer,
)
from icekeep.formats.parquet.pages import Order, offset_indexes, order_of, pages_of_index
from icekeep.formats.parquet.reader import is_local
from icekeep.formats.parquet.thrift import Damaged, Struct
from icekeep.formats.reader import open_reader
from icekeep.formats.rewrite.page_sources import (
    ASCENDING,
    COLUMN_INDEX,
    DESCENDING,
    MAX_VALUE,
    MIN_VALUE,
    NULL_COUNT,
    OFFSET_INDEX,
    UNORDERED,
    MovableChunk,
    PageSource,
    bounds_of_all,
    stored_as,
)
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.rewrite.verify import add_rows, not_as_written, of_new_file, rows_at_once
from icekeep.formats.row_hash import RowSequence, RowSum
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

_NEAR_BYTES, _FAR_BYTES = MIB, 8 * MIB
"""What the proof compares at a time: of local files as much as the processor's cache holds, of others few requests."""


def rows_of_copy(pieces: Sequence[FilePiece], new: DataFile, storage: Storage) -> RowSum:
    """How many rows a file holds that was put together of whole files, in their order, once that is proved.

    The sum has no digest: the rows are those of the files, and none was looked at.

    Raises:
        IcekeepBug: the new file is not there, or is not what its sources make.
        MissingFileError, InvalidTableError, UnsupportedError: a source is not there, is damaged, or cannot be copied.
        UnavailableError: storage is out of reach.
    """
    with of_new_file(new):
        written = read_footer(storage, new.file_path, new.file_size_in_bytes)
    number = 0
    with storage.open(new.file_path) as target:
        for piece in pieces:
            old = read_footer(storage, piece.location, piece.size_bytes)
            groups = old.full_groups
            if groups:
                copies = written.row_groups[number : number + len(groups)]
                number += len(groups)
                with storage.open(piece.location) as source:
                    _prove_copy(piece, source, old, target, written, copies, new)
    expected = sum(piece.record_count for piece in pieces)
    if number != len(written.row_groups) or written.row_count != expected:
        raise not_as_written(f"{written.row_count} rows where {expected} live ones went in", [new])
    if new.record_count != expected:
        raise not_as_written(f"{expected} rows where {new.record_count} were written", [new])
    return RowSum(new.record_count)


def _prove_copy(
    piece: FilePiece,
    source: BinaryIO,
    old: Footer,
    target: BinaryIO,
    written: Footer,
    copies: Sequence[RowGroup],
    new: DataFile,
) -> None:
    """Hold some row groups of the new file against those of the file that they were copied from."""
    groups = old.full_groups
    if written.common_fields != old.common_fields:
        raise not_as_written(f"other columns than {piece.location!r}", [new])
    if not _keeps_lineage(piece, old):
        raise not_as_written(f"other row ids than {piece.location!r}", [new])
    shift = copies[0].start - groups[0].start if copies else 0
    with footer_errors(piece.location):
        expected = [_described(old, group, 0) for group in groups]
        expected_pages = _pages_of(source, old, groups, 0)
    with of_new_file(new), footer_errors(new.file_path):
        if [_described(written, group, shift) for group in copies] != expected:
            raise not_as_written(f"other row groups than {piece.location!r}", [new])
        if _pages_of(target, written, copies, shift) != expected_pages:
            raise not_as_written(f"other offset indexes than {piece.location!r}", [new])
    start, end = len(MAGIC), old.start
    source.seek(start)
    target.seek(start + shift)
    step = _NEAR_BYTES if is_local(target) else _FAR_BYTES
    buffers = bytearray(step), bytearray(step)
    while start < end:
        step = min(step, end - start)
        if step < len(buffers[0]):
            buffers = bytearray(step), bytearray(step)
        _fill(source, buffers[0], piece.location)
        with of_new_file(new):
            _fill(target, buffers[1], new.file_path)
        if buffers[0] != buffers[1]:
            raise not_as_written(f"other bytes than {piece.location!r}", [new])
        start += step


def _keeps_lineage(piece: FilePiece, old: Footer) -> bool:
    """Whether rows have the row ids in another file that they have in this one: they store all of them, or have none."""
    stored = {leaf.field_id for leaf in old.stored.leaves} & LINEAGE_IDS
    if piece.first_row_id is None:
        return not stored
    return stored == LINEAGE_IDS and all(map(old.has_no_nulls, LINEAGE_IDS))


def _described(footer: Footer, group: RowGroup, shift: int) -> tuple[Any, ...]:
    """All that a footer says of a row group, its places moved back by the shift.

    Left out: ordinals, where the row group begins (old writers say it wrongly, PARQUET-2078, and its columns say it), and the
    places of offset indexes, which are rewritten.
    """
    struct = Struct(footer.data, group.data_start)
    chunks = [
        (_facts(chunk, shift, (2, 6), (3, 4, 5)), _facts(chunk.required_struct(3), shift, (9, 10, 11, 14)))
        for chunk in struct.structs(1)
    ]
    return _facts(struct, 0, (), (1, 5, 7)), chunks


def _pages_of(stream: BinaryIO, footer: Footer, groups: Sequence[RowGroup], shift: int) -> list[tuple[Any, ...] | None]:
    """All that offset indexes say of the pages of each column chunk, their places moved back by the shift: readers of
    few rows read the pages that lie there, and no others.
    """
    stored = offset_indexes(stream, footer, groups)
    pages: list[tuple[Any, ...] | None] = []
    for chunk in (chunk for group in groups for chunk in group.chunks):
        if chunk.offset_index is None:
            pages.append(None)
            continue
        data = stored[chunk.offset_index[0].value]
        index = Struct(data)
        places = [(page.required_integer(1).value - shift, _facts(page, 0, (), (1,))) for page in index.structs(1)]
        pages.append((_facts(index, 0, (), (1,)), places, index.end == len(data)))
    return pages


def _facts(struct: Struct, shift: int, places: Collection[int], without: Collection[int] = ()) -> dict[int, Any]:
    """The fields of a struct but some; those that are `places` are moved back, but for zero, which means "not there"."""
    facts: dict[int, Any] = {}
    for id_, span in struct.spans.items():
        if id_ in places:
            place = struct.value(id_)
            facts[id_] = place and place - shift
        elif id_ not in without:
            facts[id_] = span.kind, struct.raw(id_)
    return facts


def _fill(stream: Any, buffer: bytearray, location: str) -> None:
    with translated(location), memoryview(buffer) as view:
        filled = 0
        while filled < len(buffer):
            count = stream.readinto(view[filled:])
            if not count:
                raise InvalidTableError("it ends before its data does")
            filled += count


class _Place(NamedTuple):
    """A column among those of a file, how its values are stored, and their order."""

    position: int
    stored: tuple[object, ...]
    order: Order


class _NotedGroup(msgspec.Struct, frozen=True):
    """What a row group shall hold: the chunks that were moved and a digest of their bytes, and the rows that were encoded."""

    moved: Mapping[int, tuple[MovableChunk, ...]]
    digests: Mapping[int, tuple[Any, ...]]
    rows: RowSequence


class PageProof:
    """Notes what goes into the row groups of new files, in their order, and holds it against these."""

    def __init__(self, task: RewriteTask) -> None:
        self._task = task
        self._files: list[list[_NotedGroup]] = []
        self._places: tuple[pq.ParquetSchema, dict[int, _Place]] | None = None

    def take(
        self, sources: Sequence[PageSource], moved: Collection[int], rows: RowSequence, *, begins_file: bool
    ) -> None:
        """A row group of some files is going to be written: the columns that are moved, and the rows of the others."""
        if begins_file:
            self._files.append([])
        opened = [(pq.read_metadata(pa.BufferReader(one.data)), memoryview(one.data)) for one in sources]
        files = [(metadata, self._places_in(metadata), partial(_bytes_in, data)) for metadata, data in opened]
        digests = {
            id_: _digest(
                (metadata, number, places[id_], read)
                for metadata, places, read in files
                for number in range(metadata.num_row_groups)
            )
            for id_ in moved
        }
        chunks = {id_: tuple(chunk for source in sources for chunk in source.chunks[id_]) for id_ in moved}
        self._files[-1].append(_NotedGroup(chunks, digests, rows))

    def check(self, files: Sequence[DataFile], storage: Storage) -> RowSum:
        """How many rows new files hold, once it is proved that they are those that were taken.

        The sum has no digest: each row group was compared by itself.

        Raises:
            IcekeepBug: a file is not there, is damaged, or holds something else; the files must be kept.
            UnavailableError: storage is out of reach.
        """
        if len(files) != len(self._files):
            raise IcekeepBug(f"a rewrite wrote {len(self._files)} files and told of {len(files)}; they are deleted")
        for file, groups in zip(files, self._files, strict=True):
            with of_new_file(file):
                self._check_file(file, groups, storage)
        return RowSum(sum(group.rows.row_count for groups in self._files for group in groups))

    def _check_file(self, file: DataFile, groups: Sequence[_NotedGroup], storage: Storage) -> None:
        footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
        counts = [group.rows.row_count for group in groups]
        if [group.row_count for group in footer.row_groups] != counts or file.record_count != sum(counts):
            raise not_as_written(f"row groups of other sizes than {counts} rows", [file])
        if not footer.codecs <= {*CODECS.values()}:
            raise not_as_written("pages of a codec that there is not", [file])
        with storage.open(file.file_path) as stream, footer_errors(file.file_path), translated(file.file_path):
            metadata = pq.read_metadata(stream)
            places = self._places_in(metadata)
            described = [Struct(footer.data, group.data_start).structs(1) for group in footer.row_groups]
            index_of = _indexes(stream, footer, [chunk for chunks in described for chunk in chunks])
            for number, group in enumerate(groups):
                moved = {places[id_].position: id_ for id_ in group.moved if id_ in places}
                for position, chunk in enumerate(described[number]):
                    id_ = moved.get(position)
                    pages = None if id_ is None else group.moved[id_]
                    if not _leads_through_pages(chunk, index_of(chunk, OFFSET_INDEX), counts[number], pages):
                        what = f"an offset index of column {position} that does not lead through its pages"
                        raise not_as_written(what, [file])
                    if id_ is not None and not _has_bounds_of(
                        chunk, index_of(chunk, COLUMN_INDEX), group.moved[id_], places[id_].order
                    ):
                        raise not_as_written(f"other bounds of the column with id {id_} than its sources", [file])
                for id_, expected in group.digests.items():
                    digest = _digest([(metadata, number, places.get(id_), partial(bytes_at, stream))])
                    if digest != expected or digest[0] != counts[number]:
                        raise not_as_written(f"other pages of the column with id {id_} than went in", [file])
        self._check_rows(file, groups, storage)

    def _check_rows(self, file: DataFile, groups: Sequence[_NotedGroup], storage: Storage) -> None:
        with open_reader(storage, file.file_path, "PARQUET") as reader:
            batch_rows = rows_at_once(reader, file, self._task)
            for number, group in enumerate(groups):
                rows = group.rows.again()
                add_rows(rows, reader, group.rows.coded_ids, batch_rows, [number])
                if rows.total != group.rows.total:
                    what = f"{rows.row_count} rows in row group {number}, where {group.rows.row_count} with other values went in"
                    raise not_as_written(what, [file])

    def _places_in(self, metadata: pq.FileMetaData) -> Mapping[int, _Place]:
        """The top-level columns that hold values, by field id; worked out only where a file differs from the one before."""
        schema = metadata.schema
        if self._places is None or not self._places[0].equals(schema):
            ids = {field.name: field_id(field) for field in schema.to_arrow_schema()}
            leaves = [schema.column(position) for position in range(len(schema))]
            places = {ids.get(leaf.path): _Place(n, stored_as(leaf), order_of(leaf)) for n, leaf in enumerate(leaves)}
            self._places = schema, {id_: place for id_, place in places.items() if id_ is not None}
        return self._places[1]


def _bytes_in(data: memoryview, start: int, length: int) -> memoryview:
    return data[start : start + length]


def _digest(chunks: Iterable[tuple[pq.FileMetaData, int, _Place | None, Callable[[int, int], Any]]]) -> tuple[Any, ...]:
    """Of chunks of a column, one behind the other: their bytes, the number of their values, and how they are to be read.

    Each is given by its file, row group and place, and what reads bytes by their place and number; nothing is added where there
    is no such column.
    """
    content = xxhash.xxh3_128()
    codecs: set[str] = set()
    stored: set[tuple[object, ...]] = set()
    value_count = 0
    for metadata, number, place, read in chunks:
        if place is None or not metadata.row_group(number).num_rows:
            continue
        chunk = metadata.row_group(number).column(place.position)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        content.update(read(start, chunk.total_compressed_size))
        codecs.add(chunk.compression)
        stored.add((*place.stored, chunk.physical_type))
        value_count += chunk.num_values
    return value_count, content.digest(), codecs, stored


def _indexes(stream: BinaryIO, footer: Footer, chunks: Sequence[Struct]) -> Callable[[Struct, int], bytes | None]:
    """What gives the indexes of a file's chunks, `None` where there is none: they lie side by side before the footer."""
    places = [chunk.value(kind) for chunk in chunks for kind in (OFFSET_INDEX, COLUMN_INDEX)]
    first = min((place for place in places if place), default=footer.start)
    data = bytes_at(stream, first, max(0, footer.start - first))

    def index_of(chunk: Struct, kind: int) -> bytes | None:
        place, length = chunk.value(kind), chunk.value(kind + 1)
        if not place:
            return None
        if length < 1 or place - first + length > len(data):
            raise Damaged("an index lies outside of its place")
        return data[place - first : place - first + length]

    return index_of


def _leads_through_pages(
    chunk: Struct, offset_index: bytes | None, row_count: int, moved: Sequence[MovableChunk] | None
) -> bool:
    """Whether the offset index of a chunk, if it has one, names its pages one behind the other, none left out.

    Args:
        moved: what a moved chunk was made of; it must have an index.
    """
    column = chunk.struct(3)
    if offset_index is None or column is None:
        return moved is None
    pages = [tuple(page.required_integer(id_).value for id_ in (1, 2, 3)) for page in Struct(offset_index).structs(1)]
    start, length = page_range(column)
    ends = [place + size for place, size, _ in pages]
    rows = [row for *_, row in pages] + [row_count]
    if [place for place, *_ in pages] != [column.required_integer(9).value, *ends[:-1]] or ends[-1] != start + length:
        return False
    if rows[0] or rows != sorted(rows):
        return False
    counts = [after - before for before, after in pairwise(rows)]
    sizes = [(size, count) for (_, size, _), count in zip(pages, counts, strict=True)]
    return moved is None or sizes == [
        (page.end - page.start, page.row_count) for one in moved for page in one.pages.pages
    ]


def _has_bounds_of(chunk: Struct, column_index: bytes | None, moved: Sequence[MovableChunk], order: Order) -> bool:
    """Whether the statistics and the column index of a moved chunk are those of its sources together."""
    column = chunk.struct(3)
    statistics = None if column is None else column.struct(12)
    bounds = [one.bounds for one in moved if one.bounds is not None]
    if len(bounds) < len(moved):
        return statistics is None and column_index is None
    if (
        statistics is None
        or (statistics.binary(MIN_VALUE), statistics.binary(MAX_VALUE)) != bounds_of_all(bounds, order)
        or statistics.required_integer(NULL_COUNT).value != sum(one.null_count for one in bounds)
    ):
        return False
    if column_index is None:
        return True
    pages = pages_of_index(column_index, [page.row_count for one in moved for page in one.pages.pages], order)
    if pages is None or any(one.pages is None for one in bounds):
        return False
    expected = [page for one in bounds for page in one.pages or ()]
    # Of nulls an index need say nothing.
    if len(pages) != len(expected) or any(
        (page.least, page.greatest) != (other.least, other.greatest) or page.null_count not in (None, other.null_count)
        for page, other in zip(pages, expected, strict=True)
    ):
        return False
    # Readers look for the first page by halves where the index says that bounds go up or down.
    direction = Struct(column_index).value(4)
    if direction not in (ASCENDING, DESCENDING):
        return direction == UNORDERED
    least = [order(page.least) for page in pages if page.least is not None]
    greatest = [order(page.greatest) for page in pages if page.greatest is not None]
    return all(keys == sorted(keys, reverse=direction == DESCENDING) for keys in (least, greatest))
