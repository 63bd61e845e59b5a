"""From a filter over rows to filters over partitions (spec, "Scan Planning").

The inclusive projection matches the partition of every row that the filter matches, so a partition that it does not
match holds no wanted row. The strict projection matches only partitions all of whose rows the filter matches. Both are
bound to the fields of the partition type: a `field_id` is the partition field's. What a transform hides projects to
true and to false respectively.

What is left of a filter for the rows of one partition (spec, "Scan Planning", note 1).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
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
from icekeep.spec.partitioning import PartitionField, PartitionSpec
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
    """The filter over partitions of `spec` that matches wherever a row matches `bound`.

    Several fields made of one column narrow one another. A predicate that some readers hold true of null (`!=`,
    `NOT IN`, `NOT LIKE`) lets null partitions pass as well, unless the column is required.

    Args:
        bound: an expression that is bound to `schema`.
        spec: the spec that the files were written with, which need not be the table's current one.
        schema: the schema that holds the source columns.
    """

    def project(predicate: BoundPredicate) -> Expression:
        return conjunction(_project_inclusive(part, predicate, schema) for part in _parts(spec, predicate))

    return _map_predicates(bound, project)


def project_strict(bound: Expression, spec: PartitionSpec, schema: Schema) -> Expression:
    """The filter over partitions of `spec` that matches only where all rows match `bound`.

    Arguments are those of `project_inclusive`. Of several fields made of one column one that decides is enough.
    """

    def project(predicate: BoundPredicate) -> Expression:
        return disjunction(_project_strict(part, predicate, schema) for part in _parts(spec, predicate))

    return _map_predicates(bound, project)


def keeps_values(transform: Transform, type_: Type) -> bool:
    """Whether partition values are the values of their column: of identity, and of the day of a date."""
    return isinstance(transform, Identity) or (isinstance(transform, Day) and type_ == DATE)


_Steps = Mapping[Operation, tuple[Operation, int]]
"""For transforms of whole numbers: the operation on the partition, and how far the boundary moves before."""

_INCLUSIVE_STEPS: _Steps = {
    Operation.LT: (Operation.LT_EQ, -1),
    Operation.LT_EQ: (Operation.LT_EQ, 0),
    Operation.GT: (Operation.GT_EQ, 1),
    Operation.GT_EQ: (Operation.GT_EQ, 0),
    Operation.EQ: (Operation.EQ, 0),
    Operation.IN: (Operation.IN, 0),
}
_STRICT_STEPS: _Steps = {
    Operation.LT: (Operation.LT, 0),
    Operation.LT_EQ: (Operation.LT, 1),
    Operation.GT: (Operation.GT, 0),
    Operation.GT_EQ: (Operation.GT, -1),
    Operation.NOT_EQ: (Operation.NOT_EQ, 0),
    Operation.NOT_IN: (Operation.NOT_IN, 0),
}

_Prefixes = Mapping[Operation, tuple[Operation | None, Operation | None, Operation | None]]
"""For truncated strings: the operation on the partition where the value is shorter than the width, as long, longer.

