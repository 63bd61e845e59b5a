"""Filters over rows: the tree of predicates, binding it to a schema, and its text.

An unbound tree names columns and holds literals as a user gave them. `bind` turns it into a tree of AND, OR and
`BoundPredicate`, without NOT, whose values are those of the column's type. Logic is SQL's: a row matches where the
expression is true, and a comparison with null is not. NaN is not less than, greater than or equal to anything, and
-0.0 equals 0.0. Reading text is `parsing.py`; deciding is `projections.py` and `evaluators.py`.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from icekeep.errors import ExpressionError, IcekeepBug
from icekeep.spec.literals import bind_literal, exact_limits, side_of_range
from icekeep.spec.schema import Schema
from icekeep.spec.types import BINARY, DOUBLE, FLOAT, STRING, NestedField, PrimitiveType, StructType, Type
from icekeep.spec.values import value_to_text

MAX_DEPTH = 50
"""How deep AND, OR, NOT and parentheses may be nested in one another; a long chain of one of them is one level."""

RESERVED_WORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE"})
"""Words that name a column only in quotes."""


class Operation(Enum):
    """What a predicate asks of a value; the text is SQL's."""

    IS_NULL = "IS NULL"
    NOT_NULL = "IS NOT NULL"
    IS_NAN = "IS NAN"
    NOT_NAN = "IS NOT NAN"
    LT = "<"
    LT_EQ = "<="
    GT = ">"
    GT_EQ = ">="
    EQ = "="
    NOT_EQ = "!="
    IN = "IN"
    NOT_IN = "NOT IN"
    STARTS_WITH = "LIKE"
    NOT_STARTS_WITH = "NOT LIKE"


class Expression(msgspec.Struct, frozen=True):
    """Any filter, bound to a schema or not."""


class AlwaysTrue(Expression, frozen=True):
    """Matches every row; `ALWAYS_TRUE` is the one of it, also after pickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _constant, (True,)


class AlwaysFalse(Expression, frozen=True):
    """Matches no row; `ALWAYS_FALSE` is the one of it, also after pickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _constant, (False,)


class And(Expression, frozen=True):
    """Matches rows that both sides match."""

    left: Expression
    right: Expression


class Or(Expression, frozen=True):
    """Matches rows that at least one side matches."""

    left: Expression
    right: Expression


class Not(Expression, frozen=True):
    """Matches rows of which the child is false; where it is unknown, so is this."""

    child: Expression


class Predicate(Expression, frozen=True):
    """A question about a column by name, with literals as the user wrote them: int, float, Decimal, str or bool."""

    operation: Operation
    column: str
    literals: tuple[Any, ...] = ()


class BoundPredicate(Expression, frozen=True):
    """A question about a field, with values of the field's type; those of IN and NOT IN are sorted and distinct.

    `field.required` also says that no struct around the field can be null.
    """

    operation: Operation
    field: NestedField
    values: tuple[Any, ...] = ()


ALWAYS_TRUE = AlwaysTrue()
ALWAYS_FALSE = AlwaysFalse()

UNARY_OPERATIONS = frozenset({Operation.IS_NULL, Operation.NOT_NULL, Operation.IS_NAN, Operation.NOT_NAN})
SET_OPERATIONS = frozenset({Operation.IN, Operation.NOT_IN})


def bind(expression: Expression, schema: Schema) -> Expression:
    """Tie column names to fields and literals to their types, push NOT down to the predicates, and simplify.

    A literal outside the range of its column decides the comparison as SQL has it: an int column is less than
    3000000000, and unequal to it, wherever it is not null. The result holds no `Not` and no `Predicate`.

    Raises:
        NotFoundError: the schema has no such column.
        ExpressionError: a literal is not a value of its column's type, or the tree is nested deeper than `MAX_DEPTH`.
    """
    return _bind(expression, schema, negated=False, depth=0)


def conjunction(expressions: Iterable[Expression]) -> Expression:
    """AND of any number of expressions, simplified, as a shallow tree; true if there are none."""
    return _join(And, expressions, neutral=ALWAYS_TRUE, absorbing=ALWAYS_FALSE)


def disjunction(expressions: Iterable[Expression]) -> Expression:
    """OR of any number of expressions, simplified, as a shallow tree; false if there are none."""
    return _join(Or, expressions, neutral=ALWAYS_FALSE, absorbing=ALWAYS_TRUE)


