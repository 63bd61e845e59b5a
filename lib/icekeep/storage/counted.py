"""A storage that counts what is asked of it."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from icekeep.storage.base import DeleteOutcome, FileInfo, ListingShare, MoveOutcome, Storage

NAMES_A_REQUEST = 1000
"""So many files an object store deletes by one request."""


class Meter:
    """How many requests were made, by several threads perhaps.

    Attributes:
        requests_count: a file that is opened or written is one, however many ranges or parts it comes in; so is a listing.
    """

    def __init__(self) -> None:
        self.requests_count = 0
        self._lock = threading.Lock()

    def count(self, requests_count: int = 1) -> None:
        """Note some more."""
        with self._lock:
            self.requests_count += requests_count


class CountedStorage:
    """All of a storage, whose requests a meter counts; in Spark tasks it is the storage itself, and counts nothing."""

    def __init__(self, storage: Storage, meter: Meter) -> None:
        self._storage, self._meter = storage, meter

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self._storage,)

    def open(self, location: str) -> BinaryIO:
        self._meter.count()
        return self._storage.open(location)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        self._meter.count()
        return self._storage.read(location, length_bytes)

    def write(self, location: str) -> AbstractContextManager[BinaryIO]:
        self._meter.count()
        return self._storage.write(location)

    def create(self, location: str, data: bytes) -> None:
        self._meter.count()
        self._storage.create(location, data)

    def move(self, source: str, target: str) -> None:
        self._meter.count()
        self._storage.move(source, target)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        given = [*moves]
        self._meter.count(len(given))
        return self._storage.move_many(given)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        given = [*locations]
        self._meter.count(-(-len(given) // NAMES_A_REQUEST))
        return self._storage.delete_many(given)

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        self._meter.count()
        return self._storage.list_share(share)

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        self._meter.count()
        return self._storage.list(prefix_location)

    def child_names(self, location: str) -> Sequence[str]:
        self._meter.count()
        return self._storage.child_names(location)

    def head(self, location: str) -> FileInfo | None:
        self._meter.count()
        return self._storage.head(location)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def itself(storage: Storage) -> Storage:
    """What a storage around another one is pickled as, where Spark tasks get that one alone."""
    return storage
