"""Rows of Arrow columns that a bound filter matches: `row_matches` for a whole column at once.

Values are compared in an Arrow type whose order is Iceberg's: whole numbers for dates and times, bytes for strings (the
order of UTF-8 is that of code points), UUIDs and fixed values, one zero for floats.

Which parts of an open data file a filter needs, by what the file itself says of the values in each.

On a table that is sorted, and whose files are large, a filter needs a few row groups of many.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.arrow.arrays import Column, Mask, where_true
from icekeep.formats.arrow.schema import field_id
from icekeep.formats.base import FileReader
from icekeep.formats.sort.keys import transformed
from icekeep.spec.filters.evaluators import file_may_match
from icekeep.spec.filters.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
    chain,
    not_bound,
    predicates,
)
from icekeep.spec.transforms import Bucket
from icekeep.spec.types import PrimitiveType, Type


def matches(bound: Expression, column: Callable[[BoundPredicate], Column], row_count: int) -> Mask:
    """Which rows a filter matches, as `evaluators.row_matches` decides them one by one.

    Args:
        bound: the filter.
        column: gives the values that a predicate asks about, of the Arrow type that `arrow_schema` has for its field;
            strings and binary may be large, views, or in a dictionary, and a column of nulls may be of the null type.
        row_count: the rows of every column.
    """
    return evaluate(bound, lambda predicate: _values_match(predicate, column(predicate)), row_count)


def rows_that_match(bound: Expression, table: pa.Table) -> pa.Array:
    """Which rows of a table a filter matches, as a mask.

    Columns are found by the field ids that the table's schema carries, also those in structs; a field that the table
    lacks is null, and so is one in a null struct.
    """
    paths = dict(_paths(table.schema, ()))

    def column(predicate: BoundPredicate) -> Column:
        path = paths.get(predicate.field.field_id)
        if path is None:
            return pa.nulls(table.num_rows)
        first, *below = path
        return pc.struct_field(table.column(first), indices=below) if below else table.column(first)

    return pa.array(matches(bound, column, table.num_rows))


def evaluate(bound: Expression, test: Callable[[BoundPredicate], Mask], row_count: int) -> Mask:
    """AND and OR of masks; a test is not asked about what is decided for every row.

    Raises:
        IcekeepBug: the expression is not bound.
    """
    match bound:
        case BoundPredicate():
            return test(bound)
        case And():
            held = np.ones(row_count, np.bool_)
            for term in chain(And, [bound]):
                held = held & evaluate(term, test, row_count)
                if not held.any():
                    break
            return held
        case Or():
            held = np.zeros(row_count, np.bool_)
            for term in chain(Or, [bound]):
                held = held | evaluate(term, test, row_count)
                if held.all():
                    break
            return held
        case AlwaysTrue() | AlwaysFalse():
            return np.full(row_count, isinstance(bound, AlwaysTrue))
    raise not_bound(bound)


def _paths(fields: Sequence[pa.Field], above: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Field ids of columns and of what structs hold, with the positions that lead there."""
    for position, field in enumerate(fields):
        path = (*above, position)
        if (id_ := field_id(field)) is not None:
            yield id_, path
        if pa.types.is_struct(field.type):
            yield from _paths(list(field.type), path)


_NULL_TESTS: dict[Operation, Callable[[Column], Column]] = {
    Operation.IS_NULL: pc.is_null,
    Operation.NOT_NULL: pc.is_valid,
}
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
_TRUE_OF_NULL = (Operation.IS_NULL, Operation.NOT_NAN)


def _values_match(predicate: BoundPredicate, column: Column) -> Mask:
    if pa.types.is_null(column.type):
        return np.full(len(column), predicate.operation in _TRUE_OF_NULL)
    if (null_test := _NULL_TESTS.get(predicate.operation)) is not None:
        return where_true(null_test(column))
    if predicate.bucket is not None:
        column = _buckets(predicate.bucket, column, predicate.field.type)
    column, literals = _comparable(column, predicate.values)
    return where_true(_TESTS[predicate.operation](column, literals))


def _buckets(bucket: Bucket, column: Column, type_: Type) -> pa.Array:
    """The number of the bucket of each value."""
    assert isinstance(type_, PrimitiveType)
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    plain = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    return transformed(plain, type_, bucket)[0]


_LONG_LIMIT = 2**63
_DIGITS, _MORE_DIGITS = 38, 76


def _comparable(column: Column, values: Sequence[Any]) -> tuple[Column, pa.Array]:
    """A column and the literals that it is compared with, in one type."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    type_ = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
    if pa.types.is_floating(type_):
        # Arrow finds no -0.0 in a set with 0.0; the sum is 0.0 of both.
        return pc.add(pc.cast(column, pa.float64()), 0.0), pa.array([value + 0.0 for value in values], pa.float64())
    if pa.types.is_decimal(type_):
        type_ = _wide_decimal(type_.scale, values)
        return pc.cast(column, type_), pa.array(values, type_)
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_temporal(type_):
        is_days = pa.types.is_date32(type_)
        column = pc.cast(pc.cast(column, pa.int32()) if is_days else column, pa.int64())
        # A projection on `truncate` may ask for a multiple beyond the least number.
        fits = all(-_LONG_LIMIT <= value < _LONG_LIMIT for value in values)
        type_ = pa.int64() if fits else pa.decimal256(_MORE_DIGITS, 0)
        return pc.cast(column, type_), pa.array([int(value) for value in values], type_)
    is_large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    target = pa.large_binary() if is_large else pa.binary()
    return pc.cast(pc.cast(column, type_), target), pa.array([_bytes(value) for value in values], target)


def _wide_decimal(scale: int, values: Sequence[Decimal]) -> pa.DataType:
    is_wide = any(value and value.adjusted() + scale >= _DIGITS for value in values)
    return pa.decimal256(_MORE_DIGITS, scale) if is_wide else pa.decimal128(_DIGITS, scale)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return value.bytes if isinstance(value, uuid.UUID) else bytes(value)


def parts_that_may_match(
    reader: FileReader, columns: pa.Schema, parts: Sequence[int] | None, bound: Expression
) -> Sequence[int] | None:
    """Those of some parts that may hold a row which matches a filter; nothing is decoded for that.

    Args:
        columns: the file's, with the field ids that they have for the table.
        parts: positions, `None` for all of the file, which is also what is returned where nothing is known of any part.
        bound: a filter over rows.
    """
    types = {
        predicate.field.field_id: predicate.field.type
        for predicate in predicates(bound)
        if isinstance(predicate.field.type, PrimitiveType)
    }
    known = reader.part_metrics(columns, types)
    if known is None:
        return parts
    may_match = evaluate(
        bound, lambda one: np.array([file_may_match(one, metrics) for metrics in known], np.bool_), len(known)
    )
    asked = range(len(known)) if parts is None else parts
    # One that is not there is an error of whoever reads it.
    return [number for number in asked if number >= len(known) or may_match[number]]
