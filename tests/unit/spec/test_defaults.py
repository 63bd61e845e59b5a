import datetime
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given

from icekeep.errors import InvalidTableError, UnsupportedError, UsageError
from icekeep.spec.schema import default_to_json, initial_value, validate_defaults, write_value
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
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    decimal,
    fixed,
    parse_type,
)
from icekeep.spec.values import value_from_json, value_to_json
from kit.cases import for_each
from kit.strategies import typed_values


def field(type_: Type, field_id: int = 1, name: str = "a", **more: Any) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, **more)


def point(default: Any, x: Any = 0, y: Any = 0, **more: Any) -> NestedField:
    """The spec's example: a struct `point` with fields x and y."""
    inside = (
        field(INT, 2, "x", initial_default=x, write_default=x),
        field(INT, 3, "y", initial_default=y, write_default=y),
    )
    return field(StructType(inside), 1, "point", initial_default=default, write_default=default, **more)


@pytest.mark.parametrize("value_of", [initial_value, write_value])
def test_a_struct_s_default_is_null_or_filled_by_its_fields_defaults(value_of):
    assert value_of(point(None)) is None
    assert value_of(point({})) == {2: 0, 3: 0}
    assert value_of(point({}, x=None, y=-1)) == {2: None, 3: -1}


@pytest.mark.parametrize("value_of", [initial_value, write_value])
def test_structs_in_structs_are_filled_too(value_of):
    inner = point({})
    outer = field(StructType((inner, field(STRING, 9, "s"))), 8, initial_default={}, write_default={})
    assert value_of(outer) == {1: {2: 0, 3: 0}, 9: None}
    assert value_of(field(StructType((point(None),)), 8, initial_default={}, write_default={})) == {1: None}


def test_the_fields_of_structs_in_lists_and_maps_are_filled_where_they_are_missing():
    inner = point(None).type
    lists = field(ListType(element_id=7, element=inner), initial_default=[{"2": 5}, None])
    assert initial_value(lists) == ({2: 5, 3: 0}, None)
    maps = field(MapType(key_id=7, key=STRING, value_id=8, value=inner), write_default={"keys": ["k"], "values": [{}]})
    assert write_value(maps) == (("k", {2: 0, 3: 0}),)


def test_initial_and_write_defaults_are_two():
    column = field(LONG, initial_default=1, write_default=2)
    assert (initial_value(column), write_value(column)) == (1, 2)
    assert (initial_value(field(LONG, write_default=2)), write_value(field(LONG, initial_default=1))) == (None, None)


def test_a_required_field_without_a_default_has_no_value():
    with pytest.raises(InvalidTableError, match=r"field 'a' \(id 1\) is required and has no initial-default"):
        initial_value(field(INT, required=True, write_default=1))
    with pytest.raises(UsageError, match=r"field 'a' \(id 1\) is required and has no write-default"):
        write_value(field(INT, required=True, initial_default=1))
    inside = StructType((field(INT, 2, "x", required=True),))
    with pytest.raises(InvalidTableError, match="field 'x'"):
        initial_value(field(inside, initial_default={}))


@given(typed_values())
def test_every_value_of_a_primitive_type_can_be_a_default(typed):
    type_, value = typed
    try:
        stored = value_to_json(type_, value)
    except UnsupportedError:
        assume(False)
    column = field(type_, initial_default=stored, write_default=stored)
    validate_defaults(column, "a")
    assert initial_value(column) == value_from_json(type_, stored) == write_value(column)
    assert default_to_json(type_, stored) == stored


@for_each(
    ("type_", "default", "problem"),
    [
        (INT, "1", "must be a whole number"),
        (INT, 2**31, "out of the range"),
        (DATE, "yesterday", "yesterday"),
        (decimal(9, 2), "1.5", "2 digits after the point"),
        (StructType((field(INT, 2, "x"),)), {"2": 1}, "it must be null or {}"),
        (StructType(()), [], "it must be null or {}"),
        (UNKNOWN, 1, "default to null"),
        (VARIANT, {}, "default to null"),
        (parse_type("geometry"), "POINT (30 10)", "default to null"),
        (parse_type("geography(srid:1)"), "POINT (30 10)", "default to null"),
        (ListType(element_id=2, element=INT), {}, "must be an array"),
        (ListType(element_id=2, element=VARIANT), [1], "variant"),
        (ListType(element_id=2, element=INT, element_required=True), [None], "null for a required value"),
        (MapType(key_id=2, key=INT, value_id=3, value=INT), {"keys": [None], "values": [1]}, "null for a required"),
        (
            ListType(element_id=2, element=StructType((field(INT, 3, "x", required=True),))),
            [{"3": None}],
            "null for a required value",
        ),
    ],
    ids=str,
)
def test_a_default_that_the_spec_does_not_allow_is_named_with_its_column(type_: Type, default: Any, problem: str):
    for key in ("initial_default", "write_default"):
        with pytest.raises(InvalidTableError) as raised:
            validate_defaults(field(type_, **{key: default}), "s.a")
        assert problem in raised.value.message
        assert f"the {key.replace('_', '-')} {default!r} of column 's.a'" in raised.value.message
    with pytest.raises(UsageError):
        default_to_json(type_, default if type_ != decimal(9, 2) else "1.555")


def test_null_is_a_default_of_every_type():
    for type_ in (UNKNOWN, VARIANT, parse_type("geometry"), StructType(()), INT):
        validate_defaults(field(type_), "a")
        assert default_to_json(type_, None) is None


@for_each(
    ("type_", "given_default", "stored"),
    [
        (decimal(9, 2), Decimal("1.5"), "1.50"),
        (decimal(9, 2), 3, "3.00"),
        (FLOAT, 1, 1.0),
        (DOUBLE, 1.1, 1.1),
        (DATE, datetime.date(2024, 1, 31), "2024-01-31"),
        (TIME, datetime.time(1, 2), "01:02:00"),
        (TIMESTAMP, datetime.datetime(2024, 1, 31, 5), "2024-01-31T05:00:00"),
        (TIMESTAMPTZ, datetime.datetime(2024, 1, 31, 5, tzinfo=datetime.UTC), "2024-01-31T05:00:00+00:00"),
        (UUID, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (BINARY, b"\x01\xff", "01ff"),
        (BOOLEAN, False, False),
        (StructType(()), {}, {}),
        (ListType(element_id=2, element=INT), [1, None], [1, None]),
    ],
    ids=str,
)
def test_a_user_s_default_is_stored_as_the_spec_writes_it(type_: Type, given_default: Any, stored: Any):
    assert value_from_json(type_, default_to_json(type_, given_default)) == value_from_json(type_, stored)
    assert default_to_json(type_, default_to_json(type_, given_default)) == default_to_json(type_, given_default)


@for_each(
    ("type_", "default"),
    [
        (decimal(9, 2), Decimal("NaN")),
        (decimal(9, 2), Decimal("1E+50")),
        (decimal(9, 2), True),
        (DOUBLE, float("nan")),
        (fixed(2), b"abc"),
        (INT, True),
    ],
    ids=str,
)
def test_a_value_that_is_none_of_the_type_is_no_default(type_: Type, default: Any):
    with pytest.raises(UsageError, match="is no default for the type"):
        default_to_json(type_, default)
