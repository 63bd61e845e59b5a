import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.file_sets import ReadFile, entry_digest, store_file_set
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.applicability import AppliedDelete
from icekeep.spec.manifests.structs import ManifestEntry, Status
from kit.storage import MemoryStorage
from kit.tables import data_file

AT = "memory://lake/wh/db/events/.icekeep/runs/1"
DELETE = AppliedDelete("memory://d", None, 3)


def entry(name="a", sequence_number=1, **changes):
    file = replace(data_file(name, 7), **changes)
    return ManifestEntry(status=Status.EXISTING, sequence_number=sequence_number, data_file=file)


def read(*names, manifest="m", applied=frozenset()):
    return [ReadFile(entry(name), manifest, applied) for name in names]


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


def test_a_file_that_is_listed_twice_is_refused():
    with pytest.raises(InvalidTableError, match=r"'.*/a' is live more than once in the table; it cannot be rewritten"):
        store_file_set([*read("a"), *read("a", manifest="n")], MemoryStorage(), AT)


def test_the_files_of_a_manifest_come_together():
    with pytest.raises(IcekeepBug, match="'m' are not given one after the other"):
        store_file_set([*read("a"), *read("b", manifest="n"), *read("c")], MemoryStorage(), AT)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x81\xa5paths\x01"])
def test_a_part_that_is_broken_is_said_to_be(data):
    storage = MemoryStorage()
    stored = store_file_set(read("a"), storage, AT)
    storage.files[stored.locations()[0]] = (data, 0)
    with pytest.raises(InvalidTableError, match=r"cannot read the set of files in '.*files-0.msgpack'"):
        stored.load(storage, ["m"])
