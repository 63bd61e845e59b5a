import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionSpec as ForeignSpec
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.typedef import Record

import icekeep.spec.partitioning
import icekeep.spec.transforms
import icekeep.spec.types
from icekeep.spec.partitioning import (
    UNPARTITIONED,
    PartitionField,
    PartitionSpec,
    build_spec,
    partition_path,
    partition_type,
    spec_from_json,
    spec_to_json,
    validate_spec,
)
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.transforms import UnknownTransform, parse_transform
from icekeep.spec.types import (
    BINARY,
    DATE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    StructType,
)
from kit.cases import for_each
from kit.examples import check_examples

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


def test_specs_are_values():
    with pytest.raises(AttributeError):
        UNPARTITIONED.spec_id = 1
    with pytest.raises(AttributeError):
        field("a", "identity").name = "b"


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


def test_examples():
    check_examples(
        "spec/partitioning.txt", icekeep.spec.partitioning, icekeep.spec.transforms, icekeep.spec.types, globals()
    )
