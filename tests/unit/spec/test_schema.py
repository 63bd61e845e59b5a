import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.schema import assign_fresh_schema_ids

from icekeep.errors import InvalidTableError, NotFoundError
from icekeep.spec.schema import Schema, assign_fresh_ids, schema_from_json, schema_to_json, validate_schema
from icekeep.spec.types import (
    DOUBLE,
    INT,
    LONG,
    STRING,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    walk,
)
from kit.strategies import schemas


def field(field_id: int, name: str, type_: Type = LONG, required: bool = False) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, required=required)


CITY = StructType((field(6, "name", STRING, required=True), field(7, "zip", INT)))
SCHEMA = Schema(
    fields=(
        field(1, "id", required=True),
        field(2, "cities", ListType(element_id=3, element=CITY)),
        field(4, "counts", MapType(key_id=5, key=STRING, value_id=8, value=LONG)),
        field(9, "home", StructType((field(10, "street", STRING, required=True),)), required=True),
    ),
    schema_id=3,
    identifier_field_ids=(1,),
)


def test_columns_are_found_by_their_full_names():
    names = ["id", "cities", "cities.element", "cities.element.name", "cities.element.zip"]
    names += ["counts", "counts.key", "counts.value", "home", "home.street"]
    assert sorted(SCHEMA.ids_by_name) == sorted(names)
    assert SCHEMA.field("cities.element.zip").field_id == 7
    assert SCHEMA.names_by_id[8] == "counts.value"
    assert SCHEMA.fields_by_id[3].type == CITY
    assert SCHEMA.highest_field_id == 10


@given(schemas())
def test_names_agree_with_pyiceberg(schema: Schema):
    theirs = ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema)))
    for field_id, name in schema.names_by_id.items():
        assert theirs.find_column_name(field_id) == name
        assert schema.ids_by_name[name] == field_id
    assert theirs.highest_field_id == schema.highest_field_id


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(NotFoundError, match="no column 'ID'; the columns are id, cities, counts, home"):
        SCHEMA.field("ID")


def test_a_schema_without_columns_has_no_highest_id():
    assert Schema(fields=()).highest_field_id == 0


@given(schemas())
def test_schemas_survive_their_json(schema: Schema):
    assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema


@given(schemas())
def test_json_agrees_with_pyiceberg(schema: Schema):
    theirs = ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema))).model_dump_json()
    assert schema_from_json(json.loads(theirs)) == schema


def test_keys_that_we_do_not_know_are_kept():
    form = {"type": "struct", "schema-id": 1, "fields": [], "owner": {"a": [1]}}
    assert schema_to_json(schema_from_json(form)) == form


def test_a_v1_schema_has_id_0():
    assert schema_from_json({"type": "struct", "fields": []}) == Schema(fields=())


@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        {"type": "list", "fields": []},
        {"type": "struct"},
        {"type": "struct", "fields": [], "schema-id": "0"},
        {"type": "struct", "fields": [], "schema-id": None},
        {"type": "struct", "fields": [], "identifier-field-ids": 1},
        {"type": "struct", "fields": [], "identifier-field-ids": ["1"]},
        {"type": "struct", "fields": [], "identifier-field-ids": [1]},
    ],
)
def test_json_that_is_no_schema_breaks_the_table(form: Any):
    with pytest.raises(InvalidTableError):
        schema_from_json(form)


def test_a_good_schema_is_given_back():
    assert validate_schema(SCHEMA) is SCHEMA


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ((field(1, "a"), field(1, "b")), "field id 1 twice"),
        ((field(1, "a"), field(2, "b", ListType(element_id=1, element=INT))), "field id 1 twice"),
        ((field(2147483448, "a"),), "reserved field id"),
        ((field(1, "a"), field(2, "a")), "two fields named 'a'"),
        ((field(1, "a", StructType((field(2, "b"), field(3, "b")))),), "two fields named 'a.b'"),
        ((field(1, "a", StructType((field(2, "b"),))), field(3, "a.b")), "two fields named 'a.b'"),
    ],
)
def test_ids_and_names_are_unique(fields: tuple[NestedField, ...], problem: str):
    with pytest.raises(InvalidTableError, match=problem):
        validate_schema(Schema(fields=fields))


def test_the_greatest_id_that_is_not_reserved_is_fine():
    validate_schema(Schema(fields=(field(2147483447, "a"),)))


@pytest.mark.parametrize("field_id", [1, 10])
def test_required_primitives_identify_rows(field_id: int):
    validate_schema(msgspec.structs.replace(SCHEMA, identifier_field_ids=(field_id,)))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(fields=(field(1, "a", required=True),), identifier_field_ids=(2,)),
        Schema(fields=(field(1, "a"),), identifier_field_ids=(1,)),
        Schema(fields=(field(1, "a", DOUBLE, required=True),), identifier_field_ids=(1,)),
        Schema(fields=(field(1, "a", CITY, required=True),), identifier_field_ids=(1,)),
        Schema(fields=(field(1, "a", CITY),), identifier_field_ids=(6,)),
        Schema(
            fields=(field(1, "a", ListType(element_id=2, element=CITY, element_required=True), required=True),),
            identifier_field_ids=(6,),
        ),
    ],
)
def test_other_fields_do_not_identify_rows(schema: Schema):
    with pytest.raises(InvalidTableError, match="cannot identify rows"):
        validate_schema(schema)


def test_schemas_with_other_ids_may_have_the_same_columns():
    other = msgspec.structs.replace(SCHEMA, schema_id=9)
    assert other != SCHEMA
    assert SCHEMA.same_columns(other)
    assert not SCHEMA.same_columns(msgspec.structs.replace(SCHEMA, identifier_field_ids=()))
    assert not SCHEMA.same_columns(msgspec.structs.replace(SCHEMA, fields=SCHEMA.fields[:1]))


def test_a_changed_copy_does_not_keep_the_old_lookups():
    assert SCHEMA.ids_by_name["id"] == 1
    assert "id" not in msgspec.structs.replace(SCHEMA, fields=(field(1, "key"),), identifier_field_ids=()).ids_by_name


def test_a_schema_can_cross_to_another_process():
    assert pickle.loads(pickle.dumps(SCHEMA)) == SCHEMA


@given(schemas())
def test_fresh_ids_agree_with_pyiceberg(schema: Schema):
    fresh = assign_fresh_ids(schema)
    theirs = assign_fresh_schema_ids(ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema))))
    assert fresh == schema_from_json(json.loads(theirs.model_dump_json()))


@given(schemas())
def test_fresh_ids_count_from_1_and_change_nothing_else(schema: Schema):
    fresh = assign_fresh_ids(schema)
    assert sorted(fresh.fields_by_id) == list(range(1, len(schema.fields_by_id) + 1))
    assert [f.name for f in walk(fresh.as_struct())] == [f.name for f in walk(schema.as_struct())]
    names = {schema.names_by_id[i] for i in schema.identifier_field_ids}
    assert {fresh.names_by_id[i] for i in fresh.identifier_field_ids} == names
