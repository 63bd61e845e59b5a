"""Bind a filter as the user wrote it to the fields of a schema, and its literals to the values of their columns' types.

Columns are named in full, with dots between parents and children, and names are case-sensitive. A literal need not be a value of
its column: 3000000000 lies beyond all ints, 2.5 between two of them, and a timestamp with nanoseconds between two microseconds.
SQL decides such a comparison all the same, and only what cannot be compared with the column at all is refused.

A comparison of a transformed column becomes one of the column: `days(ts) = '2026-01-31'` is a range of `ts`. All transforms
but `bucket` preserve order, so the values of one partition are a range, which partitions of any spec, statistics and rows
can decide. The values of a bucket are scattered over the column: such a comparison remains one of the bucket number.
"""

import math
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

from icekeep.errors import ExpressionError, IcekeepBug, IcekeepError, NotFoundError
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    COMPLEMENTS,
    INEQUALITIES,
    MAX_DEPTH,
    PREFIX_OPERATIONS,
    SET_OPERATIONS,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    DateLiteral,
    Expression,
    Not,
    NowLiteral,
    Operation,
    Or,
    Predicate,
    TimestampLiteral,
    bound_set,
    chain,
    conjunction,
    disjunction,
)
from icekeep.spec.filters.parsing import format_expression, format_operand
from icekeep.spec.partitioning import PartitionSpec
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
    DAY_SECONDS,
    FLOATING_TYPES,
    INT,
    LONG,
    SECOND_MS,
    STRING,
    DecimalType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
)
from icekeep.spec.values import (
    INTEGER_WIDTHS,
    MICROS_PER_SECOND,
    NANOS_PER_SECOND,
    TICKS_PER_SECOND,
    days_from_civil,
    decimal_from_unscaled,
    parse_date,
    parse_time,
    parse_timestamp,
    read_bytes,
    read_uuid,
    require_length,
    to_single,
)


class LiteralPosition(msgspec.Struct, frozen=True):
    """Where a literal lies: on `value`, or, if `is_above`, between it and the next value of the type.

    `side` is 1 above every value of the type and -1 below them all (for floating types: all finite ones), else 0.
    """

    value: Any = None
    is_above: bool = False
    side: int = 0


def bind(expression: Expression, schema: Schema, specs: Sequence[PartitionSpec] = ()) -> Expression:
    """Resolve column names to fields and literals to values, push NOT down to the predicates, and simplify.

    `specs` are for a hint where a partition field is named in place of its column. `NotFoundError` for a missing column, else
    `ExpressionError`. The result holds no `Not` and no `Predicate`.
    """
    return _Binder(schema, specs).bind(expression, negated=False, depth=0)


