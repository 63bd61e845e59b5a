"""Split rows by partition: the spec's transforms over Arrow columns.

A transform is applied once to each distinct value of a column, by the one definition in `spec/transforms.py`, and spread
over the rows by index.
"""

import math
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import UnsupportedError, UsageError
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Void
from icekeep.spec.types import PrimitiveType, StructType
from icekeep.spec.values import INTEGER_WIDTHS

_WHOLE_NUMBERS = {
    "date": pa.int32(),
    **dict.fromkeys(("time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), pa.int64()),
}


def split_by_partition(
    table: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, in the order in which partitions first appear; rows keep their order.

    Args:
        table: rows in the columns of `schema`.

    Raises:
        UnsupportedError: the spec has a transform that is not known: nobody may write with it.
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
        # Numbered anew for each field: fewer numbers than rows, so that the next product cannot overflow.
        _, codes = np.unique(codes * len(field_values) + field_codes, return_inverse=True)
        columns.append((field_codes, field_values))
    _, first_rows, counts = np.unique(codes, return_index=True, return_counts=True)
    rows_by_group = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    for group in np.argsort(first_rows):
        rows = rows_by_group[group]
        values = tuple(field_values[field_codes[rows[0]]] for field_codes, field_values in columns)
        yield values, table.take(pa.array(rows)) if len(rows) < table.num_rows else table


def column_values(array: pa.Array, type_: PrimitiveType) -> list[Any]:
    """Values of an Arrow array as `spec/values.py` has them: days, microseconds, UUIDs."""
    if type_.name in _WHOLE_NUMBERS:
        return array.cast(_WHOLE_NUMBERS[type_.name]).to_pylist()
    if type_.name == "uuid":
        raw = array.storage if isinstance(array, pa.ExtensionArray) else array
        return [None if value is None else UUID(bytes=value) for value in raw.to_pylist()]
    return array.to_pylist()


def _encoded(table: pa.Table, field: PartitionField, schema: Schema) -> tuple[np.ndarray, list[Any]]:
    """A number for each row and, by number, the transformed values; equal values have equal numbers."""
    if isinstance(field.transform, Void):
        # Its column may be of any type, or have left the schema.
        return np.zeros(table.num_rows, dtype=np.int64), [None]
    source = schema.fields_by_id[field.source_id]
    assert isinstance(source.type, PrimitiveType)
    column = _column(table, field.source_id, schema)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column, null_encoding="encode")
    distinct = column_values(encoded.dictionary, source.type)
    values: dict[Any, tuple[int, Any]] = {}
    transformed = [*(_transformed(field, schema, source.type, value) for value in distinct), None]
    numbers = [values.setdefault(_key(value), (len(values), value))[0] for value in transformed]
    indices = pc.fill_null(encoded.indices, len(distinct)).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.int64)[indices], [value for _, value in values.values()]


def _transformed(field: PartitionField, schema: Schema, source_type: PrimitiveType, value: Any) -> Any:
    partition = field.transform.apply(source_type, value)
    result_type = field.transform.result_type(source_type)
    width = INTEGER_WIDTHS.get(result_type.name) if isinstance(result_type, PrimitiveType) else None
    if partition is not None and width is not None and not -(1 << 8 * width - 1) <= partition < 1 << 8 * width - 1:
        name = schema.names_by_id[field.source_id]
        raise UsageError(
            f"column {name!r} holds {value!r}, whose partition by {str(field.transform)!r} is {partition}, out of the range "
            f"of {result_type}: such a row cannot be written; correct or delete it",
            column=name,
        )
    return partition


def _key(value: Any) -> Any:
    """What equal partition values have in common: all NaNs are one, -0.0 and 0.0 are two, as Java compares."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1.0, value))
    return value


def _column(table: pa.Table, field_id: int, schema: Schema) -> pa.Array:
    """A column of the schema, or a field of a struct column; null where a struct above it is null."""
    path = _path(schema.as_struct(), field_id)
    array = table.column(path[0]).combine_chunks()
    for name in path[1:]:
        array = pc.struct_field(array, name)
    return array


def _path(struct: StructType, field_id: int) -> list[str]:
    for field in struct.fields:
        if field.field_id == field_id:
            return [field.name]
        if isinstance(field.type, StructType) and (below := _path(field.type, field_id)):
            return [field.name, *below]
    return []
