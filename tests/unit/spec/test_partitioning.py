import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyiceberg.partitioning import PartitionSpec as ForeignSpec
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.typedef import Record

import icekeep.spec.partitioning
import icekeep.spec.transforms
import icekeep.spec.types
from icekeep.errors import NotFoundError, UsageError
from icekeep.spec.evolution import (
    AddPartitionField,
    PartitionChange,
    RemovePartitionField,
    RenamePartitionField,
    evolve_spec,
    has_sequential_ids,
    same_fields,
)
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import (
    UNPARTITIONED,
    PartitionField,
    PartitionSpec,
    build_spec,
    last_assigned_field_id,
    partition_path,
    partition_type,
    spec_from_json,
    spec_to_json,
    validate_spec,
)
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.transforms import UnknownTransform, Void, parse_transform
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
    Type,
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
def test_spec_json_round_trips_with_unknown_keys(form: dict[str, Any]):
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


def test_partition_fields_are_named_as_in_java():
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


def test_partition_type_fields_are_all_optional():
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


Add, Remove, Rename = AddPartitionField, RemovePartitionField, RenamePartitionField


def part(field_id: int, name: str, type_: Type) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_)


SOURCES = Schema(
    fields=(
        part(1, "id", LONG),
        part(2, "ts", TIMESTAMP),
        part(3, "kind", STRING),
        part(4, "place", StructType((part(5, "code", STRING),))),
        part(6, "tags", ListType(element_id=7, element=STRING)),
        part(8, "n", INT),
    )
)


def table(*columns: tuple[str, str], version: int = 2) -> TableMetadata:
    spec = build_spec(SOURCES, [(*column, None)[:3] for column in columns])
    return new_table_metadata(
        schema=SOURCES, spec=spec, location="s3://b/t", table_uuid="u", now_ms=0, format_version=version
    )


def committed(base: TableMetadata, *changes: PartitionChange) -> TableMetadata:
    spec = evolve_spec(base, changes)
    specs = base.partition_specs if spec.spec_id in base.specs_by_id else (*base.partition_specs, spec)
    last = max(base.last_partition_id, last_assigned_field_id(specs))
    return replace(base, partition_specs=specs, default_spec_id=spec.spec_id, last_partition_id=last)


def shown(spec: PartitionSpec | TableMetadata) -> list[tuple[str, int, str]]:
    spec = spec.spec if isinstance(spec, TableMetadata) else spec
    return [(f.name, f.field_id, str(f.transform)) for f in spec.fields]


def refused(base: TableMetadata, *changes: PartitionChange, error: type[Exception] = UsageError) -> str:
    with pytest.raises(error) as raised:
        evolve_spec(base, changes)
    return str(raised.value)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_added_fields_get_new_ids_and_java_names(version: int):
    base = table(("ts", "day"), version=version)
    spec = evolve_spec(
        base,
        [Add("id", "bucket[16]"), Add("kind", "truncate[4]"), Add("place.code"), Add("n", "void"), Add("n", name="nn")],
    )
    assert shown(spec) == [
        ("ts_day", 1000, "day"),
        ("id_bucket_16", 1001, "bucket[16]"),
        ("kind_trunc_4", 1002, "truncate[4]"),
        ("place.code", 1003, "identity"),
        ("n_null", 1004, "void"),
        ("nn", 1005, "identity"),
    ]
    assert spec.spec_id == 1
    assert [f.source_id for f in spec.fields] == [2, 1, 3, 5, 8, 8]


@pytest.mark.parametrize("version", [2, 3])
def test_a_removed_field_is_gone(version: int):
    assert shown(committed(table(("ts", "day"), ("id", "bucket[4]"), version=version), Remove("ts_day"))) == [
        ("id_bucket", 1001, "bucket[4]")
    ]


def test_removed_v1_field_becomes_void():
    """A removed field of a version 1 table keeps its place, id and name."""
    after = committed(table(("ts", "day"), ("id", "bucket[4]"), version=1), Remove("ts_day"))
    assert shown(after) == [("ts_day", 1000, "void"), ("id_bucket", 1001, "bucket[4]")]
    again = committed(after, Add("ts", "month"))
    assert shown(again) == [*shown(after), ("ts_month", 1002, "month")]
    assert "was removed already" in refused(again, Remove("ts_day"))