A partition value that is shorter than the width is the whole of its rows' value. `None`: nothing can be said.
"""

_INCLUSIVE_PREFIXES: _Prefixes = {
    Operation.LT: (Operation.LT, Operation.LT, Operation.LT_EQ),
    Operation.LT_EQ: (Operation.LT_EQ, Operation.LT_EQ, Operation.LT_EQ),
    Operation.GT: (Operation.GT, Operation.GT_EQ, Operation.GT_EQ),
    Operation.GT_EQ: (Operation.GT_EQ, Operation.GT_EQ, Operation.GT_EQ),
    Operation.EQ: (Operation.EQ, Operation.EQ, Operation.EQ),
    Operation.NOT_EQ: (Operation.NOT_EQ, None, None),
    Operation.STARTS_WITH: (Operation.STARTS_WITH, Operation.EQ, Operation.EQ),
    Operation.NOT_STARTS_WITH: (Operation.NOT_STARTS_WITH, Operation.NOT_EQ, None),
}
_STRICT_PREFIXES: _Prefixes = {
    Operation.LT: (Operation.LT, Operation.LT, Operation.LT),
    Operation.LT_EQ: (Operation.LT_EQ, Operation.LT, Operation.LT),
    Operation.GT: (Operation.GT, Operation.GT, Operation.GT),
    Operation.GT_EQ: (Operation.GT_EQ, Operation.GT_EQ, Operation.GT),
    Operation.EQ: (Operation.EQ, None, None),
    Operation.NOT_EQ: (Operation.NOT_EQ, Operation.NOT_EQ, Operation.NOT_EQ),
    Operation.STARTS_WITH: (Operation.STARTS_WITH, Operation.EQ, None),
    Operation.NOT_STARTS_WITH: (Operation.NOT_STARTS_WITH, Operation.NOT_EQ, Operation.NOT_EQ),
}
_SET_MEMBER = {Operation.IN: Operation.EQ, Operation.NOT_IN: Operation.NOT_EQ}


def _map_predicates(bound: Expression, project: Callable[[BoundPredicate], Expression]) -> Expression:
    match bound:
        case AlwaysTrue() | AlwaysFalse():
            return bound
        case And(left=left, right=right):
            return conjunction((_map_predicates(left, project), _map_predicates(right, project)))
        case Or(left=left, right=right):
            return disjunction((_map_predicates(left, project), _map_predicates(right, project)))
        case BoundPredicate():
            return project(bound)
    raise IcekeepBug(f"cannot project {type(bound).__name__}: bind the expression first")


def _parts(spec: PartitionSpec, predicate: BoundPredicate) -> list[PartitionField]:
    return [part for part in spec.fields if part.source_id == predicate.field.field_id]


def _project_inclusive(part: PartitionField, predicate: BoundPredicate, schema: Schema) -> Expression:
    projected = _project(_INCLUSIVE, part, predicate, schema)
    if projected is None:
        return ALWAYS_TRUE
    if predicate.operation in TRUE_OF_NULL_TO_SOME and not predicate.field.required:
        return disjunction((projected, BoundPredicate(Operation.IS_NULL, _target(part, schema))))
    return projected


def _project_strict(part: PartitionField, predicate: BoundPredicate, schema: Schema) -> Expression:
    projected = _project(_STRICT, part, predicate, schema)
    return ALWAYS_FALSE if projected is None else projected


def _project(rules: "_Rules", part: PartitionField, predicate: BoundPredicate, schema: Schema) -> Expression | None:
    """The projection of a predicate onto one partition field; null where the transform hides the answer."""
    target = _target(part, schema)
    match part.transform:
        case Void() | UnknownTransform():
            return None
        case transform if keeps_values(transform, predicate.field.type):
            return BoundPredicate(predicate.operation, target, predicate.values, predicate.bucket)
        case transform if predicate.bucket is not None:
            same = transform == predicate.bucket
            return BoundPredicate(predicate.operation, target, predicate.values) if same else None
        case _ if predicate.operation in UNARY_OPERATIONS:
            kept = predicate.operation in (Operation.IS_NULL, Operation.NOT_NULL)
            return BoundPredicate(predicate.operation, target) if kept else None
        case Bucket() as transform:
            return _project_by_steps(rules.bucket_steps, transform, predicate, target)
        case Truncate(width=width) if isinstance(predicate.values[0], str | bytes):
            return _project_by_prefix(rules.prefixes, width, predicate, target)
        case transform:
            projected = _project_by_steps(rules.steps, transform, predicate, target)
            if isinstance(projected, BoundPredicate) and _may_be_late(transform, predicate):
                return rules.allow_late(projected)
            return projected


def _target(part: PartitionField, schema: Schema) -> NestedField:
    result_type = part.transform.result_type(schema.fields_by_id[part.source_id].type)
    return NestedField(field_id=part.field_id, name=part.name, type=result_type)


def _project_by_steps(
    steps: _Steps, transform: Transform, predicate: BoundPredicate, target: NestedField
) -> Expression | None:
    if (step := steps.get(predicate.operation)) is None:
        return None
    operation, distance = step
    type_ = predicate.field.type
    values = [transform.apply(type_, _move(type_, value, distance)) for value in predicate.values]
    return bound_set(operation, target, values) if operation in SET_OPERATIONS else _single(operation, target, values)


def _move(type_: Type, value: Any, distance: int) -> Any:
    """The value that lies `distance` units of the last place away; binding has settled the ends of the range."""
    if isinstance(type_, DecimalType):
        return decimal_from_unscaled(unscaled(value, type_.scale) + distance, type_.scale)
    return value + distance if distance else value


def _project_by_prefix(
    prefixes: _Prefixes, width: int, predicate: BoundPredicate, target: NestedField
) -> Expression | None:
    member = _SET_MEMBER.get(predicate.operation, predicate.operation)
    operations = prefixes.get(member, (None, None, None))
    decided = [(operations[_compare(len(value), width)], value[:width]) for value in predicate.values]
    values = [value for operation, value in decided if operation is not None]
    if predicate.operation in SET_OPERATIONS:
        return bound_set(predicate.operation, target, values)
    operation = decided[0][0]
    return None if operation is None else _single(operation, target, values)


def _single(operation: Operation, target: NestedField, values: list[Any]) -> BoundPredicate:
    return BoundPredicate(operation, target, tuple(values))


def _compare(length: int, width: int) -> int:
    """Index into the triples of `_Prefixes`."""
    return 0 if length < width else 1 if length == width else 2


def _may_be_late(transform: Transform, predicate: BoundPredicate) -> bool:
    """Whether partition values may be one too large: those of times before 1970, made by Iceberg's Java before 0.11."""
    is_time = isinstance(transform, Year | Month | Day | Hour)
    return is_time and predicate.field.type not in (TIMESTAMP_NS, TIMESTAMPTZ_NS)


