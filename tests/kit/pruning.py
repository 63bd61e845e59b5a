"""The oracle of pruning: an evaluator on objects, one file at a time, and random filters and statistics to compare it on.

A file that is pruned wrongly is a row lost, so what decides it is compared with rules that were written apart from it.
Statistics are true, damaged or absurd.
"""

import math
import struct
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.planning.manifests import METRICS
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    PREFIX_OPERATIONS,
    SET_OPERATIONS,
    TRUE_OF_NULL_TO_SOME,
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
    not_bound,
    predicates,
)
from icekeep.spec.manifests.structs import DataFile, FieldSummary
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Bucket
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
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
from icekeep.spec.values import are_crossed, decimal_from_unscaled, java_order, value_from_bytes, value_to_bytes
from kit.cases import Random
from kit.filters import literal_of

MAPS = tuple(name for name in METRICS.names if name != "column_sizes")
TYPES: tuple[PrimitiveType, ...] = (
    BOOLEAN, INT, LONG, FLOAT, DOUBLE, decimal(5, 2), decimal(38, 10), DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS,
    TIMESTAMPTZ_NS, STRING, UUID, BINARY, fixed(3),
)  # fmt: skip
_FLOATS = (-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.0, 2.0, 3.0, 4.0, 1e30, math.inf)
_BEFORE = {"long": INT, "double": FLOAT, "timestamp": DATE, "timestamp_ns": DATE, "timestamptz": DATE}
"""Types that a column may have had before; not all of these promotions are of the spec, the bytes come all the same."""


_Literals = Mapping[int, Sequence[Any]]
"""The values that a filter compares each column with, by field id."""


class PruningCase(msgspec.Struct, frozen=True):
    """A filter over columns 1 and 2, and what writers say of files and manifests."""

    schema: Schema
    bound: Expression
    files: list[DataFile]
    summaries: list[tuple[FieldSummary, ...] | None]
    rows: list[dict[int, Any]]


def batch_of(files: Sequence[DataFile], needed: Sequence[str] | frozenset[str] = MAPS) -> pa.RecordBatch:
    """Entries with the columns that pruning may ask for."""
    counts = pa.array([f.record_count for f in files], pa.int64())
    maps = {
        name: pa.array(
            [None if (known := getattr(f, name)) is None else list(known.items()) for f in files],
            METRICS.field(name).type,
        )
        for name in MAPS
        if name in needed
    }
    return pa.record_batch({"record_count": counts, **maps})


def random_case(seed: int) -> PruningCase:
    """The case of a seed."""
    draw = Random(seed)
    fields = tuple(
        NestedField(field_id=id_, name=f"c{id_}", type=draw.choice(TYPES), required=draw.random() < 0.2)
        for id_ in (1, 2)
    )
    schema = Schema(fields=fields)
    bound = _bound(draw, fields, 3) if draw.random() < 0.5 else bind(_unbound(draw, fields, 3), schema)
    rows = [{f.field_id: _value_or_none(draw, f) for f in fields} for _ in range(4)]
    literals: dict[int, list[Any]] = {1: [], 2: []}
    for predicate in predicates(bound):
        if predicate.bucket is None:
            literals[predicate.field.field_id] += predicate.values
    return PruningCase(
        schema=schema,
        bound=bound,
        files=[_file(draw, fields, literals) for _ in range(draw.randint(0, 5))],
        summaries=[_summaries(draw, fields, literals) for _ in range(3)],
        rows=rows,
    )


def _value_or_none(draw: Random, field: NestedField) -> Any:
    return None if not field.required and draw.random() < 0.2 else _value(draw, field.type, with_nan=True)


