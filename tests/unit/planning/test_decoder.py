"""The fast decoder reads manifests of every writer, and merges of manifests that copy what it read."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.events import Event, Warned
from icekeep.planning import commit_readers as merge_append
from icekeep.planning import decoder as avro_decoder
from icekeep.planning import manifests as manifest_reader
from icekeep.planning.commit_readers import MergingManifestReader
from icekeep.planning.decoder import ManifestDecoder, NotReadError, note_slow_read, slow_reads, warning_of_slow_reads
from icekeep.planning.entries import DecodeTask, EntryFilter, SpecFilter, decode
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.spec.avro import encode_long, write_header
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.snapshots import Snapshot
from kit.foreign_files import our_manifest, write_list_with_pyiceberg, write_with_pyiceberg
from kit.manifests import DAY, SNAPSHOT_ID, added, deleted, existing, write_list
from kit.rewritten_manifests import ManifestStore, target_of
from kit.runtime import no_spark
from kit.storage import MemoryStorage
from kit.tables import BY_KIND, data_file, entries_of, live, manifests_of, memory_table, orphans, raw_entries

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


def test_slow_manifests_are_counted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    store = of_ours(2, "gzip")
    assert sum(decoded.steps.slow_manifests_count for decoded in decode(task_of(store))) == 0
    monkeypatch.setattr(avro_decoder, "_read_whole", None)
    found = [*decode(task_of(store))]
    assert sum(decoded.steps.slow_manifests_count for decoded in found) == 2
    assert sum(decoded.entries.num_rows for decoded in found) == 4


def test_batches_of_any_number_are_the_fast_way_too(told: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataFusion that gives a file in several batches."""
    import datafusion

    plain = datafusion.SessionConfig.with_batch_size
    monkeypatch.setattr(datafusion.SessionConfig, "with_batch_size", lambda config, _: plain(config, 1))
    before = slow_reads().count
    for read in READERS:
        assert read(of_ours(2, "gzip")) == 4
    assert (slow_reads().count - before, told) == (0, [])


# What the decoder needs of DataFusion's and isal's inside: a release that changes it fails here, and not in time alone.

PAIRS = {
    "type": "record",
    "name": "pair",
    "fields": [{"name": "a0", "type": "long"}, {"name": "a1", "type": {"type": "map", "values": "string"}}],
}


def one_block(count: int, payload: bytes) -> bytes:
    head = write_header({"avro.schema": msgspec.json.encode(PAIRS), "avro.codec": b"null"}, b"s" * 16)
    return head + encode_long(count) + encode_long(len(payload)) + payload + b"s" * 16


def test_datafusion_decodes_whole_block_whatever_its_count(tmp_path: Path) -> None:
    path = tmp_path / "one.avro"
    path.write_bytes(one_block(avro_decoder._MORE_THAN_ANY, b"".join(encode_long(n) + b"\0" for n in range(5000))))
    assert avro_decoder._read_whole(str(path), ["a0"], 5000)["a0"].to_pylist() == [*range(5000)]
    for wrong_count in (100, 4999, 5001):
        with pytest.raises(NotReadError), avro_decoder.doubtful([BaseException]):
            avro_decoder._read_whole(str(path), ["a0"], wrong_count)


def test_datafusion_does_not_decode_what_nobody_asks_for(tmp_path: Path) -> None:
    """Text that is no UTF-8 in a column that is skipped."""
    path = tmp_path / "odd.avro"
    path.write_bytes(one_block(avro_decoder._MORE_THAN_ANY, b"\2" + b"\2\2k\2\xff" + b"\0"))
    assert avro_decoder._read_whole(str(path), ["a0"], 1)["a0"].to_pylist() == [1]


def test_a_record_that_is_cut_is_an_error_of_datafusion(tmp_path: Path) -> None:
    path = tmp_path / "cut.avro"
    path.write_bytes(one_block(avro_decoder._MORE_THAN_ANY, b"\2\0\2"))
    with pytest.raises(NotReadError), avro_decoder.doubtful([BaseException]):
        avro_decoder._read_whole(str(path), ["a0"], 2)


def test_isal_inflates_with_a_bound_as_zlib_does() -> None:
    from isal import isal_zlib

    packed = zlib.compress(bytes(1000), wbits=-15)
    for module in (zlib, isal_zlib):
        whole, bounded, cut = (module.decompressobj(wbits=-15) for _ in range(3))
        assert (whole.decompress(packed, 1000), whole.eof, whole.unconsumed_tail) == (bytes(1000), True, b"")
        assert bounded.decompress(packed, 10) == bytes(10)
        assert bounded.unconsumed_tail or not bounded.eof
        assert (cut.decompress(packed[:-1], 1000) != bytes(1000), cut.eof)[1] is False


