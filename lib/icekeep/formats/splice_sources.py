"""Small Parquet files whose data pages may be moved, and for which columns (`spliced_file` says how they are put together).

A column is spliced where a reader cannot tell its pages from those that the table's writer would make, but for how many rows
they have: it is stored in the same way, by the same codec, without a dictionary, and what manifests and footers say of it is
known without looking at its values.
"""

from collections.abc import Mapping
from functools import cached_property

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.formats.arrow_schema import field_id
from icekeep.formats.chunk_bounds import ChunkBounds, Order, PageBounds, order_of, pages_of_index, stored_value
from icekeep.formats.page_heads import CannotSplice, ChunkPages, chunk_pages
from icekeep.formats.parquet_footer import MOST_FOOTER_BYTES, TAIL_BYTES
from icekeep.formats.rewrite_task import FilePiece
from icekeep.formats.thrift import Damaged, Struct
from icekeep.formats.write_options import ParquetOptions
from icekeep.spec.metadata_columns import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.schema import Schema
from icekeep.spec.types import BOOLEAN, DOUBLE, FLOAT, DecimalType, PrimitiveType

LEAST_PAGE_BYTES = 4 * 1024
"""Smaller pages, on average of a chunk, are better merged: a page costs a reader some time, and compresses worse."""

_NO_DICTIONARY = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_NOT_COUNTED = (BOOLEAN, FLOAT, DOUBLE)
_LINEAGE = (ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id)

CODECS = {
    "none": ("UNCOMPRESSED", 0),
    "snappy": ("SNAPPY", 1),
    "gzip": ("GZIP", 2),
    "brotli": ("BROTLI", 4),
    "zstd": ("ZSTD", 6),
}
"""By our names: how pyarrow calls them, and Parquet's number. LZ4 has two forms in Parquet, which pyarrow calls by one name."""


class SpliceColumn(msgspec.Struct, frozen=True):
    """A column of the new files that may be spliced.

    Attributes:
        stored: how it is stored, as `_stored_as` says it.
        has_statistics: whether the table wants statistics of it.
    """

    field_id: int
    physical_type: str
    is_optional: bool
    order: Order
    stored: tuple[object, ...]
    has_statistics: bool


class SpliceChunk(msgspec.Struct, frozen=True):
    """The pages of a column in one row group of a file; `bounds` are null where the table wants none."""

    pages: ChunkPages
    bounds: ChunkBounds | None


class SpliceSource(msgspec.Struct, frozen=True):
    """A file as bytes, and the chunks of its columns that may be spliced, by field id.

    Attributes:
        arrow_bytes: about how much memory its rows take.
        chunk_bytes: the compressed size of its columns that may be spliced, by field id.
    """

    piece: FilePiece
    data: bytes
    arrow_bytes: int
    chunks: Mapping[int, tuple[SpliceChunk, ...]]

    def chunk_bytes(self, field_id: int) -> int:
        """The compressed size of a column that may be spliced."""
        return sum(chunk.pages.compressed_bytes for chunk in self.chunks[field_id])


class SpliceExaminer:
    """Says of files which columns may be spliced; what files of one schema have in common is found out once."""

    def __init__(self, schema: Schema, options: ParquetOptions, written: pq.ParquetFile) -> None:
        """Args:
        schema: of the new files, without columns that files do not store.
        options: of the new files.
        written: a file with these columns as the table's writer makes it.
        """
        self._codec, _ = CODECS[options.compression]
        self._columns = _splice_columns(schema, options, written)
        self._known: tuple[pq.ParquetSchema, dict[int, int], int] | None = None

    @property
    def columns(self) -> Mapping[int, SpliceColumn]:
        """Those that may be spliced, by field id."""
        return self._columns

    def examine(self, piece: FilePiece, data: bytes) -> SpliceSource:
        """The chunks of a file that may be spliced, none where that cannot be told."""
        nothing = SpliceSource(piece, data, 0, {})
        try:
            file, held = pq.ParquetFile(pa.BufferReader(data)), _File(data)
            metadata = file.metadata
            # Damage is judged by whoever decodes the rows.
            positions, row_bytes = self._positions(file)
            if metadata.num_rows != piece.record_count:
                return nothing
            found = {
                id_: chunks
                for id_, position in positions.items()
                if (chunks := self._chunks(metadata, position, self._columns[id_], held)) is not None
            }
        except (pa.ArrowException, OSError, ValueError, OverflowError):
            return nothing
        arrow_bytes = metadata.num_rows * row_bytes
        source = SpliceSource(piece, data, arrow_bytes, found)
        texts = sum(source.chunk_bytes(id_) for id_ in found if self._columns[id_].physical_type == "BYTE_ARRAY")
        return msgspec.structs.replace(source, arrow_bytes=arrow_bytes + 2 * texts)

    def _positions(self, file: pq.ParquetFile) -> tuple[dict[int, int], int]:
        """Where in row groups the columns stand that are stored as in the new files; and about how long a row is."""
        schema = file.metadata.schema
        if self._known is None or not self._known[0].equals(schema):
            places = _leaf_positions(file)
            positions = {
                id_: places[id_]
                for id_, column in self._columns.items()
                if id_ in places and _stored_as(schema.column(places[id_])) == column.stored
            }
            self._known = schema, positions, sum(_width(field.type) for field in file.schema_arrow)
        return self._known[1], self._known[2]

    def _chunks(
        self, metadata: pq.FileMetaData, position: int, column: SpliceColumn, file: "_File"
    ) -> tuple[SpliceChunk, ...] | None:
        """The chunks of a column in all row groups that have rows; null unless all may be spliced."""
        try:
            groups = [(n, metadata.row_group(n)) for n in range(metadata.num_row_groups)]
            return tuple(
                self._chunk(group.column(position), (number, position), group.num_rows, column, file)
                for number, group in groups
                if group.num_rows
            )
        except (CannotSplice, Damaged):
            return None

    def _chunk(
        self, chunk: pq.ColumnChunkMetaData, place: tuple[int, int], row_count: int, column: SpliceColumn, file: "_File"
    ) -> SpliceChunk:
        encodings = set(chunk.encodings)
        if chunk.has_dictionary_page or encodings & _NO_DICTIONARY or chunk.compression != self._codec:
            raise CannotSplice("it has a dictionary, or another codec")
        if chunk.num_values != row_count or chunk.file_path:
            raise Damaged("a column chunk has not one value a row")
        start = chunk.data_page_offset
        pages = chunk_pages(
            file.data,
            start,
            start + chunk.total_compressed_size,
            physical_type=column.physical_type,
            has_nulls=column.is_optional,
            row_count=row_count,
        )
        if pages.compressed_bytes < LEAST_PAGE_BYTES * len(pages.pages):
            raise CannotSplice("its pages are small")
        bounds = _bounds(chunk, place, column, pages, file) if column.has_statistics else None
        return SpliceChunk(pages, bounds)


