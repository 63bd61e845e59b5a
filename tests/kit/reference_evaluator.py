"""The evaluator on objects as it was before there was one for one file and for many: the oracle of `test_prune.py`.

A file that is pruned wrongly is a row lost, so what decides it is compared with rules that were written apart from it.
"""

import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.filters.expressions import (
    TRUE_OF_NULL_TO_SOME,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
    not_bound,
)
from icekeep.spec.manifests.structs import DataFile, FieldSummary
from icekeep.spec.types import DOUBLE, FLOAT, NestedField, Type
from icekeep.spec.values import are_crossed, java_order, value_from_bytes


def row_matches(bound: Expression, row: Mapping[int, Any]) -> bool:
    """Whether a row matches; `row` holds values by field id, and a field that it lacks is null."""
    return _evaluate(bound, lambda predicate: _value_matches(predicate, row.get(predicate.field.field_id)))


def partition_matches(bound: Expression, fields: Sequence[NestedField], values: Sequence[Any]) -> bool:
    """Whether a partition tuple matches a projection.

    Args:
        bound: an expression from `project_inclusive` or `project_strict`.
        fields: the fields of the partition type, in the order of `values`.
        values: the partition tuple.
    """
    by_id = {field.field_id: value for field, value in zip(fields, values, strict=True)}
    return _evaluate(bound, lambda predicate: _value_matches(predicate, by_id[predicate.field.field_id]))


def manifest_may_match(
    bound: Expression, fields: Sequence[NestedField], summaries: Sequence[FieldSummary] | None
) -> bool:
    """Whether a manifest may hold a file whose partition matches.

    Args:
        bound: an expression from `project_inclusive`.
        fields: the fields of the partition type of the manifest's spec, in the order of `summaries`.
        summaries: the field summaries of the manifest list, null where it has none.
    """
    by_id = dict(zip((field.field_id for field in fields), summaries or (), strict=False))

    def may_match(predicate: BoundPredicate) -> bool:
        summary = by_id.get(predicate.field.field_id)
        return summary is None or _may_match(predicate, _facts_of_summary(predicate, summary))

    return _evaluate(bound, may_match)


def file_may_match(bound: Expression, metrics: DataFile) -> bool:
    """Whether a file may hold a row that matches; one without rows does not, one that hides their number may."""
    if metrics.record_count == 0:
        return False
    if metrics.record_count < 0:
        return _evaluate(bound, lambda _: True)
    return _evaluate(bound, lambda predicate: _may_match(predicate, _facts_of_file(predicate, metrics)))


def file_must_match(bound: Expression, metrics: DataFile) -> bool:
    """Whether every row of a file matches; deletes on its rows do not change the answer."""
    if metrics.record_count == 0:
        return True
    if metrics.record_count < 0:
        return _evaluate(bound, lambda _: False)
    return _evaluate(bound, lambda predicate: _must_match(predicate, _facts_of_file(predicate, metrics)))


def _evaluate(bound: Expression, test: Callable[[BoundPredicate], bool]) -> bool:
    match bound:
        case BoundPredicate():
            return test(bound)
        case And(left=left, right=right):
            return _evaluate(left, test) and _evaluate(right, test)
        case Or(left=left, right=right):
            return _evaluate(left, test) or _evaluate(right, test)
        case AlwaysTrue() | AlwaysFalse():
            return isinstance(bound, AlwaysTrue)
    raise not_bound(bound)


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
_TRUE_OF_NULL = (Operation.IS_NULL, Operation.NOT_NAN)


def _value_matches(predicate: BoundPredicate, value: Any) -> bool:
    if value is None:
        return predicate.operation in _TRUE_OF_NULL
    if predicate.bucket is not None:
        value = predicate.bucket.apply(predicate.field.type, value)
    return _MATCHES[predicate.operation](value, predicate.values)


def _is_member(value: Any, values: _Values) -> bool:
    position = bisect_left(values, value)
    return position < len(values) and bool(values[position] == value)


