import pytest

from icekeep.errors import UnavailableError
from icekeep.storage.base import DeleteStatus
from icekeep.storage.stopping import stopping
from kit.storage import MemoryStorage

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


def test_once_it_is_stopped_nothing_is_read_or_written_and_what_is_there_can_be_removed():
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