def _value(draw: Random, type_: Any, *, with_nan: bool = False) -> Any:  # noqa: C901 - one line a type
    match type_.name:
        case "boolean":
            return draw.random() < 0.5
        case "float" | "double":
            if with_nan and draw.random() < 0.15:
                return math.nan
            value = draw.choice(_FLOATS)
            return struct.unpack("<f", struct.pack("<f", value))[0] if type_.name == "float" else value
        case "decimal":
            unscaled = (
                draw.randint(-12, 12) if draw.random() < 0.9 else draw.choice((-1, 1)) * (10**type_.precision - 1)
            )
            return decimal_from_unscaled(unscaled, type_.scale)
        case "string":
            return "".join(draw.choices(("a", "b", "é", "\uffff", "\U0010ffff"), k=draw.choice((0, 1, 1, 2, 2, 3, 17))))
        case "binary":
            return b"".join(draw.choices((b"\x00", b"a", b"b", b"\xff"), k=draw.choice((0, 1, 1, 2, 2, 3, 17))))
        case "fixed":
            return b"".join(draw.choices((b"\x00", b"a", b"\xff"), k=type_.length))
        case "uuid":
            return uuid.UUID(
                int=draw.choice((0, 1, 7, 8, 15)) << 124 | draw.choice((0, 1, 8, 15)) << 60 | draw.randint(0, 1)
            )
        case "time":
            return draw.choice((0, 1, 2, 3, 86_399_999_999))
        case "int" | "date":
            return draw.randint(-12, 12) if draw.random() < 0.9 else draw.choice((-(2**31), 2**31 - 1))
    return draw.randint(-12, 12) if draw.random() < 0.9 else draw.choice((-(2**63), 2**63 - 1))


def _operation(draw: Random, type_: PrimitiveType) -> Operation:
    return draw.choice([one for one in Operation if _fits(one, type_)])


def _fits(operation: Operation, type_: PrimitiveType) -> bool:
    if operation in PREFIX_OPERATIONS:
        return type_ in (STRING, BINARY)
    return type_ in (FLOAT, DOUBLE) or operation not in (Operation.IS_NAN, Operation.NOT_NAN)


def _bound(draw: Random, fields: Sequence[NestedField], depth: int) -> Expression:
    shape = draw.random()
    if depth and shape < 0.45:
        connective = And if draw.random() < 0.5 else Or
        return connective(_bound(draw, fields, depth - 1), _bound(draw, fields, depth - 1))
    if shape < 0.48:
        return draw.choice((ALWAYS_TRUE, ALWAYS_FALSE))
    field = draw.choice(fields)
    assert isinstance(field.type, PrimitiveType)
    operation = _operation(draw, field.type)
    if operation in UNARY_OPERATIONS:
        return BoundPredicate(operation, field)
    bucket = Bucket(8) if Bucket(8).accepts(field.type) and draw.random() < 0.15 else None
    if bucket is not None and operation not in PREFIX_OPERATIONS:
        numbers = [draw.randint(0, 7) for _ in range(draw.randint(1, 3))]
        if operation in SET_OPERATIONS:
            return bound_set(operation, field, numbers, bucket)
        return BoundPredicate(operation, field, (numbers[0],), bucket)
    if operation in SET_OPERATIONS:
        return bound_set(operation, field, [_literal(draw, field.type) for _ in range(draw.choice((1, 2, 3, 40)))])
    value = _literal(draw, field.type)
    return (
        BoundPredicate(operation, field, (value or (b"a" if field.type == BINARY else "a"),))
        if (operation in PREFIX_OPERATIONS)
        else BoundPredicate(operation, field, (value,))
    )


def _literal(draw: Random, type_: Any) -> Any:
    value = _value(draw, type_)
    return value + 0.0 if isinstance(value, float) else value


def _unbound(draw: Random, fields: Sequence[NestedField], depth: int) -> Expression:
    shape = draw.random()
    if depth and shape < 0.55:
        if shape < 0.2:
            return Not(_unbound(draw, fields, depth - 1))
        connective = And if draw.random() < 0.5 else Or
        return connective(_unbound(draw, fields, depth - 1), _unbound(draw, fields, depth - 1))
    field = draw.choice(fields)
    assert isinstance(field.type, PrimitiveType)
    operation = _operation(draw, field.type)
    count = 0 if operation in UNARY_OPERATIONS else draw.choice((1, 2, 3, 40)) if operation in SET_OPERATIONS else 1
    literals = tuple(literal_of(field.type, _literal(draw, field.type)) for _ in range(count))
    return Predicate(operation, field.name, literals)


