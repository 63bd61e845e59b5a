"""The footer of a Parquet file, as far as moving its row groups to another file needs it (Parquet, "File Format").

Read with one request, or two where it is long, and walked without a library: what is not asked for is not decoded, and what
says where something lies in the file is known by its place, so that it can be replaced.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.parquet.footer_schema import StoredSchema, read_schema
from icekeep.formats.parquet.thrift import Damaged, Integer, Struct, structs_at
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
TAIL_BYTES = 8
"""Behind the footer: its length and the magic."""

MAX_FOOTER_BYTES = 64 * MIB
"""Readers refuse structures of more than 100 MB."""

CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}
"""Parquet's numbers of codecs, by the names that writers' options have."""

_FIRST_READ_BYTES = 64 * 1024

_DATA_PAGES = {0, 3}
_DICTIONARY_ENCODINGS = {2, 8}

_FILE_FIELDS, _ROW_GROUP_FIELDS, _CHUNK_FIELDS, _COLUMN_FIELDS = (set(range(1, n + 1)) for n in (9, 7, 9, 17))


class OffsetIndexPlace(msgspec.Struct, frozen=True):
    """Where the footer says that a column chunk's offset index lies, and how long it is."""

    offset: Integer
    length: Integer


class ColumnChunk(msgspec.Struct, frozen=True):
    """The values of one column in one row group.

    Attributes:
        codec: Parquet's number of it.
        start: the first byte of its first page.
        compressed_bytes: of its pages, their heads among them.
        positions: numbers in the footer that say where in the file something of the chunk lies.
        null_count: by its statistics; `None` where they do not say.
        page_encodings: the bytes of the list that says how many pages have which encoding.
    """

    codec: int
    start: int
    compressed_bytes: int
    positions: tuple[Integer, ...]
    offset_index: OffsetIndexPlace | None
    null_count: int | None
    has_bloom_filter: bool
    page_encodings: bytes | None

    @property
    def is_all_in_dictionary(self) -> bool:
        """Whether its dictionary certainly has every value: some writers leave a bloom filter out then."""
        pages = [] if self.page_encodings is None else structs_at(self.page_encodings, 0)
        encodings = {page.value(2) for page in pages if page.value(1) in _DATA_PAGES and page.value(3)}
        return bool(encodings) and encodings <= _DICTIONARY_ENCODINGS


class RowGroup(msgspec.Struct, frozen=True):
    """A row group; `data_start` and `data_end` are where the footer's bytes describe it."""

    data_start: int
    data_end: int
    row_count: int
    chunks: tuple[ColumnChunk, ...]
    file_offset: Integer | None
    ordinal: Integer | None

    @property
    def compressed_bytes(self) -> int:
        """Of all its pages."""
        return sum(chunk.compressed_bytes for chunk in self.chunks)

    @property
    def start(self) -> int:
        """The first byte of its first column."""
        return self.chunks[0].start if self.chunks else 0


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """A footer in plain text of a file whose columns are in plain text and in the file itself.

    Attributes:
        data: its bytes; `start` is where they begin in the file.
        schema, key_values, created_by, column_orders: the bytes of these fields as they are, null where they are missing.
    """

    data: bytes
    start: int
    version: int
    row_count: int
    schema: bytes
    key_values: bytes | None
    created_by: bytes | None
    column_orders: bytes | None
    stored: StoredSchema
    row_groups: tuple[RowGroup, ...]

    @property
    def codecs(self) -> set[int]:
        """Parquet's numbers of the codecs of all column chunks."""
        return {chunk.codec for group in self.row_groups for chunk in group.chunks}

    def chunks_of(self, field_id: int) -> Sequence[ColumnChunk] | None:
        """The chunks of the first column with a field id, one a row group; null where there is no such column."""
        for position, leaf in enumerate(self.stored.leaves):
            if leaf.field_id == field_id:
                return [group.chunks[position] for group in self.row_groups]
        return None


def read_footer(storage: Storage, location: str, size_bytes: int) -> Footer:
    """Read the footer of a file that is as long as metadata says.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it has another length, or is damaged.
        UnsupportedError: it is encrypted, in part or as a whole, has columns in other files, or a footer that is too large or
            has fields that we do not know; the fact `reason` says which.
    """
    with storage.open(location) as stream, footer_errors(location):
        data = _footer_bytes(stream, size_bytes)
        return _footer(data, size_bytes - TAIL_BYTES - len(data))


@contextmanager
def footer_errors(location: str) -> Iterator[None]:
    """Say of which file `Damaged` bytes or what we do not handle were."""
    try:
        yield
    except Damaged as error:
        raise InvalidTableError(f"data file {location!r} is damaged: {error}", location=location) from error
    except CannotMove as error:
        raise UnsupportedError(
            f"the row groups of data file {location!r} cannot be moved: {error}", location=location, reason=str(error)
        ) from error


class CannotMove(Exception):
    """Row groups of a file cannot be moved; the message is the reason."""


