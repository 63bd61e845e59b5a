"""Small Parquet files put together without decoding all of their columns: data pages that need no dictionary are moved.

Row groups that are as large as any are made of whole files. In each, a column that all its files store as the table's writer
would is moved page by page; the others are decoded and encoded as in any rewrite, and so is at least one. It is done where
rows stay as they are, and where it pays.
"""

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.schema import arrow_schema, stored_schema
from icekeep.formats.memory import peak_memory_bytes
from icekeep.formats.parquet.footer import CODECS, Footer, read_footer
from icekeep.formats.parquet.writer import ParquetWriter
from icekeep.formats.rewrite.input import TaskRows, columns_to_write
from icekeep.formats.rewrite.moves_report import reported_moves, whole_pieces
from icekeep.formats.rewrite.output import FileNames, removed_on_failure, task_options
from icekeep.formats.rewrite.page_copy.proof import SpliceProof
from icekeep.formats.rewrite.page_copy.sources import SpliceExaminer, SpliceSource
from icekeep.formats.rewrite.page_copy.spliced_file import MovedChunks, Shape, SplicedFile
from icekeep.formats.rewrite.task import FilePiece, RewriteOutcome, RewriteTask
from icekeep.formats.rolling_writer import ROW_GROUP_ROWS, DataFileWriter, next_row_group_bytes
from icekeep.formats.write_options import ParquetOptions, WriteOptions
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metrics_modes import metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.units import MAX_LONG, MIB
from icekeep.storage.base import Storage
from icekeep.storage.overlay import HeldFiles

MAX_SPLICED_BYTES = 32 * MIB
"""A larger file is no small file: its row groups are stitched, or it is cut into pieces."""

MIN_PAGE_BYTES = 4 * 1024
"""Smaller pages, on average of a row group, are better merged: a page costs its readers time, and compresses worse."""

MIN_SHARE = 0.2
"""The share of the bytes that must be moved, or splicing does not pay."""

_ENCODED = "memory:/encoded.parquet"


def rewrite_spliced(task: RewriteTask, storage: Storage) -> RewriteOutcome | None:
    """Do what `rewrite` does by splicing; `None` where that cannot be done or does not pay, and then nothing was written.

    Raises what `rewrite` raises; if anything fails, no new file is left.
    """
    if not _may_splice(task):
        return None
    options = task_options(task)
    if not isinstance(options.encoding, ParquetOptions):
        return None
    columns = columns_to_write(task)
    with _Splicer(task, columns, options, options.encoding, storage) as splicer:
        if not splicer.pays():
            return None
        for group in splicer.groups():
            splicer.write(group)
        files = splicer.close()
        proof = splicer.proof
    with removed_on_failure([file.file_path for file in files], storage):
        row_count = sum(file.record_count for file in files)
        if row_count != sum(piece.record_count for piece in task.pieces):
            raise IcekeepBug(f"a rewrite of {len(task.pieces)} files wrote {row_count} rows; its files are deleted")
        proved = None if proof is None else proof.check(files, storage)
        moves = reported_moves(task, storage, whole_pieces(task), None)
    return RewriteOutcome(
        files=files,
        read_count=row_count,
        live_count=row_count,
        peak_bytes=peak_memory_bytes(),
        moves=moves,
        hash_in=proved,
        hash_out=proved,
    )


def _may_splice(task: RewriteTask) -> bool:
    """Whether all rows stay as they are, and come from small Parquet files."""
    return (
        task.moves_pages
        and task.ordering is None
        and task.key_range is None
        and task.files_count in (None, 1)
        and bool(task.pieces)
        and all(
            piece.file_format.upper() == "PARQUET"
            and not piece.deletes
            and piece.split is None
            and piece.size_bytes <= MAX_SPLICED_BYTES
            and piece.record_count <= ROW_GROUP_ROWS
            for piece in task.pieces
        )
    )


