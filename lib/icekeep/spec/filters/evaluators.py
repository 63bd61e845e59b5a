"""Whether rows of a manifest or file may, or must, match a bound filter (spec, "Scan Planning").

The rules are written once, over what statistics say of one file or, in arrays, of many: a `Truth` is a bool or a mask with
one for each file, and the operators used here mean the same for both (`^ True` negates; `not` and `~` do not). How bounds
are held and compared is left to a `Bounds`: of one file here, of many in `planning/prune.py`.

"May match" is false only where no row can match, whatever a reader holds of null in `!=` and `NOT IN`; "must match" is true
only where every row matches as SQL has it. What statistics leave out, or hold in bytes that cannot be read, decides nothing.
Bounds need not be values that occur: they may be shortened.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.filters.expressions import (
    COMPLEMENTS,
    INEQUALITIES,
    PREFIX_OPERATIONS,
    TRUE_OF_NULL_TO_SOME,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
    chain,
    not_bound,
)
from icekeep.spec.types import DOUBLE, FLOAT, UUID, NestedField, Type
from icekeep.spec.values import are_crossed, java_order, value_from_bytes

Truth: TypeAlias = Any


class Metrics(Protocol):
    """What a manifest says about a file's columns by field id; a missing map or id is unknown, `DataFile` is one."""

    @property
    def record_count(self) -> int: ...
    @property
    def value_counts(self) -> Mapping[int, int] | None: ...
    @property
    def null_value_counts(self) -> Mapping[int, int] | None: ...
    @property
    def nan_value_counts(self) -> Mapping[int, int] | None: ...
    @property
    def lower_bounds(self) -> Mapping[int, bytes] | None: ...
    @property
    def upper_bounds(self) -> Mapping[int, bytes] | None: ...


class Summary(Protocol):
    """What a manifest list says about one partition field of a manifest; `FieldSummary` is one."""

    @property
    def contains_null(self) -> bool: ...
    @property
    def contains_nan(self) -> bool | None: ...
    @property
    def lower_bound(self) -> bytes | None: ...
    @property
    def upper_bound(self) -> bytes | None: ...


class Contents(msgspec.Struct, frozen=True):
    """What a column may hold; "values" are neither null nor NaN."""

    null: Truth
    nan: Truth
    values: Truth


class Bounds(Protocol):
    """Bounds of a column's values beside the literals of a predicate; those of prefixes are cut to the prefix's length."""

    def may_be(self, operation: Operation) -> Truth:
        """Whether a value within the bounds may compare so with the literal: an inequality."""

    def may_be_a_literal(self) -> Truth:
        """Whether a literal lies within the bounds, in any order that they may be in."""

    def are_one_literal(self) -> Truth:
        """Whether both bounds are known, and one and the same literal."""


BoundsOf = Callable[[BoundPredicate], Bounds]


def evaluate(bound: Expression, test: Callable[[BoundPredicate], Truth]) -> Truth:
    """AND and OR of what `test` says of predicates; it is not asked about what is decided already."""
    match bound:
        case BoundPredicate():
            return test(bound)
        case AlwaysTrue() | AlwaysFalse():
            return isinstance(bound, AlwaysTrue)
        case And() | Or():
            is_and = isinstance(bound, And)
            result: Truth = is_and
            for term in chain(type(bound), [bound]):
                truth = test(term) if isinstance(term, BoundPredicate) else evaluate(term, test)
                result = result & truth if is_and else result | truth
                if (
                    result if isinstance(result, bool) else bool(result.any() if is_and else result.all())
                ) is not is_and:
                    break
            return result
    raise not_bound(bound)


def may_match(predicate: BoundPredicate, holds: Contents, bounds_of: BoundsOf) -> Truth:
    """Whether some row of a file that has rows may match; `bounds_of` is asked only where bounds can decide."""
    return _may_match(predicate.operation, predicate, holds, bounds_of)


