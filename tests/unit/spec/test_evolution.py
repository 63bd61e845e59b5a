"""Changes of schemas; and PyIceberg makes the same schemas and specs of the same changes, over many generated tables.

Where it is less strict, or wrong, the case is named: only those may differ.
"""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update.schema import UpdateSchema as ForeignUpdateSchema
from pyiceberg.table.update.spec import UpdateSpec as ForeignUpdateSpec

import icekeep.spec.schema
import icekeep.spec.transforms
import icekeep.spec.types
from icekeep.errors import IcekeepError, NotFoundError, UsageError
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    MakeOptional,
    MoveAfter,
    MoveBefore,
    MoveFirst,
    PartitionChange,
    RemovePartitionField,
    RenameColumn,
    RenamePartitionField,
    RequireColumn,
    RestoreColumn,
    SchemaChange,
    SetIdentifierFields,
    SetWriteDefault,
    UpdateColumnDoc,
    UpdateColumnType,
    evolve_schema,
    evolve_spec,
    keeps_partition_values,
    promote_value,
    validate_promotion,
)
from icekeep.spec.metadata import TableMetadata, metadata_to_json, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED, PartitionField, PartitionSpec, build_spec, last_assigned_field_id
from icekeep.spec.schema import Schema, initial_value, schema_from_json, schema_to_json, validate_schema
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.sorting import UNSORTED, build_sort_order
from icekeep.spec.transforms import Bucket, Identity, Transform, UnknownTransform, Void, parse_transform
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    type_to_json,
    walk,
)
from icekeep.spec.values import value_from_json, value_to_json
from kit.cases import cases, for_each
from kit.evolution import COLUMNS, POINT, committed, evolved, field, ids, refused, table
from kit.examples import check_examples
from kit.strategies import decimal_types, primitive_types, schemas, values_of

# Adding.


def test_an_added_column_is_last_and_takes_the_next_field_id():
    evolution = evolve_schema(table(), [AddColumn("note", STRING, doc="free text"), AddColumn("n", "int")])
    assert evolution.schema.fields[-2:] == (field(16, "note", STRING, doc="free text"), field(17, "n", INT))
    assert evolution.schema.fields[:-2] == COLUMNS.fields
    assert (evolution.last_column_id, evolution.schema.schema_id) == (17, 1)


def test_ids_of_dropped_columns_are_never_used_again():
    base = committed(table(), AddColumn("a", INT))
    base = committed(base, DropColumn("a"))
    base = committed(base, AddColumn("a", INT))
    assert [s.ids_by_name.get("a") for s in base.schemas] == [None, 16, 17]
    assert base.last_column_id == 17


def test_nested_ids_are_assigned_level_by_level_as_in_java():
    type_ = StructType(
        (
            field(1, "a", ListType(element_id=1, element=StructType((field(1, "b", INT),)))),
            field(1, "c", MapType(key_id=1, key=STRING, value_id=1, value=StructType((field(1, "d", INT),)))),
        )
    )
    schema = evolved(AddColumn("s", type_))
    names = ["s", "s.a", "s.c", "s.a.element", "s.a.element.b", "s.c.key", "s.c.value", "s.c.value.d"]
    assert ids(schema, *names) == list(range(16, 24))


@for_each("parent", ["id", "ints", "ints.element", "point.x"])
def test_a_primitive_cannot_become_a_struct_by_adding_to_it(parent: str):
    assert "not a struct; a column that is no struct cannot become one" in refused(AddColumn("z", INT, parent=parent))


@for_each(
    ("change", "name"),
    [
        (AddColumn("id", INT), "id"),
        (AddColumn("x", INT, parent="point"), "point.x"),
        (AddColumn("x", INT, parent="points"), "points.element.x"),
        (RenameColumn("day", "id"), "id"),
        (RenameColumn("point.x", "y"), "point.y"),
    ],
)
def test_a_name_is_used_once_in_a_struct(change: SchemaChange, name: str):
    assert refused(change) == f"there is a column {name!r} already; give another name, or drop that one before"


@pytest.mark.parametrize("name", ["", "point.z", "a."])
def test_a_new_name_has_no_dots_and_is_not_empty(name: str):
    for change in (AddColumn(name, INT), RenameColumn("day", name)):
        assert f"a column cannot be named {name!r}" in refused(change)


def test_initial_default_stays_when_write_default_changes():
    """Adding a column sets both defaults, and later only the write default changes."""
    base = committed(table(), AddColumn("a", "decimal(9, 2)", default=1))
    schema = evolved(SetWriteDefault("a", "2.50"), base=base)
    assert (schema.field("a").initial_default, schema.field("a").write_default) == ("1.00", "2.50")
    none = evolved(SetWriteDefault("a", None), base=base).field("a")
    assert (none.initial_default, none.write_default) == ("1.00", None)


