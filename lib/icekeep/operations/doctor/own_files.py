"""Removing what this run has made: only directories whose names it has drawn itself, and with them what lies in them."""

from collections.abc import Iterable
from contextlib import suppress

from icekeep.errors import IcekeepBug, IcekeepError, UnavailableError
from icekeep.storage.base import DeleteStatus, DirectoryStorage


def remove_own(storage: DirectoryStorage, directory: str, drawn: str) -> None:
    """Remove a directory that this run has made, with all that lies in it; one that is not there is fine.

    Args:
        drawn: the name by chance that stands in the directory's own, by which it can be no other's.

    Raises:
        UnavailableError: something of it is left.
    """
    if drawn not in directory.rstrip("/").rpartition("/")[2]:
        raise IcekeepBug(f"{directory!r} is not named by {drawn!r}, and so may be another's")
    outcomes = storage.delete_many([file.location for file in storage.list(directory)])
    failed = [one for one in outcomes if one.status is DeleteStatus.FAILED]
    if failed:
        raise UnavailableError(f"{failed[0].location!r} is left behind ({failed[0].reason}); remove it by hand")
    _remove_directories(storage, directory)


def absent(storage: DirectoryStorage, *directories: str) -> tuple[str, ...]:
    """Those of some directories that are not there, and so would be made by a file below them."""
    return tuple(each for each in directories if _is_absent(storage, each))


def remove_empty(storage: DirectoryStorage, directories: Iterable[str]) -> None:
    """Remove directories, in this order, that were absent before; what others have put there meanwhile keeps one."""
    for each in directories:
        with suppress(IcekeepError):
            storage.remove_directory(each)


def _is_absent(storage: DirectoryStorage, directory: str) -> bool:
    try:
        return not storage.directory_exists(directory)
    except IcekeepError:
        # What cannot be looked at is left as it is.
        return False


def _remove_directories(storage: DirectoryStorage, directory: str) -> None:
    # No files are left, so that all that has a name is a directory.
    for name in storage.child_names(directory):
        _remove_directories(storage, f"{directory}/{name}")
    if storage.directory_exists(directory):
        storage.remove_directory(directory)
