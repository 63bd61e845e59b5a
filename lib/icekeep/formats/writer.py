"""Writes data files of any format, rolled at a target size.

Data is Arrow tables in a table's columns (`arrow.schema`, `arrow.projection`). If anything fails before the caller has all files,
the writer deletes them.
"""

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.projection import KEPT_DICTIONARY, project
from icekeep.formats.arrow.schema import arrow_schema, stored_schema
from icekeep.formats.avro import AvroWriter
from icekeep.formats.base import MetricsCollector, NewFile
from icekeep.formats.options import OrcOptions, ParquetOptions, WriteOptions
from icekeep.formats.orc import OrcWriter
from icekeep.formats.parquet.writer import ParquetWriter, repeating_columns, row_group_bytes
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

ROW_GROUP_ROWS = 8 * 1024 * 1024
"""The most rows of a row group: a reader may hold a whole one, however well it is compressed."""

_SAMPLE_ARROW_BYTES = 16 * MIB
"""The part of a writer's first row group that is encoded to estimate how well its rows compress."""

_EVEN_SHARE = 0.75
"""Row groups of a file may shrink to this share of the full size to be of equal size."""


PIECE_ARROW_BYTES = 4 * MIB
"""Data is given in such pieces to the encoders of ORC and Avro, which collect rows themselves."""


def next_row_group_bytes(remaining_bytes: float, full_bytes: float) -> float:
    """The size of the next row group of a file, of which `remaining_bytes` are left.

    Row groups have equal sizes and the last ends where the file shall end, unless that makes them smaller than `_EVEN_SHARE` of
    the full size: the rows may end long before, and a file of small row groups cannot be copied later.
    """
    even_bytes = remaining_bytes / math.ceil(remaining_bytes / full_bytes)
    return even_bytes if even_bytes >= min(remaining_bytes, _EVEN_SHARE * full_bytes) else full_bytes


class RollingWriter:
    """Writes files one after another, which are deleted if the block of the context manager ends without `close`, or raises."""

    def __init__(self, storage: Storage, template: DataFile) -> None:
        """`template` has the partition and the sort order of the files."""
        self._storage, self._template = storage, template
        self._file: NewFile | None = None
        self._location = ""
        self._files: list[DataFile] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._closed:
            return
        locations = [file.file_path for file in self._files]
        if self._file is not None:
            if self._file.is_made:
                locations.append(self._location)
            else:
                self._file.abandon(error or IcekeepBug("a writer was not closed"))
            self._file = None
        self._storage.delete_many(locations)

    def end_file(self) -> None:
        """End the file, if there is one: further rows begin a new one."""
        if self._file is None:
            return
        size_bytes, metrics = self._file.finish()
        facts = msgspec.structs.asdict(metrics)
        self._files.append(
            msgspec.structs.replace(self._template, file_path=self._location, file_size_in_bytes=size_bytes, **facts)
        )
        self._file = None

    def close(self) -> tuple[DataFile, ...]:
        """Finish the last file and return all, in the order of their rows."""
        self.end_file()
        self._closed = True
        return tuple(self._files)


