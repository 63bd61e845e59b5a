import gzip
import json
import pickle

import pyarrow as pa
import pytest

from icekeep.maintenance.orphans.listing import keyed_rows
from icekeep.maintenance.orphans.metadata import SORTED, MetadataFileSorter, Sort
from icekeep.maintenance.orphans.options import spelling
from kit.storage import HookedStorage, MemoryStorage

pytestmark = pytest.mark.slow

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
DIRECTORY = "memory://lake/tbl/metadata"
CURRENT = f"{DIRECTORY}/00200-x.metadata.json"
HEAD_MS = 1_000_000_000_000
DAY_MS = 86_400_000


class Store:
    def __init__(self):
        self.memory = MemoryStorage()
        self.storage = HookedStorage(self.memory)

    def sorts(self, name, data, modified_ms=HEAD_MS - DAY_MS, size_bytes=None, **known):
        """What one file is taken for."""
        location = f"{DIRECTORY}/{name}"
        self.memory.files[location] = (data, 0)
        sorter = MetadataFileSorter(
            **{
                "table_uuid": UUID,
                "metadata_location": CURRENT,
                "last_sequence_number": 200,
                "head_ms": HEAD_MS,
                "before_ms": HEAD_MS + DAY_MS,
                "last_version": None,
                "now_ms": HEAD_MS + 4 * DAY_MS,
                "storage": self.storage,
                **known,
            }
        )
        size = len(data) if size_bytes is None else size_bytes
        rows = keyed_rows(
            pa.array([location]),
            pa.array([size], pa.int64()),
            pa.array([modified_ms], pa.int64()),
            spelling(None, None),
        )
        found = sorter.sort(rows)
        assert found.schema == SORTED
        [row] = found.to_pylist()
        assert row["location"] == location
        return Sort(row["kind"])


@pytest.fixture
def store():
    return Store()


def document(*, uuid=UUID, padding=0, first=True, **keys):
    head = {"format-version": 2, "table-uuid": uuid} if first else {"a": 1, "table-uuid": uuid}
    return json.dumps({**head, "last-sequence-number": 3, "properties": {"pad": "x" * padding}, **keys}).encode()


def test_files_that_are_no_metadata_are_orphans_or_too_young(store):
    assert store.sorts("m.avro", b"", HEAD_MS) is Sort.ORPHAN
    assert store.sorts("m.avro", b"", HEAD_MS + DAY_MS) is Sort.YOUNG
    assert store.sorts("m.metadata.json.bak", b"") is Sort.ORPHAN
    assert not store.storage.fired


def test_a_file_of_which_the_time_is_not_known_is_too_young(store):
    assert store.sorts("m.avro", b"", None) is Sort.YOUNG
    assert store.sorts("m.metadata.json", document(), None) is Sort.YOUNG


@pytest.mark.parametrize("zip_it", [False, True])
@pytest.mark.parametrize("padding", [0, 2_000_000])
@pytest.mark.parametrize("first", [True, False])
def test_table_uuid_is_found_anywhere_in_a_large_file(store, zip_it, padding, first):
    def written(**keys):
        data = document(padding=padding, first=first, **keys)
        return gzip.compress(data) if zip_it else data

    size = 3_000_000 if padding else None
    assert store.sorts("a.metadata.json", written(), size_bytes=size) is Sort.METADATA
    other = "9c12d441-03fe-4693-9a96-a0705ddf69c2"
    assert store.sorts("b.metadata.json", written(uuid=other), size_bytes=size) is Sort.FOREIGN
    assert store.sorts("c.metadata.json", written(uuid=UUID.upper()), size_bytes=size) is Sort.METADATA


def test_of_a_large_old_file_only_the_beginning_is_read(store):
    assert store.sorts("a.metadata.json", document(padding=2_000_000)) is Sort.METADATA
    assert (store.storage.fired["open"], store.storage.fired["read"]) == (1, 0)


def test_an_id_in_a_nested_object_is_not_the_table_s(store):
    data = json.dumps({"properties": {"table-uuid": UUID, "pad": "x" * 2_000_000}, "table-uuid": "other"}).encode()
    assert store.sorts("a.metadata.json", data) is Sort.FOREIGN


