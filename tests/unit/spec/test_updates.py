import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError
from icekeep.spec.metadata import TableMetadata, format_metadata, parse_metadata
from icekeep.spec.partitioning import UNPARTITIONED, PartitionField, PartitionSpec, build_spec
from icekeep.spec.schema import NAME_MAPPING_PROPERTY, Schema, parse_name_mapping
from icekeep.spec.snapshots import (
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
)
from icekeep.spec.sorting import UNSORTED, SortOrder, build_sort_order
from icekeep.spec.transforms import Identity
from icekeep.spec.types import LONG, STRING, TIMESTAMP_NS, ListType, NestedField, StructType, Type
from icekeep.spec.updates import (
    COLUMN_PROPERTIES,
    AddEncryptionKey,
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
    AssignUuid,
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
    SetPartitionStatistics,
    SetProperties,
    SetSnapshotRef,
    SetStatistics,
    Update,
    UpgradeFormatVersion,
    apply_updates,
    column_property_updates,
    failing,
    log_previous,
    requirements_for,
)
from kit.cases import for_each
from kit.metadata import DAY_MS, SCHEMA, START_MS, MetadataBuilder

NOW_MS = START_MS + 100 * DAY_MS
PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"


def snapshot(snapshot_id: int, **changes: Any) -> Snapshot:
    defaults = {"timestamp_ms": NOW_MS, "sequence_number": snapshot_id, "manifest_list": "s3://b/l"}
    return Snapshot(snapshot_id=snapshot_id, **{**defaults, **changes})


def branch(snapshot_id: int, **retention: int) -> SnapshotRef:
    return SnapshotRef(snapshot_id=snapshot_id, type="branch", **retention)


def apply(base: MetadataBuilder | TableMetadata, *updates: Update, now_ms: int = NOW_MS) -> TableMetadata:
    return apply_updates(base if isinstance(base, TableMetadata) else base.build(), updates, now_ms=now_ms)


def refused(base: MetadataBuilder, *updates: Update, error: type[Exception] = InvalidTableError) -> str:
    with pytest.raises(error) as raised:
        apply(base, *updates)
    return str(raised.value)


def log(metadata: TableMetadata) -> list[tuple[int, int]]:
    return [(entry.snapshot_id, entry.timestamp_ms) for entry in metadata.snapshot_log]


def test_no_updates_change_nothing():
    base = MetadataBuilder().commits(1).build()
    assert apply_updates(base, [], now_ms=NOW_MS) is base


def test_a_change_to_a_table_without_history_sets_its_time():
    after = apply(MetadataBuilder(), SetProperties({"a": "b"}))
    assert (after.properties, after.last_updated_ms) == ({"a": "b"}, NOW_MS)


def test_an_update_that_nobody_defined_is_a_bug():
    class Strange(Update, frozen=True, tag="strange"):
        pass

    assert "no effect defined" in refused(MetadataBuilder(), Strange(), error=IcekeepBug)


# Snapshots and references.


@pytest.mark.parametrize("format_version", [1, 2])
def test_a_snapshot_is_added_and_published(format_version: int):
    base = MetadataBuilder(format_version).commits(2).build()
    after = apply(base, AddSnapshot(snapshot(3, parent_snapshot_id=2)), SetSnapshotRef("main", branch(3)))
    assert after.current_snapshot == snapshot(3, parent_snapshot_id=2)
    assert after.snapshots[:2] == base.snapshots
    assert after.refs == {"main": branch(3)}
    assert after.last_sequence_number == 3
    assert after.last_updated_ms == NOW_MS
    assert log(after) == [*log(base), (3, NOW_MS)]


def test_the_base_stays_as_it_is():
    base = MetadataBuilder().commits(2).tag("a", at=1).build()
    before = msgspec.structs.asdict(base)
    apply(base, AddSnapshot(snapshot(3)), SetSnapshotRef("main", branch(3)), SetProperties({"a": "b"}))
    assert msgspec.structs.asdict(base) == before


def test_a_staged_snapshot_moves_no_reference():
    after = apply(MetadataBuilder().commits(2), AddSnapshot(snapshot(3)))
    assert after.current_snapshot_id == 2
    assert [s for s, _ in log(after)] == [1, 2]
    assert after.last_sequence_number == 3


