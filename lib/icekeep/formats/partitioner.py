"""Split rows by partition: a transform is applied once to each distinct value of a column, and spread over the rows by index."""

import math
from collections.abc import Iterator
from typing import Any
from uuid import UUID as UUIDValue

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import UnsupportedError, UsageError
from icekeep.formats.arrow.arrays import leaf_values, plain_values
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Void
from icekeep.spec.types import UUID, PrimitiveType
from icekeep.spec.values import INTEGER_WIDTHS


def split_by_partition(
    table: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, in the order in which partitions first appear; rows keep their order.

    `table` has the columns of `schema`.

    Raises:
        UnsupportedError: the spec has an unknown transform, with which no one may write.
        UsageError: a value's partition is out of the range of its type.
    """
    if spec.has_unknown_transform:
        raise UnsupportedError(
            f"partition spec {spec.spec_id} has a transform that is not known; it cannot be written with"
        )
    if not spec.fields or not table.num_rows:
        if table.num_rows:
            yield (), table
        return
    codes = np.zeros(table.num_rows, dtype=np.int64)
    columns: list[tuple[np.ndarray, list[Any]]] = []
    for field in spec.fields:
        field_codes, field_values = _encoded(table, field, schema)
        # Numbered again for each field: fewer numbers than rows, so that the next product cannot overflow.
        _, codes = np.unique(codes * len(field_values) + field_codes, return_inverse=True)
        columns.append((field_codes, field_values))
    _, first_rows, counts = np.unique(codes, return_index=True, return_counts=True)
    rows_by_group = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    for group in np.argsort(first_rows):
        rows = rows_by_group[group]
        values = tuple(field_values[field_codes[rows[0]]] for field_codes, field_values in columns)
        yield values, table.take(pa.array(rows)) if len(rows) < table.num_rows else table


def column_values(array: pa.Array, type_: PrimitiveType) -> list[Any]:
    """Values of an Arrow array as `spec.values` has them: days, microseconds, UUIDs."""
    values = plain_values(array).to_pylist()
    return [None if value is None else UUIDValue(bytes=value) for value in values] if type_ == UUID else values


def _encoded(table: pa.Table, field: PartitionField, schema: Schema) -> tuple[np.ndarray, list[Any]]:
    """A number for each row and, by number, the transformed values; equal values have equal numbers."""
    if isinstance(field.transform, Void):
        # Its column may be of any type, or have left the schema.
        return np.zeros(table.num_rows, dtype=np.int64), [None]
    source = schema.fields_by_id[field.source_id]
    assert isinstance(source.type, PrimitiveType)
    column = leaf_values(table, schema, field.source_id).combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column, null_encoding="encode")
    distinct = column_values(encoded.dictionary, source.type)
    result_type = field.transform.result_type(source.type)
    width = INTEGER_WIDTHS.get(result_type.name) if isinstance(result_type, PrimitiveType) else None
    values: dict[Any, tuple[int, Any]] = {}
    numbers = []
    for value in (*distinct, None):
        # Of null as well: that refuses a type which the transform does not take.
        partition = field.transform.apply(source.type, value)
        if partition is not None and width is not None and not -(1 << 8 * width - 1) <= partition < 1 << 8 * width - 1:
            name = schema.names_by_id[field.source_id]
            raise UsageError(
                f"column {name!r} holds {value!r}, whose partition by {str(field.transform)!r} is {partition}, out of the range "
                f"of {result_type}: such a row cannot be written; correct or delete it",
                column=name,
            )
        key = partition
        if isinstance(partition, float):
            # All NaNs are one partition, -0.0 and 0.0 are two, as Java compares.
            key = "NaN" if math.isnan(partition) else (partition, math.copysign(1.0, partition))
        numbers.append(values.setdefault(key, (len(values), partition))[0])
    indices = pc.fill_null(encoded.indices, len(distinct)).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.int64)[indices], [value for _, value in values.values()]
