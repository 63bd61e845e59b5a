from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import (
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
)
from icekeep.spec.updates import (
    AddSnapshot,
    RemovePartitionSpecs,
    RemoveProperties,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    SetProperties,
    SetSnapshotRef,
    Update,
    apply_updates,
    log_previous,
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


def test_a_snapshot_id_is_used_once():
    assert refused(MetadataBuilder().commits(2), AddSnapshot(snapshot(2, sequence_number=3))) == (
        "snapshot 2 exists already"
    )


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


def test_a_ref_to_a_snapshot_that_is_not_there_is_refused():
    refused(MetadataBuilder().commits(1), SetSnapshotRef("dev", branch(9)), error=NotFoundError)


def test_main_cannot_become_a_tag():
    assert refused(MetadataBuilder().commits(1), SetSnapshotRef("main", SnapshotRef(snapshot_id=1, type="tag"))) == (
        "main is a branch; it cannot become a tag"
    )


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


def test_main_cannot_be_removed():
    assert refused(MetadataBuilder().commits(1), RemoveSnapshotRef("main")) == "main cannot be removed"


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