@pytest.mark.parametrize("sequence_number", [0, 1, 2])
def test_a_snapshot_needs_a_newer_sequence_number(sequence_number: int):
    message = refused(MetadataBuilder().commits(2), AddSnapshot(snapshot(9, sequence_number=sequence_number)))
    assert message == f"snapshot 9 has sequence number {sequence_number}; the table is at 2 already"


def test_version_1_has_no_sequence_numbers():
    assert apply(MetadataBuilder(1).commits(2), AddSnapshot(snapshot(9, sequence_number=0))).last_sequence_number == 2


def test_row_ids_are_assigned_from_the_next_one_on():
    base = msgspec.structs.replace(MetadataBuilder(3).commits(1).build(), next_row_id=1000)
    after = apply(base, AddSnapshot(snapshot(2, first_row_id=1000, added_rows=375)))
    assert after.next_row_id == 1375


@pytest.mark.parametrize("row_ids", [{}, {"first_row_id": 999, "added_rows": 1}, {"first_row_id": 1000}])
def test_row_ids_that_are_taken_or_missing_are_refused(row_ids: dict[str, int]):
    base = msgspec.structs.replace(MetadataBuilder(3).commits(1).build(), next_row_id=1000)
    with pytest.raises(InvalidTableError, match="below next-row-id 1000"):
        apply(base, AddSnapshot(snapshot(2, **row_ids)))


def test_a_ref_is_made_moved_and_given_other_limits():
    base = MetadataBuilder().commits(2)
    tag = SnapshotRef(snapshot_id=1, type="tag", max_ref_age_ms=5)
    assert apply(base, SetSnapshotRef("audit", tag)).refs == {"main": branch(2), "audit": tag}
    moved = apply(base.branch("dev", at=1), SetSnapshotRef("dev", branch(2, max_snapshot_age_ms=7)))
    assert moved.refs["dev"] == branch(2, max_snapshot_age_ms=7)
    assert log(moved) == log(base.build())


def test_new_limits_of_main_add_nothing_to_the_log():
    base = MetadataBuilder().commits(2).build()
    after = apply(base, SetSnapshotRef("main", branch(2, min_snapshots_to_keep=4)))
    assert after.refs == {"main": branch(2, min_snapshots_to_keep=4)}
    assert log(after) == log(base)


def test_a_rollback_is_logged_at_the_moment_of_the_change():
    base = MetadataBuilder().commits(3).build()
    after = apply(base, SetSnapshotRef("main", branch(1)))
    assert after.current_snapshot_id == 1
    assert log(after) == [*log(base), (1, NOW_MS)]


def test_publishing_a_snapshot_of_an_earlier_commit_is_logged_at_the_moment_of_the_change():
    rolled_back = MetadataBuilder().commits(2).roll_back(to=1).build()
    assert log(apply(rolled_back, SetSnapshotRef("main", branch(2))))[-1] == (2, NOW_MS)
    staged = MetadataBuilder().commits(1).stage().build()
    assert log(apply(staged, SetSnapshotRef("main", branch(2))))[-1] == (2, NOW_MS)


def test_publishing_a_new_snapshot_is_logged_at_the_time_of_the_snapshot():
    made_ms = NOW_MS - 3_000
    after = apply(
        MetadataBuilder().commits(1), AddSnapshot(snapshot(2, timestamp_ms=made_ms)), SetSnapshotRef("main", branch(2))
    )
    assert log(after)[-1] == (2, made_ms)
    assert after.last_updated_ms == NOW_MS


def test_the_first_snapshot_of_a_table_begins_its_log():
    after = apply(MetadataBuilder(), AddSnapshot(snapshot(1)), SetSnapshotRef("main", branch(1)))
    assert log(after) == [(1, NOW_MS)]


# Other writers' clocks may be ahead of ours; Iceberg refuses a history that runs backwards.


@pytest.mark.parametrize(
    "updates",
    [
        [SetProperties({"a": "b"})],
        [SetSnapshotRef("main", branch(1))],
        [AddSnapshot(snapshot(3, timestamp_ms=START_MS)), SetSnapshotRef("main", branch(3))],
    ],
)
def test_time_does_not_run_backwards(updates: Sequence[Update]):
    base = MetadataBuilder().commits(2, step_ms=200 * DAY_MS).build()
    after = apply(base, *updates, now_ms=START_MS)
    times = [moment for _, moment in log(after)]
    assert after.last_updated_ms == base.last_updated_ms == max(times)
    assert times == sorted(times)