def _footer_bytes(stream: BinaryIO, size_bytes: int) -> bytes:
    tail = bytes_at(stream, max(0, size_bytes - _FIRST_READ_BYTES), min(size_bytes, _FIRST_READ_BYTES))
    if tail[-4:] == ENCRYPTED_MAGIC:
        raise CannotMove("the footer is encrypted")
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != MAGIC or length + TAIL_BYTES + len(MAGIC) > size_bytes:
        raise Damaged(f"it is no Parquet file of {size_bytes} bytes")
    if length > MAX_FOOTER_BYTES:
        raise CannotMove("the footer is too large")
    if length + TAIL_BYTES <= len(tail):
        return tail[-TAIL_BYTES - length : -TAIL_BYTES]
    return bytes_at(stream, size_bytes - TAIL_BYTES - length, length)


def bytes_at(stream: BinaryIO, position: int, length: int) -> bytes:
    """Some bytes of a file; raises `Damaged` where it does not have them all."""
    stream.seek(position)
    data = stream.read(length)
    if len(data) != length:
        raise Damaged(f"it ends before byte {position + length}")
    return data


def _footer(data: bytes, start: int) -> Footer:
    struct = Struct(data)
    _require_plain(struct)
    # Only a signature may follow it.
    if struct.end != len(data):
        raise Damaged("its footer has bytes behind its end")
    _require_known(struct, _FILE_FIELDS)
    schema = struct.raw(2)
    if schema is None:
        raise Damaged("its footer has no schema")
    stored = read_schema(schema)
    row_groups = tuple(_row_group(group, len(stored.leaves), start) for group in struct.structs(4))
    row_count = struct.required_integer(3).value
    if row_count != sum(group.row_count for group in row_groups):
        raise Damaged("its row groups have not as many rows as the file")
    return Footer(
        data=data,
        start=start,
        version=struct.value(1),
        row_count=row_count,
        schema=schema,
        key_values=struct.raw(5),
        created_by=struct.raw(6),
        column_orders=struct.raw(7),
        stored=stored,
        row_groups=row_groups,
    )


def _row_group(struct: Struct, leaves_count: int, file_end: int) -> RowGroup:
    _require_known(struct, _ROW_GROUP_FIELDS)
    columns = struct.structs(1)
    row_count = struct.required_integer(3).value
    if len(columns) != leaves_count or row_count < 0:
        raise Damaged(f"a row group has {row_count} rows and {len(columns)} columns, its schema has {leaves_count}")
    # Writers leave what an empty row group says of its place undefined.
    chunks = tuple(_chunk(column, file_end if row_count else None) for column in columns)
    return RowGroup(struct.start, struct.end, row_count, chunks, struct.integer(5), struct.integer(7))


def _chunk(struct: Struct, file_end: int | None) -> ColumnChunk:
    _require_known(struct, _CHUNK_FIELDS)
    if struct.span(1) is not None:
        raise CannotMove("columns are in another file")
    _require_plain(struct)
    column = struct.struct(3)
    if column is None:
        raise Damaged("a column chunk is not described")
    _require_known(column, _COLUMN_FIELDS)
    start, compressed_bytes = _page_range(column)
    if file_end is not None:
        _require_inside(start, compressed_bytes, file_end, "a column chunk")
        _require_indexes_inside(struct, column, file_end)
    statistics = column.struct(12)
    return ColumnChunk(
        codec=column.required_integer(4).value,
        start=start,
        compressed_bytes=compressed_bytes,
        positions=tuple(
            place
            for place in (struct.integer(2), struct.integer(6), *(column.integer(n) for n in (9, 10, 11, 14)))
            # Zero is what some writers write for "not there".
            if place is not None and place.value
        ),
        offset_index=_offset_index(struct),
        null_count=None if statistics is None or statistics.span(3) is None else statistics.value(3),
        has_bloom_filter=bool(column.value(14)),
        page_encodings=column.raw(13),
    )


def _page_range(column: Struct) -> tuple[int, int]:
    """Where the pages of a chunk begin, and how many bytes they take."""
    data_start, dictionary_start = column.required_integer(9).value, column.value(11)
    start = dictionary_start if 0 < dictionary_start < data_start else data_start
    return start, column.required_integer(7).value


def _offset_index(struct: Struct) -> OffsetIndexPlace | None:
    offset, length = struct.integer(4), struct.integer(5)
    if (offset is None) != (length is None):
        raise Damaged("an offset index has a place without a length, or the other way round")
    return None if offset is None or length is None or not offset.value else OffsetIndexPlace(offset, length)


def _require_indexes_inside(struct: Struct, column: Struct, file_end: int) -> None:
    for kind, holder, offset, length in (
        ("an offset index", struct, 4, 5),
        ("a column index", struct, 6, 7),
        ("a bloom filter", column, 14, 15),
    ):
        if holder.value(offset):
            _require_inside(holder.value(offset), holder.value(length), file_end, kind)


def _require_inside(start: int, length: int, file_end: int, what: str) -> None:
    if start < len(MAGIC) or length < 0 or start + length > file_end:
        raise Damaged(f"{what} lies at bytes {start} to {start + length}, outside of the file's data")


def _require_plain(struct: Struct) -> None:
    """Of a footer and of a column chunk alike, fields 8 and 9 say how it is encrypted."""
    if struct.field_ids & {8, 9}:
        raise CannotMove("columns are encrypted, or the footer is signed")


def _require_known(struct: Struct, known: set[int]) -> None:
    if not struct.field_ids <= known:
        raise CannotMove("the footer has fields that icekeep does not know")
