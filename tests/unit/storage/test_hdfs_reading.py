"""Reads from HDFS that bring less than the NameNode says that there is."""

import pytest

from icekeep.errors import InvalidTableError, UnavailableError
from icekeep.storage.hdfs.client import hdfs_path
from icekeep.storage.hdfs.storage import HdfsStorage


class Client:
    """Has one file, of which it brings so many bytes at most."""

    def __init__(self, data, brings):
        self.data, self.brings, self.size = data, brings, len(data)

    def at(self, location):
        return self, hdfs_path(location)

    def read(self, path=None):
        return self.data[: self.brings] if path is None else self

    def read_range(self, start, length):
        return self.data[start : start + length][: self.brings]


def stored(data, brings):
    storage = HdfsStorage({})
    storage._clients = Client(data, brings)
    return storage


@pytest.mark.parametrize("length", [None, 4, 5])
def test_what_comes_of_a_file_must_be_all_of_it(length):
    with pytest.raises(UnavailableError, match="4 bytes came, and the store says that it has 5"):
        stored(b"12345", 4).read("hdfs://n/file", length)


def test_file_length_must_match_metadata():
    assert stored(b"12345", 5).read("hdfs://n/file", 5) == b"12345"
    with pytest.raises(InvalidTableError, match="is 5 bytes long where metadata says 4"):
        stored(b"12345", 5).read("hdfs://n/file", 4)


@pytest.mark.parametrize("brings", [0, 4])
def test_a_stream_does_not_end_where_a_range_was_cut_off(brings):
    with (
        stored(b"12345", brings).open("hdfs://n/file") as stream,
        pytest.raises(UnavailableError, match=f"{brings} of 5 bytes came"),
    ):
        stream.read()
