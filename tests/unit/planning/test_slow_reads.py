"""The fast way of reading manifests is the one that is taken, whoever wrote them; where it is not, that is counted and told."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.events import Event, Warned
from icekeep.planning import decoder as avro_decoder
from icekeep.planning import manifests as manifest_reader
from icekeep.planning.decoder import NotReadError, slow_reads, warning_of_slow_reads
from icekeep.planning.entries import DecodeTask, EntryFilter, SpecFilter, chosen_reading, decode
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.scan.report import _reading_line
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.snapshots import Snapshot
from kit.foreign_files import our_manifest, write_list_with_pyiceberg, write_with_pyiceberg
from kit.manifest_records import ManifestStore, target_of
from kit.manifests import DAY, SNAPSHOT_ID, added, deleted, existing, write_list
from kit.no_spark import no_spark
from kit.storage import MemoryStorage

FIRST = [added(snapshot_id=SNAPSHOT_ID), added(snapshot_id=SNAPSHOT_ID)]
LATER = [added(), existing(), deleted()]
ENTRIES = {1: FIRST, 2: LATER, 3: LATER}
"""By format version; two of each are live."""


@pytest.fixture
def told() -> Iterator[list[Event]]:
    """What a listener is told while the test runs."""
    events: list[Event] = []

    class Noting:
        def on(self, event: Event) -> None:
            events.append(event)

    with warning_of_slow_reads(Noting()):
        yield events


def of_ours(version: int, codec: str) -> ManifestStore:
    store = ManifestStore()
    for _ in range(2):
        number = 5 if version > 1 else 0
        store.put_entries(ENTRIES[version], format_version=version, codec=codec, sequence_number=number)
    return store


def of_pyiceberg(version: int, codec: str) -> ManifestStore:
    store = ManifestStore()
    for number in range(2):
        location = f"memory://bucket/m{number}.avro"
        data, row = write_with_pyiceberg(location, ENTRIES[version], DAY, version=version, codec=codec)
        store.put(data, replace(our_manifest(row), sequence_number=5 if version > 1 else 0))
    return store


WRITERS = [
    *((of_ours, version, codec) for version in (1, 2, 3) for codec in ("gzip", "uncompressed")),
    *((of_pyiceberg, version, codec) for version in (1, 2) for codec in ("deflate", "null")),
]


def by_manifests(store: ManifestStore) -> int:
    return sum(decoded.entries.num_rows for decoded in decode(task_of(store)))


def by_single_manifests(store: ManifestStore) -> int:
    """Each alone, as large ones are."""
    return sum(decoded.entries.num_rows for row in store.rows for decoded in decode(task_of(store, row)))


def by_records(store: ManifestStore) -> int:
    return sum(batch.num_rows for batch in store.records(target_of()))


def by_lists(store: ManifestStore) -> int:
    rows = [replace(row, min_sequence_number=row.min_sequence_number or 0) for row in store.rows]
    for number in range(2):
        store.create(f"memory://bucket/l{number}.avro", write_list(rows, format_version=2))
    snapshots = [
        Snapshot(
            snapshot_id=n, timestamp_ms=n, sequence_number=n, manifest_list=f"memory://bucket/l{n}.avro", summary={}
        )
        for n in range(2)
    ]
    found = listed_manifests(store, no_spark, snapshots, check=True)
    return 2 * len(found.manifests)


READERS = [by_manifests, by_single_manifests, by_records, by_lists]


def task_of(store: ManifestStore, *rows: ManifestFile) -> DecodeTask:
    return DecodeTask(
        manifests=rows or tuple(store.rows),
        wanted=EntryFilter(specs={0: SpecFilter(DAY)}),
        columns=frozenset({"file_path", "file_size_in_bytes", "record_count", "partition", "lower_bounds"}),
        storage=store,
        decoder=manifest_reader.ManifestDecoder.DATAFUSION,
    )


@pytest.mark.slow
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("write", "version", "codec"), WRITERS)
def test_every_reader_takes_the_fast_way_whoever_wrote(
    write: Callable[..., ManifestStore],
    version: int,
    codec: str,
    read: Callable[[ManifestStore], int],
    told: list[Event],
) -> None:
    """That it does not is seen in nothing but time."""
    store = write(version, codec)
    before = slow_reads().count
    assert read(store) == 4
    assert (slow_reads().count - before, told) == (0, [])


def test_lists_of_pyiceberg_are_read_in_the_fast_way(told: list[Event]) -> None:
    storage, before = MemoryStorage(), slow_reads().count
    manifests = [write_with_pyiceberg(f"/m{n}", ENTRIES[2], DAY)[1] for n in range(3)]
    storage.create("memory:/l", write_list_with_pyiceberg("memory:/l", manifests))
    snapshot = Snapshot(snapshot_id=1, timestamp_ms=1, sequence_number=1, manifest_list="memory:/l", summary={})
    assert len(listed_manifests(storage, no_spark, [snapshot], check=True).manifests) == 3
    assert (slow_reads().count - before, told) == (0, [])


@pytest.mark.parametrize("read", READERS)
def test_what_is_read_in_the_slow_way_is_counted_and_told_once(
    read: Callable[[ManifestStore], int], told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NotReadError was swallowed."""

    def fail(*_: Any) -> pa.RecordBatch:
        raise NotReadError("a release that\n reads nothing")

    monkeypatch.setattr(avro_decoder, "_read_whole", fail)
    before = slow_reads().count
    assert read(of_ours(2, "gzip")) == 4
    assert slow_reads().count - before == 2
    [event] = told
    assert isinstance(event, Warned)
    assert ".avro' is read by fastavro, as DataFusion's reader fails: a release that reads nothing; " in event.message


def test_slow_manifests_stand_in_the_steps_and_in_what_a_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    store = of_ours(2, "gzip")
    assert sum(decoded.steps.slow_manifests_count for decoded in decode(task_of(store))) == 0
    monkeypatch.setattr(avro_decoder, "_read_whole", None)
    found = [*decode(task_of(store))]
    assert sum(decoded.steps.slow_manifests_count for decoded in found) == 2
    assert sum(decoded.entries.num_rows for decoded in found) == 4
    reading = chosen_reading(store.rows, 10)
    assert _reading_line(reading, 0).endswith("is installed")
    assert _reading_line(reading, 2).endswith("is installed; 2 manifests by fastavro, as it failed on them")


def test_batches_of_any_number_are_the_fast_way_too(told: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataFusion that gives a file in several batches."""
    import datafusion

    plain = datafusion.SessionConfig.with_batch_size
    monkeypatch.setattr(datafusion.SessionConfig, "with_batch_size", lambda config, _: plain(config, 1))
    before = slow_reads().count
    for read in READERS:
        assert read(of_ours(2, "gzip")) == 4
    assert (slow_reads().count - before, told) == (0, [])
