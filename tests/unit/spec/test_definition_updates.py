from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec, build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import UNSORTED, SortOrder, build_sort_order
from icekeep.spec.types import LONG, TIMESTAMP_NS, NestedField
from icekeep.spec.updates import (
    AddPartitionSpec,
    AddSchema,
    AddSortOrder,
    AssignUuid,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetProperties,
    Update,
    UpgradeFormatVersion,
    apply_updates,
)
from kit.cases import for_each
from kit.metadata import SCHEMA, START_MS, MetadataBuilder

BASE = MetadataBuilder().commits(2).build()
WIDER = Schema(fields=(*SCHEMA.fields, NestedField(field_id=3, name="n", type=LONG)), schema_id=40)
BY_NAME = build_spec(SCHEMA, [("name", "identity", None)], spec_id=40)
BY_ID = build_spec(SCHEMA, [("id", "bucket[4]", None)], first_field_id=1001)
ORDER = build_sort_order(SCHEMA, ["name"], order_id=40)


def apply(base: TableMetadata, *updates: Update) -> TableMetadata:
    return apply_updates(base, updates, now_ms=START_MS)


def refused(base: TableMetadata, *updates: Update) -> str:
    with pytest.raises(InvalidTableError) as raised:
        apply(base, *updates)
    return str(raised.value)


def changed(**changes: Any) -> TableMetadata:
    return replace(BASE, **changes)


@for_each(
    ("update", "action"),
    [
        (AssignUuid("u"), "assign-uuid"),
        (UpgradeFormatVersion(2), "upgrade-format-version"),
        (SetLocation("l"), "set-location"),
        (AddSchema(WIDER), "add-schema"),
        (SetCurrentSchema(-1), "set-current-schema"),
        (AddPartitionSpec(BY_NAME), "add-spec"),
        (SetDefaultSpec(-1), "set-default-spec"),
        (AddSortOrder(ORDER), "add-sort-order"),
        (SetDefaultSortOrder(-1), "set-default-sort-order"),
    ],
)
def test_updates_have_the_names_of_the_rest_protocol(update: Update, action: str):
    assert update.__struct_config__.tag == action
    assert update.__struct_config__.tag_field == "action"


# Format version, uuid, location.


@pytest.mark.parametrize(("old", "new"), [(1, 2), (1, 3), (2, 3)])
def test_the_format_version_rises(old: int, new: int):
    base = MetadataBuilder(old).commits(2).build()
    after = apply(base, UpgradeFormatVersion(new))
    assert (after.format_version, after.next_row_id) == (new, 0 if new == 3 else None)
    assert after.snapshots == base.snapshots
    assert after.last_sequence_number == base.last_sequence_number


def test_the_format_version_may_stay_and_row_ids_with_it():
    base = replace(MetadataBuilder(3).build(), next_row_id=77)
    assert apply(base, UpgradeFormatVersion(3)).next_row_id == 77


@pytest.mark.parametrize(("old", "new"), [(2, 1), (3, 2)])
def test_the_format_version_never_falls(old: int, new: int):
    base = replace(MetadataBuilder(old).build(), next_row_id=0 if old == 3 else None)
    assert refused(base, UpgradeFormatVersion(new)) == f"the table has format version {old}; it cannot go back to {new}"


def test_a_format_version_that_is_not_known_is_refused():
    assert "3 is the newest that is known" in refused(BASE, UpgradeFormatVersion(4))


def test_a_version_1_table_without_a_uuid_gets_one_before_it_is_upgraded():
    base = replace(MetadataBuilder(1).build(), table_uuid=None)
    assert "assign one before" in refused(base, UpgradeFormatVersion(2))
    assert apply(base, AssignUuid("u"), UpgradeFormatVersion(2)).table_uuid == "u"


def test_a_uuid_is_assigned_once():
    assert apply(BASE, AssignUuid(BASE.table_uuid)).table_uuid == BASE.table_uuid
    assert "it cannot become u" in refused(BASE, AssignUuid("u"))


def test_new_files_go_to_a_new_location():
    assert apply(BASE, SetLocation("s3://b/new/")).location == "s3://b/new"
    assert "empty location" in refused(BASE, SetLocation("/"))


# Schemas.


def test_a_schema_is_added_with_the_next_id_and_made_current_by_minus_1():
    after = apply(BASE, AddSchema(WIDER, 5), SetCurrentSchema(-1))
    assert after.schemas == (SCHEMA, replace(WIDER, schema_id=1))
    assert (after.current_schema_id, after.last_column_id) == (1, 5)


def test_an_added_schema_alone_is_not_current():
    after = apply(BASE, AddSchema(WIDER))
    assert (after.current_schema_id, after.last_column_id, len(after.schemas)) == (0, 3, 2)


def test_an_equal_schema_is_not_added_again_but_ids_are_given_out():
    after = apply(BASE, AddSchema(replace(SCHEMA, schema_id=9), 8), SetCurrentSchema(-1))
    assert (after.schemas, after.current_schema_id, after.last_column_id) == ((SCHEMA,), 0, 8)


def test_minus_1_is_what_was_added_last():
    other = Schema(fields=SCHEMA.fields[:1])
    after = apply(BASE, AddSchema(WIDER), AddSchema(other), SetProperties({"a": "b"}), SetCurrentSchema(-1))
    assert after.schema.fields == other.fields
    assert apply(BASE, AddSchema(WIDER), AddSchema(SCHEMA), SetCurrentSchema(-1)).current_schema_id == 0


