"""What storages over another keep to themselves."""

import io
import pickle

import pytest

from icekeep.errors import IcekeepBug, MissingFileError
from icekeep.storage.base import DeleteStatus
from icekeep.storage.wrappers import Overlay
from kit.storage import MemoryStorage


@pytest.fixture
def storage():
    storage = MemoryStorage()
    storage.create("memory:/there", b"stored")
    return storage


def stored(storage):
    return {file.location: storage.read(file.location) for file in storage.list("memory:/")}


def test_files_that_are_held_are_read_from_memory_and_all_others_as_they_are(storage):
    held = Overlay(storage)
    held.files["memory:/there"] = b"held"
    held.files["memory:/nowhere"] = b"only held"
    assert [held.open(f"memory:/{name}").read() for name in ("there", "nowhere")] == [b"held", b"only held"]
    del held.files["memory:/there"]
    assert held.open("memory:/there").read() == b"stored"
    with pytest.raises(MissingFileError):
        held.open("memory:/missing")


def test_each_opening_begins_at_the_start(storage):
    held = Overlay(storage)
    held.files["memory:/a"] = b"abc"
    first = held.open("memory:/a")
    assert (first.read(2), held.open("memory:/a").read(), first.read()) == (b"ab", b"abc", b"c")


@pytest.mark.parametrize("closes", [True, False])
def test_what_is_written_is_held_and_not_stored(storage, closes):
    held = Overlay(storage)
    with held.write("memory:/new") as stream:
        stream.write(b"one ")
        assert "memory:/new" not in held.files
        stream.write(b"two")
        if closes:
            stream.close()
    assert held.open("memory:/new").read() == b"one two"
    assert stored(storage) == {"memory:///there": b"stored"}


def test_what_failed_while_it_was_written_is_not_held(storage):
    held = Overlay(storage)

    def fails():
        with held.write("memory:/new") as stream:
            stream.write(b"half")
            raise io.UnsupportedOperation("no more")

    with pytest.raises(io.UnsupportedOperation):
        fails()
    assert held.files == {}


def test_what_is_asked_about_files_is_asked_of_the_storage(storage):
    held = Overlay(storage)
    held.create("memory:/a", b"abc")
    assert [file.location for file in held.list("memory:/")] == [file.location for file in storage.list("memory:/")]
    assert held.head("memory:/there") == storage.head("memory:/there")
    assert held.read("memory:/there") == b"stored"


def test_nothing_in_the_store_is_changed():
    real = MemoryStorage()
    real.create("memory://b/real", b"1")
    storage = Overlay(real)
    with storage.write("memory://b/new") as stream:
        stream.write(b"22")
    storage.create("memory://b/newer", b"3")
    assert pickle.loads(pickle.dumps(storage)).read("memory://b/newer") == b"3"
    with pytest.raises(FileExistsError):
        storage.create("memory://b/newer", b"4")
    assert [storage.read(f"memory://b/{name}") for name in ("real", "new", "newer")] == [b"1", b"22", b"3"]
    assert storage.open("memory://b/new").read() == b"22"
    assert storage.open("memory://b/real").read() == b"1"
    assert storage.head("memory://b/new") is None
    assert {info.location for info in storage.list("memory://b")} == {"memory://b/real"}
    outcomes = storage.delete_many(["memory://b/real", "memory://b/new"])
    assert [outcome.status for outcome in outcomes] == [DeleteStatus.FAILED, DeleteStatus.DELETED]
    with pytest.raises(MissingFileError):
        storage.read("memory://b/new")
    for change in (
        lambda: storage.move("memory://b/real", "memory://b/moved"),
        lambda: storage.move_many([("memory://b/real", "memory://b/moved")]),
        lambda: storage.make_directory("memory://b/new"),
        lambda: storage.remove_directory("memory://b"),
    ):
        with pytest.raises(IcekeepBug, match="changes nothing in the store"):
            change()
    assert not storage.capabilities("memory://b/real").exclusive_create
    assert real.read("memory://b/real") == b"1"
    assert len(real.files) == 1
