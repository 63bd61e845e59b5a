"""The columns that a filter names, and what to say about a name that is none.

Names are full ones, parents and children joined by dots, and are compared as they are written, case included.

A question about a transformed column as the same question about the column: `days(ts) = '2026-01-31'` is a range of `ts`.

Transforms but `bucket` keep the order of values: what they make equal lies together. So each comparison of such a one comes to
comparisons of the column, which all else knows to decide: on partitions of any spec, on statistics, and on rows. What a bucket
holds lies all over the column: such a question stays one about the number of the bucket.

From a filter as it was written to one over the fields of a schema.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec

from icekeep.errors import ExpressionError, IcekeepBug, IcekeepError, NotFoundError
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    MAX_DEPTH,
    PREFIX_OPERATIONS,
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
from icekeep.spec.filters.literals import (
    DateLiteral,
    TimestampLiteral,
    count_literal,
    exact_limits,
    is_comparable,
    locate_literal,
)
from icekeep.spec.filters.parsing import format_expression, format_operand
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema, meant_column
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
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    DecimalType,
    NestedField,
    PrimitiveType,
    StructType,
)
from icekeep.spec.values import NANOS_PER_SECOND, days_from_civil


class References:
    """The columns of a schema that a filter may name."""

    def __init__(self, schema: Schema, specs: Sequence[PartitionSpec]) -> None:
        self._schema = schema
        self._specs = specs
        self._fields = {field.name: field for field in _filterable(schema.as_struct(), "", optional=False)}

    def field(self, predicate: Predicate) -> NestedField:
        """The field that a predicate names, under its full name; required only if all structs around it are.

        Raises:
            NotFoundError: there is no such column.
            ExpressionError: the column lies in a list or a map.
        """
        field = self._fields.get(predicate.column)
        if field is None:
            raise self._unknown(predicate)
        return field

    def _unknown(self, predicate: Predicate) -> IcekeepError:
        name = predicate.column
        if name in self._schema.ids_by_name:
            return ExpressionError(
                f"column {name!r} lies in a list or a map; a filter takes columns of the table and of structs",
                column=name,
            )
        part = next((field for spec in reversed(self._specs) for field in spec.fields if field.name == name), None)
        if part is not None:
            return NotFoundError(f"there is no column {name!r}: {self._about(part, predicate)}", column=name)
        return NotFoundError(
            f"there is no column {name!r}; {meant_column(name, self._fields, [*self._fields])}", column=name
        )

    def _about(self, part: PartitionField, predicate: Predicate) -> str:
        """What partition field it is, and how to write the same filter with its column."""
        column = self._schema.names_by_id.get(part.source_id)
        if column is None:
            return "it is a partition field whose column was dropped"
        about = f"it is a partition field, {part.transform} of column {column!r}; "
        if isinstance(part.transform, Void | UnknownTransform) or column not in self._fields:
            return f"{about}filter on that column"
        transform = None if isinstance(part.transform, Identity) else part.transform
        return (
            f"{about}write {format_expression(msgspec.structs.replace(predicate, column=column, transform=transform))}"
        )


def _filterable(struct: StructType, prefix: str, *, optional: bool) -> Iterator[NestedField]:
    for field in struct.fields:
        is_optional = optional or not field.required
        yield msgspec.structs.replace(field, name=prefix + field.name, required=not is_optional)
        if isinstance(field.type, StructType):
            yield from _filterable(field.type, f"{prefix}{field.name}.", optional=is_optional)


_HOUR_SECONDS = 3600
_DAY_HOURS = 24
_CALENDAR_YEARS = range(1000, 10_000)
_UNIT = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[-T ]([0-9]{2}))?)?)?")
_UNITS: dict[type[Transform], tuple[int, str]] = {
    Year: (1, "'2026'"),
    Month: (2, "'2026-01'"),
    Day: (3, "'2026-01-31'"),
    Hour: (4, "'2026-01-31-23'"),
}
"""How many numbers the text of a unit has, and such a text."""


def unfold(operation: Operation, predicate: Predicate, transform: Transform, source: NestedField) -> Expression:
    """A question about a transformed column as one about the column, which matches the same rows.

    Args:
        operation: what is asked, with the literals of `predicate`.
        transform: any but `bucket`, `void` and one that is not known.
        source: the column.

    Raises:
        ExpressionError: the transform does not take the column's type, or a literal is none of its values.
    """
    column, literals = predicate.column, predicate.literals
    if operation in (Operation.IS_NULL, Operation.NOT_NULL):
        return Predicate(operation, column)
    require_answer(operation, predicate, source)
    if operation is Operation.IN:
        return disjunction(unfold(Operation.EQ, _of(predicate, one), transform, source) for one in literals)
    if operation is Operation.NOT_IN:
        return conjunction(unfold(Operation.NOT_EQ, _of(predicate, one), transform, source) for one in literals)
    if isinstance(transform, Truncate) and source.type in (STRING, BINARY):
        text = locate_literal(_named(predicate, source), literals[0]).value
        return _unfold_prefix(operation, column, text, transform.width)
    number, is_between = _number(predicate, transform, source)
    return _unfold_step(operation, column, number, is_between, _first_of(transform, source))


def require_answer(operation: Operation, predicate: Predicate, source: NestedField) -> None:
    """Refuse what cannot be asked of the transform of a column; raises `ExpressionError`."""
    transform, shown = predicate.transform, format_operand(predicate)
    if transform is None or not transform.accepts(source.type):
        raise ExpressionError(
            f"{shown} is no filter on column {source.name!r} of type {source.type}, which this transform does not take",
            column=source.name,
        )
    if operation in UNARY_OPERATIONS:
        raise ExpressionError(f"{shown} is never NaN; only float and double have NaN", column=source.name)
    if operation in PREFIX_OPERATIONS and not (isinstance(transform, Truncate) and source.type in (STRING, BINARY)):
        raise ExpressionError(f"{shown} has no prefix; only string and binary start with one", column=source.name)


def _of(predicate: Predicate, literal: Any) -> Predicate:
    return Predicate(predicate.operation, predicate.column, (literal,), predicate.transform)


def _named(predicate: Predicate, source: NestedField) -> NestedField:
    """What an error names where a literal does not fit."""
    assert predicate.transform is not None
    type_ = predicate.transform.result_type(source.type)
    return NestedField(field_id=source.field_id, name=format_operand(predicate), type=type_)


def _unfold_step(
    operation: Operation, column: str, number: int, is_between: bool, first: Callable[[int], Any]
) -> Expression:
    """A comparison with a step of the transform; `is_between` with what lies between that one and the next."""

    def below(step: int) -> Expression:
        return Predicate(Operation.LT, column, (first(step),))

    def from_(step: int) -> Expression:
        return Predicate(Operation.GT_EQ, column, (first(step),))

    match operation:
        case Operation.EQ:
            return ALWAYS_FALSE if is_between else And(from_(number), below(number + 1))
        case Operation.NOT_EQ:
            never = Predicate(Operation.NOT_NULL, column)
            return never if is_between else Or(below(number), from_(number + 1))
        case Operation.LT:
            return below(number + is_between)
        case Operation.LT_EQ:
            return below(number + 1)
        case Operation.GT:
            return from_(number + 1)
    return from_(number + is_between)


def _unfold_prefix(operation: Operation, column: str, text: Any, width: int) -> Expression:
    """A comparison with a truncated text: a shorter one is the whole value, and none is longer than the width."""
    if len(text) < width or (operation in PREFIX_OPERATIONS and len(text) == width):
        return Predicate(operation, column, (text,))
    cut = text[:width]
    starts, starts_not = (Predicate(one, column, (cut,)) for one in (Operation.STARTS_WITH, Operation.NOT_STARTS_WITH))
    less, at_least = (Predicate(one, column, (cut,)) for one in (Operation.LT, Operation.GT_EQ))
    is_longer = len(text) > width
    match operation:
        case Operation.EQ | Operation.STARTS_WITH:
            return ALWAYS_FALSE if is_longer else starts
        case Operation.NOT_EQ | Operation.NOT_STARTS_WITH:
            return Predicate(Operation.NOT_NULL, column) if is_longer else starts_not
        case Operation.LT if not is_longer:
            return less
        case Operation.GT_EQ if not is_longer:
            return at_least
        case Operation.LT | Operation.LT_EQ:
            return Or(less, starts)
    return And(at_least, starts_not)


def _number(predicate: Predicate, transform: Transform, source: NestedField) -> tuple[int, bool]:
    """Which step of the transform a literal is, and whether it lies between that one and the next."""
    named, literal = _named(predicate, source), predicate.literals[0]
    if isinstance(transform, Truncate):
        count, is_between = count_literal(named, literal)
        return count // transform.width, is_between or count % transform.width != 0
    if isinstance(transform, Day):
        return count_literal(named, literal)
    if isinstance(literal, str):
        return _unit(named.name, transform, literal), False
    number, is_between = count_literal(named, literal)
    if isinstance(transform, Year) and number in _CALENDAR_YEARS:
        raise ExpressionError(
            f"{named.name} counts the years from 1970, so that {literal} is the year {1970 + number}; write '{number}' in quotes "
            f"for that year, or {number - 1970}",
            column=source.name,
        )
    return number, is_between


def _unit(shown: str, transform: Transform, text: str) -> int:
    """Which year, month or hour a text is, counted from 1970."""
    needed, example = _UNITS[type(transform)]
    try:
        match = _UNIT.fullmatch(text)
        given = [] if match is None else [int(part) for part in match.groups() if part is not None]
        if len(given) != needed:
            raise ValueError
        year, month, day, hour = (*given, 1, 1, 0)[:4] if needed < 4 else given
        date(year, month, day)
        if hour >= _DAY_HOURS:
            raise ValueError
    except ValueError:
        raise ExpressionError(
            f"{shown} is compared with a whole number, or with text such as {example}, not with {text!r}"
        ) from None
    if needed <= 2:
        return year - 1970 if needed == 1 else (year - 1970) * 12 + month - 1
    return days_from_civil(year, month, day) * _DAY_HOURS + hour


def _first_of(transform: Transform, source: NestedField) -> Callable[[int], Any]:
    """From a step of the transform to the first value of the column in it, as a literal that may lie beyond the type's ends."""
    if isinstance(transform, Truncate):
        width, type_ = transform.width, source.type
        if isinstance(type_, DecimalType):
            return lambda step: Decimal(f"{step * width}E-{type_.scale}")
        return lambda step: step * width
    if source.type == DATE:
        return lambda step: DateLiteral(_first_hour(transform, step) // _DAY_HOURS)
    return lambda step: TimestampLiteral(_first_hour(transform, step) * _HOUR_SECONDS * NANOS_PER_SECOND)


def _first_hour(transform: Transform, unit: int) -> int:
    match transform:
        case Year():
            return days_from_civil(1970 + unit, 1, 1) * _DAY_HOURS
        case Month():
            years, months = divmod(unit, 12)
            return days_from_civil(1970 + years, months + 1, 1) * _DAY_HOURS
        case Day():
            return unit * _DAY_HOURS
    return unit


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
