"""Sorted records become manifests that say what manifests of the same entries say, in little memory."""

import json
import subprocess
import sys
import tempfile
import textwrap
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, MissingFileError, UnavailableError, UsageError
from icekeep.maintenance.manifests import records as held_records
from icekeep.maintenance.manifests.records import RunWriter, rewritten_here, sample_places
from icekeep.planning.transcode import RECORDS, RecordTarget, joined, value_offsets
from icekeep.spec.avro import packer, read_blocks, read_header
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, PartitionCodec
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import DATE
from icekeep.spec.values import sort_key
from kit.cases import cases, for_each
from kit.manifests import DAY, added, data_file, deleted, existing, spec_and_schema, write_manifest
from kit.rewritten_manifests import DIRECTORY, ManifestStore, entries_in, target_of, writer_of
from kit.storage import HookedStorage, MemoryStorage, contents
from kit.strategies import manifest_entries, partition_types

pytestmark = pytest.mark.slow

CODECS = {"gzip": "deflate", "zstd": "zstandard", "snappy": "snappy", "uncompressed": "null"}


def records_of(entries: list[ManifestEntry], target: RecordTarget, **how: Any) -> pa.Table:
    store = ManifestStore(target.partition)
    store.put(*write_manifest(entries, target.partition, **how))
    return pa.Table.from_batches(store.records(target), RECORDS)


def many(count: int, path_bytes: int = 0) -> list[ManifestEntry]:
    return [
        existing(data_file(f"file:/{n}{'x' * path_bytes}", partition=(n % 9,)), sequence_number=100 + n % 7)
        for n in range(count)
    ]


def blocks_of(data: bytes) -> list[tuple[int, bytes]]:
    return [*read_blocks(data, read_header(data, ""))]


@given(st.data())
@cases(50)
def test_bulk_manifest_equals_one_written_entry_by_entry(data: st.DataObject):
    partition = data.draw(partition_types(), label="partition")
    entries = [
        replace(entry, status=Status.EXISTING, data_file=replace(entry.data_file, record_count=1000 + number))
        for number, entry in enumerate(data.draw(st.lists(manifest_entries(partition), min_size=1, max_size=6)))
    ]
    version = data.draw(st.sampled_from([2, 3]))
    target = target_of(partition, version)
    storage = MemoryStorage()
    rows = records_of(entries, target, format_version=version)
    # In several chunks, as tasks bring them.
    cut = data.draw(st.integers(0, len(rows)))
    rows = pa.concat_tables([rows[:cut], rows[cut:]])
    manifest = writer_of(target, storage).write([rows])
    spec, schema = spec_and_schema(partition)
    builder = ManifestBuilder(manifest.manifest_path, target.encoder, spec, schema, format_version=version)
    for entry in entries:
        builder.add(entry if version < 3 else replace(entry, data_file=replace(entry.data_file, first_row_id=None)))
    data_expected, expected = builder.finish(None)
    assert manifest == replace(expected, manifest_length=manifest.manifest_length)
    written = storage.read(manifest.manifest_path)
    assert manifest.manifest_length == len(written)
    ours, theirs = read_header(written, ""), read_header(data_expected, "")
    assert (ours.metadata, ours.sync) == (theirs.metadata, theirs.sync)
    assert b"".join(p for _, p in blocks_of(written)) == b"".join(p for _, p in blocks_of(data_expected))
    assert len(entries_in(storage, [manifest], partition)) == len(entries)


def test_delete_manifests_say_that_they_are():
    target, storage = target_of(), MemoryStorage()
    rows = records_of([added(data_file(content=1))], target, content=ManifestContent.DELETES)
    manifest = writer_of(target, storage, content=ManifestContent.DELETES).write([rows])
    assert manifest.content is ManifestContent.DELETES
    assert read_header(storage.read(manifest.manifest_path), "").metadata["content"] == b"deletes"
    assert len(entries_in(storage, [manifest], DAY)) == 1


