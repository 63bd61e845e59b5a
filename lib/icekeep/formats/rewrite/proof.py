"""Proof that a rewrite changed no row, by reading the new files from storage again.

Rows that were encoded: the hash of the rows that went in equals that of the rows in the new files. They are read without the code
that wrote them or read the old ones: no projection, no metrics, no state of the writer, only the thin readers of the formats;
columns are identified by the field ids in the file and hashed in the schema's types. This shows faults of the writer, the
encoding, memory and storage. It does not show a fault that the format's library repeats whenever it reads, nor one on the way in:
rows are hashed after the projection and the deletes, so a column that was taken for another of its type, or a live row that was
left out, is the same on both sides.

Row groups and pages that were copied: bytes are compared with bytes, and nothing copied is decoded. A new file has the row groups
of its sources if any reader must read both alike: the same schema and key-values, row groups with the same metadata except for
file offsets, the same bytes there, and offset indexes that describe the same pages. Of moved pages, which are recorded before
they are written, the bytes are compared, located by the footers and not by the code that walked through the pages. Bounds must be
those of the sources together, and each offset index must lead through the pages of its chunk, since a wrong bound or index hides
rows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError, and_more
from icekeep.formats.arrow.schema import FIELD_ID_KEY, field_id
from icekeep.formats.base import FileReader, translated
from icekeep.formats.machine import TaskMemory, task_memory_bytes
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
from icekeep.formats.parquet.pages import (
    ASCENDING,
    COLUMN_INDEX,
    DESCENDING,
    MAX_VALUE,
    MIN_VALUE,
    NULL_COUNT,
    OFFSET_INDEX,
    UNORDERED,
    MovableChunk,
    Order,
    PageSource,
    bounds_of_all,
    offset_indexes,
    order_of,
    pages_of_index,
    stored_as,
)
from icekeep.formats.parquet.reader import is_local, repeating_strings
from icekeep.formats.parquet.thrift import Damaged, Struct
from icekeep.formats.reader import open_reader
from icekeep.formats.rewrite.task import FilePiece, RewriteTask, columns_to_write
from icekeep.formats.row_hash import CHUNK_ROWS, RowHash, RowSequence, RowSum
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage
from icekeep.storage.locations import are_local

_MAX_NAMED = 3

_BATCH_ROWS = 16 * CHUNK_ROWS
"""Rows of local files that are decoded at a time, so that they are hashed in the processor's cache. Of remote files whole row
groups are read, in few requests."""

_ORDERED_BATCH_ROWS = 2 * CHUNK_ROWS
"""The same for a `RowSequence`, which takes more of the cache."""

_NOTHING = pa.field("", pa.null(), metadata={FIELD_ID_KEY: b"0"})


def hash_of_files(
    files: Sequence[DataFile],
    columns: Schema,
    storage: Storage,
    *,
    slots: int = 1,
    is_local: bool = False,
    order: RowSequence | None = None,
) -> RowSum:
    """The hash of the rows of new files in storage, read one row group, stripe or batch at a time.

    `columns` are `columns_to_write`, `order` the hashed rows that went in, if their order counts. Raises `IcekeepBug` if a file
    is missing or damaged, or has the wrong columns or number of rows, `UnsupportedError` if a row group needs more memory than
    there is.
    """
    rows = RowHash(columns) if order is None else order.again()
    for file in files:
        before = rows.row_count
        with of_new_file(file), open_reader(storage, file.file_path, file.file_format) as reader:
            kept: Collection[int] = ()
            if file.file_format.upper() == "PARQUET":
                kept = repeating_strings(storage, file.file_path) if order is None else order.coded_ids
            add_rows(rows, reader, kept, batch_rows_of(reader, file, slots, is_local, in_order=order is not None))
        row_count = rows.row_count - before
        if row_count != file.record_count:
            raise not_as_written(f"{row_count} rows where {file.record_count} were written", [file])
    return rows.total


def hash_of_written(
    task: RewriteTask, files: Sequence[DataFile], storage: Storage, order: RowSequence | None = None
) -> RowSum | None:
    """`hash_of_files` of a task's new files; null if the task verifies nothing."""
    if not task.verifies:
        return None
    return hash_of_files(files, columns_to_write(task), storage, slots=task.slots, is_local=task.is_local, order=order)


