"""Moves in a store that has none: a copy that replaces nothing, and then the old name is deleted."""

import errno
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError

from icekeep.errors import IcekeepError, MissingFileError, UnsupportedError
from icekeep.spec.types import MIB
from icekeep.storage.base import Capabilities, DeleteStatus, MoveOutcome, MoveStatus
from icekeep.storage.many import REQUESTS_AT_ONCE, moved_one_by_one
from icekeep.storage.objects.errors import name_is_taken, translated
from icekeep.storage.objects.requests import ObjectAddress, delete_objects
from icekeep.storage.objects.stores import Stores, bucket_of, parsed_location

_COMPARED_BYTES = 8 * MIB


class ObjectMoves(ABC):
    """The part of the storage on object stores that moves."""

    @abstractmethod
    def open(self, location: str) -> BinaryIO:
        """As `Storage.open`."""

    @abstractmethod
    def capabilities(self, location: str) -> Capabilities:
        """As `Storage.capabilities`; asked once for each bucket."""

    @abstractmethod
    def _target(self, location: str) -> ObjectAddress:
        """Where requests for an object go."""

    @abstractmethod
    def _between(self, source: ObjectAddress, target: ObjectAddress) -> Stores:
        """The clients that copy an object in one bucket."""

    def move(self, source: str, target: str) -> None:
        """Copy within a bucket, never over an object, and delete what was copied; at most 5 GiB.

        A target that holds the same bytes is what an earlier try left.
        """
        old = self._copy_to_move(source, target)
        with translated("move", source):
            old.stores.ask(lambda: obstore.delete(old.stores.once, [old.key]))

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        """As `Storage.move_many`: several copies at a time, and then requests that delete many each."""
        asked = list(moves)
        self._prove_all(target for _, target in asked)
        old: dict[str, ObjectAddress] = {}

        def copy(source: str, target: str) -> None:
            if source in old:
                raise MissingFileError(f"cannot move {source!r}: it was moved", location=source)
            old[source] = self._copy_to_move(source, target)

        outcomes = moved_one_by_one(copy, asked, REQUESTS_AT_ONCE)
        copied = [number for number, outcome in enumerate(outcomes) if outcome.status is MoveStatus.MOVED]
        deleted = delete_objects([old[asked[number][0]] for number in copied])
        for number, outcome in zip(copied, deleted, strict=True):
            if outcome.status is DeleteStatus.FAILED:
                outcomes[number] = MoveOutcome(outcome.location, MoveStatus.FAILED, outcome.reason)
        return outcomes

    def _copy_to_move(self, source: str, target: str) -> ObjectAddress:
        """Give an object its new name beside the old one; returns what to delete then."""
        old, new = self._target(source), self._target(target)
        if bucket_of(parsed_location(source)) != bucket_of(parsed_location(target)):
            raise UnsupportedError(f"cannot move {source!r} to {target!r}: they are not in the same bucket")
        if (old.root, old.key) == (new.root, new.key):
            raise FileExistsError(errno.EEXIST, "cannot move a file to itself", target)
        if not self.capabilities(target.rpartition("/")[0]).move:
            raise UnsupportedError(f"cannot move {source!r}: the store cannot copy without replacing what is there")
        with translated("move", source):
            try:
                stores = self._between(old, new)
                stores.ask(lambda: obstore.copy(stores.once, old.key, new.key, overwrite=False))
            except AlreadyExistsError as error:
                if not self._are_equal(source, target):
                    raise name_is_taken(target) from error
        return old

    def _prove_all(self, locations: Iterable[str]) -> None:
        """Prove what the buckets of locations can do, before there are threads that would each try."""
        for directory in {location.rpartition("/")[0]: None for location in locations}:
            with suppress(IcekeepError):
                self.capabilities(directory)

    def _are_equal(self, one: str, other: str) -> bool:
        with self.open(one) as first, self.open(other) as second:
            if first.seek(0, io.SEEK_END) != second.seek(0, io.SEEK_END):
                return False
            first.seek(0)
            second.seek(0)
            while (data := first.read(_COMPARED_BYTES)) == second.read(_COMPARED_BYTES):
                if not data:
                    return True
        return False
