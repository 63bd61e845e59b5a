import pytest

from icekeep.errors import UnavailableError
from icekeep.storage.base import DeleteStatus
from icekeep.storage.wrappers import stopping
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


def test_once_it_is_stopped_open_streams_read_and_write_no_more_bytes():
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


def test_a_file_that_is_being_written_when_it_is_stopped_gets_no_more_bytes_and_is_not_there():
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