def test_a_table_is_not_older_than_its_newest_snapshot():
    late = NOW_MS + DAY_MS
    after = apply(
        MetadataBuilder().commits(1), AddSnapshot(snapshot(2, timestamp_ms=late)), SetSnapshotRef("main", branch(2))
    )
    assert after.last_updated_ms == late


def test_a_log_that_is_ahead_of_its_table_is_not_gone_back_on():
    base = MetadataBuilder().commits(2).build()
    ahead = msgspec.structs.replace(base.snapshot_log[-1], timestamp_ms=NOW_MS + 5)
    after = apply(msgspec.structs.replace(base, snapshot_log=(ahead,)), SetSnapshotRef("main", branch(1)))
    assert log(after) == [(2, NOW_MS + 5), (1, NOW_MS + 5)]
    assert after.last_updated_ms == NOW_MS + 5


# Removing.


def test_snapshots_are_removed_with_their_statistics_and_refs():
    base = MetadataBuilder().commits(3).tag("old", at=1).tag("new", at=2).build()

    def files(cls: Any, **more: Any) -> tuple[Any, ...]:
        return tuple(cls(snapshot_id=i, statistics_path=f"s{i}", file_size_in_bytes=1, **more) for i in (1, 2, 1))

    base = msgspec.structs.replace(
        base,
        statistics=files(StatisticsFile, file_footer_size_in_bytes=1),
        partition_statistics=files(PartitionStatisticsFile),
    )
    after = apply(base, RemoveSnapshots((1, 99)))
    assert after.snapshots == base.snapshots[1:]
    assert after.refs.keys() == {"main", "new"}
    assert [s.statistics_path for s in after.statistics] == ["s2"]
    assert [s.statistics_path for s in after.partition_statistics] == ["s2"]
    assert after.last_sequence_number == 3


def test_the_current_snapshot_cannot_be_removed():
    assert (
        refused(MetadataBuilder().commits(2), RemoveSnapshots((1, 2))) == "snapshot 2 is current and cannot be removed"
    )


@for_each(
    ("removed", "kept"),
    [((1,), [2, 3, 4]), ((2,), [3, 4]), ((1, 3), [4]), ((3,), [4]), ((1, 2, 3), [4]), ((), [1, 2, 3, 4])],
)
def test_the_log_keeps_only_what_follows_a_gap(removed: tuple[int, ...], kept: list[int]):
    after = apply(MetadataBuilder().commits(4), RemoveSnapshots(removed))
    assert [s for s, _ in log(after)] == kept


def test_a_snapshot_that_was_current_twice_is_cut_where_it_was_last():
    base = MetadataBuilder().commits(3).roll_back(to=2).roll_back(to=3)
    assert [s for s, _ in log(base.build())] == [1, 2, 3, 2, 3]
    assert [s for s, _ in log(apply(base, RemoveSnapshots((2,))))] == [3]


def test_a_gap_that_another_writer_left_cuts_the_log_too():
    base = MetadataBuilder().commits(3).build()
    stray = SnapshotLogEntry(timestamp_ms=START_MS, snapshot_id=77)
    base = msgspec.structs.replace(base, snapshot_log=(base.snapshot_log[0], stray, *base.snapshot_log[1:]))
    assert [s for s, _ in log(apply(base, SetProperties({"a": "b"})))] == [1, 77, 2, 3]
    assert [s for s, _ in log(apply(base, RemoveSnapshots((9,))))] == [2, 3]


@given(st.sets(st.integers(1, 7)), st.lists(st.integers(1, 7), max_size=6))
def test_no_entry_of_the_log_names_a_snapshot_that_is_gone(removed: set[int], rollbacks: list[int]):
    builder = MetadataBuilder().commits(8)
    for target in rollbacks:
        builder.roll_back(to=target)
    base = builder.roll_back(to=8).build()
    after = apply(base, RemoveSnapshots(tuple(removed)))
    entries = log(after)
    assert {s for s, _ in entries} <= after.snapshots_by_id.keys()
    assert log(base)[len(log(base)) - len(entries) :] == entries
    assert len(entries) == len(log(base)) or log(base)[-len(entries) - 1][0] in removed


