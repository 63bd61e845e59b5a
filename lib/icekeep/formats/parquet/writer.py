"""Parquet data files, written in row groups (spec, Appendix A "Parquet").

pyarrow names columns by their paths in the file, with `list.element` and `key_value`, table properties by Iceberg's full names,
with `element`, `key` and `value`.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeep.formats.base import FileMetrics, NewFile, count_nans
from icekeep.formats.options import ParquetColumns, ParquetOptions
from icekeep.formats.parquet.metrics import file_metrics
from icekeep.spec.properties import MetricsMode
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

_SAMPLE_ROWS = 16_384
_REPEATING_SHARE = 0.8

_DEFAULT_FPP = 0.01
_MIN_FILTER_BYTES = 32
_MAX_FILTER_BYTES = 128 * MIB


def leaf_paths(schema: pa.Schema) -> dict[str, str]:
    """The paths of the columns in a Parquet file of a schema, by their full names."""
    return {name: path for field in schema for name, path, _ in _leaves(field.name, field.name, field.type)}


def repeating_columns(table: pa.Table) -> list[str]:
    """Paths of the columns that are worth a dictionary: not those whose values hardly repeat in a sample.

    Building a dictionary that turns out too large costs time, and makes a larger file.
    """
    judged = [n for n, f in enumerate(table.schema) if not (f.type.num_fields or pa.types.is_dictionary(f.type))]
    samples: dict[int, pa.ChunkedArray] = {}
    if judged:
        # Every n-th row, batch by batch: Arrow would first join the chunks of a column into one array.
        step, first = max(1, table.num_rows // _SAMPLE_ROWS), 0
        batches: list[pa.RecordBatch] = []
        for batch in table.select(judged).to_batches():
            batches.append(batch.take(pa.array(np.arange(-first % step, batch.num_rows, step), pa.int64())))
            first += batch.num_rows
        sample = pa.Table.from_batches(batches, table.select(judged).schema)
        samples = dict(zip(judged, sample.columns, strict=True))
    paths: list[str] = []
    for number, field in enumerate(table.schema):
        if number not in samples:
            paths += [path for _, path, _ in _leaves(field.name, field.name, field.type)]
            continue
        values = samples[number].drop_null()
        if field.type == pa.uuid():
            values = values.cast(pa.binary(16))
        if pc.count_distinct(values).as_py() <= len(values) * _REPEATING_SHARE:
            paths.append(field.name)
    return paths


def with_dictionary(columns: ParquetColumns, schema: pa.Schema, repeating: Collection[str]) -> list[str]:
    """Paths of the columns that get a dictionary: by the property of a column, else those that repeat."""
    return [
        path
        for name, path in leaf_paths(schema).items()
        if columns.dictionaries.get(name, columns.default_dictionary and path in repeating)
    ]


def bloom_filters(columns: ParquetColumns, schema: pa.Schema) -> dict[str, dict[str, Any]] | None:
    """The bloom filters of a file by path, null if it has none.

    Without a number of distinct values a filter starts at the maximum size; the writer then folds it to what the values of the
    row group need. Parquet has no filters of booleans.
    """
    # A power of two (Parquet, "Split Block Bloom Filters").
    max_bytes = min(max(_MIN_FILTER_BYTES, 2 ** (columns.bloom_filter_max_bytes.bit_length() - 1)), _MAX_FILTER_BYTES)
    filters: dict[str, dict[str, Any]] = {}
    for field in schema:
        for name, path, type_ in _leaves(field.name, field.name, field.type):
            if columns.bloom_filters.get(name) and not pa.types.is_boolean(type_):
                fpp = columns.bloom_filter_fpp.get(name, _DEFAULT_FPP)
                most = int(-max_bytes * 8 * math.log(1 - fpp ** (1 / 8)) / 8)
                filters[path] = {"fpp": fpp, "ndv": max(1, min(columns.bloom_filter_ndv.get(name, most), most))}
    return filters or None


def _leaves(name: str, path: str, type_: pa.DataType) -> Iterator[tuple[str, str, pa.DataType]]:
    """Full name, path and type of the leaves of a field."""
    if pa.types.is_struct(type_):
        children = [(child.name, child.name, child.type) for child in type_]
    elif pa.types.is_list(type_):
        children = [("element", "list.element", type_.value_type)]
    elif pa.types.is_map(type_):
        children = [("key", "key_value.key", type_.key_type), ("value", "key_value.value", type_.item_type)]
    else:
        yield name, path, type_
        return
    for child_name, child_path, child_type in children:
        yield from _leaves(f"{name}.{child_name}", f"{path}.{child_path}", child_type)


class ParquetWriter(NewFile):
    """Writes a Parquet file; each table becomes a row group."""

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
        """`first` is the first row group, `repeating` the result of `repeating_columns`."""
        self._schema, self._modes = schema, modes
        self._nan_counts: dict[int, int] = {}
        self._footers: list[pq.FileMetaData] = []

        def begin(stream: BinaryIO) -> pq.ParquetWriter:
            settings = _settings(options, first.schema, repeating)
            return pq.ParquetWriter(stream, first.schema, metadata_collector=self._footers, **settings)

        super().__init__(storage, location, begin)

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group."""
        self._writer.write_table(table, row_group_size=table.num_rows)
        for id_, count in count_nans(table, self._schema).items():
            self._nan_counts[id_] = self._nan_counts.get(id_, 0) + count

    def finish(self) -> tuple[int, FileMetrics]:
        return self.end(), file_metrics(self._footers[0], self._schema, self._modes, self._nan_counts)


def _settings(options: ParquetOptions, schema: pa.Schema, repeating: Collection[str]) -> dict[str, Any]:
    statistics: bool | list[str] = True
    by_column = options.columns.statistics
    if False in by_column.values():
        statistics = [path for name, path in leaf_paths(schema).items() if by_column.get(name, True)]
    return {
        "version": "2.6",
        "compression": options.compression,
        "compression_level": options.compression_level,
        "data_page_size": options.page_size_bytes,
        "data_page_version": options.page_version,
        "max_rows_per_page": options.page_rows,
        "use_dictionary": with_dictionary(options.columns, schema, repeating),
        "write_statistics": statistics,
        "bloom_filter_options": bloom_filters(options.columns, schema),
        "dictionary_pagesize_limit": options.dictionary_size_bytes,
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_index": True,
        "write_page_checksum": True,
    }


def row_group_bytes(table: pa.Table, options: ParquetOptions, repeating: Collection[str]) -> int:
    """The size of a table as a row group in bytes, found by encoding it."""
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, table.schema, **_settings(options, table.schema, repeating)) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
        return int(out.tell())