def test_removed_v1_field_frees_its_name():
    removed = committed(table(("ts", "day"), version=1), Remove("ts_day"))
    assert shown(committed(removed, Add("ts", "day"))) == [("ts_day_1000", 1000, "void"), ("ts_day", 1001, "day")]
    both = table(("ts", "day"), ("id", "bucket[4]"), version=1)
    for after in (
        committed(both, Remove("ts_day"), Rename("id_bucket", "ts_day")),
        committed(committed(both, Remove("ts_day")), Rename("id_bucket", "ts_day")),
    ):
        assert shown(after) == [("ts_day_1000", 1000, "void"), ("ts_day", 1001, "bucket[4]")]


def test_void_fields_of_upgraded_table_can_be_removed():
    upgraded = replace(committed(table(("ts", "day"), version=1), Remove("ts_day")), format_version=2)
    assert shown(committed(upgraded, Add("id", name="ts_day"))) == [
        ("ts_day_1000", 1000, "void"),
        ("ts_day", 1001, "identity"),
    ]
    assert shown(committed(upgraded, Remove("ts_day"))) == []


def test_readded_field_gets_its_former_id_and_name():
    base = committed(table(("ts", "day"), ("id", "bucket[4]")), Remove("ts_day"))
    base = committed(base, Add("n"))
    assert shown(committed(base, Add("ts", "day"))) == [
        ("id_bucket", 1001, "bucket[4]"), ("n", 1002, "identity"), ("ts_day", 1000, "day"),
    ]  # fmt: skip
    assert shown(committed(base, Add("ts", "day", "ts_day")))[-1] == ("ts_day", 1000, "day")
    assert shown(committed(base, Add("ts", "day", "d")))[-1] == ("d", 1003, "day"), (
        "another name is another field, as in Java"
    )
    assert shown(committed(base, Add("ts", "month")))[-1] == ("ts_month", 1003, "month")


def test_the_newest_name_of_an_earlier_field_counts():
    base = committed(table(("ts", "day"), ("id", "identity")), Rename("ts_day", "d"))
    base = committed(base, Remove("d"))
    assert shown(committed(base, Add("ts", "day")))[-1] == ("d", 1000, "day")
    assert shown(committed(base, Add("ts", "day", "ts_day")))[-1] == ("ts_day", 1000, "day")


def test_a_void_field_of_version_1_keeps_its_id_to_itself():
    base = committed(table(("ts", "day"), version=1), Remove("ts_day"))
    assert shown(committed(base, Add("ts", "day", "d")))[-1] == ("d", 1001, "day")
    upgraded = replace(base, format_version=2)
    assert shown(committed(upgraded, Add("ts", "day", "d")))[-1] == ("d", 1001, "day")
    without = committed(upgraded, Remove("ts_day"))
    # Void values leave no doubt about what the id stands for.
    again = committed(without, Add("n"), Add("ts", "day"))
    assert shown(again) == [("n", 1001, "identity"), ("ts_day", 1000, "day")]


def test_v1_table_on_shorter_spec_gets_longer_one_again():
    longer = committed(table(("ts", "day"), version=1), Add("id"))
    shorter = replace(longer, default_spec_id=0)
    assert evolve_spec(shorter, [Add("id")]) == longer.spec
    assert "upgrade the table" in refused(shorter, Add("n"))


def test_ambiguous_v1_field_id_is_not_reused():
    def spec(spec_id: int, name: str, column: str, transform: str) -> PartitionSpec:
        return replace(build_spec(SOURCES, [(column, transform, name)]), spec_id=spec_id)

    base = table(("ts", "day"))
    both = replace(base, partition_specs=(base.spec, spec(1, "i", "id", "bucket[4]")), default_spec_id=1)
    assert shown(committed(both, Add("ts", "day"))) == [("i", 1000, "bucket[4]"), ("ts_day", 1001, "day")]
    none = replace(
        both, partition_specs=(*both.partition_specs, PartitionSpec(spec_id=2, fields=())), default_spec_id=2
    )
    assert shown(committed(none, Add("n"), Add("ts", "day"))) == [("n", 1001, "identity"), ("ts_day", 1002, "day")]


