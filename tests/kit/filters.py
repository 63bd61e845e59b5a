"""Random filters over small columns, rows that hit them, the statistics that a writer would keep of such rows; also PyIceberg's.

Values come from small pools around zero and around the ends of types, so that literals, rows and partitions meet. The
truth of a filter is worked out twice here, once as SQL has it and once with null unequal to everything, both of unbound trees
and without the code under test.
"""

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from pyiceberg import expressions as foreign
from pyiceberg.manifest import DataFile as ForeignDataFile
from pyiceberg.manifest import ManifestFile as ForeignManifest
from pyiceberg.manifest import PartitionFieldSummary as ForeignSummary
from pyiceberg.partitioning import PartitionSpec as ForeignSpec
from pyiceberg.schema import Schema as ForeignSchema

from icekeep.spec.filters.binding import locate_literal
from icekeep.spec.filters.expressions import (
    And,
    DateLiteral,
    Expression,
    Not,
    NowLiteral,
    Operation,
    Or,
    Predicate,
    TimestampLiteral,
)
from icekeep.spec.manifests.structs import DataFile, FieldSummary
from icekeep.spec.partitioning import PartitionField, PartitionSpec, spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
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
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    OPAQUE,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UUID,
    NestedField,
    PrimitiveType,
    Type,
    decimal,
    fixed,
)
from icekeep.spec.values import (
    TICKS_PER_SECOND,
    decimal_from_unscaled,
    parse_time,
    parse_timestamp,
    value_to_bytes,
    value_to_text,
)

PRICE = decimal(5, 2)
COLUMN_TYPES: tuple[PrimitiveType, ...] = (
    BOOLEAN, INT, LONG, FLOAT, DOUBLE, PRICE, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS,
    STRING, UUID, BINARY, fixed(2),
)  # fmt: skip
TRANSFORMS: tuple[Transform, ...] = (
    Identity(), Bucket(4), Truncate(1), Truncate(3), Truncate(10), Year(), Month(), Day(), Hour(), Void(),
    UnknownTransform("zorder"),
)  # fmt: skip
ASKED_TRANSFORMS = TRANSFORMS[1:9]
"""Those that a filter may name."""
_NUMBERS = (-13, -12, -2, -1, 0, 1, 2, 3, 4, 11, 12, 24, 3_000_000_000, Decimal("0.5"), Decimal("-1.5"))
ORDER = (Operation.LT, Operation.LT_EQ, Operation.GT, Operation.GT_EQ)
COMPARISONS = (*ORDER, Operation.EQ, Operation.NOT_EQ)
SETS = (Operation.IN, Operation.NOT_IN)
NULL_TESTS = (Operation.IS_NULL, Operation.NOT_NULL)
NAN_TESTS = (Operation.IS_NAN, Operation.NOT_NAN)
PREFIXES = (Operation.STARTS_WITH, Operation.NOT_STARTS_WITH)

_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_FLOATS = (-math.inf, -1.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, math.inf, math.nan)
_LETTERS = ("a", "b", "é", "\U0010ffff")
_BYTES = (b"\x00", b"a", b"b", b"\xff")
_HOUR_SECONDS = 3600


