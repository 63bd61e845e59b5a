"""Directories on this machine, empty ones included."""

import os
from collections.abc import Sequence

from icekeep.storage.local.errors import translated
from icekeep.storage.locations import local_path


class LocalDirectories:
    """The part of the local storage that a catalog in a directory needs beside files."""

    def directory_exists(self, location: str) -> bool:
        return os.path.isdir(local_path(location))

    def make_directory(self, location: str) -> None:
        with translated("make directory", location):
            os.makedirs(local_path(location), exist_ok=True)

    def remove_directory(self, location: str) -> None:
        with translated("remove directory", location):
            os.rmdir(local_path(location))

    def child_directories(self, location: str) -> Sequence[str]:
        return sorted(
            entry.name
            for entry in _entries(location)
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        )

    def child_names(self, location: str) -> Sequence[str]:
        return sorted(entry.name for entry in _entries(location))


def _entries(location: str) -> list[os.DirEntry[str]]:
    with translated("list", location):
        try:
            with os.scandir(local_path(location)) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
