"""Small Parquet files whose data pages may be moved, and for which columns (`spliced_file` says how they are put together).

A column is spliced where a reader cannot tell its pages from those that the table's writer would make, but for how many rows
they have: it is stored in the same way, by the same codec, without a dictionary, and what manifests and footers say of it is
known without looking at its values.
"""

import re
from collections.abc import Collection, Mapping

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.formats.arrow.schema import field_id
from icekeep.formats.parquet.footer import CODECS
from icekeep.formats.parquet.page_bounds import Order, PageBounds, order_of, pages_of_index
from icekeep.formats.parquet.page_headers import CannotSplice, ChunkPages, chunk_pages
from icekeep.formats.parquet.thrift import Damaged, Struct
from icekeep.formats.rewrite.page_copy.chunk_bounds import ChunkBounds
from icekeep.formats.rewrite.page_copy.footers import (
    FooterEnd,
    FooterHead,
    WalkedFooter,
    footer_of,
    head_bytes,
    walk_footer,
)
from icekeep.formats.rewrite.task import FilePiece
from icekeep.formats.write_options import ParquetOptions
from icekeep.spec.metadata_columns import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.schema import Schema
from icekeep.spec.types import BOOLEAN, DOUBLE, FLOAT, PrimitiveType

_NOT_COUNTED = (BOOLEAN, FLOAT, DOUBLE)
_OLD_WRITERS = re.compile(rb"parquet-mr version 1\.[0-7]\.")
"""Their pages of DELTA_BYTE_ARRAY need the one before them (PARQUET-246)."""

_EXACT = 7, 8
"""Flags of statistics: whether both bounds are values."""

_CHUNK_FIELDS = {2, 3, 4, 5, 6, 7}
_LINEAGE = (ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id)


class SpliceColumn(msgspec.Struct, frozen=True):
    """A column of the new files that may be spliced.

    Attributes:
        stored: how it is stored, as `stored_as` says it.
        has_statistics: whether the table wants statistics of it.
    """

    field_id: int
    physical_type: str
    is_optional: bool
    order: Order
    stored: tuple[object, ...]
    has_statistics: bool


class SpliceChunk(msgspec.Struct, frozen=True):
    """The pages of a column in one row group of a file; `bounds` are `None` where the table wants none."""

    pages: ChunkPages
    bounds: ChunkBounds | None