@pytest.mark.parametrize("version", [1, 2])
def test_field_removed_and_readded_keeps_its_place(version: int):
    base = table(("ts", "day"), ("id", "bucket[4]"), version=version)
    assert evolve_spec(base, [Remove("ts_day"), Add("ts", "day")]) == base.spec
    assert shown(evolve_spec(base, [Remove("ts_day"), Add("ts", "day", "d")])) == [
        ("d", 1000, "day"), ("id_bucket", 1001, "bucket[4]"),
    ]  # fmt: skip


def test_a_renamed_field_keeps_its_id_and_place():
    assert shown(committed(table(("ts", "day"), ("id", "bucket[4]")), Rename("ts_day", "d"))) == [
        ("d", 1000, "day"), ("id_bucket", 1001, "bucket[4]"),
    ]  # fmt: skip


def test_names_can_be_swapped():
    after = committed(
        table(("ts", "day"), ("id", "bucket[4]")),
        Rename("ts_day", "t"),
        Rename("id_bucket", "ts_day"),
        Rename("t", "id_bucket"),
    )
    assert shown(after) == [("id_bucket", 1000, "day"), ("ts_day", 1001, "bucket[4]")]


def test_the_same_transform_of_a_column_is_there_once():
    base = table(("ts", "day"))
    assert refused(base, Add("ts", "day", "d")) == "partition field 'ts_day' is 'day' of column 'ts' already"
    assert "'i' is 'identity' of column 'id' already" in refused(base, Add("id", name="i"), Add("id"))


@pytest.mark.parametrize("unit", ["year", "month", "hour"])
def test_two_times_of_one_column_are_redundant(unit: str):
    base = table(("ts", "day"))
    assert refused(base, Add("ts", unit)) == (
        f"partition field 'ts_{unit}' is redundant beside 'ts_day': both are times of one column; remove one of them"
    )
    assert "redundant" in refused(table(), Add("ts", unit), Add("ts", "day"))
    assert "redundant" in refused(base, Remove("ts_day"), Add("ts", unit), Add("ts", "day"))
    assert shown(evolve_spec(base, [Add("ts", unit), Remove("ts_day")])) == [(f"ts_{unit}", 1001, unit)]


def test_redundant_fields_that_another_writer_left_may_stay():
    fields = tuple(
        PartitionField(source_id=2, field_id=1000 + i, name=text, transform=parse_transform(text))
        for i, text in enumerate(("day", "hour"))
    )
    base = replace(table(), partition_specs=(PartitionSpec(spec_id=0, fields=fields),), last_partition_id=1001)
    assert len(evolve_spec(base, [Add("id"), Rename("day", "d")]).fields) == 3
    assert evolve_spec(base, [Remove("day"), Add("ts", "day")]) == base.spec


@for_each(
    ("change", "problem"),
    [
        (Add("id", "fold"), "there is no transform 'fold'; give identity"),
        (Add("id", "bucket[0]"), "a parameter that is not between 1"),
        (Add("id", "day"), "transform 'day' does not take column 'id' of type long"),
        (Add("place"), "is not primitive"),
        (Add("tags.element"), "is in a list or a map"),
        (Add("id", "bucket[4]", "kind"), "partition field 'kind' has the name of a column"),
        (Add("id", "bucket[4]", "id"), "partition field 'id' has the name of a column"),
        (Add("id", "bucket[4]", "ts_day"), "there is a partition field 'ts_day' already"),
        (Add("id", "identity", ""), "a partition field needs a name"),
        (Rename("ts_day", "id"), "partition field 'id' has the name of a column"),
        (Rename("ts_day", "kind_trunc"), "there is a partition field 'kind_trunc' already"),
        (Rename("ts_day", ""), "a partition field needs a name"),
    ],
    ids=str,
)
@for_each("version", [1, 2])
def test_what_does_not_fit_is_refused(change: PartitionChange, problem: str, version: int):
    assert problem in refused(table(("ts", "day"), ("kind", "truncate[4]"), version=version), change)


