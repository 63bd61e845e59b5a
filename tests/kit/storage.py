"""Stores for tests: one in memory (scheme `memory:`), and one that lets a test act around each call."""

import io
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, BinaryIO

from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError, UnavailableError, UnsupportedError
from icekeep.runtime import SYSTEM, Runtime
from icekeep.storage.base import (
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    FileInfo,
    ListingShare,
    MoveOutcome,
    Storage,
    moved_one_by_one,
)
from icekeep.storage.locations import canonical, parse_location

Hook = Callable[[str, str], None]


class MemoryStorage:
    """Files as byte strings under canonical locations; pickling copies them.

    `files` is open to tests that look at, or break, what is stored behind the protocol's back.
    """

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        self._made: set[str] = set()
        self.runtime = runtime

    def open(self, location: str) -> BinaryIO:
        return io.BytesIO(self._file(location)[0])

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        data, _ = self._file(location)
        if length_bytes is not None and len(data) != length_bytes:
            raise InvalidTableError(f"file {location!r} is {len(data)} bytes long where metadata says {length_bytes}")
        return data

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        if _key(location) in self.files:
            raise FileExistsError(location)
        stream = _KeepingBytes()
        yield stream
        stream.close()
        self.create(location, stream.written)

    def create(self, location: str, data: bytes) -> None:
        entry = (bytes(data), self.runtime.now_ms())
        # setdefault is one step, also between threads; the identity of the entry tells whose it is.
        if self.files.setdefault(_key(location), entry) is not entry:
            raise FileExistsError(location)

    def move(self, source: str, target: str) -> None:
        entry = self._file(source)
        if self.files.setdefault(_key(target), entry) is not entry or _key(source) == _key(target):
            raise FileExistsError(target)
        del self.files[_key(source)]

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        return moved_one_by_one(self.move, moves)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return [self._delete(location) for location in locations]

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        keys = sorted(_key(info.location) for info in self.list(prefix_location))
        size = max(1, len(keys) // max(1, count))
        ends = ["", *keys[size - 1 : -1 : size], ""]
        return [ListingShare(prefix_location, after, until) for after, until in pairwise(ends)]

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        directory = f"{_key(share.prefix)}/"
        for info in self.list(share.prefix):
            key = _key(info.location)
            name = key.removeprefix(directory)
            if (not share.is_deep and "/" in name) or not name.startswith(share.starts_with):
                continue
            if share.after < key and (key <= share.until or not share.until):
                yield info

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        prefix = _key(prefix_location).rstrip("/") + "/"
        for key, (data, modified_ms) in list(self.files.items()):
            if key.startswith(prefix):
                yield FileInfo(f"{prefix_location.rstrip('/')}/{key[len(prefix) :]}", len(data), modified_ms)

    def head(self, location: str) -> FileInfo | None:
        with suppress(MissingFileError):
            data, modified_ms = self._file(location)
            return FileInfo(location, len(data), modified_ms)
        return None

    def capabilities(self, location: str) -> Capabilities:
        _key(location)
        return Capabilities(exclusive_create=True, move=True)

    def directory_exists(self, location: str) -> bool:
        key = _key(location)
        return any(other == key or other.startswith(f"{key}/") for other in self._made) or any(
            other.startswith(f"{key}/") for other in self.files
        )

    def make_directory(self, location: str) -> None:
        parts = _key(location).split("/")
        self._made.update("/".join(parts[:length]) for length in range(4, len(parts) + 1))

    def remove_directory(self, location: str) -> None:
        if self.child_names(location):
            raise UnavailableError(f"cannot remove directory {location!r}: directory not empty")
        self._made.discard(_key(location))

    def child_directories(self, location: str) -> Sequence[str]:
        names = self.child_names(location)
        return [n for n in names if not n.startswith(".") and self.directory_exists(f"{location.rstrip('/')}/{n}")]

    def child_names(self, location: str) -> Sequence[str]:
        prefix = f"{_key(location)}/"
        below = [key[len(prefix) :] for key in [*self._made, *self.files] if key.startswith(prefix)]
        return sorted({name.split("/", 1)[0] for name in below})

    def _file(self, location: str) -> tuple[bytes, int]:
        try:
            return self.files[_key(location)]
        except KeyError as error:
            raise MissingFileError(f"cannot read {location!r}: there is no such file", location=location) from error

    def _delete(self, location: str) -> DeleteOutcome:
        try:
            missing = self.files.pop(_key(location), None) is None
        except IcekeepError as error:
            return DeleteOutcome(location, DeleteStatus.FAILED, error.message)
        return DeleteOutcome(location, DeleteStatus.MISSING if missing else DeleteStatus.DELETED)


class _KeepingBytes(io.BytesIO):
    """A stream whose content outlives it, since some writers close the stream that they are given."""

    written = b""

    def close(self) -> None:
        if not self.closed:
            self.written = self.getvalue()
        super().close()


def _key(location: str) -> str:
    if parse_location(location).scheme != "memory":
        raise UnsupportedError(f"location {location!r} is not in memory", location=location)
    return canonical(location)


def contents(storage: Any, prefix_location: str) -> dict[str, bytes]:
    """Every file below a location, by the rest of its location."""
    start = len(prefix_location.rstrip("/")) + 1
    return {info.location[start:]: storage.read(info.location) for info in storage.list(prefix_location)}


def _nothing(operation: str, location: str) -> None:
    pass


class Meeting:
    """Whether some calls are under way at the same time: each waits until so many have begun, or until it waits in vain."""

    def __init__(self, count: int) -> None:
        self._barrier, self._may_meet = threading.Barrier(count), True
        self.took_place = False

    def at(self, part: str) -> Hook:
        """A hook for `HookedStorage`: calls on locations with this part in their names wait for each other."""

        def wait(operation: str, location: str) -> None:
            if part in location and self._may_meet:
                try:
                    self._barrier.wait(10)
                    self.took_place = True
                except threading.BrokenBarrierError:
                    pass
                self._may_meet = False

        return wait


class HookedStorage:
    """Passes every call on, and lets a test act before and after it: fail, lie, or be another writer.

    `before(operation, location)` and `after(operation, location)` may raise; `fired` counts their calls by operation.
    """

    def __init__(self, inner: Storage, before: Hook = _nothing, after: Hook = _nothing) -> None:
        self.inner = inner
        self.before = before
        self.after = after
        self.fired: Counter[str] = Counter()

    def open(self, location: str) -> BinaryIO:
        return self._call("open", location)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        return self._call("read", location, length_bytes)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        self.fired["write"] += 1
        self.before("write", location)
        with self.inner.write(location) as stream:
            yield stream
        self.after("write", location)

    def create(self, location: str, data: bytes) -> None:
        self._call("create", location, data)

    def move(self, source: str, target: str) -> None:
        self._call("move", source, target)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        keys = [*locations]
        self.fired["delete_many"] += 1
        for location in keys:
            self.before("delete_many", location)
        return self.inner.delete_many(keys)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        asked = [*moves]
        self.fired["move_many"] += 1
        for source, _ in asked:
            self.before("move_many", source)
        outcomes = self.inner.move_many(asked)
        for source, _ in asked:
            self.after("move_many", source)
        return outcomes

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return self._call("shares", prefix_location, count)

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        self.fired["list_share"] += 1
        self.before("list_share", share.prefix)
        yield from self.inner.list_share(share)
        self.after("list_share", share.prefix)

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        return self._call("list", prefix_location)

    def head(self, location: str) -> FileInfo | None:
        return self._call("head", location)

    def capabilities(self, location: str) -> Capabilities:
        return self._call("capabilities", location)

    def directory_exists(self, location: str) -> bool:
        return self._call("directory_exists", location)

    def make_directory(self, location: str) -> None:
        self._call("make_directory", location)

    def remove_directory(self, location: str) -> None:
        self._call("remove_directory", location)

    def child_directories(self, location: str) -> Sequence[str]:
        return self._call("child_directories", location)

    def child_names(self, location: str) -> Sequence[str]:
        return self._call("child_names", location)

    def _call(self, operation: str, location: str, *arguments: Any) -> Any:
        self.fired[operation] += 1
        self.before(operation, location)
        answer = getattr(self.inner, operation)(location, *arguments)
        self.after(operation, location)
        return answer