def bound_set(operation: Operation, field: NestedField, values: Iterable[Any]) -> Expression:
    """IN or NOT IN over values of the field's type: sorted, distinct, one value as EQ or NOT_EQ, none as a constant."""
    distinct = sorted(set(values))
    if not distinct:
        return ALWAYS_FALSE if operation is Operation.IN else ALWAYS_TRUE
    if len(distinct) == 1:
        operation = Operation.EQ if operation is Operation.IN else Operation.NOT_EQ
    return BoundPredicate(operation, field, tuple(distinct))


def format_expression(expression: Expression) -> str:
    """The expression as text, which `parse_where` reads as far as it knows the language."""
    match expression:
        case AlwaysTrue():
            return "true"
        case AlwaysFalse():
            return "false"
        case Not(child=child):
            return f"NOT ({format_expression(child)})"
        case And() | Or():
            word = " AND " if isinstance(expression, And) else " OR "
            return word.join(_format_term(term) for term in _terms(type(expression), [expression]))
        case Predicate(operation=operation, column=column, literals=literals):
            return _format_predicate(operation, column, [_format_literal(literal) for literal in literals])
        case BoundPredicate(operation=operation, field=field, values=values):
            return _format_predicate(operation, field.name, [_format_value(field.type, value) for value in values])
    raise IcekeepBug(f"there is no text for the expression {expression!r}")


def _constant(truth: bool) -> Expression:
    return ALWAYS_TRUE if truth else ALWAYS_FALSE


def _bind(expression: Expression, schema: Schema, *, negated: bool, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"the filter is nested deeper than {MAX_DEPTH} levels; simplify it")
    match expression:
        case AlwaysTrue() | AlwaysFalse():
            return ALWAYS_TRUE if isinstance(expression, AlwaysTrue) is not negated else ALWAYS_FALSE
        case Not(child=child):
            return _bind(child, schema, negated=not negated, depth=depth + 1)
        case And() | Or():
            terms = [
                _bind(term, schema, negated=negated, depth=depth + 1) for term in _terms(type(expression), [expression])
            ]
            return conjunction(terms) if isinstance(expression, And) is not negated else disjunction(terms)
        case Predicate():
            return _bind_predicate(expression, schema, negated=negated)
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


def _bind_predicate(predicate: Predicate, schema: Schema, *, negated: bool) -> Expression:
    field = _bind_column(predicate.column, schema)
    operation = _COMPLEMENTS[predicate.operation] if negated else predicate.operation
    expected = 0 if operation in UNARY_OPERATIONS else 1
    if operation not in SET_OPERATIONS and len(predicate.literals) != expected:
        raise ExpressionError(
            f"column {predicate.column!r}: {operation.value} takes {expected} literals, not {len(predicate.literals)}",
            column=predicate.column,
        )
    bound = _BINDERS.get(operation, _bind_comparison)(operation, field, predicate.literals)
    if negated and operation in _INEQUALITIES and field.type in _FLOATING:
        # NaN is neither less nor not less: what is not true of it is its negation.
        return disjunction([bound, BoundPredicate(Operation.IS_NAN, field)])
    return bound


def _bind_column(column: str, schema: Schema) -> NestedField:
    field = schema.field(column)
    path = _path(schema.as_struct(), field.field_id)
    if path is None:
        raise ExpressionError(
            f"column {column!r} lies in a list or a map; a filter takes columns of the table and of structs",
            column=column,
        )
    if field.required and not all(parent.required for parent in path):
        return msgspec.structs.replace(field, required=False)
    return field


def _path(struct: StructType, field_id: int) -> tuple[NestedField, ...] | None:
    """The structs around a field and the field itself, outermost first; null where a list or map lies between."""
    for field in struct.fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.type, StructType) and (below := _path(field.type, field_id)) is not None:
            return (field, *below)
    return None


def _bind_null_test(operation: Operation, field: NestedField, _: tuple[Any, ...]) -> Expression:
    if field.required:
        return ALWAYS_FALSE if operation is Operation.IS_NULL else ALWAYS_TRUE
    return BoundPredicate(operation, field)


def _bind_nan_test(operation: Operation, field: NestedField, _: tuple[Any, ...]) -> Expression:
    if field.type not in _FLOATING:
        raise ExpressionError(
            f"column {field.name!r} is of type {field.type}; only float and double have NaN", column=field.name
        )
    return BoundPredicate(operation, field)


