from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, OptionError, UsageError
from icekeep.spec.snapshots import (
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    carried,
    checked_properties,
    is_reserved,
    moved,
    object_from_json,
    object_to_json,
    validated_ref,
)
from kit.cases import for_each
from kit.strategies import json_values


def test_the_operation_of_a_snapshot_is_in_its_summary():
    assert Snapshot(snapshot_id=1, timestamp_ms=2, summary={"operation": "append"}).operation == "append"


def test_a_snapshot_without_a_summary_or_an_operation_has_none():
    assert Snapshot(snapshot_id=1, timestamp_ms=2).operation is None
    assert Snapshot(snapshot_id=1, timestamp_ms=2, summary={}).operation is None


def test_a_snapshot_of_version_1_has_sequence_number_0():
    assert Snapshot(snapshot_id=1, timestamp_ms=2).sequence_number == 0


@for_each(
    "key",
    [
        "operation",
        "total-records",
        "added-dvs",
        "changed-partition-count",
        "manifests-kept",
        "partitions.day=2026-01-31",
        "engine-name",
        "app-id",
        "iceberg-version",
        "icekeep.run-id",
        "flink.job-id",
        "spark.app.id",
        "kafka.connect.offsets.x",
        "wap.id",
        "published-wap-id",
        "source-snapshot-id",
        "trino_query_id",
    ],
)
def test_keys_that_others_write_cannot_be_one_s_own(key):
    assert is_reserved(key)
    with pytest.raises(UsageError, match="cannot be a key of your own in a snapshot's summary"):
        checked_properties({key: "x"})


def test_other_keys_can():
    given = {"ticket": "OPS-7", "custom.watermark-ms": "", "owner": "größe"}
    assert dict(checked_properties(given)) == given


@for_each("given", [{"": "x"}, {" ": "x"}, {"a\nb": "x"}, {"a*": "x"}, {"a": 5}, {5: "x"}])
def test_what_is_no_key_or_value_is_refused(given):
    with pytest.raises(UsageError):
        checked_properties(given)


def test_keys_are_carried_by_name_or_by_what_they_begin_with():
    summary = {"pipeline-id": "1", "custom.a": "2", "custom": "3", "total-records": "4", "operation": "append"}
    assert carried(summary, ("pipeline-id", "custom.*")) == {"pipeline-id": "1", "custom.a": "2"}
    assert carried(summary, ("total-*", "to*")) == {}
    assert carried(summary, ("*",)) == {"pipeline-id": "1", "custom.a": "2", "custom": "3"}
    assert carried(summary, ()) == {}


SNAPSHOT = {"snapshot-id": 1, "timestamp-ms": 2}
STATISTICS = {"snapshot-id": 1, "statistics-path": "s3://b/s", "file-size-in-bytes": 9, "file-footer-size-in-bytes": 4}


def test_keys_of_the_spec_are_read_into_attributes_of_the_same_name():
    full = {**SNAPSHOT, "parent-snapshot-id": 3, "sequence-number": 4, "manifest-list": "s3://b/l", "schema-id": 5}
    snapshot = object_from_json(Snapshot, {**full, "summary": {"operation": "append"}, "key-id": "k"}, "snapshot")
    assert snapshot == Snapshot(
        snapshot_id=1,
        timestamp_ms=2,
        parent_snapshot_id=3,
        sequence_number=4,
        manifest_list="s3://b/l",
        schema_id=5,
        summary={"operation": "append"},
        key_id="k",
    )


def test_null_and_absent_are_the_same():
    with_null = object_from_json(Snapshot, {**SNAPSHOT, "schema-id": None, "sequence-number": None}, "snapshot")
    assert with_null == object_from_json(Snapshot, SNAPSHOT, "snapshot")
    assert "schema-id" not in object_to_json(with_null)


def test_keys_that_are_not_known_come_back_as_they_were():
    unknown = {"x-new": {"deep": [1, None, {"a": 2.5}]}, "x-null": None, "extra": "mine"}
    assert object_to_json(object_from_json(Snapshot, {**SNAPSHOT, **unknown}, "snapshot")) == {
        **SNAPSHOT,
        "sequence-number": 0,
        **unknown,
    }


@given(st.dictionaries(st.text(max_size=8).map(lambda name: f"x-{name}"), json_values(), max_size=4))
def test_any_unknown_keys_come_back(unknown: dict[str, Any]):
    given_object = {**STATISTICS, "blob-metadata": [{"type": "ndv", **unknown}], **unknown}
    assert object_to_json(object_from_json(StatisticsFile, given_object, "statistics[0]")) == given_object