def test_a_ref_is_removed_and_its_snapshot_stays():
    after = apply(MetadataBuilder().commits(2).tag("audit", at=1), RemoveSnapshotRef("audit"))
    assert after.refs.keys() == {"main"}
    assert len(after.snapshots) == 2


def test_a_ref_that_is_not_there_cannot_be_removed():
    with pytest.raises(NotFoundError, match="there is no branch or tag 'dev'") as raised:
        apply(MetadataBuilder().commits(1), RemoveSnapshotRef("dev"))
    assert raised.value.facts == {"ref": "dev"}


def test_properties_are_set_and_removed():
    base = MetadataBuilder().properties({"a": "1", "b": "2"})
    assert apply(base, SetProperties({"b": "3", "c": "4"})).properties == {"a": "1", "b": "3", "c": "4"}
    assert apply(base, RemoveProperties(("b", "missing"))).properties == {"a": "1"}


def test_unused_specs_and_schemas_are_removed_but_not_those_in_use():
    base = (
        MetadataBuilder()
        .spec(PartitionSpec(spec_id=1, fields=()))
        .spec(PartitionSpec(spec_id=2, fields=()))
        .schema(Schema(fields=SCHEMA.fields, schema_id=1))
    )
    assert [s.spec_id for s in apply(base, RemovePartitionSpecs((0, 7))).partition_specs] == [1, 2]
    assert [s.schema_id for s in apply(base, RemoveSchemas((0, 7))).schemas] == [1]
    assert refused(base, RemovePartitionSpecs((0, 2))) == "partition spec 2 is the default and cannot be removed"
    assert refused(base, RemoveSchemas((0, 1))) == "schema 1 is current and cannot be removed"


def test_updates_are_applied_in_order():
    base = MetadataBuilder().commits(2).tag("audit", at=1)
    after = apply(base, RemoveSnapshotRef("audit"), RemoveSnapshots((1,)), SetProperties({"a": "1"}))
    assert (after.refs.keys(), len(after.snapshots), after.properties) == ({"main"}, 1, {"a": "1"})


# The metadata log.


def test_the_file_that_is_replaced_goes_into_the_metadata_log():
    base = MetadataBuilder().build()
    first = log_previous(base, "s3://b/v1.json", 5)
    assert first.metadata_log == (MetadataLogEntry(timestamp_ms=5, metadata_file="s3://b/v1.json"),)
    assert [e.metadata_file for e in log_previous(first, "v2", 6).metadata_log] == ["s3://b/v1.json", "v2"]


@for_each(("text", "kept"), [("3", 3), ("+2", 2), ("1", 1), ("0", 1), ("-5", 1)])
def test_the_metadata_log_is_cut_at_its_greatest_length(text: str, kept: int):
    metadata = MetadataBuilder().properties({PREVIOUS_VERSIONS_MAX: text}).build()
    for version in range(103):
        metadata = log_previous(metadata, f"v{version}", version)
    assert [entry.timestamp_ms for entry in metadata.metadata_log] == list(range(103 - kept, 103))


def test_a_hundred_earlier_files_are_logged_by_default():
    entry = MetadataLogEntry(timestamp_ms=1, metadata_file="v0")
    metadata = msgspec.structs.replace(MetadataBuilder().build(), metadata_log=(entry,) * 150)
    assert len(log_previous(metadata, "v1", 2).metadata_log) == 100
    assert log_previous(metadata, "v1", 2).metadata_log[-1].metadata_file == "v1"


BASE = MetadataBuilder().commits(2).build()
WIDER = Schema(fields=(*SCHEMA.fields, NestedField(field_id=3, name="n", type=LONG)), schema_id=40)
BY_NAME = build_spec(SCHEMA, [("name", "identity", None)], spec_id=40)
BY_ID = build_spec(SCHEMA, [("id", "bucket[4]", None)], first_field_id=1001)
ORDER = build_sort_order(SCHEMA, ["name"], order_id=40)


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


def test_a_definition_that_is_the_base_stays_as_it_is():
    spec = PartitionSpec(spec_id=0, fields=())
    before = (BASE.schemas, BASE.partition_specs, BASE.sort_orders)
    apply(BASE, AddSchema(WIDER), AddPartitionSpec(spec), AddPartitionSpec(BY_NAME), AddSortOrder(ORDER))
    assert before == (BASE.schemas, BASE.partition_specs, BASE.sort_orders)