def test_newest_active_listener_hears_of_slow_reads() -> None:
    told: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def on(self, event: Event) -> None:
            told.append(self.name)

    first, second = warning_of_slow_reads(Named("first")), warning_of_slow_reads(Named("second"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    note_slow_read("/m", "no reason")
    second.__exit__(None, None, None)
    note_slow_read("/m", "no reason")
    assert told == ["second"]


@pytest.fixture(autouse=True)
def nothing_is_few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_append, "_FEW_ENTRIES_COUNT", -1)
        yield


def appended(table: Any, *files: Any, reader: type[ManifestReader]) -> Any:
    change = AppendFiles(files=files)
    return commit(table, change, reader=reader(table.storage), runtime=table.catalog.runtime).table


def history(reader: type[ManifestReader], version: int, kinds: list[str], gone: set[int], **properties: str) -> Any:
    """Appends of one file each, some of which is deleted before the last, with merging of all manifests at the end."""
    table = memory_table(spec=BY_KIND, format_version=version, **properties)
    for number, kind in enumerate(kinds):
        if number == len(kinds) - 1:
            for name in sorted(name for name in gone if name < number):
                paths = frozenset(e.data_file.file_path for e in entries_of(table, f"f{name}"))
                table = commit(table, DeleteFiles(paths=paths), runtime=table.catalog.runtime).table
        table = appended(table, data_file(f"f{number}", 3 + number, (kind,)), reader=reader)
    return table


def contents(table: Any) -> tuple[list[Any], list[Any]]:
    """All entries in order, and what the list says of each manifest but its length and name."""
    rows = [replace(m, manifest_path="", manifest_length=0, added_snapshot_id=0) for m in manifests_of(table)]
    entries: list[ManifestEntry] = [replace(e, snapshot_id=None) for e in entries_of(table)]
    return [replace(e, data_file=replace(e.data_file, file_path=e.data_file.file_path[-8:])) for e in entries], rows


@pytest.mark.slow
@given(
    st.lists(st.sampled_from("xyz"), min_size=2, max_size=9),
    st.sets(st.integers(0, 7), max_size=3),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["gzip", "zstd", "uncompressed"]),
    st.sampled_from(["100000", "4000"]),
)
def test_the_same_comes_of_it_as_entry_by_entry(
    kinds: list[str], gone: set[int], version: int, codec: str, target: str
) -> None:
    properties = {
        "commit__manifest__min_count_to_merge": "2",
        "commit__manifest__target_size_bytes": target,
        "write__manifest__compression_codec": codec,
    }
    fast, slow = (
        history(reader, version, kinds, gone, **properties) for reader in (MergingManifestReader, ManifestReader)
    )
    assert live(fast) == live(slow)
    assert contents(fast)[0] == contents(slow)[0]
    if codec != "gzip" or target != "4000":
        # Two ways to deflate make different sizes, by which bins are filled.
        assert contents(fast)[1] == contents(slow)[1]
    assert orphans(fast.catalog) == set()


def test_the_new_entries_stay_added_and_inherit() -> None:
    table = history(MergingManifestReader, 2, ["x", "y", "x"], set(), commit__manifest__min_count_to_merge="3")
    entries = {entry.name: entry for entry in raw_entries(table)}
    assert [entries[f"f{n}"].status for n in range(3)] == [0, 0, 1]
    assert [entries[f"f{n}"].sequence_number for n in range(3)] == [1, 2, None]


@pytest.mark.slow
def test_a_merge_is_cut_at_the_target_size() -> None:
    """Packed manifests that together are below the target may be above it where they are not packed any more."""
    table = memory_table(spec=BY_KIND, commit__manifest_merge__enabled="false")
    for number in range(3):
        files = [data_file(f"{'long' * 20}{number}-{i}", 3, ("x",)) for i in range(500)]
        table = appended(table, *files, reader=MergingManifestReader)
    settings = {
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "2",
        "commit.manifest.target-size-bytes": "100000",
        "write.manifest.compression-codec": "uncompressed",
    }
    table = commit(table, ChangeProperties(updates=settings), runtime=table.catalog.runtime).table
    before = live(table)
    table = appended(table, data_file("new", 3, ("y",)), reader=MergingManifestReader)
    assert live(table) == before | {"new": 1}
    lengths = [m.manifest_length for m in manifests_of(table)]
    assert len(lengths) > 1
    assert all(150_000 <= length < 250_000 for length in lengths[:-1])


def test_without_datafusion_entries_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_append, "chosen_decoder", lambda: (ManifestDecoder.FASTAVRO, "not installed"))
    monkeypatch.setattr(merge_append, "live_records", None)
    table = history(MergingManifestReader, 2, ["x", "y", "x"], set(), commit__manifest__min_count_to_merge="3")
    assert live(table) == {"f0": 1, "f1": 1, "f2": 1}
    assert len(manifests_of(table)) == 1