def test_a_type_that_is_none_is_the_user_s_mistake():
    assert "column 'a': type 'varchar(3)' is not one that the spec knows" in refused(AddColumn("a", "varchar(3)"))
    deep: Type = INT
    for _ in range(500):
        deep = ListType(element_id=1, element=deep)
    assert "nested more than 100 levels deep" in refused(AddColumn("a", deep))


# Dropping.


@pytest.mark.parametrize("name", ["nope", "point.nope", "ID"])
def test_a_column_that_is_not_there_is_named(name: str):
    for change in (
        DropColumn(name), RenameColumn(name, "b"), MoveFirst(name), MoveBefore("id", name), MoveAfter(name, "id"),
        MakeOptional(name), RequireColumn(name), UpdateColumnType(name, LONG), UpdateColumnDoc(name, None),
        SetWriteDefault(name, None), SetIdentifierFields((name,)), AddColumn("a", INT, parent=name),
    ):  # fmt: skip
        assert f"there is no column {name!r}" in refused(change, error=NotFoundError)


# Renaming and moving.


def test_renaming_keeps_everything_but_the_name():
    schema = evolved(RenameColumn("id", "key"), RenameColumn("points.element.x", "xx"), RenameColumn("m.value.v", "w"))
    assert schema.fields_by_id[1] == replace(COLUMNS.fields_by_id[1], name="key")
    assert ids(schema, "points.element.xx", "m.value.w") == [10, 14]
    assert schema.identifier_field_ids == (1,)


def test_columns_are_moved_within_their_struct():
    schema = evolved(MoveFirst("ints"), MoveAfter("id", "day"), MoveBefore("m", "points"), MoveFirst("point.y"))
    assert [f.name for f in schema.fields] == ["ints", "day", "id", "point", "m", "points"]
    assert [f.name for f in schema.field("point").type.fields] == ["y", "x"]
    assert {f.field_id for f in schema.fields} == {f.field_id for f in COLUMNS.fields}


# Nullability and types.


def test_columns_elements_and_values_are_made_optional():
    schema = evolved(SetIdentifierFields(()), MakeOptional("id"), MakeOptional("point.x"), MakeOptional("ints.element"))
    assert not schema.field("id").required
    assert not schema.field("point.x").required
    assert schema.field("ints").type == ListType(element_id=15, element=INT)
    assert evolved(MakeOptional("day")) is not None


@for_each("name", ["day", "point.y", "points.element", "m.value"])
def test_requiring_a_column_needs_allow_incompatible(name: str):
    assert "rows may have nulls in it" in refused(RequireColumn(name))
    assert evolved(RequireColumn(name, allow_incompatible=True)).field(name).required


def test_new_column_with_default_may_become_required():
    assert evolved(AddColumn("a", INT, default=1), RequireColumn("a")).field("a").required
    refused(AddColumn("a", INT), RequireColumn("a"))
    refused(RequireColumn("a"), base=committed(table(), AddColumn("a", INT, default=1)))


@for_each(
    ("name", "new"),
    [
        ("point.x", LONG),
        ("point.y", DOUBLE),
        ("points.element.x", LONG),
        ("m.value.v", "long"),
        ("ints.element", LONG),
        ("day", TIMESTAMP),
    ],
)
def test_types_are_promoted_at_every_depth(name: str, new: Type | str):
    schema = evolved(UpdateColumnType(name, new))
    assert str(schema.field(name).type) == str(new)
    assert schema.names_by_id == COLUMNS.names_by_id
    assert evolved(UpdateColumnType(name, str(COLUMNS.field(name).type))).schema_id == 0


@for_each(
    ("name", "new"), [("id", INT), ("id", STRING), ("id", POINT), ("point", INT), ("m", LONG), ("day", "timestamptz")]
)
def test_narrowing_and_kind_changes_are_refused(name: str, new: Type | str):
    assert f"the type of column {name!r} cannot change" in refused(UpdateColumnType(name, new))


def test_unknown_becomes_any_type_and_nested_fields_get_ids():
    base = committed(table(), AddColumn("u", UNKNOWN))
    assert evolved(UpdateColumnType("u", "timestamptz"), base=base).field("u").field_id == 16
    evolution = evolve_schema(base, [UpdateColumnType("u", POINT)])
    assert ids(evolution.schema, "u", "u.x", "u.y") == [16, 17, 18]
    assert evolution.last_column_id == 18


def test_defaults_are_promoted_with_their_column():
    base = committed(
        table(),
        AddColumn("f", FLOAT, default=1.1),
        AddColumn("d", DATE, default="2024-01-31"),
        AddColumn("l", ListType(element_id=1, element=FLOAT), default=[1.1]),
    )
    schema = evolved(
        UpdateColumnType("f", DOUBLE),
        UpdateColumnType("d", TIMESTAMP),
        UpdateColumnType("l.element", DOUBLE),
        base=base,
    )
    assert [schema.field(n).initial_default for n in ("f", "d", "l")] == [
        1.100000023841858, "2024-01-31T00:00:00", [1.100000023841858],
    ]  # fmt: skip
    late = committed(table(), AddColumn("d", DATE, default="2300-01-01"))
    assert "its default does not fit" in refused(UpdateColumnType("d", "timestamp_ns"), base=late)