class _Binder:
    def __init__(self, schema: Schema, specs: Sequence[PartitionSpec]) -> None:
        self._schema, self._specs = schema, specs
        self._fields = {field.name: field for field in _filterable(schema.as_struct(), "", optional=False)}

    def bind(self, expression: Expression, *, negated: bool, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"the filter is nested deeper than {MAX_DEPTH} levels; simplify it")
        match expression:
            case AlwaysTrue() | AlwaysFalse():
                return ALWAYS_TRUE if isinstance(expression, AlwaysTrue) is not negated else ALWAYS_FALSE
            case Not(child=child):
                return self.bind(child, negated=not negated, depth=depth + 1)
            case And() | Or():
                operands = chain(type(expression), [expression])
                terms = [self.bind(term, negated=negated, depth=depth + 1) for term in operands]
                return conjunction(terms) if isinstance(expression, And) is not negated else disjunction(terms)
            case Predicate():
                return self._bind_predicate(expression, negated=negated)
        raise IcekeepBug(f"cannot bind {type(expression).__name__}: it is bound already or not an expression")

    def _bind_predicate(self, predicate: Predicate, *, negated: bool) -> Expression:
        field = self._fields.get(predicate.column)
        if field is None:
            raise self._unknown(predicate)
        operation = COMPLEMENTS[predicate.operation] if negated else predicate.operation
        expected = 0 if operation in UNARY_OPERATIONS else 1
        if operation not in SET_OPERATIONS and len(predicate.literals) != expected:
            raise ExpressionError(
                f"column {predicate.column!r}: {operation.value} takes {expected} literals, not {len(predicate.literals)}",
                column=predicate.column,
            )
        transform = predicate.transform
        if transform is None or operation in (Operation.IS_NULL, Operation.NOT_NULL):
            bound = _bind_column(operation, field, predicate.literals)
            if negated and operation in INEQUALITIES and field.type in FLOATING_TYPES:
                # No comparison is true of NaN, so every negated one is.
                return disjunction([bound, BoundPredicate(Operation.IS_NAN, field)])
            return bound
        # No transform takes floating-point columns, so NaN cannot occur and the complement is the negation.
        _require_transform_supports(operation, predicate, field)
        if not isinstance(transform, Bucket):
            return self.bind(unfold(operation, predicate, transform, field), negated=False, depth=0)
        named = _named(predicate, field)
        places = [LiteralPosition(*count_literal(named, literal)) for literal in predicate.literals]
        return _compare(operation, field, places, transform)

    def _unknown(self, predicate: Predicate) -> IcekeepError:
        name = predicate.column
        if name in self._schema.ids_by_name:
            return ExpressionError(
                f"column {name!r} lies in a list or a map; a filter takes columns of the table and of structs",
                column=name,
            )
        part = next((field for spec in reversed(self._specs) for field in spec.fields if field.name == name), None)
        if part is None:
            hint = f"there is no column {name!r}; {meant_column(name, self._fields, [*self._fields])}"
            return NotFoundError(hint, column=name)
        column = self._schema.names_by_id.get(part.source_id)
        about = f"it is a partition field, {part.transform} of column {column!r}; "
        if column is None:
            about = "it is a partition field whose column was dropped"
        elif isinstance(part.transform, Void | UnknownTransform) or column not in self._fields:
            about += "filter on that column"
        else:
            transform = None if isinstance(part.transform, Identity) else part.transform
            same = msgspec.structs.replace(predicate, column=column, transform=transform)
            about += f"write {format_expression(same)}"
        return NotFoundError(f"there is no column {name!r}: {about}", column=name)


def _filterable(struct: StructType, prefix: str, *, optional: bool) -> Iterator[NestedField]:
    for field in struct.fields:
        is_optional = optional or not field.required
        yield msgspec.structs.replace(field, name=prefix + field.name, required=not is_optional)
        if isinstance(field.type, StructType):
            yield from _filterable(field.type, f"{prefix}{field.name}.", optional=is_optional)


def _bind_column(operation: Operation, field: NestedField, literals: Sequence[Any]) -> Expression:
    if operation in UNARY_OPERATIONS:
        is_null_test = operation in (Operation.IS_NULL, Operation.NOT_NULL)
        if is_null_test and field.required:
            return _of_all_values(field, operation is Operation.NOT_NULL)
        if not is_null_test and field.type not in FLOATING_TYPES:
            raise _refused(field, "; only float and double have NaN")
        return BoundPredicate(operation, field)
    if operation in PREFIX_OPERATIONS:
        if field.type not in (STRING, BINARY):
            raise _refused(field, "; only string and binary start with a prefix")
        prefix = locate_literal(field, literals[0]).value
        is_positive = operation is Operation.STARTS_WITH
        return BoundPredicate(operation, field, (prefix,)) if prefix else _of_all_values(field, is_positive)
    if not is_comparable(field.type):
        raise _refused(field, ", which has no comparison; a filter may ask only whether it IS NULL or IS NOT NULL")
    return _compare(operation, field, [locate_literal(field, literal) for literal in literals])


