"""Filters over rows: the tree of predicates.

An unbound tree names columns and holds literals as the user wrote them; `parsing.py` reads it from text and `binding.py`
turns it into a bound one: AND, OR and `BoundPredicate`, without NOT, with values of the columns' types. Logic is SQL's: a
row matches where the expression is true, and a comparison with null is not. NaN is not less than, greater than or equal
to anything, and -0.0 equals 0.0. `evaluators.py` decides bound expressions.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug
from icekeep.spec.transforms import Bucket, Transform
from icekeep.spec.types import SECOND_MS, NestedField
from icekeep.spec.values import NANOS_PER_SECOND, format_date, format_timestamp

MAX_DEPTH = 50
"""How deep AND, OR, NOT and parentheses may be nested; a long chain of one of them is one level."""


class Operation(Enum):
    """The comparison of a predicate; the text is SQL's."""

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

    # Enum hashes the name, in Python, and every predicate evaluated for a file looks up its operation.
    __hash__ = object.__hash__


class Expression(msgspec.Struct, frozen=True):
    """Any filter, bound to a schema or not."""


class _Constant(Expression, frozen=True):
    def __reduce__(self) -> str:
        return "ALWAYS_TRUE" if isinstance(self, AlwaysTrue) else "ALWAYS_FALSE"


class AlwaysTrue(_Constant, frozen=True):
    """Matches every row; `ALWAYS_TRUE` is its only instance, also after pickling."""


class AlwaysFalse(_Constant, frozen=True):
    """Matches no row; `ALWAYS_FALSE` is its only instance, also after pickling."""


class And(Expression, frozen=True):
    left: Expression
    right: Expression


class Or(Expression, frozen=True):
    left: Expression
    right: Expression


class Not(Expression, frozen=True):
    """Matches rows for which the child is false; where the child is unknown (SQL's null), so is this."""

    child: Expression


class _TimeLiteral(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        zone = ""
        match self:
            case DateLiteral(days):
                return f"DATE '{format_date(days)}'"
            case TimestampLiteral(nanos, is_zoned):
                text, zone = format_timestamp(nanos, NANOS_PER_SECOND), "Z" if is_zoned else ""
            case NowLiteral(epoch_ms):
                text = format_timestamp(epoch_ms, SECOND_MS)
        return f"TIMESTAMP '{text.rstrip('0') if '.' in text else text}{zone}'"


class DateLiteral(_TimeLiteral, frozen=True):
    """A calendar date, in days since the epoch; compared with a timestamp it is midnight, in UTC."""

    days: int


class TimestampLiteral(_TimeLiteral, frozen=True):
    """A date and time, in nanoseconds since the epoch in UTC; `zoned` where an offset was written."""

    nanos: int
    zoned: bool = False


class NowLiteral(_TimeLiteral, frozen=True):
    """`now` or an age from it, in epoch milliseconds; compared with a date it is its day, in UTC."""

    epoch_ms: int


class Predicate(Expression, frozen=True):
    """A comparison of a column, named in full with dots between parents and children, or of its transform.

    Literals are int, float, Decimal, str, bool, bytes, or a time literal.
    """

    operation: Operation
    column: str
    literals: tuple[Any, ...] = ()
    transform: Transform | None = None


class BoundPredicate(Expression, frozen=True):
    """A comparison of a field with values of its type; those of IN and NOT IN are sorted and distinct.

    A field of the table's schema carries its full name, and `field.required` also says that no struct around the field
    can be null. With a `bucket` the bucket number is compared, and the values are bucket numbers; other transforms are
    unfolded where the expression is bound.
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
"""Operations that some readers take to be true of null."""

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
"""Each operation's complement: true where it is false, for values that are neither null nor NaN."""


def not_bound(expression: Expression) -> IcekeepBug:
    return IcekeepBug(f"cannot evaluate {type(expression).__name__}: bind the expression first")


def conjunction(expressions: Iterable[Expression]) -> Expression:
    """AND of the expressions, simplified, as a balanced tree; true if there are none."""
    return _join(And, expressions, neutral=ALWAYS_TRUE, absorbing=ALWAYS_FALSE)


def disjunction(expressions: Iterable[Expression]) -> Expression:
    """OR of the expressions, simplified, as a balanced tree; false if there are none."""
    return _join(Or, expressions, neutral=ALWAYS_FALSE, absorbing=ALWAYS_TRUE)


def bound_set(
    operation: Operation, field: NestedField, values: Iterable[Any], bucket: Bucket | None = None
) -> Expression:
    """IN or NOT IN over values of the field's type; one value becomes EQ or NOT_EQ, none a constant."""
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
    """All predicates of a bound expression."""
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
    if absorbing in terms:
        return absorbing
    while len(terms) > 1:
        pairs = [connective(left, right) for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[2 * len(pairs) :]]
    return terms[0]
