import json
from typing import Any

from msgspec.structs import replace

from icekeep.spec.schema import PROPERTY, Schema, parse_name_mapping
from icekeep.spec.types import LONG, STRING, ListType, NestedField, StructType, Type
from icekeep.spec.updates import COLUMN_PROPERTIES, RemoveProperties, SetProperties, column_property_updates


def field(field_id: int, name: str, type_: Type = LONG) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_)


OLD = Schema(fields=(field(1, "a"), field(2, "s", StructType((field(3, "x"), field(4, "y")))), field(5, "b")))


def test_settings_by_column_follow_a_renamed_column_and_go_with_a_dropped_one():
    new = Schema(fields=(field(1, "aa"), field(2, "t", StructType((field(3, "x"),)))))
    properties = {f"{prefix}{name}": name for prefix in COLUMN_PROPERTIES for name in ("a", "s.x", "s.y", "b", "other")}
    removed, changed = column_property_updates(OLD, new, {**properties, "owner": "a"})
    assert isinstance(changed, SetProperties)
    assert changed.updates == {
        f"{p}{new}": old for p in COLUMN_PROPERTIES for new, old in (("aa", "a"), ("t.x", "s.x"))
    }
    assert isinstance(removed, RemoveProperties)
    assert set(removed.removals) == {f"{p}{name}" for p in COLUMN_PROPERTIES for name in ("a", "s.x", "s.y", "b")}


def test_names_that_are_swapped_swap_their_settings():
    new = Schema(fields=(field(1, "b"), *OLD.fields[1:2], field(5, "a")))
    prefix = COLUMN_PROPERTIES[0]
    updates = column_property_updates(OLD, new, {f"{prefix}a": "full", f"{prefix}b": "none"})
    assert updates == (SetProperties({f"{prefix}b": "full", f"{prefix}a": "none"}),)


def test_nothing_is_changed_where_no_property_names_a_column_that_changed():
    new = Schema(fields=(*OLD.fields, field(6, "c")))
    assert column_property_updates(OLD, new, {f"{COLUMN_PROPERTIES[0]}a": "full", "owner": "me"}) == ()


def mapping_after(mapping: list[dict[str, Any]], new: Schema) -> Any:
    updates = column_property_updates(OLD, new, {PROPERTY: json.dumps(mapping)})
    if not updates:
        return mapping
    (change,) = updates
    assert isinstance(change, SetProperties)
    parse_name_mapping(change.updates[PROPERTY])
    return json.loads(change.updates[PROPERTY])


A = {"names": ["a", "alpha"], "field-id": 1}
S = {"names": ["s"], "field-id": 2, "fields": [{"names": ["x"], "field-id": 3}]}


def test_the_name_mapping_learns_new_names_and_keeps_old_ones():
    new = Schema(fields=(field(1, "aa"), field(2, "s", StructType((field(3, "xx"), field(4, "y")))), field(5, "b")))
    assert mapping_after([A, S], new) == [
        {"names": ["a", "alpha", "aa"], "field-id": 1},
        {"names": ["s"], "field-id": 2, "fields": [{"names": ["x", "xx"], "field-id": 3}]},
    ]


def test_the_name_mapping_learns_added_fields_with_what_is_nested_in_them_and_no_others():
    tags = ListType(element_id=7, element=STRING)
    new = Schema(fields=(*OLD.fields, field(6, "tags", tags)))
    assert mapping_after([A], new) == [
        A, {"names": ["tags"], "field-id": 6, "fields": [{"names": ["element"], "field-id": 7}]},
    ]  # fmt: skip


def test_a_name_in_the_mapping_stands_for_the_column_that_has_it_now():
    dropped_and_added = Schema(fields=(field(6, "a"), *OLD.fields[1:]))
    assert mapping_after([A], dropped_and_added) == [
        {"names": ["alpha"], "field-id": 1},
        {"names": ["a"], "field-id": 6},
    ]


def test_a_mapping_that_says_it_already_stays():
    assert mapping_after([A, S], replace(OLD, fields=tuple(reversed(OLD.fields)))) == [A, S]


def test_a_mapping_that_nobody_can_read_is_left_alone():
    new = Schema(fields=(field(1, "aa"),))
    assert column_property_updates(OLD, new, {PROPERTY: "{"}) == ()