def problem_of_rows(read: Sequence[RowSum], written: Sequence[RowSum], files: Sequence[DataFile]) -> IcekeepBug | None:
    """The error if the rows of a group's new files are not the live rows that its tasks read.

    The files must then be kept, and nothing committed; the fact `kept_files` has their locations.
    """
    rows_in, rows_out = sum(read, RowSum()), sum(written, RowSum())
    if rows_in.row_count != rows_out.row_count:
        return not_as_written(f"{rows_out.row_count} rows where {rows_in.row_count} live ones went in", files)
    if rows_in != rows_out:
        return not_as_written(f"{rows_out.row_count} rows, as many as went in, with other values", files)
    return None


def not_as_written(what: str, files: Sequence[DataFile]) -> IcekeepBug:
    """The error of new files that hold something else than went in; they are kept (fact `kept_files`)."""
    locations = [file.file_path for file in files]
    named = ", ".join(repr(location) for location in locations[:_MAX_NAMED])
    return IcekeepBug(
        f"a rewrite was to keep every row, and its new files hold {what}; nothing was committed, the old files are as they were"
        f" and the new ones are kept as evidence: {named or 'there are none'}{and_more(locations, _MAX_NAMED)}",
        kept_files=locations,
    )


@contextmanager
def of_new_file(file: DataFile) -> Iterator[None]:
    """Raise errors in a new file as `IcekeepBug`; the file is kept."""
    try:
        yield
    except (InvalidTableError, UnsupportedError) as error:
        if isinstance(error, UnsupportedError) and "reason" not in error.facts:
            # It needs more memory than there is, which is no fault of the file.
            raise
        raise not_as_written(f"what cannot be read as it was written, {error.message}", [file]) from error


def batch_rows_of(reader: FileReader, file: DataFile, slots: int, is_local: bool, *, in_order: bool) -> int | None:
    """How many rows of a new file to read at a time; raises `UnsupportedError` if a row group needs too much memory."""
    rows = TaskMemory(task_memory_bytes(slots), is_local).batch_rows(reader.largest_part())
    if not are_local([file.file_path]):
        return rows
    most = _ORDERED_BATCH_ROWS if in_order else _BATCH_ROWS
    return min(most, rows or most)


def add_rows(
    rows: RowHash | RowSequence,
    reader: FileReader,
    kept: Collection[int],
    batch_rows: int | None,
    parts: Sequence[int] | None = None,
) -> None:
    """Hash the rows of an open file, or of some of its parts; `kept` are the ids of columns that may stay dictionary-encoded."""
    ids = {field.field_id for field in rows.columns.fields}
    fields = [field for field in reader.schema if field_id(field) in ids]
    names = [field.name for field in fields]
    encoded = [field.name for field in fields if field_id(field) in kept]
    for _, data in reader.tables(names, parts, encoded, batch_rows):
        columns = [data.column(name) for name in names]
        # The fields of the file, with their nested ids, but in the types that were read.
        described = [
            field.with_type(column.type) if pa.types.is_dictionary(column.type) else field
            for field, column in zip(fields, columns, strict=True)
        ]
        if not columns:
            columns, described = [pa.nulls(data.num_rows)], [_NOTHING]
        rows.add(pa.Table.from_arrays(columns, schema=pa.schema(described)))


_NEAR_BYTES, _FAR_BYTES = MIB, 8 * MIB
"""How much is compared at a time: of local files what fits into the processor's cache, of others more, for few requests."""


