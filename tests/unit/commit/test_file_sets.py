import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.file_sets import ReadFile, StoredFileSet, StoredPart, entry_digest, store_part
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import ManifestEntry, Status
from icekeep.spec.reach import AppliedDelete
from kit.cases import for_each
from kit.changes import store_file_set
from kit.storage import MemoryStorage
from kit.tables import data_file

AT = "memory://lake/wh/db/events/.icekeep/runs/1"
DELETE = AppliedDelete("memory://d", None, 3)


def entry(name="a", sequence_number=1, **changes):
    file = replace(data_file(name, 7), **changes)
    return ManifestEntry(status=Status.EXISTING, sequence_number=sequence_number, data_file=file)


def read(*names, manifest="m", applied=frozenset()):
    return [ReadFile(entry(name), manifest, applied) for name in names]


@for_each(
    "other",
    [
        entry("b"),
        entry(sequence_number=2),
        entry(spec_id=1),
        entry(partition=(1,)),
        entry(partition=(None,)),
        entry(first_row_id=0),
        entry(content_offset=4),
    ],
)
def test_whatever_must_still_be_so_is_in_the_digest(other):
    assert entry_digest(other) != entry_digest(entry())


@for_each(
    ("one", "another"), [((0.0,), (-0.0,)), ((1,), ("1",)), ((b"1",), ("1",)), ((Decimal("1.0"),), (Decimal("1.00"),))]
)
def test_partitions_that_differ_have_different_digests(one, another):
    assert entry_digest(entry(partition=one)) != entry_digest(entry(partition=another))


def test_what_a_commit_may_change_is_not_in_the_digest():
    other = replace(entry(partition=(math.nan,), record_count=1), status=Status.ADDED, snapshot_id=5)
    assert entry_digest(other) == entry_digest(entry(partition=(float("nan"),)))


@given(st.lists(st.tuples(st.sampled_from("mno"), st.text(min_size=1)), unique_by=lambda pair: pair[1], max_size=20))
def test_a_stored_set_gives_back_what_was_read_from_each_manifest(pairs):
    storage, pairs = MemoryStorage(), sorted(pairs)
    stored = store_file_set([ReadFile(entry(name), manifest) for manifest, name in pairs], storage, AT)
    assert (stored.files_count, stored.records_count) == (len(pairs), 7 * len(pairs))
    assert stored.parts.keys() == {manifest for manifest, _ in pairs}
    for manifest in stored.parts:
        expected = {entry_digest(entry(n)): data_file(n).file_path for m, n in pairs if m == manifest}
        assert stored.load(storage, [manifest]).paths == expected
    assert len(stored.load(storage, stored.parts).paths) == len(pairs)
    assert set(stored.locations()) == storage.files.keys()


def test_applied_deletes_are_stored_with_their_file():
    storage = MemoryStorage()
    stored = store_file_set([*read("a", applied=frozenset({DELETE})), *read("b", manifest="n")], storage, AT)
    assert stored.load(storage, ["m", "n"]).applied == {data_file("a").file_path: frozenset({DELETE})}


@given(st.lists(st.frozensets(st.integers(0, 5)), max_size=8))
def test_each_file_gets_back_the_deletes_that_were_applied_to_it(numbers):
    storage = MemoryStorage()
    applied = [frozenset(AppliedDelete("d", n % 3 or None, n) for n in some) for some in numbers]
    files = [ReadFile(entry(f"f{i}"), "m", some) for i, some in enumerate(applied)] or read("a")
    stored = store_file_set(files, storage, AT)
    found = stored.load(storage, ["m"]).applied
    assert found == {data_file(f"f{i}").file_path: some for i, some in enumerate(applied) if some}


def test_delete_files_that_many_data_files_share_are_stored_once():
    """apache/iceberg #13674: a few hundred equality deletes reach each of many files; their names are not repeated for each."""
    sizes = []
    for files_count in (1, 101):
        storage = MemoryStorage()
        applied = frozenset(AppliedDelete(f"memory://{'x' * 100}/{n}", None, 3) for n in range(500))
        stored = store_file_set(read(*map(str, range(files_count)), applied=applied), storage, AT)
        sizes.append(len(storage.files[stored.locations()[0]][0]))
        loaded = stored.load(storage, ["m"]).applied
        assert len(loaded) == files_count
        assert len({id(some) for some in loaded.values()}) == 1
    assert sizes[1] - sizes[0] < 100 * 2000


def test_the_same_files_make_the_same_part_in_whatever_task():
    files = [*read("a", applied=frozenset(AppliedDelete(f"d{n}", None, n) for n in range(9))), *read("b")]
    parts = []
    for _ in range(2):
        storage = MemoryStorage()
        part = store_part(
            [replace(file, applied_deletes=frozenset(file.applied_deletes)) for file in files], storage, AT, 7
        )
        assert part == StoredPart("m", 7, 2, 14)
        parts.append({at: data for at, (data, *_) in storage.files.items()})
    assert parts[0] == parts[1]


def test_a_file_that_a_manifest_lists_twice_is_refused():
    with pytest.raises(InvalidTableError, match=r"'.*/a' is live more than once in the table; it cannot be rewritten"):
        store_part([*read("a"), *read("a")], MemoryStorage(), AT, 0)


def test_a_set_has_one_part_a_manifest():
    with pytest.raises(IcekeepBug, match=r"two parts of the set of files in .* are of one manifest"):
        StoredFileSet.of(AT, [StoredPart("m", 0, 1, 1), StoredPart("m", 1, 1, 1)])


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x81\xa5paths\x01"])
def test_a_part_that_is_broken_is_said_to_be(data):
    storage = MemoryStorage()
    stored = store_file_set(read("a"), storage, AT)
    storage.files[stored.locations()[0]] = (data, 0)
    with pytest.raises(InvalidTableError, match=r"cannot read the set of files in '.*files-0.msgpack'"):
        stored.load(storage, ["m"])
