"""Directories in a store that has none: a prefix below which something lies.

An empty one is kept by an object called `.icekeep-directory`, which no listing of ours shows. Hadoop and the stores' own
consoles make an object whose name ends with a slash; those are seen, and cannot be made or removed here.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import obstore

from icekeep.errors import MissingFileError, UnavailableError, UnsupportedError
from icekeep.storage.base import FileInfo
from icekeep.storage.objects.errors import translated
from icekeep.storage.objects.roots import has_empty_parts
from icekeep.storage.objects.stores import Stores

MARKER = ".icekeep-directory"


class ObjectDirectories(ABC):
    """The part of the storage on object stores that a catalog in a directory needs beside files."""

    @abstractmethod
    def create(self, location: str, data: bytes) -> None:
        """As `Storage.create`."""

    @abstractmethod
    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        """As `Storage.list`."""

    @abstractmethod
    def _directory(self, location: str) -> tuple[Stores, str]:
        """A bucket's clients, and a prefix without a slash at its end: nothing for the bucket itself."""

    def directory_exists(self, location: str) -> bool:
        stores, prefix = self._directory(location)
        with translated("look at", location):
            below = stores.ask(
                lambda: next((some for some in obstore.list(stores.patient, prefix or None) if some), None)
            )
        return below is not None or not prefix

    def make_directory(self, location: str) -> None:
        _, prefix = self._directory(location)
        root = location.rstrip("/").removesuffix(prefix).rstrip("/")
        parts = prefix.split("/") if prefix else []
        for length in range(1, len(parts) + 1):
            directory = "/".join((root, *parts[:length]))
            # The last one is marked in any case, so that it stays when what lies in it now is removed.
            if length == len(parts) or not self.directory_exists(directory):
                try:
                    self.create(f"{directory}/{MARKER}", b"")
                except FileExistsError:
                    continue

    def remove_directory(self, location: str) -> None:
        stores, prefix = self._directory(location)
        if self.child_names(location):
            raise UnavailableError(f"cannot remove directory {location!r}: directory not empty", location=location)
        if not self.directory_exists(location):
            raise MissingFileError(f"cannot remove directory {location!r}: there is none", location=location)
        with translated("remove directory", location):
            stores.ask(lambda: obstore.delete(stores.once, [f"{prefix}/{MARKER}" if prefix else MARKER]))
        if prefix and self.directory_exists(location):
            raise UnsupportedError(
                f"cannot remove directory {location!r}: another program keeps it by the object {prefix + '/'!r}; remove "
                "that with the store's own tools",
                location=location,
            )

    def child_directories(self, location: str) -> Sequence[str]:
        directories, _ = self._children(location)
        return sorted(name for name in directories if not name.startswith("."))

    def child_names(self, location: str) -> Sequence[str]:
        _, prefix = self._directory(location)
        if has_empty_parts(prefix):
            # The client cannot ask for one level of such names.
            start = len(location.rstrip("/")) + 1
            return sorted({info.location[start:].partition("/")[0] for info in self.list(location)})
        directories, files = self._children(location)
        return sorted(directories | files)

    def _children(self, location: str) -> tuple[set[str], set[str]]:
        stores, prefix = self._directory(location)
        with translated("list", location):
            found: Any = stores.ask(lambda: obstore.list_with_delimiter(stores.patient, prefix or None))
        start = f"{prefix}/" if prefix else ""
        directories = {str(path) for path in found["common_prefixes"]}
        # An object called like the directory itself is a marker that ends with a slash, which the client takes away.
        files = {str(meta["path"]) for meta in found["objects"] if str(meta["path"]) != prefix}
        return {p.removeprefix(start) for p in directories}, {p.removeprefix(start) for p in files} - {MARKER}
