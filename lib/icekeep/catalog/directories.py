"""Directories as namespaces, on this machine.

The storage protocol knows files only, since object stores have no directories; a filesystem catalog needs empty ones
too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from icekeep.storage.local import translate_os_error
from icekeep.storage.locations import local_path


def directory_exists(location: str) -> bool:
    """Whether there is a directory, or a link to one."""
    return os.path.isdir(local_path(location))


def make_directory(location: str) -> None:
    """Make a directory and those above it; one that exists is fine."""
    with _translated("make directory", location):
        os.makedirs(local_path(location), exist_ok=True)


def remove_directory(location: str) -> None:
    """Remove an empty directory."""
    with _translated("remove directory", location):
        os.rmdir(local_path(location))


def child_directories(location: str) -> list[str]:
    """Names of the directories in a directory, sorted, without hidden ones and links; none if it does not exist."""
    return sorted(
        entry.name
        for entry in _entries(location)
        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
    )


def child_names(location: str) -> list[str]:
    """Names of everything in a directory, sorted; none if it does not exist."""
    return sorted(entry.name for entry in _entries(location))


def _entries(location: str) -> list[os.DirEntry[str]]:
    with _translated("list", location):
        try:
            with os.scandir(local_path(location)) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []


@contextmanager
def _translated(action: str, location: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate_os_error(error, action, location) from error