def statistics(snapshot_id: int, path: str) -> StatisticsFile:
    return StatisticsFile(
        snapshot_id=snapshot_id, statistics_path=path, file_size_in_bytes=1, file_footer_size_in_bytes=1
    )


def partition_statistics(snapshot_id: int, path: str) -> PartitionStatisticsFile:
    return PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path=path, file_size_in_bytes=1)


@pytest.mark.parametrize(
    ("make", "put", "take", "attribute"),
    [
        (statistics, SetStatistics, RemoveStatistics, "statistics"),
        (partition_statistics, SetPartitionStatistics, RemovePartitionStatistics, "partition_statistics"),
    ],
)
def test_a_snapshot_has_one_statistics_file_of_a_kind(make: Any, put: Any, take: Any, attribute: str):
    base = apply(BASE, put(make(1, "a")), put(make(2, "b")))
    assert getattr(base, attribute) == (make(1, "a"), make(2, "b"))
    assert getattr(apply(base, put(make(1, "c"))), attribute) == (make(2, "b"), make(1, "c"))
    assert getattr(apply(base, take(1)), attribute) == (make(2, "b"),)
    assert getattr(apply(base, take(9)), attribute) == getattr(base, attribute)


def test_keys_are_added_once_and_removed():
    key = {"key-id": "k1", "encrypted-key-metadata": "AAAA", "extra": {"x": 1}}
    base = apply(BASE, AddEncryptionKey(key))
    assert base.encryption_keys == (key,)
    assert apply(base, AddEncryptionKey({**key, "encrypted-key-metadata": "BBBB"})).encryption_keys == (key,)
    assert apply(base, RemoveEncryptionKey("k1")).encryption_keys == ()
    assert apply(base, RemoveEncryptionKey("k2")).encryption_keys == (key,)


@for_each(
    ("update", "problem"),
    [
        (AddSnapshot(snapshot(2, sequence_number=3)), "snapshot 2 exists already"),
        (SetSnapshotRef("main", SnapshotRef(snapshot_id=1, type="tag")), "main is a branch; it cannot become a tag"),
        (RemoveSnapshotRef("main"), "main cannot be removed"),
        (UpgradeFormatVersion(4), "the table cannot have format version 4; 3 is the newest that is known"),
        (AddEncryptionKey({}), "an encryption key has the key-id None; it must be text"),
    ],
)
def test_what_a_table_cannot_have_is_refused(update: Update, problem: str):
    assert refused(BASE, update).startswith(problem)


def test_what_names_something_unknown_is_refused():
    assert "is not in the schema" in refused(BASE, AddSortOrder(build_sort_order(WIDER, ["n"])))
    refused(BASE, SetSnapshotRef("dev", branch(9)), error=NotFoundError)


def test_updates_of_attachments_have_the_names_of_the_rest_protocol():
    names = [
        (SetStatistics, "set-statistics"), (RemoveStatistics, "remove-statistics"),
        (SetPartitionStatistics, "set-partition-statistics"),
        (RemovePartitionStatistics, "remove-partition-statistics"),
        (AddEncryptionKey, "add-encryption-key"), (RemoveEncryptionKey, "remove-encryption-key"),
    ]  # fmt: skip
    assert [(cls, cls.__struct_config__.tag) for cls, _ in names] == names


OLDER = Schema(fields=(NestedField(field_id=1, name="id", type=LONG),), schema_id=7)
BY_FIELD = PartitionSpec(
    spec_id=3, fields=(PartitionField(source_id=1, field_id=1000, name="id", transform=Identity()),)
)


def statistics_of(snapshot_id: int) -> StatisticsFile:
    return StatisticsFile(
        snapshot_id=snapshot_id, statistics_path="s3://b/s", file_size_in_bytes=9, file_footer_size_in_bytes=1
    )


def by_partition(snapshot_id: int) -> PartitionStatisticsFile:
    return PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path="s3://b/p", file_size_in_bytes=9)


