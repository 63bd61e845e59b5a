import errno
import io
import os

import pytest

from icekeep.errors import InvalidTableError, UnavailableError
from icekeep.storage.local import links as copying
from icekeep.storage.local.links import copy_range
from icekeep.storage.local.storage import LocalStorage
from kit.storage import MemoryStorage

DATA = bytes(range(256)) * 40


def copied(from_storage, from_location, to_storage, to_location, start, length):
    """A file with `head`, the copied range and `tail`."""
    with from_storage.open(from_location) as source, to_storage.write(to_location) as target:
        target.write(b"head")
        copy_range(source, from_location, target, to_location, start, length)
        assert target.tell() == 4 + length
        target.write(b"tail")
    return to_storage.read(to_location)


@pytest.fixture
def local(tmp_path):
    (tmp_path / "source").write_bytes(DATA)
    return LocalStorage(), str(tmp_path / "source"), str(tmp_path / "target")


@pytest.mark.parametrize(("start", "length"), [(0, len(DATA)), (100, 5000), (0, 0), (len(DATA), 0), (len(DATA) - 1, 1)])
def test_a_range_is_appended_between_what_is_written_before_and_after(local, start, length):
    storage, source, target = local
    assert copied(storage, source, storage, target, start, length) == b"head" + DATA[start : start + length] + b"tail"


@pytest.mark.parametrize("answer", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_what_the_system_does_not_copy_goes_through_this_process(local, answer, monkeypatch):
    storage, source, target = local

    def refuse(*_):
        raise OSError(answer, "refused")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    monkeypatch.setattr(copying, "PIECE_BYTES", 1000)
    assert copied(storage, source, storage, target, 7, 9001) == b"head" + DATA[7:9008] + b"tail"


def test_a_system_that_copies_a_part_is_helped_out(local, monkeypatch):
    storage, source, target = local
    real, calls = os.copy_file_range, []

    def once(from_descriptor, to_descriptor, count, offset):
        calls.append(count)
        if len(calls) > 2:
            return 0
        return real(from_descriptor, to_descriptor, min(count, 1000), offset)

    monkeypatch.setattr(os, "copy_file_range", once)
    assert copied(storage, source, storage, target, 10, 9000) == b"head" + DATA[10:9010] + b"tail"
    assert calls == [9000, 8000, 7000]


def test_stores_that_are_not_of_this_machine_are_copied_from_and_to(local):
    storage, source, target = local
    memory = MemoryStorage()
    assert copied(storage, source, memory, "memory:/t", 5, 6000) == b"head" + DATA[5:6005] + b"tail"
    memory.create("memory:/s", DATA)
    assert copied(memory, "memory:/s", storage, target, 5, 6000) == b"head" + DATA[5:6005] + b"tail"


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_source_that_ends_too_early_is_an_error_and_leaves_nothing(local, in_memory):
    storage, source, target = local
    if in_memory:
        storage, source, target = MemoryStorage(), "memory:/s", "memory:/t"
        storage.create(source, DATA)
    with pytest.raises(InvalidTableError, match=f"ends at byte {len(DATA)}, before byte {len(DATA) + 1}"):
        copied(storage, source, storage, target, 10, len(DATA) - 9)
    assert storage.head(target) is None


def test_a_full_disk_is_told_and_leaves_nothing(local, monkeypatch):
    storage, source, target = local

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    with pytest.raises(UnavailableError, match="no space left") as error:
        copied(storage, source, storage, target, 0, 100)
    assert target in error.value.message
    assert storage.head(target) is None


def test_a_stream_without_a_number_is_no_file_of_this_machine():
    target = io.BytesIO()
    copy_range(io.BytesIO(DATA), "memory:/s", target, "memory:/t", 0, 10)
    assert target.getvalue() == DATA[:10]
