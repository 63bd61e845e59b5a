"""Whether rows of a manifest or file may, or must, match a bound filter (spec, "Scan Planning").

The rules are written once, over the statistics of one file or, as arrays, of many: a `Truth` is a bool or a mask over
files, and the operators used here mean the same for both (`^ True` negates; `not` and `~` do not). How bounds are held and
compared is left to a `BoundsAllow`: for one file here, for many in `planning/prune.py`.

"May match" is false only where no row can match, however a reader treats null in `!=` and `NOT IN`; "must match" is true
only where every row matches by SQL's rules. Statistics that are missing, or whose bytes cannot be read, decide nothing.
Bounds need not be values that occur: they may be truncated.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from icekeep.spec.manifests.structs import FieldSummary
from icekeep.spec.types import FLOATING_TYPES, UUID, NestedField, Type
from icekeep.spec.values import are_crossed, java_order, value_from_bytes

Truth: TypeAlias = Any


class Metrics(Protocol):
    """Statistics of a file by field id, as `DataFile` has them; a missing map or id is unknown."""

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


class Contents(msgspec.Struct, frozen=True):
    """What a column may hold; "values" are neither null nor NaN."""

    null: Truth
    nan: Truth
    values: Truth


BoundsAllow: TypeAlias = Callable[[Operation, BoundPredicate], Truth]
"""Whether an operation may hold for a value within the bounds and the predicate's literals; true where bounds are unknown."""


def evaluate(bound: Expression, test: Callable[[BoundPredicate], Truth]) -> Truth:
    """AND and OR of `test` over the predicates, short-circuiting."""
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
                reached = result if isinstance(result, bool) else bool(result.any() if is_and else result.all())
                if reached is not is_and:
                    break
            return result
    raise not_bound(bound)


def may_match(operation: Operation, predicate: BoundPredicate, holds: Contents, bounds_allow: BoundsAllow) -> Truth:
    """Whether some row of a file that has rows may match; `operation` takes the place of the predicate's."""
    if operation in UNARY_OPERATIONS:
        match operation:
            case Operation.IS_NULL:
                return holds.null
            case Operation.NOT_NULL:
                return holds.values | holds.nan
            case Operation.IS_NAN:
                return holds.nan
        return holds.values | holds.null
    is_true_of_null = operation in TRUE_OF_NULL_TO_SOME
    if predicate.bucket is not None:
        # Values of any bucket lie between any bounds.
        return holds.values | holds.null if is_true_of_null else holds.values
    if operation in INEQUALITIES and predicate.field.type == UUID:
        # Writers differ in how they order UUIDs, and bounds in one order say nothing about the other.
        return holds.values
    allowed = bounds_allow(operation, predicate)
    return holds.null | holds.nan | allowed if is_true_of_null else holds.values & allowed


def _must_match(predicate: BoundPredicate, holds: Contents, bounds_allow: BoundsAllow) -> Truth:
    """Whether every row matches: none may match the complement, nor be a null or NaN that neither of the two matches."""
    operation = predicate.operation
    fails = may_match(COMPLEMENTS[operation], predicate, holds, bounds_allow)
    if operation not in UNARY_OPERATIONS:
        fails = fails | holds.null
    if operation in INEQUALITIES:
        fails = fails | holds.nan
    return fails ^ True


def contents_of(rows: Any, values: Any, nulls: Any, nans: Any) -> Contents:
    """What counts say of files with `rows` rows, or of one; a count is -1 where it is missing or impossible."""
    left = rows - nans * (nans > 0) - nulls * (nulls > 0)
    impossible = left < 0
    # Rows without any value are null: the struct around the field is.
    uncounted = (values >= 0) & (values < rows)
    return Contents(
        null=(((nulls != 0) | uncounted) & (nans != rows)) | impossible,
        nan=((nans != 0) & (nulls != rows)) | impossible,
        values=left != 0,
    )


def row_matches(bound: Expression, row: Mapping[int, Any]) -> bool:
    """Whether a row matches; `row` holds values by field id, and a missing field is null."""
    return bool(evaluate(bound, lambda predicate: _value_matches(predicate, row.get(predicate.field.field_id))))


def partition_matches(bound: Expression, fields: Sequence[NestedField], values: Sequence[Any]) -> bool:
    """Whether a partition tuple, in the order of `fields`, matches a projection (inclusive or strict)."""
    by_id = {field.field_id: value for field, value in zip(fields, values, strict=True)}
    return bool(evaluate(bound, lambda predicate: _value_matches(predicate, by_id[predicate.field.field_id])))


