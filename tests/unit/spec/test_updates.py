import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import icekeep.spec.types
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
from icekeep.spec.types import LONG, NestedField, StructType, Type
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
from kit.examples import check_examples
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


def test_publication_is_logged_at_snapshot_time():
    made_ms = NOW_MS - 3_000
    after = apply(
        MetadataBuilder().commits(1), AddSnapshot(snapshot(2, timestamp_ms=made_ms)), SetSnapshotRef("main", branch(2))
    )
    assert log(after)[-1] == (2, made_ms)
    assert after.last_updated_ms == NOW_MS


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


def test_only_unused_specs_and_schemas_are_removed():
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


@pytest.mark.parametrize(("old", "new"), [(2, 1), (3, 2)])
def test_the_format_version_never_falls(old: int, new: int):
    base = replace(MetadataBuilder(old).build(), next_row_id=0 if old == 3 else None)
    assert refused(base, UpgradeFormatVersion(new)) == f"the table has format version {old}; it cannot go back to {new}"


# Schemas.


def test_added_schema_gets_next_id_and_minus_1_selects_it():
    after = apply(BASE, AddSchema(WIDER, 5), SetCurrentSchema(-1))
    assert after.schemas == (SCHEMA, replace(WIDER, schema_id=1))
    assert (after.current_schema_id, after.last_column_id) == (1, 5)


def test_equal_schema_is_not_added_but_last_column_id_grows():
    after = apply(BASE, AddSchema(replace(SCHEMA, schema_id=9), 8), SetCurrentSchema(-1))
    assert (after.schemas, after.current_schema_id, after.last_column_id) == ((SCHEMA,), 0, 8)


@pytest.mark.parametrize("last_column_id", [1, 2])
def test_last_column_id_never_falls(last_column_id: int):
    assert f"last-column-id {last_column_id} is below 3" in refused(BASE, AddSchema(WIDER, last_column_id))
    assert "is below 9" in refused(changed(last_column_id=9), AddSchema(WIDER, 8))
    assert apply(changed(last_column_id=9), AddSchema(WIDER)).last_column_id == 9


# Partition specs.


def test_added_spec_gets_next_id_and_minus_1_selects_it():
    after = apply(BASE, AddPartitionSpec(BY_NAME), SetDefaultSpec(-1))
    assert after.partition_specs == (*BASE.partition_specs, replace(BY_NAME, spec_id=1))
    assert (after.default_spec_id, after.last_partition_id) == (1, 1000)


def test_an_equal_spec_is_not_added_again():
    base = apply(BASE, AddPartitionSpec(BY_NAME), AddPartitionSpec(BY_ID))
    assert base.last_partition_id == 1001
    after = apply(base, AddPartitionSpec(replace(BY_NAME, spec_id=77)), SetDefaultSpec(-1))
    assert (after.partition_specs, after.default_spec_id) == (base.partition_specs, 1)


# Sort orders.


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


def test_older_definitions_can_become_default_again():
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


def test_what_names_something_unknown_is_refused():
    assert "is not in the schema" in refused(BASE, AddSortOrder(build_sort_order(WIDER, ["n"])))
    refused(BASE, SetSnapshotRef("dev", branch(9)), error=NotFoundError)


def test_attachment_updates_have_rest_protocol_names():
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


@for_each(
    ("parts", "what"),
    [
        ({"snapshots": (Snapshot(snapshot_id=2, timestamp_ms=1, sequence_number=2),)}, "snapshot 2"),
        ({"schemas": (replace(SCHEMA, schema_id=7),)}, "schema 7"),
        ({"partition_specs": (PartitionSpec(spec_id=3, fields=()),)}, "partition spec 3"),
        ({"statistics": (replace(statistics_of(2), file_size_in_bytes=8),)}, "statistics file of snapshot 2"),
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


LOADED = MetadataBuilder().commits(3).tag("audit", at=1).branch("dev", at=2).build()
SAME_TABLE = AssertTableUuid(LOADED.table_uuid)
EVERY_REF = (AssertRefSnapshotId("main", 3), AssertRefSnapshotId("audit", 1), AssertRefSnapshotId("dev", 2))


def loaded_but(**changes: Any) -> TableMetadata:
    return msgspec.structs.replace(LOADED, **changes)


def at(snapshot_id: int) -> SnapshotRef:
    return SnapshotRef(snapshot_id=snapshot_id, type="branch")


@for_each(
    "update",
    [
        SetProperties({"a": "b"}),
        RemoveProperties(("a",)),
        AddSnapshot(Snapshot(snapshot_id=4, timestamp_ms=0, sequence_number=4)),
        SetLocation("s3://b/t"),
        RemoveStatistics(1),
        RemovePartitionStatistics(1),
        RemoveEncryptionKey("k"),
    ],
)
def test_every_change_needs_the_same_table(update: Update):
    assert requirements_for(LOADED, [update]) == (SAME_TABLE,)
    assert requirements_for(LOADED, []) == (SAME_TABLE,)


def test_restore_with_schemas_requires_unchanged_last_ids():
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
        (UpgradeFormatVersion(3), EVERY_REF),
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


def field(field_id: int, name: str, type_: Type = LONG) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_)


OLD = Schema(fields=(field(1, "a"), field(2, "s", StructType((field(3, "x"), field(4, "y")))), field(5, "b")))


def test_column_properties_follow_rename_and_drop():
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


def test_examples():
    check_examples("spec/updates.txt", icekeep.spec.types, globals())
