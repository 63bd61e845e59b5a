"""A storage that can be stopped: work in threads, which nobody can cancel, ends at the next bytes that it reads or writes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Self, cast

from icekeep.errors import UnavailableError
from icekeep.storage.base import Storage


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
