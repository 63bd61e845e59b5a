"""Whose progress a summary has; what of it is kept is in `test_retention.py`."""

from icekeep.spec.retention import Writer, kept_for_writers, writers_of
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from kit.metadata import DAY_MS, START_MS, MetadataBuilder


def snapshot(**summary: str) -> Snapshot:
    return Snapshot(snapshot_id=1, timestamp_ms=0, summary={key.replace("__", "."): v for key, v in summary.items()})


def test_a_snapshot_may_have_the_progress_of_several_writers():
    offsets = {"kafka.connect.offsets.control.a": "{}", "kafka.connect.offsets.control.b": "{}"}
    several = Snapshot(
        snapshot_id=1,
        timestamp_ms=0,
        summary={"flink.max-committed-checkpoint-id": "1", **offsets},
    )
    assert writers_of(several) == (
        Writer("flink.max-committed-checkpoint-id", "Flink job (unnamed)"),
        Writer("kafka.connect.offsets.control.a", "Kafka Connect control.a"),
        Writer("kafka.connect.offsets.control.b", "Kafka Connect control.b"),
    )


def test_a_snapshot_without_a_summary_has_none():
    assert writers_of(Snapshot(snapshot_id=1, timestamp_ms=0)) == ()
    assert writers_of(snapshot(operation="append")) == ()


def test_where_no_writer_notes_anything_nothing_is_kept():
    metadata = MetadataBuilder().commits(3).build()
    branches = {"main": SnapshotRef(snapshot_id=3, type="branch")}
    assert kept_for_writers(metadata, branches, 100 * DAY_MS, START_MS) == {}