class _Facts(msgspec.Struct, frozen=True):
    """What statistics tell about the values of one field; "values" are those that are neither null nor NaN."""

    may_hold_null: bool
    may_hold_nan: bool
    may_hold_values: bool
    lower: Any = None
    upper: Any = None

    @property
    def only_values(self) -> bool:
        return not self.may_hold_null and not self.may_hold_nan

    @property
    def least(self) -> Any:
        """The lower bound where it is one in the order of comparisons; writers differ on the order of UUIDs."""
        return None if isinstance(self.lower, uuid.UUID) else self.lower

    @property
    def greatest(self) -> Any:
        return None if isinstance(self.upper, uuid.UUID) else self.upper

    def all_in(self, wanted: _Values) -> bool:
        """Whether all values are known to be one and the same, which is among `wanted`; `wanted` is sorted."""
        return self.lower is not None and bool(self.lower == self.upper) and _is_member(self.lower, wanted)

    def may_start_with(self, prefix: Any) -> bool:
        below = self.lower is None or bool(self.lower[: len(prefix)] <= prefix)
        return self.may_hold_values and below and (self.upper is None or bool(self.upper >= prefix))

    def all_start_with(self, prefix: Any) -> bool:
        bounds = (self.lower, self.upper)
        return all(bound is not None and bound.startswith(prefix) for bound in bounds)

    def may_hold_some(self, wanted: _Values) -> bool:
        """Whether one of `wanted` may be among the values; `wanted` is sorted."""
        if not self.may_hold_values:
            return False
        if isinstance(wanted[0], uuid.UUID):
            return any(_within_uuids(self.lower, value, self.upper) for value in wanted)
        position = 0 if self.lower is None else bisect_left(wanted, self.lower)
        return position < len(wanted) and (self.upper is None or bool(wanted[position] <= self.upper))


def _within_uuids(lower: uuid.UUID | None, value: uuid.UUID, upper: uuid.UUID | None) -> bool:
    """Bounds of UUIDs are least and greatest as bytes in some writers, as two signed longs in others (Java's order)."""
    for order in (_uuid_as_bytes, java_order):
        above = lower is None or order(lower) <= order(value)
        if above and (upper is None or order(value) <= order(upper)):
            return True
    return False


def _uuid_as_bytes(value: uuid.UUID) -> int:
    return value.int


_MAY_MATCH: dict[Operation, Callable[[_Facts, _Values], bool]] = {
    Operation.IS_NULL: lambda facts, _: facts.may_hold_null,
    Operation.NOT_NULL: lambda facts, _: facts.may_hold_values or facts.may_hold_nan,
    Operation.IS_NAN: lambda facts, _: facts.may_hold_nan,
    Operation.NOT_NAN: lambda facts, _: facts.may_hold_values or facts.may_hold_null,
    Operation.LT: lambda facts, v: facts.may_hold_values and (facts.least is None or bool(facts.least < v[0])),
    Operation.LT_EQ: lambda facts, v: facts.may_hold_values and (facts.least is None or bool(facts.least <= v[0])),
    Operation.GT: lambda facts, v: facts.may_hold_values and (facts.greatest is None or bool(facts.greatest > v[0])),
    Operation.GT_EQ: lambda facts, v: (
        facts.may_hold_values and (facts.greatest is None or bool(facts.greatest >= v[0]))
    ),
    Operation.EQ: lambda facts, v: facts.may_hold_some(v),
    Operation.IN: lambda facts, v: facts.may_hold_some(v),
    Operation.NOT_EQ: lambda facts, v: not facts.only_values or not facts.all_in(v),
    Operation.NOT_IN: lambda facts, v: not facts.only_values or not facts.all_in(v),
    Operation.STARTS_WITH: lambda facts, v: facts.may_start_with(v[0]),
    Operation.NOT_STARTS_WITH: lambda facts, v: not facts.only_values or not facts.all_start_with(v[0]),
}
_MUST_MATCH: dict[Operation, Callable[[_Facts, _Values], bool]] = {
    Operation.IS_NULL: lambda facts, _: not facts.may_hold_values and not facts.may_hold_nan,
    Operation.NOT_NULL: lambda facts, _: not facts.may_hold_null,
    Operation.IS_NAN: lambda facts, _: not facts.may_hold_values and not facts.may_hold_null,
    Operation.NOT_NAN: lambda facts, _: not facts.may_hold_nan,
    Operation.LT: lambda facts, v: facts.only_values and facts.greatest is not None and bool(facts.greatest < v[0]),
    Operation.LT_EQ: lambda facts, v: facts.only_values and facts.greatest is not None and bool(facts.greatest <= v[0]),
    Operation.GT: lambda facts, v: facts.only_values and facts.least is not None and bool(facts.least > v[0]),
    Operation.GT_EQ: lambda facts, v: facts.only_values and facts.least is not None and bool(facts.least >= v[0]),
    Operation.EQ: lambda facts, v: facts.only_values and facts.all_in(v),
    Operation.IN: lambda facts, v: facts.only_values and facts.all_in(v),
    Operation.NOT_EQ: lambda facts, v: not facts.may_hold_null and not facts.may_hold_some(v),
    Operation.NOT_IN: lambda facts, v: not facts.may_hold_null and not facts.may_hold_some(v),
    Operation.STARTS_WITH: lambda facts, v: facts.only_values and facts.all_start_with(v[0]),
    Operation.NOT_STARTS_WITH: lambda facts, v: facts.only_values and not facts.may_start_with(v[0]),
}