def _splice_columns(schema: Schema, options: ParquetOptions, written: pq.ParquetFile) -> dict[int, SpliceColumn]:
    places = _leaf_positions(written)
    columns: dict[int, SpliceColumn] = {}
    for field in schema.fields:
        id_, type_, wishes = field.field_id, field.type, options.columns
        if not isinstance(type_, PrimitiveType) or type_ in _NOT_COUNTED or id_ in _LINEAGE or id_ not in places:
            continue
        if wishes.bloom_filters.get(field.name) or wishes.dictionaries.get(field.name):
            continue
        leaf = written.metadata.schema.column(places[id_])
        columns[id_] = SpliceColumn(
            field_id=id_,
            physical_type=leaf.physical_type,
            is_optional=leaf.max_definition_level > 0,
            order=order_of(leaf.physical_type, is_decimal=isinstance(type_, DecimalType)),
            stored=_stored_as(leaf),
            has_statistics=wishes.statistics.get(field.name, True),
        )
    return columns


def _leaf_positions(file: pq.ParquetFile) -> dict[int, int]:
    """Where in row groups the columns at the top stand that hold values, by field id; those with an id that is not one's
    own are left out.
    """
    schema = file.metadata.schema
    tops = {schema.column(n).path: n for n in range(len(schema))}
    ids: dict[int, list[int]] = {}
    for field in file.schema_arrow:
        id_ = field_id(field)
        if id_ is not None:
            ids.setdefault(id_, []).append(-1 if field.type.num_fields else tops.get(field.name, -1))
    return {id_: found[0] for id_, found in ids.items() if len(found) == 1 and found[0] >= 0}


def _stored_as(leaf: pq.ColumnSchema) -> tuple[object, ...]:
    """All that says how the values of a column are to be read."""
    levels = leaf.max_definition_level, leaf.max_repetition_level
    return leaf.physical_type, str(leaf.logical_type), leaf.length, leaf.precision, leaf.scale, *levels


def _bounds(
    chunk: pq.ColumnChunkMetaData, place: tuple[int, int], column: SpliceColumn, pages: ChunkPages, file: "_File"
) -> ChunkBounds:
    """What the file says of a chunk's values; raises `CannotSplice` where it does not say all."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        raise CannotSplice("its nulls are not counted")
    null_count = statistics.null_count
    if not 0 <= null_count <= (chunk.num_values if column.is_optional else 0):
        raise Damaged("a column chunk has more nulls than it can have")
    least = greatest = None
    if null_count < chunk.num_values:
        if not statistics.has_min_max:
            raise CannotSplice("its bounds are not known")
        least = stored_value(column.physical_type, statistics.min_raw)
        greatest = stored_value(column.physical_type, statistics.max_raw)
        if column.order(least) > column.order(greatest):
            raise Damaged("the bounds of a column chunk are the wrong way round")
    if len(pages.pages) == 1:
        return ChunkBounds(chunk.num_values, null_count, least, greatest, (PageBounds(null_count, least, greatest),))
    counts = [page.row_count for page in pages.pages]
    index = file.column_index(*place) if chunk.has_column_index else None
    known = None if index is None else pages_of_index(index, counts, column.order)
    return ChunkBounds(chunk.num_values, null_count, least, greatest, known)


class _File:
    """A file as bytes, and its column indexes, whose places are looked up where they are needed: that takes long."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def column_index(self, group: int, position: int) -> bytes | None:
        """The column index of a chunk; null where its place is no place in the file."""
        chunk = self._chunks[group][position]
        start, length = chunk.value(6), chunk.value(7)
        return self.data[start : start + length] if 4 <= start < start + length <= len(self.data) else None

    @cached_property
    def _chunks(self) -> list[list[Struct]]:
        length = int.from_bytes(self.data[-TAIL_BYTES:-4], "little")
        if length > min(MOST_FOOTER_BYTES, len(self.data) - TAIL_BYTES):
            raise CannotSplice("its footer is too large")
        footer = Struct(self.data[-TAIL_BYTES - length : -TAIL_BYTES])
        return [group.structs(1) for group in footer.structs(4)]


def _width(type_: pa.DataType) -> int:
    """The bytes of a value, or of where a text begins."""
    try:
        return max(1, type_.bit_width // 8)
    except ValueError:
        return 4
