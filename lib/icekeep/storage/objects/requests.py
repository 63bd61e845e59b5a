"""Requests to object stores that several operations share: making a new object, deleting and moving some, proofs of a store.

A move is a copy that replaces nothing, after which the old name is deleted. A stream keeps its first part here until it
is known not to be the only one.
"""

import errno
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from icekeep.errors import IcekeepError, MissingFileError, UnsupportedError
from icekeep.spec.types import MIB
from icekeep.storage.base import (
    REQUESTS_AT_ONCE,
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    MoveOutcome,
    MoveStatus,
    answer_each,
    moved_one_by_one,
)
from icekeep.storage.objects.errors import (
    STORE_ERRORS,
    is_out_of_reach,
    is_unimplemented,
    name_is_taken,
    translate_store_error,
    translated,
)
from icekeep.storage.objects.stores import Stores, bucket_of, parsed_location

STAMP = "icekeepcreate"
"""Metadata of an object that names the call that made it; Azure allows letters only."""

_DELETES_IN_A_REQUEST = 1000
_BATCHES_AT_ONCE = 4


class ObjectAddress(NamedTuple):
    """An object: its bucket's clients, its name in the bucket, and how the caller spelled it."""

    stores: Stores
    key: str
    location: str
    root: str = ""
    """What is before the key and a slash, for names with empty parts."""


def send_new(target: ObjectAddress, store: ObjectStore, data: bytes, stamp: str) -> None:
    """Send an object in one request that a store must refuse when there is one; raises the client's errors."""

    def put() -> None:
        obstore.put(store, target.key, data, mode="create", use_multipart=False, attributes={STAMP: stamp})

    target.stores.ask(put)


def delete_objects(targets: Sequence[ObjectAddress]) -> list[DeleteOutcome]:
    """Delete objects, many of a bucket by one request where the store knows such; one that is named twice is sent once."""
    by_bucket: dict[int, dict[str, ObjectAddress]] = {}
    for target in targets:
        by_bucket.setdefault(id(target.stores), {}).setdefault(target.key, target)
    outcomes = {
        (bucket, target.key): outcome
        for bucket, named in by_bucket.items()
        for target, outcome in zip(named.values(), _deleted(list(named.values())), strict=True)
    }
    found = ((target, outcomes[id(target.stores), target.key]) for target in targets)
    return [DeleteOutcome(target.location, outcome.status, outcome.reason) for target, outcome in found]


def _deleted(targets: Sequence[ObjectAddress]) -> list[DeleteOutcome]:
    """As `delete_objects`, of one bucket and each named once."""
    stores = targets[0].stores
    if not stores.deletes_many:
        return _deleted_singly(targets, stores.patient, DeleteStatus.MISSING)
    batches = [
        targets[start : start + _DELETES_IN_A_REQUEST] for start in range(0, len(targets), _DELETES_IN_A_REQUEST)
    ]
    return list(chain.from_iterable(answer_each(_deleted_together, batches, id, _BATCHES_AT_ONCE)))


def _deleted_together(targets: Sequence[ObjectAddress]) -> list[DeleteOutcome]:
    """By one request; if it fails for some or is not known to the store, which the client does not tell, one by one."""
    stores = targets[0].stores
    try:
        stores.ask(lambda: obstore.delete(stores.patient, [target.key for target in targets]))
    except STORE_ERRORS as error:
        if is_out_of_reach(error):
            # A store that cannot take this request now is not helped by a thousand.
            return [_not_deleted(target, error) for target in targets]
        # What is not there now may have gone by the request that failed.
        return _deleted_singly(targets, stores.once, DeleteStatus.DELETED)
    except IcekeepError as error:
        # The credentials have ended, and the catalog gives no others now.
        return [DeleteOutcome(target.location, DeleteStatus.FAILED, error.message) for target in targets]
    return [DeleteOutcome(target.location, DeleteStatus.DELETED) for target in targets]


