"""Hypothesis strategies: primitive types, values of a type, nested types, schemas."""

from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from itertools import count
from typing import Any

from hypothesis import strategies as st

from icekeep.spec.schema import Schema
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
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
)

PLAIN_TYPES = (
    BOOLEAN, INT, LONG, FLOAT, DOUBLE, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS,
    STRING, UUID, BINARY,
)  # fmt: skip
"""The primitive types without parameters that have values."""

NANOSECOND_TYPES = (TIMESTAMP_NS, TIMESTAMPTZ_NS)

_PYTHON_YEARS_DAYS = (-719_162, 2_932_896)
_MICROS_PER_DAY = 86_400_000_000
_PLAIN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date": st.integers(-(2**31), 2**31 - 1),
    "time": st.integers(0, _MICROS_PER_DAY - 1),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), st.integers(-(2**63), 2**63 - 1)),
    "string": st.text(),
    "uuid": st.uuids(),
    "binary": st.binary(),
}


def decimal_types() -> st.SearchStrategy[DecimalType]:
    return st.integers(1, 38).flatmap(lambda precision: st.integers(0, precision).map(lambda s: decimal(precision, s)))


def fixed_types() -> st.SearchStrategy[FixedType]:
    return st.integers(1, 20).map(fixed)


def primitive_types() -> st.SearchStrategy[PrimitiveType]:
    """Every primitive type that has values."""
    return st.one_of(st.sampled_from(PLAIN_TYPES), decimal_types(), fixed_types())


def values_of(type_: Type) -> st.SearchStrategy[Any]:
    """Values of a type, never null, in the form of `icekeep.spec.values`, NaN and infinities among them."""
    match type_:
        case DecimalType(_, precision, scale):
            digits = st.integers(-(10**precision) + 1, 10**precision - 1)
            return digits.map(lambda number: Decimal(number).scaleb(-scale, Context(prec=50)))
        case FixedType(_, length):
            return st.binary(min_size=length, max_size=length)
        case PrimitiveType(name):
            return _PLAIN_VALUES[name]
        case ListType():
            return st.lists(values_of(type_.element), max_size=3).map(tuple)
        case MapType():
            return st.lists(st.tuples(values_of(type_.key), values_of(type_.value)), max_size=3).map(tuple)
        case StructType():
            return st.fixed_dictionaries({field.field_id: values_of(field.type) for field in type_.fields})
    raise AssertionError(type_)


def values_in_python_years(type_: PrimitiveType) -> st.SearchStrategy[Any]:
    """Values; dates and timestamps of the years 1 to 9999 only, which `datetime` and so PyIceberg can hold."""
    first, last = _PYTHON_YEARS_DAYS
    if type_ == DATE:
        return st.integers(first, last)
    if type_ in (TIMESTAMP, TIMESTAMPTZ):
        return st.integers(first * _MICROS_PER_DAY, (last + 1) * _MICROS_PER_DAY - 1)
    return values_of(type_)


@st.composite
def typed_values(
    draw: st.DrawFn,
    types: st.SearchStrategy[Any] | None = None,
    values: Callable[[Any], st.SearchStrategy[Any]] = values_of,
) -> tuple[Any, Any]:
    """A type and a value of it, of a primitive type unless told otherwise."""
    type_ = draw(primitive_types() if types is None else types)
    return type_, draw(values(type_))


def nested_types() -> st.SearchStrategy[Type]:
    """Structs, lists and maps, up to two levels deep, with field ids from 1."""
    return _types(depth=2).filter(lambda type_: not isinstance(type_, PrimitiveType))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Schemas that are valid: unique ids and names, some identifier fields, nested columns among the others."""
    ids = count(draw(st.integers(1, 1000)))
    fields = draw(_fields(ids, depth=2))
    identifiable = [
        f.field_id
        for f in fields
        if f.required and isinstance(f.type, PrimitiveType) and f.type.name not in ("float", "double")
    ]
    identifiers = draw(st.lists(st.sampled_from(identifiable), unique=True)) if identifiable else []
    return Schema(fields=fields, schema_id=draw(st.integers(0, 50)), identifier_field_ids=tuple(identifiers))


@st.composite
def _types(draw: st.DrawFn, ids: Iterator[int] | None = None, depth: int = 0) -> Type:
    ids = count(1) if ids is None else ids
    kind = draw(st.sampled_from(["primitive", "struct", "list", "map"] if depth else ["primitive"]))
    if kind == "struct":
        return StructType(draw(_fields(ids, depth - 1, fewest=1)))
    if kind == "list":
        return ListType(
            element_id=next(ids), element=draw(_types(ids, depth - 1)), element_required=draw(st.booleans())
        )
    if kind == "map":
        return MapType(
            key_id=next(ids),
            key=draw(_types(ids)),
            value_id=next(ids),
            value=draw(_types(ids, depth - 1)),
            value_required=draw(st.booleans()),
        )
    return draw(primitive_types())


@st.composite
def _fields(draw: st.DrawFn, ids: Iterator[int], depth: int, fewest: int = 0) -> tuple[NestedField, ...]:
    # A dot in a name could make two full names of columns the same, which is not a schema.
    names = draw(
        st.lists(
            st.text(st.characters(exclude_characters=".", codec="utf-8"), min_size=1),
            min_size=fewest,
            max_size=4,
            unique=True,
        )
    )
    return tuple(
        NestedField(
            field_id=next(ids),
            name=name,
            type=draw(_types(ids, depth)),
            required=draw(st.booleans()),
            doc=draw(st.none() | st.text()),
        )
        for name in names
    )
