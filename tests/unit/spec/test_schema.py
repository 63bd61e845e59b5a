import datetime
import json
import uuid
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.types import IcebergType

import icekeep.spec.schema
import icekeep.spec.types
import kit.columns
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError
from icekeep.spec import schema as columns
from icekeep.spec.schema import (
    MappedField,
    Schema,
    assign_fresh_ids,
    check_format_version,
    default_to_json,
    initial_value,
    name_mapping_to_json,
    parse_name_mapping,
    schema_from_json,
    schema_to_json,
    validate_defaults,
    validate_schema,
    write_value,
)
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    MAX_COLUMN_ID,
    MAX_NESTING,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
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
    walk,
    with_child_fields,
)
from icekeep.spec.values import value_from_json, value_to_json
from kit.cases import for_each
from kit.columns import column
from kit.examples import check_examples
from kit.strategies import PLAIN_TYPES, decimal_types, fixed_types, nested_types, primitive_types, schemas, typed_values


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


@given(schemas())
def test_schemas_survive_their_json(schema: Schema):
    assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema


@given(schemas())
def test_json_agrees_with_pyiceberg(schema: Schema):
    theirs = ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema))).model_dump_json()
    assert schema_from_json(json.loads(theirs)) == schema


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
def test_v3_types_and_defaults_are_refused_in_older_tables(column: NestedField, version: int):
    schema = Schema(fields=(column,))
    with pytest.raises(InvalidTableError, match=r"column '(a|s\.a|l\.element)' .* only format version 3 has"):
        check_format_version(schema, version)
    check_format_version(schema, 3)


@given(schemas())
def test_other_schemas_fit_v1_unless_nanoseconds(schema: Schema):
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


def defaulted(type_: Type, field_id: int = 1, name: str = "a", **more: Any) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, **more)


def point(default: Any, x: Any = 0, y: Any = 0, **more: Any) -> NestedField:
    """The spec's example: a struct `point` with fields x and y."""
    inside = (
        defaulted(INT, 2, "x", initial_default=x, write_default=x),
        defaulted(INT, 3, "y", initial_default=y, write_default=y),
    )
    return defaulted(StructType(inside), 1, "point", initial_default=default, write_default=default, **more)


@pytest.mark.parametrize("value_of", [initial_value, write_value])
def test_struct_default_is_null_or_filled_by_fields(value_of):
    assert value_of(point(None)) is None
    assert value_of(point({})) == {2: 0, 3: 0}
    assert value_of(point({}, x=None, y=-1)) == {2: None, 3: -1}


@pytest.mark.parametrize("value_of", [initial_value, write_value])
def test_structs_in_structs_are_filled_too(value_of):
    inner = point({})
    outer = defaulted(StructType((inner, defaulted(STRING, 9, "s"))), 8, initial_default={}, write_default={})
    assert value_of(outer) == {1: {2: 0, 3: 0}, 9: None}
    assert value_of(defaulted(StructType((point(None),)), 8, initial_default={}, write_default={})) == {1: None}


@given(typed_values())
def test_every_value_of_a_primitive_type_can_be_a_default(typed):
    type_, value = typed
    try:
        stored = value_to_json(type_, value)
    except UnsupportedError:
        assume(False)
    column = defaulted(type_, initial_default=stored, write_default=stored)
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
        (StructType((defaulted(INT, 2, "x"),)), {"2": 1}, "it must be null or {}"),
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
            ListType(element_id=2, element=StructType((defaulted(INT, 3, "x", required=True),))),
            [{"3": None}],
            "null for a required value",
        ),
    ],
    ids=str,
)
def test_invalid_default_is_named_with_its_column(type_: Type, default: Any, problem: str):
    for key in ("initial_default", "write_default"):
        with pytest.raises(InvalidTableError) as raised:
            validate_defaults(defaulted(type_, **{key: default}), "s.a")
        assert problem in raised.value.message
        assert f"the {key.replace('_', '-')} {default!r} of column 's.a'" in raised.value.message
    with pytest.raises(UsageError):
        default_to_json(type_, default if type_ != decimal(9, 2) else "1.555")


def test_null_is_a_default_of_every_type():
    for type_ in (UNKNOWN, VARIANT, parse_type("geometry"), StructType(()), INT):
        validate_defaults(defaulted(type_), "a")
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


EXAMPLE = """[ { "field-id": 1, "names": ["id", "record_id"] },
   { "field-id": 2, "names": ["data"] },
   { "field-id": 3, "names": ["location"], "fields": [
       { "field-id": 4, "names": ["latitude", "lat"] },
       { "field-id": 5, "names": ["longitude", "long"] }
     ] } ]"""


