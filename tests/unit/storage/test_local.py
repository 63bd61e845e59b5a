import errno
import io
import os
import pickle
import resource
import uuid
from contextlib import contextmanager

import pytest

from contracts.directories_contract import DirectoriesContract
from contracts.storage_contract import StorageContract
from icekeep.errors import (
    IcekeepBug,
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.runtime import SystemRuntime
from icekeep.storage.base import DeleteStatus, ListingShare
from icekeep.storage.local import storage as local
from icekeep.storage.local.storage import LocalStorage, translate_os_error
from kit.cases import for_each


class StuckRuntime(SystemRuntime):
    """Hands out one UUID again and again."""

    def new_uuid(self):
        return uuid.UUID(int=1)


class TestLocalStorage(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self):
        return LocalStorage()

    @pytest.fixture
    def root(self, tmp_path):
        return f"file://{tmp_path}"


class TestLocalStorageByPlainPaths(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self):
        return LocalStorage()

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)


@pytest.fixture
def storage():
    return LocalStorage()


def test_all_spellings_of_a_local_file_reach_it(storage, tmp_path):
    storage.create(f"{tmp_path}/file", b"data")
    for prefix in ("file:", "file://", "file://localhost", ""):
        assert storage.read(f"{prefix}{tmp_path}/file") == b"data"


def test_a_file_on_another_host_is_refused(storage):
    with pytest.raises(UnsupportedError, match="not a local file"):
        storage.read("file://host/share/file")


def test_create_leaves_no_temporary_file_on_win_or_loss(storage, tmp_path):
    storage.create(f"{tmp_path}/file", b"1")
    with pytest.raises(FileExistsError):
        storage.create(f"{tmp_path}/file", b"2")
    assert os.listdir(tmp_path) == ["file"]


def test_taken_temporary_name_is_bug_not_lost_race(tmp_path):
    (tmp_path / f"{uuid.UUID(int=1)}.tmp").write_bytes(b"other")
    with pytest.raises(IcekeepBug):
        LocalStorage(StuckRuntime()).create(f"{tmp_path}/file", b"1")
    assert os.listdir(tmp_path) == [f"{uuid.UUID(int=1)}.tmp"]


def test_a_move_that_stopped_half_way_can_be_repeated(storage, tmp_path):
    (tmp_path / "source").write_bytes(b"data")
    os.link(tmp_path / "source", tmp_path / "target")
    storage.move(f"{tmp_path}/source", f"{tmp_path}/target")
    assert os.listdir(tmp_path) == ["target"]


def test_listing_neither_follows_nor_lists_links(storage, tmp_path):
    outside, table = tmp_path / "outside", tmp_path / "table"
    outside.mkdir()
    (outside / "secret").write_bytes(b"")
    table.mkdir()
    (table / "file").write_bytes(b"")
    (table / "link-to-directory").symlink_to(outside)
    (table / "link-to-file").symlink_to(outside / "secret")
    (table / "broken").symlink_to(tmp_path / "none")
    (table / "loop").symlink_to(table)
    os.mkfifo(table / "pipe")
    assert [info.location for info in storage.list(f"file://{table}")] == [f"file://{table}/file"]


def test_listing_streams_and_does_not_wait_for_the_whole_tree(storage, tmp_path):
    for name in ("a", "b"):
        storage.create(f"{tmp_path}/{name}", b"")
    listing = storage.list(str(tmp_path))
    first = next(listing)
    for name in ("a", "b"):
        os.unlink(tmp_path / name)
    assert first.location in (f"{tmp_path}/a", f"{tmp_path}/b")
    # What vanished meanwhile is not an error: another job may clean up beside this one.
    assert list(listing) == []


def test_directory_vanishing_while_listed_is_skipped(storage, tmp_path):
    storage.create(f"{tmp_path}/file", b"")
    (tmp_path / "dir").mkdir()
    listing = storage.list(str(tmp_path))
    next(listing)
    (tmp_path / "dir").rmdir()
    assert list(listing) == []


def test_directory_replaced_by_link_while_listed_is_skipped(storage, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"")
    storage.create(f"{tmp_path}/table/file", b"")
    (tmp_path / "table" / "dir").mkdir()
    listing = storage.list(f"{tmp_path}/table")
    next(listing)
    (tmp_path / "table" / "dir").rmdir()
    (tmp_path / "table" / "dir").symlink_to(tmp_path / "outside")
    assert list(listing) == []


def test_a_table_may_be_reached_through_a_link(storage, tmp_path):
    storage.create(f"{tmp_path}/real/a/file", b"")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    shares = storage.shares(f"{tmp_path}/link", 5)
    for listing in (storage.list(f"{tmp_path}/link"), (info for some in shares for info in storage.list_share(some))):
        assert [info.location for info in listing] == [f"{tmp_path}/link/a/file"]


