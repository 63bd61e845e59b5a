"""Manifests are read once a run, nothing else is remembered, and memory has a bound."""

import pickle
from collections import Counter
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.health.job import table_health
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.planning import manifests as reader
from icekeep.planning.decoder import ManifestDecoder, NotReadError
from icekeep.planning.entries import DecodeTask, EntryFilter, PruningStats, SpecFilter, decode, entries_schema
from icekeep.planning.manifests import METRICS, STORED
from icekeep.planning.memory import Memory, RememberedStorage, copied
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.schema import Schema
from icekeep.spec.types import LONG, NestedField
from icekeep.spec.values import value_to_bytes
from kit.cases import cases, for_each
from kit.job_world import World
from kit.manifests import DAY, added, data_file, deleted, existing, write_manifest
from kit.runtime import no_spark
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
def test_memory_stays_within_room_and_returns_stored_bytes(sizes, asked, room):
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


def test_catalogs_are_cached_separately():
    """Each catalog has its own bytes, and all other operations go to the storage."""
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
def test_health_and_two_jobs_read_each_manifest_once():
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


# Columns that are remembered are those that lie there: whatever is asked, in whatever order, in however little room.


FIELDS = [NestedField(field_id=number, name=name, type=LONG) for number, name in enumerate("abc", 1)]
SCHEMA = Schema(fields=tuple(FIELDS))
FILTERS = ["true", "a < 20", "b >= 5 and a < 30", "c is null"]
COLUMNS = [
    {"file_path", "record_count"},
    {"file_path", "partition", "spec_id", "snapshot_id"},
    {"file_path", "lower_bounds"},
    {"manifest_path", "sequence_number", "first_row_id"},
]


class CountedStore(MemoryStorage):
    def __init__(self):
        super().__init__()
        self.reads = []

    def read(self, location, length_bytes=None):
        self.reads.append(location)
        return super().read(location, length_bytes)


def written(storage, manifests_entries, name=f"{UUID}-m"):
    rows = []
    for number, entries in enumerate(manifests_entries):
        location = f"memory://lake/t/metadata/{name}{number}.avro"
        data, row = write_manifest(entries, location=location, sequence_number=number + 1)
        with storage.write(location) as stream:
            stream.write(data)
        rows.append(row)
    return rows


def entries_of(number, count):
    def bounds(value):
        return {field.field_id: value_to_bytes(LONG, value * field.field_id) for field in FIELDS}

    makers = added, existing, deleted
    for place in range(count):
        value = number * 10 + place
        file = data_file(
            f"memory://lake/t/data/{number}-{place}.parquet",
            record_count=place + 1,
            partition=(place % 3,),
            value_counts={field.field_id: place + 1 for field in FIELDS},
            null_value_counts={1: 0, 2: 0, 3: place % 2} if place % 4 else None,
            lower_bounds=bounds(value),
            upper_bounds=bounds(value + 3),
        )
        yield makers[(number + place) % 3](file)


def task(storage, manifests, columns, where="true"):
    wanted = EntryFilter(specs={0: SpecFilter(DAY)}, where=bind(parse_where(where, 0), SCHEMA, ()))
    return DecodeTask(
        manifests=tuple(manifests),
        wanted=wanted,
        columns=frozenset(columns),
        storage=storage,
        decoder=ManifestDecoder.DATAFUSION,
    )


def read(asked):
    found = [*decode(asked)]
    rows = pa.Table.from_batches([one.entries for one in found], entries_schema(asked.columns))
    steps = PruningStats()
    for one in found:
        steps.add(one)
    return rows.to_pylist(), steps