def _compare(
    operation: Operation, field: NestedField, places: Sequence[LiteralPosition], bucket: Bucket | None = None
) -> Expression:
    """A comparison with literals that may lie beyond all values of the column, or between two of them."""
    if operation not in INEQUALITIES:
        values = [place.value for place in places if not place.side and not place.is_above]
        if places and not values:
            return _of_all_values(field, operation in (Operation.NOT_EQ, Operation.NOT_IN))
        if operation in SET_OPERATIONS:
            return bound_set(operation, field, values, bucket)
        return BoundPredicate(operation, field, tuple(values), bucket)
    [place] = places
    is_less = operation in (Operation.LT, Operation.LT_EQ)
    if place.side:
        holds = is_less is (place.side > 0)
        if field.type not in FLOATING_TYPES:
            return _of_all_values(field, holds)
        # Infinity lies beyond the literal, and NaN on neither side of it.
        strict = Operation.LT if is_less else Operation.GT
        return BoundPredicate(strict if holds else Operation.EQ, field, (place.side * math.inf,))
    elif place.is_above:
        operation = Operation.LT_EQ if is_less else Operation.GT
    elif bucket is None:
        lowest, highest = exact_limits(field.type) or (None, None)
        if (operation, place.value) in ((Operation.LT, lowest), (Operation.GT, highest)):
            return ALWAYS_FALSE
        if (operation, place.value) in ((Operation.GT_EQ, lowest), (Operation.LT_EQ, highest)):
            return _of_all_values(field, True)
    return BoundPredicate(operation, field, (place.value,), bucket)


def _of_all_values(field: NestedField, holds: bool) -> Expression:
    """A predicate that is true, or false, of every value but null."""
    if not holds:
        return ALWAYS_FALSE
    return ALWAYS_TRUE if field.required else BoundPredicate(Operation.NOT_NULL, field)


def _refused(field: NestedField, reason: str) -> ExpressionError:
    kind = str(field.type) if isinstance(field.type, PrimitiveType) else type(field.type).__name__.removesuffix("Type")
    return ExpressionError(f"column {field.name!r} is of type {kind.lower()}{reason}", column=field.name)


_DAY_HOURS = 24
_CALENDAR_YEARS = range(1000, 10_000)
_UNIT = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[-T ]([0-9]{2}))?)?)?")
_UNITS: dict[type[Transform], tuple[int, str]] = {
    Year: (1, "'2026'"),
    Month: (2, "'2026-01'"),
    Hour: (4, "'2026-01-31-23'"),
}
"""How many numbers the text of a unit has, and an example."""


def _require_transform_supports(operation: Operation, predicate: Predicate, source: NestedField) -> None:
    transform, shown = predicate.transform, format_operand(predicate)
    if transform is None or not transform.accepts(source.type):
        problem = f"is no filter on column {source.name!r} of type {source.type}, which this transform does not take"
    elif operation in UNARY_OPERATIONS:
        problem = "is never NaN; only float and double have NaN"
    elif operation in PREFIX_OPERATIONS and not (isinstance(transform, Truncate) and source.type in (STRING, BINARY)):
        problem = "has no prefix; only string and binary start with one"
    else:
        return
    raise ExpressionError(f"{shown} {problem}", column=source.name)


def _named(predicate: Predicate, source: NestedField) -> NestedField:
    """The transformed column as a field, as errors about its literals name it."""
    assert predicate.transform is not None
    type_ = predicate.transform.result_type(source.type)
    return NestedField(field_id=source.field_id, name=format_operand(predicate), type=type_)


