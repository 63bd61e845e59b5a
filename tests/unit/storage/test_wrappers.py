"""What storages around another one keep to themselves, and how they are stopped."""

import io
import pickle

import pytest

from contracts.directories_contract import DirectoriesContract
from contracts.storage_contract import StorageContract
from icekeep.errors import IcekeepBug, MissingFileError, UnavailableError
from icekeep.storage.base import DeleteStatus
from icekeep.storage.wrappers import CountedStorage, Meter, Overlay, StoppingStorage, stopping
from kit.storage import MemoryStorage


class TestStorageWrapper(StorageContract, DirectoriesContract):
    """What is around a storage keeps the storage's contract, streams that are looked at among it."""

    @pytest.fixture
    def storage(self):
        return StoppingStorage(CountedStorage(MemoryStorage(), Meter()))

    @pytest.fixture
    def root(self):
        return "memory://store/root"


@pytest.fixture
def storage():
    storage = MemoryStorage()
    storage.create("memory:/there", b"stored")
    return storage


def stored(storage):
    return {file.location: storage.read(file.location) for file in storage.list("memory:/")}


def test_held_files_are_read_from_memory_and_others_from_store(storage):
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


FILE = "memory://lake/a"


def test_what_is_sent_to_executors_is_the_storage_itself():
    storage = MemoryStorage()
    same, stop = stopping(storage, in_threads=False)
    stop()
    assert same is storage
    same.create(FILE, b"x")


def test_until_it_is_stopped_it_is_as_the_storage():
    storage, _ = stopping(MemoryStorage(), in_threads=True)
    with storage.write(FILE) as stream:
        stream.write(b"abc")
    storage.create(f"{FILE}/b", b"b")
    assert (storage.read(FILE), storage.open(FILE).read()) == (b"abc", b"abc")
    assert [file.location for file in storage.list(FILE)] == [f"{FILE}/b"]


def test_stopped_storage_only_deletes():
    inner = MemoryStorage()
    storage, stop = stopping(inner, in_threads=True)
    storage.create(FILE, b"x")
    with pytest.raises(UnavailableError, match="the run was stopped"):
        _stop_while_writing(storage, stop)
    for call in (storage.read, storage.open, lambda name: storage.create(f"{name}-new", b""), storage.write):
        with pytest.raises(UnavailableError, match="the run was stopped"), call(FILE):
            pass
    assert [file.location for file in inner.list("memory://lake")] == [FILE]
    assert [outcome.status for outcome in storage.delete_many([FILE])] == [DeleteStatus.DELETED]


def _stop_while_writing(storage, stop):
    with storage.write(f"{FILE}-half") as stream:
        stream.write(b"half")
        stop()


def test_open_streams_transfer_no_bytes_after_stop():
    """A file may be large: whoever waits for its end waits for minutes."""
    inner = MemoryStorage()
    storage, stop = stopping(inner, in_threads=True)
    storage.create(FILE, b"abcdef")
    with storage.open(FILE) as stream, storage.open(FILE) as other:
        assert (stream.read(2), stream.tell(), stream.seek(4), stream.read()) == (b"ab", 2, 4, b"ef")
        buffer = bytearray(3)
        assert (other.readinto(buffer), bytes(buffer)) == (3, b"abc")
        stop()
        for read in (stream.read, lambda: other.readinto(buffer)):
            with pytest.raises(UnavailableError, match="the run was stopped"):
                read()
        assert not stream.closed
    assert stream.closed


def test_file_written_when_stopped_is_removed():
    inner = MemoryStorage()
    storage, stop = stopping(inner, in_threads=True)
    with pytest.raises(UnavailableError, match="the run was stopped"):
        _write_more_when_stopped(storage, stop)
    assert not [*inner.list("memory://lake")]


def _write_more_when_stopped(storage, stop):
    with storage.write(FILE) as stream:
        stream.write(b"half")
        stop()
        stream.write(b"more")
        pytest.fail("more was written")
