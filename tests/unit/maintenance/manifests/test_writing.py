"""Sorted records become manifests that say what manifests of the same entries say."""

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import UsageError
from icekeep.maintenance.manifests.records import RunWriter, sample_places
from icekeep.planning.transcode import RECORDS, RecordTarget, joined, value_offsets
from icekeep.spec.avro import read_blocks, read_header
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, Status
from icekeep.spec.manifests.write import ManifestBuilder
from icekeep.spec.metadata import new_table_metadata
from kit.cases import cases, for_each
from kit.manifest_records import DIRECTORY, ManifestStore, entries_in, target_of, writer_of
from kit.manifests import DAY, added, data_file, existing, spec_and_schema, write_manifest
from kit.storage import HookedStorage, MemoryStorage, contents
from kit.table_strategies import manifest_entries, partition_types

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
def test_a_manifest_says_what_one_that_was_built_entry_by_entry_says(data: st.DataObject):
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


def test_what_was_written_is_read_back_as_the_same_existing_entries():
    storage = MemoryStorage()
    target = target_of(format_version=3)
    entries = many(50)
    manifest = writer_of(target, storage).write([records_of(entries, target, format_version=3)])
    assert entries_in(storage, [manifest], DAY) == entries
    assert (manifest.existing_files_count, manifest.existing_rows_count) == (50, 500)
    assert (manifest.added_files_count, manifest.deleted_files_count) == (0, 0)
    assert (manifest.sequence_number, manifest.min_sequence_number, manifest.added_snapshot_id) == (None, 100, None)
    assert manifest.manifest_path.startswith(f"{DIRECTORY}/optimized-m-")


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


def test_a_level_packs_as_hard_as_it_says():
    target, storage = target_of(), MemoryStorage()
    rows = records_of(many(3000), target)
    lengths = [writer_of(target, storage, level=level).write([rows]).manifest_length for level in (1, 9)]
    assert lengths[0] > lengths[1]


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
def test_a_property_that_is_wrong_is_an_error_before_anything_is_written(properties: dict[str, str]):
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
def test_records_are_cut_into_the_number_of_manifests_that_comes_nearest(records_bytes: int, ratio: float, count: int):
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