def test_blocks_hold_about_64_kb_of_whole_records():
    target, storage = target_of(), MemoryStorage()
    entries = many(6000)
    manifest = writer_of(target, storage).write([records_of(entries, target).combine_chunks()])
    sizes = [len(payload) for _, payload in blocks_of(storage.read(manifest.manifest_path))]
    assert len(sizes) > 3
    assert all((64 << 10) - 200 < size < (64 << 10) + 200 for size in sizes[:-1])
    assert 0 < sizes[-1] < (64 << 10) + 200
    assert entries_in(storage, [manifest], DAY) == entries


def test_a_record_larger_than_a_block_is_one_block():
    target, storage = target_of(), MemoryStorage()
    entries = [*many(3), *many(3, path_bytes=200_000), *many(3)]
    manifest = writer_of(target, storage).write([records_of(entries, target)])
    assert [count for count, _ in blocks_of(storage.read(manifest.manifest_path))] == [4, 1, 1, 3]
    assert entries_in(storage, [manifest], DAY) == entries


def test_a_slice_of_records_is_written_as_it_is():
    target, storage = target_of(), MemoryStorage()
    entries = many(3000)
    rows = records_of(entries, target).combine_chunks()
    manifest = writer_of(target, storage).write([rows[1000:2500]])
    assert entries_in(storage, [manifest], DAY) == entries[1000:2500]
    assert manifest.min_sequence_number == 100


@for_each(
    ("codec", "level"),
    [("gzip", None), ("gzip", 1), ("gzip", 9), ("zstd", None), ("zstd", 7), ("snappy", None), ("uncompressed", None)],
)
def test_any_codec_and_level_is_read_back(codec: str, level: int | None):
    target, storage = target_of(), MemoryStorage()
    entries = many(1500)
    manifest = writer_of(target, storage, codec=codec, level=level).write([records_of(entries, target)])
    assert (
        read_header(storage.read(manifest.manifest_path), "").metadata["avro.codec"] == CODECS[codec.lower()].encode()
    )
    assert entries_in(storage, [manifest], DAY) == entries


def test_zlib_packs_where_isal_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    target, storage = target_of(), MemoryStorage()
    rows = records_of(many(1500), target)
    with_isal = writer_of(target, storage).write([rows])
    monkeypatch.setitem(sys.modules, "isal", None)
    without = writer_of(target, storage).write([rows])
    assert with_isal.manifest_length != without.manifest_length
    assert entries_in(storage, [with_isal], DAY) == entries_in(storage, [without], DAY)
    assert blocks_of(storage.read(with_isal.manifest_path)) == blocks_of(storage.read(without.manifest_path))


# Properties of a table.


def of_table(**properties: str) -> RunWriter:
    spec, schema = spec_and_schema(DAY)
    metadata = new_table_metadata(
        schema=schema,
        spec=spec,
        location="memory://bucket/t",
        table_uuid="u",
        now_ms=1,
        properties={f"write.manifest.compression-{name}": value for name, value in properties.items()},
    )
    spec_id = metadata.default_spec_id
    target = RecordTarget(partition=metadata.partition_type(spec_id), format_version=2)
    return RunWriter.of(metadata, spec_id, ManifestContent.DATA, target, 1000, MemoryStorage())


def test_a_table_s_properties_say_how_manifests_are_packed():
    assert (of_table().codec, of_table().level) == ("gzip", None)
    assert (of_table(codec="zstd", level="3").codec, of_table(codec="zstd", level="3").level) == ("zstd", 3)
    assert of_table().directory == "memory://bucket/t/metadata"


@for_each(
    "properties", [{"codec": "rar"}, {"level": "x"}, {"codec": "zstd", "level": "99"}, {"codec": "gzip", "level": "10"}]
)
def test_bad_compression_property_fails_before_any_write(properties: dict[str, str]):
    with pytest.raises(UsageError, match="compression"):
        of_table(**properties)


