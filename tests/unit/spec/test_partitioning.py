import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionSpec as ForeignSpec
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.typedef import Record

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError, UsageError
from icekeep.spec.partitioning import (
    UNPARTITIONED,
    PartitionField,
    PartitionSpec,
    build_spec,
    last_assigned_field_id,
    partition_fields_from_json,
    partition_path,
    partition_type,
    spec_from_json,
    spec_to_json,
    validate_spec,
)
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.transforms import Bucket, Day, Identity, UnknownTransform, Void, parse_transform
from icekeep.spec.types import (
    BINARY,
    DATE,
    INT,
    LONG,
    OPAQUE,
    STRING,
    TIMESTAMP,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    StructType,
)
from kit.cases import for_each

SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG),
        NestedField(field_id=2, name="kind", type=STRING),
        NestedField(field_id=3, name="ts", type=TIMESTAMP),
        NestedField(field_id=4, name="day", type=DATE),
        NestedField(field_id=5, name="place", type=StructType((NestedField(field_id=6, name="city", type=STRING),))),
        NestedField(field_id=7, name="tags", type=ListType(element_id=8, element=STRING)),
        NestedField(field_id=9, name="counts", type=MapType(key_id=10, key=STRING, value_id=11, value=INT)),
        NestedField(field_id=12, name="raw", type=BINARY),
        NestedField(field_id=13, name="any", type=VARIANT),
        NestedField(field_id=14, name="ts_month", type=INT),
    )
)
WITHOUT_COLUMNS = Schema(fields=())


def field(name: str, transform: str, source_id: int = 2, field_id: int = 1000) -> PartitionField:
    return PartitionField(source_id=source_id, field_id=field_id, name=name, transform=parse_transform(transform))


def spec(*fields: PartitionField) -> PartitionSpec:
    return PartitionSpec(spec_id=3, fields=fields)


SPEC_EXAMPLE = {
    "spec-id": 3,
    "fields": [
        {"source-id": 4, "field-id": 1000, "name": "ts_day", "transform": "day"},
        {"source-id": 1, "field-id": 1001, "name": "id_bucket", "transform": "bucket[16]"},
    ],
}


def test_the_example_of_appendix_c_is_read():
    assert spec_from_json(SPEC_EXAMPLE) == PartitionSpec(
        spec_id=3,
        fields=(
            PartitionField(source_id=4, field_id=1000, name="ts_day", transform=Day()),
            PartitionField(source_id=1, field_id=1001, name="id_bucket", transform=Bucket(16)),
        ),
    )


@for_each(
    "form",
    [
        SPEC_EXAMPLE,
        {"spec-id": 0, "fields": []},
        {"spec-id": 0, "fields": [], "owner": {"a": [1]}},
        {
            "spec-id": 1,
            "fields": [{"source-id": 1, "field-id": 1000, "name": "z", "transform": "zorder[2]", "note": "x"}],
        },
        {"spec-id": 1, "fields": [{"source-ids": [1, 2], "field-id": 1000, "name": "z", "transform": "bucket[4]"}]},
        {
            "spec-id": 1,
            "fields": [{"source-id": 1, "source-ids": [1, 2], "field-id": 1000, "name": "z", "transform": "bucket[4]"}],
        },
    ],
)
def test_a_spec_is_written_as_it_was_read_with_keys_that_we_do_not_know(form: dict[str, Any]):
    assert spec_to_json(spec_from_json(form)) == form


def test_a_transform_of_several_columns_is_unknown():
    read = spec_from_json(
        {"spec-id": 1, "fields": [{"source-ids": [1, 2], "field-id": 1000, "name": "z", "transform": "bucket[4]"}]}
    )
    assert read.has_unknown_transform
    assert read.fields[0].transform == UnknownTransform("bucket[4]")
    assert read.fields[0].extra == {"source-ids": [1, 2]}


def test_fields_without_ids_are_numbered_from_1000():
    fields = partition_fields_from_json(
        [{"source-id": 4, "name": "a", "transform": "day"}, {"source-id": 1, "name": "b", "transform": "identity"}]
    )
    assert [f.field_id for f in fields] == [1000, 1001]


@for_each(
    "form",
    [
        None,
        [],
        {"fields": []},
        {"spec-id": "0", "fields": []},
        {"spec-id": True, "fields": []},
        {"spec-id": 0},
        {"spec-id": 0, "fields": {}},
        {"spec-id": 0, "fields": [1]},
        {"spec-id": 0, "fields": [{"source-id": 1, "transform": "day"}]},
        {"spec-id": 0, "fields": [{"source-id": 1, "name": "", "transform": "day"}]},
        {"spec-id": 0, "fields": [{"source-id": 1, "name": "a", "transform": "day", "field-id": "1000"}]},
        {"spec-id": 0, "fields": [{"source-id": 1, "name": "a", "transform": "bucket[0]"}]},
        {"spec-id": 0, "fields": [{"name": "a", "transform": "day"}]},
        {
            "spec-id": 0,
            "fields": [
                {"source-id": 1, "name": "a", "transform": "day", "field-id": 1000},
                {"source-id": 1, "name": "b", "transform": "day"},
            ],
        },
    ],
)
def test_json_that_is_no_spec_breaks_the_table(form: Any):
    with pytest.raises(InvalidTableError):
        spec_from_json(form)


