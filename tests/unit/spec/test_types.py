import json
from typing import Any

import pytest
from hypothesis import given
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.types import IcebergType

import icekeep.spec.types
from icekeep.errors import InvalidTableError
from icekeep.spec.types import (
    INT,
    MAX_NESTING,
    STRING,
    UNKNOWN,
    VARIANT,
    DecimalType,
    GeographyType,
    GeometryType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    check_nesting,
    child_fields,
    decimal,
    field_from_json,
    field_to_json,
    fixed,
    parse_type,
    type_from_json,
    type_to_json,
    with_child_fields,
)
from kit.cases import for_each
from kit.examples import check_examples
from kit.strategies import PLAIN_TYPES, decimal_types, fixed_types, nested_types, primitive_types

STRUCT = StructType((NestedField(field_id=1, name="x", type=INT, required=True),))
LIST = ListType(element_id=2, element=STRUCT)
MAP = MapType(key_id=3, key=STRING, value_id=4, value=LIST, value_required=True)


@for_each("type_", [*PLAIN_TYPES, UNKNOWN, VARIANT], ids=str)
def test_a_simple_type_is_its_name(type_: PrimitiveType):
    assert parse_type(type_.name) is type_
    assert type_to_json(type_) == type_.name


@for_each(
    ("text", "type_"),
    [
        ("decimal(9,2)", decimal(9, 2)),
        ("decimal(9, 2)", decimal(9, 2)),
        ("decimal( 38 , 38 )", decimal(38, 38)),
        ("fixed[16]", fixed(16)),
        ("fixed[ 16 ]", fixed(16)),
        ("geometry", GeometryType("geometry")),
        ("geometry(srid:4326)", GeometryType("geometry", "srid:4326")),
        ("geography", GeographyType("geography")),
        ("geography(srid:4326)", GeographyType("geography", "srid:4326")),
        ("geography( srid:4326 ,spherical )", GeographyType("geography", "srid:4326", "spherical")),
        ("geometry (a, b)", GeometryType("geometry", "a, b")),
        ("geography(EPSG:4326(x))", GeographyType("geography", "EPSG:4326(x)")),
    ],
)
def test_parameters_are_read_with_or_without_spaces(text: str, type_: Type):
    assert parse_type(text) == type_
    assert parse_type(str(type_)) == type_


@given(primitive_types() | nested_types())
def test_types_survive_their_json(type_: Type):
    assert type_from_json(json.loads(json.dumps(type_to_json(type_)))) == type_


@given(primitive_types())
def test_texts_agree_with_pyiceberg(type_: PrimitiveType):
    theirs = IcebergType.handle_primitive_type(str(type_), lambda name: name)
    assert parse_type(str(theirs)) == type_


@given(nested_types())
def test_nested_json_agrees_with_pyiceberg(type_: Type):
    form = {
        "type": "struct",
        "schema-id": 0,
        "fields": [{"id": 999, "name": "c", "required": True, "type": type_to_json(type_)}],
    }
    theirs = json.loads(ForeignSchema.model_validate_json(json.dumps(form)).model_dump_json())
    assert type_from_json(theirs["fields"][0]["type"]) == type_


@given(decimal_types(), fixed_types())
def test_parameters_make_types_equal_and_hashable(one: DecimalType, other: Type):
    assert one == decimal(one.precision, one.scale)
    assert len({one, decimal(one.precision, one.scale), other}) == 2


@for_each(
    "form",
    [
        {"type": "struct", "fields": [], "comment": "x"},
        {"type": "list", "element-id": 1, "element": "int", "element-required": False, "comment": "x"},
        {
            "type": "map",
            "key-id": 1,
            "key": "int",
            "value-id": 2,
            "value": "int",
            "value-required": True,
            "comment": "x",
        },
        {"type": "struct", "fields": [{"id": 1, "name": "a", "type": "int", "required": False, "comment": "x"}]},
    ],
)
def test_keys_that_we_do_not_know_are_kept(form: dict[str, Any]):
    assert type_to_json(type_from_json(form)) == form


def test_a_field_keeps_its_comment_and_defaults():
    form = {
        "id": 1, "name": "a", "required": True, "type": "int",
        "doc": "note", "initial-default": 0, "write-default": 1,
    }  # fmt: skip
    field = field_from_json(form)
    assert (field.doc, field.initial_default, field.write_default) == ("note", 0, 1)
    assert field_to_json(field) == form


@pytest.mark.parametrize(
    ("texts", "other"),
    [
        (["geometry", "geometry(OGC:CRS84)", "geometry(ogc:crs84)"], "geometry(srid:4326)"),
        (
            ["geography", "geography(OGC:CRS84)", "geography(OGC:CRS84, spherical)", "geography(ogc:crs84, SPHERICAL)"],
            "geography(OGC:CRS84, karney)",
        ),
        (["geography(srid:1, vincenty)", "geography(SRID:1, Vincenty)"], "geography(srid:1)"),
    ],
)
def test_a_geo_type_equals_what_the_spec_puts_in_the_place_of_what_was_not_written(texts: list[str], other: str):
    types = [parse_type(text) for text in texts]
    assert all(one == another for one in types for another in types)
    assert len({*types, parse_type(other)}) == 2
    fields = {NestedField(field_id=1, name="g", type=type_).type for type_ in types}
    assert len(fields) == 1
    assert [str(type_) for type_ in types] == texts, "what was written survives"


def nested(levels: int, kind: str = "list") -> Any:
    form: Any = "int"
    for level in range(levels):
        if kind == "list":
            form = {"type": "list", "element-id": level, "element": form, "element-required": False}
        elif kind == "map":
            value = {"value-id": 2 * level + 1, "value": form, "value-required": False}
            form = {"type": "map", "key-id": 2 * level, "key": "int", **value}
        else:
            form = {"type": "struct", "fields": [{"id": level, "name": "a", "type": form, "required": False}]}
    return form


@pytest.mark.parametrize("kind", ["list", "map", "struct"])
def test_a_type_may_be_nested_to_a_limit_and_no_deeper(kind: str):
    deepest = type_from_json(nested(MAX_NESTING, kind))
    check_nesting(deepest)
    assert type_to_json(deepest) == nested(MAX_NESTING, kind)
    for levels in (MAX_NESTING + 1, 20_000):
        with pytest.raises(InvalidTableError, match="nested more than 100 levels deep"):
            type_from_json(nested(levels, kind))


def test_a_type_that_was_built_too_deep_is_refused_too():
    type_: Type = INT
    for level in range(5_000):
        type_ = ListType(element_id=level, element=type_)
    with pytest.raises(InvalidTableError, match="nested more than 100 levels deep"):
        check_nesting(type_)


@given(nested_types())
def test_a_type_is_made_again_of_its_child_fields(type_: Type):
    assert with_child_fields(type_, child_fields(type_)) == type_


def test_examples():
    check_examples("spec/types.txt", icekeep.spec.types, globals())