def unfold(operation: Operation, predicate: Predicate, transform: Transform, source: NestedField) -> Expression:
    """The comparison of the source column that matches the same rows as one of its transform.

    `operation` takes the place of the predicate's; `transform` is none of `bucket`, `void` and unknown ones.
    `ExpressionError` where a literal is no value of the transform.
    """
    column, literals = predicate.column, predicate.literals
    if operation in SET_OPERATIONS:
        member, join = (Operation.EQ, disjunction) if operation is Operation.IN else (Operation.NOT_EQ, conjunction)
        singles = (msgspec.structs.replace(predicate, literals=(literal,)) for literal in literals)
        return join(unfold(member, single, transform, source) for single in singles)
    if isinstance(transform, Truncate) and source.type in (STRING, BINARY):
        text = locate_literal(_named(predicate, source), literals[0]).value
        return _unfold_prefix(operation, column, text, transform.width)
    number, is_between = _number(predicate, transform, source)

    if is_between and operation in (Operation.EQ, Operation.NOT_EQ):
        return ALWAYS_FALSE if operation is Operation.EQ else Predicate(Operation.NOT_NULL, column)
    # Values of the step lie from its first value on, and below the next one's.
    begin, end = ((_first_of(transform, source, step),) for step in (number, number + 1))
    match operation:
        case Operation.EQ:
            return And(Predicate(Operation.GT_EQ, column, begin), Predicate(Operation.LT, column, end))
        case Operation.NOT_EQ:
            return Or(Predicate(Operation.LT, column, begin), Predicate(Operation.GT_EQ, column, end))
        case Operation.LT | Operation.GT_EQ:
            return Predicate(operation, column, end if is_between else begin)
    return Predicate(Operation.LT if operation is Operation.LT_EQ else Operation.GT_EQ, column, end)


def _unfold_prefix(operation: Operation, column: str, text: Any, width: int) -> Expression:
    """A comparison of a truncated column: a value shorter than the width is whole, and none is longer."""
    if len(text) < width or (operation in PREFIX_OPERATIONS and len(text) == width):
        return Predicate(operation, column, (text,))

    prefix, is_longer = (text[:width],), len(text) > width
    match operation:
        case Operation.EQ | Operation.STARTS_WITH:
            return ALWAYS_FALSE if is_longer else Predicate(Operation.STARTS_WITH, column, prefix)
        case Operation.NOT_EQ | Operation.NOT_STARTS_WITH if is_longer:
            return Predicate(Operation.NOT_NULL, column)
        case Operation.NOT_EQ | Operation.NOT_STARTS_WITH:
            return Predicate(Operation.NOT_STARTS_WITH, column, prefix)
        case Operation.LT | Operation.GT_EQ if not is_longer:
            return Predicate(operation, column, prefix)
        case Operation.LT | Operation.LT_EQ:
            return Or(Predicate(Operation.LT, column, prefix), Predicate(Operation.STARTS_WITH, column, prefix))
    return And(Predicate(Operation.GT_EQ, column, prefix), Predicate(Operation.NOT_STARTS_WITH, column, prefix))


def _number(predicate: Predicate, transform: Transform, source: NestedField) -> tuple[int, bool]:
    """The step of the transform that a literal is, and whether it lies between that one and the next."""
    named, literal = _named(predicate, source), predicate.literals[0]
    if isinstance(literal, str) and isinstance(transform, Year | Month | Hour):
        return _unit(named.name, transform, literal), False
    number, is_between = count_literal(named, literal)
    if isinstance(transform, Truncate):
        return number // transform.width, is_between or number % transform.width != 0
    if isinstance(transform, Year) and number in _CALENDAR_YEARS:
        raise ExpressionError(
            f"{named.name} counts the years from 1970, so that {literal} is the year {1970 + number}; write '{number}' in quotes "
            f"for that year, or {number - 1970}",
            column=source.name,
        )
    return number, is_between


def _unit(shown: str, transform: Transform, text: str) -> int:
    """The year, month or hour that a text names, counted from 1970."""
    needed, example = _UNITS[type(transform)]
    match = _UNIT.fullmatch(text)
    numbers = [] if match is None else [int(part) for part in match.groups() if part is not None]
    try:
        if len(numbers) != needed:
            raise ValueError
        year, month, day, hour = (*numbers, *(1, 1, 1, 0)[needed:])
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