def _may_match(operation: Operation, predicate: BoundPredicate, holds: Contents, bounds_of: BoundsOf) -> Truth:
    match operation:
        case Operation.IS_NULL:
            return holds.null
        case Operation.NOT_NULL:
            return holds.values | holds.nan
        case Operation.IS_NAN:
            return holds.nan
        case Operation.NOT_NAN:
            return holds.values | holds.null
    if predicate.bucket is not None:
        # Values of any bucket lie between any bounds.
        return holds.values | holds.null if operation in TRUE_OF_NULL_TO_SOME else holds.values
    if operation in INEQUALITIES:
        # Writers differ on the order of UUIDs, and bounds in one order say nothing of the other.
        is_ordered = predicate.field.type != UUID
        return holds.values & bounds_of(predicate).may_be(operation) if is_ordered else holds.values
    if operation in TRUE_OF_NULL_TO_SOME:
        return holds.null | holds.nan | (bounds_of(predicate).are_one_literal() ^ True)
    return holds.values & bounds_of(predicate).may_be_a_literal()


def _must_match(predicate: BoundPredicate, holds: Contents, bounds_of: BoundsOf) -> Truth:
    """Whether every row matches: none may match the complement, nor be null or NaN where neither of the two matches that."""
    operation = predicate.operation
    fails = _may_match(COMPLEMENTS[operation], predicate, holds, bounds_of)
    if operation not in UNARY_OPERATIONS:
        fails = fails | holds.null
    if operation in INEQUALITIES:
        fails = fails | holds.nan
    return fails ^ True


def contents_of(rows: Any, values: Any, nulls: Any, nans: Any) -> Contents:
    """What counts say of files with `rows` rows, or of one; a count is -1 where it is missing or cannot be."""
    left = rows - nans * (nans > 0) - nulls * (nulls > 0)
    impossible = left < 0
    # Rows that a writer counted as no value at all are null: their struct is.
    uncounted = (values >= 0) & (values < rows)
    return Contents(
        null=(((nulls != 0) | uncounted) & (nans != rows)) | impossible,
        nan=((nans != 0) & (nulls != rows)) | impossible,
        values=left != 0,
    )


def row_matches(bound: Expression, row: Mapping[int, Any]) -> bool:
    """Whether a row matches; `row` holds values by field id, and a field that it lacks is null."""
    return bool(evaluate(bound, lambda predicate: _value_matches(predicate, row.get(predicate.field.field_id))))


def partition_matches(bound: Expression, fields: Sequence[NestedField], values: Sequence[Any]) -> bool:
    """Whether a partition tuple matches a projection.

    Args:
        bound: an expression from `project_inclusive` or `project_strict`.
        fields: the fields of the partition type, in the order of `values`.
        values: the partition tuple.
    """
    by_id = {field.field_id: value for field, value in zip(fields, values, strict=True)}
    return bool(evaluate(bound, lambda predicate: _value_matches(predicate, by_id[predicate.field.field_id])))


def manifest_may_match(bound: Expression, fields: Sequence[NestedField], summaries: Sequence[Summary] | None) -> bool:
    """Whether a manifest may hold a file whose partition matches.

    Args:
        bound: an expression from `project_inclusive`.
        fields: the fields of the partition type of the manifest's spec, in the order of `summaries`.
        summaries: the field summaries of the manifest list, null where it has none.
    """
    by_id = dict(zip((field.field_id for field in fields), summaries or (), strict=False))

    def summary_may_match(predicate: BoundPredicate) -> Truth:
        summary = by_id.get(predicate.field.field_id)
        if summary is None:
            return True
        lower, upper = summary.lower_bound, summary.upper_bound
        null, nan = summary.contains_null, predicate.field.type in _FLOATING and summary.contains_nan is not False
        # Both bounds are null where all values are null or NaN; where they cannot be, the summary tells nothing.
        values = lower is not None or upper is not None or not (null or nan)
        return may_match(predicate, Contents(null, nan, values), lambda asked: _bounds(asked, lower, upper))

    return bool(evaluate(bound, summary_may_match))


def file_may_match(bound: Expression, metrics: Metrics) -> bool:
    """Whether a file may hold a row that matches; one without rows does not, one that hides their number may."""
    return metrics.record_count != 0 and bool(
        evaluate(bound, lambda predicate: may_match(predicate, *_facts(predicate.field, metrics)))
    )


def file_must_match(bound: Expression, metrics: Metrics) -> bool:
    """Whether every row of a file matches; deletes on its rows do not change the answer."""
    return metrics.record_count == 0 or bool(
        evaluate(bound, lambda predicate: _must_match(predicate, *_facts(predicate.field, metrics)))
    )


def _value_matches(predicate: BoundPredicate, value: Any) -> bool:
    if value is None:
        return predicate.operation in (Operation.IS_NULL, Operation.NOT_NAN)
    if predicate.bucket is not None:
        value = predicate.bucket.apply(predicate.field.type, value)
    return _MATCHES[predicate.operation](value, predicate.values)