def test_the_header_takes_what_a_manifest_without_entries_takes():
    target, storage = target_of(), MemoryStorage()
    writer = writer_of(target, storage, codec="uncompressed")
    rows = records_of(many(1), target)
    manifest = writer.write([rows])
    block_bytes = len(rows["record"][0].as_py()) + 16 + 3
    assert abs(manifest.manifest_length - block_bytes - writer.header_bytes) <= 1


def test_what_was_written_can_be_removed():
    target, storage = target_of(), MemoryStorage()
    writer = writer_of(target, storage)
    kept, *others = [writer.write([records_of(many(2), target)]) for _ in range(3)]
    writer.discard(others)
    assert [*contents(storage, "memory://bucket")] == [kept.manifest_path.removeprefix("memory://bucket/")]


def test_a_write_that_fails_leaves_no_file():
    def fail(operation: str, location: str) -> None:
        if operation == "write":
            raise OSError("no space")

    storage = HookedStorage(MemoryStorage(), before=fail)
    with pytest.raises(OSError, match="no space"):
        writer_of(target_of(), storage).write([records_of(many(2), target_of())])
    assert storage.inner.files == {}


# How much is how many manifests.


@for_each(
    ("records_bytes", "ratio", "count"),
    [
        (0, 0.5, 1),
        (1, 1.0, 1),
        (1499, 1.0, 1),
        (1501, 1.0, 2),
        (2999, 0.5, 1),
        (3001, 0.5, 2),
        (25_400, 0.1, 3),
        (100_000, 1.0, 100),
    ],
)
def test_record_bytes_give_the_nearest_manifest_count(records_bytes: int, ratio: float, count: int):
    assert writer_of(target_of(), MemoryStorage(), target_bytes=1000).parts_count(records_bytes, ratio) == count


def test_the_ratio_is_what_samples_pack_to():
    writer = writer_of(target_of(), MemoryStorage(), codec="uncompressed")
    assert writer.packed_ratio([b"a" * 100, b"b"]) == 1.0
    assert writer.packed_ratio([]) == 0.0
    assert writer_of(target_of(), MemoryStorage()).packed_ratio([b"a" * 10_000, b"b" * 10_000]) < 0.02


@given(st.lists(st.integers(1, 300_000), max_size=60))
def test_samples_are_rows_of_some_blocks_all_over(lengths: list[int]):
    places = sample_places(np.array(lengths, np.int64))
    assert all(0 <= first < last <= len(lengths) for first, last in places)
    assert places == sorted(places)
    assert bool(places) == bool(lengths)
    if sum(lengths) <= 16 * (64 << 10):
        assert places == ([(0, len(lengths))] if lengths else [])
    else:
        assert len(places) == 16
        assert places[0][0] == 0


def test_samples_of_many_small_records_are_a_block_each():
    places = sample_places(np.full(100_000, 100))
    assert [last - first for first, last in places] == [pytest.approx(656, abs=2)] * 16
    assert {b - a for (a, _), (b, _) in pairwise(places)} <= {6249, 6250, 6251}


@for_each("piece", [slice(None), slice(1, None), slice(1, 3), slice(2, 2)])
def test_records_lie_one_after_another(piece: slice):
    values = [b"a", b"", b"ccc", b"dd"]
    array = pa.array(values, pa.binary())[piece]
    assert np.diff(value_offsets(array)).tolist() == [len(v) for v in values[piece]]
    assert joined(array) == b"".join(values[piece])


TARGET_BYTES = 130


def filled(manifests: int = 12, each: int = 40) -> ManifestStore:
    """Manifests that each reach over all days."""
    store = ManifestStore()
    for number in range(manifests):
        kinds = [added, existing, deleted]
        entries = [
            kinds[(n + number) % 3](data_file(f"file:/{number}-{n:04}", partition=((n * 7) % 30 if n % 13 else None,)))
            for n in range(each)
        ]
        store.put_entries(entries)
        store.rows[-1] = replace(store.rows[-1], sequence_number=number + 1)
    return store


