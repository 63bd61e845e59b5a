"""Storages around another one: that count what is asked, keep what is written in memory, or can be stopped.

Each hands on what it does not change. Work in threads cannot be cancelled: a storage that is stopped ends it at the next
bytes that it reads or writes.
"""

import io
import threading
from abc import ABC, abstractmethod
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
    Storage,
)


class ForwardingStorage(ABC):
    """Hands each call to the storage that serves its location."""

    @abstractmethod
    def at(self, location: str) -> Storage:
        """The storage that serves a location; asked once for each call, right before it."""

    def open(self, location: str) -> BinaryIO:
        return self.at(location).open(location)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        return self.at(location).read(location, length_bytes)

    def write(self, location: str) -> AbstractContextManager[BinaryIO]:
        return self.at(location).write(location)

    def create(self, location: str, data: bytes) -> None:
        self.at(location).create(location, data)

    def move(self, source: str, target: str) -> None:
        self.at(source).move(source, target)

    @abstractmethod
    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        """As `Storage.move_many`; the locations may be of several storages."""

    @abstractmethod
    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        """As `Storage.delete_many`; the locations may be of several storages."""

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return self.at(prefix_location).shares(prefix_location, count)

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        return self.at(share.prefix).list_share(share)

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        return self.at(prefix_location).list(prefix_location)

    def child_names(self, location: str) -> Sequence[str]:
        return self.at(location).child_names(location)

    def head(self, location: str) -> FileInfo | None:
        return self.at(location).head(location)

    def capabilities(self, location: str) -> Capabilities:
        return self.at(location).capabilities(location)

    def directory_exists(self, location: str) -> bool:
        return self.at(location).directory_exists(location)

    def make_directory(self, location: str) -> None:
        self.at(location).make_directory(location)

    def remove_directory(self, location: str) -> None:
        self.at(location).remove_directory(location)

    def child_directories(self, location: str) -> Sequence[str]:
        return self.at(location).child_directories(location)


class StorageWrapper(ForwardingStorage):
    """All of another storage, `inner`; a subclass says what it does otherwise.

    Pickled, as for Spark's tasks, it is `inner` alone, where a subclass does not say otherwise by `__reduce__`.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self.inner,)

    def at(self, location: str) -> Storage:
        return self.inner

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        return self.inner.move_many(moves)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return self.inner.delete_many(locations)


def itself(storage: Storage) -> Storage:
    """What a storage around another one is pickled as."""
    return storage


class HookedStream:
    """All of a stream, as far as files are read and written.

    `before` is called before bytes are read or written, and may raise; `after` with how many were read, and how many written.
    """

    def __init__(
        self,
        inner: BinaryIO,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[int, int], object] = lambda read_bytes, written_bytes: None,
    ) -> None:
        self._inner, self._before, self._after = inner, before, after

    def read(self, size: int = -1) -> bytes:
        self._before()
        data = self._inner.read(size)
        self._after(len(data), 0)
        return data

    def readinto(self, buffer: Any) -> int | None:
        self._before()
        count: int | None = cast(Any, self._inner).readinto(buffer)
        self._after(count or 0, 0)
        return count

    def write(self, data: Any) -> int:
        self._before()
        count = self._inner.write(data)
        self._after(0, memoryview(data).nbytes)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.close()

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def readable(self) -> bool:
        return self._inner.readable()

    def writable(self) -> bool:
        return self._inner.writable()

    def seekable(self) -> bool:
        return self._inner.seekable()

    def fileno(self) -> int:
        return self._inner.fileno()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


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
        with self._lock:
            self.requests_count += requests_count


class CountedStorage(StorageWrapper):
    """Its requests are counted by a meter, but for those by which a listing is divided and a store is tried out."""

    def __init__(self, inner: Storage, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    def at(self, location: str) -> Storage:
        self._meter.count()
        return self.inner

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        asked = [*moves]
        self._meter.count(len(asked))
        return self.inner.move_many(asked)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        asked = [*locations]
        self._meter.count(-(-len(asked) // NAMES_A_REQUEST))
        return self.inner.delete_many(asked)

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return self.inner.shares(prefix_location, count)

    def capabilities(self, location: str) -> Capabilities:
        return self.inner.capabilities(location)


class Overlay(StorageWrapper):
    """Takes what is written into memory, and changes nothing in the store; its own files are read from memory, and not listed.

    Who adds and removes `files` decides what memory is used.

    Attributes:
        files: its own, by location.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.files: dict[str, bytes] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner,), {"files": self.files}

    def open(self, location: str) -> BinaryIO:
        own = self.files.get(location)
        return self.inner.open(location) if own is None else io.BytesIO(own)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        own = self.files.get(location)
        return self.inner.read(location, length_bytes) if own is None else own

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        stream = _KeptBytes()
        yield stream
        stream.close()
        self.create(location, stream.written)

    def create(self, location: str, data: bytes) -> None:
        if location in self.files:
            raise FileExistsError(location)
        self.files[location] = data

    def move(self, source: str, target: str) -> None:
        raise IcekeepBug(f"{source!r} was to be moved by what changes nothing in the store")

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        raise IcekeepBug(f"{len(list(moves))} files were to be moved by what changes nothing in the store")

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return [
            DeleteOutcome(location, DeleteStatus.FAILED, "nothing in the store is changed")
            if self.files.pop(location, None) is None
            else DeleteOutcome(location, DeleteStatus.DELETED)
            for location in locations
        ]

    def make_directory(self, location: str) -> None:
        raise IcekeepBug(f"directory {location!r} was to be made by what changes nothing in the store")

    def remove_directory(self, location: str) -> None:
        raise IcekeepBug(f"directory {location!r} was to be removed by what changes nothing in the store")

    def capabilities(self, location: str) -> Capabilities:
        # To prove them is to write.
        return Capabilities(exclusive_create=False, move=False)


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


class StoppingStorage(StorageWrapper):
    """Once it is stopped no file is opened, read or written any more, and what is there can be removed."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """From now on, whatever would read or write raises `UnavailableError`."""
        self._is_stopped.set()

    def open(self, location: str) -> BinaryIO:
        self._check()
        return cast(BinaryIO, HookedStream(self.inner.open(location), before=self._check))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        self._check()
        return self.inner.read(location, length_bytes)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        self._check()
        with self.inner.write(location) as stream:
            yield cast(BinaryIO, HookedStream(stream, before=self._check))
            self._check()

    def create(self, location: str, data: bytes) -> None:
        self._check()
        self.inner.create(location, data)

    def _check(self) -> None:
        if self._is_stopped.is_set():
            raise UnavailableError("the run was stopped")