def test_specs_are_values():
    with pytest.raises(AttributeError):
        UNPARTITIONED.spec_id = 1
    with pytest.raises(AttributeError):
        field("a", "identity").name = "b"


def test_a_spec_of_void_fields_partitions_nothing():
    assert UNPARTITIONED.is_unpartitioned
    assert UNPARTITIONED.spec_id == build_spec(SCHEMA, []).spec_id == 0
    assert spec(field("a", "void")).is_unpartitioned
    assert not spec(field("a", "void"), field("b", "identity", field_id=1001)).is_unpartitioned
    assert not UNPARTITIONED.has_unknown_transform


def test_new_fields_are_named_as_iceberg_s_java_library_names_them():
    built = build_spec(
        SCHEMA,
        [
            ("id", "bucket[16]", None),
            ("kind", "truncate[4]", None),
            ("kind", "identity", None),
            ("ts", "hour", None),
            ("day", "year", None),
            ("place.city", "identity", None),
            ("raw", "void", None),
            ("raw", "bucket[2]", "shard"),
        ],
        spec_id=7,
        first_field_id=1005,
    )
    names = ["id_bucket", "kind_trunc", "kind", "ts_hour", "day_year", "place.city", "raw_null", "shard"]
    assert [f.name for f in built.fields] == names
    assert [f.field_id for f in built.fields] == list(range(1005, 1013))
    assert [f.source_id for f in built.fields] == [1, 2, 2, 3, 4, 6, 12, 12]
    assert built.spec_id == 7