@pytest.mark.parametrize("change", [Remove("nope"), Rename("nope", "n")])
def test_a_field_that_is_not_there_is_named_with_those_that_are(change: PartitionChange):
    base = table(("ts", "day"), ("id", "bucket[4]"))
    assert refused(base, change, error=NotFoundError) == (
        "there is no partition field 'nope' in the default spec; the fields are ts_day, id_bucket"
    )
    assert "the fields are none" in refused(table(), change, error=NotFoundError)
    assert "'ts_day'" in refused(base, Remove("ts_day"), Rename("ts_day", "n"), error=NotFoundError)
    assert "there is no column 'nope'" in refused(base, Add("nope"), error=NotFoundError)


def test_fields_with_unknown_transforms_are_kept():
    unknown = PartitionField(source_id=1, field_id=1000, name="z", transform=UnknownTransform("zorder"))
    base = replace(table(), partition_specs=(PartitionSpec(spec_id=0, fields=(unknown,)),), last_partition_id=1000)
    after = committed(base, Add("ts", "day"), Rename("z", "zz"))
    assert after.spec.fields[0] == replace(unknown, name="zz")
    assert shown(committed(after, Remove("zz"))) == [("ts_day", 1001, "day")]


def test_version_1_needs_ids_without_gaps():
    base = replace(table(("ts", "day"), version=1), last_partition_id=1005)
    assert "upgrade the table to format version 2 before" in refused(base, Add("id"))
    assert shown(evolve_spec(replace(base, format_version=2), [Add("id")]))[-1] == ("id", 1006, "identity")
    assert has_sequential_ids(base.spec)
    assert not has_sequential_ids(build_spec(SOURCES, [("id", "identity", None)], first_field_id=1001))


def test_equal_spec_is_reused_and_new_one_gets_next_id():
    first = table(("ts", "day"))
    second = committed(first, Add("id"))
    third = committed(second, Remove("id"))
    assert (second.default_spec_id, third.default_spec_id, len(third.partition_specs)) == (1, 0, 2)
    gap = replace(second, partition_specs=(first.spec, replace(second.spec, spec_id=7)), default_spec_id=7)
    assert committed(gap, Add("n")).default_spec_id == 8
    assert evolve_spec(first, []) == first.spec


def test_specs_are_the_same_whatever_their_ids():
    one = build_spec(SOURCES, [("id", "bucket[4]", "b")])
    assert same_fields(one, build_spec(SOURCES, [("id", "bucket[4]", "b")], spec_id=3, first_field_id=1009))
    for other in ([], [("id", "bucket[5]", "b")], [("n", "bucket[4]", "b")], [("id", "bucket[4]", "c")]):
        assert not same_fields(one, build_spec(SOURCES, other))


@pytest.mark.parametrize("change", ["ts_day", PartitionChange(), None])
def test_what_is_no_change_is_the_user_s_mistake(change: object):
    assert "is no change of a partition spec; give values such as AddPartitionField" in refused(table(), change)


NAMES = ["ts_day", "id_bucket_4", "p", "q", "ts_hour"]


def changes() -> st.SearchStrategy[PartitionChange]:
    sources = st.sampled_from(
        [("ts", "day"), ("ts", "hour"), ("id", "bucket[4]"), ("id", "bucket[8]"), ("n", "identity")]
    )
    adds = st.builds(lambda s, name: Add(*s, name), sources, st.none() | st.sampled_from(NAMES))
    return (
        adds
        | st.builds(Remove, st.sampled_from([*NAMES, "n"]))
        | st.builds(Rename, st.sampled_from(NAMES), st.sampled_from(NAMES))
    )


@given(st.lists(st.lists(changes(), min_size=1, max_size=3), max_size=8), st.sampled_from([1, 2, 3]))
def test_an_id_never_changes_what_it_stands_for(commits: Iterable[list[PartitionChange]], version: int):
    base = table(("ts", "day"), version=version)
    for wanted in commits:
        try:
            base = committed(base, *wanted)
        except (UsageError, NotFoundError):
            continue
        assert len({f.field_id for f in base.spec.fields}) == len(base.spec.fields)
        assert version > 1 or has_sequential_ids(base.spec)
    meanings: dict[int, set[tuple[int, str]]] = {}
    for spec in base.partition_specs:
        for f in spec.fields:
            if not isinstance(f.transform, Void):
                meanings.setdefault(f.field_id, set()).add((f.source_id, str(f.transform)))
    assert all(len(meaning) == 1 for meaning in meanings.values())
    assert max(meanings, default=999) <= base.last_partition_id
