"""What is left of a filter for the rows of one partition (spec, "Scan Planning", note 1)."""

from collections.abc import Sequence
from typing import Any

from icekeep.errors import IcekeepBug
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Or,
    conjunction,
    disjunction,
    not_bound,
)
from icekeep.spec.filters.projections import keeps_values, project_inclusive, project_strict
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import UnknownTransform, Void


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