@for_each(
    ("columns", "problem"),
    [
        ([("id", "bucket[0]", None)], "not between 1 and"),
        ([("id", "zorder", None)], "no transform 'zorder'"),
        ([("id", "day", None)], "'day' does not take column 'id' of type long"),
        ([("any", "identity", None)], "does not take column"),
        ([("place", "identity", None)], "is not primitive"),
        ([("tags.element", "identity", None)], "in a list or a map"),
        ([("counts.value", "identity", None)], "in a list or a map"),
        ([("ts", "month", None)], "has the name of a column"),
        ([("id", "identity", "kind")], "has the name of a column"),
        ([("id", "bucket[4]", "id")], "has the name of a column"),
        ([("id", "identity", "")], "needs a name"),
        ([("id", "bucket[4]", "a"), ("kind", "identity", "a")], "two fields have the name 'a'"),
        ([("id", "identity", None), ("id", "identity", "b")], "redundant"),
        ([("id", "bucket[4]", None), ("id", "bucket[4]", "b")], "redundant"),
        ([("ts", "day", None), ("ts", "hour", None)], "field 'ts_hour' is redundant beside 'ts_day'"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(columns: list[Any], problem: str):
    with pytest.raises(UsageError, match=problem):
        build_spec(SCHEMA, columns)


def test_different_transforms_of_one_column_are_not_redundant():
    assert (
        len(build_spec(SCHEMA, [("id", "bucket[4]", "a"), ("id", "bucket[8]", "b"), ("id", "identity", None)]).fields)
        == 3
    )


def test_partitioning_by_a_column_that_is_not_there_is_refused():
    with pytest.raises(NotFoundError):
        build_spec(SCHEMA, [("nope", "identity", None)])


def test_identity_and_void_fields_may_carry_their_column_s_name():
    built = build_spec(SCHEMA, [("id", "identity", "id"), ("kind", "void", "kind")])
    assert [f.transform for f in built.fields] == [Identity(), Void()]


@for_each(
    ("fields", "problem"),
    [
        ([field("a", "identity"), field("b", "bucket[2]")], "two fields have the id 1000"),
        ([field("a", "identity"), field("a", "bucket[2]", field_id=1001)], "two fields have the name 'a'"),
        ([field("a", "identity", source_id=99)], "source column 99"),
        ([field("a", "identity", source_id=8)], "in a list or a map"),
        ([field("a", "identity", source_id=5)], "not primitive"),
        ([field("a", "year")], "does not take"),
    ],
)
def test_a_spec_that_does_not_fit_the_schema_breaks_the_table(fields: list[PartitionField], problem: str):
    with pytest.raises(InvalidTableError, match=problem):
        validate_spec(spec(*fields), SCHEMA)


def test_void_and_unknown_fields_may_have_lost_their_column():
    lost = spec(field("a", "void", source_id=99), field("b", "zorder", source_id=99, field_id=1001))
    assert validate_spec(lost, SCHEMA) is lost


def test_the_partition_type_has_the_fields_of_the_spec_all_optional():
    built = build_spec(
        SCHEMA, [("ts", "day", None), ("id", "bucket[4]", None), ("kind", "identity", None), ("raw", "void", None)]
    )
    assert partition_type(built, SCHEMA) == StructType(
        (
            NestedField(field_id=1000, name="ts_day", type=DATE),
            NestedField(field_id=1001, name="id_bucket", type=INT),
            NestedField(field_id=1002, name="kind", type=STRING),
            NestedField(field_id=1003, name="raw_null", type=BINARY),
        )
    )


def test_transforms_with_one_result_type_do_not_need_their_column_any_more():
    texts = ["bucket[4]", "year", "month", "day", "hour", "void", "zorder"]
    fields = [field(f"f{i}", text, field_id=1000 + i) for i, text in enumerate(texts)]
    types = partition_type(spec(*fields), WITHOUT_COLUMNS)
    assert tuple(f.type for f in types.fields) == (INT, INT, INT, DATE, INT, STRING, OPAQUE)


@pytest.mark.parametrize("transform", ["identity", "truncate[4]"])
def test_values_of_a_lost_column_have_no_type(transform: str):
    with pytest.raises(InvalidTableError, match="is not in schema 0"):
        partition_type(spec(field("a", transform)), WITHOUT_COLUMNS)


@for_each(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("a b", "a+b"),
        ("a/b=c&d", "a%2Fb%3Dc%26d"),
        ("-_.*", "-_.*"),
        ("~", "%7E"),
        ("a+b%", "a%2Bb%25"),
        ("é", "%C3%A9"),
        ("😀", "%F0%9F%98%80"),
        ("..", ".."),
        ("", ""),
        (None, "null"),
        ("null", "null"),
    ],
)
def test_values_are_escaped_as_java_s_url_encoder_does(value: str | None, text: str):
    assert partition_path(spec(field("kind", "identity")), SCHEMA, (value,)) == f"kind={text}"


def test_names_are_escaped_too_and_fields_are_joined_by_slashes():
    fields = (field("a b/c", "identity"), field("ts_day", "day", source_id=3, field_id=1001))
    assert partition_path(spec(*fields), SCHEMA, ("x", 15710)) == "a+b%2Fc=x/ts_day=2013-01-05"


def test_an_unpartitioned_table_has_no_partition_directory():
    assert partition_path(UNPARTITIONED, SCHEMA, ()) == ""


def test_a_partition_with_a_value_too_few_is_a_bug():
    with pytest.raises(IcekeepBug):
        partition_path(spec(field("kind", "identity")), SCHEMA, ())


def test_the_last_assigned_id_is_over_all_specs():
    assert last_assigned_field_id([]) == 999
    assert last_assigned_field_id([UNPARTITIONED]) == 999
    assert last_assigned_field_id([spec(field("a", "year", field_id=1007)), spec(field("a", "year"))]) == 1007


COLUMNS = st.lists(
    st.sampled_from(
        [
            ("id", "bucket[4]"),
            ("id", "identity"),
            ("kind", "truncate[3]"),
            ("kind", "identity"),
            ("ts", "day"),
            ("day", "month"),
            ("place.city", "identity"),
            ("raw", "void"),
        ]
    ),
    unique=True,
)
PYICEBERG_KNOWS = Schema(fields=tuple(f for f in SCHEMA.fields if f.type != VARIANT))
# PyIceberg escapes "*" and keeps "~", other than Java.
PARTITION_VALUES = {
    "int": st.integers(0, 3),
    "long": st.integers(-(2**63), 2**63 - 1),
    "date": st.integers(-100_000, 100_000),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="*~")),
    "binary": st.binary(),
}


@given(st.data(), COLUMNS)
def test_specs_types_and_paths_agree_with_pyiceberg(data: st.DataObject, columns: list[tuple[str, str]]):
    built = build_spec(PYICEBERG_KNOWS, [(column, text, None) for column, text in columns])
    foreign_schema = ForeignSchema.model_validate_json(json.dumps(schema_to_json(PYICEBERG_KNOWS)))
    theirs = ForeignSpec.model_validate_json(json.dumps(spec_to_json(built)))
    assert json.loads(theirs.model_dump_json()) == spec_to_json(built)
    types = [str(f.type) for f in partition_type(built, PYICEBERG_KNOWS).fields]
    assert [str(f.field_type) for f in theirs.partition_type(foreign_schema).fields] == types
    values = [data.draw(st.none() | PARTITION_VALUES[type_]) for type_ in types]
    path = theirs.partition_to_path(Record(*values), foreign_schema)
    assert partition_path(built, PYICEBERG_KNOWS, tuple(values)) == path
