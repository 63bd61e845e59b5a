"""Files of this machine that are named through symbolic links, under the names that a listing of a directory gives them."""

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa

from icekeep.storage.local.links import local_place
from icekeep.storage.location_keys import Locations
from icekeep.storage.locations import canonical, local_path


class LinkedFiles:
    """Finds the other names of files below some directories; what it has found of a directory it keeps.

    A listing follows no link. So a file has one name there, whatever links lead to it: those of a warehouse that was moved,
    links to directories, and links to the file itself. Where the directories are not on this machine nothing is looked at.
    """

    def __init__(self, roots: Iterable[str]) -> None:
        """`roots` are locations of directories, perhaps links themselves, to one directory or into each other."""
        local = [root for root in roots if local_place(root) is not None]
        self._roots = sorted({(os.path.realpath(local_path(root)), root.rstrip("/")) for root in local})
        self._real: dict[str, str] = {}

    def respelled(self, locations: Locations) -> pa.Array:
        """The names below each of the directories of those of some files that are named in another way; of others none."""
        found = self._respelled(locations.to_pylist()) if self._roots else ()
        return pa.array(found, pa.string())

    def _respelled(self, locations: Iterable[str]) -> Iterator[str]:
        for location in locations:
            if local_place(location) is None:
                continue
            real = self._real_path(local_path(location))
            for directory, root in self._roots:
                if real.startswith(directory.rstrip("/") + "/"):
                    name = f"{root}/{real.removeprefix(directory).lstrip('/')}"
                    if canonical(name) != canonical(location):
                        yield name

    def _real_path(self, path: str) -> str:
        directory, _, name = path.rpartition("/")
        real = self._real.get(directory)
        if real is None:
            real = self._real[directory] = os.path.realpath(directory or "/")
        found = os.path.join(real, name)
        return os.path.realpath(found) if name in ("", ".", "..") or os.path.islink(found) else found