# What the parts of lists and maps may not.


@for_each(
    "change",
    [
        AddColumn("z", INT, parent="m.key"), DropColumn("m.key.k"), RenameColumn("m.key.k", "j"), MoveFirst("m.key.k"),
        MakeOptional("m.key"), MakeOptional("m.key.k"), UpdateColumnType("m.key.k", LONG), UpdateColumnDoc("m.key.k", "d"),
        DropColumn("m.key"), RenameColumn("m.key", "j"), SetWriteDefault("m.key.k", 1),
    ],
    ids=str,
)  # fmt: skip
def test_map_keys_do_not_change(change: SchemaChange):
    assert "it belongs to the keys of a map" in refused(change)


@pytest.mark.parametrize("name", ["points.element", "m.value"])
def test_elements_and_values_are_not_dropped_or_renamed(name: str):
    for change in (
        DropColumn(name),
        RenameColumn(name, "a"),
        MoveFirst(name),
        UpdateColumnDoc(name, "d"),
        SetWriteDefault(name, None),
    ):
        assert "it is a part of a" in refused(change)


# Undelete.


def with_snapshot(base: TableMetadata) -> TableMetadata:
    number = len(base.snapshots) + 1
    snapshot = Snapshot(snapshot_id=number, timestamp_ms=0, sequence_number=number, schema_id=base.current_schema_id)
    ref = SnapshotRef(snapshot_id=number, type="branch")
    return replace(base, snapshots=(*base.snapshots, snapshot), current_snapshot_id=number, refs={MAIN: ref})


def test_optional_column_is_restored_with_all_ids():
    base = with_snapshot(committed(with_snapshot(table()), DropColumn("points"), DropColumn("point.y")))
    schema = evolved(RestoreColumn("points"), RestoreColumn("point.y"), base=base)
    assert schema.fields_by_id.keys() == COLUMNS.fields_by_id.keys()
    assert schema.fields[-1] == COLUMNS.field("points")
    assert schema.field("point").type.fields[-1] == COLUMNS.field("point.y")


def test_required_column_is_restored_before_next_snapshot():
    """A required column comes back only while no snapshot was written without it."""
    before = committed(with_snapshot(table()), SetIdentifierFields(()))
    dropped = committed(before, DropColumn("id"))
    assert ids(evolved(RestoreColumn("id"), base=dropped), "id") == [1]
    message = refused(RestoreColumn("id"), base=with_snapshot(dropped))
    assert message == (
        "column 'id' cannot be restored: it was required, and a snapshot was made without it; add a new column in its place"
    )
    empty = committed(table(), SetIdentifierFields(()), DropColumn("id"))
    evolved(RestoreColumn("id"), base=empty)
    unknown = replace(dropped, snapshots=(replace(dropped.snapshots[0], schema_id=None),))
    refused(RestoreColumn("id"), base=unknown)


# Ids of schemas.


def test_equal_schema_is_reused_and_new_one_gets_next_id():
    base = committed(table(), RenameColumn("day", "date"))
    base = committed(base, UpdateColumnDoc("date", "d"))
    assert base.current_schema_id == 2
    assert evolved(UpdateColumnDoc("date", None), RenameColumn("date", "day"), base=base).schema_id == 0
    twice = replace(base, schemas=(*base.schemas, replace(base.schemas[2], schema_id=3)), current_schema_id=3)
    assert evolved(RenameColumn("id", "id"), base=twice).schema_id == 3
    gap = replace(base, schemas=(base.schemas[0], replace(base.schemas[2], schema_id=7)), current_schema_id=7)
    assert evolved(AddColumn("a", INT), base=gap).schema_id == 8
    assert evolved(SetIdentifierFields(())).schema_id == 1


def test_keys_that_we_do_not_know_stay_on_their_fields():
    schema = replace(COLUMNS, fields=(replace(COLUMNS.fields[0], extra={"k": 1}), *COLUMNS.fields[1:]), extra={"s": 2})
    after = evolved(RenameColumn("id", "key"), AddColumn("a", INT), base=table(schema))
    assert (after.fields[0].extra, after.extra) == ({"k": 1}, {"s": 2})


def test_every_schema_can_be_written_and_read():
    changes: Sequence[SchemaChange] = [
        AddColumn("p", POINT, default=None),
        AddColumn("u", "geometry(OGC:CRS84)"),
        UpdateColumnType("point.x", LONG),
        AddColumn("d", DATE, default="2024-01-31"),
    ]
    schema = evolved(*changes)
    assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema


@pytest.mark.parametrize("change", ["a", SchemaChange(), None])
def test_what_is_no_change_is_the_user_s_mistake(change: Any):
    assert "is no change of a schema; give values such as AddColumn" in refused(change)