def _file(draw: Random, fields: Sequence[NestedField], literals: _Literals) -> DataFile:
    rows = draw.choice((0, 1, 2, 3, 5, 5, 5, -1, 2**63 - 1))
    maps: dict[str, dict[int, Any] | None] = {name: {} for name in MAPS}
    for field in fields:
        for name, fact in _facts(draw, field, rows, literals[field.field_id]).items():
            held = maps[name]
            if fact is not None and held is not None:
                held[field.field_id] = fact
    for name in MAPS:
        if draw.random() < 0.07:
            maps[name] = None
    return DataFile(file_path="f", file_format="parquet", spec_id=0, record_count=rows, file_size_in_bytes=1, **maps)


def _facts(draw: Random, field: NestedField, rows: int, literals: Sequence[Any]) -> Mapping[str, Any]:
    if 0 < rows < 9 and draw.random() < 0.5:
        values = [_value_or_none(draw, field) for _ in range(rows)]
        lower, upper = _bounds_of(draw, field.type, [one for one in values if one is not None and one == one])
        facts: dict[str, Any] = {
            "value_counts": rows,
            "null_value_counts": sum(one is None for one in values),
            "nan_value_counts": sum(one is not None and one != one for one in values),
            "lower_bounds": lower,
            "upper_bounds": upper,
        }
    else:
        numbers = (-1, 0, 0, 0, 1, 2, rows, rows, min(rows + 1, 2**63 - 1), 2**63 - 1, None)
        facts = {name: draw.choice(numbers) for name in MAPS if name.endswith("counts")}
        facts["lower_bounds"], facts["upper_bounds"] = (
            _some_bytes(draw, field.type, literals),
            _some_bytes(draw, field.type, literals),
        )
        if draw.random() < 0.3:
            facts["upper_bounds"] = facts["lower_bounds"]
    return {name: fact for name, fact in facts.items() if draw.random() > 0.07}


def _some_bytes(draw: Random, type_: Any, literals: Sequence[Any]) -> bytes | None:
    shape = draw.random()
    if shape < 0.08:
        return None
    if literals and shape > 0.6:
        return value_to_bytes(type_, draw.choice(literals))
    if shape < 0.2:
        return draw.randbytes(draw.choice((0, 1, 2, 3, 4, 8, 16, 17, 33)))
    if shape < 0.3 and type_.name in _BEFORE:
        before = _BEFORE[type_.name]
        return value_to_bytes(before, _value(draw, before, with_nan=True))
    return value_to_bytes(type_, _value(draw, type_, with_nan=True))


