from icekeep.spec.snapshots import Snapshot


def test_the_operation_of_a_snapshot_is_in_its_summary():
    assert Snapshot(snapshot_id=1, timestamp_ms=2, summary={"operation": "append"}).operation == "append"


def test_a_snapshot_without_a_summary_or_an_operation_has_none():
    assert Snapshot(snapshot_id=1, timestamp_ms=2).operation is None
    assert Snapshot(snapshot_id=1, timestamp_ms=2, summary={}).operation is None


def test_a_snapshot_of_version_1_has_sequence_number_0():
    assert Snapshot(snapshot_id=1, timestamp_ms=2).sequence_number == 0
