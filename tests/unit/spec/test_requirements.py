from typing import Any

import msgspec
import pytest

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from icekeep.spec.sorting import UNSORTED
from icekeep.spec.updates import (
    AddPartitionSpec,
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUuid,
    RemoveEncryptionKey,
    RemovePartitionSpecs,
    RemovePartitionStatistics,
    RemoveProperties,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveStatistics,
    Requirement,
    RestoreSnapshots,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetProperties,
    SetSnapshotRef,
    Update,
    UpgradeFormatVersion,
    failing,
    requirements_for,
)
from kit.cases import for_each
from kit.metadata import MetadataBuilder

BASE = MetadataBuilder().commits(3).tag("audit", at=1).branch("dev", at=2).build()
SAME_TABLE = AssertTableUuid(BASE.table_uuid)
EVERY_REF = (AssertRefSnapshotId("main", 3), AssertRefSnapshotId("audit", 1), AssertRefSnapshotId("dev", 2))


def changed(**changes: Any) -> TableMetadata:
    return msgspec.structs.replace(BASE, **changes)


def test_a_table_without_a_uuid_is_not_held_to_one() -> None:
    """Version 1 does not ask for one, and a REST server refuses the assertion without it as a bad request."""
    base = changed(table_uuid=None, format_version=1)
    assert requirements_for(base, [SetSnapshotRef("dev", at(1))]) == (AssertRefSnapshotId("dev", 2),)
    assert requirements_for(base, [SetProperties({"owner": "me"})]) == ()


def at(snapshot_id: int) -> SnapshotRef:
    return SnapshotRef(snapshot_id=snapshot_id, type="branch")


@for_each(
    "update",
    [
        SetProperties({"a": "b"}),
        RemoveProperties(("a",)),
        AddSnapshot(Snapshot(snapshot_id=4, timestamp_ms=0, sequence_number=4)),
        UpgradeFormatVersion(3),
        SetLocation("s3://b/t"),
        RemoveStatistics(1),
        RemovePartitionStatistics(1),
        RemoveEncryptionKey("k"),
    ],
)
def test_every_change_needs_the_same_table(update: Update):
    assert requirements_for(BASE, [update]) == (SAME_TABLE,)
    assert requirements_for(BASE, []) == (SAME_TABLE,)


@pytest.mark.parametrize(
    "update", [SetSnapshotRef("dev", at(3)), SetSnapshotRef("dev", at(2)), RemoveSnapshotRef("dev")]
)
def test_moving_or_removing_a_ref_needs_it_where_it_was(update: Update):
    assert requirements_for(BASE, [update]) == (SAME_TABLE, AssertRefSnapshotId("dev", 2))


def test_a_new_ref_must_not_be_there():
    assert requirements_for(BASE, [SetSnapshotRef("new", at(3))]) == (SAME_TABLE, AssertRefSnapshotId("new", None))


def test_the_first_snapshot_of_a_table_needs_that_main_is_not_there():
    empty = MetadataBuilder().build()
    assert AssertRefSnapshotId("main", None) in requirements_for(empty, [SetSnapshotRef("main", at(1))])


def test_removing_snapshots_needs_every_ref_where_it_was():
    assert requirements_for(BASE, [RemoveSnapshots((1,))]) == (SAME_TABLE, *EVERY_REF)


def test_removing_schemas_needs_every_ref_and_the_current_schema():
    assert requirements_for(BASE, [RemoveSchemas((9,))]) == (SAME_TABLE, *EVERY_REF, AssertCurrentSchemaId(0))


def test_removing_specs_needs_every_ref_and_the_default_spec():
    assert requirements_for(BASE, [RemovePartitionSpecs((9,))]) == (SAME_TABLE, *EVERY_REF, AssertDefaultSpecId(0))