def _bounds_of(draw: Random, type_: Any, values: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
    if not values:
        return None, None
    in_java_order = type_ == UUID and draw.random() < 0.5
    order = (lambda value: value.int ^ (1 << 127 | 1 << 63)) if in_java_order else None
    lower, upper = min(values, key=order), max(values, key=order)
    if type_ in (STRING, BINARY) and draw.random() < 0.3:
        lower = lower[:1]
        upper = upper[:1] + ("\U0010ffff" if type_ == STRING else b"\xff") * 18
    return value_to_bytes(type_, lower), value_to_bytes(type_, upper)


def _summaries(draw: Random, fields: Sequence[NestedField], literals: _Literals) -> tuple[FieldSummary, ...] | None:
    if draw.random() < 0.05:
        return None
    summaries = []
    for field in fields:
        bounds = [_some_bytes(draw, field.type, literals[field.field_id]) for _ in "ab"]
        if draw.random() < 0.15:
            bounds = [None, None]
        contains_null, contains_nan = draw.random() < 0.5, draw.choice((True, False, None))
        summary = FieldSummary(
            contains_null=contains_null, contains_nan=contains_nan, lower_bound=bounds[0], upper_bound=bounds[1]
        )
        summaries.append(summary)
    return tuple(summaries[: draw.choice((1, 2, 2, 2))])


def row_matches(bound: Expression, row: Mapping[int, Any]) -> bool:
    """Whether a row matches; `row` holds values by field id, and a field that it lacks is null."""
    return _evaluate(bound, lambda predicate: _value_matches(predicate, row.get(predicate.field.field_id)))


def partition_matches(bound: Expression, fields: Sequence[NestedField], values: Sequence[Any]) -> bool:
    """Whether a partition tuple matches a projection.

    Args:
        bound: an expression from `project_inclusive` or `project_strict`.
        fields: the fields of the partition type, in the order of `values`.
        values: the partition tuple.
    """
    by_id = {field.field_id: value for field, value in zip(fields, values, strict=True)}
    return _evaluate(bound, lambda predicate: _value_matches(predicate, by_id[predicate.field.field_id]))


def manifest_may_match(
    bound: Expression, fields: Sequence[NestedField], summaries: Sequence[FieldSummary] | None
) -> bool:
    """Whether a manifest may hold a file whose partition matches.

    Args:
        bound: an expression from `project_inclusive`.
        fields: the fields of the partition type of the manifest's spec, in the order of `summaries`.
        summaries: the field summaries of the manifest list, null where it has none.
    """
    by_id = dict(zip((field.field_id for field in fields), summaries or (), strict=False))

    def may_match(predicate: BoundPredicate) -> bool:
        summary = by_id.get(predicate.field.field_id)
        return summary is None or _may_match(predicate, _facts_of_summary(predicate, summary))

    return _evaluate(bound, may_match)


def file_may_match(bound: Expression, metrics: DataFile) -> bool:
    """Whether a file may hold a row that matches; one without rows does not, one that hides their number may."""
    if metrics.record_count == 0:
        return False
    if metrics.record_count < 0:
        return _evaluate(bound, lambda _: True)
    return _evaluate(bound, lambda predicate: _may_match(predicate, _facts_of_file(predicate, metrics)))


def file_must_match(bound: Expression, metrics: DataFile) -> bool:
    """Whether every row of a file matches; deletes on its rows do not change the answer."""
    if metrics.record_count == 0:
        return True
    if metrics.record_count < 0:
        return _evaluate(bound, lambda _: False)
    return _evaluate(bound, lambda predicate: _must_match(predicate, _facts_of_file(predicate, metrics)))


def _evaluate(bound: Expression, test: Callable[[BoundPredicate], bool]) -> bool:
    match bound:
        case BoundPredicate():
            return test(bound)
        case And(left=left, right=right):
            return _evaluate(left, test) and _evaluate(right, test)
        case Or(left=left, right=right):
            return _evaluate(left, test) or _evaluate(right, test)
        case AlwaysTrue() | AlwaysFalse():
            return isinstance(bound, AlwaysTrue)
    raise not_bound(bound)


_Values = tuple[Any, ...]
_MATCHES: dict[Operation, Callable[[Any, _Values], bool]] = {
    Operation.IS_NULL: lambda value, _: False,
    Operation.NOT_NULL: lambda value, _: True,
    Operation.IS_NAN: lambda value, _: bool(value != value),
    Operation.NOT_NAN: lambda value, _: bool(value == value),
    Operation.LT: lambda value, values: bool(value < values[0]),
    Operation.LT_EQ: lambda value, values: bool(value <= values[0]),
    Operation.GT: lambda value, values: bool(value > values[0]),
    Operation.GT_EQ: lambda value, values: bool(value >= values[0]),
    Operation.EQ: lambda value, values: bool(value == values[0]),
    Operation.NOT_EQ: lambda value, values: bool(value != values[0]),
    Operation.IN: lambda value, values: _is_member(value, values),
    Operation.NOT_IN: lambda value, values: not _is_member(value, values),
    Operation.STARTS_WITH: lambda value, values: bool(value.startswith(values[0])),
    Operation.NOT_STARTS_WITH: lambda value, values: not value.startswith(values[0]),
}
_TRUE_OF_NULL = (Operation.IS_NULL, Operation.NOT_NAN)


def _value_matches(predicate: BoundPredicate, value: Any) -> bool:
    if value is None:
        return predicate.operation in _TRUE_OF_NULL
    if predicate.bucket is not None:
        value = predicate.bucket.apply(predicate.field.type, value)
    return _MATCHES[predicate.operation](value, predicate.values)


def _is_member(value: Any, values: _Values) -> bool:
    position = bisect_left(values, value)
    return position < len(values) and bool(values[position] == value)


class _Facts(msgspec.Struct, frozen=True):
    """What statistics tell about the values of one field; "values" are those that are neither null nor NaN."""

    may_hold_null: bool
    may_hold_nan: bool
    may_hold_values: bool
    lower: Any = None
    upper: Any = None

    @property
    def only_values(self) -> bool:
        return not self.may_hold_null and not self.may_hold_nan

    @property
    def least(self) -> Any:
        """The lower bound where it is one in the order of comparisons; writers differ on the order of UUIDs."""
        return None if isinstance(self.lower, uuid.UUID) else self.lower

    @property
    def greatest(self) -> Any:
        return None if isinstance(self.upper, uuid.UUID) else self.upper

    def all_in(self, wanted: _Values) -> bool:
        """Whether all values are known to be one and the same, which is among `wanted`; `wanted` is sorted."""
        return self.lower is not None and bool(self.lower == self.upper) and _is_member(self.lower, wanted)

    def may_start_with(self, prefix: Any) -> bool:
        below = self.lower is None or bool(self.lower[: len(prefix)] <= prefix)
        return self.may_hold_values and below and (self.upper is None or bool(self.upper >= prefix))

    def all_start_with(self, prefix: Any) -> bool:
        bounds = (self.lower, self.upper)
        return all(bound is not None and bound.startswith(prefix) for bound in bounds)

    def may_hold_some(self, wanted: _Values) -> bool:
        """Whether one of `wanted` may be among the values; `wanted` is sorted."""
        if not self.may_hold_values:
            return False
        if isinstance(wanted[0], uuid.UUID):
            return any(_within_uuids(self.lower, value, self.upper) for value in wanted)
        position = 0 if self.lower is None else bisect_left(wanted, self.lower)
        return position < len(wanted) and (self.upper is None or bool(wanted[position] <= self.upper))


def _within_uuids(lower: uuid.UUID | None, value: uuid.UUID, upper: uuid.UUID | None) -> bool:
    """Bounds of UUIDs are least and greatest as bytes in some writers, as two signed longs in others (Java's order)."""
    for order in (_uuid_as_bytes, java_order):
        above = lower is None or order(lower) <= order(value)
        if above and (upper is None or order(value) <= order(upper)):
            return True
    return False


def _uuid_as_bytes(value: uuid.UUID) -> int:
    return value.int


_MAY_MATCH: dict[Operation, Callable[[_Facts, _Values], bool]] = {
    Operation.IS_NULL: lambda facts, _: facts.may_hold_null,
    Operation.NOT_NULL: lambda facts, _: facts.may_hold_values or facts.may_hold_nan,
    Operation.IS_NAN: lambda facts, _: facts.may_hold_nan,
    Operation.NOT_NAN: lambda facts, _: facts.may_hold_values or facts.may_hold_null,
    Operation.LT: lambda facts, v: facts.may_hold_values and (facts.least is None or bool(facts.least < v[0])),
    Operation.LT_EQ: lambda facts, v: facts.may_hold_values and (facts.least is None or bool(facts.least <= v[0])),
    Operation.GT: lambda facts, v: facts.may_hold_values and (facts.greatest is None or bool(facts.greatest > v[0])),
    Operation.GT_EQ: lambda facts, v: (
        facts.may_hold_values and (facts.greatest is None or bool(facts.greatest >= v[0]))
    ),
    Operation.EQ: lambda facts, v: facts.may_hold_some(v),
    Operation.IN: lambda facts, v: facts.may_hold_some(v),
    Operation.NOT_EQ: lambda facts, v: not facts.only_values or not facts.all_in(v),
    Operation.NOT_IN: lambda facts, v: not facts.only_values or not facts.all_in(v),
    Operation.STARTS_WITH: lambda facts, v: facts.may_start_with(v[0]),
    Operation.NOT_STARTS_WITH: lambda facts, v: not facts.only_values or not facts.all_start_with(v[0]),
}
_MUST_MATCH: dict[Operation, Callable[[_Facts, _Values], bool]] = {
    Operation.IS_NULL: lambda facts, _: not facts.may_hold_values and not facts.may_hold_nan,
    Operation.NOT_NULL: lambda facts, _: not facts.may_hold_null,
    Operation.IS_NAN: lambda facts, _: not facts.may_hold_values and not facts.may_hold_null,
    Operation.NOT_NAN: lambda facts, _: not facts.may_hold_nan,
    Operation.LT: lambda facts, v: facts.only_values and facts.greatest is not None and bool(facts.greatest < v[0]),
    Operation.LT_EQ: lambda facts, v: facts.only_values and facts.greatest is not None and bool(facts.greatest <= v[0]),
    Operation.GT: lambda facts, v: facts.only_values and facts.least is not None and bool(facts.least > v[0]),
    Operation.GT_EQ: lambda facts, v: facts.only_values and facts.least is not None and bool(facts.least >= v[0]),
    Operation.EQ: lambda facts, v: facts.only_values and facts.all_in(v),
    Operation.IN: lambda facts, v: facts.only_values and facts.all_in(v),
    Operation.NOT_EQ: lambda facts, v: not facts.may_hold_null and not facts.may_hold_some(v),
    Operation.NOT_IN: lambda facts, v: not facts.may_hold_null and not facts.may_hold_some(v),
    Operation.STARTS_WITH: lambda facts, v: facts.only_values and facts.all_start_with(v[0]),
    Operation.NOT_STARTS_WITH: lambda facts, v: facts.only_values and not facts.may_start_with(v[0]),
}


def _may_match(predicate: BoundPredicate, facts: _Facts) -> bool:
    if predicate.bucket is not None:
        # Values of any bucket lie between any bounds.
        return facts.may_hold_values or (facts.may_hold_null and predicate.operation in TRUE_OF_NULL_TO_SOME)
    return _MAY_MATCH[predicate.operation](facts, predicate.values)


def _must_match(predicate: BoundPredicate, facts: _Facts) -> bool:
    return predicate.bucket is None and _MUST_MATCH[predicate.operation](facts, predicate.values)


def _facts_of_summary(predicate: BoundPredicate, summary: FieldSummary) -> _Facts:
    is_floating = predicate.field.type in (FLOAT, DOUBLE)
    lower, upper = _bounds(predicate, summary.lower_bound, summary.upper_bound)
    may_hold_nan = is_floating and summary.contains_nan is not False
    bounded = summary.lower_bound is not None or summary.upper_bound is not None
    return _Facts(
        may_hold_null=summary.contains_null,
        may_hold_nan=may_hold_nan,
        # Both bounds are null where all values are null or NaN; where they cannot be, the summary tells nothing.
        may_hold_values=bounded or not (summary.contains_null or may_hold_nan),
        lower=lower,
        upper=upper,
    )


def _facts_of_file(predicate: BoundPredicate, metrics: DataFile) -> _Facts:
    field_id, rows = predicate.field.field_id, metrics.record_count
    is_floating = predicate.field.type in (FLOAT, DOUBLE)
    values = _count(metrics.value_counts, field_id, rows)
    nulls = _count(metrics.null_value_counts, field_id, rows)
    nans = _count(metrics.nan_value_counts, field_id, rows) if is_floating else 0
    if (nulls or 0) + (nans or 0) > rows:
        nulls = nans = None
    lower, upper = _bounds(
        predicate, (metrics.lower_bounds or {}).get(field_id), (metrics.upper_bounds or {}).get(field_id)
    )
    # Rows that a writer counted as no value at all are null: their struct is.
    uncounted = values is not None and values < rows
    return _Facts(
        may_hold_null=(nulls != 0 or uncounted) and nans != rows,
        may_hold_nan=nans != 0 and nulls != rows,
        may_hold_values=(nulls or 0) + (nans or 0) < rows,
        lower=lower,
        upper=upper,
    )


def _count(counts: Mapping[int, int] | None, field_id: int, rows: int) -> int | None:
    """A count of a column's values, null where it is missing or cannot be one."""
    count = None if counts is None else counts.get(field_id)
    return count if count is not None and 0 <= count <= rows else None


def _bounds(predicate: BoundPredicate, lower: bytes | None, upper: bytes | None) -> tuple[Any, Any]:
    """The bounds as values of the field's present type, null where unknown: NaN as a bound makes both so, and a crossed pair."""
    if predicate.operation in UNARY_OPERATIONS:
        return None, None
    decoded = _decode(predicate.field.type, lower), _decode(predicate.field.type, upper)
    return (None, None) if any(bound != bound for bound in decoded) or are_crossed(*decoded) else decoded


def _decode(type_: Type, bound: bytes | None) -> Any:
    if bound is None:
        return None
    try:
        return value_from_bytes(type_, bound)
    except (InvalidTableError, UnsupportedError):
        return None