class _Splicer:
    """Writes row groups of whole files into new files, of which none is left unless `close` was reached.

    Attributes:
        proof: takes down what is written; `None` where nobody asks for it.
    """

    def __init__(
        self, task: RewriteTask, columns: Schema, options: WriteOptions, encoding: ParquetOptions, storage: Storage
    ) -> None:
        self._storage = storage
        self._held = HeldFiles(storage)
        self._keeps_lineage = columns is not task.schema
        self._task = msgspec.structs.replace(task, keeps_lineage=self._keeps_lineage)
        self._options, self._encoding = options, encoding
        self._modes = metrics_modes({}, columns) if options.metrics_modes is None else options.metrics_modes
        self._stored = stored_schema(columns)
        self._shape, self._examiner = self._described()
        self._partition = task.pieces[0].partition
        self._new_location = FileNames(task, options).in_partition(self._partition)
        self._file: SplicedFile | None = None
        self._location = ""
        self._files: list[DataFile] = []
        self._closed = False
        self._ratio = 1.0
        self.proof = SpliceProof(task) if task.verifies else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed or (error is None and not self._files and self._file is None):
            return
        locations = [file.file_path for file in self._files]
        if self._file is not None:
            if self._file.is_made:
                locations.append(self._location)
            else:
                self._file.abandon(error or IcekeepBug("a rewrite was not finished"))
            self._file = None
        self._storage.delete_many(locations)

    def close(self) -> tuple[DataFile, ...]:
        """Finish the last file and return all of them, in the order of their rows."""
        self._finish_file()
        self._closed = True
        return tuple(self._files)

    def pays(self) -> bool:
        """Whether splicing pays for the largest file, which speaks for all: where it is wrong, only time is lost."""
        largest = self._source(max(self._task.pieces, key=lambda piece: piece.size_bytes))
        return bool(self.moved_columns([largest]))

    def groups(self) -> Iterator[list[SpliceSource]]:
        """The files of each new row group. They are held as bytes until the group is written."""
        group: list[SpliceSource] = []
        size_bytes = arrow_bytes = row_count = 0
        for piece in self._task.pieces:
            # A column that one file of the row group cannot give need not be looked for in the others.
            source = self._source(piece, group[-1].chunks if group else None)
            size_bytes += piece.size_bytes
            arrow_bytes += source.arrow_bytes
            row_count += piece.record_count
            # The half of a file that is nearer to the limit decides.
            if group and not self._fits(row_count, size_bytes - piece.size_bytes // 2, arrow_bytes):
                yield group
                source = self._source(piece)
                group, row_count, size_bytes, arrow_bytes = [], piece.record_count, piece.size_bytes, source.arrow_bytes
            group.append(source)
        if group:
            yield group

    def moved_columns(self, group: list[SpliceSource]) -> set[int]:
        """Field ids of the columns that are moved, none where that does not pay."""
        shared = set.intersection(*(set(source.chunks) for source in group))
        sizes = {id_: size for id_ in shared if (size := _moved_bytes(group, id_)) is not None}
        if len(sizes) == len(self._stored.fields):
            # Rows are counted, and a row group is made, by a column that is encoded.
            del sizes[min(sizes, key=lambda id_: sizes[id_])]
        pays = sum(sizes.values()) >= MIN_SHARE * sum(source.piece.size_bytes for source in group)
        return set(sizes) if pays else set()

    def write(self, group: list[SpliceSource]) -> None:
        """Write the rows of some files as one row group, or as several where they take more memory than was expected."""
        moved = self.moved_columns(group)
        fields = tuple(field for field in self._task.schema.fields if field.field_id not in moved)
        schema = msgspec.structs.replace(self._task.schema, fields=fields, identifier_field_ids=())
        pieces = tuple(source.piece for source in group)
        task = msgspec.structs.replace(self._task, pieces=pieces, schema=schema, moves_directory=None, verifies=False)
        rows = TaskRows(task, self._held)
        read: list[SpliceSource] = []
        tables: list[pa.Table] = []
        arrow_bytes = 0
        if self.proof is not None:
            self.proof.begin_rows(rows.columns)
        for source in group:
            found = [self._noted(table) for table in rows.read([source.piece])]
            read.append(source)
            tables += found
            arrow_bytes += sum(table.nbytes for table in found)
            if arrow_bytes >= self._options.row_group_arrow_bytes:
                self._write_row_group(read, tables, rows.columns, moved)
                read, tables, arrow_bytes = [], [], 0
                if self.proof is not None:
                    self.proof.begin_rows(rows.columns)
        self._write_row_group(read, tables, rows.columns, moved)
        for source in group:
            self._held.files.pop(source.piece.location, None)
        self._ratio = sum(source.piece.size_bytes for source in group) / max(
            1, sum(source.arrow_bytes for source in group)
        )

    def _noted(self, table: pa.Table) -> pa.Table:
        if self.proof is not None:
            self.proof.add(table)
        return table

    def _source(self, piece: FilePiece, wanted: Collection[int] | None = None) -> SpliceSource:
        """A file, held as bytes from now on unless it is longer or shorter than was said."""
        with self._held.open(piece.location) as stream:
            data = stream.read(piece.size_bytes + 1)
        if len(data) == piece.size_bytes:
            self._held.files[piece.location] = data
            return self._examiner.examine(piece, data, wanted)
        return SpliceSource(piece, b"", piece.size_bytes, {})

    def _fits(self, row_count: int, size_bytes: int, arrow_bytes: int) -> bool:
        """Whether as much goes into one row group: the limits are those of `DataFileWriter`."""
        full_bytes = min(self._options.row_group_arrow_bytes * self._ratio, self._encoding.row_group_size_bytes)
        written_bytes = self._file.written_bytes if self._file is not None else 0
        remaining_bytes = max(1, self._options.target_file_size_bytes - written_bytes)
        return (
            row_count <= ROW_GROUP_ROWS
            and arrow_bytes <= self._options.row_group_arrow_bytes
            and size_bytes <= next_row_group_bytes(remaining_bytes, full_bytes)
        )

    def _write_row_group(
        self, sources: list[SpliceSource], tables: list[pa.Table], columns: Schema, moved: set[int]
    ) -> None:
        """Write the rows of files; `tables` are what was read of them in `columns`, the others are moved."""
        if not any(table.num_rows for table in tables):
            return
        footer, encoded, nan_counts = self._encoded(tables, columns)
        if self._file is None:
            self._location = self._new_location()
            self._file = SplicedFile(self._storage, self._location, self._shape)
            if self.proof is not None:
                self.proof.begin_file()
        if self.proof is not None:
            self.proof.take(sources, moved)
        before_bytes = self._file.written_bytes
        chunks: dict[int, MovedChunks] = {
            id_: [(source.data, chunk) for source in sources for chunk in source.chunks[id_]] for id_ in moved
        }
        self._file.add(encoded, footer, chunks, nan_counts)
        added_bytes = self._file.written_bytes - before_bytes
        if self._file.written_bytes + added_bytes / 4 >= self._options.target_file_size_bytes:
            self._finish_file()

    def _encoded(self, tables: list[pa.Table], columns: Schema) -> tuple[Footer, bytes, Mapping[int, int]]:
        """Rows as a file of one row group; and how many NaN they have."""
        encoding = msgspec.structs.replace(self._encoding, row_group_size_bytes=MAX_LONG)
        options = msgspec.structs.replace(
            self._options, encoding=encoding, target_file_size_bytes=MAX_LONG, row_group_arrow_bytes=MAX_LONG
        )
        with DataFileWriter(self._held, columns, options, lambda: _ENCODED) as writer:
            for table in tables:
                writer.write(table)
            (file,) = writer.close()
        footer = read_footer(self._held, _ENCODED, file.file_size_in_bytes)
        return footer, self._held.files.pop(_ENCODED), file.nan_value_counts or {}

    def _described(self) -> tuple[Shape, SpliceExaminer]:
        """What new files have in common, by way of one without rows."""
        empty = pa.Table.from_batches([], schema=arrow_schema(self._stored))
        writer = ParquetWriter(self._held, _ENCODED, self._stored, self._encoding, self._modes, empty, ())
        size_bytes, _ = writer.finish()
        footer = read_footer(self._held, _ENCODED, size_bytes)
        with self._held.open(_ENCODED) as stream:
            examiner = SpliceExaminer(self._stored, self._encoding, pq.ParquetFile(stream))
        del self._held.files[_ENCODED]
        return Shape(footer, examiner.columns, CODECS[self._encoding.compression], self._stored, self._modes), examiner

    def _finish_file(self) -> None:
        if self._file is None:
            return
        size_bytes, metrics = self._file.finish()
        self._files.append(
            DataFile(
                file_path=self._location,
                file_format="PARQUET",
                spec_id=self._task.spec_id,
                partition=self._partition,
                sort_order_id=self._task.sort_order_id,
                file_size_in_bytes=size_bytes,
                **msgspec.structs.asdict(metrics),
            )
        )
        self._file = None


def _moved_bytes(group: list[SpliceSource], field_id: int) -> int | None:
    """How many bytes of a column are there to be moved; `None` where its pages are small, or of both versions."""
    pages = [chunk.pages for source in group for chunk in source.chunks[field_id]]
    if len({chunk.kind for chunk in pages}) > 1:
        return None
    size_bytes = sum(chunk.compressed_bytes for chunk in pages)
    return size_bytes if size_bytes >= MIN_PAGE_BYTES * sum(len(chunk.pages) for chunk in pages) else None