def test_a_list_stays_a_list():
    snapshot = object_from_json(Snapshot, {**SNAPSHOT, "manifests": ["a", "b"]}, "snapshot")
    assert snapshot.manifests == ("a", "b")
    assert object_to_json(snapshot)["manifests"] == ["a", "b"]


@for_each("value", [None, 3, "text", [], [SNAPSHOT]])
def test_what_is_no_object_is_refused(value: Any):
    with pytest.raises(InvalidTableError) as raised:
        object_from_json(Snapshot, value, "snapshots[4]")
    assert raised.value.message == f"snapshots[4] is {value!r}; it must be an object"


@pytest.mark.parametrize("missing", ["snapshot-id", "timestamp-ms"])
def test_a_required_key_must_be_there_and_not_null(missing: str):
    without = {key: value for key, value in SNAPSHOT.items() if key != missing}
    for value in (without, {**SNAPSHOT, missing: None}):
        with pytest.raises(InvalidTableError, match=f"snapshots\\[4\\]: .*`{missing}`"):
            object_from_json(Snapshot, value, "snapshots[4]")


@for_each(
    ("key", "value"),
    [
        ("snapshot-id", "1"),
        ("snapshot-id", 1.0),
        ("snapshot-id", True),
        ("manifest-list", 5),
        ("manifests", [5]),
        ("manifests", "s3://b/m"),
        ("summary", []),
        ("schema-id", "0"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_key(key: str, value: Any):
    with pytest.raises(InvalidTableError, match=f"^snapshots\\[4\\]: expected .*{key}") as raised:
        object_from_json(Snapshot, {**SNAPSHOT, key: value}, "snapshots[4]")
    assert "\n" not in raised.value.message


def test_a_value_in_a_summary_that_is_no_text_is_refused_with_its_own_key():
    with pytest.raises(InvalidTableError) as raised:
        object_from_json(Snapshot, {**SNAPSHOT, "summary": {"operation": 5}}, "snapshots[4]")
    assert raised.value.message == "snapshots[4]: 'operation' of its 'summary' is 5; it must be text"


def test_a_reference_is_a_branch_or_a_tag():
    assert object_from_json(SnapshotRef, {"snapshot-id": 1, "type": "branch"}, "ref 'a'").is_branch
    assert not object_from_json(SnapshotRef, {"snapshot-id": 1, "type": "tag"}, "ref 'a'").is_branch
    with pytest.raises(InvalidTableError, match=r"^ref 'a': invalid enum value 'bookmark'"):
        object_from_json(SnapshotRef, {"snapshot-id": 1, "type": "bookmark"}, "ref 'a'")


BRANCH = SnapshotRef(snapshot_id=1, type="branch")
TAG = SnapshotRef(snapshot_id=1, type="tag")


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_a_reference_needs_a_name(name):
    with pytest.raises(UsageError, match="cannot be the name of a tag"):
        validated_ref(name, TAG)


def test_main_is_no_tag():
    with pytest.raises(UsageError, match="main is a branch"):
        validated_ref("main", TAG)
    assert validated_ref("main", BRANCH) is BRANCH


@pytest.mark.parametrize("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms"])
def test_only_a_branch_has_limits_for_its_snapshots(limit):
    with pytest.raises(UsageError, match=f"'t' is a tag; only a branch can have {limit.replace('_', '-')}"):
        validated_ref("t", replace(TAG, **{limit: 5}))
    assert validated_ref("b", replace(BRANCH, **{limit: 5}))


@for_each("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms", "max_ref_age_ms"])
@for_each("value", [0, -1, 2**63])
def test_limits_are_positive_numbers_that_other_engines_can_read(limit, value):
    with pytest.raises(OptionError, match=f"option {limit} is {value}; give a whole number from 1 to"):
        validated_ref("b", replace(BRANCH, **{limit: value}))


def test_the_greatest_number_of_snapshots_is_that_of_an_int():
    assert validated_ref("b", replace(BRANCH, min_snapshots_to_keep=2**31 - 1))
    with pytest.raises(OptionError):
        validated_ref("b", replace(BRANCH, min_snapshots_to_keep=2**31))


def test_a_reference_that_is_moved_keeps_what_it_says_beside_its_snapshot():
    ref = SnapshotRef(snapshot_id=1, type="tag", max_ref_age_ms=7, extra={"new": "key"})
    assert moved(ref, 2) == SnapshotRef(snapshot_id=2, type="tag", max_ref_age_ms=7, extra={"new": "key"})
    assert moved(None, 2) == SnapshotRef(snapshot_id=2, type="branch")