_Values = tuple[Any, ...]
_MATCHES: dict[Operation, Callable[[Any, _Values], bool]] = {
    Operation.IS_NULL: lambda value, _: False,
    Operation.NOT_NULL: lambda value, _: True,
    Operation.IS_NAN: lambda value, _: bool(value != value),
    Operation.NOT_NAN: lambda value, _: bool(value == value),
    Operation.LT: lambda value, values: bool(value < values[0]),
    Operation.LT_EQ: lambda value, values: bool(value <= values[0]),
    Operation.GT: lambda value, values: bool(value > values[0]),
    Operation.GT_EQ: lambda value, values: bool(value >= values[0]),
    Operation.EQ: lambda value, values: bool(value == values[0]),
    Operation.NOT_EQ: lambda value, values: bool(value != values[0]),
    Operation.IN: lambda value, values: _is_member(value, values),
    Operation.NOT_IN: lambda value, values: not _is_member(value, values),
    Operation.STARTS_WITH: lambda value, values: bool(value.startswith(values[0])),
    Operation.NOT_STARTS_WITH: lambda value, values: not value.startswith(values[0]),
}


def _is_member(value: Any, values: _Values) -> bool:
    position = bisect_left(values, value)
    return position < len(values) and bool(values[position] == value)


def _facts(field: NestedField, metrics: Metrics) -> tuple[Contents, BoundsOf]:
    rows, field_id = metrics.record_count, field.field_id
    values = _count(metrics.value_counts, field_id, rows)
    nulls = _count(metrics.null_value_counts, field_id, rows)
    nans = _count(metrics.nan_value_counts, field_id, rows) if field.type in _FLOATING else 0

    def bounds_of(predicate: BoundPredicate) -> Bounds:
        if rows < 0:
            return _Bounds(predicate, None, None)
        lower, upper = metrics.lower_bounds or {}, metrics.upper_bounds or {}
        return _bounds(predicate, lower.get(field_id), upper.get(field_id))

    return contents_of(rows, values, nulls, nans), bounds_of


_FLOATING = (FLOAT, DOUBLE)


def _count(counts: Mapping[int, int] | None, field_id: int, rows: int) -> int:
    count = -1 if counts is None else counts.get(field_id, -1)
    return count if count <= rows else -1


class _Bounds(msgspec.Struct, frozen=True):
    """Bounds of one file as values of the field's present type, null where unknown."""

    predicate: BoundPredicate
    lower: Any
    upper: Any

    def may_be(self, operation: Operation) -> bool:
        bound = self.lower if operation in (Operation.LT, Operation.LT_EQ) else self.upper
        return bound is None or _MATCHES[operation](bound, self.predicate.values)

    def may_be_a_literal(self) -> bool:
        values, lower, upper = self.predicate.values, self.lower, self.upper
        if self.predicate.field.type != UUID:
            return _has_within(values, lower, upper)
        in_java_order = (None if bound is None else java_order(bound) for bound in (lower, upper))
        return _has_within(values, lower, upper) or _has_within(sorted(map(java_order, values)), *in_java_order)

    def are_one_literal(self) -> bool:
        return (
            self.lower is not None and bool(self.lower == self.upper) and _is_member(self.lower, self.predicate.values)
        )


def _bounds(predicate: BoundPredicate, lower: bytes | None, upper: bytes | None) -> _Bounds:
    type_ = predicate.field.type
    low, high = _decode(type_, lower), _decode(type_, upper)
    # Where one is NaN, or the two are crossed, neither can be relied on.
    if low != low or high != high or are_crossed(low, high):
        low = high = None
    elif predicate.operation in PREFIX_OPERATIONS:
        length = len(predicate.values[0])
        low, high = (None if bound is None else bound[:length] for bound in (low, high))
    return _Bounds(predicate, low, high)


def _has_within(literals: Sequence[Any], lower: Any, upper: Any) -> bool:
    position = 0 if lower is None else bisect_left(literals, lower)
    return position < len(literals) and (upper is None or bool(literals[position] <= upper))


def _decode(type_: Type, bound: bytes | None) -> Any:
    if bound is None:
        return None
    try:
        return value_from_bytes(type_, bound)
    except (InvalidTableError, UnsupportedError):
        return None
