"""From a filter as it was written to one over the fields of a schema."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from icekeep.errors import ExpressionError, IcekeepBug
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    MAX_DEPTH,
    SET_OPERATIONS,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Not,
    Operation,
    Or,
    Predicate,
    bound_set,
    chain,
    conjunction,
    disjunction,
)
from icekeep.spec.filters.formatting import format_operand
from icekeep.spec.filters.literals import count_literal, exact_limits, is_comparable, locate_literal
from icekeep.spec.filters.references import References
from icekeep.spec.filters.unfolding import require_answer, unfold
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Bucket, Transform
from icekeep.spec.types import BINARY, DOUBLE, FLOAT, INT, STRING, NestedField, PrimitiveType


def bind(expression: Expression, schema: Schema, specs: Sequence[PartitionSpec] = ()) -> Expression:
    """Tie column names to fields and literals to their types, push NOT down to the predicates, and simplify.

    A literal that is no value of its column decides the comparison as SQL has it: an int column is less than 3000000000,
    unequal to it and to 2.5, wherever it is not null. The result holds no `Not` and no `Predicate`.

    Args:
        specs: all partition specs of the table: one who names a partition field is told which column to name instead.

    Raises:
        NotFoundError: the schema has no such column.
        ExpressionError: a literal cannot be compared with its column, the column has no such question, or the tree is
            nested deeper than `MAX_DEPTH`.
    """
    return _bind(expression, References(schema, specs), negated=False, depth=0)


def _bind(expression: Expression, references: References, *, negated: bool, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"the filter is nested deeper than {MAX_DEPTH} levels; simplify it")
    match expression:
        case AlwaysTrue() | AlwaysFalse():
            return ALWAYS_TRUE if isinstance(expression, AlwaysTrue) is not negated else ALWAYS_FALSE
        case Not(child=child):
            return _bind(child, references, negated=not negated, depth=depth + 1)
        case And() | Or():
            terms = [
                _bind(term, references, negated=negated, depth=depth + 1)
                for term in chain(type(expression), [expression])
            ]
            return conjunction(terms) if isinstance(expression, And) is not negated else disjunction(terms)
        case Predicate():
            return _bind_predicate(expression, references, negated=negated)
    raise IcekeepBug(f"cannot bind {type(expression).__name__}: it is bound already or not an expression")


_COMPLEMENTS = {
    Operation.IS_NULL: Operation.NOT_NULL,
    Operation.IS_NAN: Operation.NOT_NAN,
    Operation.LT: Operation.GT_EQ,
    Operation.GT: Operation.LT_EQ,
    Operation.EQ: Operation.NOT_EQ,
    Operation.IN: Operation.NOT_IN,
    Operation.STARTS_WITH: Operation.NOT_STARTS_WITH,
}
_COMPLEMENTS |= {complement: operation for operation, complement in _COMPLEMENTS.items()}
_INEQUALITIES = frozenset({Operation.LT, Operation.LT_EQ, Operation.GT, Operation.GT_EQ})
_FLOATING = (FLOAT, DOUBLE)


def _bind_predicate(predicate: Predicate, references: References, *, negated: bool) -> Expression:
    field = references.field(predicate)
    operation = _COMPLEMENTS[predicate.operation] if negated else predicate.operation
    expected = 0 if operation in UNARY_OPERATIONS else 1
    if operation not in SET_OPERATIONS and len(predicate.literals) != expected:
        raise ExpressionError(
            f"column {predicate.column!r}: {operation.value} takes {expected} literals, not {len(predicate.literals)}",
            column=predicate.column,
        )
    if predicate.transform is not None:
        return _bind_transformed(operation, predicate, predicate.transform, field, references)
    bound = _BINDERS.get(operation, _bind_comparison)(operation, field, predicate.literals)
    if negated and operation in _INEQUALITIES and field.type in _FLOATING:
        # NaN is neither less nor not less: what is not true of it is its negation.
        return disjunction([bound, BoundPredicate(Operation.IS_NAN, field)])
    return bound


def _bind_transformed(
    operation: Operation, predicate: Predicate, transform: Transform, field: NestedField, references: References
) -> Expression:
    """A question about a transform of a column: its NaN is refused, so that what is not true of a value is its negation."""
    is_null_test = operation in (Operation.IS_NULL, Operation.NOT_NULL)
    if is_null_test or not isinstance(transform, Bucket):
        return _bind(unfold(operation, predicate, transform, field), references, negated=False, depth=0)
    require_answer(operation, predicate, field)
    named = NestedField(field_id=field.field_id, name=format_operand(predicate), type=INT)
    counted = [count_literal(named, literal) for literal in predicate.literals]
    if operation in SET_OPERATIONS:
        numbers = [number for number, is_between in counted if not is_between]
        if counted and not numbers:
            return ALWAYS_FALSE if operation is Operation.IN else _not_null(field)
        return bound_set(operation, field, numbers, transform)
    number, is_between = counted[0]
    if is_between and operation in (Operation.EQ, Operation.NOT_EQ):
        return ALWAYS_FALSE if operation is Operation.EQ else _not_null(field)
    if is_between:
        operation = Operation.LT_EQ if operation in (Operation.LT, Operation.LT_EQ) else Operation.GT
    return BoundPredicate(operation, field, (number,), transform)


def _bind_null_test(operation: Operation, field: NestedField, _: tuple[Any, ...]) -> Expression:
    if field.required:
        return ALWAYS_FALSE if operation is Operation.IS_NULL else ALWAYS_TRUE
    return BoundPredicate(operation, field)


def _bind_nan_test(operation: Operation, field: NestedField, _: tuple[Any, ...]) -> Expression:
    if field.type not in _FLOATING:
        raise _refused(field, "only float and double have NaN")
    return BoundPredicate(operation, field)


def _bind_set(operation: Operation, field: NestedField, literals: tuple[Any, ...]) -> Expression:
    _require_comparable(field)
    located = [locate_literal(field, literal) for literal in literals]
    values = [place.value for place in located if not place.side and not place.is_above]
    if literals and not values:
        return ALWAYS_FALSE if operation is Operation.IN else _not_null(field)
    return bound_set(operation, field, values)


def _bind_prefix(operation: Operation, field: NestedField, literals: tuple[Any, ...]) -> Expression:
    if field.type not in (STRING, BINARY):
        raise _refused(field, "only string and binary start with a prefix")
    prefix = locate_literal(field, literals[0]).value
    if not prefix:
        return _not_null(field) if operation is Operation.STARTS_WITH else ALWAYS_FALSE
    return BoundPredicate(operation, field, (prefix,))


def _bind_comparison(operation: Operation, field: NestedField, literals: tuple[Any, ...]) -> Expression:
    _require_comparable(field)
    place = locate_literal(field, literals[0])
    if place.side:
        return _decide_beyond(operation, field, place.side)
    if place.is_above:
        return _decide_between(operation, field, place.value)
    lowest, highest = exact_limits(field.type) or (None, None)
    if (operation, place.value) in ((Operation.LT, lowest), (Operation.GT, highest)):
        return ALWAYS_FALSE
    if (operation, place.value) in ((Operation.GT_EQ, lowest), (Operation.LT_EQ, highest)):
        return _not_null(field)
    return BoundPredicate(operation, field, (place.value,))


_Binder = Callable[[Operation, NestedField, tuple[Any, ...]], Expression]
_BINDERS: dict[Operation, _Binder] = {
    Operation.IS_NULL: _bind_null_test,
    Operation.NOT_NULL: _bind_null_test,
    Operation.IS_NAN: _bind_nan_test,
    Operation.NOT_NAN: _bind_nan_test,
    Operation.IN: _bind_set,
    Operation.NOT_IN: _bind_set,
    Operation.STARTS_WITH: _bind_prefix,
    Operation.NOT_STARTS_WITH: _bind_prefix,
}


def _decide_beyond(operation: Operation, field: NestedField, side: int) -> Expression:
    """What a comparison comes to whose literal lies below (-1) or above (1) every finite value of the column."""
    if operation is Operation.EQ:
        return ALWAYS_FALSE
    holds = operation in _HOLDS_BEYOND[side]
    if field.type in _FLOATING and operation is not Operation.NOT_EQ:
        # Infinity lies beyond the literal, and NaN on neither side of it.
        narrowed = (Operation.LT if side > 0 else Operation.GT) if holds else Operation.EQ
        return BoundPredicate(narrowed, field, (side * math.inf,))
    return _not_null(field) if holds else ALWAYS_FALSE


_HOLDS_BEYOND = {
    1: frozenset({Operation.LT, Operation.LT_EQ, Operation.NOT_EQ}),
    -1: frozenset({Operation.GT, Operation.GT_EQ, Operation.NOT_EQ}),
}


def _decide_between(operation: Operation, field: NestedField, below: Any) -> Expression:
    """What a comparison comes to whose literal lies between a value of the column and the next one."""
    if operation is Operation.EQ:
        return ALWAYS_FALSE
    if operation is Operation.NOT_EQ:
        return _not_null(field)
    is_less = operation in (Operation.LT, Operation.LT_EQ)
    return BoundPredicate(Operation.LT_EQ if is_less else Operation.GT, field, (below,))


def _not_null(field: NestedField) -> Expression:
    return ALWAYS_TRUE if field.required else BoundPredicate(Operation.NOT_NULL, field)


def _require_comparable(field: NestedField) -> None:
    if not is_comparable(field.type):
        raise _refused(field, "which has no comparison; a filter may ask only whether it IS NULL or IS NOT NULL")


def _refused(field: NestedField, reason: str) -> ExpressionError:
    kind = str(field.type) if isinstance(field.type, PrimitiveType) else type(field.type).__name__.removesuffix("Type")
    joint = ", " if reason.startswith("which") else "; "
    return ExpressionError(f"column {field.name!r} is of type {kind.lower()}{joint}{reason}", column=field.name)
