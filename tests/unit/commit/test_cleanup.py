import msgspec
import pytest

from icekeep.commit.attempt import CommitFiles
from icekeep.commit.outcome import remove_all, remove_unused
from icekeep.errors import UnavailableError
from icekeep.spec.snapshots import Snapshot
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import add, memory_table, raw_list, stored

AT = "memory://lake/wh/db/events/metadata"


@pytest.fixture
def table():
    return add(memory_table(), "a")


@pytest.fixture
def snapshot(table):
    return table.metadata.current_snapshot


def written(table, storage, snapshot: Snapshot) -> CommitFiles:
    """The files of a commit that made `snapshot` in its second attempt: of each kind one that it names and one that not."""
    files = CommitFiles(storage, "c")
    manifests = [raw_list(table)[0]["manifest_path"], f"{AT}/lost-m1.avro"]
    files.written += [f"{AT}/lost-list.avro", snapshot.manifest_list, *manifests]
    files.named[f"{AT}/lost-list.avro"] = frozenset(manifests)
    files.named[snapshot.manifest_list] = frozenset(manifests[:1])
    for location in (f"{AT}/lost-list.avro", f"{AT}/lost-m1.avro", f"{AT}/of-somebody-else.avro"):
        table.storage.create(location, b"x")
    return files


def test_all_that_a_commit_wrote_is_removed_and_nothing_else(table, snapshot):
    before = stored(table.catalog)
    remove_all(written(table, table.storage, snapshot))
    gone = {snapshot.manifest_list, raw_list_path(before)}
    assert stored(table.catalog) == (before | {f"{AT}/of-somebody-else.avro"}) - gone


def raw_list_path(locations: set[str]) -> str:
    (path,) = [location for location in locations if location.endswith("-m0.avro")]
    return path


def test_what_the_snapshot_names_stays_and_the_rest_goes(table, snapshot):
    before = stored(table.catalog)
    remove_unused(written(table, table.storage, snapshot), snapshot)
    assert stored(table.catalog) == before | {f"{AT}/of-somebody-else.avro"}


def test_nothing_is_removed_where_the_snapshot_is_not_there_to_say_what_it_names(table, snapshot):
    storage = HookedStorage(table.storage)
    remove_unused(written(table, storage, snapshot), None)
    assert storage.fired["delete_many"] == 0


def test_nothing_is_removed_for_another_writers_list(table, snapshot):
    files = written(table, table.storage, snapshot)
    before = stored(table.catalog)
    remove_unused(files, msgspec.structs.replace(snapshot, manifest_list=f"{AT}/of-somebody-else.avro"))
    assert stored(table.catalog) == before


def test_a_commit_that_left_nothing_over_asks_storage_nothing(table, snapshot):
    storage = HookedStorage(table.storage)
    files = CommitFiles(storage, "c")
    manifest = raw_list(table)[0]["manifest_path"]
    files.written += [snapshot.manifest_list, manifest]
    files.named[snapshot.manifest_list] = frozenset({manifest})
    before = stored(table.catalog)
    remove_unused(files, snapshot)
    assert storage.fired == {}
    assert stored(table.catalog) == before


def test_a_file_that_cannot_be_removed_stays_and_changes_nothing(table, snapshot):
    def refuse(operation, location):
        if operation == "delete_many":
            raise UnavailableError("out of reach")

    storage = HookedStorage(table.storage, before=refuse)
    files = written(table, storage, snapshot)
    remove_all(files)
    remove_unused(files, snapshot)
    assert storage.fired["delete_many"] == 2
    assert f"{AT}/lost-list.avro" in stored(table.catalog)


def test_a_commit_that_wrote_nothing_asks_storage_nothing():
    storage = HookedStorage(MemoryStorage())
    remove_all(CommitFiles(storage, "c"))
    assert storage.fired == {}
