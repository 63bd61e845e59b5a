"""The spec's transforms and bound filters evaluated on Arrow columns, and on the row groups of open files.

`spec/transforms.py` is the definition. Whole arrays are transformed at once where that gives the same; elsewhere the definition
is applied once to each distinct value. A filter compares values in an Arrow type whose order is Iceberg's: whole numbers for
dates and times, bytes for strings (UTF-8 sorts by code point), UUIDs and fixed values, and floats with one zero.
"""

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError, UsageError
from icekeep.formats.arrow.projection import Column, Mask, column_values, leaf_values, where_true
from icekeep.formats.arrow.schema import arrow_type, field_id
from icekeep.formats.base import FileReader
from icekeep.spec.filters.evaluators import evaluate, file_may_match
from icekeep.spec.filters.expressions import BoundPredicate, Expression, Operation, predicates
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Bucket, Hour, Identity, Month, Transform, Truncate, Void, Year
from icekeep.spec.types import DATE, DAY_SECONDS, INT, LONG, DecimalType, PrimitiveType, decimal
from icekeep.spec.values import INTEGER_WIDTHS, MICROS_PER_SECOND, TICKS_PER_SECOND, decimal_from_unscaled, unscaled

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


def matches(bound: Expression, column: Callable[[BoundPredicate], Column], row_count: int) -> Mask:
    """The rows that a filter matches, as `evaluators.row_matches` decides each.

    `column` gives the values of a predicate's field, of the Arrow type of `arrow_schema`; strings and binary may be large,
    views, or dictionary-encoded, and a column of nulls may be of the null type.
    """
    truth = evaluate(bound, lambda predicate: _values_match(predicate, column(predicate)))
    return np.ones(row_count, np.bool_) & truth


def rows_that_match(bound: Expression, table: pa.Table) -> pa.Array:
    """The rows of a table that a filter matches, as a mask.

    Columns, also those in structs, are looked up by the field ids in the table's schema; a missing field is null, and so
    is one in a null struct.
    """
    paths = dict(_paths(table.schema, ()))

    def column(predicate: BoundPredicate) -> Column:
        path = paths.get(predicate.field.field_id)
        if path is None:
            return pa.nulls(table.num_rows)
        first, *below = path
        return pc.struct_field(table.column(first), indices=below) if below else table.column(first)

    return pa.array(matches(bound, column, table.num_rows))


def _paths(fields: Sequence[pa.Field], above: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Field ids of columns and of the fields of structs, each with its path of positions."""
    for position, field in enumerate(fields):
        path = (*above, position)
        if (id_ := field_id(field)) is not None:
            yield id_, path
        if pa.types.is_struct(field.type):
            yield from _paths(list(field.type), path)


_TESTS: dict[Operation, Callable[[Column, pa.Array], Column]] = {
    Operation.IS_NAN: lambda column, _: pc.is_nan(column),
    Operation.NOT_NAN: lambda column, _: pc.fill_null(pc.invert(pc.is_nan(column)), True),
    Operation.LT: lambda column, values: pc.less(column, values[0]),
    Operation.LT_EQ: lambda column, values: pc.less_equal(column, values[0]),
    Operation.GT: lambda column, values: pc.greater(column, values[0]),
    Operation.GT_EQ: lambda column, values: pc.greater_equal(column, values[0]),
    Operation.EQ: lambda column, values: pc.equal(column, values[0]),
    Operation.NOT_EQ: lambda column, values: pc.not_equal(column, values[0]),
    Operation.IN: lambda column, values: pc.is_in(column, value_set=values),
    Operation.NOT_IN: lambda column, values: pc.and_not(pc.is_valid(column), pc.is_in(column, value_set=values)),
    Operation.STARTS_WITH: lambda column, values: pc.starts_with(column, values[0].as_py()),
    Operation.NOT_STARTS_WITH: lambda column, values: pc.invert(pc.starts_with(column, values[0].as_py())),
}


def _values_match(predicate: BoundPredicate, column: Column) -> Mask:
    operation = predicate.operation
    if pa.types.is_null(column.type):
        return np.full(len(column), operation in (Operation.IS_NULL, Operation.NOT_NAN))
    if operation in (Operation.IS_NULL, Operation.NOT_NULL):
        return where_true(pc.is_null(column) if operation is Operation.IS_NULL else pc.is_valid(column))
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if predicate.bucket is not None:
        type_ = predicate.field.type
        assert isinstance(type_, PrimitiveType)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        plain = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
        column = transformed(plain, type_, predicate.bucket)[0]
    column, literals = _comparable(column, predicate.values)
    return where_true(_TESTS[operation](column, literals))


_LONG_LIMIT = 2**63
_DIGITS, _MORE_DIGITS = 38, 76


def _comparable(column: Column, values: Sequence[Any]) -> tuple[Column, pa.Array]:
    type_ = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
    if pa.types.is_floating(type_):
        # Arrow tells -0.0 from 0.0 in sets; the sum is 0.0 for both.
        return pc.add(pc.cast(column, pa.float64()), 0.0), pa.array([value + 0.0 for value in values], pa.float64())
    if pa.types.is_decimal(type_):
        is_wide = any(value and value.adjusted() + type_.scale >= _DIGITS for value in values)
        type_ = pa.decimal256(_MORE_DIGITS, type_.scale) if is_wide else pa.decimal128(_DIGITS, type_.scale)
        return pc.cast(column, type_), pa.array(values, type_)
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_temporal(type_):
        is_days = pa.types.is_date32(type_)
        column = pc.cast(pc.cast(column, pa.int32()) if is_days else column, pa.int64())
        # A projection onto `truncate` may compare with a multiple below the least long.
        fits = all(-_LONG_LIMIT <= value < _LONG_LIMIT for value in values)
        type_ = pa.int64() if fits else pa.decimal256(_MORE_DIGITS, 0)
        return pc.cast(column, type_), pa.array([int(value) for value in values], type_)
    is_large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    target = pa.large_binary() if is_large else pa.binary()
    literals = [
        value.encode("utf-8", "surrogatepass")
        if isinstance(value, str)
        else value.bytes
        if isinstance(value, uuid.UUID)
        else bytes(value)
        for value in values
    ]
    return pc.cast(pc.cast(column, type_), target), pa.array(literals, target)


def parts_that_may_match(
    reader: FileReader, columns: pa.Schema, parts: Sequence[int] | None, bound: Expression
) -> Sequence[int] | None:
    """The row groups or stripes, of all or of `parts`, that may hold a matching row, by the file's own statistics.

    `columns` is the file's schema with the table's field ids. Without statistics `parts` is returned unchanged.
    """
    types = {
        predicate.field.field_id: predicate.field.type
        for predicate in predicates(bound)
        if isinstance(predicate.field.type, PrimitiveType)
    }
    metrics = reader.part_metrics(columns, types)
    if metrics is None:
        return parts
    asked = range(len(metrics)) if parts is None else parts
    # Reading a part that does not exist is the error, not leaving it unpruned.
    return [number for number in asked if number >= len(metrics) or file_may_match(bound, metrics[number])]
