"""How far a rewrite has got, in bytes, while its groups are under way.

Bytes are counted where files are read and written: by threads of this process in memory, by Python workers on this machine in a
file each, which the driver looks at. Workers on a cluster have no such place: there the bytes of a group count once it is
finished. Half of a group is reading and half is writing. How much smaller its new files are is taken from the groups before it,
so what is under way is an estimate, and never more than what is left to do.
"""

import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from icekeep.events import SILENT, Listener, StepAdvanced, StepUnderWay
from icekeep.runtime import SYSTEM
from icekeep.storage.base import Storage

_EVERY_SECONDS = 0.5
_WRITE_EVERY_MS = 200
_COUNTS = struct.Struct("<QQ")
_MAX_SHARE = 0.99
"""Of what is left: a group that is not finished is never shown as finished."""


class Counts:
    """Bytes that were read and written, by several threads perhaps; in a worker they go to a file, now and then."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._path, self._stored_ms = path, 0
        self.read_bytes = self.written_bytes = 0

    def add(self, read_bytes: int = 0, written_bytes: int = 0) -> None:
        """Note some more."""
        with self._lock:
            self.read_bytes += read_bytes
            self.written_bytes += written_bytes
            if self._path is None or SYSTEM.monotonic_ms() - self._stored_ms < _WRITE_EVERY_MS:
                return
            self._stored_ms = SYSTEM.monotonic_ms()
            try:
                self._path.write_bytes(_COUNTS.pack(self.read_bytes, self.written_bytes))
            except OSError:
                # The run is over, or the disk is full: progress ends no work.
                self._path = None


class ByteProgress:
    """Reports the bytes of a step while the block that it is entered for lasts, from a thread of its own.

    Args:
        total_bytes: of the files that are read.
        are_workers_here: whether the work is done by Python workers of Spark on this machine.
    """

    def __init__(self, listener: Listener, step: str, total_bytes: int, *, are_workers_here: bool) -> None:
        self._listener, self._step, self._total_bytes = listener, step, total_bytes
        self._directory = (
            Path(tempfile.mkdtemp(prefix="icekeep-progress-")) if are_workers_here and listener is not SILENT else None
        )
        self._counts, self._lock, self._over = Counts(), threading.Lock(), threading.Event()
        self._finished_bytes = self._added_bytes = self._reported_bytes = 0
        self._thread = threading.Thread(target=self._watch, name="icekeep progress", daemon=True)

    def counting(self, storage: Storage) -> Storage:
        """The storage for the work: it counts the bytes of files that are read and written through it."""
        if self._listener is SILENT:
            return storage
        counting: Any = CountingStorage(storage, self._counts, self._directory)
        return cast(Storage, counting)

    def finish(self, group_bytes: int, added_bytes: int) -> None:
        """A group is finished: the bytes of its files, and of its new ones."""
        with self._lock:
            self._finished_bytes += group_bytes
            self._added_bytes += added_bytes
        self._listener.on(StepAdvanced(self._step, group_bytes))

    def report(self) -> None:
        """Tell the listener about how many bytes are done, if that is more than it knows."""
        with self._lock:
            done = min(self._under_way(), self._limit())
            is_news = done > max(self._finished_bytes, self._reported_bytes)
            self._reported_bytes = max(done, self._reported_bytes)
        if is_news:
            self._listener.on(StepUnderWay(self._step, done))

    def __enter__(self) -> Self:
        if self._listener is not SILENT:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._directory is not None:
            for path in [*self._directory.glob("*"), self._directory]:
                path.rmdir() if path == self._directory else path.unlink(missing_ok=True)

    def _under_way(self) -> int:
        """The bytes that are done by the counts of all that has been read and written so far."""
        read, written = self._counts.read_bytes, self._counts.written_bytes
        for path in () if self._directory is None else self._directory.glob("*"):
            stored = path.read_bytes()
            if len(stored) == _COUNTS.size:
                read, written = read + _COUNTS.unpack(stored)[0], written + _COUNTS.unpack(stored)[1]
        shrinks = self._finished_bytes / self._added_bytes if self._added_bytes else 1.0
        return int((min(read, self._total_bytes) + min(written * shrinks, self._total_bytes)) / 2)

    def _limit(self) -> int:
        return self._finished_bytes + int((self._total_bytes - self._finished_bytes) * _MAX_SHARE)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            self.report()


class CountingStorage:
    """All of a storage; the bytes that go through its streams are counted, in a Spark task those of its process."""

    def __init__(self, storage: Storage, counts: Counts, directory: Path | None) -> None:
        self._storage, self._counts, self._directory = storage, counts, directory

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _in_worker, (self._storage, self._directory)

    def open(self, location: str) -> BinaryIO:
        return cast(BinaryIO, _CountedStream(self._storage.open(location), self._counts))

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        with self._storage.write(location) as stream:
            yield cast(BinaryIO, _CountedStream(stream, self._counts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class _CountedStream:
    """All of a stream, whose bytes are counted."""

    def __init__(self, stream: BinaryIO, counts: Counts) -> None:
        self._stream, self._counts = stream, counts

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._counts.add(read_bytes=len(data))
        return data

    def readinto(self, buffer: Any) -> Any:
        count = cast(Any, self._stream).readinto(buffer)
        self._counts.add(read_bytes=count or 0)
        return count

    def write(self, data: Any) -> int:
        count = self._stream.write(data)
        self._counts.add(written_bytes=memoryview(data).nbytes)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_LOCK = threading.Lock()
_OF_PROCESS: dict[Path, Counts] = {}


def _in_worker(storage: Storage, directory: Path | None) -> Storage:
    """The storage in a Python worker: the bytes of a process are counted in a file, whichever of its tasks reads them."""
    if directory is None or not directory.is_dir():
        return storage
    with _LOCK:
        counts = _OF_PROCESS.get(directory)
        if counts is None:
            _OF_PROCESS.clear()
            counts = _OF_PROCESS[directory] = Counts(directory / f"{os.getpid()}-{SYSTEM.new_uuid()}")
    counting: Any = CountingStorage(storage, counts, directory)
    return cast(Storage, counting)