def test_shares_of_directories(storage, tmp_path):
    for name in ("f", "a/f", "a/x/f", "a/y/f", "a/y/z/f", "b/f", "b/x/f"):
        storage.create(f"{tmp_path}/{name}", b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    seen = {
        count: {
            (share.prefix.removeprefix(str(tmp_path)) + ("/**" if share.is_deep else "/*"))
            for share in storage.shares(str(tmp_path), count)
        }
        for count in (1, 2, 4, 6, 100)
    }
    assert seen[1] == {"/**"}
    assert seen[2] == {"/*", "/a/**", "/b/**"}
    assert seen[4] == {"/*", "/a/*", "/b/**", "/a/x/**", "/a/y/**"}
    assert seen[6] == {"/*", "/a/*", "/b/*", "/a/x/**", "/a/y/**", "/b/x/**"}
    assert seen[100] == {"/*", "/a/*", "/b/*", "/a/x/*", "/a/y/*", "/b/x/*", "/a/y/z/*"}


def test_shares_of_directories_that_vanish_hold_nothing(storage, tmp_path):
    storage.create(f"{tmp_path}/a/f", b"")
    shares = storage.shares(str(tmp_path), 2)
    os.unlink(tmp_path / "a" / "f")
    (tmp_path / "a").rmdir()
    assert [info for share in shares for info in storage.list_share(share)] == []


def test_a_part_that_cannot_be_listed_raises(storage, tmp_path, monkeypatch):
    """A listing that left it out would call itself complete."""
    storage.create(f"{tmp_path}/a/b/f", b"")
    shares = storage.shares(str(tmp_path), 2)
    scandir = os.scandir

    def refuse(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}") == f"{tmp_path}/a":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", refuse)
    for use in (
        lambda: list(storage.list(str(tmp_path))),
        lambda: storage.shares(str(tmp_path), 5),
        lambda: [info for share in shares for info in storage.list_share(share)],
        lambda: list(storage.list_share(ListingShare(f"{tmp_path}/a", is_deep=False))),
    ):
        with pytest.raises(UsageError, match="permission denied"):
            use()


@pytest.mark.parametrize("length", [None, 4, 5])
@pytest.mark.parametrize("kept", [slice(4), slice(0)])
def test_what_comes_of_a_file_must_be_all_of_it(storage, tmp_path, monkeypatch, length, kept):
    """Not even as many bytes as metadata says are a file, if the disk has more of it."""
    storage.create(f"{tmp_path}/file", b"12345")

    class Cut(io.BytesIO):
        def __init__(self, path, _):
            self._file = io.FileIO(path)
            super().__init__(self._file.readall()[kept])

        def fileno(self):
            return self._file.fileno()

    monkeypatch.setattr(local, "open", Cut, raising=False)
    with pytest.raises(UnavailableError, match=r"\d bytes came, and the store says that it has 5"):
        storage.read(f"{tmp_path}/file", length)


def test_names_that_are_no_text_are_passed_over(storage, tmp_path):
    """Such a name stopped the whole job, with a traceback."""
    for name in (b"bad\xff\xfe.parquet", b"dir\xff/x", b"e\xc3\xa9", b"plain"):
        path = os.fsencode(tmp_path) + b"/t/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    directory = f"{tmp_path}/t"
    assert sorted(info.location for info in storage.list(directory)) == [f"{directory}/e\u00e9", f"{directory}/plain"]
    assert storage.child_names(directory) == ["e\u00e9", "plain"]
    assert storage.child_directories(directory) == []


