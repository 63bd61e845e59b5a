"""Which partitions, manifests, files and rows may, or must, match a bound filter (spec, "Scan Planning").

A filter over rows is projected to one over partitions. The inclusive projection matches the partition of every row that the
filter matches, so a partition that it does not match holds no such row. The strict projection matches only partitions all of
whose rows the filter matches: it is false where the inclusive projection of the negation is true. Both are bound to the fields of
the partition type: a `field_id` is the partition field's. Where a transform hides a predicate they are true and false.

The rules for statistics are written once, for one file or, as arrays, for many: a `Truth` is a bool or a mask over
files, and the operators used here mean the same for both (`^ True` negates; `not` and `~` do not). How bounds are held and
compared is left to a `BoundsAllow`: for one file here, for many in `planning/prune.py`.

"May match" is false only where no row can match, however a reader treats null in `!=` and `NOT IN`; "must match" is true
only where every row matches by SQL's rules. Statistics that are missing, or whose bytes cannot be read, decide nothing.
Bounds need not be values that occur: they may be truncated.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    COMPLEMENTS,
    INEQUALITIES,
    PREFIX_OPERATIONS,
    SET_OPERATIONS,
    TRUE_OF_NULL_TO_SOME,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
    bound_set,
    chain,
    conjunction,
    disjunction,
    not_bound,
)
from icekeep.spec.manifests.structs import FieldSummary
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import (
    Bucket,
    Day,
    Hour,
    Identity,
    Month,
    Transform,
    Truncate,
    UnknownTransform,
    Void,
    Year,
)
from icekeep.spec.types import DATE, FLOATING_TYPES, TIMESTAMP_NS, TIMESTAMPTZ_NS, UUID, DecimalType, NestedField, Type
from icekeep.spec.values import are_crossed, decimal_from_unscaled, java_order, unscaled, value_from_bytes

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


def must_match(predicate: BoundPredicate, holds: Contents, bounds_allow: BoundsAllow) -> Truth:
    """Whether every row of a file matches: none may match the complement, nor be a null or NaN that neither matches."""
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
        evaluate(bound, lambda predicate: must_match(predicate, *_facts(predicate.field, metrics)))
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


def project_inclusive(bound: Expression, spec: PartitionSpec, schema: Schema) -> Expression:
    """The filter over partitions of `spec`, which need not be the current one, that matches wherever a row matches `bound`.

    Several partition fields of one column narrow one another. A predicate that some readers take to be true of null
    (`!=`, `NOT IN`, `NOT LIKE`) also matches null partitions, unless the column is required.
    """

    def project(predicate: BoundPredicate) -> Expression:
        allows_null = predicate.operation in TRUE_OF_NULL_TO_SOME and not predicate.field.required
        projections = []
        for target, projected in _projections(predicate.operation, predicate, spec, schema):
            if allows_null:
                projected = disjunction((projected, BoundPredicate(Operation.IS_NULL, target)))
            projections.append(projected)
        return conjunction(projections)

    return _map_predicates(bound, project)


def project_strict(bound: Expression, spec: PartitionSpec, schema: Schema) -> Expression:
    """The filter over partitions of `spec` that matches only where all rows match `bound`.

    Of several partition fields of one column, one that decides is enough.
    """

    def project(predicate: BoundPredicate) -> Expression:
        deciding: list[Expression] = []
        for _, projected in _projections(COMPLEMENTS[predicate.operation], predicate, spec, schema):
            if isinstance(projected, BoundPredicate):
                deciding.append(msgspec.structs.replace(projected, operation=COMPLEMENTS[projected.operation]))
            elif isinstance(projected, AlwaysFalse):
                return ALWAYS_TRUE
        return disjunction(deciding)

    return _map_predicates(bound, project)


def _keeps_values(transform: Transform, type_: Type) -> bool:
    """Whether partition values are the column's own: by identity, or by the day of a date."""
    return isinstance(transform, Identity) or (isinstance(transform, Day) and type_ == DATE)


_STEPS = {
    Operation.LT: (Operation.LT_EQ, -1),
    Operation.LT_EQ: (Operation.LT_EQ, 0),
    Operation.GT: (Operation.GT_EQ, 1),
    Operation.GT_EQ: (Operation.GT_EQ, 0),
    Operation.EQ: (Operation.EQ, 0),
    Operation.IN: (Operation.IN, 0),
}
"""For transforms of whole numbers: the operation on the partition, and how far the literal moves before it is transformed."""

_PREFIXES: Mapping[Operation, tuple[Operation | None, Operation | None, Operation | None]] = {
    Operation.LT: (Operation.LT, Operation.LT, Operation.LT_EQ),
    Operation.LT_EQ: (Operation.LT_EQ, Operation.LT_EQ, Operation.LT_EQ),
    Operation.GT: (Operation.GT, Operation.GT_EQ, Operation.GT_EQ),
    Operation.GT_EQ: (Operation.GT_EQ, Operation.GT_EQ, Operation.GT_EQ),
    Operation.EQ: (Operation.EQ, Operation.EQ, Operation.EQ),
    Operation.IN: (Operation.IN, Operation.IN, Operation.IN),
    Operation.NOT_EQ: (Operation.NOT_EQ, None, None),
    Operation.NOT_IN: (Operation.NOT_IN, None, None),
    Operation.STARTS_WITH: (Operation.STARTS_WITH, Operation.EQ, Operation.EQ),
    Operation.NOT_STARTS_WITH: (Operation.NOT_STARTS_WITH, Operation.NOT_EQ, None),
}
"""For truncated strings: the operation on the partition where the literal is shorter than the width, as long, longer.

A partition value shorter than the width is its rows' whole value. `None`: nothing is known.
"""


