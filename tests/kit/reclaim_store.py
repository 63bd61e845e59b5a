"""A store in memory that takes locations of the local disk, which have more spellings than others."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from msgspec.structs import replace

from icekeep.storage.locations import parse_location
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage


class LocalInMemory:
    """Passes every call on to a `MemoryStorage`, and answers in the spelling that it was asked in."""

    def __init__(self, runtime: FakeRuntime, inner: MemoryStorage | None = None) -> None:
        self.inner = inner or MemoryStorage(runtime)

    def open(self, location: str) -> BinaryIO:
        return self.inner.open(self._inside(location))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        return self.inner.read(self._inside(location), length_bytes)

    def write(self, location: str) -> AbstractContextManager[BinaryIO]:
        return self.inner.write(self._inside(location))

    def create(self, location: str, data: bytes) -> None:
        self.inner.create(self._inside(location), data)

    def move(self, source: str, target: str) -> None:
        self.inner.move(self._inside(source), self._inside(target))

    def delete_many(self, locations: Iterable[str]) -> list[Any]:
        given = [*locations]
        outcomes = self.inner.delete_many([self._inside(location) for location in given])
        return [replace(o, location=location) for o, location in zip(outcomes, given, strict=True)]

    def shares(self, prefix_location: str, count: int) -> list[Any]:
        return [replace(s, prefix=prefix_location) for s in self.inner.shares(self._inside(prefix_location), count)]

    def list_share(self, share: Any) -> Iterator[Any]:
        return self.list(share.prefix)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[Any]:
        given = [*moves]
        outcomes = self.inner.move_many([(self._inside(s), self._inside(t)) for s, t in given])
        return [replace(o, source=source) for o, (source, _) in zip(outcomes, given, strict=True)]

    def list(self, prefix_location: str) -> Iterator[Any]:
        start = len(self._inside(prefix_location).rstrip("/"))
        for info in self.inner.list(self._inside(prefix_location)):
            yield replace(info, location=prefix_location.rstrip("/") + info.location[start:])

    def child_names(self, location: str) -> Sequence[str]:
        return self.inner.child_names(self._inside(location))

    def head(self, location: str) -> Any:
        found = self.inner.head(self._inside(location))
        return None if found is None else replace(found, location=location)

    def capabilities(self, location: str) -> Any:
        return self.inner.capabilities(self._inside(location))

    @staticmethod
    def _inside(location: str) -> str:
        for prefix in ("file://localhost/", "file:///", "file://", "file:/", "/"):
            if location.startswith(prefix):
                return f"memory://disk/{location.removeprefix(prefix)}"
        raise AssertionError(f"{location!r} is not on the local disk")


class OneForAll(LocalInMemory):
    """The one store behind every scheme and authority: a path alone tells which file is meant."""

    @staticmethod
    def _inside(location: str) -> str:
        return f"memory://lake{parse_location(location).path}"
