import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, SafetyError
from icekeep.events import StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.maintenance.reachability import FileKind, GarbageFile, Unreachable
from icekeep.maintenance.reclaim import Reclaimed, reclaim, refuse_if_gc_is_disabled, write_plan
from icekeep.storage.base import DeleteOutcome, DeleteStatus
from kit.changes import Recorder
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import memory_table

ROOT = "memory://lake/wh/db/events"


@pytest.fixture
def table():
    return memory_table()


@pytest.fixture
def metadata(table):
    return table.metadata


def garbage(metadata, *files, outside=()):
    return Unreachable(table_uuid=metadata.table_uuid, files=tuple(files), outside=tuple(outside))


def file(kind=FileKind.DATA, name="data/a.parquet", size_bytes=10, root=ROOT):
    return GarbageFile(kind, f"{root}/{name}", size_bytes)


def store(*files) -> HookedStorage:
    storage = HookedStorage(MemoryStorage())
    for one in files:
        storage.create(one.location, b"x" * (one.size_bytes or 1))
    return storage


def test_what_is_proved_unreachable_is_deleted_and_nothing_else(metadata):
    files = [
        file(),
        file(FileKind.MANIFEST, "metadata/m.avro", 7),
        file(FileKind.MANIFEST_LIST, "metadata/s.avro", None),
    ]
    kept = [file(name="data/kept.parquet"), file(name="data/a.parquet", root="memory://lake/wh/db/events2")]
    storage = store(*files, *kept)
    assert reclaim(garbage(metadata, *files), metadata, storage, Recorder()) == Reclaimed(
        deleted={FileKind.DATA: 1, FileKind.MANIFEST: 1, FileKind.MANIFEST_LIST: 1},
        deleted_bytes=17,
        missing_count=0,
        failed=(),
    )
    assert set(storage.inner.files) == {one.location for one in kept}


def test_files_outside_the_table_are_kept_although_nothing_leads_to_them(metadata):
    elsewhere = file(root="memory://lake/wh/db/other")
    storage = store(elsewhere)
    done = reclaim(garbage(metadata, outside=[elsewhere]), metadata, storage, Recorder())
    assert done.deleted == {}
    assert set(storage.inner.files) == {elsewhere.location}


def test_what_others_name_goes_before_what_names_it(metadata):
    order = []
    files = [file(kind, f"{number}") for number, kind in enumerate(reversed(FileKind))]
    storage = store(*files)
    storage.before = lambda what, location: order.append(location) if what == "delete_many" else None
    reclaim(garbage(metadata, *files), metadata, storage, Recorder())
    assert [next(f.kind for f in files if f.location == location) for location in order] == list(FileKind)
    assert list(FileKind).index(FileKind.DATA) < list(FileKind).index(FileKind.MANIFEST)
    assert list(FileKind).index(FileKind.MANIFEST) < list(FileKind).index(FileKind.MANIFEST_LIST)


def test_files_that_are_gone_already_are_fine_and_counted_apart(metadata):
    files = [file(name=name) for name in ("data/a", "data/b")]
    done = reclaim(garbage(metadata, *files), metadata, store(files[0]), Recorder())
    assert (done.deleted, done.deleted_bytes, done.missing_count, done.failed) == ({FileKind.DATA: 1}, 10, 1, ())


def test_running_twice_deletes_nothing_more(metadata):
    files = [file(name=name) for name in ("data/a", "data/b")]
    storage = store(*files)
    reclaim(garbage(metadata, *files), metadata, storage, Recorder())
    again = reclaim(garbage(metadata, *files), metadata, storage, Recorder())
    assert (again.deleted, again.deleted_bytes, again.missing_count) == ({}, 0, 2)


def test_files_that_cannot_be_deleted_are_named_and_the_others_go(metadata):
    class Refusing(MemoryStorage):
        def delete_many(self, locations):
            return [
                DeleteOutcome(location, DeleteStatus.FAILED, "access denied") if "b" in location.rsplit("/", 1)[-1]
                else super(Refusing, self).delete_many([location])[0]
                for location in locations
            ]  # fmt: skip

    files = [file(name=f"data/{name}") for name in "abc"]
    storage, heard = Refusing(), Recorder()
    for one in files:
        storage.create(one.location, b"x")
    done = reclaim(garbage(metadata, *files), metadata, storage, heard)
    assert (done.deleted, done.failed, done.deleted_bytes) == ({FileKind.DATA: 2}, (files[1].location,), 20)
    assert Warned(f"could not delete {files[1].location!r}: access denied") in heard.events
    assert set(storage.files) == {files[1].location}


