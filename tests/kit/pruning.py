"""Random filters and statistics, true, damaged and absurd, from a seed: what the evaluator is compared on with its reference."""

import math
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.planning.manifests import METRICS
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    PREFIX_OPERATIONS,
    SET_OPERATIONS,
    UNARY_OPERATIONS,
    And,
    BoundPredicate,
    Expression,
    Not,
    Operation,
    Or,
    Predicate,
    bound_set,
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
    decimal,
    fixed,
)  # fmt: skip
from icekeep.spec.values import decimal_from_unscaled, value_to_bytes
from kit.choices import Random
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
