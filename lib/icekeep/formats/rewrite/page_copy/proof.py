"""Proof of a spliced file: pages that were moved by their bytes, columns that were encoded by their rows.

What a row group shall hold is taken down before it is written, and held against the new file as it is read again. Of columns
that were moved, footers say where their bytes are, not the code that walked through the pages; what a reader goes by beside
these, bounds and indexes, must be what the sources said (`said`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import mmh3
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.schema import field_id
from icekeep.formats.base import translated
from icekeep.formats.parquet.footer import CODECS, bytes_at, footer_errors, read_footer
from icekeep.formats.parquet.page_bounds import Order, order_of
from icekeep.formats.parquet.thrift import Struct
from icekeep.formats.read import open_reader
from icekeep.formats.rewrite.page_copy.said import Indexes, SaidOfChunk, chunks_of, has_right_bounds, has_right_pages
from icekeep.formats.rewrite.page_copy.sources import SpliceSource, stored_as
from icekeep.formats.rewrite.task import RewriteTask
from icekeep.formats.rewrite.verify import add_rows, not_as_written, of_new_file, rows_at_once
from icekeep.formats.row_hash.multiset import RowSum
from icekeep.formats.row_hash.sequence import RowSequence
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage


class _Moved(msgspec.Struct, frozen=True):
    """A column of a row group whose pages were moved: a digest of their bytes, and how they are to be read."""

    digest: bytes
    value_count: int
    codecs: frozenset[str]
    stored: frozenset[tuple[object, ...]]


class _RowGroup(msgspec.Struct, frozen=True):
    """What a row group shall hold; `rows` are those of the columns that were encoded, `said` is said of those that were moved."""

    row_count: int
    said: Mapping[int, SaidOfChunk]
    moved: Mapping[int, _Moved]
    rows: RowSequence


class SpliceProof:
    """Takes down what goes into the row groups of new files, in their order, and holds it against these."""

    def __init__(self, task: RewriteTask) -> None:
        self._task = task
        self._columns = _Columns()
        self._rows: RowSequence | None = None
        self._files: list[list[_RowGroup]] = []

    def begin_file(self) -> None:
        """The row groups that come next are those of another file."""
        self._files.append([])

    def begin_rows(self, columns: Schema) -> None:
        """The rows that come next are those of the columns that are not moved, in another row group."""
        self._rows = RowSequence(columns)

    def add(self, table: pa.Table) -> None:
        """Rows that were read, while they are still in the processor's cache."""
        assert self._rows is not None
        self._rows.add(table)

    def take(self, sources: Sequence[SpliceSource], moved: Collection[int]) -> None:
        """A row group of some files is going to be written: the rows that were added, and the columns that are moved."""
        assert self._rows is not None
        found = {id_: _Digest() for id_ in moved}
        for source in sources:
            metadata = pq.read_metadata(pa.BufferReader(source.data))
            places = self._columns.of(metadata)
            data = memoryview(source.data)
            for id_, digest in found.items():
                for number in range(metadata.num_row_groups):
                    digest.add(metadata, number, places[id_], partial(_bytes_of, data))
        said = {id_: SaidOfChunk.of([chunk for source in sources for chunk in source.chunks[id_]]) for id_ in moved}
        totals = {id_: one.total for id_, one in found.items()}
        self._files[-1].append(_RowGroup(self._rows.row_count, said, totals, self._rows))

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
        return RowSum(sum(group.row_count for groups in self._files for group in groups))

    def _check_file(self, file: DataFile, groups: Sequence[_RowGroup], storage: Storage) -> None:
        footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
        counts = [group.row_count for group in groups]
        if [group.row_count for group in footer.row_groups] != counts or file.record_count != sum(counts):
            raise not_as_written(f"row groups of other sizes than {counts} rows", [file])
        if not footer.codecs <= {*CODECS.values()}:
            raise not_as_written("pages of a codec that there is not", [file])
        with storage.open(file.file_path) as stream, footer_errors(file.file_path), translated(file.file_path):
            metadata = pq.read_metadata(stream)
            places = self._columns.of(metadata)
            indexes = Indexes(stream, footer)
            for number, group in enumerate(groups):
                _check_said(file, chunks_of(footer, footer.row_groups[number]), group, places, indexes)
                for id_, moved in group.moved.items():
                    digest = _Digest()
                    digest.add(metadata, number, places.get(id_), partial(bytes_at, stream))
                    if digest.total != moved or moved.value_count != group.row_count:
                        raise not_as_written(f"other pages of the column with id {id_} than went in", [file])
        with open_reader(storage, file.file_path, "PARQUET") as reader:
            batch_rows = rows_at_once(reader, file, self._task)
            for number, group in enumerate(groups):
                found = group.rows.again()
                add_rows(found, reader, group.rows.coded_ids, batch_rows, [number])
                if found.total != group.rows.total:
                    what = f"{found.row_count} rows in row group {number}, where {group.row_count} with other values went in"
                    raise not_as_written(what, [file])