def test_restoring_snapshots_needs_that_no_id_of_what_comes_with_them_was_given_out():
    nothing_else = RestoreSnapshots(snapshots=BASE.snapshots)
    assert requirements_for(BASE, [nothing_else]) == (SAME_TABLE,)
    with_parts = msgspec.structs.replace(nothing_else, schemas=BASE.schemas, partition_specs=BASE.partition_specs)
    assert requirements_for(BASE, [with_parts]) == (SAME_TABLE, SCHEMA_ID, FIELD_ID, SPEC_ID, PARTITION_ID)
    assert failing(requirements_for(BASE, [with_parts]), BASE) is None


SCHEMA_ID, SPEC_ID, ORDER_ID = AssertCurrentSchemaId(0), AssertDefaultSpecId(0), AssertDefaultSortOrderId(0)
FIELD_ID, PARTITION_ID = AssertLastAssignedFieldId(2), AssertLastAssignedPartitionId(999)


@for_each(
    ("update", "needed"),
    [
        (AddSchema(BASE.schema), [FIELD_ID]),
        (SetCurrentSchema(-1), [SCHEMA_ID, PARTITION_ID, SPEC_ID, ORDER_ID]),
        (AddPartitionSpec(UNPARTITIONED), [SCHEMA_ID, PARTITION_ID]),
        (SetDefaultSpec(-1), [SCHEMA_ID, SPEC_ID]),
        (AddSortOrder(UNSORTED), [SCHEMA_ID]),
        (SetDefaultSortOrder(-1), [SCHEMA_ID, ORDER_ID]),
    ],
)
def test_schema_spec_and_order_need_each_other_as_they_were(update: Update, needed: list[Requirement]):
    assert requirements_for(BASE, [update]) == (SAME_TABLE, *needed)
    assert failing(requirements_for(BASE, [update]), BASE) is None


def test_what_several_updates_need_is_needed_once():
    updates = [RemoveSnapshotRef("audit"), RemoveSnapshots((1,)), RemoveSchemas((9,))]
    needed = requirements_for(BASE, updates)
    assert len(needed) == len(set(needed)) == 5


def test_requirements_of_a_table_hold_for_it():
    updates = [SetSnapshotRef("new", at(3)), RemoveSnapshots((1,)), RemoveSchemas((9,)), RemovePartitionSpecs((9,))]
    assert failing(requirements_for(BASE, updates), BASE) is None
    assert failing([], BASE) is None


@for_each(
    ("requirement", "now", "problem"),
    [
        (SAME_TABLE, changed(table_uuid="other"), f"the table's uuid is other, not {BASE.table_uuid}"),
        (EVERY_REF[2], changed(refs={**BASE.refs, "dev": at(3)}), "ref 'dev' is at snapshot 3, not 2"),
        (EVERY_REF[2], changed(refs={"main": at(3)}), "ref 'dev' is at snapshot None, not 2"),
        (AssertRefSnapshotId("dev", None), BASE, "ref 'dev' is at snapshot 2, not None"),
        (AssertCurrentSchemaId(0), changed(current_schema_id=1), "the current schema is 1, not 0"),
        (AssertDefaultSpecId(0), changed(default_spec_id=1), "the default partition spec is 1, not 0"),
        (FIELD_ID, changed(last_column_id=3), "the last field id is 3, not 2"),
        (PARTITION_ID, changed(last_partition_id=1000), "the last partition field id is 1000, not 999"),
        (ORDER_ID, changed(default_sort_order_id=1), "the default sort order is 1, not 0"),
    ],
)
def test_a_requirement_that_does_not_hold_is_named(requirement: Requirement, now: TableMetadata, problem: str):
    assert failing([requirement], now) == problem


def test_the_first_requirement_that_does_not_hold_is_named():
    now = changed(current_schema_id=1, default_spec_id=1)
    assert failing([SAME_TABLE, AssertDefaultSpecId(0), AssertCurrentSchemaId(0)], now) == (
        "the default partition spec is 1, not 0"
    )


def test_a_tag_that_moved_while_snapshots_are_removed_is_noticed():
    requirements = requirements_for(BASE, [RemoveSnapshots((1,))])
    moved = changed(refs={**BASE.refs, "audit": SnapshotRef(snapshot_id=2, type="tag")})
    assert failing(requirements, moved) == "ref 'audit' is at snapshot 2, not 1"