@st.composite
def changes_with_defaults(draw: st.DrawFn, names: list[str]) -> SchemaChange:
    some = st.sampled_from(names)
    types_and_defaults = st.sampled_from(
        [
            (INT, 7),
            (INT, None),
            (FLOAT, 1.1),
            (DATE, "2024-01-31"),
            (decimal(9, 2), "1.50"),
            (UNKNOWN, None),
            (ListType(element_id=1, element=FLOAT), [1.1, None]),
            (StructType((field(1, "x", INT, initial_default=3),)), {}),
        ]
    )
    return draw(
        st.builds(lambda name, t: AddColumn(name, t[0], default=t[1]), st.sampled_from("abcde"), types_and_defaults)
        | st.builds(SetWriteDefault, some, st.sampled_from([None, 8, 2.5, "2025-01-01", {}]))
        | st.builds(UpdateColumnType, some, st.sampled_from(["long", "double", "timestamp", "decimal(12, 2)"]))
        | st.builds(RenameColumn, some, st.sampled_from("abcde"))
        | st.builds(MoveFirst, some)
        | st.builds(DropColumn, some)
    )


@pytest.mark.slow
@given(st.data())
def test_initial_default_never_changes(data: st.DataObject):
    base = table()
    for _ in range(data.draw(st.integers(1, 12))):
        change = data.draw(changes_with_defaults([*base.schema.ids_by_name]))
        try:
            after = committed(base, change)
        except UsageError:
            continue
        for field_id, new in after.schema.fields_by_id.items():
            old = base.schema.fields_by_id.get(field_id)
            # What was there from the start never got one.
            if field_id <= COLUMNS.highest_field_id:
                assert new.initial_default is None
            elif old is not None and not new.required:
                assert initial_value(new) == promote_value(old.type, new.type, initial_value(old)), change
            elif old is None and not isinstance(change, AddColumn):
                raise AssertionError(f"{change} made field {field_id}")
            elif old is None:
                assert new.initial_default == new.write_default
        base = after


@for_each("change", [AddColumn("a", INT, default=1), SetWriteDefault("day", "2024-01-31")])
@for_each("version", [1, 2])
def test_defaults_need_version_3(change: SchemaChange, version: int):
    assert "has a default, which only format version 3 has" in refused(change, base=table(version=version))


@for_each("type_", ["timestamp_ns", "unknown", "geometry", VARIANT])
def test_new_types_need_version_3(type_: Type | str):
    assert "only format version 3 has" in refused(AddColumn("a", type_), base=table(version=2))
    evolved(AddColumn("a", type_))


def test_struct_default_is_filled_by_its_fields():
    filled = StructType((field(1, "x", INT, required=True, initial_default=0), field(2, "y", INT)))
    added = evolved(AddColumn("p", filled, required=True, default={})).field("p")
    assert (added.initial_default, added.write_default) == ({}, {})
    assert [(f.initial_default, f.write_default) for f in added.type.fields] == [(0, 0), (None, None)]
    unfilled = StructType((field(1, "x", INT, required=True),))
    assert "field 'x' (id 17) is required and has no initial-default" in refused(AddColumn("p", unfilled, default={}))
    evolved(AddColumn("p", unfilled))


def test_source_column_of_default_spec_cannot_be_dropped():
    spec = build_spec(COLUMNS, [("day", "month", None), ("point.x", "bucket[4]", None)])
    base = table(spec=spec)
    assert refused(DropColumn("day"), base=base) == (
        "column 'day' cannot be dropped: partition field 'day_month' of the default spec is made of it; remove that field "
        "with update_spec before"
    )
    assert "column 'point.x' cannot be dropped" in refused(DropColumn("point"), base=base)
    other = replace(base, partition_specs=(spec, PartitionSpec(spec_id=1, fields=())), default_spec_id=1)
    assert "day" not in evolved(DropColumn("day"), base=other).ids_by_name


def test_a_column_of_a_void_partition_field_may_be_dropped():
    spec = PartitionSpec(
        spec_id=0, fields=(PartitionField(source_id=2, field_id=1000, name="day_month", transform=Void()),)
    )
    assert "day" not in evolved(DropColumn("day"), base=table(version=1, spec=spec)).ids_by_name


def test_a_column_of_the_default_sort_order_cannot_be_dropped():
    base = table(order=build_sort_order(COLUMNS, ["day"]))
    assert "column 'day' cannot be dropped: the default sort order uses it" in refused(DropColumn("day"), base=base)
    unsorted = replace(base, sort_orders=(UNSORTED, *base.sort_orders), default_sort_order_id=0)
    evolved(DropColumn("day"), base=unsorted)


def test_column_name_must_not_clash_with_partition_fields():
    spec = build_spec(COLUMNS, [("day", "month", None)])
    base = table(spec=spec)
    for older in (base, replace(base, partition_specs=(spec, PartitionSpec(spec_id=1, fields=())), default_spec_id=1)):
        for change in (AddColumn("day_month", INT), RenameColumn("id", "day_month")):
            assert "a column cannot be named 'day_month': a partition field of the table" in refused(change, base=older)
    gone = committed(older, DropColumn("day"))
    evolved(AddColumn("day_month", INT), base=gone)