def _bind_set(operation: Operation, field: NestedField, literals: tuple[Any, ...]) -> Expression:
    values = [bind_literal(field, literal) for literal in literals if not side_of_range(field.type, literal)]
    if literals and not values:
        return ALWAYS_FALSE if operation is Operation.IN else _not_null(field)
    return bound_set(operation, field, values)


def _bind_prefix(operation: Operation, field: NestedField, literals: tuple[Any, ...]) -> Expression:
    if field.type not in (STRING, BINARY):
        raise ExpressionError(
            f"column {field.name!r} is of type {field.type}; only string and binary start with a prefix",
            column=field.name,
        )
    prefix = bind_literal(field, literals[0])
    if not prefix:
        return _not_null(field) if operation is Operation.STARTS_WITH else ALWAYS_FALSE
    return BoundPredicate(operation, field, (prefix,))


def _bind_comparison(operation: Operation, field: NestedField, literals: tuple[Any, ...]) -> Expression:
    side = side_of_range(field.type, literals[0])
    if side:
        return _decide_beyond(operation, field, side)
    value = bind_literal(field, literals[0])
    lowest, highest = exact_limits(field.type) or (None, None)
    if (operation, value) in ((Operation.LT, lowest), (Operation.GT, highest)):
        return ALWAYS_FALSE
    if (operation, value) in ((Operation.GT_EQ, lowest), (Operation.LT_EQ, highest)):
        return _not_null(field)
    return BoundPredicate(operation, field, (value,))


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


def _not_null(field: NestedField) -> Expression:
    return ALWAYS_TRUE if field.required else BoundPredicate(Operation.NOT_NULL, field)


def _terms(connective: type[And] | type[Or], expressions: Iterable[Expression]) -> list[Expression]:
    """The operands of chains of one connective, left to right; a loop, since a chain may be longer than the stack."""
    terms: list[Expression] = []
    pending = list(expressions)
    pending.reverse()
    while pending:
        term = pending.pop()
        if isinstance(term, And | Or) and isinstance(term, connective):
            pending += (term.right, term.left)
        else:
            terms.append(term)
    return terms


def _join(
    connective: type[And] | type[Or], expressions: Iterable[Expression], *, neutral: Expression, absorbing: Expression
) -> Expression:
    terms = [term for term in _terms(connective, expressions) if term != neutral]
    if not terms:
        return neutral
    return absorbing if absorbing in terms else _balance(connective, terms)


def _balance(connective: type[And] | type[Or], terms: Sequence[Expression]) -> Expression:
    if len(terms) == 1:
        return terms[0]
    middle = (len(terms) + 1) // 2
    return connective(_balance(connective, terms[:middle]), _balance(connective, terms[middle:]))


_SIMPLE_NAME = re.compile(r"[^\W\d]\w*")
_WILDCARD = re.compile(r"[\\%_]")


def _format_term(expression: Expression) -> str:
    text = format_expression(expression)
    return f"({text})" if isinstance(expression, And | Or) else text


def _format_predicate(operation: Operation, column: str, values: Sequence[str]) -> str:
    quoted = '"' + column.replace('"', '""') + '"'
    name = column if _SIMPLE_NAME.fullmatch(column) and column.upper() not in RESERVED_WORDS else quoted
    if operation in UNARY_OPERATIONS:
        return f"{name} {operation.value}"
    if operation in SET_OPERATIONS:
        return f"{name} {operation.value} ({', '.join(values)})"
    if operation in (Operation.STARTS_WITH, Operation.NOT_STARTS_WITH):
        pattern = _WILDCARD.sub(r"\\\g<0>", values[0])
        return f"{name} {operation.value} {pattern[:-1]}%'"
    return f"{name} {operation.value} {values[0]}"


def _format_literal(literal: Any) -> str:
    if isinstance(literal, bool):
        return "true" if literal else "false"
    return str(literal) if isinstance(literal, int | float | Decimal) else _quote(str(literal))


def _format_value(type_: Type, value: Any) -> str:
    text = value_to_text(type_, value)
    return text if isinstance(value, int | float | Decimal) and _is_number_or_truth(type_) else _quote(text)


def _is_number_or_truth(type_: Type) -> bool:
    return isinstance(type_, PrimitiveType) and type_.name in ("boolean", "int", "long", "float", "double", "decimal")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
