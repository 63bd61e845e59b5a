"""Data files of any format: written, and rolled at a target size.

Data goes in as Arrow tables in a table's columns (`arrow.schema`, `arrow.projection`). A writer's files are its own until the
caller has them all: if anything fails before that, they are deleted.
"""

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.projection import KEPT_DICTIONARY, project
from icekeep.formats.arrow.schema import arrow_schema, stored_schema
from icekeep.formats.avro import AvroWriter
from icekeep.formats.base import MetricsCollector
from icekeep.formats.options import OrcOptions, ParquetOptions, WriteOptions
from icekeep.formats.orc import OrcWriter
from icekeep.formats.parquet.writer import ParquetWriter, repeating_columns, row_group_bytes
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

ROW_GROUP_ROWS = 8 * 1024 * 1024
"""The most rows of a row group: a reader may hold one as a whole, however well it is packed."""

_SAMPLE_ARROW_BYTES = 16 * MIB
"""How much of a writer's first row group is encoded to see how well its rows compress."""

_EVEN_SHARE = 0.75
"""How small row groups of a file may get, as a share of the full size, so that all of them are of one size."""

_FileWriter: TypeAlias = ParquetWriter | OrcWriter | AvroWriter

PIECE_ARROW_BYTES = 4 * MIB
"""Of ORC and Avro files, whose encoders gather rows themselves: how much they are given at a time."""


def next_row_group_bytes(remaining_bytes: float, full_bytes: float) -> float:
    """How large to make a row group where so much is left until its file is full.

    Row groups are of one size and end where the file shall end, unless that makes them smaller than `_EVEN_SHARE` of the full
    size: the rows may end long before, and a file of small row groups cannot be copied later.
    """
    even_bytes = remaining_bytes / math.ceil(remaining_bytes / full_bytes)
    return even_bytes if even_bytes >= min(remaining_bytes, _EVEN_SHARE * full_bytes) else full_bytes


class DataFileWriter:
    """Writes tables of one partition into as many files as their size asks for.

    Use it as a context manager and call `close` at the end of the block: when the block ends without that, or raises,
    every file that was written is deleted. A file ends near the target size, at the end of a row group; no data makes
    no file. A row group is as large in the file as the table property says (`write.parquet.row-group-size-bytes`). In memory
    is one, at most about `row_group_arrow_bytes` of the options beside the table that is being written: where that is less,
    row groups are smaller. Of the other formats it is less: rows are handed on in pieces of `PIECE_ARROW_BYTES`.
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
        self._storage = storage
        self._schema = schema
        self._stored = stored_schema(schema)
        self._options = options
        modes = options.metrics_modes
        self._modes = metrics_modes({}, schema) if modes is None else modes
        self._new_location = new_location
        self._file_template = DataFile(
            file_path="",
            file_format=options.file_format,
            spec_id=spec_id,
            partition=partition,
            sort_order_id=sort_order_id,
            record_count=0,
            file_size_in_bytes=0,
        )
        self._written_schema: pa.Schema | None = None
        self._repeating: list[str] | None = None
        # Tables that wait to be written as one row group.
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0.0
        self._file: _FileWriter | None = None
        self._location = ""
        self._files: list[DataFile] = []
        self._flushed_arrow_bytes = 0.0
        self._flushed_bytes = 0.0
        self._sampled_ratio: float | None = None
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

    def write(self, table: pa.Table) -> None:
        """Add rows, in the columns of the writer's schema as `project` or `cast_to_schema` gives them.

        The first table decides which string columns are handed over as dictionaries; later ones are converted.
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
        """The rows that come next begin a new file."""
        if self._waiting:
            self._flush()
        self._finish_file()

    def close(self) -> tuple[DataFile, ...]:
        """Finish the last file and return all of them, in the order of their rows."""
        self.end_file()
        self._closed = True
        return tuple(self._files)

    def _conform(self, table: pa.Table) -> pa.Table:
        """The columns that files hold, in one schema for all tables of the file."""
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
        """How much Arrow data the row group in the making may take, going by how well earlier data compressed."""
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
        """Whether a row group that is full by a guess has room by a sample of it: there is nothing else to go by at first."""
        encoding = self._options.encoding
        if self._flushed_arrow_bytes or self._sampled_ratio is not None or not isinstance(encoding, ParquetOptions):
            return False
        share = min(1.0, _SAMPLE_ARROW_BYTES / max(1.0, self._waiting_bytes))
        sample = pa.concat_tables(self._waiting).slice(0, max(1, int(self._waiting_rows * share))).unify_dictionaries()
        encoded_bytes = row_group_bytes(sample, encoding, repeating_columns(sample))
        self._sampled_ratio = encoded_bytes / max(1, _plain_bytes(sample))
        return self._waiting_rows < ROW_GROUP_ROWS and self._row_group_limit_bytes() > self._waiting_bytes

    def _flush(self) -> None:
        # pyarrow's writer stops encoding a column as a dictionary when a second one comes along.
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
        # An estimate that was a little off must not leave a splinter of a row group at the end of the file.
        if self._file.written_bytes + flushed_bytes / 4 >= self._options.target_file_size_bytes:
            self._finish_file()

    def _open(self, first: pa.Table) -> _FileWriter:
        storage, location, stored = self._storage, self._location, self._stored
        encoding = self._options.encoding
        if isinstance(encoding, ParquetOptions):
            if self._repeating is None:
                # The rows of later files are taken to be alike.
                self._repeating = repeating_columns(first)
            return ParquetWriter(storage, location, stored, encoding, self._modes, first, self._repeating)
        collector = MetricsCollector(stored, self._modes)
        if isinstance(encoding, OrcOptions):
            # A small target must not lie within the first stripe.
            stripe_size_bytes = min(encoding.stripe_size_bytes, max(1, self._options.target_file_size_bytes // 4))
            options = msgspec.structs.replace(encoding, stripe_size_bytes=stripe_size_bytes)
            return OrcWriter(storage, location, first.schema, options, collector)
        return AvroWriter(storage, location, stored, encoding, collector)

    def _finish_file(self) -> None:
        if self._file is None:
            return
        size_bytes, metrics = self._file.finish()
        file = msgspec.structs.replace(
            self._file_template,
            file_path=self._location,
            file_size_in_bytes=size_bytes,
            **msgspec.structs.asdict(metrics),
        )
        self._files.append(file)
        self._file = None


def _plain_bytes(table: pa.Table) -> float:
    """What rows take in memory, each value by itself: so a reader holds them that keeps no dictionaries."""
    total = 0.0
    for column in table.columns:
        if not pa.types.is_dictionary(column.type):
            total += column.nbytes
            continue
        for chunk in column.chunks:
            entries = chunk.dictionary
            total += len(chunk) * (4 + entries.nbytes / max(1, len(entries)))
    return total
