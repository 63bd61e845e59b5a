"""Filters over rows: the tree of predicates.

An unbound tree names columns and holds literals as a user gave them; `parsing.py` makes it of text and `binding.py` turns
it into a bound one: AND, OR and `BoundPredicate`, without NOT, whose values are those of the column's type. Logic is
SQL's: a row matches where the expression is true, and a comparison with null is not. NaN is not less than, greater than
or equal to anything, and -0.0 equals 0.0. Deciding is in `projections.py` and `evaluators.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug
from icekeep.spec.transforms import Bucket, Transform
from icekeep.spec.types import NestedField

MAX_DEPTH = 50
"""How deep AND, OR, NOT and parentheses may be nested in one another; a long chain of one of them is one level."""


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

    # Enum hashes the name, in Python, and each question about a file looks up its operation.
    __hash__ = object.__hash__


class Expression(msgspec.Struct, frozen=True):
    """Any filter, bound to a schema or not."""


class AlwaysTrue(Expression, frozen=True):
    """Matches every row; `ALWAYS_TRUE` is the one of it, also after pickling."""

    def __reduce__(self) -> str:
        return "ALWAYS_TRUE"


class AlwaysFalse(Expression, frozen=True):
    """Matches no row; `ALWAYS_FALSE` is the one of it, also after pickling."""

    def __reduce__(self) -> str:
        return "ALWAYS_FALSE"


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
    """A question about a column by its full name, parents and children joined by dots, or about its transform.

    Literals are as the user wrote them: int, float, Decimal, str, bool, bytes, or one of the kinds in `literals.py`.
    """

    operation: Operation
    column: str
    literals: tuple[Any, ...] = ()
    transform: Transform | None = None


class BoundPredicate(Expression, frozen=True):
    """A question about a field, with values of the field's type; those of IN and NOT IN are sorted and distinct.

    A field of the table's schema carries its full name, and `field.required` also says that no struct around the field
    can be null. With a `bucket` the question is about the number of the bucket that a value is in, and so are the values; other
    transforms are unfolded where the expression is bound.
    """

    operation: Operation
    field: NestedField
    values: tuple[Any, ...] = ()
    bucket: Bucket | None = None


ALWAYS_TRUE = AlwaysTrue()
ALWAYS_FALSE = AlwaysFalse()

UNARY_OPERATIONS = frozenset({Operation.IS_NULL, Operation.NOT_NULL, Operation.IS_NAN, Operation.NOT_NAN})
SET_OPERATIONS = frozenset({Operation.IN, Operation.NOT_IN})
TRUE_OF_NULL_TO_SOME = frozenset({Operation.NOT_EQ, Operation.NOT_IN, Operation.NOT_STARTS_WITH})
"""What some readers hold true of null."""

PREFIX_OPERATIONS = frozenset({Operation.STARTS_WITH, Operation.NOT_STARTS_WITH})
INEQUALITIES = frozenset({Operation.LT, Operation.LT_EQ, Operation.GT, Operation.GT_EQ})
COMPLEMENTS = {
    Operation.IS_NULL: Operation.NOT_NULL,
    Operation.IS_NAN: Operation.NOT_NAN,
    Operation.LT: Operation.GT_EQ,
    Operation.GT: Operation.LT_EQ,
    Operation.EQ: Operation.NOT_EQ,
    Operation.IN: Operation.NOT_IN,
    Operation.STARTS_WITH: Operation.NOT_STARTS_WITH,
}
COMPLEMENTS |= {complement: operation for operation, complement in COMPLEMENTS.items()}
"""What is true where the other is false, of values that are neither null nor NaN."""


def not_bound(expression: Expression) -> IcekeepBug:
    """The error for an expression that was not bound to a schema before it was evaluated."""
    return IcekeepBug(f"cannot evaluate {type(expression).__name__}: bind the expression first")


def conjunction(expressions: Iterable[Expression]) -> Expression:
    """AND of any number of expressions, simplified, as a shallow tree; true if there are none."""
    return _join(And, expressions, neutral=ALWAYS_TRUE, absorbing=ALWAYS_FALSE)


def disjunction(expressions: Iterable[Expression]) -> Expression:
    """OR of any number of expressions, simplified, as a shallow tree; false if there are none."""
    return _join(Or, expressions, neutral=ALWAYS_FALSE, absorbing=ALWAYS_TRUE)


def bound_set(
    operation: Operation, field: NestedField, values: Iterable[Any], bucket: Bucket | None = None
) -> Expression:
    """IN or NOT IN over values of the field's type: sorted, distinct, one value as EQ or NOT_EQ, none as a constant."""
    distinct = sorted(set(values))
    if not distinct:
        return ALWAYS_FALSE if operation is Operation.IN else ALWAYS_TRUE
    if len(distinct) == 1:
        operation = Operation.EQ if operation is Operation.IN else Operation.NOT_EQ
    return BoundPredicate(operation, field, tuple(distinct), bucket)


def chain(connective: type[And] | type[Or], expressions: Iterable[Expression]) -> list[Expression]:
    """The operands of chains of one connective, left to right; a loop, since a chain may be longer than the stack."""
    terms: list[Expression] = []
    pending = [*expressions][::-1]
    while pending:
        term = pending.pop()
        if isinstance(term, connective):
            pending += (term.right, term.left)
        else:
            terms.append(term)
    return terms


def predicates(bound: Expression) -> Iterator[BoundPredicate]:
    """All that a bound expression asks of columns."""
    for term in chain(Or if isinstance(bound, Or) else And, [bound]):
        if isinstance(term, BoundPredicate):
            yield term
        elif isinstance(term, And | Or):
            yield from predicates(term)


def _join(
    connective: type[And] | type[Or], expressions: Iterable[Expression], *, neutral: Expression, absorbing: Expression
) -> Expression:
    terms = [term for term in chain(connective, expressions) if term != neutral]
    if not terms:
        return neutral
    return absorbing if absorbing in terms else _balance(connective, terms)


def _balance(connective: type[And] | type[Or], terms: Sequence[Expression]) -> Expression:
    if len(terms) == 1:
        return terms[0]
    middle = (len(terms) + 1) // 2
    return connective(_balance(connective, terms[:middle]), _balance(connective, terms[middle:]))