def _first_of(transform: Transform, source: NestedField, step: int) -> Any:
    """The first value of the column in a step of the transform, as a literal that may lie beyond the type's ends."""
    match transform:
        case Truncate(width=width):
            if isinstance(source.type, DecimalType):
                return Decimal(f"{step * width}E-{source.type.scale}")
            return step * width
        case Year():
            hours = days_from_civil(1970 + step, 1, 1) * _DAY_HOURS
        case Month():
            hours = days_from_civil(1970 + step // 12, step % 12 + 1, 1) * _DAY_HOURS
        case _:
            hours = step * _DAY_HOURS if isinstance(transform, Day) else step
    if source.type == DATE:
        return DateLiteral(hours // _DAY_HOURS)
    return TimestampLiteral(hours * 3600 * NANOS_PER_SECOND)


def is_comparable(type_: Type) -> bool:
    """Whether columns of the type can be compared with a literal at all."""
    return isinstance(type_, PrimitiveType) and type_.name in _COUNTED | _READ


def locate_literal(field: NestedField, literal: Any) -> LiteralPosition:
    """Where a literal lies among the values of a column's type; -0.0 is 0.0.

    Numbers are for numeric types; for binary floating point they are rounded. Text is for strings, dates, times,
    timestamps, uuids (36 characters), decimals, bytes in hexadecimal, and infinity. A date alone is a timestamp at
    midnight; one with time zone is UTC where the text gives no offset. `ExpressionError` where the literal cannot be
    compared with the column.
    """
    type_ = field.type
    assert isinstance(type_, PrimitiveType)
    if type_.name not in _COUNTED:
        return _read(_position, field, literal)
    count, is_above = count_literal(field, literal)
    lowest, highest = _count_limits(type_)
    if count < lowest:
        return LiteralPosition(side=-1)
    if count > highest or (count == highest and is_above):
        return LiteralPosition(side=1)
    value = decimal_from_unscaled(count, type_.scale) if isinstance(type_, DecimalType) else count
    return LiteralPosition(value, is_above)


def count_literal(field: NestedField, literal: Any) -> tuple[int, bool]:
    """A literal in units of the type's last place, rounded down, perhaps beyond its limits, and whether it was rounded.

    For types whose values are whole or decimal numbers, dates and times; raises as `locate_literal` does.
    """
    is_number = isinstance(field.type, DecimalType) or field.type in (INT, LONG)
    return _read(_counted_number if is_number else _counted_time, field, literal)


def exact_limits(type_: Type) -> tuple[Any, Any] | None:
    """The least and the greatest value of a type whose values are whole or decimal numbers, null for other types."""
    if not isinstance(type_, PrimitiveType) or type_.name not in _COUNTED:
        return None
    lowest, highest = _count_limits(type_)
    if isinstance(type_, DecimalType):
        return decimal_from_unscaled(lowest, type_.scale), decimal_from_unscaled(highest, type_.scale)
    return lowest, highest


def _count_limits(type_: PrimitiveType) -> tuple[int, int]:
    """The least and the greatest value in units of the last place."""
    if isinstance(type_, DecimalType):
        highest = 10**type_.precision - 1
        return -highest, highest
    half = 1 << (8 * INTEGER_WIDTHS[type_.name] - 1)
    return -half, half - 1


_T = TypeVar("_T")


def _read(read: Callable[[PrimitiveType, Any], _T], field: NestedField, literal: Any) -> _T:
    type_ = field.type
    assert isinstance(type_, PrimitiveType)
    try:
        return read(type_, literal)
    except (ValueError, OverflowError) as problem:
        shown = str(literal)
        if isinstance(literal, bool | str | bytes):
            shown = shown.lower() if isinstance(literal, bool) else repr(literal)
        raise ExpressionError(
            f"column {field.name!r}: {shown} cannot be compared with type {type_}: {problem}",
            column=field.name,
            literal=str(literal),
            type=str(type_),
        ) from None


_FINITE_LIMITS = {
    "float": (float.fromhex("-0x1.fffffep+127"), float.fromhex("0x1.fffffep+127")),
    "double": (float.fromhex("-0x1.fffffffffffffp+1023"), float.fromhex("0x1.fffffffffffffp+1023")),
}
_COUNTED = frozenset((*INTEGER_WIDTHS, "decimal"))
_READ = frozenset(("boolean", "float", "double", "string", "uuid", "fixed", "binary"))
_NO_TEXT = "it must be text, in single quotes"
_INFINITY = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_LONGEST_EXPONENT = 1000


def _counted_number(type_: PrimitiveType, literal: Any) -> tuple[int, bool]:
    is_decimal = isinstance(type_, DecimalType)
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal | (str if is_decimal else int)):
        raise ValueError("it must be a number" if is_decimal else "it must be a whole number")
    try:
        number = Decimal(repr(literal) if isinstance(literal, float) else literal)
    except InvalidOperation:
        raise ValueError("it must be a number") from None
    if number.is_nan():
        raise ValueError("nothing compares with NaN")
    if number.is_infinite() or number.adjusted() > _LONGEST_EXPONENT:
        number = Decimal(f"1E{_LONGEST_EXPONENT}").copy_sign(number)
    elif number and number.as_tuple().exponent < -_LONGEST_EXPONENT:  # type: ignore[operator]
        raise ValueError("it has too many digits")
    numerator, denominator = number.as_integer_ratio()
    count, rest = divmod(numerator * 10 ** (type_.scale if isinstance(type_, DecimalType) else 0), denominator)
    return count, rest != 0


def _counted_time(type_: PrimitiveType, literal: Any) -> tuple[int, bool]:
    nanos, is_zoned = 0, False
    match literal:
        case DateLiteral(days) if type_.name != "time":
            nanos = days * DAY_SECONDS * NANOS_PER_SECOND
        case NowLiteral(epoch_ms) if type_.name != "time":
            nanos = epoch_ms * (NANOS_PER_SECOND // SECOND_MS)
        case TimestampLiteral() if type_.name == "date":
            raise ValueError("a date is compared with dates; write DATE '2026-01-31'")
        case TimestampLiteral(nanos, is_zoned) if type_.name != "time":
            pass
        case str() if type_.name == "date":
            return parse_date(literal), False
        case str() if type_.name == "time":
            nanos = parse_time(literal, NANOS_PER_SECOND)
        case str():
            nanos, offset_seconds = parse_timestamp(literal, NANOS_PER_SECOND)
            is_zoned = offset_seconds is not None
        case _:
            raise ValueError(_NO_TEXT)
    if type_.name == "date":
        return nanos // (DAY_SECONDS * NANOS_PER_SECOND), False
    if is_zoned and not type_.name.startswith("timestamptz"):
        raise ValueError("a timestamp without time zone takes no offset")
    count, rest = divmod(nanos, NANOS_PER_SECOND // TICKS_PER_SECOND.get(type_.name, MICROS_PER_SECOND))
    return count, rest != 0


def _position(type_: PrimitiveType, literal: Any) -> LiteralPosition:
    value = literal
    match type_.name:
        case "float" | "double":
            return _position_of_number(type_, literal)
        case "boolean":
            if not isinstance(literal, bool):
                raise ValueError("it must be true or false")
        case "uuid" if isinstance(literal, uuid.UUID):
            pass
        case "fixed" | "binary" if isinstance(literal, bytes):
            require_length(type_, literal)
        case _ if not isinstance(literal, str):
            raise ValueError(_NO_TEXT)
        case "string":
            literal.encode()  # half a surrogate pair raises `ValueError`
        case "uuid":
            value = read_uuid(literal)
        case _:
            value = require_length(type_, read_bytes(literal))
    return LiteralPosition(value)


def _position_of_number(type_: PrimitiveType, literal: Any) -> LiteralPosition:
    if isinstance(literal, str) and (match := _INFINITY.fullmatch(literal)):
        return LiteralPosition(-math.inf if match[1] == "-" else math.inf)
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal):
        raise ValueError("it must be a number")
    if literal.is_nan() if isinstance(literal, Decimal) else literal != literal:
        raise ValueError("nothing compares with NaN; write IS NAN or IS NOT NAN")
    if literal in (math.inf, -math.inf):
        return LiteralPosition(float(literal))
    lowest, highest = _FINITE_LIMITS[type_.name]
    if side := (literal > highest) - (literal < lowest):
        return LiteralPosition(side=side)
    value = float(literal)
    return LiteralPosition((to_single(value) if type_.name == "float" else value) + 0.0)