def _may_match(predicate: BoundPredicate, facts: _Facts) -> bool:
    if predicate.bucket is not None:
        # Values of any bucket lie between any bounds.
        return facts.may_hold_values or (facts.may_hold_null and predicate.operation in TRUE_OF_NULL_TO_SOME)
    return _MAY_MATCH[predicate.operation](facts, predicate.values)


def _must_match(predicate: BoundPredicate, facts: _Facts) -> bool:
    return predicate.bucket is None and _MUST_MATCH[predicate.operation](facts, predicate.values)


def _facts_of_summary(predicate: BoundPredicate, summary: FieldSummary) -> _Facts:
    is_floating = predicate.field.type in (FLOAT, DOUBLE)
    lower, upper = _bounds(predicate, summary.lower_bound, summary.upper_bound)
    may_hold_nan = is_floating and summary.contains_nan is not False
    bounded = summary.lower_bound is not None or summary.upper_bound is not None
    return _Facts(
        may_hold_null=summary.contains_null,
        may_hold_nan=may_hold_nan,
        # Both bounds are null where all values are null or NaN; where they cannot be, the summary tells nothing.
        may_hold_values=bounded or not (summary.contains_null or may_hold_nan),
        lower=lower,
        upper=upper,
    )


def _facts_of_file(predicate: BoundPredicate, metrics: DataFile) -> _Facts:
    field_id, rows = predicate.field.field_id, metrics.record_count
    is_floating = predicate.field.type in (FLOAT, DOUBLE)
    values = _count(metrics.value_counts, field_id, rows)
    nulls = _count(metrics.null_value_counts, field_id, rows)
    nans = _count(metrics.nan_value_counts, field_id, rows) if is_floating else 0
    if (nulls or 0) + (nans or 0) > rows:
        nulls = nans = None
    lower, upper = _bounds(
        predicate, (metrics.lower_bounds or {}).get(field_id), (metrics.upper_bounds or {}).get(field_id)
    )
    # Rows that a writer counted as no value at all are null: their struct is.
    uncounted = values is not None and values < rows
    return _Facts(
        may_hold_null=(nulls != 0 or uncounted) and nans != rows,
        may_hold_nan=nans != 0 and nulls != rows,
        may_hold_values=(nulls or 0) + (nans or 0) < rows,
        lower=lower,
        upper=upper,
    )


def _count(counts: Mapping[int, int] | None, field_id: int, rows: int) -> int | None:
    """A count of a column's values, null where it is missing or cannot be one."""
    count = None if counts is None else counts.get(field_id)
    return count if count is not None and 0 <= count <= rows else None


def _bounds(predicate: BoundPredicate, lower: bytes | None, upper: bytes | None) -> tuple[Any, Any]:
    """The bounds as values of the field's present type, null where unknown: NaN as a bound makes both so, and a crossed pair."""
    if predicate.operation in UNARY_OPERATIONS:
        return None, None
    decoded = _decode(predicate.field.type, lower), _decode(predicate.field.type, upper)
    return (None, None) if any(bound != bound for bound in decoded) or are_crossed(*decoded) else decoded


def _decode(type_: Type, bound: bytes | None) -> Any:
    if bound is None:
        return None
    try:
        return value_from_bytes(type_, bound)
    except (InvalidTableError, UnsupportedError):
        return None
