import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.name_mapping import parse_mapping_from_json as parse_with_pyiceberg

from icekeep.errors import InvalidTableError
from icekeep.spec.schema import (
    MappedField,
    find_mapped_field,
    name_mapping_for,
    name_mapping_of,
    name_mapping_to_json,
    parse_name_mapping,
)
from kit.cases import for_each
from kit.columns import EVERY_TYPE, pyiceberg_schema

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
    assert find_mapped_field(mapping, "record_id") == mapping[0]
    assert find_mapped_field(mapping, "lat") is None
    assert name_mapping_to_json(mapping) == json.loads(EXAMPLE)


def test_a_table_without_the_property_has_no_mapping():
    assert name_mapping_of({}) is None
    assert name_mapping_of({"schema.name-mapping.default": "[]"}) == ()


def test_names_may_be_none_and_ids_may_be_absent():
    text = '[{"names": [], "field-id": 1}, {"names": ["x"]}, {"names": ["y"], "field-id": null, "fields": null}]'
    assert parse_name_mapping(text) == (
        MappedField(names=(), field_id=1),
        MappedField(names=("x",)),
        MappedField(names=("y",)),
    )


def test_a_name_with_a_dot_is_one_name():
    mapping = parse_name_mapping('[{"names": ["a.b"], "field-id": 1}, {"names": ["a"], "fields": [{"names": ["b"]}]}]')
    assert find_mapped_field(mapping, "a.b").field_id == 1


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
def test_a_mapping_that_is_none_is_an_invalid_table_that_names_the_property(text, message):
    with pytest.raises(InvalidTableError, match=f"table property 'schema.name-mapping.default' .*{message}"):
        parse_name_mapping(text)


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_any_other_json_is_an_invalid_table_or_a_mapping_that_is_written_back(value):
    try:
        mapping = parse_name_mapping(json.dumps(value))
    except InvalidTableError:
        return
    assert parse_name_mapping(json.dumps(name_mapping_to_json(mapping))) == mapping


def test_pyiceberg_makes_the_same_mapping_of_a_schema_and_reads_ours():
    ours = json.dumps(name_mapping_to_json(name_mapping_for(EVERY_TYPE)))
    theirs = create_mapping_from_schema(pyiceberg_schema(EVERY_TYPE))
    assert parse_with_pyiceberg(ours) == theirs
    assert parse_name_mapping(theirs.model_dump_json()) == name_mapping_for(EVERY_TYPE)
