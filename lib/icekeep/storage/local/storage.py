"""Files and directories on this machine.

A new name appears by `link`, which fails if it exists, or by an exclusive open; never by a rename, which would replace
what another writer put there. What is reported as written is on the disk: the file is flushed, then the directory that
names it; `UnflushedStorage` leaves that out for files that need not outlive a power cut.

A listing streams files and neither lists nor follows links. A name that is no text in UTF-8 is passed over: no location
can name it, in metadata or elsewhere.
"""

import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO, cast

from icekeep.errors import IcekeepBug, IcekeepError, MissingFileError, OutcomeUnknownError
from icekeep.runtime import SYSTEM, Runtime
from icekeep.storage.base import (
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    FileInfo,
    ListingShare,
    MoveOutcome,
    directory_shares,
    whole,
)
from icekeep.storage.local.links import (
    ABSENT,
    DENIED,
    MoveSteps,
    link,
    move_together,
    opened,
    place_of,
    reason,
    translate_os_error,
    translated,
    unlink,
)
from icekeep.storage.locations import canonical, local_path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_DIRECTORY = (*ABSENT, errno.ELOOP)
"""Answers about a directory that vanished, or whose name a file or a link has now."""


def files_below(location: str) -> Iterator[FileInfo]:
    """Files at any depth below a directory, itself perhaps a link; nothing if there is none."""
    with translated("list", location):
        path = local_path(location)
        directories = [(location.rstrip("/"), path)]
        flags = _DIRECTORY
        while directories:
            location, path = directories.pop()
            with _scanned(path, flags) as entries:
                for entry in _named(entries):
                    if entry.is_dir(follow_symlinks=False):
                        directories.append((f"{location}/{entry.name}", f"{path}/{entry.name}"))
                    elif info := _listed(entry, location):
                        yield info
            flags = _DIRECTORY | os.O_NOFOLLOW


def files_in(location: str) -> Iterator[FileInfo]:
    """Files right in a directory; nothing if there is none."""
    base = location.rstrip("/")
    with translated("list", location), _scanned(local_path(location), _DIRECTORY) as entries:
        for entry in _named(entries):
            if info := _listed(entry, base):
                yield info


def names_in(location: str, *, only_directories: bool = False) -> Sequence[str]:
    """Names of what is right in a directory, or of the directories, links to some not among them; none if it is not there."""
    with translated("list", location), _scanned(local_path(location), _DIRECTORY) as entries:
        return [entry.name for entry in _named(entries) if not only_directories or entry.is_dir(follow_symlinks=False)]


def subdirectories(location: str) -> Sequence[str]:
    """Locations of the directories right in a directory; none if it is not there."""
    return [f"{location.rstrip('/')}/{name}" for name in names_in(location, only_directories=True)]


