"""Parquet data files, written in row groups (spec, Appendix A "Parquet")."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import IcekeepError
from icekeep.formats.base import FileMetrics
from icekeep.formats.column_metrics import count_nans
from icekeep.formats.parquet.column_options import bloom_filters, with_dictionary, with_statistics
from icekeep.formats.parquet.footer_metrics import file_metrics
from icekeep.formats.write_options import ParquetOptions
from icekeep.spec.metrics_modes import MetricsMode
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage


class ParquetWriter:
    """A Parquet file that is being written; each table becomes a row group."""

    def __init__(
        self,
        storage: Storage,
        location: str,
        schema: Schema,
        options: ParquetOptions,
        modes: Mapping[int, MetricsMode],
        first: pa.Table,
        repeating: Collection[str],
    ) -> None:
        """`first` is the first row group; `repeating` are paths of the columns that are worth a dictionary."""
        self._schema = schema
        self._modes = modes
        self._nan_counts: dict[int, int] = {}
        self._footers: list[pq.FileMetaData] = []
        self.is_made = False
        with ExitStack() as stack:
            self._stream = stack.enter_context(storage.write(location))
            settings = _settings(options, first.schema, repeating)
            self._writer = pq.ParquetWriter(self._stream, first.schema, metadata_collector=self._footers, **settings)
            self._stack = stack.pop_all()

    @property
    def written_bytes(self) -> float:
        return self._stream.tell()

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group."""
        self._writer.write_table(table, row_group_size=table.num_rows)
        for id_, count in count_nans(table, self._schema).items():
            self._nan_counts[id_] = self._nan_counts.get(id_, 0) + count

    def finish(self) -> tuple[int, FileMetrics]:
        """Write the footer, and take the metrics from it."""
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stack.close()
        self.is_made = True
        return size_bytes, file_metrics(self._footers[0], self._schema, self._modes, self._nan_counts)

    def abandon(self, error: BaseException) -> None:
        """Give the file up; nothing that goes wrong with it now matters beside `error`."""
        # After a row group that failed, pyarrow has no footer to hand out, and says so as a RuntimeError.
        with suppress(IcekeepError, pa.ArrowException, OSError, ValueError, RuntimeError):
            self._writer.close()
        with suppress(IcekeepError, OSError, ValueError):
            self._stack.__exit__(type(error), error, error.__traceback__)


def _settings(options: ParquetOptions, schema: pa.Schema, repeating: Collection[str]) -> dict[str, Any]:
    """How pyarrow's writer is told to write."""
    return {
        "version": "2.6",
        "compression": options.compression,
        "compression_level": options.compression_level,
        "data_page_size": options.page_size_bytes,
        "data_page_version": options.page_version,
        "max_rows_per_page": options.page_rows,
        "use_dictionary": with_dictionary(options.columns, schema, repeating),
        "write_statistics": with_statistics(options.columns, schema),
        "bloom_filter_options": bloom_filters(options.columns, schema),
        "dictionary_pagesize_limit": options.dictionary_size_bytes,
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_index": True,
        "write_page_checksum": True,
    }


def row_group_bytes(table: pa.Table, options: ParquetOptions, repeating: Collection[str]) -> int:
    """How many bytes a table takes in a file as a row group; it is encoded to see."""
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, table.schema, **_settings(options, table.schema, repeating)) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
        return int(out.tell())
