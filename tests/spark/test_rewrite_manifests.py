from collections import Counter
from pathlib import Path
from urllib.parse import urlparse

import fastavro
from pyspark.sql import SparkSession

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.events import Event, Warned
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.manifests.job import plan_rewrite_manifests, rewrite_manifests
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.entries import ReadBy, Reading, entries
from icekeep.planning.scan.plan import open_scan
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append
from kit.lake import EVENTS, Lake, events, multiset


def live_entries(lake: Lake) -> Counter[str]:
    """All live entries with all fields but the status, as PyIceberg reads them."""
    entries = [e for e in lake.foreign().inspect.entries().to_pylist() if e["status"] != 2]
    return Counter(repr({k: v for k, v in e.items() if k not in ("status", "readable_metrics")}) for e in entries)


def manifests(lake: Lake) -> list[object]:
    table = lake.foreign()
    return list(table.current_snapshot().manifests(table.io))


def test_many_manifests_become_one_and_every_entry_stays_as_it_was(any_lake: Lake, spark_session: SparkSession) -> None:
    table = any_lake.filled(commits=12)
    entries, rows = live_entries(any_lake), any_lake.rows()
    result = rewrite_manifests(table, spark_session)
    assert (result.rewritten_manifests_count, result.added_manifests_count) == (12, 1)
    assert len(manifests(any_lake)) == 1
    assert live_entries(any_lake) == entries
    assert any_lake.rows() == rows


def test_manifests_are_clustered_by_partition_and_cut_at_the_target_size(
    lake: Lake, spark_session: SparkSession
) -> None:
    """apache/iceberg #6891: one large partition is split too."""
    table = lake.filled(commits=10, files=12, rows=5, write__manifest__compression_codec="uncompressed")
    table = commit(table, ChangeProperties(updates={"commit.manifest.target-size-bytes": "8000"})).table
    plan = plan_rewrite_manifests(table, spark_session)
    assert plan.added_manifests_count > 3
    entries = live_entries(lake)
    result = rewrite_manifests(table, spark_session)
    assert result.added_manifests_count > 3
    assert live_entries(lake) == entries
    ranges = [(m.partitions[0].lower_bound, m.partitions[0].upper_bound) for m in manifests(lake)]  # type: ignore[attr-defined]
    assert sum(low == high for low, high in ranges) >= len(ranges) - 2


def test_manifests_without_live_files_are_left_out(lake: Lake, spark_session: SparkSession) -> None:
    compact(lake.filled(), spark_session)
    assert len(manifests(lake)) == 7
    rows = lake.rows()
    result = rewrite_manifests(lake.load(), spark_session)
    assert (result.rewritten_manifests_count, result.added_manifests_count) == (6, 0)
    assert len(manifests(lake)) == 1
    assert lake.rows() == rows
    assert lake.foreign().current_snapshot().summary["total-records"] == "360"


def test_a_branch_s_manifests_become_one_and_main_stays_as_it_was(any_lake: Lake, spark_session: SparkSession) -> None:
    table = create_branch(any_lake.filled(), "audit")
    for number in range(4):
        table = append(table, events(800 + number), branch="audit")
    table = append(table, events(900))
    main, main_rows, main_manifests = table.metadata.current_snapshot_id, any_lake.rows(), len(manifests(any_lake))
    head = table.metadata.refs["audit"].snapshot_id
    rows = multiset(any_lake.foreign().scan(snapshot_id=head).to_arrow())
    plan = plan_rewrite_manifests(table, spark_session, branch="audit")
    assert (plan.branch, plan.snapshot_id, plan.rewritten_manifests_count) == ("audit", head, 10)
    result = rewrite_manifests(table, spark_session, branch="audit")
    assert (result.rewritten_manifests_count, result.added_manifests_count) == (10, 1)
    after = any_lake.load().metadata
    assert (after.current_snapshot_id, len(manifests(any_lake)), any_lake.rows()) == (main, main_manifests, main_rows)
    new = after.head("audit")
    assert new is not None
    assert (new.parent_snapshot_id, new.operation) == (head, "replace")
    foreign = any_lake.foreign()
    assert len(foreign.snapshot_by_id(new.snapshot_id).manifests(foreign.io)) == 1
    assert multiset(foreign.scan(snapshot_id=new.snapshot_id).to_arrow()) == rows


def test_manifests_that_pyiceberg_wrote_are_rewritten(lake: Lake, spark_session: SparkSession) -> None:
    lake.create()
    foreign = lake.foreign_catalog().load_table(EVENTS)
    for number in range(5):
        foreign.append(events(number, month=1 + number % 3))
    entries = live_entries(lake)
    assert rewrite_manifests(lake.load(), spark_session).added_manifests_count == 1
    assert live_entries(lake) == entries
    append(lake.load(), events(77))
    assert sum(lake.rows().values()) == 120


class Remembering:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)


def add_an_unknown_field(path: Path) -> int:
    """Let the entries of a manifest have a field of a version of the format to come; returns its new length."""
    with path.open("rb") as stream:
        reader = fastavro.reader(stream)
        records, schema, metadata = [*reader], reader.writer_schema, reader.metadata
    field = {"name": "to_come", "field-id": 9999, "type": "int", "default": 7}
    schema = {**schema, "fields": [*schema["fields"], field]}
    kept = {key: value for key, value in metadata.items() if not key.startswith("avro.")}
    with path.open("wb") as stream:
        fastavro.writer(stream, schema, [{**r, "to_come": 7} for r in records], codec="deflate", metadata=kept)
    return path.stat().st_size


def test_a_manifest_with_unknown_fields_is_planned_from_and_left_alone(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.filled()
    rows = lake.rows()
    assert table.metadata.current_snapshot is not None
    listing = Path(urlparse(str(table.metadata.current_snapshot.manifest_list)).path)
    with listing.open("rb") as stream:
        reader = fastavro.reader(stream)
        records, schema, metadata = [*reader], reader.writer_schema, reader.metadata
    strange = records[2]["manifest_path"]
    records[2]["manifest_length"] = add_an_unknown_field(Path(urlparse(strange).path))
    kept = {key: value for key, value in metadata.items() if not key.startswith("avro.")}
    with listing.open("wb") as stream:
        fastavro.writer(stream, schema, records, codec="deflate", metadata=kept)
    for decoder in ManifestDecoder:
        reading = Reading(by=ReadBy.DRIVER, decoder=decoder, reason="")
        opened = open_scan(table)
        columns = frozenset({"file_path"})
        planned = entries(table.storage, spark_session, opened.data.opened, opened.wanted, columns, reading)
        assert planned.count() == 18
    plan = plan_rewrite_manifests(table, spark_session)
    assert (plan.rewritten_manifests_count, plan.left_alone_manifests_count) == (5, 1)
    listener = Remembering()
    result = rewrite_manifests(table, spark_session, listener=listener)
    assert (result.rewritten_manifests_count, result.added_manifests_count) == (5, 1)
    [warning] = [event.message for event in listener.events if isinstance(event, Warned)]
    assert warning == "1 manifest has fields that are not known and is left as it is"
    assert strange in {m.manifest_path for m in manifests(lake)}  # type: ignore[attr-defined]
    assert lake.rows() == rows