def _check_said(
    file: DataFile, chunks: Sequence[Struct], group: _RowGroup, places: Mapping[int, "_Place"], indexes: Indexes
) -> None:
    """Raise `IcekeepBug` unless the chunks of a row group say what they shall of their pages, beside the bytes of these."""
    moved = {places[id_].position: (id_, said) for id_, said in group.said.items() if id_ in places}
    orders = {place.position: place.order for place in places.values()}
    for position, chunk in enumerate(chunks):
        id_, said = moved.get(position, (None, None))
        if not has_right_pages(chunk, indexes, group.row_count, said):
            raise not_as_written(f"an offset index of column {position} that does not lead through its pages", [file])
        if said is not None and not has_right_bounds(chunk, indexes, said, orders[position]):
            raise not_as_written(f"other bounds of the column with id {id_} than its sources", [file])


def _bytes_of(data: memoryview, start: int, length: int) -> memoryview:
    return data[start : start + length]


class _Place(msgspec.Struct, frozen=True):
    """A column among those of a file, how its values are stored, and their order."""

    position: int
    stored: tuple[object, ...]
    order: Order


class _Columns:
    """Where the columns of files are; worked out anew only where a file differs from the one before."""

    def __init__(self) -> None:
        self._last: tuple[pq.ParquetSchema, dict[int, _Place]] | None = None

    def of(self, metadata: pq.FileMetaData) -> Mapping[int, _Place]:
        """By field id, of the top-level columns that hold values."""
        schema = metadata.schema
        if self._last is None or not self._last[0].equals(schema):
            ids = {field.name: field_id(field) for field in schema.to_arrow_schema()}
            leaves = [schema.column(position) for position in range(len(schema))]
            places = {ids.get(leaf.path): _Place(n, stored_as(leaf), order_of(leaf)) for n, leaf in enumerate(leaves)}
            self._last = schema, {id_: place for id_, place in places.items() if id_ is not None}
        return self._last[1]


class _Digest:
    """Of the chunks of a column, one behind the other."""

    def __init__(self) -> None:
        self._bytes = mmh3.mmh3_x64_128()
        self._value_count = 0
        self._codecs: set[str] = set()
        self._stored: set[tuple[object, ...]] = set()

    def add(
        self, metadata: pq.FileMetaData, number: int, place: _Place | None, read: Callable[[int, int], Any]
    ) -> None:
        """Add the chunk of a row group, whose bytes `read` gives by their place and number; nothing where there is no column."""
        if place is None or not metadata.row_group(number).num_rows:
            return
        chunk = metadata.row_group(number).column(place.position)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        self._bytes.update(read(start, chunk.total_compressed_size))
        self._value_count += chunk.num_values
        self._codecs.add(chunk.compression)
        self._stored.add((*place.stored, chunk.physical_type))

    @property
    def total(self) -> _Moved:
        """What was added so far."""
        return _Moved(self._bytes.digest(), self._value_count, frozenset(self._codecs), frozenset(self._stored))
