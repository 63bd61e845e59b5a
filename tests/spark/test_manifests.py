"""Manifests read, listed and rewritten in Spark's tasks."""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import fastavro
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError, UnavailableError
from icekeep.events import SILENT, Event, Warned
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.manifests import execute
from icekeep.maintenance.manifests.candidates import ManifestGroup, ManifestRun
from icekeep.maintenance.manifests.execute import rewritten
from icekeep.maintenance.manifests.job import plan_rewrite_manifests, rewrite_manifests
from icekeep.maintenance.manifests.records import RunWriter, rewritten_in_tasks
from icekeep.maintenance.manifests.survey import Survey, survey
from icekeep.maintenance.rewrite.run import WrittenFiles
from icekeep.planning import entries as entries_read
from icekeep.planning.decoder import ManifestDecoder, chosen_decoder
from icekeep.planning.entries import EntryFilter, ReadBy, Reading, chosen_reading, entries, folded
from icekeep.planning.manifests import ENTRIES
from icekeep.planning.scan.plan import FILE_COLUMNS, open_scan, planned_files
from icekeep.planning.scan.report import TOTALLED_COLUMNS, ScanTotals
from icekeep.planning.spark.session import Engine
from icekeep.planning.transcode import RecordsTask
from icekeep.spec.manifests.structs import DataFile, ManifestFile
from icekeep.storage.local.storage import LocalStorage
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append
from kit.cases import thinned
from kit.lake import EVENTS, Lake, events, multiset
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import live_entries
from kit.rewritten_manifests import chosen, entries_in, foreign_live_entries, our_live_entries
from kit.runtime import NOTHING_HERE, no_spark
from kit.tables import BY_KIND, add, data_file, memory_table

READINGS = [Reading(by=by, decoder=decoder, reason="") for by in ReadBy for decoder in ManifestDecoder]


class OnlyReading(LocalStorage):
    """Fails where storage is listed or asked about files."""

    def list(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("storage is listed")

    def head(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a file is asked for its length")


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: f"{reading.by}-{reading.decoder}")
def test_entries_are_equal_wherever_they_are_decoded(lake: Lake, spark_session: SparkSession, reading: Reading) -> None:
    compact(lake.filled(), spark_session)
    table = lake.load()
    if reading.by is ReadBy.DRIVER:  # a worker could not import the class
        table = replace(table, storage=OnlyReading())
    scan = open_scan(table)
    whole = EntryFilter(specs=scan.data.specs, live_only=False)
    manifests = scan.data.opened
    rows = entries(table.storage, spark_session, manifests, whole, ENTRIES.names, reading).collect()
    first = entries(table.storage, spark_session, manifests, whole, ENTRIES.names, READINGS[1]).collect()
    assert Counter(map(repr, rows)) == Counter(map(repr, first))
    live = {entry.data_file.file_path: entry for entry in live_entries(table)}
    found = {row["file_path"]: row for row in rows if row["status"] != 2}
    assert found.keys() == live.keys()
    for path, entry in live.items():
        row, file = found[path], entry.data_file
        assert (row["sequence_number"], row["snapshot_id"]) == (entry.sequence_number, entry.snapshot_id)
        assert (row["record_count"], row["file_size_in_bytes"]) == (file.record_count, file.file_size_in_bytes)
        assert row["lower_bounds"] == {key: bytearray(bound) for key, bound in (file.lower_bounds or {}).items()}
        assert row["null_value_counts"] == file.null_value_counts


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: f"{reading.by}-{reading.decoder}")
def test_fold_counts_rows_and_what_each_step_dropped(lake: Lake, spark_session: SparkSession, reading: Reading) -> None:
    table = lake.filled()
    scan = open_scan(table, where="id < 5000010 and at < '2013-02-03'")
    rows = planned_files(scan, spark_session).collect()
    opened, wanted = scan.data.opened, scan.wanted
    tally = folded(table.storage, spark_session, opened, wanted, TOTALLED_COLUMNS, ScanTotals, reading)
    assert tally.steps.by_metrics_count == len(rows) == 6
    assert tally.steps.by_metrics_bytes == sum(row["file_size_in_bytes"] for row in rows)
    assert (tally.steps.opened_count, tally.steps.by_partition_count) == (12, 12)
    assert tally.record_count == sum(row["record_count"] for row in rows)


