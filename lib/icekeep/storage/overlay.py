"""Storages that are laid over another: what is written stays in memory, all else is read there, and nothing of it changes."""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from icekeep.errors import IcekeepBug
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
