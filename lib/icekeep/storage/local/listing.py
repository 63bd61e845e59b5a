"""What lies below directories of this machine: files streamed, links neither listed nor followed.

A name that is no text in UTF-8 is passed over: no location can name it, in metadata or elsewhere.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from icekeep.storage.base import FileInfo
from icekeep.storage.local.errors import ABSENT, translated
from icekeep.storage.local.links import opened
from icekeep.storage.locations import local_path

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
    """A file as its status tells it."""
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