class SpliceSource(msgspec.Struct, frozen=True):
    """A file as bytes, and the chunks of its columns that may be spliced, by field id.

    Attributes:
        arrow_bytes: about how much memory its rows take.
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
        self._codec = CODECS[options.compression]
        self._columns = _splice_columns(schema, options, written)
        self._head: FooterHead | None = None
        self._end: FooterEnd | None = None

    @property
    def columns(self) -> Mapping[int, SpliceColumn]:
        """Those that may be spliced, by field id."""
        return self._columns

    def examine(self, piece: FilePiece, data: bytes, wanted: Collection[int] | None = None) -> SpliceSource:
        """The chunks of a file that may be spliced, none where that cannot be told: whoever decodes it judges damage.

        `wanted` are the ids of the columns that are looked at, all of them where nothing is said.
        """
        nothing = SpliceSource(piece, data, piece.size_bytes, {})
        try:
            footer = footer_of(data)
            head = self._head_of(footer, data)
            positions = {id_: n for id_, n in head.positions.items() if wanted is None or id_ in wanted}
            walked = walk_footer(footer, head, {*positions.values()}, self._end)
        except (pa.ArrowException, OSError, ValueError):
            return nothing
        self._end = walked.end
        if _OLD_WRITERS.match(walked.end.created_by) or not walked.has_rows(piece.record_count):
            return nothing
        found = {
            id_: chunks
            for id_, position in positions.items()
            if (chunks := self._chunks(walked, position, self._columns[id_], data)) is not None
        }
        source = SpliceSource(piece, data, 0, found)
        texts = sum(source.chunk_bytes(id_) for id_ in found if self._columns[id_].physical_type == "BYTE_ARRAY")
        return msgspec.structs.replace(source, arrow_bytes=piece.record_count * head.row_bytes + 2 * texts)

    def _head_of(self, footer: bytes, data: bytes) -> FooterHead:
        """The head of a footer: where the columns stand that are stored as in the new files."""
        if self._head is None or not footer.startswith(self._head.data):
            file = pq.ParquetFile(pa.BufferReader(data))
            schema, places = file.metadata.schema, _leaf_positions(file)
            positions = {
                id_: places[id_]
                for id_, column in self._columns.items()
                if id_ in places and stored_as(schema.column(places[id_])) == column.stored
            }
            row_bytes = sum(_width(field.type) for field in file.schema_arrow)
            self._head = FooterHead(head_bytes(footer), positions, len(schema), row_bytes)
        return self._head

    def _chunks(
        self, walked: WalkedFooter, position: int, column: SpliceColumn, data: bytes
    ) -> tuple[SpliceChunk, ...] | None:
        """The chunks of a column in all row groups that have rows; `None` unless all may be spliced."""
        has_order = position in walked.end.ordered
        try:
            return tuple(
                self._chunk(chunks[position], row_count, column, has_order, data)
                for row_count, chunks in walked.row_groups
                if row_count
            )
        except (CannotSplice, ValueError):
            return None

    def _chunk(self, chunk: Struct, row_count: int, column: SpliceColumn, has_order: bool, data: bytes) -> SpliceChunk:
        about = chunk.struct(3)
        if about is None or about.value(11) or about.value(4) != self._codec:
            raise CannotSplice("it has a dictionary, or another codec")
        if about.value(5) != row_count or not chunk.field_ids <= _CHUNK_FIELDS:
            raise CannotSplice("it has not one value a row, or is encrypted or in another file")
        start = about.required_integer(9).value
        pages = chunk_pages(
            data,
            start,
            start + about.required_integer(7).value,
            physical_type=column.physical_type,
            has_nulls=column.is_optional,
            row_count=row_count,
        )
        if pages.uncompressed_bytes != about.required_integer(6).value:
            raise Damaged("the pages of a column chunk are longer or shorter than it says")
        if not pages.encodings <= {*about.integers(2)}:
            raise Damaged("a page is encoded in a way that its column chunk does not name")
        if not column.has_statistics:
            return SpliceChunk(pages, None)
        if not has_order:
            raise CannotSplice("the order of its bounds is not known")
        return SpliceChunk(pages, _bounds(chunk, about, column, pages, data))


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
            order=order_of(leaf),
            stored=stored_as(leaf),
            has_statistics=wishes.statistics.get(field.name, True),
        )
    return columns


def _leaf_positions(file: pq.ParquetFile) -> dict[int, int]:
    """Where in row groups the columns at the top stand that hold values, by field id; those with an id, or a path, that is
    not one's own are left out: `a.b` is a column's name and the path of a field in another.
    """
    schema = file.metadata.schema
    paths: dict[str, list[int]] = {}
    for position in range(len(schema)):
        paths.setdefault(schema.column(position).path, []).append(position)
    ids: dict[int, list[int]] = {}
    for field in file.schema_arrow:
        id_ = field_id(field)
        if id_ is not None:
            ids.setdefault(id_, []).extend(paths.get(field.name, ()) if not field.type.num_fields else [-1])
    return {id_: found[0] for id_, found in ids.items() if len(found) == 1 and found[0] >= 0}


def stored_as(leaf: pq.ColumnSchema) -> tuple[object, ...]:
    """All that says how the values of a column are to be read."""
    levels = leaf.max_definition_level, leaf.max_repetition_level
    return leaf.physical_type, str(leaf.logical_type), leaf.length, leaf.precision, leaf.scale, *levels


def _bounds(chunk: Struct, about: Struct, column: SpliceColumn, pages: ChunkPages, data: bytes) -> ChunkBounds:
    """What the file says of a chunk's values; raises `CannotSplice` where it does not say all."""
    statistics, value_count = about.struct(12), about.value(5)
    if statistics is None or statistics.span(3) is None:
        raise CannotSplice("its nulls are not counted")
    null_count = statistics.value(3)
    if not 0 <= null_count <= (value_count if column.is_optional else 0):
        raise Damaged("a column chunk has more nulls than it can have")
    least = greatest = None
    if null_count < value_count:
        least, greatest = statistics.binary(6), statistics.binary(5)
        if least is None or greatest is None:
            raise CannotSplice("its bounds are not known")
        if any(statistics.span(flag) is not None and not statistics.boolean(flag) for flag in _EXACT):
            # Manifests of a table that asks for full metrics hold least and greatest values, not cut ones.
            raise CannotSplice("its bounds were cut")
        if column.order(least) > column.order(greatest):
            raise Damaged("the bounds of a column chunk are the wrong way round")
    if len(pages.pages) == 1:
        return ChunkBounds(value_count, null_count, least, greatest, (PageBounds(null_count, least, greatest),))
    start, length = chunk.value(6), chunk.value(7)
    known = None
    if 4 <= start < start + length <= len(data):
        counts = [page.row_count for page in pages.pages]
        known = pages_of_index(data[start : start + length], counts, column.order)
    return ChunkBounds(value_count, null_count, least, greatest, known)


def _width(type_: pa.DataType) -> int:
    """The bytes of a value, or of where a text begins."""
    try:
        return max(1, type_.bit_width // 8)
    except ValueError:
        return 4
