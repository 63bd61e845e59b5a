"""Directories on this machine, empty ones included."""

import os
from collections.abc import Sequence

from icekeep.storage.local.errors import translated
from icekeep.storage.local.listing import names_in
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
        return sorted(name for name in names_in(location, only_directories=True) if not name.startswith("."))

    def child_names(self, location: str) -> Sequence[str]:
        return sorted(names_in(location))