def full(format_version: int = 2) -> TableMetadata:
    """Four snapshots; the second has a schema, a partition spec and statistics_of that nothing else has."""
    metadata = MetadataBuilder(format_version).commits(4).build()
    snapshots = [
        replace(s, sequence_number=0 if format_version == 1 else s.sequence_number) for s in metadata.snapshots
    ]
    snapshots[1] = replace(snapshots[1], schema_id=7)
    if format_version == 3:
        snapshots = [replace(s, first_row_id=10 * n, added_rows=10) for n, s in enumerate(snapshots)]
    return replace(
        metadata,
        snapshots=tuple(snapshots),
        schemas=(*metadata.schemas, OLDER),
        partition_specs=(*metadata.partition_specs, BY_FIELD),
        last_partition_id=1000,
        statistics=(statistics_of(2), statistics_of(4)),
        partition_statistics=(by_partition(2),),
        last_sequence_number=0 if format_version == 1 else 4,
        next_row_id=40 if format_version == 3 else None,
    )


def without(metadata: TableMetadata, *snapshot_ids: int) -> TableMetadata:
    return apply(metadata, RemoveSnapshots(snapshot_ids), RemoveSchemas((7,)), RemovePartitionSpecs((3,)))


def restoring(metadata: TableMetadata, *snapshot_ids: int, **parts: Any) -> RestoreSnapshots:
    snapshots = tuple(metadata.snapshots_by_id[i] for i in snapshot_ids)
    return RestoreSnapshots(snapshots=snapshots, **parts)


EVERYTHING = {
    "schemas": (OLDER,),
    "partition_specs": (BY_FIELD,),
    "statistics": (statistics_of(2),),
    "partition_statistics": (by_partition(2),),
}


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_what_was_removed_is_there_again_as_it_was(format_version: int):
    metadata = full(format_version)
    now = apply(without(metadata, 2, 3), restoring(metadata, 3, 2, **EVERYTHING))
    assert now.snapshots_by_id == metadata.snapshots_by_id
    assert now.schemas_by_id == metadata.schemas_by_id
    assert now.specs_by_id == metadata.specs_by_id
    assert {s.snapshot_id for s in now.statistics} == {2, 4}
    assert now.partition_statistics == metadata.partition_statistics
    assert parse_metadata(format_metadata(now), "m.json") == now


def test_snapshots_stand_where_they_stood():
    metadata = full()
    now = apply(without(metadata, 1, 3), restoring(metadata, 3, 1))
    assert [s.snapshot_id for s in now.snapshots] == [1, 2, 3, 4]


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_no_counter_log_or_reference_changes(format_version: int):
    metadata = full(format_version)
    base = without(metadata, 1, 2, 3)
    now = apply(base, restoring(metadata, 1, 2, 3))
    for name in (
        "last_sequence_number",
        "next_row_id",
        "last_column_id",
        "last_partition_id",
        "current_snapshot_id",
        "current_schema_id",
        "default_spec_id",
        "refs",
        "snapshot_log",
        "metadata_log",
    ):
        assert getattr(now, name) == getattr(base, name), name
    assert now.last_updated_ms == NOW_MS


def test_a_tag_of_the_same_commit_may_name_what_comes_back():
    metadata = full()
    tag = SnapshotRef(snapshot_id=2, type="tag", max_ref_age_ms=2**63 - 1)
    now = apply(without(metadata, 2), restoring(metadata, 2), SetSnapshotRef("restored-2", tag))
    assert now.refs == {**metadata.refs, "restored-2": tag}
    assert now.snapshot_log == without(metadata, 2).snapshot_log


def test_a_parent_that_is_gone_stays_named():
    metadata = full()
    now = apply(without(metadata, 1, 2, 3), restoring(metadata, 3))
    assert now.snapshots_by_id[3].parent_snapshot_id == 2
    assert [s.snapshot_id for s in now.ancestors(4)] == [4, 3]


def test_what_is_there_with_the_same_content_is_left_as_it_is():
    metadata = full()
    now = apply(metadata, restoring(metadata, 1, 2, **EVERYTHING))
    assert replace(now, last_updated_ms=0) == replace(metadata, last_updated_ms=0)


@for_each(
    ("parts", "what"),
    [
        ({"snapshots": (Snapshot(snapshot_id=2, timestamp_ms=1, sequence_number=2),)}, "snapshot 2"),
        ({"schemas": (replace(SCHEMA, schema_id=7),)}, "schema 7"),
        ({"partition_specs": (PartitionSpec(spec_id=3, fields=()),)}, "partition spec 3"),
        (
            {"statistics": (replace(statistics_of(2), file_size_in_bytes=8),)},
            "statistics file of snapshot 2",
        ),
        (
            {"partition_statistics": (replace(by_partition(2), file_size_in_bytes=8),)},
            "partition statistics file of snapshot 2",
        ),
    ],
)
def test_another_content_under_the_same_id_restores_nothing(parts: dict[str, Any], what: str):
    with pytest.raises(InvalidTableError) as raised:
        apply(full(), RestoreSnapshots(**{"snapshots": (), **parts}))
    assert raised.value.message == (
        f"{what} cannot be restored: the table has another one of this id by now; nothing was restored"
    )