def _map_predicates(bound: Expression, replace: Callable[[BoundPredicate], Expression]) -> Expression:
    match bound:
        case AlwaysTrue() | AlwaysFalse():
            return bound
        case And(left=left, right=right) | Or(left=left, right=right):
            terms = (_map_predicates(left, replace), _map_predicates(right, replace))
            return conjunction(terms) if isinstance(bound, And) else disjunction(terms)
        case BoundPredicate():
            return replace(bound)
    raise not_bound(bound)


def _projections(
    operation: Operation, predicate: BoundPredicate, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[NestedField, Expression]]:
    """Each partition field of the predicate's column, and the inclusive projection onto it."""
    for part in spec.fields:
        if part.source_id == predicate.field.field_id:
            result_type = part.transform.result_type(schema.fields_by_id[part.source_id].type)
            target = NestedField(field_id=part.field_id, name=part.name, type=result_type)
            yield target, _project(operation, part.transform, predicate, target)


def _project(operation: Operation, transform: Transform, predicate: BoundPredicate, target: NestedField) -> Expression:
    """The inclusive projection onto one partition field; `operation` takes the place of the predicate's."""
    match transform:
        case Void() | UnknownTransform():
            return ALWAYS_TRUE
        case _ if _keeps_values(transform, predicate.field.type):
            return BoundPredicate(operation, target, predicate.values, predicate.bucket)
        case _ if predicate.bucket is not None:
            is_same = transform == predicate.bucket
            return BoundPredicate(operation, target, predicate.values) if is_same else ALWAYS_TRUE
        case _ if operation in UNARY_OPERATIONS:
            is_kept = operation in (Operation.IS_NULL, Operation.NOT_NULL)
            return BoundPredicate(operation, target) if is_kept else ALWAYS_TRUE
        case Truncate(width=width) if isinstance(predicate.values[0], str | bytes):
            return _project_prefix(operation, width, predicate, target)
        case Bucket() if operation not in (Operation.EQ, Operation.IN):
            return ALWAYS_TRUE
    return _project_steps(operation, transform, predicate, target)


def _project_steps(
    operation: Operation, transform: Transform, predicate: BoundPredicate, target: NestedField
) -> Expression:
    if operation not in _STEPS:
        return ALWAYS_TRUE
    operation, distance = _STEPS[operation]
    type_, values = predicate.field.type, predicate.values
    # `distance` is in units of the last place; binding has decided comparisons with the type's limits.
    if isinstance(type_, DecimalType):
        values = tuple(decimal_from_unscaled(unscaled(value, type_.scale) + distance, type_.scale) for value in values)
    elif distance:
        values = tuple(value + distance for value in values)
    steps = [transform.apply(type_, value) for value in values]
    # Iceberg Java before 0.11 wrote partition values of times before 1970 that are one too large.
    is_time = isinstance(transform, Year | Month | Day | Hour) and type_ not in (TIMESTAMP_NS, TIMESTAMPTZ_NS)
    late = [step + 1 for step in steps if step < 0] if is_time else []
    if operation in (Operation.EQ, Operation.IN):
        return bound_set(Operation.IN, target, steps + late)
    if operation is Operation.LT_EQ and late:
        steps = late
    return BoundPredicate(operation, target, tuple(steps))


def _project_prefix(operation: Operation, width: int, predicate: BoundPredicate, target: NestedField) -> Expression:
    operations = _PREFIXES[operation]
    decided = []
    for value in predicate.values:
        projected = operations[0 if len(value) < width else 1 if len(value) == width else 2]
        if projected is not None:
            operation = projected
            decided.append(value[:width])
    if operation in SET_OPERATIONS:
        return bound_set(operation, target, decided)
    return BoundPredicate(operation, target, tuple(decided)) if decided else ALWAYS_TRUE


def residual(bound: Expression, spec: PartitionSpec, schema: Schema, partition: Sequence[Any]) -> Expression:
    """The filter that remains for the rows of a partition of `spec`; each row matches it as it matches `bound`.

    A predicate that the partition decides becomes true or false. A partition value that is null or the column's own
    decides every predicate; else the strict and the inclusive projection may. Void and unknown transforms decide nothing.
    """
    if len(partition) != len(spec.fields):
        raise IcekeepBug(f"partition {tuple(partition)!r} has not the {len(spec.fields)} values of spec {spec.spec_id}")

    def remaining(predicate: BoundPredicate) -> Expression:
        values: dict[int, Any] = {}
        for part, value in zip(spec.fields, partition, strict=True):
            if part.source_id != predicate.field.field_id or isinstance(part.transform, Void | UnknownTransform):
                continue
            if value is None or _keeps_values(part.transform, predicate.field.type):
                return ALWAYS_TRUE if row_matches(predicate, {part.source_id: value}) else ALWAYS_FALSE
            values[part.field_id] = value
        if row_matches(project_strict(predicate, spec, schema), values):
            return ALWAYS_TRUE
        return predicate if row_matches(project_inclusive(predicate, spec, schema), values) else ALWAYS_FALSE

    return _map_predicates(bound, remaining)
