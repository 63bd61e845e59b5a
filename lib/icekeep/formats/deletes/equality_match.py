"""Which rows equality deletes remove (spec, "Equality Delete Files").

A row goes if all its key columns equal those of one delete. Null equals null. Floating point values are equal if their bits
are, but for NaN, which equals every NaN: as Iceberg Java compares them, so 0.0 does not delete -0.0.

Deletes may outnumber the rows by far, so they pass by in batches, each of which is looked up in and forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.arrow.accessors import leaf_values
from icekeep.formats.arrow.masks import Mask
from icekeep.spec.bins import packed
from icekeep.spec.schema import Schema
from icekeep.spec.units import MIB

BATCH_ROWS = 1_048_576
"""Deletes that are looked up in at one time: those of small files together, those of large ones piece by piece. Each time
costs a look at every row."""

BATCH_BYTES = 32 * MIB
"""The same as an amount of data, for keys that are long."""


def key_columns(table: pa.Table, schema: Schema, field_ids: Sequence[int]) -> pa.Table:
    """The values of key columns in forms of which Arrow's notion of equality is right, in the order of their ids.

    Args:
        table: data in the columns of `schema`.
        schema: as `leaf_schema` makes it.
        field_ids: of the key columns.
    """
    columns = [_comparable(leaf_values(table, schema, id_)) for id_ in field_ids]
    return pa.Table.from_arrays(columns, names=[str(id_) for id_ in field_ids])


def comparable_bits(values: pa.Array) -> pa.Array:
    """The values as bits and bytes that Arrow can tell apart: one value, one form, and each NaN the same one."""
    type_ = values.type
    if pa.types.is_floating(type_):
        bits = pa.int32() if type_ == pa.float32() else pa.int64()
        return pc.if_else(pc.is_nan(values), pa.array([np.nan], type_)[0], values).view(bits)
    if pa.types.is_null(type_):
        return values.cast(pa.bool_())
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def rows_deleted(rows: pa.Table, deletes: Iterable[pa.Table], since: NDArray[np.int64] | None = None) -> Mask:
    """Which rows some delete equals in all columns.

    Args:
        rows: their key columns.
        deletes: tables of the same columns, of any size; no more than a batch of them are held at a time. With `since` they
            have one column more, numbers.
        since: for each row the least number of a delete that reaches it; null: all do.
    """
    found = np.zeros(rows.num_rows, dtype=bool)
    live, remaining = np.arange(rows.num_rows), rows
    for batch in _batches(deletes):
        matched = _matches(remaining, batch, None if since is None else since[live])
        if not len(matched):
            continue
        found[live[matched]] = True
        live = np.flatnonzero(~found)
        if not len(live):
            break
        remaining = rows.take(pa.array(live))
    return found


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables large enough that looking up pays, and no larger than a batch may be."""
    limits = (lambda piece: piece.num_rows, BATCH_ROWS), (lambda piece: piece.nbytes, BATCH_BYTES)
    return map(pa.concat_tables, packed(_pieces(tables), *limits))


def _pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        row_bytes = table.nbytes / max(1, table.num_rows)
        step = max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))
        for start in range(0, table.num_rows, step):
            yield table.slice(start, step)


def _matches(rows: pa.Table, deletes: pa.Table, since: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Positions of the rows that equal a delete which reaches them.

    Column by column, rows and deletes get the number of their values so far: rows without one are out, so that hardly any
    are looked up twice.
    """
    positions = np.arange(rows.num_rows, dtype=np.int64)
    row_codes, delete_codes = np.zeros(rows.num_rows, dtype=np.int64), np.zeros(deletes.num_rows, dtype=np.int64)
    for n, keys in enumerate(deletes.columns[: rows.num_columns]):
        values = pc.unique(keys)
        column = rows.column(n)
        if len(positions) < rows.num_rows:
            column = column.take(pa.array(positions))
        codes = _places(column, values)
        known = codes >= 0
        positions, codes = positions[known], codes[known]
        if n == 0:
            row_codes = codes
            if rows.num_columns > 1 or since is not None:
                delete_codes = _places(keys, values)
            continue
        # Both are numbers of values in one batch: their product is far below 2 to the 63.
        row_codes = row_codes[known] * len(values) + codes
        delete_codes = delete_codes * len(values) + _places(keys, values)
        pairs = pc.unique(pa.array(delete_codes))
        row_codes, delete_codes = _places(pa.array(row_codes), pairs), _places(pa.array(delete_codes), pairs)
        known = row_codes >= 0
        positions, row_codes = positions[known], row_codes[known]
    if since is None or not len(positions):
        return positions
    last = np.full(int(delete_codes.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, delete_codes, deletes.column(rows.num_columns).to_numpy())
    return positions[last[row_codes] >= since[positions]]


def _places(values: Any, dictionary: pa.Array) -> NDArray[np.int64]:
    """Where each value, null among them, stands in a dictionary; -1 for those that it has not."""
    found = pc.index_in(values, value_set=dictionary)
    places: NDArray[np.int64] = found.fill_null(-1).to_numpy().astype(np.int64)
    return places


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([comparable_bits(chunk) for chunk in column.chunks or [pa.nulls(0, column.type)]])
