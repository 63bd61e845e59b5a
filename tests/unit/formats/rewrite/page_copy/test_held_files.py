import io

import pytest

from icekeep.errors import MissingFileError
from icekeep.formats.rewrite.page_copy.held_files import HeldFiles
from icekeep.storage.base import DeleteStatus
from kit.storage import MemoryStorage


@pytest.fixture
def storage():
    storage = MemoryStorage()
    storage.create("memory:/there", b"stored")
    return storage


def stored(storage):
    return {file.location: storage.read(file.location) for file in storage.list("memory:/")}


def test_files_that_are_held_are_read_from_memory_and_all_others_as_they_are(storage):
    held = HeldFiles(storage)
    held.files["memory:/there"] = b"held"
    held.files["memory:/nowhere"] = b"only held"
    assert [held.open(f"memory:/{name}").read() for name in ("there", "nowhere")] == [b"held", b"only held"]
    del held.files["memory:/there"]
    assert held.open("memory:/there").read() == b"stored"
    with pytest.raises(MissingFileError):
        held.open("memory:/missing")


def test_each_opening_begins_at_the_start(storage):
    held = HeldFiles(storage)
    held.files["memory:/a"] = b"abc"
    first = held.open("memory:/a")
    assert (first.read(2), held.open("memory:/a").read(), first.read()) == (b"ab", b"abc", b"c")


@pytest.mark.parametrize("closes", [True, False])
def test_what_is_written_is_held_and_not_stored(storage, closes):
    held = HeldFiles(storage)
    with held.write("memory:/new") as stream:
        stream.write(b"one ")
        assert "memory:/new" not in held.files
        stream.write(b"two")
        if closes:
            stream.close()
    assert held.open("memory:/new").read() == b"one two"
    assert stored(storage) == {"memory:///there": b"stored"}


def test_what_failed_while_it_was_written_is_not_held(storage):
    held = HeldFiles(storage)

    def fails():
        with held.write("memory:/new") as stream:
            stream.write(b"half")
            raise io.UnsupportedOperation("no more")

    with pytest.raises(io.UnsupportedOperation):
        fails()
    assert held.files == {}


def test_only_what_is_held_is_moved_and_deleted(storage):
    held = HeldFiles(storage)
    held.create("memory:/a", b"abc")
    held.move("memory:/a", "memory:/b")
    assert held.files == {"memory:/b": b"abc"}
    outcomes = held.delete_many(["memory:/b", "memory:/there"])
    assert [outcome.status for outcome in outcomes] == [DeleteStatus.DELETED, DeleteStatus.MISSING]
    assert stored(storage) == {"memory:///there": b"stored"}


def test_what_is_asked_about_files_is_asked_of_the_storage(storage):
    held = HeldFiles(storage)
    held.create("memory:/a", b"abc")
    assert [file.location for file in held.list("memory:/")] == [file.location for file in storage.list("memory:/")]
    assert held.head("memory:/there") == storage.head("memory:/there")
    assert held.read("memory:/there") == b"stored"
    assert held.capabilities("memory:/") == storage.capabilities("memory:/")