def test_partition_name_of_two_columns_clashes_with_both():
    one, two = (
        replace(build_spec(COLUMNS, [(c, t, "p")]), spec_id=i)
        for i, (c, t) in enumerate([("day", "day"), ("id", "void")])
    )
    base = replace(table(spec=one), partition_specs=(one, two), default_spec_id=1)
    for column in ("day", "id"):
        assert "a column cannot be named 'p'" in refused(RenameColumn(column, "p"), base=base)


def test_column_may_share_name_with_its_identity_field():
    base = table(spec=build_spec(COLUMNS, [("day", "identity", None)]))
    renamed = committed(base, RenameColumn("day", "date"))
    assert ids(evolved(RenameColumn("date", "day"), base=renamed), "day") == [2]
    assert "a column cannot be named 'day'" in refused(AddColumn("day", INT), base=renamed)


@for_each("transform", ["bucket[4]", "identity"])
@for_each("is_default", [True, False])
def test_date_promotion_is_refused_if_partitions_change(transform: str, is_default: bool):
    spec = build_spec(COLUMNS, [("day", transform, "p")])
    base = table(spec=spec)
    if not is_default:
        base = replace(base, partition_specs=(spec, PartitionSpec(spec_id=1, fields=())), default_spec_id=1)
    message = refused(UpdateColumnType("day", TIMESTAMP), base=base)
    assert message == (
        "the type of column 'day' cannot change from date to timestamp: partition field 'p' of spec 0 would have other "
        "values; add a column of the new type"
    )


def test_identifier_columns_are_named():
    assert evolved(SetIdentifierFields(("point.x", "id", "id"))).identifier_field_ids == (7, 1)
    for name in ("day", "point", "point.y", "points.element.x", "ints.element"):
        assert "cannot identify rows" in refused(SetIdentifierFields((name,)))
    with_double = committed(table(), AddColumn("d", DOUBLE, required=True, default=1.5))
    assert "column 'd' cannot identify rows" in refused(SetIdentifierFields(("d",)), base=with_double)


STRUCT = StructType((NestedField(field_id=1, name="x", type=INT),))
ALWAYS = [(INT, LONG), (FLOAT, DOUBLE), (decimal(9, 2), decimal(10, 2)), (decimal(1, 1), decimal(38, 1))]
SINCE_V3 = [(DATE, TIMESTAMP), (DATE, TIMESTAMP_NS), (UNKNOWN, INT), (UNKNOWN, STRUCT), (UNKNOWN, TIMESTAMPTZ)]


@for_each(("old", "new"), ALWAYS, ids=str)
@for_each("version", [1, 2, 3])
def test_numbers_widen_in_every_version(old: Type, new: Type, version: int):
    validate_promotion(old, new, version)
    validate_promotion(old, old, version)


@for_each(("old", "new"), SINCE_V3, ids=str)
def test_unknown_and_dates_are_promoted_since_version_3(old: Type, new: Type):
    validate_promotion(old, new, 3)
    for version in (1, 2):
        with pytest.raises(UsageError, match="in format version 3 only; upgrade the table first"):
            validate_promotion(old, new, version)


@for_each(
    ("old", "new", "problem"),
    [
        (LONG, INT, "long may not become int"),
        (DOUBLE, FLOAT, "double may not become float"),
        (INT, DOUBLE, "int may not become double"),
        (INT, STRING, "int may not become string"),
        (decimal(9, 2), decimal(8, 2), "precision may grow, its scale stays"),
        (decimal(9, 2), decimal(10, 3), "precision may grow, its scale stays"),
        (DATE, TIMESTAMPTZ, "it may become timestamp or timestamp_ns"),
        (DATE, TIMESTAMPTZ_NS, "it may become timestamp or timestamp_ns"),
        (TIMESTAMP, TIMESTAMP_NS, "may not become"),
        (INT, STRUCT, "int may not become a struct; add a column"),
        (STRUCT, INT, "a struct may not become int"),
        (STRUCT, ListType(element_id=1, element=INT), "a struct may not become a list"),
        (MapType(key_id=1, key=INT, value_id=2, value=INT), STRUCT, "a map may not become a struct"),
        (INT, UNKNOWN, "int may not become unknown"),
    ],
    ids=str,
)
def test_narrowing_and_changes_of_kind_are_refused(old: Type, new: Type, problem: str):
    with pytest.raises(UsageError, match=problem.replace("(", r"\(")):
        validate_promotion(old, new, 3)


@given(primitive_types(), primitive_types(), st.sampled_from([1, 2, 3]))
def test_only_the_promotions_of_the_spec_are_allowed(old: PrimitiveType, new: PrimitiveType, version: int):
    allowed = old == new or (old, new) in ALWAYS or (version == 3 and (old, new) in SINCE_V3)
    if old.name == new.name == "decimal":
        allowed = old.scale == new.scale and old.precision <= new.precision
    try:
        validate_promotion(old, new, version)
    except UsageError:
        assert not allowed
    else:
        assert allowed