def test_many_files_go_in_batches_of_which_each_is_told(metadata):
    files = [file(name=f"data/{number:05d}") for number in range(2500)]
    storage, heard = store(*files), Recorder()
    assert reclaim(garbage(metadata, *files), metadata, storage, heard).deleted == {FileKind.DATA: 2500}
    assert storage.fired["delete_many"] == 3
    assert heard.events == [
        StepStarted("deleting files", 2500, "files"),
        StepAdvanced("deleting files", 1000),
        StepAdvanced("deleting files", 1000),
        StepAdvanced("deleting files", 500),
        StepFinished("deleting files", "2500 files"),
    ]
    assert storage.inner.files == {}


@pytest.mark.parametrize("text", ["false", "FALSE", "no", "0", "", " true"])
def test_where_garbage_collection_is_not_enabled_nothing_is_deleted(text):
    metadata = memory_table(**{"gc.enabled": text}).metadata
    storage = store(file())
    with pytest.raises(SafetyError, match=f"gc.enabled={text}") as raised:
        reclaim(garbage(metadata, file()), metadata, storage, Recorder())
    assert raised.value.exit_status == 4
    assert storage.fired["delete_many"] == 0


@pytest.mark.parametrize("text", [None, "true", "TRUE", "True"])
def test_where_it_is_enabled_or_not_spoken_of_nothing_is_refused(text):
    properties = {} if text is None else {"gc.enabled": text}
    refuse_if_gc_is_disabled(memory_table(**properties).metadata)


def test_the_proof_of_another_table_proves_nothing(metadata):
    storage = store(file())
    proof = msgspec.structs.replace(garbage(metadata, file()), table_uuid="another")
    with pytest.raises(IcekeepBug, match="another table"):
        reclaim(proof, metadata, storage, Recorder())
    assert storage.fired["delete_many"] == 0


@pytest.mark.parametrize(
    "location",
    [
        "memory://lake/wh/db/events2/data/a",
        "memory://lake/wh/db/events/../other/a",
        "memory://other/wh/db/events/data/a",
        "memory://lake/wh/db/events",
        "/etc/passwd",
    ],
)
def test_a_file_outside_the_table_stops_everything_before_the_first_deletion(metadata, location):
    files = [file(name=f"data/{number:05d}") for number in range(1500)]
    storage = store(*files)
    bad = GarbageFile(FileKind.STATISTICS, location, 1)
    with pytest.raises(IcekeepBug, match="outside the table's location"):
        reclaim(garbage(metadata, *files, bad), metadata, storage, Recorder())
    assert storage.fired["delete_many"] == 0


def test_the_plan_is_lines_of_json_and_lies_where_no_orphan_removal_looks(metadata):
    storage = MemoryStorage()
    files = [file(), file(FileKind.MANIFEST_LIST, "metadata/s.avro", None)]
    location = write_plan(garbage(metadata, *files), metadata, storage, "expire_snapshots", "run-1")
    assert location == f"{ROOT}/.icekeep/plans/expire_snapshots-run-1.jsonl"
    assert [msgspec.json.decode(line) for line in storage.read(location).splitlines()] == [
        {"job": "expire_snapshots", "run": "run-1", "table-uuid": metadata.table_uuid, "location": ROOT},
        {"kind": "data file", "location": f"{ROOT}/data/a.parquet", "size-in-bytes": 10},
        {"kind": "manifest list", "location": f"{ROOT}/metadata/s.avro", "size-in-bytes": None},
    ]


def test_a_plan_is_never_written_over(metadata):
    storage = MemoryStorage()
    write_plan(garbage(metadata), metadata, storage, "job", "run")
    with pytest.raises(FileExistsError):
        write_plan(garbage(metadata, file()), metadata, storage, "job", "run")


@given(st.lists(st.tuples(st.sampled_from(FileKind), st.none() | st.integers(0, 99), st.booleans()), max_size=20))
def test_counts_are_the_difference_that_was_made(drawn):
    metadata = memory_table().metadata
    files = [file(kind, f"data/{n}", size) for n, (kind, size, _) in enumerate(drawn)]
    there = [one for one, (_, _, exists) in zip(files, drawn, strict=True) if exists]
    storage = store(*there)
    done = reclaim(garbage(metadata, *files), metadata, storage, Recorder())
    assert storage.inner.files == {}
    assert sum(done.deleted.values()) == len(there)
    assert done.missing_count == len(files) - len(there)
    assert done.deleted_bytes == sum(one.size_bytes or 0 for one in there)
    assert set(done.deleted) == {one.kind for one in there}