def test_reading_is_chosen_by_entry_count_with_a_reason(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_scan(lake.filled(commits=2)).data.opened
    few, many = chosen_reading(opened, 200_000), chosen_reading(opened, 5)
    assert (few.by, few.decoder, many.by) == (ReadBy.DRIVER, ManifestDecoder.DATAFUSION, ReadBy.TASKS)
    assert few.reason.startswith(
        "6 entries, and up to 200,000 are ready before Spark tasks would be; package datafusion"
    )
    assert many.reason.startswith("6 entries, and above 5 Spark tasks are faster")
    monkeypatch.setattr(
        entries_read, "chosen_decoder", lambda: (ManifestDecoder.FASTAVRO, "package datafusion is not installed")
    )
    assert chosen_reading(opened, 10).reason.endswith("; package datafusion is not installed")
    assert chosen_decoder()[0] is ManifestDecoder.DATAFUSION


def test_list_without_counts_is_judged_by_its_bytes(lake: Lake) -> None:
    [manifest] = open_scan(lake.filled(commits=1)).data.opened
    silent = replace(manifest, added_files_count=None, manifest_length=50 * 200_001)
    assert chosen_reading([silent], 200_000).by is ReadBy.TASKS
    assert chosen_reading([replace(silent, manifest_length=50 * 200_000)], 200_000).by is ReadBy.DRIVER


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: f"{reading.by}-{reading.decoder}")
def test_a_damaged_manifest_fails_the_plan_with_its_name(
    lake: Lake, spark_session: SparkSession, reading: Reading
) -> None:
    table = lake.filled(commits=2)
    scan = open_scan(table)
    cut = scan.data.opened[0]
    data = table.storage.read(cut.manifest_path)
    table.storage.delete_many([cut.manifest_path])
    with table.storage.write(cut.manifest_path) as stream:
        stream.write(data[:-20])
    with pytest.raises(InvalidTableError, match=f"{cut.manifest_path}.* bytes, but its manifest list says"):
        folded(table.storage, spark_session, scan.data.opened, scan.wanted, TOTALLED_COLUMNS, ScanTotals, reading)
    with pytest.raises(Exception, match=r"bytes, but its manifest list says"):
        entries(table.storage, spark_session, scan.data.opened, scan.wanted, FILE_COLUMNS, reading).collect()


def live_paths(lake: Lake) -> Counter[str]:
    """All live entries with all fields but the status, as PyIceberg reads them."""
    entries = [e for e in lake.foreign().inspect.entries().to_pylist() if e["status"] != 2]
    return Counter(repr({k: v for k, v in e.items() if k not in ("status", "readable_metrics")}) for e in entries)


def manifests(lake: Lake) -> list[object]:
    table = lake.foreign()
    return list(table.current_snapshot().manifests(table.io))


def test_manifests_are_merged_and_entries_unchanged(any_lake: Lake, spark_session: SparkSession) -> None:
    table = any_lake.filled(commits=12)
    entries, rows = live_paths(any_lake), any_lake.rows()
    result = rewrite_manifests(table, spark_session)
    assert (result.rewritten_manifests_count, result.added_manifests_count) == (12, 1)
    assert len(manifests(any_lake)) == 1
    assert live_paths(any_lake) == entries
    assert any_lake.rows() == rows


def test_manifests_are_clustered_and_split_at_the_target(lake: Lake, spark_session: SparkSession) -> None:
    """apache/iceberg #6891: one large partition is split too."""
    table = lake.filled(commits=10, files=12, rows=5, write__manifest__compression_codec="uncompressed")
    table = commit(table, ChangeProperties(updates={"commit.manifest.target-size-bytes": "8000"})).table
    plan = plan_rewrite_manifests(table, spark_session)
    assert plan.added_manifests_count > 3
    entries = live_paths(lake)
    result = rewrite_manifests(table, spark_session)
    assert result.added_manifests_count > 3
    assert live_paths(lake) == entries
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


def test_branch_manifests_are_merged_and_main_is_unchanged(any_lake: Lake, spark_session: SparkSession) -> None:
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
    entries = live_paths(lake)
    assert rewrite_manifests(lake.load(), spark_session).added_manifests_count == 1
    assert live_paths(lake) == entries
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


def test_manifest_with_unknown_fields_is_read_but_left_alone(lake: Lake, spark_session: SparkSession) -> None:
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