@given(st.sampled_from([(INT, LONG), (DATE, TIMESTAMP), (DATE, TIMESTAMP_NS)]), st.integers(-100_000, 100_000))
def test_promotion_keeps_partition_values_where_allowed(types, value: int):
    old, new = types
    for text in ("year", "month", "day", "bucket[16]", "bucket[7]", "truncate[10]", "void"):
        transform = parse_transform(text)
        if transform.accepts(old) and keeps_partition_values(transform, old, new):
            assert transform.apply(new, promote_value(old, new, value)) == transform.apply(old, value)


@pytest.mark.parametrize("transform", [Bucket(16), Identity(), UnknownTransform("zorder")], ids=str)
def test_date_promotion_changes_some_transforms(transform: Transform):
    assert not keeps_partition_values(transform, DATE, TIMESTAMP)
    assert keeps_partition_values(transform, DATE, DATE)


def test_nested_values_are_promoted_and_dropped_ones_omitted():
    def row(type_: Type, *more: NestedField) -> StructType:
        return StructType((NestedField(field_id=1, name="x", type=type_), *more))

    dropped, added = (NestedField(field_id=i, name=f"f{i}", type=STRING) for i in (2, 3))
    old = ListType(element_id=9, element=row(FLOAT, dropped))
    new = ListType(element_id=9, element=row(DOUBLE, added))
    value = value_from_json(old, [{"1": 1.1, "2": "gone"}, None])
    assert value_to_json(new, promote_value(old, new, value)) == [{"1": 1.100000023841858}, None]
    old_map = MapType(key_id=1, key=STRING, value_id=2, value=DATE)
    new_map = MapType(key_id=1, key=STRING, value_id=2, value=TIMESTAMP)
    assert promote_value(old_map, new_map, (("k", 1), ("n", None))) == (("k", 86_400_000_000), ("n", None))


@given(st.data(), decimal_types())
def test_a_decimal_keeps_its_value(data: st.DataObject, old):
    value = data.draw(values_of(old))
    assert promote_value(old, decimal(38, old.scale), value) == value


def test_examples():
    check_examples("spec/evolution.txt", icekeep.spec.schema, icekeep.spec.transforms, icekeep.spec.types, globals())


THEIR_POINT = StructType((NestedField(field_id=1, name="x", type=INT), NestedField(field_id=2, name="y", type=FLOAT)))
RICH = Schema(
    fields=(
        NestedField(field_id=1, name="a", type=INT, required=True),
        NestedField(field_id=2, name="d", type=decimal(9, 2)),
        NestedField(field_id=3, name="s", type=StructType((
            NestedField(field_id=6, name="f", type=FLOAT),
            NestedField(field_id=7, name="a", type=INT, required=True),
            NestedField(field_id=8, name="t", type=StructType((NestedField(field_id=9, name="i", type=INT),))),
        )), required=True),
        NestedField(field_id=4, name="l", type=ListType(element_id=10, element=StructType((
            NestedField(field_id=11, name="x", type=INT), NestedField(field_id=12, name="y", type=DATE),
        )))),
        NestedField(field_id=5, name="m", type=MapType(
            key_id=13, key=STRING, value_id=14, value=ListType(element_id=15, element=FLOAT, element_required=True),
        )),
    ),
    identifier_field_ids=(1,),
)  # fmt: skip
ADDED_TYPES: list[Type] = [
    INT, STRING, DATE, decimal(9, 2), THEIR_POINT, ListType(element_id=1, element=THEIR_POINT),
    MapType(key_id=1, key=STRING, value_id=2, value=THEIR_POINT),
]  # fmt: skip
PROMOTED_TYPES: list[Type] = [LONG, DOUBLE, INT, decimal(12, 2), decimal(38, 4), TIMESTAMP]

# What we refuse and PyIceberg does not: rules of the spec and of Java that it does not check.
STRICTER = (
    "cannot identify rows",
    "identifies rows",
    "would have no fields",
    "the last column of a table",
    "keys of a map",
    "it is a part of a",
    "a decimal's precision may grow, its scale stays",
)


STRICTER_SPECS = ("redundant", "was removed already", "has the name of a column", "there is a partition field")


def attempted(evolve: Any, base: TableMetadata, change: Any) -> Any:
    """What comes of one change, or the error that refuses it."""
    try:
        return evolve(base, [change])
    except IcekeepError as error:
        return error


def their_table(schema: Schema, version: int = 2) -> TableMetadata:
    return new_table_metadata(
        schema=schema,
        spec=UNPARTITIONED,
        location="s3://b/t",
        table_uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1",
        now_ms=0,
        format_version=version,
    )