class DataFileWriter(RollingWriter):
    """Writes tables of one partition to files of the target size.

    A file ends near the target size, at the end of a row group; without data there is no file. A row group has the size of the
    table property `write.parquet.row-group-size-bytes`, or less where its data in memory reaches `row_group_arrow_bytes` of the
    options first. One row group is held in memory; for the other formats, `PIECE_ARROW_BYTES`.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        options: WriteOptions,
        new_location: Callable[[], str],
        *,
        spec_id: int = 0,
        partition: tuple[Any, ...] = (),
        sort_order_id: int | None = 0,
    ) -> None:
        template = DataFile(
            file_path="",
            file_format=options.file_format,
            spec_id=spec_id,
            partition=partition,
            sort_order_id=sort_order_id,
            record_count=0,
            file_size_in_bytes=0,
        )
        super().__init__(storage, template)
        self._file: ParquetWriter | OrcWriter | AvroWriter | None = None
        self._schema, self._stored, self._options = schema, stored_schema(schema), options
        modes = options.metrics_modes
        self._modes = metrics_modes({}, schema) if modes is None else modes
        self._new_location = new_location
        self._written_schema: pa.Schema | None = None
        self._repeating: list[str] | None = None
        # Tables of the next row group.
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = self._flushed_arrow_bytes = self._flushed_bytes = 0.0
        self._sampled_ratio: float | None = None

    def write(self, table: pa.Table) -> None:
        """Add rows in the columns of the writer's schema, as `project` and `cast_to_schema` return them.

        The first table decides which string columns are dictionaries; later ones are converted.
        """
        if not table.num_rows:
            return
        table = self._conform(table)
        bytes_per_row = max(_plain_bytes(table), 1) / table.num_rows
        start = 0
        while start < table.num_rows:
            free_bytes = self._row_group_limit_bytes() - self._waiting_bytes
            free_rows = min(ROW_GROUP_ROWS - self._waiting_rows, max(1, int(free_bytes / bytes_per_row)))
            piece = table.slice(start, free_rows)
            self._waiting.append(piece)
            self._waiting_rows += piece.num_rows
            self._waiting_bytes += piece.num_rows * bytes_per_row
            start += piece.num_rows
            if piece.num_rows == free_rows and not self._may_grow():
                self._flush()

    def end_file(self) -> None:
        if self._waiting:
            self._flush()
        super().end_file()

    def _conform(self, table: pa.Table) -> pa.Table:
        """The stored columns, in one schema for all tables."""
        if self._written_schema is None:
            expected = arrow_schema(self._schema)
            plain = pa.schema([f.with_type(pa.string()) if f.type == KEPT_DICTIONARY else f for f in table.schema])
            if not plain.equals(expected):
                raise IcekeepBug(f"data to write has the columns {table.schema.names}, the schema has {expected.names}")
            keeps = self._options.file_format == "PARQUET"
            kept = {f.name for f in table.schema if keeps and f.type == KEPT_DICTIONARY}
            self._written_schema = pa.schema([f.with_type(KEPT_DICTIONARY) if f.name in kept else f for f in expected])
        if not table.schema.equals(self._written_schema, check_metadata=True):
            table = table.cast(self._written_schema)
        return table if self._stored == self._schema else project(table, self._stored)

    def _row_group_limit_bytes(self) -> float:
        """How much Arrow data the current row group may take, by the compression ratio of earlier data."""
        encoding = self._options.encoding
        if not isinstance(encoding, ParquetOptions):
            return min(PIECE_ARROW_BYTES, self._options.target_file_size_bytes / 8)
        ratio = self._sampled_ratio or 1.0
        if self._flushed_arrow_bytes:
            ratio = self._flushed_bytes / self._flushed_arrow_bytes
        full_bytes = min(self._options.row_group_arrow_bytes, encoding.row_group_size_bytes / ratio)
        written_bytes = self._file.written_bytes if self._file is not None else 0
        remaining_bytes = max(1, self._options.target_file_size_bytes - written_bytes) / ratio
        return next_row_group_bytes(remaining_bytes, full_bytes)

    def _may_grow(self) -> bool:
        """Whether the first row group, which is full without compression, has room by the ratio of a sample."""
        encoding = self._options.encoding
        if self._flushed_arrow_bytes or self._sampled_ratio is not None or not isinstance(encoding, ParquetOptions):
            return False
        share = min(1.0, _SAMPLE_ARROW_BYTES / max(1.0, self._waiting_bytes))
        sample = pa.concat_tables(self._waiting).slice(0, max(1, int(self._waiting_rows * share))).unify_dictionaries()
        encoded_bytes = row_group_bytes(sample, encoding, repeating_columns(sample))
        self._sampled_ratio = encoded_bytes / max(1, _plain_bytes(sample))
        return self._waiting_rows < ROW_GROUP_ROWS and self._row_group_limit_bytes() > self._waiting_bytes

    def _flush(self) -> None:
        # pyarrow's writer stops dictionary-encoding a column when a second dictionary arrives.
        table, arrow_bytes = pa.concat_tables(self._waiting).unify_dictionaries(), self._waiting_bytes
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0.0
        if self._file is None:
            self._location = self._new_location()
            self._file = self._open(table)
        before_bytes = self._file.written_bytes
        self._file.write(table)
        flushed_bytes = self._file.written_bytes - before_bytes
        self._flushed_arrow_bytes += arrow_bytes
        self._flushed_bytes += flushed_bytes
        # A slightly wrong estimate must not leave a tiny row group at the end of the file.
        if self._file.written_bytes + flushed_bytes / 4 >= self._options.target_file_size_bytes:
            super().end_file()

    def _open(self, first: pa.Table) -> ParquetWriter | OrcWriter | AvroWriter:
        storage, location, stored = self._storage, self._location, self._stored
        encoding = self._options.encoding
        if isinstance(encoding, ParquetOptions):
            if self._repeating is None:
                # The rows of later files are assumed to be similar.
                self._repeating = repeating_columns(first)
            return ParquetWriter(storage, location, stored, encoding, self._modes, first, self._repeating)
        collector = MetricsCollector(stored, self._modes)
        if isinstance(encoding, OrcOptions):
            # A small target size must not be reached within the first stripe.
            stripe_size_bytes = min(encoding.stripe_size_bytes, max(1, self._options.target_file_size_bytes // 4))
            options = msgspec.structs.replace(encoding, stripe_size_bytes=stripe_size_bytes)
            return OrcWriter(storage, location, first.schema, options, collector)
        return AvroWriter(storage, location, stored, encoding, collector)


def _plain_bytes(table: pa.Table) -> float:
    """The memory of rows in a reader that keeps no dictionaries."""
    total = 0.0
    for column in table.columns:
        if not pa.types.is_dictionary(column.type):
            total += column.nbytes
            continue
        for chunk in column.chunks:
            entries = chunk.dictionary
            total += len(chunk) * (4 + entries.nbytes / max(1, len(entries)))
    return total