MANIFESTS_COUNT = 24


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Manifests that each reach over all partitions; one partition holds half of the files."""
    catalog = MemoryCatalog(LocalStorage(), warehouse=str(tmp_path / "wh"))
    table = memory_table(
        catalog, spec=BY_KIND, commit__manifest__target_size_bytes="120", commit__manifest_merge__enabled="false"
    )
    for number in range(MANIFESTS_COUNT):
        kinds = [f"kind{n}" if n % 2 else "most" for n in range(16)]
        table = add(table, *(data_file(f"{number}-{n}", partition=(kind,)) for n, kind in enumerate(kinds)))
    return table


def work_of(table: Any, plan: Any) -> Any:
    [group] = plan.groups
    [run] = group.runs
    return execute.ManifestsWriting.of(table, group, run, plan.target_bytes, NOTHING_HERE)


def found(table: Any, plan: Any) -> Survey:
    work = work_of(table, plan)
    return survey(work.run.manifests, 0, work.run.target, table.storage, no_spark)


def in_spark(task: Any, writer: Any, lie: Survey, spark: SparkSession) -> list[ManifestFile]:
    """Of 32 manifests, so that there is more than one task."""
    return rewritten_in_tasks(task, writer, lie, 32, spark)


def told(table: Any, manifests: tuple[ManifestFile, ...]) -> Counter[str]:
    return Counter(map(repr, entries_in(table.storage, manifests, table.metadata.partition_type(0))))


def files(table: Any) -> set[str]:
    return {info.location for info in table.storage.list(f"{table.metadata.location}/metadata")}


def test_tasks_write_the_drivers_entries_without_overlap(
    table: Any, in_tasks: Engine, spark_session: SparkSession
) -> None:
    plan = chosen(table)
    [by_tasks] = rewritten(table, plan, in_tasks, "run", WrittenFiles(table, "run", SILENT))
    [on_driver] = rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    assert told(table, by_tasks.added) == told(table, on_driver.added)
    assert told(table, by_tasks.added).total() == MANIFESTS_COUNT * 16
    assert sorted(by_tasks.partitions) == sorted(on_driver.partitions)
    assert len(by_tasks.added) > 8
    ends = sorted((m.partitions[0].lower_bound, m.partitions[0].upper_bound) for m in by_tasks.added if m.partitions)
    assert len(ends) == len(by_tasks.added)
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    counts = [m.existing_files_count or 0 for m in by_tasks.added]
    # The last manifest of each of the three tasks is cut short.
    assert max(counts) <= 4 * sorted(counts)[3]


def test_a_manifest_that_cannot_be_read_in_a_task_is_an_error(
    table: Any, in_tasks: Engine, spark_session: SparkSession
) -> None:
    plan, before = chosen(table), files(table)
    work = work_of(table, plan)
    broken = (replace(work.run.manifests[0], added_files_count=3), *work.run.manifests[1:])
    with pytest.raises(InvalidTableError, match="its manifest list says 3"):
        in_spark(replace(work.task, manifests=broken), work.writer, found(table, plan), spark_session)
    assert files(table) == before


def test_failed_write_in_a_task_leaves_no_manifests(
    table: Any, in_tasks: Engine, spark_session: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.mkdir()

    # A class of a function travels to workers by value: they cannot import this module.
    class Failing(LocalStorage):
        @contextmanager
        def write(self, location: str) -> Iterator[Any]:
            with LocalStorage.write(self, location) as stream:

                class Checked:
                    def write(self, data: bytes) -> None:
                        if b"most" in data:
                            raise UnavailableError("the store is away")
                        stream.write(data)

                yield Checked()
            (log / location.rsplit("/", 1)[-1]).touch()

    plan, before = chosen(table), files(table)
    work = work_of(table, plan)
    writer = replace(work.writer, storage=Failing(), codec="uncompressed", target_bytes=1000)
    with pytest.raises(UnavailableError, match="the store is away"):
        in_spark(work.task, writer, found(table, plan), spark_session)
    assert len([*log.iterdir()]) > 1
    assert files(table) == before


FILES_COUNT = 2800
COMMITS = 6


def file_of(number: int, kind: str | None) -> DataFile:
    """A file that is named, not written; its lowest id follows no other order."""
    lower = {1: struct.pack("<q", number * 7919 % FILES_COUNT)}
    return replace(data_file(f"{number:05}", partition=(kind,)), lower_bounds=lower, upper_bounds=lower)


def filled(lake: Lake, kind: Callable[[int], str | None], version: int = 2) -> Table:
    """Partitions and ids are scattered over all manifests."""
    table = lake.create(
        (("kind", "identity"),),
        format_version=version,
        commit__manifest__target_size_bytes="8000",
        commit__manifest_merge__enabled="false",
        write__manifest__compression_codec="uncompressed",
    )
    for start in range(COMMITS):
        files = tuple(file_of(number, kind(number)) for number in range(start, FILES_COUNT, COMMITS))
        table = commit(table, AppendFiles(files=files)).table
    return table


def in_tasks(table: Table, spark: SparkSession, **arguments: Any) -> tuple[Table, tuple[ManifestFile, ...]]:
    """The table once its manifests are rewritten, and the new ones."""
    plan = chosen(table, spark=spark, **arguments)
    added = [
        manifest
        for group in plan.groups
        for run in group.runs
        for manifest in written_in_tasks(table, group, run, plan.target_bytes, spark)
    ]
    version = table.metadata.format_version
    change = RewriteManifests(replaced=tuple(plan.replaced), added=tuple(added), format_version=version)
    return commit(table, change).table, tuple(added)


def written_in_tasks(
    table: Table, group: ManifestGroup, run: ManifestRun, target_bytes: int, spark: SparkSession
) -> Iterable[ManifestFile]:
    task = RecordsTask(
        manifests=run.manifests,
        numbers={manifest.manifest_path: number for number, manifest in enumerate(run.manifests)},
        target=run.target,
        storage=table.storage,
        decoder=ManifestDecoder.DATAFUSION,
    )
    writer = RunWriter.of(table.metadata, group.spec_id, group.content, run.target, target_bytes, table.storage)
    found = survey(run.manifests, group.spec_id, run.target, table.storage, spark)
    return rewritten_in_tasks(task, writer, found, run.expected_count, spark)


def spans(manifests: Iterable[ManifestFile], key: Callable[[dict[str, Any]], Any]) -> list[tuple[Any, Any]]:
    """From where to where each reaches by some key of its files, in order."""
    found = []
    for manifest in manifests:
        with Path(urlparse(manifest.manifest_path).path).open("rb") as stream:
            keys = [key(entry["data_file"]) for entry in fastavro.reader(stream)]
        found.append((min(keys), max(keys)))
    return sorted(found)


def partition_of(file: dict[str, Any]) -> str:
    """Null is first."""
    return file["partition"]["kind"] or ""


def lowest_id(file: dict[str, Any]) -> int:
    return struct.unpack("<q", {bound["key"]: bound["value"] for bound in file["lower_bounds"]}[1])[0]


@pytest.mark.parametrize(
    ("sort_by", "key", "version"),
    thinned([(None, partition_of, 3), (["id"], lowest_id, 1), (["kind", "id"], partition_of, 2)], 2),
)
def test_tasks_keep_every_entry_and_cluster_them(
    lake: Lake, spark_session: SparkSession, sort_by: Any, key: Callable[[dict[str, Any]], Any], version: int
) -> None:
    table = filled(lake, lambda n: None if n % 40 == 7 else f"k{n % 40:02}", version)
    foreign = foreign_live_entries(lake.foreign())
    after, added = in_tasks(table, spark_session, sort_by=sort_by)
    assert our_live_entries(after) == our_live_entries(table)
    assert our_live_entries(after).total() == FILES_COUNT
    assert foreign_live_entries(lake.foreign()) == foreign
    assert len(added) > 20
    found = spans(added, key)
    assert all(before[1] <= later[0] for before, later in pairwise(found))
    assert not chosen(after, spark=spark_session, sort_by=sort_by).replaced


def test_tasks_split_one_large_partition(lake: Lake, spark_session: SparkSession) -> None:
    table = filled(lake, lambda _: "all")
    after, added = in_tasks(table, spark_session)
    assert our_live_entries(after) == our_live_entries(table)
    assert len(added) > 20
    assert {summary.lower_bound for manifest in added for summary in manifest.partitions or ()} == {b"all"}
    counts = [manifest.existing_files_count or 0 for manifest in added]
    assert sum(counts) == FILES_COUNT
    assert min(counts) > max(counts) / 3
