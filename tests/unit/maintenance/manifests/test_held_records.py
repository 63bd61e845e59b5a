"""A run rewritten in one process: all live entries, once, sorted, in manifests of even size; or no file at all."""

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, MissingFileError, UnavailableError
from icekeep.maintenance.manifests import records as held_records
from icekeep.maintenance.manifests.records import rewritten_here
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.transcode import RecordTarget
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import DATE
from icekeep.spec.values import sort_key
from kit.cases import cases, for_each
from kit.manifests import DAY, added, data_file, deleted, existing
from kit.rewritten_manifests import DIRECTORY, ManifestStore, entries_in, target_of, writer_of
from kit.storage import HookedStorage
from kit.strategies import manifest_entries, partition_types

pytestmark = pytest.mark.slow

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


def test_neighbours_share_one_partition_at_most():
    store = filled()
    entries = [[e.data_file.partition for e in entries_in(store, [m], DAY)] for m in rewrite(store)]
    ends = [(sort_key([DATE], some[0]), sort_key([DATE], some[-1])) for some in entries]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))


def test_a_sample_of_the_partitions_comes_with_them():
    store, codec = filled(), PartitionCodec(DAY)
    _, partitions = rewritten_here(store.task(target_of()), writer_of(target_of(), store))
    assert {codec.decode(key) for key in partitions} == {e.data_file.partition for e in store.live()}
    assert len(partitions) == len({*partitions})


def test_what_is_foreseen_is_what_is_then_written():
    store, target = filled(), target_of()
    writer = writer_of(target, store, TARGET_BYTES)
    expected = rewritten_here(store.task(target), writer, foresees=True)
    assert ours(store) == []
    manifests, partitions = rewritten_here(store.task(target), writer)
    assert expected == ([replace(m, manifest_path="") for m in manifests], partitions)


def test_few_entries_are_one_manifest():
    store = filled(manifests=2, each=5)
    [manifest] = rewrite(store, target_bytes=8 << 20)
    assert entries_in(store, [manifest], DAY) == in_order(store)


def test_where_nothing_is_live_nothing_is_written():
    store = ManifestStore()
    store.put_entries([deleted(), deleted()])
    assert rewritten_here(store.task(target_of()), writer_of(target_of(), store)) == ([], [])
    assert ours(store) == []


def test_one_entry_alone_is_never_cut():
    store = ManifestStore()
    store.put_entries([added(data_file("file:/" + "x" * 50_000, lower_bounds={1: bytes(range(256)) * 100}))])
    assert len(rewrite(store, target_bytes=1)) == 1


@given(st.data())
@cases(25)
def test_entries_of_any_partition_type_come_out_as_they_were(data: st.DataObject):
    store = ManifestStore(data.draw(partition_types(), label="partition"))
    for _ in range(data.draw(st.integers(1, 3))):
        store.put_entries(data.draw(st.lists(manifest_entries(store.partition), min_size=1, max_size=5)))
    for row in range(len(store.rows)):
        store.rows[row] = replace(store.rows[row], sequence_number=row + 1)
    target = target_of(store.partition)
    for decoder in ManifestDecoder:
        writer = writer_of(target, store, data.draw(st.sampled_from([100, 8 << 20])))
        manifests, _ = rewritten_here(store.task(target, decoder), writer)
        found = entries_in(store, manifests, store.partition)
        assert Counter(map(repr, found)) == Counter(map(repr, store.live()))
        types = [field.type for field in store.partition.fields]
        keys = [sort_key(types, entry.data_file.partition) for entry in found]
        assert keys == sorted(keys)


# Many records.


@pytest.mark.parametrize("held_bytes", [0, 20_000])
def test_what_is_too_much_to_hold_lies_in_files_and_comes_out_the_same(
    held_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
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