def _deleted_singly(
    targets: Sequence[ObjectAddress], store: ObjectStore, if_absent: DeleteStatus
) -> list[DeleteOutcome]:
    def delete(target: ObjectAddress) -> DeleteOutcome:
        try:
            target.stores.ask(lambda: obstore.delete(store, [target.key]))
        except FileNotFoundError as error:
            if isinstance(translate_store_error(error, "delete", target.location), MissingFileError):
                return DeleteOutcome(target.location, if_absent)
            return _not_deleted(target, error)
        except STORE_ERRORS as error:
            return _not_deleted(target, error)
        except IcekeepError as error:
            return DeleteOutcome(target.location, DeleteStatus.FAILED, error.message)
        return DeleteOutcome(target.location, DeleteStatus.DELETED)

    return answer_each(delete, targets, lambda target: target.key, REQUESTS_AT_ONCE)


def _not_deleted(target: ObjectAddress, error: Exception) -> DeleteOutcome:
    reason = translate_store_error(error, "delete", target.location).message
    return DeleteOutcome(target.location, DeleteStatus.FAILED, reason)


def prove(first: ObjectAddress, second: ObjectAddress) -> Capabilities:
    """What a store can do, by trying it with two names that nobody uses; nothing stays there.

    Raises:
        UsageError, UnavailableError: the store cannot be written to, so that nothing is proved either way.
    """

    def create(number: int) -> None:
        send_new(first, first.stores.once, b"%d" % number, f"probe{number}")

    def copy(_: int) -> None:
        first.stores.ask(lambda: obstore.copy(first.stores.once, first.key, second.key, overwrite=False))

    try:
        with translated("write below", first.location):
            is_exclusive = _only_the_first_succeeds(create)
            if is_exclusive:
                found = first.stores.ask(lambda: obstore.get(first.stores.patient, first.key).bytes())
                is_exclusive = bytes(found) == b"1"
            return Capabilities(exclusive_create=is_exclusive, move=is_exclusive and _only_the_first_succeeds(copy))
    finally:
        delete_objects([first, second])


def _only_the_first_succeeds(act: Callable[[int], None]) -> bool:
    try:
        act(1)
        try:
            act(2)
        except AlreadyExistsError:
            return True
    except STORE_ERRORS as error:
        if not is_unimplemented(error):
            raise
    return False


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


READ_AHEAD_BYTES = MIB

PART_BYTES = 16 * MIB
"""What a stream that is written keeps in memory; up to here an object is sent in one request."""


class Parts(Protocol):
    """An object that is sent in parts, and is not there before it is closed."""

    def write(self, data: Any, /) -> int:
        """Send bytes, or keep them for the next part."""

    def close(self) -> None:
        """Send the rest and make the object of its parts."""

    def __exit__(self, *raised: Any) -> None:
        """Give up when something was raised: the parts are removed."""


class ObjectWriter(io.RawIOBase):
    """The stream that a writer is given; what it wrote becomes an object by `complete`, never by closing.

    `put(data)` sends an object in one request, `begin()` opens one in parts.
    """

    def __init__(
        self, put: Callable[[bytes], None], begin: Callable[[], Parts], finish: Callable[[Parts], None]
    ) -> None:
        self._put = put
        self._begin = begin
        self._finish = finish
        self._first = bytearray()
        self._parts: Parts | None = None
        self._size_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("write to a closed stream")
        with memoryview(data).cast("B") as view:
            if self._parts is None and len(self._first) + len(view) > PART_BYTES:
                self._parts = self._begin()
                self._parts.write(bytes(self._first))
                self._first.clear()
            if self._parts is not None:
                self._parts.write(bytes(view))
            else:
                self._first += view
            self._size_bytes += len(view)
            return len(view)

    def complete(self) -> None:
        """Make the object."""
        self.close()
        if self._parts is None:
            self._put(bytes(self._first))
        else:
            self._finish(self._parts)

    def abandon(self, error: BaseException) -> None:
        """Leave nothing; whatever this raises is less than `error`."""
        self.close()
        if self._parts is not None:
            self._parts.__exit__(type(error), error, error.__traceback__)