def test_large_descendant_metadata_is_read_to_the_end(store):
    log = [{"timestamp-ms": 1, "metadata-file": "memory://lake//tbl/metadata/00200-x.metadata.json"}]
    data = document(padding=2_000_000, **{"metadata-log": log})
    assert store.sorts("a.metadata.json", data, HEAD_MS + 1) is Sort.FORK
    assert store.sorts("a.metadata.json", data, HEAD_MS + 2 * DAY_MS) is Sort.UNFINISHED


def test_metadata_ahead_of_the_table_is_a_fork(store):
    assert store.sorts("a.metadata.json", document(**{"last-sequence-number": 202})) is Sort.FORK
    # What an attempt leaves behind that lost to a change of properties.
    assert store.sorts("a.metadata.json", document(**{"last-sequence-number": 201})) is Sort.METADATA


@pytest.mark.parametrize("zip_it", [False, True])
def test_metadata_that_was_cut_off_leads_nowhere_once_it_is_old(store, zip_it):
    """Wherever it was cut off, by a writer that was killed; three days are the least."""
    whole = document(
        **{"metadata-log": [{"metadata-file": "x", "timestamp-ms": -1.5e3}], "ok": [True, None, "\\u00e4"]}
    )
    data = gzip.compress(whole, mtime=0) if zip_it else whole
    now_ms = HEAD_MS + 4 * DAY_MS
    # The last bytes of gzip are no text: without them all of it can be read.
    for length in range(len(data) - (16 if zip_it else 0)):
        cut = data[:length]
        assert store.sorts("a.metadata.json", cut, now_ms - 3 * DAY_MS - 1) is Sort.METADATA, cut
        assert store.sorts("a.metadata.json", cut, now_ms - 3 * DAY_MS, before_ms=now_ms) is Sort.UNFINISHED, cut
    assert store.sorts("a.metadata.json", b"\0" * 4096) is Sort.METADATA
    assert store.sorts("v900.metadata.json", b"", last_version=900) is Sort.VERSION


@pytest.mark.parametrize(
    "data", [b"\x04\x22\x4d\x18", b"[]", b"{}", b"{x", b"\x1f\x8b\xff\xff", b"nonsense", b'{"table-uuid": 7}']
)
def test_unreadable_metadata_is_foreign(store, data):
    """Another codec, for example: whoever wrote it may read it."""
    assert store.sorts("a.metadata.json", data) is Sort.FOREIGN


def test_old_metadata_of_a_dead_table_leads_nowhere(store):
    other = "0c2b5d1e-0000-4000-8000-00000000000a"
    data = document(uuid=other.upper(), **{"last-sequence-number": 900})
    assert store.sorts("a.metadata.json", data) is Sort.FOREIGN
    assert store.sorts("a.metadata.json", data, ignored_uuids=(other,)) is Sort.METADATA
    # It was written a moment ago: so it is alive.
    assert store.sorts("a.metadata.json", data, HEAD_MS + 2 * DAY_MS, ignored_uuids=(other,)) is Sort.FOREIGN
    fork = document(**{"last-sequence-number": 202})
    assert store.sorts("a.metadata.json", fork, ignored_uuids=(other,)) is Sort.FORK
    assert store.sorts("a.metadata.json", fork, ignored_uuids=(UUID,)) is Sort.METADATA
    assert store.sorts("a.metadata.json", fork, HEAD_MS + 2 * DAY_MS, ignored_uuids=(UUID,)) is Sort.UNFINISHED


def test_a_file_that_goes_away_meanwhile_is_no_matter(store):
    store.storage.before = lambda operation, location: store.memory.files.pop(location, None)
    assert store.sorts("a.metadata.json", document()) is Sort.GONE


