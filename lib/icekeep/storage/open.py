"""The storage of a catalog or table: one value that finds the backend by a location's scheme.

A table may have files in several stores, so the backend is chosen for each call; backends are made when first needed,
so that neither opening a catalog nor sending a storage to a task loads what is not used. The file that was opened last
is remembered: where work fails by an error that names none, it is most likely at that.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, TypeVar

from icekeep.errors import IcekeepError, UnsupportedError, UsageError, brought_by
from icekeep.runtime import SYSTEM, Runtime
from icekeep.storage.base import (
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    DirectoryStorage,
    FileInfo,
    ListingShare,
    MoveOutcome,
    MoveStatus,
)
from icekeep.storage.local.storage import LocalStorage
from icekeep.storage.locations import AZURE, FILE, GCS, HDFS, S3, SCHEMES, parse_location, store_kind
from icekeep.storage.vended import Renewal, VendedProperties


class _LastRead(threading.local):
    location: str | None = None


_HERE = _LastRead()


def note_read(location: str) -> None:
    """Take note of a file that is opened."""
    _HERE.location = location


def forget_reads() -> None:
    """Begin anew, with other work."""
    _HERE.location = None


def last_read() -> str | None:
    """The file that this thread has opened last."""
    return _HERE.location


_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
_Backend = Callable[[Mapping[str, str], Runtime, VendedProperties | None], DirectoryStorage]


def _local(_: Mapping[str, str], runtime: Runtime, __: VendedProperties | None) -> DirectoryStorage:
    return LocalStorage(runtime)


def _objects(extra: str) -> _Backend:
    def make(properties: Mapping[str, str], runtime: Runtime, vended: VendedProperties | None) -> DirectoryStorage:
        with _brought_by(extra, "obstore"):
            from icekeep.storage.objects.storage import ObjectStorage
        return ObjectStorage(properties, runtime, vended)

    return make


def _hdfs(properties: Mapping[str, str], runtime: Runtime, _: VendedProperties | None) -> DirectoryStorage:
    with _brought_by("hdfs", "hdfs_native"):
        from icekeep.storage.hdfs.storage import HdfsStorage
    return HdfsStorage(properties, runtime)


@contextmanager
def _brought_by(extra: str, module: str) -> Iterator[None]:
    """Say which extra of the package to install when the module that it brings is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        raise UsageError(
            f"the client of this storage is not installed: {brought_by(extra, module)}",
            module=module,
        ) from error


_BACKENDS: dict[str, _Backend] = {
    FILE: _local,
    HDFS: _hdfs,
    S3: _objects("s3"),
    GCS: _objects("gcs"),
    AZURE: _objects("azure"),
}


def open_storage(
    properties: Mapping[str, str], runtime: Runtime = SYSTEM, renewal: Renewal | None = None
) -> DirectoryStorage:
    """A storage for every scheme that icekeep serves; a backend picks its own `properties` (`s3.endpoint` ...).

    Args:
        renewal: where properties come from again when the credentials among them end.
    """
    return RoutedStorage(properties, runtime, renewal)


class RoutedStorage:
    """Hands each call to the backend of the location's scheme."""

    def __init__(self, properties: Mapping[str, str], runtime: Runtime, renewal: Renewal | None = None) -> None:
        self._properties = dict(properties)
        self._runtime = runtime
        self._vended = None if renewal is None else VendedProperties(properties, renewal, runtime)
        self._made: dict[str, DirectoryStorage] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def open(self, location: str) -> BinaryIO:
        note_read(location)
        return self._backend(location).open(location)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        note_read(location)
        return self._backend(location).read(location, length_bytes)

    def write(self, location: str) -> AbstractContextManager[BinaryIO]:
        return self._backend(location).write(location)

    def create(self, location: str, data: bytes) -> None:
        self._backend(location).create(location, data)

    def move(self, source: str, target: str) -> None:
        self._backend(source).move(source, target)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        return _sorted_out(
            self._backend,
            list(moves),
            location_of=lambda move: move[0],
            ask=lambda backend, some: backend.move_many(some),
            refuse=lambda move, reason: MoveOutcome(move[0], MoveStatus.FAILED, reason),
        )

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return _sorted_out(
            self._backend,
            list(locations),
            location_of=lambda location: location,
            ask=lambda backend, some: backend.delete_many(some),
            refuse=lambda location, reason: DeleteOutcome(location, DeleteStatus.FAILED, reason),
        )

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return self._backend(prefix_location).shares(prefix_location, count)

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        return self._backend(share.prefix).list_share(share)

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        return self._backend(prefix_location).list(prefix_location)

    def head(self, location: str) -> FileInfo | None:
        return self._backend(location).head(location)

    def capabilities(self, location: str) -> Capabilities:
        return self._backend(location).capabilities(location)

    def directory_exists(self, location: str) -> bool:
        return self._backend(location).directory_exists(location)

    def make_directory(self, location: str) -> None:
        self._backend(location).make_directory(location)

    def remove_directory(self, location: str) -> None:
        self._backend(location).remove_directory(location)

    def child_directories(self, location: str) -> Sequence[str]:
        return self._backend(location).child_directories(location)

    def child_names(self, location: str) -> Sequence[str]:
        return self._backend(location).child_names(location)

    def _backend(self, location: str) -> DirectoryStorage:
        scheme = parse_location(location).scheme
        kind = store_kind(scheme)
        if kind not in self._made:
            if kind not in _BACKENDS:
                served = ", ".join(f"{known}:" for known in sorted(one for kind in _BACKENDS for one in SCHEMES[kind]))
                raise UnsupportedError(
                    f"cannot reach {location!r}: storage {scheme + ':'!r} is not supported yet, only {served}",
                    location=location,
                    scheme=scheme,
                )
            self._made[kind] = _BACKENDS[kind](self._properties, self._runtime, self._vended)
        return self._made[kind]


def _sorted_out(
    backend_of: Callable[[str], DirectoryStorage],
    asked: Sequence[_Asked],
    location_of: Callable[[_Asked], str],
    ask: Callable[[DirectoryStorage, Sequence[_Asked]], Sequence[_Answer]],
    refuse: Callable[[_Asked, str], _Answer],
) -> list[_Answer]:
    """One answer to each thing that is asked, in order, by the backend of its location."""
    answers: dict[int, _Answer] = {}
    positions_by_backend: dict[DirectoryStorage, list[int]] = {}
    for position, one in enumerate(asked):
        try:
            positions_by_backend.setdefault(backend_of(location_of(one)), []).append(position)
        except IcekeepError as error:
            answers[position] = refuse(one, error.message)
    for backend, positions in positions_by_backend.items():
        answers.update(zip(positions, ask(backend, [asked[position] for position in positions]), strict=True))
    return [answers[position] for position in range(len(asked))]
