"""Evaluate a bound filter on the rows of Arrow columns and on the row groups of open files.

Values are compared in an Arrow type whose order is Iceberg's: whole numbers for dates and times, bytes for strings (UTF-8
sorts by code point), UUIDs and fixed values, and floats with one zero.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.arrow.arrays import Column, Mask, where_true
from icekeep.formats.arrow.schema import field_id
from icekeep.formats.base import FileReader
from icekeep.formats.transforms import transformed
from icekeep.spec.filters.evaluators import evaluate, file_may_match
from icekeep.spec.filters.expressions import BoundPredicate, Expression, Operation, predicates
from icekeep.spec.types import PrimitiveType


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
