import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.schema import assign_fresh_schema_ids

from icekeep.errors import InvalidTableError, NotFoundError
from icekeep.spec.schema import (
    Schema,
    assign_fresh_ids,
    check_format_version,
    schema_from_json,
    schema_to_json,
    validate_schema,
)
from icekeep.spec.types import (
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP_NS,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    parse_type,
    walk,
)
from kit.cases import for_each
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


@pytest.mark.slow
@given(schemas())
def test_names_agree_with_pyiceberg(schema: Schema):
    theirs = ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema)))
    for field_id, name in schema.names_by_id.items():
        assert theirs.find_column_name(field_id) == name
        assert schema.ids_by_name[name] == field_id
    assert theirs.highest_field_id == schema.highest_field_id


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(NotFoundError, match=r"no column 'xyz'; the columns are id, cities, counts, home$"):
        SCHEMA.field("xyz")


def test_a_column_in_another_case_is_guessed():
    with pytest.raises(NotFoundError, match=r"^there is no column 'ID'; did you mean 'id'\?$"):
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


@for_each(
    "form",
    [
        None,
        [],
        {"type": "list", "fields": []},
        {"type": "struct"},
        {"type": "struct", "fields": [], "schema-id": "0"},
        {"type": "struct", "fields": [], "schema-id": None},
        {"type": "struct", "fields": [], "identifier-field-ids": 1},
        {"type": "struct", "fields": [], "identifier-field-ids": 0},
        {"type": "struct", "fields": [], "identifier-field-ids": ["1"]},
        {"type": "struct", "fields": [], "identifier-field-ids": [1]},
    ],
)
def test_json_that_is_no_schema_breaks_the_table(form: Any):
    with pytest.raises(InvalidTableError):
        schema_from_json(form)


def test_a_good_schema_is_given_back():
    assert validate_schema(SCHEMA) is SCHEMA


@for_each(
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


@for_each(
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


@pytest.mark.parametrize(
    "schema",
    [
        Schema(fields=(field(1, "u", UNKNOWN, required=True),)),
        Schema(fields=(field(1, "l", ListType(element_id=2, element=UNKNOWN, element_required=True)),)),
        Schema(fields=(field(1, "m", MapType(key_id=2, key=UNKNOWN, value_id=3, value=LONG)),)),
    ],
)
def test_an_unknown_column_is_optional(schema: Schema):
    with pytest.raises(InvalidTableError, match=r"of type unknown is required; it must be optional"):
        validate_schema(schema)
    validate_schema(Schema(fields=(field(1, "u", UNKNOWN),)))


def test_a_variant_does_not_identify_rows():
    with pytest.raises(InvalidTableError, match="column 'a' cannot identify rows"):
        validate_schema(Schema(fields=(field(1, "a", VARIANT, required=True),), identifier_field_ids=(1,)))


def test_a_default_that_is_none_for_its_type_breaks_the_table():
    form = {
        "type": "struct",
        "fields": [{"id": 1, "name": "a", "required": False, "type": "int", "write-default": "x"}],
    }
    with pytest.raises(InvalidTableError, match=r"write-default 'x' of column 'a' is none for its type int"):
        schema_from_json(form)


def test_a_schema_that_is_nested_too_deep_breaks_the_table():
    type_: Type = LONG
    for level in range(3_000):
        type_ = ListType(element_id=level + 2, element=type_)
    for check in (validate_schema, assign_fresh_ids):
        with pytest.raises(InvalidTableError, match="nested more than 100 levels"):
            check(Schema(fields=(field(1, "a", type_),)))


VERSION_3_COLUMNS = [
    *(field(1, "a", parse_type(t)) for t in ("timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography")),
    NestedField(field_id=1, name="a", type=LONG, initial_default=1),
    NestedField(field_id=1, name="a", type=LONG, write_default=1),
    field(2, "s", StructType((field(1, "a", UNKNOWN),))),
    field(2, "l", ListType(element_id=1, element=VARIANT)),
]  # fmt: skip


@for_each("column", VERSION_3_COLUMNS, ids=str)
@for_each("version", [1, 2])
def test_types_and_defaults_of_version_3_are_refused_in_older_tables(column: NestedField, version: int):
    schema = Schema(fields=(column,))
    with pytest.raises(InvalidTableError, match=r"column '(a|s\.a|l\.element)' .* only format version 3 has"):
        check_format_version(schema, version)
    check_format_version(schema, 3)


@given(schemas())
def test_other_schemas_fit_any_version_unless_they_count_nanoseconds(schema: Schema):
    has_nanoseconds = any(f.type in (TIMESTAMP_NS, TIMESTAMPTZ_NS) for f in schema.fields_by_id.values())
    try:
        check_format_version(schema, 1)
    except InvalidTableError:
        assert has_nanoseconds
    else:
        assert not has_nanoseconds


@given(schemas())
def test_a_nested_field_lies_in_its_parent(schema: Schema):
    for field_id, name in schema.names_by_id.items():
        parent = schema.parents_by_id.get(field_id)
        own = schema.fields_by_id[field_id].name
        assert name == (own if parent is None else f"{schema.names_by_id[parent.field_id]}.{own}")


def test_fresh_ids_do_not_need_ids_that_differ():
    city = StructType((field(0, "name", STRING), field(0, "zip", INT)))
    fresh = assign_fresh_ids(Schema(fields=(field(0, "a"), field(0, "b", ListType(element_id=0, element=city)))))
    assert {name: fresh.field(name).field_id for name in fresh.ids_by_name} == {
        "a": 1, "b": 2, "b.element": 3, "b.element.name": 4, "b.element.zip": 5,
    }  # fmt: skip


def test_an_identifier_that_no_column_has_is_refused_before_ids_are_assigned():
    with pytest.raises(InvalidTableError, match="field id 9 cannot identify rows"):
        assign_fresh_ids(Schema(fields=(field(1, "a", required=True),), identifier_field_ids=(9,)))


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