def test_deleting_a_link_leaves_what_it_points_at(storage, tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (outcome,) = storage.delete_many([f"{tmp_path}/link"])
    assert outcome.status is DeleteStatus.DELETED
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_cannot_be_read_as_a_file(storage, tmp_path):
    for use in (storage.read, storage.open):
        with pytest.raises(InvalidTableError, match="is a directory"):
            use(str(tmp_path))


def test_a_name_below_a_file_is_missing(storage, tmp_path):
    storage.create(f"{tmp_path}/file", b"")
    with pytest.raises(MissingFileError):
        storage.read(f"{tmp_path}/file/below")


def test_a_name_that_is_too_long_is_refused_in_one_line(storage, tmp_path):
    location = f"{tmp_path}/{'x' * 300}"
    for use in (lambda: storage.create(location, b""), lambda: storage.write(location).__enter__()):
        with pytest.raises(InvalidTableError, match="file name too long"):
            use()


@contextmanager
def file_size_limit():
    """Make writing fail beyond 10,000 bytes, as on a full disk; the system's answer is EFBIG.

    No longer than the block, since what pytest writes may go to a file as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size_bytes", [10_001, 1_000_000])
def test_full_disk_is_unavailable_and_leaves_nothing(storage, tmp_path, size_bytes):
    def write() -> None:
        with storage.write(f"{tmp_path}/file") as stream:
            stream.write(b"x" * size_bytes)

    for use in (write, lambda: storage.create(f"{tmp_path}/file", b"x" * size_bytes)):
        told = pytest.raises(UnavailableError, match=f"cannot (write|create) '{tmp_path}/file': file too large")
        with told, file_size_limit():
            use()
        assert os.listdir(tmp_path) == []


class RecordingStorage(LocalStorage):
    """Notes what is flushed; `breaks_at` is the number of the flush at which the disk breaks."""

    def __init__(self, breaks_at=None):
        super().__init__()
        self.flushed = []
        self.breaks_at = breaks_at

    def _flush(self, file_descriptor):
        super()._flush(file_descriptor)
        self.flushed.append(os.path.basename(os.readlink(f"/proc/self/fd/{file_descriptor}")))
        if len(self.flushed) == self.breaks_at:
            raise OSError(errno.EIO, "Input/output error")


def test_written_file_and_its_directory_are_flushed_once(tmp_path):
    storage = RecordingStorage()
    with storage.write(f"{tmp_path}/file") as stream:
        stream.write(b"x" * 100_000)
        assert storage.flushed == []
    assert storage.flushed == ["file", tmp_path.name]


def test_created_file_is_flushed_before_its_directory(tmp_path):
    storage = RecordingStorage()
    storage.create(f"{tmp_path}/file", b"x")
    temporary, directory = storage.flushed
    assert temporary.endswith(".tmp")
    assert directory == tmp_path.name


def test_new_directories_are_flushed_into_parents(tmp_path):
    storage = RecordingStorage()
    storage.create(f"{tmp_path}/a/b/file", b"x")
    storage.create(f"{tmp_path}/a/b/other", b"x")
    assert [name for name in storage.flushed if not name.endswith(".tmp")] == [tmp_path.name, "a", "b", "b"]


@pytest.mark.parametrize("breaks_at", [1, 2])
def test_write_that_cannot_be_flushed_leaves_nothing(tmp_path, breaks_at):
    storage = RecordingStorage(breaks_at)
    with pytest.raises(UnavailableError, match="input/output error"), storage.write(f"{tmp_path}/file") as stream:
        stream.write(b"x")
    assert os.listdir(tmp_path) == []


def test_create_failing_flush_before_link_created_nothing(tmp_path):
    with pytest.raises(UnavailableError, match="input/output error"):
        RecordingStorage(breaks_at=1).create(f"{tmp_path}/file", b"x")
    assert os.listdir(tmp_path) == []


def test_create_failing_flush_after_link_is_unknown(tmp_path):
    with pytest.raises(OutcomeUnknownError, match=f"cannot tell whether file '{tmp_path}/file' was created durably"):
        RecordingStorage(breaks_at=2).create(f"{tmp_path}/file", b"x")
    assert os.listdir(tmp_path) == ["file"]


class BrokenLinks(LocalStorage):
    """A file system that answers every request for a name with `number`; `lands` says whether it makes the name."""

    def __init__(self, number, *, lands):
        super().__init__()
        self.number = number
        self.lands = lands

    def _link(self, source_path, target_path):
        if self.lands:
            super()._link(source_path, target_path)
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "lands", "expected"),
    [
        (errno.EOPNOTSUPP, False, UnavailableError),
        (errno.EMLINK, False, UnavailableError),
        (errno.EPERM, False, UsageError),
        (errno.EIO, False, OutcomeUnknownError),
        (errno.EIO, True, OutcomeUnknownError),
        (errno.ETIMEDOUT, True, OutcomeUnknownError),
        (errno.ENOSPC, True, OutcomeUnknownError),
    ],
)
def test_only_conclusive_error_says_nothing_was_created(tmp_path, number, lands, expected):
    with pytest.raises(expected):
        BrokenLinks(number, lands=lands).create(f"{tmp_path}/file", b"x")
    assert os.listdir(tmp_path) == (["file"] if lands else [])


@for_each(
    ("number", "kind"),
    [
        (errno.ENOENT, "missing-file"),
        (errno.ENOTDIR, "missing-file"),
        (errno.EACCES, "usage"),
        (errno.EPERM, "usage"),
        (errno.EROFS, "usage"),
        (errno.EISDIR, "invalid-table"),
        (errno.ELOOP, "invalid-table"),
        (errno.ENOSPC, "unavailable"),
        (errno.EDQUOT, "unavailable"),
        (errno.EIO, "unavailable"),
        (errno.EMFILE, "unavailable"),
        (errno.ESTALE, "unavailable"),
    ],
)
def test_errors_of_the_system_become_errors_by_what_helps(number, kind):
    error = translate_os_error(OSError(number, os.strerror(number)), "read", "/x")
    assert error.kind == kind
    assert str(error).startswith("cannot read '/x': ")
    assert "\n" not in str(error)


def test_it_is_small_when_it_travels():
    assert len(pickle.dumps(LocalStorage())) < 200


def test_links_are_neither_children_nor_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert list(LocalStorage().child_directories(str(tmp_path))) == ["a"]
    assert list(LocalStorage().child_names(str(tmp_path))) == ["a", "link"]


def test_a_directory_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IcekeepError, match="cannot make directory") as raised:
        LocalStorage().make_directory(f"{tmp_path}/file/below")
    assert isinstance(raised.value, InvalidTableError)


@for_each("use", ["directory_exists", "make_directory", "child_names", "child_directories", "remove_directory"])
def test_directories_of_other_stores_are_refused(use):
    with pytest.raises(UnsupportedError, match="s3://b/k"):
        getattr(LocalStorage(), use)("s3://b/k")