def file_info(location: str, status: os.stat_result) -> FileInfo:
    return FileInfo(location, status.st_size, status.st_mtime_ns // 1_000_000)


@contextmanager
def _scanned(path: str, flags: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """What is in a directory, looked at through its descriptor: whatever takes its name meanwhile is not entered."""
    with ExitStack() as stack:
        try:
            # A link that must not be followed is an error, and no directory that vanished.
            descriptor = stack.enter_context(opened(f"{path}/"))
        except (FileNotFoundError, NotADirectoryError):
            yield iter(())
            return
        if descriptor is None:
            try:
                descriptor = os.open(path, flags)
            except OSError as error:
                if error.errno not in _NO_DIRECTORY:
                    raise
                yield iter(())
                return
            stack.callback(os.close, descriptor)
        yield stack.enter_context(os.scandir(descriptor))


def _named(entries: Iterable[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    """Entries whose names are text."""
    for entry in entries:
        if entry.name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in entry.name):
            yield entry


def _listed(entry: os.DirEntry[str], directory_location: str) -> FileInfo | None:
    """The entry as a file, `None` if it is a link or a device, or was deleted while the directory was being listed."""
    try:
        if entry.is_file(follow_symlinks=False):
            return file_info(f"{directory_location}/{entry.name}", entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        pass
    return None


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LINK_REFUSED = (*ABSENT, *DENIED, errno.EMLINK, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.EOPNOTSUPP)
"""Answers of a file system that made no name; a broken disk or a lost server may give others after it made one."""


class LocalStorage:
    """Storage on the file systems of this machine, for locations without a scheme or with `file:`."""

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._runtime = runtime

    def open(self, location: str) -> BinaryIO:
        with translated("open", location):
            return open(local_path(location), "rb")

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        with translated("read", location), open(local_path(location), "rb") as stream:
            stored_bytes = os.fstat(stream.fileno()).st_size
            data = stream.read()
        return whole(data, location, stored_bytes, length_bytes)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        path = local_path(location)
        with translated("write", location):
            self._make_directory(os.path.dirname(path))
            file_descriptor = os.open(path, _NEW, 0o666)
        try:
            # The descriptor outlives the stream, since some writers close the stream that they are given.
            stream = io.BufferedWriter(_NewFile(file_descriptor, location))
            try:
                yield cast(BinaryIO, stream)
            except BaseException:
                with suppress(IcekeepError):
                    stream.close()
                raise
            stream.close()
            with translated("write", location):
                self._flush(file_descriptor)
                self._flush_directory(os.path.dirname(path))
        except BaseException:
            _remove_if_possible(path)
            raise
        finally:
            os.close(file_descriptor)

    def create(self, location: str, data: bytes) -> None:
        path = local_path(location)
        directory = os.path.dirname(path)
        # Not hidden, so that what a crash leaves behind is an orphan to every engine's orphan removal.
        temporary = os.path.join(directory, f"{self._runtime.new_uuid()}.tmp")
        with translated("create", location):
            self._make_directory(directory)
            self._write_durably(temporary, data)
        try:
            self._publish(temporary, path, location)
        finally:
            _remove_if_possible(temporary)

    def move(self, source: str, target: str) -> None:
        source_path, target_path = local_path(source), local_path(target)
        if canonical(source) == canonical(target):
            raise FileExistsError(errno.EEXIST, "cannot move a file to itself", target)
        with translated("move", source):
            self._make_directory(os.path.dirname(target_path))
            self._link(source_path, target_path)
            self._flush_directory(os.path.dirname(target_path))
            unlink(source_path)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        """As `Storage.move_many`: all new names are made, then each directory of targets is flushed once, then the old go.

        A directory of sources is not flushed, as in `move`: a name that a crash brings back is a second one of the same
        file, which the same move removes.
        """
        return move_together(moves, MoveSteps(self._make_directory, self._link, self._flush_directory))

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return [_delete(location) for location in locations]

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return directory_shares(prefix_location, count, subdirectories)

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        return files_below(share.prefix) if share.is_deep else files_in(share.prefix)

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        return files_below(prefix_location)

    def head(self, location: str) -> FileInfo | None:
        path = local_path(location)
        try:
            with translated("look at", location):
                status = os.stat(path)
        except MissingFileError:
            return None
        return file_info(location, status) if stat.S_ISREG(status.st_mode) else None

    def directory_exists(self, location: str) -> bool:
        return os.path.isdir(local_path(location))

    def make_directory(self, location: str) -> None:
        with translated("make directory", location):
            os.makedirs(local_path(location), exist_ok=True)

    def remove_directory(self, location: str) -> None:
        with translated("remove directory", location):
            os.rmdir(local_path(location))

    def child_directories(self, location: str) -> Sequence[str]:
        return sorted(name for name in names_in(location, only_directories=True) if not name.startswith("."))

    def child_names(self, location: str) -> Sequence[str]:
        return sorted(names_in(location))

    def capabilities(self, location: str) -> Capabilities:
        directory = local_path(location)
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        proved = self._second_link_fails(directory)
        return Capabilities(exclusive_create=proved, move=proved)

    def _publish(self, temporary: str, path: str, location: str) -> None:
        """Give a complete file its name; whatever does not prove that the name is not there leaves the outcome unknown."""
        try:
            self._link(temporary, path)
            self._flush_directory(os.path.dirname(path))
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in _LINK_REFUSED and not os.path.lexists(path):
                raise translate_os_error(error, "create", location) from error
            raise OutcomeUnknownError(
                f"cannot tell whether file {location!r} was created durably: {reason(error)}", location=location
            ) from error

    def _link(self, source_path: str, target_path: str) -> None:
        """Add a name to a file; a name that it has already, from an earlier try or a request that NFS repeated, is fine."""
        try:
            link(source_path, target_path)
        except FileExistsError:
            is_one_file = os.path.samestat(os.lstat(source_path), os.lstat(target_path))
            # A file's only name, spelled in two ways, must not be taken for two names of it: one of them goes next.
            if not is_one_file or _is_one_name(source_path, target_path):
                raise

    def _flush(self, file_descriptor: int) -> None:
        os.fsync(file_descriptor)

    def _flush_directory(self, directory: str) -> None:
        file_descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._flush(file_descriptor)
        finally:
            os.close(file_descriptor)

    def _make_directory(self, directory: str) -> None:
        """Make a directory and those above it; each new name is flushed, since a durable file below one needs it."""
        place = place_of(f"{directory}/")
        if place is not None:
            self._make_plainly(place)
            with opened(f"{directory}/", self._make_in):
                return
        self._make_plainly(directory)

    def _make_plainly(self, directory: str) -> None:
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(path)
            self._flush_directory(os.path.dirname(path))

    def _make_in(self, name: str, directory: int) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=directory)
        self._flush(directory)

    def _write_durably(self, path: str, data: bytes) -> None:
        try:
            file_descriptor = os.open(path, _NEW, 0o666)
        except FileExistsError as error:
            raise IcekeepBug(f"the temporary file {path!r} exists already: a fresh UUID was not fresh") from error
        try:
            with open(file_descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                self._flush(file_descriptor)
        except BaseException:
            _remove_if_possible(path)
            raise

    def _second_link_fails(self, directory: str) -> bool:
        first, second, target = (os.path.join(directory, f"{self._runtime.new_uuid()}.tmp") for _ in range(3))
        try:
            for path in (first, second):
                os.close(os.open(path, _NEW))
            os.link(first, target)
            try:
                os.link(second, target)
            except FileExistsError:
                return os.path.samefile(first, target)
            return False
        except OSError:
            return False
        finally:
            for path in (first, second, target):
                _remove_if_possible(path)


class _NewFile(io.FileIO):
    """The raw end of a stream that is being written: errors of the disk reach the caller's block translated."""

    def __init__(self, file_descriptor: int, location: str) -> None:
        super().__init__(file_descriptor, "wb", closefd=False)
        self._location = location

    def write(self, data: object, /) -> int:
        with translated("write", self._location):
            return super().write(data)  # type: ignore[arg-type]


def _remove_if_possible(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _is_one_name(path: str, other_path: str) -> bool:
    """Whether two paths, through linked directories perhaps, lead to one entry of one directory."""
    return os.path.basename(path) == os.path.basename(other_path) and os.path.samefile(
        os.path.dirname(path), os.path.dirname(other_path)
    )


def _delete(location: str) -> DeleteOutcome:
    try:
        unlink(local_path(location))
    except OSError as error:
        if error.errno in ABSENT:
            return DeleteOutcome(location, DeleteStatus.MISSING)
        return DeleteOutcome(location, DeleteStatus.FAILED, translate_os_error(error, "delete", location).message)
    except IcekeepError as error:
        return DeleteOutcome(location, DeleteStatus.FAILED, error.message)
    return DeleteOutcome(location, DeleteStatus.DELETED)


class UnflushedStorage(LocalStorage):
    """For tables that are made to be looked at: the system flushes their thousands of small files when it likes."""

    def _flush(self, file_descriptor: int) -> None:
        pass

    def _flush_directory(self, directory: str) -> None:
        pass
