from msgspec.structs import replace

from icekeep.spec.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    RequireColumn,
    SchemaChange,
    SetIdentifierFields,
    SetWriteDefault,
    UpdateColumnType,
)
from icekeep.spec.partitioning import PartitionField, PartitionSpec, build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import UNSORTED, build_sort_order
from icekeep.spec.transforms import UnknownTransform, Void
from icekeep.spec.types import DOUBLE, INT, TIMESTAMP, UNKNOWN, VARIANT, StructType, Type
from kit.cases import for_each
from kit.evolution import COLUMNS, committed, evolved, field, ids, refused, table


@for_each("change", [AddColumn("a", INT, default=1), SetWriteDefault("day", "2024-01-31")])
@for_each("version", [1, 2])
def test_defaults_need_version_3(change: SchemaChange, version: int):
    assert "has a default, which only format version 3 has" in refused(change, base=table(version=version))


@for_each("type_", ["timestamp_ns", "unknown", "geometry", VARIANT])
def test_new_types_need_version_3(type_: Type | str):
    assert "only format version 3 has" in refused(AddColumn("a", type_), base=table(version=2))
    evolved(AddColumn("a", type_))


def test_a_struct_s_default_is_an_empty_object_that_its_fields_fill():
    filled = StructType((field(1, "x", INT, required=True, initial_default=0), field(2, "y", INT)))
    added = evolved(AddColumn("p", filled, required=True, default={})).field("p")
    assert (added.initial_default, added.write_default) == ({}, {})
    assert [(f.initial_default, f.write_default) for f in added.type.fields] == [(0, 0), (None, None)]
    unfilled = StructType((field(1, "x", INT, required=True),))
    assert "field 'x' (id 17) is required and has no initial-default" in refused(AddColumn("p", unfilled, default={}))
    evolved(AddColumn("p", unfilled))


def test_an_unknown_column_must_be_optional():
    assert "must be optional" in refused(
        RequireColumn("u", allow_incompatible=True), base=committed(table(), AddColumn("u", UNKNOWN))
    )


def test_a_struct_keeps_a_field_and_a_table_a_column():
    assert "struct 'm.value' would have no fields" in refused(DropColumn("m.value.v"))
    one = table(Schema(fields=(field(1, "a", INT),)))
    assert "the last column of a table cannot be dropped" in refused(DropColumn("a"), base=one)
    assert ids(evolved(DropColumn("a"), AddColumn("b", INT), base=one), "b") == [2]


def test_a_column_of_the_default_partition_spec_cannot_be_dropped():
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


def test_a_column_cannot_be_named_like_a_partition_field_of_any_spec():
    spec = build_spec(COLUMNS, [("day", "month", None)])
    base = table(spec=spec)
    for older in (base, replace(base, partition_specs=(spec, PartitionSpec(spec_id=1, fields=())), default_spec_id=1)):
        for change in (AddColumn("day_month", INT), RenameColumn("id", "day_month")):
            assert "a column cannot be named 'day_month': a partition field of the table" in refused(change, base=older)
    gone = committed(older, DropColumn("day"))
    evolved(AddColumn("day_month", INT), base=gone)


def test_a_name_that_partition_fields_of_two_columns_have_is_compared_with_both():
    one, two = (
        replace(build_spec(COLUMNS, [(c, t, "p")]), spec_id=i)
        for i, (c, t) in enumerate([("day", "day"), ("id", "void")])
    )
    base = replace(table(spec=one), partition_specs=(one, two), default_spec_id=1)
    for column in ("day", "id"):
        assert "a column cannot be named 'p'" in refused(RenameColumn(column, "p"), base=base)


def test_a_column_that_has_the_name_of_a_partition_field_already_may_keep_it():
    spec = build_spec(COLUMNS, [("day", "month", None)])
    renamed = replace(spec, fields=(replace(spec.fields[0], name="ints"),))
    assert evolved(AddColumn("a", INT), base=table(spec=renamed)).schema_id == 1


def test_a_column_may_be_named_like_the_partition_field_that_is_made_of_it():
    base = table(spec=build_spec(COLUMNS, [("day", "identity", None)]))
    renamed = committed(base, RenameColumn("day", "date"))
    assert ids(evolved(RenameColumn("date", "day"), base=renamed), "day") == [2]
    assert "a column cannot be named 'day'" in refused(AddColumn("day", INT), base=renamed)


def test_an_identifier_column_stays_required():
    assert "column 'id' cannot identify rows" in refused(MakeOptional("id"))
    base = committed(table(), SetIdentifierFields(("point.x",)))
    assert "column 'point.x' cannot identify rows" in refused(MakeOptional("point"), base=base)


@for_each("transform", ["bucket[4]", "identity"])
@for_each("is_default", [True, False])
def test_a_date_is_not_promoted_where_a_transform_of_any_spec_would_give_other_values(transform: str, is_default: bool):
    spec = build_spec(COLUMNS, [("day", transform, "p")])
    base = table(spec=spec)
    if not is_default:
        base = replace(base, partition_specs=(spec, PartitionSpec(spec_id=1, fields=())), default_spec_id=1)
    message = refused(UpdateColumnType("day", TIMESTAMP), base=base)
    assert message == (
        "the type of column 'day' cannot change from date to timestamp: partition field 'p' of spec 0 would have other "
        "values; add a column of the new type"
    )


def test_a_date_is_promoted_under_calendar_transforms():
    base = table(spec=build_spec(COLUMNS, [("day", "month", None)]))
    assert evolved(UpdateColumnType("day", "timestamp_ns"), base=base).schema_id == 1


def test_a_transform_of_several_columns_counts_for_each_of_them():
    several = PartitionField(
        source_id=1, field_id=1000, name="z", transform=UnknownTransform("zorder"), extra={"source-ids": [1, 2]}
    )
    base = table(spec=PartitionSpec(spec_id=0, fields=(several,)))
    assert "partition field 'z' of spec 0" in refused(UpdateColumnType("day", TIMESTAMP), base=base)


def test_identifier_columns_are_named():
    assert evolved(SetIdentifierFields(("point.x", "id", "id"))).identifier_field_ids == (7, 1)
    for name in ("day", "point", "point.y", "points.element.x", "ints.element"):
        assert "cannot identify rows" in refused(SetIdentifierFields((name,)))
    with_double = committed(table(), AddColumn("d", DOUBLE, required=True, default=1.5))
    assert "column 'd' cannot identify rows" in refused(SetIdentifierFields(("d",)), base=with_double)