def _include_late(projected: BoundPredicate) -> Expression:
    """Match also the partitions one after those before 1970 that match."""
    late = [value + 1 for value in projected.values if value < 0]
    match projected.operation:
        case Operation.LT_EQ if late:
            return _single(Operation.LT_EQ, projected.field, late)
        case Operation.EQ | Operation.IN:
            return bound_set(Operation.IN, projected.field, [*projected.values, *late])
    return projected


def _exclude_late(projected: BoundPredicate) -> Expression:
    """Match no partition that may hold values of the one before it unless that one matches too."""
    late = [value + 1 for value in projected.values if value < 0]
    match projected.operation:
        case Operation.GT if late:
            return _single(Operation.GT, projected.field, late)
        case Operation.NOT_EQ | Operation.NOT_IN:
            return bound_set(Operation.NOT_IN, projected.field, [*projected.values, *late])
    return projected


class _Rules(msgspec.Struct, frozen=True):
    steps: _Steps
    bucket_steps: _Steps
    prefixes: _Prefixes
    allow_late: Callable[[BoundPredicate], Expression]


_INCLUSIVE = _Rules(
    steps=_INCLUSIVE_STEPS,
    bucket_steps={op: _INCLUSIVE_STEPS[op] for op in (Operation.EQ, Operation.IN)},
    prefixes=_INCLUSIVE_PREFIXES,
    allow_late=_include_late,
)
_STRICT = _Rules(
    steps=_STRICT_STEPS,
    bucket_steps={op: _STRICT_STEPS[op] for op in (Operation.NOT_EQ, Operation.NOT_IN)},
    prefixes=_STRICT_PREFIXES,
    allow_late=_exclude_late,
)


def residual(bound: Expression, spec: PartitionSpec, schema: Schema, partition: Sequence[Any]) -> Expression:
    """The filter that is left to ask of the rows of a partition; each of them matches it as it matches `bound`.

    A predicate that the partition decides becomes true or false. A partition that keeps the column's own values, or
    null, decides all of them; else the strict and the inclusive projection do. Void and unknown transforms decide nothing.

    Args:
        bound: an expression that is bound to `schema`.
        spec: the spec that the files of the partition were written with.
        schema: the schema that holds the source columns.
        partition: the partition tuple, in the order of the spec's fields.
    """
    if len(partition) != len(spec.fields):
        raise IcekeepBug(f"partition {tuple(partition)!r} has not the {len(spec.fields)} values of spec {spec.spec_id}")
    return _residual(bound, spec, schema, partition)


def _residual(bound: Expression, spec: PartitionSpec, schema: Schema, partition: Sequence[Any]) -> Expression:
    match bound:
        case AlwaysTrue() | AlwaysFalse():
            return bound
        case And(left=left, right=right):
            return conjunction(_residual(side, spec, schema, partition) for side in (left, right))
        case Or(left=left, right=right):
            return disjunction(_residual(side, spec, schema, partition) for side in (left, right))
        case BoundPredicate():
            return _decide(bound, spec, schema, partition)
    raise not_bound(bound)


def _decide(predicate: BoundPredicate, spec: PartitionSpec, schema: Schema, partition: Sequence[Any]) -> Expression:
    values = {
        part.field_id: (part, value)
        for part, value in zip(spec.fields, partition, strict=True)
        if part.source_id == predicate.field.field_id and not isinstance(part.transform, Void | UnknownTransform)
    }
    for part, value in values.values():
        if _is_the_rows_value(part, predicate, value):
            return ALWAYS_TRUE if row_matches(predicate, {part.source_id: value}) else ALWAYS_FALSE
    by_id = {field_id: value for field_id, (_, value) in values.items()}
    if row_matches(project_strict(predicate, spec, schema), by_id):
        return ALWAYS_TRUE
    return predicate if row_matches(project_inclusive(predicate, spec, schema), by_id) else ALWAYS_FALSE


def _is_the_rows_value(part: PartitionField, predicate: BoundPredicate, value: Any) -> bool:
    return value is None or keeps_values(part.transform, predicate.field.type)
