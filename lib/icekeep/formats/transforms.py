"""The spec's transforms over Arrow arrays, and rows split by partition with them.

`spec/transforms.py` is the definition. Whole arrays are transformed at once where that gives the same; elsewhere the definition
is applied once to each distinct value.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError, UsageError
from icekeep.formats.arrow.arrays import column_values, leaf_values
from icekeep.formats.arrow.schema import arrow_type
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Bucket, Hour, Identity, Month, Transform, Truncate, Void, Year
from icekeep.spec.types import DATE, DAY_SECONDS, INT, LONG, DecimalType, PrimitiveType, decimal
from icekeep.spec.values import (
    INTEGER_WIDTHS,
    MICROS_PER_SECOND,
    TICKS_PER_SECOND,
    decimal_from_unscaled,
    unscaled,
)

_LARGEST_DECIMAL = 38
_WHOLE_NUMBERS = {
    "int": pa.int32(),
    "date": pa.int32(),
    **dict.fromkeys(("long", "time", *TICKS_PER_SECOND), pa.int64()),
}


def transformed(array: pa.Array, type_: PrimitiveType, transform: Transform) -> tuple[pa.Array, PrimitiveType]:
    """Transformed values and a type that has their order; no extension array, no dictionary. Null stays null.

    A value that a truncation takes out of the range of its type becomes the least of the type. `array` holds values of `type_`,
    and is no extension array and no dictionary.
    """
    # Raises for a type that it does not accept, and for an unknown transform.
    transform.apply(type_, None)
    if isinstance(transform, Identity):
        return array, type_
    if type_.name in _WHOLE_NUMBERS:
        # Null slots hold any number; they are transformed too, and masked.
        numbers = array.view(_WHOLE_NUMBERS[type_.name]).fill_null(0).to_numpy().astype(np.int64)
        mask = pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None
        return pa.array(_transformed_numbers(numbers, type_, transform), mask=mask), LONG
    encoded = pc.dictionary_encode(array)
    values = [transform.apply(type_, value) for value in column_values(encoded.dictionary, type_)]
    if isinstance(transform, Bucket):
        return pa.array(values, pa.int32()).take(encoded.indices), INT
    if isinstance(type_, DecimalType):
        wide = decimal(_LARGEST_DECIMAL, type_.scale)
        least = 1 - 10**_LARGEST_DECIMAL
        values = [decimal_from_unscaled(max(least, unscaled(value, type_.scale)), type_.scale) for value in values]
        return pa.array(values, arrow_type(wide)).take(encoded.indices), wide
    return pa.array(values, array.type).take(encoded.indices), type_


def _transformed_numbers(values: NDArray[np.int64], type_: PrimitiveType, transform: Transform) -> NDArray[np.int64]:
    if isinstance(transform, Truncate):
        below = values - values % transform.width
        return np.where(below > values, np.iinfo(np.int64).min, below)
    if isinstance(transform, Bucket):
        if type_.name.endswith("_ns"):
            values = values // (TICKS_PER_SECOND[type_.name] // MICROS_PER_SECOND)
        return (_hashes(values.view(np.uint64)) & np.uint32(0x7FFF_FFFF)).astype(np.int64) % transform.bucket_count
    if type_ != DATE:
        second = TICKS_PER_SECOND[type_.name]
        if isinstance(transform, Hour):
            return values // (3600 * second)
        values = values // (DAY_SECONDS * second)
    if isinstance(transform, Year | Month):
        months = values.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
        return months if isinstance(transform, Month) else months // 12
    return values


def _hashes(values: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Murmur3 (x86, 32 bits, seed 0) of the eight bytes of each number (spec, Appendix B)."""
    hashes = np.zeros(len(values), dtype=np.uint32)
    for word in (values & np.uint64(0xFFFF_FFFF), values >> np.uint64(32)):
        mixed = word.astype(np.uint32) * np.uint32(0xCC9E2D51)
        mixed = _rotated(mixed, 15) * np.uint32(0x1B873593)
        hashes = _rotated(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= np.uint32(8)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _rotated(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def split_by_partition(
    table: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, in the order in which partitions first appear; rows keep their order.

    `table` has the columns of `schema`. Raises `UnsupportedError` where the spec has an unknown transform, and `UsageError` where
    a value's partition is out of the range of its type.
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
        # Renumbered for each field: fewer numbers than rows, so that the next product cannot overflow.
        _, codes = np.unique(codes * len(field_values) + field_codes, return_inverse=True)
        columns.append((field_codes, field_values))
    _, first_rows, counts = np.unique(codes, return_index=True, return_counts=True)
    rows_by_group = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    for group in np.argsort(first_rows):
        rows = rows_by_group[group]
        values = tuple(field_values[field_codes[rows[0]]] for field_codes, field_values in columns)
        yield values, table.take(pa.array(rows)) if len(rows) < table.num_rows else table


def _encoded(table: pa.Table, field: PartitionField, schema: Schema) -> tuple[np.ndarray, list[Any]]:
    """A number for each row, equal for equal values, and the transformed value of each number."""
    if isinstance(field.transform, Void):
        # Its column may have any type, or be gone from the schema.
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