def test_what_a_table_cannot_have_had_is_refused():
    metadata = full()
    base = replace(without(metadata, 1, 2, 3), snapshots=(), refs={}, current_snapshot_id=None)
    with pytest.raises(
        InvalidTableError, match="its sequence number 3 is above last-sequence-number 2, so this table never"
    ):
        apply(replace(base, last_sequence_number=2), restoring(metadata, 3))
    with pytest.raises(InvalidTableError, match="its row ids end at 20, above next-row-id 19"):
        apply(replace(without(full(3), 2), next_row_id=19), restoring(full(3), 2))
    with pytest.raises(InvalidTableError, match=r"a schema with field id 2 cannot be restored: .* last-column-id is 1"):
        apply(replace(base, last_column_id=1), restoring(metadata, 3, schemas=(SCHEMA,)))
    with pytest.raises(InvalidTableError, match="a partition spec with field id 1000 cannot be restored"):
        apply(replace(base, last_partition_id=999), restoring(metadata, 3, partition_specs=(BY_FIELD,)))


def test_snapshots_from_before_an_upgrade_come_back_to_the_upgraded_table():
    metadata = full(1)
    base = replace(without(metadata, 2), format_version=3, last_sequence_number=9, next_row_id=0)
    assert apply(base, restoring(metadata, 2)).snapshots_by_id[2].sequence_number == 0


LOADED = MetadataBuilder().commits(3).tag("audit", at=1).branch("dev", at=2).build()
SAME_TABLE = AssertTableUuid(LOADED.table_uuid)
EVERY_REF = (AssertRefSnapshotId("main", 3), AssertRefSnapshotId("audit", 1), AssertRefSnapshotId("dev", 2))


def loaded_but(**changes: Any) -> TableMetadata:
    return msgspec.structs.replace(LOADED, **changes)


def test_a_table_without_a_uuid_is_not_held_to_one() -> None:
    """Version 1 does not ask for one, and a REST server refuses the assertion without it as a bad request."""
    base = loaded_but(table_uuid=None, format_version=1)
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
    assert requirements_for(LOADED, [update]) == (SAME_TABLE,)
    assert requirements_for(LOADED, []) == (SAME_TABLE,)


@pytest.mark.parametrize(
    "update", [SetSnapshotRef("dev", at(3)), SetSnapshotRef("dev", at(2)), RemoveSnapshotRef("dev")]
)
def test_moving_or_removing_a_ref_needs_it_where_it_was(update: Update):
    assert requirements_for(LOADED, [update]) == (SAME_TABLE, AssertRefSnapshotId("dev", 2))


def test_the_first_snapshot_of_a_table_needs_that_main_is_not_there():
    empty = MetadataBuilder().build()
    assert AssertRefSnapshotId("main", None) in requirements_for(empty, [SetSnapshotRef("main", at(1))])


def test_restoring_snapshots_needs_that_no_id_of_what_comes_with_them_was_given_out():
    nothing_else = RestoreSnapshots(snapshots=LOADED.snapshots)
    assert requirements_for(LOADED, [nothing_else]) == (SAME_TABLE,)
    with_parts = msgspec.structs.replace(nothing_else, schemas=LOADED.schemas, partition_specs=LOADED.partition_specs)
    assert requirements_for(LOADED, [with_parts]) == (SAME_TABLE, SCHEMA_ID, FIELD_ID, SPEC_ID, PARTITION_ID)
    assert failing(requirements_for(LOADED, [with_parts]), LOADED) is None


SCHEMA_ID, SPEC_ID, ORDER_ID = AssertCurrentSchemaId(0), AssertDefaultSpecId(0), AssertDefaultSortOrderId(0)
FIELD_ID, PARTITION_ID = AssertLastAssignedFieldId(2), AssertLastAssignedPartitionId(999)