@pytest.mark.parametrize("last_column_id", [1, 2])
def test_the_last_column_id_never_falls_below_an_id_that_was_given_out(last_column_id: int):
    assert f"last-column-id {last_column_id} is below 3" in refused(BASE, AddSchema(WIDER, last_column_id))
    assert "is below 9" in refused(changed(last_column_id=9), AddSchema(WIDER, 8))
    assert apply(changed(last_column_id=9), AddSchema(WIDER)).last_column_id == 9


def test_a_schema_that_the_format_version_or_the_spec_does_not_allow_is_not_added():
    nanos = Schema(fields=(*SCHEMA.fields, NestedField(field_id=3, name="n", type=TIMESTAMP_NS)))
    assert "only format version 3 has" in refused(BASE, AddSchema(nanos))
    assert "field id 1 twice" in refused(BASE, AddSchema(Schema(fields=(SCHEMA.fields[0], SCHEMA.fields[0]))))


def test_a_current_schema_must_fit_the_default_spec():
    spec = build_spec(SCHEMA, [("name", "identity", None)])
    base = MetadataBuilder(spec=spec).build()
    without = Schema(fields=SCHEMA.fields[:1])
    assert "does not fit schema" in refused(base, AddSchema(without), SetCurrentSchema(-1))


# Partition specs.


def test_a_spec_is_added_with_the_next_id_and_made_the_default_by_minus_1():
    after = apply(BASE, AddPartitionSpec(BY_NAME), SetDefaultSpec(-1))
    assert after.partition_specs == (*BASE.partition_specs, replace(BY_NAME, spec_id=1))
    assert (after.default_spec_id, after.last_partition_id) == (1, 1000)


def test_an_equal_spec_is_not_added_again():
    base = apply(BASE, AddPartitionSpec(BY_NAME), AddPartitionSpec(BY_ID))
    assert base.last_partition_id == 1001
    after = apply(base, AddPartitionSpec(replace(BY_NAME, spec_id=77)), SetDefaultSpec(-1))
    assert (after.partition_specs, after.default_spec_id) == (base.partition_specs, 1)


def test_a_spec_must_fit_the_schema_and_number_its_fields_in_version_1():
    stranger = build_spec(WIDER, [("n", "identity", None)])
    assert "is not in the schema" in refused(BASE, AddPartitionSpec(stranger))
    assert apply(BASE, AddSchema(WIDER), SetCurrentSchema(-1), AddPartitionSpec(stranger)).last_partition_id == 1000
    first = MetadataBuilder(1).build()
    assert "numbered from 1000 on" in refused(first, AddPartitionSpec(BY_ID))
    assert apply(first, AddPartitionSpec(BY_NAME)).last_partition_id == 1000


# Sort orders.


def test_an_order_is_added_with_the_next_id_and_made_the_default_by_minus_1():
    after = apply(BASE, AddSortOrder(ORDER), SetDefaultSortOrder(-1))
    assert after.sort_orders == (UNSORTED, replace(ORDER, order_id=1))
    assert after.default_sort_order_id == 1


def test_an_equal_order_is_not_added_again_and_unsorted_is_0():
    base = apply(BASE, AddSortOrder(ORDER), SetDefaultSortOrder(-1))
    assert apply(base, AddSortOrder(ORDER), SetDefaultSortOrder(-1)).sort_orders == base.sort_orders
    unsorted = apply(base, AddSortOrder(SortOrder(order_id=9, fields=())), SetDefaultSortOrder(-1))
    assert (unsorted.sort_orders, unsorted.default_sort_order_id) == (base.sort_orders, 0)
    only = replace(base, sort_orders=base.sort_orders[1:])
    assert apply(only, AddSortOrder(UNSORTED)).sort_orders == (*only.sort_orders, UNSORTED)


def test_an_order_must_fit_the_schema():
    assert "is not in the schema" in refused(BASE, AddSortOrder(build_sort_order(WIDER, ["n"])))


# Ids.


@pytest.mark.parametrize("update", [SetCurrentSchema(-1), SetDefaultSpec(-1), SetDefaultSortOrder(-1)])
def test_minus_1_needs_something_that_the_same_commit_added(update: Update):
    assert "it added nothing of the kind" in refused(BASE, SetProperties({"a": "b"}), update)
    later = (AddSchema(WIDER), AddPartitionSpec(BY_NAME), AddSortOrder(ORDER))
    assert "it added nothing of the kind" in refused(BASE, update, *later)


@pytest.mark.parametrize(
    ("update", "what"),
    [(SetCurrentSchema(7), "schema"), (SetDefaultSpec(7), "spec"), (SetDefaultSortOrder(7), "sort order 7")],
)
def test_only_what_is_there_can_become_the_default(update: Update, what: str):
    assert what in refused(BASE, update)


def test_older_schemas_specs_and_orders_can_become_the_default_again():
    base = apply(
        BASE, AddSchema(WIDER), SetCurrentSchema(-1), AddPartitionSpec(BY_NAME), SetDefaultSpec(-1),
        AddSortOrder(ORDER), SetDefaultSortOrder(-1),
    )  # fmt: skip
    after = apply(base, SetCurrentSchema(0), SetDefaultSpec(0), SetDefaultSortOrder(0))
    assert (after.current_schema_id, after.default_spec_id, after.default_sort_order_id) == (0, 0, 0)


def test_the_base_stays_as_it_is():
    spec = PartitionSpec(spec_id=0, fields=())
    before = (BASE.schemas, BASE.partition_specs, BASE.sort_orders)
    apply(BASE, AddSchema(WIDER), AddPartitionSpec(spec), AddPartitionSpec(BY_NAME), AddSortOrder(ORDER))
    assert before == (BASE.schemas, BASE.partition_specs, BASE.sort_orders)
