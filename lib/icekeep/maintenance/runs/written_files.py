"""The names of files that tasks write, told before each is made, so that what a task leaves that dies is known all the same.

A name is a file below `.icekeep/runs/<run>/written/`, from before its file is made until that is committed or removed. Spark may
do a task twice, and end one in the middle: the driver hears of one attempt, or of none. At the end of a run it removes the
files of attempts that it never heard of. Of those that it heard of it removes none here: they may be in a commit. What is left
by a driver that died names files that no snapshot may have; orphan removal looks at them as at any others.
"""

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, BinaryIO, cast

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from icekeep.events import Listener
from icekeep.maintenance.discarding import discard_files
from icekeep.spec.properties import own_directory
from icekeep.storage.base import DeleteOutcome, DeleteStatus, Storage
from icekeep.storage.many import REQUESTS_AT_ONCE, head_many

_LOG = logging.getLogger(__name__)

WRITTEN = "written"
"""The directory of the names, in that of the run."""


class TellingStorage:
    """All of a storage; before a file of a run is made below the table, its name is put into a directory. For tasks."""

    def __init__(self, storage: Storage, directory: str, own: str) -> None:
        self._storage, self._directory, self._own = storage, directory, own

    def __reduce__(self) -> tuple[type["TellingStorage"], tuple[Storage, str, str]]:
        return TellingStorage, (self._storage, self._directory, self._own)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        # What lies below the table's own directory goes with its run.
        is_told = not location.startswith(self._own)
        if is_told:
            self._storage.create(name_of(location, self._directory), location.encode())
        try:
            with self._storage.write(location) as stream:
                yield stream
        except Exception:
            if is_told:
                self._forget([location])
            raise

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        outcomes = self._storage.delete_many(locations)
        gone = (DeleteStatus.DELETED, DeleteStatus.MISSING)
        self._forget([one.location for one in outcomes if one.status in gone])
        return outcomes

    def _forget(self, locations: Iterable[str]) -> None:
        with suppress(Exception):
            self._storage.delete_many([name_of(location, self._directory) for location in locations])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class WrittenFiles:
    """The new files of a run, as the driver hears of them."""

    def __init__(self, table: Table, run_id: str, listener: Listener) -> None:
        self._storage, self._listener, self._run_id = table.storage, listener, run_id
        self._own = own_directory(table.metadata, "")
        self._directory = own_directory(table.metadata, f"runs/{run_id}/{WRITTEN}")
        self._heard: set[bytes] = set()
        self._are_told = False

    def telling(self, storage: Storage) -> Storage:
        """The storage for tasks of Spark, whose files are told here; of threads of this process all is known."""
        self._are_told = True
        told: Any = TellingStorage(storage, self._directory, self._own)
        return cast(Storage, told)

    def hear(self, locations: Iterable[str]) -> None:
        """Take files for those of attempts that have told the driver what they did; called before any of them is committed."""
        self._heard.update(_digest(name_of(location, self._directory)) for location in locations)

    def discard(self, locations: Iterable[str]) -> None:
        """Remove files that no snapshot names."""
        locations = [*locations]
        discard_files(self._storage, locations, self._listener)
        self.settle(locations)

    def settle(self, locations: Iterable[str]) -> None:
        """Forget files that are committed, or removed, or left for somebody to look at."""
        if self._are_told:
            with suppress(Exception):
                self._storage.delete_many([name_of(location, self._directory) for location in locations])

    def remove_unheard(self) -> None:
        """Remove the files of attempts that the driver never heard of, so that no commit has them; raises nothing.

        The name of a file that is not there stays: a task that is about to be ended may still make it.
        """
        if not self._are_told:
            return
        with suppress(Exception):
            names = [file.location for file in self._storage.list(self._directory)]
            unheard = [name for name in names if _digest(name) not in self._heard]
            if not unheard:
                return
            with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(unheard))) as pool:
                told = [*zip(unheard, pool.map(self._told, unheard), strict=True)]
            named = [(name, location) for name, location in told if location is not None]
            infos = head_many([location for _, location in named], self._storage)
            # Object stores say of a file that is not there that it is deleted.
            there = [one for one, info in zip(named, infos, strict=True) if info is not None]
            outcomes = self._storage.delete_many([location for _, location in there])
            removed = [
                name
                for (name, _), one in zip(there, outcomes, strict=True)
                if one.status in (DeleteStatus.DELETED, DeleteStatus.MISSING)
            ]
            _LOG.info("%d of %d files of attempts that came to nothing are removed", len(removed), len(unheard))
            self._storage.delete_many(removed)

    def _told(self, name: str) -> str | None:
        """The file of a name; `None` where that is none of this run's: whoever may write below the table may write names too."""
        try:
            location = self._storage.read(name).decode()
        except (IcekeepError, UnicodeDecodeError):
            return None
        is_of_run = self._run_id in location.rpartition("/")[2]
        return location if is_of_run and name_of(location, self._directory) == name else None


@contextmanager
def written_files(table: Table, run_id: str, listener: Listener) -> Iterator[WrittenFiles]:
    """Hear of the files of a run while the block lasts."""
    written = WrittenFiles(table, run_id, listener)
    try:
        yield written
    finally:
        written.remove_unheard()


def name_of(location: str, directory: str) -> str:
    """Where the name of a file lies; the file's own name has the number of the attempt in it."""
    return f"{directory}/{location.rpartition('/')[2]}"


def _digest(name: str) -> bytes:
    return blake2b(name.rpartition("/")[2].encode(), digest_size=16).digest()