@cache
def pool(type_: PrimitiveType, with_ends: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type that are likely to meet; `with_ends` adds the least and the greatest numbers."""
    ends: dict[Type, Sequence[Any]] = {
        INT: (-_INT_MAX - 1, _INT_MAX),
        LONG: (-_LONG_MAX - 1, _LONG_MAX),
        PRICE: (Decimal("-999.99"), Decimal("999.99")),
    }
    small = _POOLS[type_.name]
    return small | st.sampled_from(ends[type_]) if with_ends and type_ in ends else small


def _moments(ticks_per_second: int) -> st.SearchStrategy[int]:
    near = st.integers(-2, 2)
    hours = st.integers(-30, 30) | st.sampled_from([h * 24 for h in (-366, -365, -31, 31, 59, 365, 366)])
    return st.tuples(hours, near).map(lambda p: p[0] * _HOUR_SECONDS * ticks_per_second + p[1])


def _joined(parts: Sequence[Any], empty: Any) -> st.SearchStrategy[Any]:
    short = st.lists(st.sampled_from(parts), max_size=4).map(empty.join)
    # Bounds are cut at 16: what lies around it is what a cut can get wrong.
    long = st.tuples(st.sampled_from(parts), st.integers(14, 17), short).map(lambda p: p[0] * p[1] + p[2])
    return short | long


_POOLS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-12, 12),
    "long": st.integers(-12, 12),
    "float": st.sampled_from(_FLOATS),
    "double": st.sampled_from(_FLOATS),
    "decimal": st.integers(-12, 12).map(lambda n: decimal_from_unscaled(n, 2)),
    "date": st.integers(-3, 3) | st.sampled_from([-366, -365, -32, -31, 30, 31, 58, 59, 364, 365, 366]),
    "time": st.integers(0, 3),
    **{name: _moments(ticks) for name, ticks in TICKS_PER_SECOND.items()},
    "string": _joined(_LETTERS, ""),
    "uuid": st.tuples(st.sampled_from([0, 1, 8, 15]), st.sampled_from([0, 1, 8, 15]), st.integers(0, 1)).map(
        lambda p: uuid.UUID(int=p[0] << 124 | p[1] << 60 | p[2])
    ),
    "binary": _joined(_BYTES, b""),
    "fixed": st.tuples(st.sampled_from(_BYTES), st.sampled_from(_BYTES)).map(b"".join),
}


def value_from_literal(type_: Type, literal: Any) -> Any:
    """The value of a column that a literal is."""
    place = locate_literal(NestedField(field_id=1, name="x", type=type_), literal)
    assert not place.side
    assert not place.is_above
    return place.value


def literal_of(type_: PrimitiveType, value: Any) -> Any:
    """A value as a user writes it in a filter."""
    return (
        value if isinstance(value, bool | int | float | Decimal) and _is_number(type_) else value_to_text(type_, value)
    )


def _is_number(type_: PrimitiveType) -> bool:
    return type_.name in ("boolean", "int", "long", "float", "double", "decimal")


class Column(msgspec.Struct, frozen=True):
    """A column of a filter's table; values and literals are drawn from its pool."""

    field: NestedField
    with_ends: bool = True

    @property
    def type(self) -> PrimitiveType:
        assert isinstance(self.field.type, PrimitiveType)
        return self.field.type

    def literals(self) -> st.SearchStrategy[Any]:
        return _literals(self.type, self.with_ends)

    def values(self) -> st.SearchStrategy[Any]:
        return _values(self.type, self.with_ends, self.field.required)


# Strategies are kept, since hypothesis spends most of its time on looking over new ones.
@cache
def _literals(type_: PrimitiveType, with_ends: bool) -> st.SearchStrategy[Any]:
    inside = pool(type_, with_ends).filter(lambda value: value == value).map(lambda value: literal_of(type_, value))
    others = _OTHERS.get(type_) if with_ends else None
    return inside | st.sampled_from(others) if others else inside


@cache
def _values(type_: PrimitiveType, with_ends: bool, required: bool) -> st.SearchStrategy[Any]:
    return pool(type_, with_ends) if required else st.none() | pool(type_, with_ends)


_DATES = (DateLiteral(-1), DateLiteral(0), DateLiteral(365), DateLiteral(2**40))
_MOMENTS = (NowLiteral(-1), NowLiteral(0), NowLiteral(3_600_000), NowLiteral(-86_400_001))
_TIMESTAMPS = (
    TimestampLiteral(-1), TimestampLiteral(0), TimestampLiteral(1500), TimestampLiteral(3600 * 10**9),
    TimestampLiteral(2**80), *_DATES, *_MOMENTS, "1969-12-31T23:59:59.9999995", "1970-01-01 00:00:00.000000001",
    "9999-12-31",
)  # fmt: skip
_OTHERS: dict[Type, Sequence[Any]] = {
    INT: (3_000_000_000, -3_000_000_000, Decimal("1E+300"), math.inf, Decimal("0.5"), -1.5, Decimal("1.00")),
    LONG: (2**63, -(2**63) - 1, -math.inf, Decimal("9223372036854775806.5"), 2.5),
    FLOAT: (1e39, -1e39, 10**400, Decimal("-1E+300"), "-Infinity", "infinity", "+inf"),
    DOUBLE: (10**400, -(10**400), Decimal("1E+400"), "Infinity"),
    PRICE: (1000, Decimal("-1000.00"), 1e30, Decimal("0.005"), Decimal("-0.0150"), Decimal("999.995"), "0.02"),
    DATE: (*_DATES, *_MOMENTS),
    TIME: ("00:00:00.0000015",),
    TIMESTAMP: _TIMESTAMPS,
    TIMESTAMP_NS: _TIMESTAMPS,
    TIMESTAMPTZ: (*_TIMESTAMPS, TimestampLiteral(1500, zoned=True), "1970-01-01T01:00:00.0000001+01:00"),
    TIMESTAMPTZ_NS: (*_TIMESTAMPS, TimestampLiteral(-1, zoned=True)),
    BINARY: (b"", b"a", b"\xff\xff"),
    fixed(2): (b"aa", b"b\xff"),
}
"""Literals of other kinds than the values, and those that are no value of the type: beyond all or between two."""


@cache
def columns(*, with_ends: bool = True) -> st.SearchStrategy[tuple[Column, ...]]:
    """One or two columns, ids from 1."""

    def column(field_id: int) -> st.SearchStrategy[Column]:
        return st.builds(
            lambda type_, required: Column(
                NestedField(field_id=field_id, name=f"c{field_id}", type=type_, required=required), with_ends
            ),
            st.sampled_from(COLUMN_TYPES),
            st.booleans(),
        )

    return st.tuples(column(1)) | st.tuples(column(1), column(2))


def schema_of(table: Sequence[Column]) -> Schema:
    return Schema(fields=tuple(column.field for column in table))


def operations_of(type_: PrimitiveType) -> tuple[Operation, ...]:
    operations = (*COMPARISONS, *SETS, *NULL_TESTS)
    if type_ in (FLOAT, DOUBLE):
        operations += NAN_TESTS
    return (*operations, *PREFIXES) if type_ in (STRING, BINARY) else operations


def predicates(table: Sequence[Column]) -> st.SearchStrategy[Predicate]:
    """Predicates on one of the columns that can be bound."""
    return st.one_of([_predicates(column.field.name, column.type, column.with_ends) for column in table])


@cache
def _predicates(name: str, type_: PrimitiveType, with_ends: bool) -> st.SearchStrategy[Predicate]:
    literals = _literals(type_, with_ends)

    def predicate(operation: Operation, first: Any, others: list[Any]) -> Predicate:
        if operation in (*NULL_TESTS, *NAN_TESTS):
            return Predicate(operation, name)
        return Predicate(operation, name, (first, *others) if operation in SETS else (first,))

    operations = st.sampled_from(operations_of(type_))
    plain = st.builds(predicate, operations, literals, st.lists(literals, max_size=2))
    transforms = [one for one in ASKED_TRANSFORMS if one.accepts(type_)]
    if not with_ends or not transforms:
        return plain
    return plain | st.sampled_from(transforms).flatmap(lambda transform: _of_transform(name, type_, transform))


@cache
def _of_transform(name: str, type_: PrimitiveType, transform: Transform) -> st.SearchStrategy[Predicate]:
    """Questions about a transform of the column."""
    result_type = transform.result_type(type_)
    assert isinstance(result_type, PrimitiveType)
    literals = st.sampled_from(_NUMBERS) if result_type == INT and type_ != INT else _literals(result_type, True)
    operations = (*COMPARISONS, *SETS, *NULL_TESTS)
    if isinstance(transform, Truncate) and type_ in (STRING, BINARY):
        operations += PREFIXES

    def predicate(operation: Operation, first: Any, others: list[Any]) -> Predicate:
        several = () if operation in NULL_TESTS else (first, *others) if operation in SETS else (first,)
        return Predicate(operation, name, several, transform)

    return st.builds(predicate, st.sampled_from(operations), literals, st.lists(literals, max_size=2))


def filters(table: Sequence[Column]) -> st.SearchStrategy[Expression]:
    """Trees of AND, OR and NOT over predicates on the columns, not bound."""
    return st.recursive(
        predicates(table),
        lambda inner: st.builds(And, inner, inner) | st.builds(Or, inner, inner) | st.builds(Not, inner),
        max_leaves=4,
    )


def rows(table: Sequence[Column]) -> st.SearchStrategy[dict[int, Any]]:
    """Values by field id."""
    return st.fixed_dictionaries({column.field.field_id: column.values() for column in table})


@st.composite
def partitioned_tables(draw: st.DrawFn, with_ends: bool = True) -> tuple[tuple[Column, ...], PartitionSpec]:
    """A table and a spec with one to three fields, which may be of one column."""
    table = draw(columns(with_ends=with_ends))
    fields = []
    for position in range(draw(st.integers(1, 3))):
        source = draw(st.sampled_from(table))
        transform = draw(st.sampled_from([t for t in TRANSFORMS if t.accepts(source.type)]))
        fields.append(
            PartitionField(
                source_id=source.field.field_id, field_id=1000 + position, name=f"p{position}", transform=transform
            )
        )
    return table, PartitionSpec(spec_id=0, fields=tuple(fields))


def partition_of(table: Sequence[Column], spec: PartitionSpec, row: Mapping[int, Any]) -> tuple[Any, ...]:
    """The partition tuple that a writer gives a row."""
    types = {column.field.field_id: column.type for column in table}
    return tuple(
        "?"
        if isinstance(part.transform, UnknownTransform)
        else part.transform.apply(types[part.source_id], row[part.source_id])
        for part in spec.fields
    )


def truth(expression: Expression, table: Sequence[Column], row: Mapping[int, Any]) -> bool | None:
    """What SQL makes of an unbound filter on a row: true, false or null."""
    match expression:
        case And(left=left, right=right):
            sides = (truth(left, table, row), truth(right, table, row))
            return False if False in sides else None if None in sides else True
        case Or(left=left, right=right):
            sides = (truth(left, table, row), truth(right, table, row))
            return True if True in sides else None if None in sides else False
        case Not(child=child):
            inner = truth(child, table, row)
            return None if inner is None else not inner
        case Predicate(operation=operation, column=name, literals=literals, transform=transform):
            column = next(column for column in table if column.field.name == name)
            value, type_ = row[column.field.field_id], column.type
            if transform is not None:
                value, result_type = transform.apply(type_, value), transform.result_type(type_)
                assert isinstance(result_type, PrimitiveType)
                type_ = result_type
            return _ask(operation, value, [_meaning(type_, literal) for literal in literals])
    raise AssertionError(expression)


def _ask(operation: Operation, value: Any, literals: Sequence[Any]) -> bool | None:
    if operation in _UNARY:
        return _UNARY[operation](value)
    return None if value is None else _ASK[operation](value, literals)


_UNARY: dict[Operation, Callable[[Any], bool]] = {
    Operation.IS_NULL: lambda value: value is None,
    Operation.NOT_NULL: lambda value: value is not None,
    Operation.IS_NAN: lambda value: isinstance(value, float) and math.isnan(value),
    Operation.NOT_NAN: lambda value: not (isinstance(value, float) and math.isnan(value)),
}
_ASK: dict[Operation, Callable[[Any, Sequence[Any]], bool]] = {
    Operation.LT: lambda value, literals: value < literals[0],
    Operation.LT_EQ: lambda value, literals: value <= literals[0],
    Operation.GT: lambda value, literals: value > literals[0],
    Operation.GT_EQ: lambda value, literals: value >= literals[0],
    Operation.EQ: lambda value, literals: value == literals[0],
    Operation.NOT_EQ: lambda value, literals: value != literals[0],
    Operation.IN: lambda value, literals: any(value == literal for literal in literals),
    Operation.NOT_IN: lambda value, literals: all(value != literal for literal in literals),
    Operation.STARTS_WITH: lambda value, literals: value[: len(literals[0])] == literals[0],
    Operation.NOT_STARTS_WITH: lambda value, literals: value[: len(literals[0])] != literals[0],
}


def _meaning(type_: PrimitiveType, literal: Any) -> Any:
    """The literal as something that compares with the column's values, though it be none of them."""
    if _is_number(type_):
        is_text = isinstance(literal, str)
        return float(literal) if is_text and type_ in (FLOAT, DOUBLE) else Decimal(literal) if is_text else literal
    if type_ == TIME:
        return Fraction(parse_time(literal, _NANOS), 1000)
    nanos = _nanos(literal)
    if type_ == DATE and nanos is not None:
        return nanos // (24 * _HOUR_SECONDS * _NANOS)
    if type_.name in TICKS_PER_SECOND:
        nanos = parse_timestamp(literal, _NANOS)[0] if nanos is None else nanos
        return Fraction(nanos, _NANOS // TICKS_PER_SECOND[type_.name])
    return literal if isinstance(literal, bytes) else value_from_literal(type_, literal)


_NANOS = 10**9


def _nanos(literal: Any) -> int | None:
    match literal:
        case DateLiteral(days=days):
            return days * 24 * _HOUR_SECONDS * _NANOS
        case NowLiteral(epoch_ms=epoch_ms):
            return epoch_ms * 10**6
        case TimestampLiteral(nanos=nanos):
            return nanos
    return None


def matches_somehow(expression: Expression, table: Sequence[Column], row: Mapping[int, Any]) -> bool:
    """Whether a filter without NOT matches a row as SQL has it, or where null is unequal to every literal."""
    match expression:
        case And(left=left, right=right):
            return matches_somehow(left, table, row) and matches_somehow(right, table, row)
        case Or(left=left, right=right):
            return matches_somehow(left, table, row) or matches_somehow(right, table, row)
        case Predicate(operation=operation, column=name):
            field = next(column.field for column in table if column.field.name == name)
            if row[field.field_id] is None and operation in _TRUE_OF_NULL_TO_SOME:
                return True
    return truth(expression, table, row) is True


_TRUE_OF_NULL_TO_SOME = (Operation.NOT_EQ, Operation.NOT_IN, Operation.NOT_STARTS_WITH)


@st.composite
def metrics_of(draw: st.DrawFn, table: Sequence[Column], data: Sequence[Mapping[int, Any]]) -> DataFile:
    """What a writer may say of a file with these rows: true, with bounds cut to 16, and any part of it left out."""
    maps: dict[str, dict[int, Any]] = {name: {} for name in _MAPS}
    for column in table:
        values = [row[column.field.field_id] for row in data]
        for name, fact in _facts(draw, column.type, values).items():
            if fact is not None and draw(st.integers(0, 9)):
                maps[name][column.field.field_id] = fact
    kept = {name: facts if draw(st.integers(0, 9)) else None for name, facts in maps.items()}
    return DataFile(
        file_path="f", file_format="parquet", spec_id=0, record_count=len(data), file_size_in_bytes=1, **kept
    )


_MAPS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def _facts(draw: st.DrawFn, type_: PrimitiveType, values: Sequence[Any]) -> dict[str, Any]:
    lower, upper = _bounds(draw, type_, [value for value in values if value is not None and value == value])
    is_floating = type_ in (FLOAT, DOUBLE)
    return {
        "value_counts": len(values),
        "null_value_counts": sum(value is None for value in values),
        "nan_value_counts": sum(value != value for value in values) if is_floating else None,
        "lower_bounds": lower,
        "upper_bounds": upper,
    }


def _bounds(draw: st.DrawFn, type_: PrimitiveType, values: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
    if not values:
        return None, None
    order = _java_order if type_ == UUID and draw(st.booleans()) else None
    lower, upper = min(values, key=order), max(values, key=order)
    if type_ in (STRING, BINARY) and draw(st.booleans()):
        lower, upper = lower[:16], _above(upper)
    # Java takes what an unknown transform makes for text.
    written = STRING if type_ == OPAQUE else type_
    return value_to_bytes(written, lower), None if upper is None else value_to_bytes(written, upper)


def _java_order(value: uuid.UUID) -> tuple[int, int]:
    high, low = value.int >> 64, value.int & (2**64 - 1)
    return high - (high >> 63 << 64), low - (low >> 63 << 64)


def _above(value: Any) -> Any:
    """The shortest text or bytes of at most 16 that is not below a value, null if there is none."""
    if len(value) <= 16:
        return value
    last = "\U0010ffff" if isinstance(value, str) else b"\xff"
    cut = value[:16].rstrip(last)
    if not cut:
        return None
    return cut[:-1] + (chr(ord(cut[-1]) + 1) if isinstance(cut, str) else bytes([cut[-1] + 1]))


def summary_of(draw: st.DrawFn, type_: Type, values: Sequence[Any]) -> FieldSummary:
    """What a manifest list may say of the values of one partition field."""
    assert isinstance(type_, PrimitiveType)
    lower, upper = _bounds(draw, type_, [value for value in values if value is not None and value == value])
    holds_nan = any(value != value for value in values)
    return FieldSummary(
        contains_null=None in values,
        contains_nan=draw(st.sampled_from([holds_nan, None])),
        lower_bound=lower,
        upper_bound=upper,
    )


_PYICEBERG_UNARY: dict[Operation, Callable[[str], Any]] = {
    Operation.IS_NULL: foreign.IsNull,
    Operation.NOT_NULL: foreign.NotNull,
    Operation.IS_NAN: foreign.IsNaN,
    Operation.NOT_NAN: foreign.NotNaN,
}
_COMPARISONS: dict[Operation, Callable[[str, Any], Any]] = {
    Operation.LT: foreign.LessThan,
    Operation.LT_EQ: foreign.LessThanOrEqual,
    Operation.GT: foreign.GreaterThan,
    Operation.GT_EQ: foreign.GreaterThanOrEqual,
    Operation.EQ: foreign.EqualTo,
    Operation.NOT_EQ: foreign.NotEqualTo,
    Operation.STARTS_WITH: foreign.StartsWith,
    Operation.NOT_STARTS_WITH: foreign.NotStartsWith,
}
_SETS: dict[Operation, Callable[[str, set[Any]], Any]] = {Operation.IN: foreign.In, Operation.NOT_IN: foreign.NotIn}


def foreign_filter(expression: Expression, schema: Schema) -> Any:
    """An unbound expression as PyIceberg's, which has literals of bytes where we have text."""
    match expression:
        case And(left=left, right=right):
            return foreign.And(foreign_filter(left, schema), foreign_filter(right, schema))
        case Or(left=left, right=right):
            return foreign.Or(foreign_filter(left, schema), foreign_filter(right, schema))
        case Not(child=child):
            return foreign.Not(foreign_filter(child, schema))
        case Predicate(operation=operation, column=column) if operation in _PYICEBERG_UNARY:
            return _PYICEBERG_UNARY[operation](column)
        case Predicate(operation=operation, column=column, literals=literals):
            if schema.field(column).type in (BINARY, fixed(2)):
                literals = tuple(map(bytes.fromhex, literals))
            if operation in _SETS:
                return _SETS[operation](column, set(literals))
            return _COMPARISONS[operation](column, literals[0])
    raise AssertionError(expression)


def foreign_schema(schema: Schema) -> ForeignSchema:
    return ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema)))


def foreign_spec(spec: PartitionSpec) -> ForeignSpec:
    return ForeignSpec.model_validate_json(json.dumps(spec_to_json(spec)))


def foreign_file(metrics: DataFile) -> ForeignDataFile:
    return ForeignDataFile.from_args(
        file_path=metrics.file_path,
        record_count=metrics.record_count,
        value_counts=metrics.value_counts,
        null_value_counts=metrics.null_value_counts,
        nan_value_counts=metrics.nan_value_counts,
        lower_bounds=metrics.lower_bounds,
        upper_bounds=metrics.upper_bounds,
    )


def foreign_manifest(summaries: Sequence[FieldSummary]) -> ForeignManifest:
    return ForeignManifest.from_args(
        manifest_path="m",
        partition_spec_id=0,
        partitions=[
            ForeignSummary.from_args(
                contains_null=summary.contains_null,
                contains_nan=summary.contains_nan,
                lower_bound=summary.lower_bound,
                upper_bound=summary.upper_bound,
            )
            for summary in summaries
        ],
    )