@pytest.mark.parametrize(
    ("name", "last_version", "expected"),
    [
        ("v100.metadata.json", 200, Sort.METADATA),
        ("v101.metadata.json", 200, Sort.VERSION),
        ("v200.gz.metadata.json", 200, Sort.VERSION),
        ("v900.metadata.json.gz", 200, Sort.VERSION),
        ("v1.metadata.json", None, Sort.VERSION),
        ("00001-x.metadata.json", 200, Sort.METADATA),
        ("v01.metadata.json", 200, Sort.METADATA),
    ],
)
def test_newest_versions_of_a_numbered_table_stay(store, name, last_version, expected):
    assert store.sorts(name, document(), last_version=last_version) is expected


def test_versions_stay_as_long_as_a_slow_writer_may_need_them(store):
    """Whatever the age that the operator gave."""
    now_ms = HEAD_MS + 2 * DAY_MS
    assert store.sorts("v1.metadata.json", document(), HEAD_MS, last_version=900, now_ms=now_ms) is Sort.VERSION


def test_a_table_without_an_id_owns_no_metadata_by_its_id(store):
    assert store.sorts("a.metadata.json", document(), table_uuid=None) is Sort.FOREIGN


def test_the_rule_travels_to_other_processes(store):
    sorter = MetadataFileSorter(
        table_uuid=UUID,
        metadata_location=CURRENT,
        last_sequence_number=1,
        head_ms=0,
        before_ms=0,
        last_version=3,
        now_ms=0,
        storage=MemoryStorage(),
    )
    assert pickle.loads(pickle.dumps(sorter)).last_version == 3


OTHER = "3f1a9a2e-6f0b-4a4e-9f5c-0c8d3c9a1b22"
TABLE = "memory://lake/tbl"


def unborn(**keys):
    """What a writer leaves that would make the table once more."""
    schema = {"type": "struct", "fields": [{"id": 1, "name": "id"}, {"id": 2, "name": "at"}]}
    whole = {"location": TABLE, "schemas": [schema], "last-sequence-number": 0, "snapshots": [], "metadata-log": []}
    return document(**{"uuid": OTHER, **whole, **keys})


def sorts_unborn(store, data, modified_ms=HEAD_MS - DAY_MS, **known):
    told = {"table_location": TABLE, "columns": frozenset([("id",), ("id", "at")]), **known}
    return store.sorts("00000-y.metadata.json", data, modified_ms, **told)


def test_metadata_of_an_unborn_table(store):
    assert sorts_unborn(store, unborn()) is Sort.UNBORN
    assert sorts_unborn(store, unborn(), HEAD_MS + 2 * DAY_MS) is Sort.UNBORN
    assert sorts_unborn(store, unborn(location=f"{TABLE}/")) is Sort.UNBORN
    assert sorts_unborn(store, unborn(**{"current-snapshot-id": -1, "snapshots": None})) is Sort.UNBORN
    assert sorts_unborn(store, unborn(), ignored_uuids=(OTHER,)) is Sort.METADATA


@pytest.mark.parametrize(
    "keys",
    [
        {"snapshots": [{"snapshot-id": 1}]},
        {"current-snapshot-id": 1},
        {"last-sequence-number": 1},
        {"metadata-log": [{"metadata-file": f"{TABLE}/metadata/00000-x.metadata.json"}]},
        {"location": "memory://lake/another"},
        {"location": f"{TABLE}/below"},
        {"properties": {"write.metadata.path": "memory://lake/elsewhere"}},
        {"properties": {"write.data.path": "memory://lake/elsewhere"}},
        {"schemas": [{"fields": [{"name": "id"}, {"name": "other"}]}]},
        {"schemas": [{"fields": [{"name": "id"}]}, {"fields": [{"name": "id"}, {"name": "at"}]}]},
        {"schemas": None},
        {"location": None},
        {"snapshots": "none"},
        {"properties": []},
    ],
    ids=str,
)
def test_metadata_of_a_possibly_live_table_blocks(keys, store):
    assert sorts_unborn(store, unborn(**keys)) is Sort.FOREIGN


def test_own_old_metadata_is_recognized_by_its_uuid(store):
    assert store.sorts("a.metadata.json", document(location=None, snapshots="none", schemas=7)) is Sort.METADATA