def test_the_specs_example_is_read():
    mapping = parse_name_mapping(EXAMPLE)
    assert mapping == (
        MappedField(names=("id", "record_id"), field_id=1),
        MappedField(names=("data",), field_id=2),
        MappedField(
            names=("location",),
            field_id=3,
            fields=(
                MappedField(names=("latitude", "lat"), field_id=4),
                MappedField(names=("longitude", "long"), field_id=5),
            ),
        ),
    )
    assert name_mapping_to_json(mapping) == json.loads(EXAMPLE)


def test_names_may_be_none_and_ids_may_be_absent():
    text = '[{"names": [], "field-id": 1}, {"names": ["x"]}, {"names": ["y"], "field-id": null, "fields": null}]'
    assert parse_name_mapping(text) == (
        MappedField(names=(), field_id=1),
        MappedField(names=("x",)),
        MappedField(names=("y",)),
    )


BAD = [
    ("nonsense", "is not JSON"),
    ("{}", "is not a list of fields at its top"),
    ("[1]", "holds 1 at its top"),
    ('[{"field-id": 1}]', "whose 'names' are None"),
    ('[{"names": "x"}]', "whose 'names' are 'x'"),
    ('[{"names": [1]}]', r"whose 'names' are \[1\]"),
    ('[{"names": ["x"], "field-id": "1"}]', "whose 'field-id' is '1'"),
    ('[{"names": ["x"], "field-id": true}]', "whose 'field-id' is True"),
    ('[{"names": ["x"], "fields": {}}]', "is not a list of fields at 'x'"),
    ('[{"names": ["x"], "fields": [{"names": ["y"], "fields": [0]}]}]', r"holds 0 at 'x\.y'"),
    ('[{"names": ["x"]}, {"names": ["y", "x"]}]', "has the name 'x' twice at its top"),
    ('[{"names": ["x"], "field-id": 1}, {"names": ["y"], "fields": [{"names": ["z"], "field-id": 1}]}]', "the field id 1 twice"),
]  # fmt: skip


@for_each(("text", "message"), BAD)
def test_invalid_name_mapping_names_the_property(text, message):
    with pytest.raises(InvalidTableError, match=f"table property 'schema.name-mapping.default' .*{message}"):
        parse_name_mapping(text)


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_any_json_is_refused_or_round_trips_as_mapping(value):
    try:
        mapping = parse_name_mapping(json.dumps(value))
    except InvalidTableError:
        return
    assert parse_name_mapping(json.dumps(name_mapping_to_json(mapping))) == mapping


RESERVED = [
    (2147483646, "_file", "string", columns.FILE),
    (2147483645, "_pos", "long", columns.POS),
    (2147483644, "_deleted", "boolean", columns.DELETED),
    (2147483643, "_spec_id", "int", columns.SPEC_ID),
    (2147483642, "_partition", "struct<>", columns.partition_column([])),
    (2147483546, "file_path", "string", columns.DELETE_FILE_PATH),
    (2147483545, "pos", "long", columns.DELETE_FILE_POS),
    (2147483544, "row", "struct<>", columns.deleted_row_column(StructType(()))),
    (2147483540, "_row_id", "long", columns.ROW_ID),
    (2147483539, "_last_updated_sequence_number", "long", columns.LAST_UPDATED_SEQUENCE_NUMBER),
]


@for_each(("field_id", "name", "type_", "field"), RESERVED)
def test_the_specs_reserved_field_ids(field_id, name, type_, field):
    assert (field.field_id, field.name, str(field.type)) == (field_id, name, type_)
    assert field.field_id > MAX_COLUMN_ID


def test_partition_column_merges_fields_of_all_specs():
    first = StructType((column(1000, "a", INT), column(1001, "b", STRING, required=True)))
    second = StructType((column(1001, "b2", STRING), column(1002, "c", LONG)))
    fields = columns.partition_column([first, second]).type.fields
    assert [(f.field_id, f.name, f.required) for f in fields] == [
        (1000, "a", False),
        (1001, "b2", False),
        (1002, "c", False),
    ]


def test_examples():
    check_examples("spec/schema.txt", icekeep.spec.schema, icekeep.spec.types, kit.columns, globals())


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
def test_geo_types_equal_with_explicit_defaults(texts: list[str], other: str):
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


def test_examples_of_types():
    check_examples("spec/types.txt", icekeep.spec.types, globals())