def foreign(update: type[Any], base: TableMetadata) -> Any:
    return update(SimpleNamespace(table_metadata=TableMetadataUtil.parse_raw(json.dumps(metadata_to_json(base)))))


def foreign_type(type_: Type) -> Any:
    form = {"type": "struct", "fields": [{"id": 999, "name": "c", "required": False, "type": type_to_json(type_)}]}
    return ForeignSchema.model_validate_json(json.dumps(form)).fields[0].field_type


def path(name: str | None) -> tuple[str, ...]:
    return () if name is None else tuple(name.split("."))


def apply_foreign(change: SchemaChange, update: ForeignUpdateSchema) -> None:  # noqa: C901 - one line a change
    match change:
        case AddColumn(name, type_, parent, required, doc):
            update.add_column((*path(parent), name), foreign_type(type_), doc=doc, required=required)
        case DropColumn(name):
            update.delete_column(name)
        case RenameColumn(name, new_name):
            update.rename_column(name, new_name)
        case MoveFirst(name):
            update.move_first(name)
        case MoveBefore(name, other):
            update.move_before(name, other)
        case MoveAfter(name, other):
            update.move_after(name, other)
        case MakeOptional(name):
            update.make_column_optional(name)
        case RequireColumn(name, allow):
            update._allow_incompatible_changes = allow
            update.update_column(name, required=True)
        case UpdateColumnType(name, type_):
            update.update_column(name, field_type=foreign_type(type_))
        case UpdateColumnDoc(name, doc):
            update.update_column(name, doc=doc or "")
        case SetIdentifierFields(names):
            update.set_identifier_fields(*names)


def theirs(change: SchemaChange, base: TableMetadata) -> Schema | Exception:
    try:
        update = foreign(ForeignUpdateSchema, base)
        apply_foreign(change, update)
        return schema_from_json(json.loads(update._apply().model_dump_json()))
    except Exception as error:  # noqa: BLE001 - whatever it raises, it refuses
        return error


@st.composite
def schema_changes(draw: st.DrawFn, schema: Schema) -> SchemaChange:
    top = [field.name for field in schema.fields]
    names = st.sampled_from([*schema.ids_by_name, *schema.ids_by_name, *top, "nope"])
    fresh = st.sampled_from(["b", "c", "g", "h", *top[:2]])
    numbers = [n for n, i in schema.ids_by_name.items() if schema.fields_by_id[i].type in (INT, FLOAT, decimal(9, 2))]
    kinds = [
        st.builds(AddColumn, fresh, st.sampled_from(ADDED_TYPES), st.none() | names, doc=st.none() | st.just("d")),
        st.builds(AddColumn, fresh, st.just(INT), required=st.just(True)),
        st.builds(DropColumn, names),
        st.builds(RenameColumn, names, fresh),
        st.builds(MoveFirst, names),
        st.builds(MoveBefore, names, names),
        st.builds(MoveAfter, names, names),
        st.builds(MakeOptional, names),
        st.builds(RequireColumn, names, st.booleans()),
        st.builds(UpdateColumnType, st.sampled_from(numbers or ["nope"]), st.sampled_from(PROMOTED_TYPES)),
        st.builds(UpdateColumnType, names, st.sampled_from(PROMOTED_TYPES)),
        st.builds(MoveBefore, st.sampled_from(top or ["nope"]), st.sampled_from(top or ["nope"])),
        st.builds(UpdateColumnDoc, names, st.text(min_size=1, max_size=3)),
        st.builds(SetIdentifierFields, st.lists(names, max_size=2).map(tuple)),
    ]
    return draw(st.one_of(kinds))


def is_their_fault(change: SchemaChange, base: TableMetadata) -> bool:
    """Whether PyIceberg refuses or does otherwise what Java and we do."""
    match change:
        case RenameColumn(name, new_name):
            # A name that stays is taken, and an identifier field below a renamed struct is looked for by its old name.
            return name.rpartition(".")[2] == new_name or any(
                base.schema.names_by_id[i].startswith(f"{name}.") for i in base.schema.identifier_field_ids
            )
        case UpdateColumnType(name, type_):
            # It knows no promotions of version 3.
            return base.schema.field(name).type in (type_, DATE)
    return False


def committed_by_them(base: TableMetadata, schema: Schema, last_column_id: int) -> TableMetadata:
    schemas_ = base.schemas if schema.schema_id in base.schemas_by_id else (*base.schemas, schema)
    return replace(base, schemas=schemas_, current_schema_id=schema.schema_id, last_column_id=last_column_id)


