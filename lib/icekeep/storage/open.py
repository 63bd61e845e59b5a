"""The storage of a catalog or table: one value that finds the backend by a location's scheme.

A table may have files in several stores, so the backend is chosen for each call; backends are made when first needed,
so that neither opening a catalog nor sending a storage to a task loads what is not used. The file that was opened last
is remembered: where work fails by an error that names none, it is most likely at that.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from icekeep.errors import IcekeepError, UnsupportedError, UsageError, brought_by
from icekeep.runtime import SYSTEM, Runtime
from icekeep.storage.base import DeleteOutcome, DeleteStatus, MoveOutcome, MoveStatus, Storage
from icekeep.storage.local.storage import LocalStorage
from icekeep.storage.locations import AZURE, FILE, GCS, HDFS, S3, SCHEMES, parse_location, store_kind
from icekeep.storage.vended import Renewal, VendedProperties
from icekeep.storage.wrappers import ForwardingStorage


class _LastRead(threading.local):
    location: str | None = None


_HERE = _LastRead()


def note_read(location: str) -> None:
    _HERE.location = location


def forget_reads() -> None:
    """Begin anew, with other work."""
    _HERE.location = None


def last_read() -> str | None:
    """The file that this thread has opened last."""
    return _HERE.location


_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
_EXTRAS = {S3: "s3", GCS: "gcs", AZURE: "azure", HDFS: "hdfs"}
"""Of the package, that bring the clients of stores."""


def _opened(kind: str, properties: Mapping[str, str], runtime: Runtime, vended: VendedProperties | None) -> Storage:
    """The backend of a kind of store; raises `UsageError` where its client is not installed."""
    if kind == FILE:
        return LocalStorage(runtime)
    module = "hdfs_native" if kind == HDFS else "obstore"
    try:
        if kind == HDFS:
            from icekeep.storage.hdfs.storage import HdfsStorage
        else:
            from icekeep.storage.objects.storage import ObjectStorage
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        raise UsageError(
            f"the client of this storage is not installed: {brought_by(_EXTRAS[kind], module)}", module=module
        ) from error
    return HdfsStorage(properties, runtime) if kind == HDFS else ObjectStorage(properties, runtime, vended)


def open_storage(properties: Mapping[str, str], runtime: Runtime = SYSTEM, renewal: Renewal | None = None) -> Storage:
    """A storage for every scheme that icekeep serves; a backend picks its own `properties` (`s3.endpoint` ...).

    Args:
        renewal: where properties come from again when the credentials among them end.
    """
    return RoutedStorage(properties, runtime, renewal)


class RoutedStorage(ForwardingStorage):
    """Hands each call to the backend of the location's scheme."""

    def __init__(self, properties: Mapping[str, str], runtime: Runtime, renewal: Renewal | None = None) -> None:
        self._properties = dict(properties)
        self._runtime = runtime
        self._vended = None if renewal is None else VendedProperties(properties, renewal, runtime)
        self._made: dict[str, Storage] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def open(self, location: str) -> BinaryIO:
        note_read(location)
        return super().open(location)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        note_read(location)
        return super().read(location, length_bytes)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        return _sorted_out(
            self.at,
            list(moves),
            location_of=lambda move: move[0],
            ask=lambda backend, some: backend.move_many(some),
            refuse=lambda move, reason: MoveOutcome(move[0], MoveStatus.FAILED, reason),
        )

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return _sorted_out(
            self.at,
            list(locations),
            location_of=lambda location: location,
            ask=lambda backend, some: backend.delete_many(some),
            refuse=lambda location, reason: DeleteOutcome(location, DeleteStatus.FAILED, reason),
        )

    def at(self, location: str) -> Storage:
        scheme = parse_location(location).scheme
        kind = store_kind(scheme)
        if kind not in self._made:
            if kind not in (FILE, *_EXTRAS):
                served = sorted(f"{one}:" for known in (FILE, *_EXTRAS) for one in SCHEMES[known])
                raise UnsupportedError(
                    f"cannot reach {location!r}: storage {scheme + ':'!r} is not supported yet, only {', '.join(served)}",
                    location=location,
                    scheme=scheme,
                )
            self._made[kind] = _opened(kind, self._properties, self._runtime, self._vended)
        return self._made[kind]


def _sorted_out(
    backend_of: Callable[[str], Storage],
    asked: Sequence[_Asked],
    location_of: Callable[[_Asked], str],
    ask: Callable[[Storage, Sequence[_Asked]], Sequence[_Answer]],
    refuse: Callable[[_Asked, str], _Answer],
) -> list[_Answer]:
    """One answer to each thing that is asked, in order, by the backend of its location."""
    answers: dict[int, _Answer] = {}
    positions_by_backend: dict[Storage, list[int]] = {}
    for position, one in enumerate(asked):
        try:
            positions_by_backend.setdefault(backend_of(location_of(one)), []).append(position)
        except IcekeepError as error:
            answers[position] = refuse(one, error.message)
    for backend, positions in positions_by_backend.items():
        answers.update(zip(positions, ask(backend, [asked[position] for position in positions]), strict=True))
    return [answers[position] for position in range(len(asked))]
