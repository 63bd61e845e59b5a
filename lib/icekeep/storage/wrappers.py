"""Storages around another one: that count what is asked, keep what is written in memory, or can be stopped.

Work in threads cannot be cancelled: a storage that is stopped ends it at the next bytes that it reads or writes.
"""

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, Self, cast

from icekeep.errors import IcekeepBug, UnavailableError
from icekeep.storage.base import (
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    FileInfo,
    ListingShare,
    MoveOutcome,
    MoveStatus,
    Storage,
)

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


class Overlay(Storage):
    """Reads its own files from memory and all others where they are; those that it has are not listed.

    Attributes:
        files: its own, by location.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.files: dict[str, bytes] = {}

    def open(self, location: str) -> BinaryIO:
        own = self.files.get(location)
        return self._storage.open(location) if own is None else io.BytesIO(own)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        own = self.files.get(location)
        return self._storage.read(location, length_bytes) if own is None else own

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        stream = _KeptBytes()
        yield stream
        stream.close()
        self.create(location, stream.written)

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return self._storage.shares(prefix_location, count)

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        return self._storage.list_share(share)

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        return self._storage.list(prefix_location)

    def child_names(self, location: str) -> Sequence[str]:
        return self._storage.child_names(location)

    def head(self, location: str) -> FileInfo | None:
        return self._storage.head(location)


class HeldFiles(Overlay):
    """Holds files that were read as a whole already, and some that are only written to be read.

    Who adds and removes `files` decides what memory is used.
    """

    def create(self, location: str, data: bytes) -> None:
        self.files[location] = data

    def move(self, source: str, target: str) -> None:
        self.files[target] = self.files.pop(source)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        return [self._move(source, target) for source, target in moves]

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return [self._delete(location) for location in locations]

    def capabilities(self, location: str) -> Capabilities:
        return self._storage.capabilities(location)

    def _move(self, source: str, target: str) -> MoveOutcome:
        if source not in self.files:
            return MoveOutcome(source, MoveStatus.MISSING)
        if target in self.files:
            return MoveOutcome(source, MoveStatus.TAKEN)
        self.move(source, target)
        return MoveOutcome(source, MoveStatus.MOVED)

    def _delete(self, location: str) -> DeleteOutcome:
        gone = self.files.pop(location, None) is None
        return DeleteOutcome(location, DeleteStatus.MISSING if gone else DeleteStatus.DELETED)


class RehearsalStorage(Overlay):
    """Takes what a rehearsal of a commit writes; to move or to delete what is in the store is refused."""

    def create(self, location: str, data: bytes) -> None:
        if location in self.files:
            raise FileExistsError(location)
        self.files[location] = data

    def move(self, source: str, target: str) -> None:
        raise IcekeepBug(f"a rehearsal was asked to move {source!r}")

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        raise IcekeepBug(f"a rehearsal was asked to move {len(list(moves))} files")

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return [self._forget(location) for location in locations]

    def capabilities(self, location: str) -> Capabilities:
        # To prove them is to write.
        return Capabilities(exclusive_create=False, move=False)

    def _forget(self, location: str) -> DeleteOutcome:
        if self.files.pop(location, None) is None:
            return DeleteOutcome(location, DeleteStatus.FAILED, "a rehearsal deletes nothing")
        return DeleteOutcome(location, DeleteStatus.DELETED)


class _KeptBytes(io.BytesIO):
    """A stream whose bytes outlive its closing: some writers close the stream that they are given."""

    written = b""

    def close(self) -> None:
        if not self.closed:
            self.written = self.getvalue()
        super().close()


def stopping(storage: Storage, *, in_threads: bool) -> tuple[Storage, Callable[[], None]]:
    """A storage for work in threads of this process, and what stops it; else the same one, as that is sent to executors."""
    if not in_threads:
        return storage, lambda: None
    wrapped = StoppingStorage(storage)
    return wrapped, wrapped.stop


class StoppingStorage:
    """All of a storage; once it is stopped no file is opened, read or written any more, and what is there can be removed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """From now on, whatever would read or write raises `UnavailableError`."""
        self._is_stopped.set()

    def open(self, location: str) -> BinaryIO:
        self._check()
        return cast(BinaryIO, _Stream(self._storage.open(location), self._check))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        self._check()
        return self._storage.read(location, length_bytes)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        self._check()
        with self._storage.write(location) as stream:
            yield cast(BinaryIO, _Stream(stream, self._check))
            self._check()

    def create(self, location: str, data: bytes) -> None:
        self._check()
        self._storage.create(location, data)

    def _check(self) -> None:
        if self._is_stopped.is_set():
            raise UnavailableError("the run was stopped")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class _Stream:
    """All of a stream; before bytes are read or written it is checked whether they still may be."""

    def __init__(self, stream: BinaryIO, check: Callable[[], None]) -> None:
        self._stream, self._check = stream, check

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._stream.read(size)

    def readinto(self, buffer: Any) -> Any:
        self._check()
        return cast(Any, self._stream).readinto(buffer)

    def write(self, data: Any) -> int:
        self._check()
        return self._stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