@pytest.mark.slow
@cases(80)
@given(st.data(), st.just(RICH) | schemas())
def test_schemas_evolve_as_in_pyiceberg_and_ids_are_kept(data: st.DataObject, start: Schema):
    base = their_table(replace(start, schema_id=0), version=3)
    given_out: dict[int, set[str]] = {}
    for _ in range(data.draw(st.integers(1, 10))):
        change = data.draw(schema_changes(base.schema))
        expected = theirs(change, base)
        ours = attempted(evolve_schema, base, change)
        if isinstance(ours, IcekeepError):
            assert isinstance(expected, Exception) or any(reason in str(ours) for reason in STRICTER), (change, ours)
            continue
        if not is_their_fault(change, base):
            assert isinstance(expected, Schema), (change, expected)
            assert ours.schema.fields == expected.fields, change
            assert set(ours.schema.identifier_field_ids) == set(expected.identifier_field_ids)
        added = ours.schema.fields_by_id.keys() - base.schema.fields_by_id.keys()
        assert all(field_id > base.last_column_id for field_id in added), "an id was used again"
        assert ours.last_column_id >= max(base.last_column_id, ours.schema.highest_field_id)
        base = committed_by_them(base, ours.schema, ours.last_column_id)
        for schema in base.schemas:
            assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema
            validate_schema(schema)
    for schema in base.schemas:
        for one in walk(schema.as_struct()):
            parent = schema.parents_by_id.get(one.field_id)
            given_out.setdefault(one.field_id, set()).add(str(None if parent is None else parent.field_id))
    assert all(len(parents) == 1 for parents in given_out.values()), "a field moved to another struct"


THEIR_COLUMNS = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG),
        NestedField(field_id=2, name="ts", type=TIMESTAMP),
        NestedField(field_id=3, name="kind", type=STRING),
        NestedField(field_id=4, name="place", type=StructType((NestedField(field_id=5, name="code", type=STRING),))),
    )
)


@st.composite
def partition_changes(draw: st.DrawFn, base: TableMetadata) -> PartitionChange:
    terms = [
        ("id", "bucket[4]"),
        ("id", "bucket[8]"),
        ("id", "identity"),
        ("ts", "day"),
        ("ts", "hour"),
        ("ts", "month"),
    ]
    terms += [("kind", "truncate[2]"), ("place.code", "identity"), ("kind", "day"), ("nope", "identity")]
    names = [field.name for field in base.spec.fields] or ["nope"]
    fresh = st.sampled_from(["p", "q", "kind", "id", *names])
    return draw(
        st.one_of(
            st.builds(lambda term, name: AddPartitionField(*term, name), st.sampled_from(terms), st.none() | fresh),
            st.builds(RemovePartitionField, st.sampled_from([*names, "nope"])),
            st.builds(RenamePartitionField, st.sampled_from([*names, "nope"]), fresh),
        )
    )


def their_spec(change: PartitionChange, base: TableMetadata) -> list[tuple[str, int, str]] | Exception:
    try:
        update = foreign(ForeignUpdateSpec, base)
        match change:
            case AddPartitionField(column, transform, name):
                update.add_field(column, transform, name)
            case RemovePartitionField(name):
                update.remove_field(name)
            case RenamePartitionField(name, new_name):
                update.rename_field(name, new_name)
        return [(f.name, f.field_id, str(f.transform)) for f in update._apply().fields]
    except Exception as error:  # noqa: BLE001 - whatever it raises, it refuses
        return error


def has_void(base: TableMetadata) -> bool:
    return any(isinstance(field.transform, Void) for field in base.spec.fields)


@pytest.mark.slow
@cases(80)
@given(st.data(), st.sampled_from([1, 2]))
def test_spec_evolution_agrees_with_pyiceberg(data: st.DataObject, version: int):
    """Specs evolve as in PyIceberg, and a partition field id never changes its meaning."""
    base = their_table(THEIR_COLUMNS, version)
    for _ in range(data.draw(st.integers(1, 8))):
        change = data.draw(partition_changes(base))
        expected = their_spec(change, base)
        spec = attempted(evolve_spec, base, change)
        if isinstance(spec, IcekeepError):
            assert isinstance(expected, Exception) or any(r in str(spec) for r in STRICTER_SPECS), (change, spec)
            continue
        names: dict[int, set[str]] = {}
        for part in (part for known in base.partition_specs for part in known.fields):
            names.setdefault(part.field_id, set()).add(part.name)
        renamed = any(len(several) > 1 for several in names.values())
        # It renames the new field in place of a void one, and takes the oldest name of a field that had several.
        is_their_fault = has_void(base) or (isinstance(change, AddPartitionField) and renamed)
        if not is_their_fault:
            assert [(f.name, f.field_id, str(f.transform)) for f in spec.fields] == expected, change
        specs = base.partition_specs if spec.spec_id in base.specs_by_id else (*base.partition_specs, spec)
        base = replace(
            base,
            partition_specs=specs,
            default_spec_id=spec.spec_id,
            last_partition_id=max(base.last_partition_id, last_assigned_field_id(specs)),
        )
    meanings: dict[int, set[tuple[int, str]]] = {}
    for spec in base.partition_specs:
        for part in spec.fields:
            if not isinstance(part.transform, Void):
                meanings.setdefault(part.field_id, set()).add((part.source_id, str(part.transform)))
    assert all(len(meaning) == 1 for meaning in meanings.values())