def manifest_may_match(
    bound: Expression, fields: Sequence[NestedField], summaries: Sequence[FieldSummary] | None
) -> bool:
    """Whether a manifest may hold a file whose partition matches an inclusive projection.

    `fields` are those of the partition type of the manifest's spec, in the order of the manifest list's `summaries`.
    """
    by_id = dict(zip((field.field_id for field in fields), summaries or (), strict=False))

    def summary_may_match(predicate: BoundPredicate) -> Truth:
        summary = by_id.get(predicate.field.field_id)
        if summary is None:
            return True
        lower, upper = summary.lower_bound, summary.upper_bound
        null, nan = summary.contains_null, predicate.field.type in FLOATING_TYPES and summary.contains_nan is not False
        # Both bounds are null where all values are null or NaN; a summary without bounds, nulls and NaNs is no evidence.
        holds = Contents(null, nan, lower is not None or upper is not None or not (null or nan))
        return may_match(predicate.operation, predicate, holds, partial(_bounds_allow, lower, upper))

    return bool(evaluate(bound, summary_may_match))


def file_may_match(bound: Expression, metrics: Metrics) -> bool:
    """Whether a file may hold a row that matches; one of unknown row count (-1) may."""
    return metrics.record_count != 0 and bool(
        evaluate(bound, lambda predicate: may_match(predicate.operation, predicate, *_facts(predicate.field, metrics)))
    )


def file_must_match(bound: Expression, metrics: Metrics) -> bool:
    """Whether every row of a file matches; deletes do not change the answer."""
    return metrics.record_count == 0 or bool(
        evaluate(bound, lambda predicate: _must_match(predicate, *_facts(predicate.field, metrics)))
    )


def _facts(field: NestedField, metrics: Metrics) -> tuple[Contents, BoundsAllow]:
    rows, id_ = metrics.record_count, field.field_id
    counts = (metrics.value_counts, metrics.null_value_counts, metrics.nan_value_counts)
    known = (-1 if some is None else some.get(id_, -1) for some in counts)
    values, nulls, nans = (count if count <= rows else -1 for count in known)
    holds = contents_of(rows, values, nulls, nans if field.type in FLOATING_TYPES else 0)
    lowers, uppers = metrics.lower_bounds, metrics.upper_bounds
    lower = None if lowers is None or rows < 0 else lowers.get(id_)
    upper = None if uppers is None or rows < 0 else uppers.get(id_)
    return holds, partial(_bounds_allow, lower, upper)


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
    Operation.IN: lambda value, values: _has_within(values, value, value),
    Operation.NOT_IN: lambda value, values: not _has_within(values, value, value),
    Operation.STARTS_WITH: lambda value, values: bool(value.startswith(values[0])),
    Operation.NOT_STARTS_WITH: lambda value, values: not value.startswith(values[0]),
}


def _bounds_allow(
    lower_bound: bytes | None, upper_bound: bytes | None, operation: Operation, predicate: BoundPredicate
) -> bool:
    """`BoundsAllow` for one file, whose bounds are of the field's current type or of one before promotion."""
    type_, literals = predicate.field.type, predicate.values
    lower, upper = _decode(type_, lower_bound), _decode(type_, upper_bound)
    if lower != lower or upper != upper or are_crossed(lower, upper):
        # Where one is NaN, or lower exceeds upper, neither is reliable.
        return True
    if operation in INEQUALITIES:
        bound = lower if operation in (Operation.LT, Operation.LT_EQ) else upper
        return bound is None or _MATCHES[operation](bound, literals)
    if operation in PREFIX_OPERATIONS:
        # Cut to the prefix's length, a value that starts with it equals it; so bounds are cut alike.
        lower, upper = (None if bound is None else bound[: len(literals[0])] for bound in (lower, upper))
    if operation in TRUE_OF_NULL_TO_SOME:
        return lower is None or lower != upper or not _has_within(literals, lower, lower)
    if _has_within(literals, lower, upper):
        return True
    in_java_order = (None if bound is None else java_order(bound) for bound in (lower, upper))
    return type_ == UUID and _has_within(sorted(map(java_order, literals)), *in_java_order)


def _has_within(literals: Sequence[Any], lower: Any, upper: Any) -> bool:
    """Whether one of the literals, which are sorted, lies between the bounds; a null bound is none."""
    position = 0 if lower is None else bisect_left(literals, lower)
    return position < len(literals) and (upper is None or bool(literals[position] <= upper))


def _decode(type_: Type, bound: bytes | None) -> Any:
    try:
        return None if bound is None else value_from_bytes(type_, bound)
    except (InvalidTableError, UnsupportedError):
        return None