def rows_of_copy(pieces: Sequence[FilePiece], new: DataFile, storage: Storage) -> RowSum:
    """Prove that a new file holds the row groups of whole files, in their order; returns their number of rows, without a digest.

    Raises `IcekeepBug` if the new file is missing, or is not what its sources make; other errors are about a source.
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
    groups = old.full_groups
    if written.common_fields != old.common_fields:
        raise not_as_written(f"other columns than {piece.location!r}", [new])
    # Rows keep their row ids in another file if the file stores all of them, or has none.
    stored = {leaf.field_id for leaf in old.stored.leaves} & LINEAGE_IDS
    has_ids = piece.first_row_id is not None
    if stored != (LINEAGE_IDS if has_ids else set()) or (has_ids and not all(map(old.has_no_nulls, LINEAGE_IDS))):
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


def _described(footer: Footer, group: RowGroup, shift: int) -> tuple[Any, ...]:
    """The metadata of a row group, its file offsets moved back by the shift.

    Left out are ordinals, the offset of the row group (old writers have it wrong, PARQUET-2078, and its columns have it), and
    those of offset indexes, which are rewritten.
    """
    struct = Struct(footer.data, group.data_start)
    chunks = [
        (_facts(chunk, shift, (2, 6), (3, 4, 5)), _facts(chunk.required_struct(3), shift, (9, 10, 11, 14)))
        for chunk in struct.structs(1)
    ]
    return _facts(struct, 0, (), (1, 5, 7)), chunks


def _pages_of(stream: BinaryIO, footer: Footer, groups: Sequence[RowGroup], shift: int) -> list[tuple[Any, ...] | None]:
    """The offset index of each column chunk, its offsets moved back by the shift: readers of few rows read only those pages."""
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
    """The fields of a struct but some; the offsets in `places` are moved back, except for zero, which means "not there"."""
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


class _CopiedGroup(NamedTuple):
    """What goes into a row group: the chunks that are moved and digests of their bytes, and the rows that are encoded."""

    moved: Mapping[int, tuple[MovableChunk, ...]]
    digests: Mapping[int, tuple[Any, ...]]
    rows: RowSequence


class PageProof:
    """Records what goes into the row groups of new files, in their order, and compares it with these."""

    def __init__(self, task: RewriteTask) -> None:
        self._task = task
        self._files: list[list[_CopiedGroup]] = []
        self._places: tuple[pq.ParquetSchema, dict[int, int]] | None = None

    def take(
        self, sources: Sequence[PageSource], moved: Collection[int], rows: RowSequence, *, begins_file: bool
    ) -> None:
        """Record the next row group: the columns of `sources` that are moved, and the rows of the others."""
        if begins_file:
            self._files.append([])
        opened = [(BytesIO(source.data), pq.read_metadata(pa.BufferReader(source.data))) for source in sources]
        files = [(stream, metadata, self._places_in(metadata)) for stream, metadata in opened]
        digests = {
            id_: _digest(
                (stream, metadata, number, places[id_])
                for stream, metadata, places in files
                for number in range(metadata.num_row_groups)
            )
            for id_ in moved
        }
        chunks = {id_: tuple(chunk for source in sources for chunk in source.chunks[id_]) for id_ in moved}
        self._files[-1].append(_CopiedGroup(chunks, digests, rows))

    def check(self, files: Sequence[DataFile], storage: Storage) -> RowSum:
        """Prove that new files hold what was recorded; returns their number of rows, without a digest.

        Raises `IcekeepBug` if a file is missing, damaged, or holds something else.
        """
        if len(files) != len(self._files):
            raise IcekeepBug(f"a rewrite wrote {len(self._files)} files and reported {len(files)}; they are deleted")
        for file, groups in zip(files, self._files, strict=True):
            with of_new_file(file):
                self._check_file(file, groups, storage)
        return RowSum(sum(group.rows.row_count for groups in self._files for group in groups))

    def _check_file(self, file: DataFile, groups: Sequence[_CopiedGroup], storage: Storage) -> None:
        footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
        counts = [group.rows.row_count for group in groups]
        if [group.row_count for group in footer.row_groups] != counts or file.record_count != sum(counts):
            raise not_as_written(f"row groups of other sizes than {counts} rows", [file])
        if not footer.codecs <= {*CODECS.values()}:
            raise not_as_written("pages of a codec that there is not", [file])
        with storage.open(file.file_path) as stream, footer_errors(file.file_path), translated(file.file_path):
            metadata = pq.read_metadata(stream)
            schema, places = metadata.schema, self._places_in(metadata)
            described = [Struct(footer.data, group.data_start).structs(1) for group in footer.row_groups]
            index_of = _indexes(stream, footer, [chunk for chunks in described for chunk in chunks])
            for number, group in enumerate(groups):
                moved = {places[id_]: id_ for id_ in group.moved if id_ in places}
                for position, chunk in enumerate(described[number]):
                    id_ = moved.get(position)
                    pages = None if id_ is None else group.moved[id_]
                    if not _leads_through_pages(chunk, index_of(chunk, OFFSET_INDEX), counts[number], pages):
                        what = f"an offset index of column {position} that does not lead through its pages"
                        raise not_as_written(what, [file])
                    if pages is not None and not _has_bounds_of(
                        chunk, index_of(chunk, COLUMN_INDEX), pages, order_of(schema.column(position))
                    ):
                        raise not_as_written(f"other bounds of the column with id {id_} than its sources", [file])
                for id_, expected in group.digests.items():
                    digest = _digest([(stream, metadata, number, places.get(id_))])
                    if digest != expected or digest[0] != counts[number]:
                        raise not_as_written(f"other pages of the column with id {id_} than went in", [file])
        self._check_rows(file, groups, storage)

    def _check_rows(self, file: DataFile, groups: Sequence[_CopiedGroup], storage: Storage) -> None:
        with open_reader(storage, file.file_path, "PARQUET") as reader:
            batch_rows = batch_rows_of(reader, file, self._task.slots, self._task.is_local, in_order=True)
            for number, group in enumerate(groups):
                rows = group.rows.again()
                add_rows(rows, reader, group.rows.coded_ids, batch_rows, [number])
                if rows.total != group.rows.total:
                    what = f"{rows.row_count} rows in row group {number}, where {group.rows.row_count} with other values went in"
                    raise not_as_written(what, [file])

    def _places_in(self, metadata: pq.FileMetaData) -> Mapping[int, int]:
        """The positions of the top-level columns with values, by field id; computed only if the schema changes."""
        schema = metadata.schema
        if self._places is None or not self._places[0].equals(schema):
            ids = {field.name: field_id(field) for field in schema.to_arrow_schema()}
            places = {ids.get(schema.column(position).path): position for position in range(len(schema))}
            self._places = schema, {id_: position for id_, position in places.items() if id_ is not None}
        return self._places[1]


def _digest(chunks: Iterable[tuple[BinaryIO, pq.FileMetaData, int, int | None]]) -> tuple[Any, ...]:
    """The number of values in successive chunks of a column, a digest of their bytes, and how they are decoded.

    A chunk is an open file, its metadata, the number of a row group, and the position of the column, if the file has it.
    """
    content = xxhash.xxh3_128()
    codecs: set[str] = set()
    stored: set[tuple[object, ...]] = set()
    value_count = 0
    for stream, metadata, number, position in chunks:
        if position is None or not metadata.row_group(number).num_rows:
            continue
        chunk = metadata.row_group(number).column(position)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        content.update(bytes_at(stream, start, chunk.total_compressed_size))
        codecs.add(chunk.compression)
        stored.add((*stored_as(metadata.schema.column(position)), chunk.physical_type))
        value_count += chunk.num_values
    return value_count, content.digest(), codecs, stored


def _indexes(stream: BinaryIO, footer: Footer, chunks: Sequence[Struct]) -> Callable[[Struct, int], bytes | None]:
    """A function that returns an index of a chunk, or null; the indexes are read at once, as they are just before the footer."""
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
    """Whether the offset index of a chunk, if it has one, lists its pages in order and without a gap.

    `moved` are the sources of a moved chunk, which must have an index.
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
    return moved is None or sizes == [(page.end - page.start, page.row_count) for one in moved for page in one.pages]


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
    pages = pages_of_index(column_index, [page.row_count for one in moved for page in one.pages], order)
    if pages is None or any(one.pages is None for one in bounds):
        return False
    expected = [page for one in bounds for page in one.pages or ()]
    # An index need not count nulls.
    if len(pages) != len(expected) or any(
        (page.least, page.greatest) != (other.least, other.greatest) or page.null_count not in (None, other.null_count)
        for page, other in zip(pages, expected, strict=True)
    ):
        return False
    # Readers search for the first page by bisection if the index calls its bounds ascending or descending.
    direction = Struct(column_index).value(4)
    if direction not in (ASCENDING, DESCENDING):
        return direction == UNORDERED
    least = [order(page.least) for page in pages if page.least is not None]
    greatest = [order(page.greatest) for page in pages if page.greatest is not None]
    return all(keys == sorted(keys, reverse=direction == DESCENDING) for keys in (least, greatest))