def in_order(store: ManifestStore) -> list[ManifestEntry]:
    """The live entries, sorted by partition and, of one partition, in the order in which they were."""
    return sorted(store.live(), key=lambda entry: sort_key([DATE], entry.data_file.partition))


def rewrite(
    store: ManifestStore, target: RecordTarget | None = None, target_bytes: int = TARGET_BYTES, storage: Any = None
) -> list[ManifestFile]:
    wanted = target_of() if target is None else target
    storage = store if storage is None else storage
    return rewritten_here(store.task(wanted), writer_of(wanted, storage, target_bytes))[0]


def ours(store: ManifestStore) -> list[str]:
    """The files that a rewrite has written."""
    return [info.location for info in store.list(DIRECTORY)]


def test_all_live_entries_come_once_and_sorted():
    store = filled()
    manifests = rewrite(store)
    assert len(manifests) > 5
    assert entries_in(store, manifests, DAY) == in_order(store)
    assert sorted(ours(store)) == sorted(m.manifest_path for m in manifests)


def test_manifests_are_cut_evenly_at_the_target_size():
    store = filled(manifests=6, each=500)
    manifests = rewrite(store, target_bytes=1000)
    counts = [manifest.existing_files_count or 0 for manifest in manifests]
    assert len(manifests) > 3
    assert max(counts) - min(counts) <= 0.05 * max(counts)
    # Without their headers, which are more than such a target.
    header = writer_of(target_of(), store).header_bytes
    assert all(0.7 < (m.manifest_length - header) / 1000 < 1.6 for m in manifests)


def test_a_sample_of_the_partitions_comes_with_them():
    store, codec = filled(), PartitionCodec(DAY)
    _, partitions = rewritten_here(store.task(target_of()), writer_of(target_of(), store))
    assert {codec.decode(key) for key in partitions} == {e.data_file.partition for e in store.live()}
    assert len(partitions) == len({*partitions})


# Many records.