@for_each(
    ("update", "needed"),
    [
        (SetSnapshotRef("new", at(3)), [AssertRefSnapshotId("new", None)]),
        (RemoveSnapshots((1,)), EVERY_REF),
        (RemoveSchemas((9,)), [*EVERY_REF, SCHEMA_ID]),
        (RemovePartitionSpecs((9,)), [*EVERY_REF, SPEC_ID]),
        (AddSchema(LOADED.schema), [FIELD_ID]),
        (SetCurrentSchema(-1), [SCHEMA_ID, PARTITION_ID, SPEC_ID, ORDER_ID]),
        (AddPartitionSpec(UNPARTITIONED), [SCHEMA_ID, PARTITION_ID]),
        (SetDefaultSpec(-1), [SCHEMA_ID, SPEC_ID]),
        (AddSortOrder(UNSORTED), [SCHEMA_ID]),
        (SetDefaultSortOrder(-1), [SCHEMA_ID, ORDER_ID]),
    ],
)
def test_an_update_requires_what_it_builds_on(update: Update, needed: Sequence[Requirement]):
    assert requirements_for(LOADED, [update]) == (SAME_TABLE, *needed)
    assert failing(requirements_for(LOADED, [update]), LOADED) is None


def test_what_several_updates_need_is_needed_once():
    updates = [RemoveSnapshotRef("audit"), RemoveSnapshots((1,)), RemoveSchemas((9,))]
    needed = requirements_for(LOADED, updates)
    assert len(needed) == len(set(needed)) == 5


def test_requirements_of_a_table_hold_for_it():
    updates = [SetSnapshotRef("new", at(3)), RemoveSnapshots((1,)), RemoveSchemas((9,)), RemovePartitionSpecs((9,))]
    assert failing(requirements_for(LOADED, updates), LOADED) is None
    assert failing([], LOADED) is None


@for_each(
    ("requirement", "now", "problem"),
    [
        (
            SAME_TABLE,
            loaded_but(table_uuid="other"),
            f"the table's uuid is other, not {LOADED.table_uuid}",
        ),
        (
            EVERY_REF[2],
            loaded_but(refs={**LOADED.refs, "dev": at(3)}),
            "ref 'dev' is at snapshot 3, not 2",
        ),
        (EVERY_REF[2], loaded_but(refs={"main": at(3)}), "ref 'dev' is at snapshot None, not 2"),
        (AssertRefSnapshotId("dev", None), LOADED, "ref 'dev' is at snapshot 2, not None"),
        (AssertCurrentSchemaId(0), loaded_but(current_schema_id=1), "the current schema is 1, not 0"),
        (AssertDefaultSpecId(0), loaded_but(default_spec_id=1), "the default partition spec is 1, not 0"),
        (FIELD_ID, loaded_but(last_column_id=3), "the last field id is 3, not 2"),
        (PARTITION_ID, loaded_but(last_partition_id=1000), "the last partition field id is 1000, not 999"),
        (ORDER_ID, loaded_but(default_sort_order_id=1), "the default sort order is 1, not 0"),
    ],
)
def test_a_requirement_that_does_not_hold_is_named(requirement: Requirement, now: TableMetadata, problem: str):
    assert failing([requirement], now) == problem


def test_the_first_requirement_that_does_not_hold_is_named():
    now = loaded_but(current_schema_id=1, default_spec_id=1)
    assert failing([SAME_TABLE, AssertDefaultSpecId(0), AssertCurrentSchemaId(0)], now) == (
        "the default partition spec is 1, not 0"
    )


def test_a_tag_that_moved_while_snapshots_are_removed_is_noticed():
    requirements = requirements_for(LOADED, [RemoveSnapshots((1,))])
    moved = loaded_but(refs={**LOADED.refs, "audit": SnapshotRef(snapshot_id=2, type="tag")})
    assert failing(requirements, moved) == "ref 'audit' is at snapshot 2, not 1"


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
    updates = column_property_updates(OLD, new, {NAME_MAPPING_PROPERTY: json.dumps(mapping)})
    if not updates:
        return mapping
    (change,) = updates
    assert isinstance(change, SetProperties)
    parse_name_mapping(change.updates[NAME_MAPPING_PROPERTY])
    return json.loads(change.updates[NAME_MAPPING_PROPERTY])


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
    assert column_property_updates(OLD, new, {NAME_MAPPING_PROPERTY: "{"}) == ()
