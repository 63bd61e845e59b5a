"""Manifests are read once a run, nothing else is remembered, and memory has a bound."""

import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.health.job import table_health
from icekeep.maintenance.compaction.job import compact
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.planning.memory import Memory, RememberedStorage
from kit.cases import cases, for_each
from kit.job_world import World
from kit.no_spark import no_spark
from kit.storage import MemoryStorage

UUID = "0b9f1c1e-7d3a-4c55-9f1b-2a3b4c5d6e7f"


def manifest(number):
    return f"memory://lake/t/metadata/{UUID}-m{number}.avro"


class Counted:
    def __init__(self):
        self.files, self.reads = {}, Counter()

    def read(self, location, length_bytes=None):
        self.reads[location] += 1
        return self.files[location]

    def head(self, location):
        return "asked"


@cases(200)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    asked=st.lists(st.integers(0, 7), max_size=40),
    room=st.integers(1, 120),
)
def test_memory_never_holds_more_than_its_room_and_always_gives_what_lies_there(sizes, asked, room):
    inner, memory = Counted(), Memory(room)
    inner.files = {manifest(number): bytes([number]) * size for number, size in enumerate(sizes)}
    storage = RememberedStorage(inner, memory, "c")
    held = []
    for number in asked:
        location = manifest(number % len(sizes))
        before = inner.reads[location]
        assert storage.read(location) == inner.files[location]
        assert (inner.reads[location] == before) is (location in held)
        if location in held:
            held.remove(location)
        if len(inner.files[location]) <= room:
            held.append(location)
        while sum(len(inner.files[one]) for one in held) > room:
            held.pop(0)


@for_each(
    "location",
    [
        f"memory://lake/t/metadata/00001-{UUID}.metadata.json",
        "memory://lake/t/metadata/v1.metadata.json",
        "memory://lake/t/metadata/version-hint.text",
        f"memory://lake/t/.icekeep/plans/{UUID}/head.avro",
        f"memory://lake/t/data/00000-0-{UUID}.avro",
        "memory://lake/t/metadata/snap-1.avro",
    ],
)
def test_what_may_change_or_is_no_manifest_is_read_each_time(location):
    inner, memory = Counted(), Memory()
    inner.files[location] = b"first"
    storage = RememberedStorage(inner, memory, "c")
    assert storage.read(location) == b"first"
    inner.files[location] = b"second"
    assert storage.read(location) == b"second"


def test_two_catalogs_have_each_their_own_and_all_else_is_the_storage_s():
    one, other, memory = Counted(), Counted(), Memory()
    one.files[manifest(1)], other.files[manifest(1)] = b"one", b"other"
    first, second = RememberedStorage(one, memory, "c"), RememberedStorage(other, memory, "d")
    assert [first.read(manifest(1)), second.read(manifest(1)), first.read(manifest(1))] == [b"one", b"other", b"one"]
    assert first.open(manifest(1)).read() == b"one"
    assert first.head("x") == "asked"
    # A length that metadata promises, and that is another one, is for the storage to refuse.
    assert first.read(manifest(1), 99) == b"one"
    assert one.reads[manifest(1)] == 2


def test_in_a_task_it_is_the_storage_itself():
    storage = pickle.loads(pickle.dumps(RememberedStorage(MemoryStorage(), Memory(), "c")))
    assert type(storage) is MemoryStorage


@pytest.mark.slow
def test_a_look_and_two_jobs_read_each_manifest_once_and_the_table_is_as_without():
    plain = World(2)
    for number in range(7):
        plain.append(number)
    reads, remembered, memory = Counter(), plain.copy(), Memory()
    before = {location for location in remembered.memory.files if location.endswith(".avro")}

    def count(operation, location):
        if operation in ("read", "open") and location in before:
            reads[location] += 1

    remembered.storage.before = count
    table_health(memory.over(remembered.table), no_spark)
    compact(memory.over(remembered.table), no_spark)
    rewrite_manifests(memory.over(remembered.table), no_spark)
    assert {k.rsplit("/")[-1]: n for k, n in reads.items() if n > 1} == {}
    compact(plain.table, no_spark)
    rewrite_manifests(plain.table, no_spark)
    assert remembered.rows() == plain.rows()
    assert len(remembered.table.metadata.snapshots) == len(plain.table.metadata.snapshots)
    assert remembered.lost_files() == set()