@pytest.mark.parametrize("held_bytes", [0, 20_000])
def test_records_beyond_memory_spill_to_files(held_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("icekeep.planning.entries._CHUNK_BYTES", 1)
    store = filled()
    before = entries_in(store, rewrite(store), DAY)
    spilled: list[str] = []
    real = held_records._HeldRecords._mapped

    def noted(held: Any, batch: Any) -> Any:
        found = real(held, batch)
        spilled.extend(str(path) for path in tmp_path.glob("icekeep-*/*.arrow"))
        return found

    monkeypatch.setattr(held_records._HeldRecords, "_mapped", noted)
    monkeypatch.setattr(held_records, "_HELD_BYTES", held_bytes)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert entries_in(store, rewrite(store), DAY) == before == in_order(store)
    assert len({*spilled}) == 12 if not held_bytes else 0 < len({*spilled}) < 12
    assert [*tmp_path.iterdir()] == []


# Failures.


@for_each("failing", [1, 2, 5, 8])
@for_each("error", [UnavailableError("the store is away"), KeyboardInterrupt(), OSError("no space")])
def test_a_write_that_fails_leaves_no_manifest(failing: int, error: BaseException):
    store, begun = filled(), []

    def fail(operation: str, location: str) -> None:
        if operation == "write":
            begun.append(location)
            if len(begun) == failing:
                raise error

    with pytest.raises(type(error)):
        rewrite(store, storage=HookedStorage(store, before=fail))
    assert len(begun) >= failing
    assert ours(store) == []
    assert all(store.head(row.manifest_path) for row in store.rows)


def test_nothing_is_written_where_a_manifest_cannot_be_read():
    store = filled(manifests=4)
    store.rows[3] = replace(store.rows[3], added_files_count=1)
    with pytest.raises(InvalidTableError, match="its manifest list says 1"):
        rewrite(store)
    store = filled(manifests=4)
    store.delete_many([store.rows[2].manifest_path])
    with pytest.raises(MissingFileError):
        rewrite(store)
    assert ours(store) == []


MIB = 1 << 20
MANIFESTS_COUNT, BLOCKS_A_MANIFEST = 8, 800

SCRIPT = """
    import json, sys, threading
    from pathlib import Path
    from msgspec.structs import replace
    from icekeep.maintenance.manifests import held_records
    from icekeep.planning.decoder import ManifestDecoder
    from icekeep.planning.transcode import RecordsTask
    from icekeep.spec.manifests.structs import ManifestFile
    from icekeep.storage.open import open_storage
    from kit.rewritten_manifests import target_of, writer_of

    def anonymous():
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

    directory, held_records._HELD_BYTES = sys.argv[1], int(sys.argv[2])
    storage, target = open_storage({}), target_of()
    rows = [
        ManifestFile(manifest_path=f"file:{path}", manifest_length=path.stat().st_size, partition_spec_id=0,
                     added_snapshot_id=1, sequence_number=1, min_sequence_number=1)
        for path in sorted(Path(directory).glob("m*.avro"))
    ]
    task = RecordsTask(manifests=tuple(rows), numbers={row.manifest_path: n for n, row in enumerate(rows)},
                       target=target, storage=storage, decoder=ManifestDecoder.DATAFUSION)
    writer = replace(writer_of(target, storage, codec="zstd"), directory=f"file:{directory}")
    held_records.rewritten_here(replace(task, manifests=task.manifests[:1]), writer, foresees=True)
    before, peak, done = anonymous(), [0], threading.Event()

    def watch():
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    manifests, _ = held_records.rewritten_here(task, writer)
    done.set()
    watcher.join()
    count = sum(manifest.existing_files_count for manifest in manifests)
    print(json.dumps({"entries": count, "taken": peak[0] - before}))
"""


def write_large_manifests(directory: Path) -> tuple[int, int]:
    """Manifests of blocks that are all alike, so that they are made in no time; how many entries, and bytes of records."""
    spec, schema = spec_and_schema(DAY)
    encoder = EntryEncoder(DAY, 2)
    days = [19_000 + number % 30 for number in range(200)]
    entries = [
        ManifestEntry(
            status=Status.EXISTING,
            snapshot_id=1,
            sequence_number=1,
            file_sequence_number=1,
            data_file=data_file(
                partition=(day,),
                lower_bounds={n: blake2b(b"%d %d" % (day, n), digest_size=16).digest() for n in range(1, 13)},
            ),
        )
        for day in days
    ]
    payload = b"".join(map(encoder.encode, entries))
    pack = packer("zstandard")
    packed = pack(payload)
    for number in range(MANIFESTS_COUNT):
        builder = ManifestBuilder(
            f"m{number}", encoder, spec, schema, format_version=2, codec="zstd", pack=lambda _: packed
        )
        for _ in range(BLOCKS_A_MANIFEST):
            builder.add_block(payload, len(entries), len(entries), 1)
        builder.add_partitions((day,) for day in days)
        (directory / f"m{number}.avro").write_bytes(builder.finish(1)[0])
    blocks = MANIFESTS_COUNT * BLOCKS_A_MANIFEST
    return blocks * len(entries), blocks * len(payload)


def rewritten(directory: Path, max_held: int) -> dict[str, int]:
    """What a process says that rewrites the manifests: how many entries, and how many bytes it took for that."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(directory), str(max_held)]
    path = ":".join(entry for entry in sys.path if entry)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONPATH": path})
    said: dict[str, int] = json.loads(done.stdout)
    return said


@pytest.mark.nightly
@pytest.mark.process
def test_entries_take_no_more_memory_than_is_set_aside_for_them(tmp_path: Path) -> None:
    count, size_bytes = write_large_manifests(tmp_path)
    assert size_bytes > 350 * MIB
    said = rewritten(tmp_path, 32 * MIB)
    assert said["entries"] == count
    assert said["taken"] < 180 * MIB
