"""Project a filter over rows to one over partitions, and find its residual in one partition (spec, "Scan Planning").

The inclusive projection matches the partition of every row that the filter matches, so a partition that it does not
match holds no such row. The strict projection matches only partitions all of whose rows the filter matches: it is false
where the inclusive projection of the negation is true. Both are bound to the fields of the partition type: a `field_id` is
the partition field's. A predicate that a transform hides projects to true and to false respectively.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    COMPLEMENTS,
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
    conjunction,
    disjunction,
    not_bound,
)
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
from icekeep.spec.types import DATE, TIMESTAMP_NS, TIMESTAMPTZ_NS, DecimalType, NestedField, Type
from icekeep.spec.values import decimal_from_unscaled, unscaled


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