@cases(60)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    room=st.sampled_from([1, 2_000, 8_000, 1 << 20]),
    asked=st.lists(
        st.tuples(
            st.lists(st.integers(0, 5), min_size=1, unique=True), st.sampled_from(COLUMNS), st.sampled_from(FILTERS)
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_remembered_entries_are_those_that_are_read(counts, room, asked):
    storage, memory = MemoryStorage(), Memory(room)
    rows = written(storage, (entries_of(number, count) for number, count in enumerate(counts)))
    for numbers, columns, where in asked:
        manifests = [rows[number] for number in numbers if number < len(rows)]
        plain = read(task(storage, manifests, columns, where))
        assert read(task(RememberedStorage(storage, memory, "c"), manifests, columns, where)) == plain
        assert memory.columns_bytes <= room


def test_decoded_columns_are_reused_and_others_are_read():
    storage, memory = CountedStore(), Memory()
    rows = written(storage, [[*entries_of(number, 4)] for number in range(3)])
    # Bytes that are remembered would answer as well.
    memory.get = lambda *_: None
    through = RememberedStorage(storage, memory, "c")

    def reads(manifests, columns, where="true", over=through):
        storage.reads.clear()
        read(task(over, manifests, columns, where))
        return len(storage.reads)

    assert reads(rows, {"file_path", "record_count"}, "a < 20") == 3
    assert reads(rows, {"file_path", "record_count"}, "a < 5") == 0
    assert reads(rows[1:2], {"file_path"}) == 0
    assert reads(rows, {"file_path", "record_count"}, "b < 5") == 3
    assert reads(rows, {"partition"}) == 3
    assert reads([rows[2], rows[0]], {"partition"}) == 0
    # Another catalog's file, another length, other row ids: each is another manifest.
    assert reads(rows, {"partition"}, over=RememberedStorage(storage, memory, "d")) == 3
    assert reads(rows, {"first_row_id"}) == 3
    numbered = [msgspec.structs.replace(row, first_row_id=7) for row in rows]
    assert reads(numbered, {"first_row_id"}) == 3
    longer = [msgspec.structs.replace(rows[0], manifest_length=rows[0].manifest_length + 1)]
    with pytest.raises(InvalidTableError, match="bytes"):
        reads(longer, {"partition"})


def test_a_manifest_whose_name_may_come_again_is_read_each_time():
    storage, memory = CountedStore(), Memory()
    rows = written(storage, [[*entries_of(0, 2)]], name="m")
    for _ in range(2):
        read(task(RememberedStorage(storage, memory, "c"), rows, {"file_path"}))
    assert len(storage.reads) == 2
    assert memory.columns_bytes == 0


def test_of_a_manifest_that_is_not_whole_nothing_is_remembered():
    storage, memory = CountedStore(), Memory()
    rows = written(storage, [[*entries_of(0, 5)]])
    wrong = [msgspec.structs.replace(rows[0], added_files_count=99)]
    for _ in range(2):
        with pytest.raises(InvalidTableError, match="entries"):
            read(task(RememberedStorage(storage, memory, "c"), wrong, {"file_path"}))
    assert memory.columns_bytes == 0


def test_what_the_fast_decoder_fails_on_is_told_each_time(monkeypatch):
    def fails(*_):
        raise NotReadError("it is in doubt")

    storage, memory = CountedStore(), Memory()
    rows = written(storage, [[*entries_of(0, 2)]])
    monkeypatch.setattr(reader, "read_batches", fails)
    asked = task(RememberedStorage(storage, memory, "c"), rows, {"file_path"})
    assert [read(asked)[1].slow_manifests_count for _ in range(2)] == [1, 1]


def test_most_of_an_oversized_table_is_remembered():
    batch = pa.record_batch({"file_path": pa.array(["x" * 100] * 10)})
    memory = Memory(batch.get_total_buffer_size() * 8 * 8 // 7 + 1)
    _, row = write_manifest([added()])
    rows, others = (
        [
            msgspec.structs.replace(row, manifest_path=f"memory://lake/{name}/metadata/{UUID[:-2]}{n:02d}.avro")
            for n in range(count)
        ]
        for name, count in (("one", 10), ("other", 5))
    )

    def misses(manifests):
        count = 0
        for manifest in manifests:
            for stretch in memory.stretches("c", [manifest], DAY, {"file_path": None}):
                if stretch.batches is None:
                    count += 1
                    memory.keep("c", [manifest], [10], DAY, {"file_path": None}, [batch])
        return count

    assert [misses(rows) for _ in range(3)] == [10, 2, 2]
    # Another table takes the room of what nobody asks for.
    missed = [misses(others) for _ in range(10)]
    assert missed[-1] == 0
    assert all(later <= earlier for earlier, later in pairwise(missed))


def test_cached_batches_own_memory_and_keep_needed_map_keys():
    pairs = [[(1, b"a"), (2, b"b")], None, [], [(2, b"c"), (3, b"d")]]
    batch = pa.record_batch(
        [pa.array(["a", "b", "c", "d"]), pa.array(pairs, METRICS.field("lower_bounds").type)],
        names=["file_path", "lower_bounds"],
    )
    sliced = batch.slice(1)
    found = [copied(sliced["file_path"], None), copied(sliced["lower_bounds"], frozenset({3}))]
    assert [column.to_pylist() for column in found] == [["b", "c", "d"], [None, [], [(3, b"d")]]]
    addresses = [
        {part.address for column in columns for part in column.buffers() if part} for columns in (batch.columns, found)
    ]
    assert not addresses[0] & addresses[1]


def test_of_a_slice_of_maps_the_nulls_are_where_they_were():
    maps = pa.array([None, [(1, 10), (2, 20)], None, [(2, 21)], []], STORED.field("value_counts").type)
    for start in range(5):
        kept = copied(maps.slice(start), frozenset({2}))
        kept.validate(full=True)
        assert kept.to_pylist() == [None, [(2, 20)], None, [(2, 21)], []][start:]
