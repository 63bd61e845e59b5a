"""Requests to object stores that several operations share: making a new object, deleting some, proofs of a store.

A stream keeps its first part here until it is known not to be the only one.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from icekeep.errors import IcekeepError, MissingFileError
from icekeep.runtime import Runtime
from icekeep.spec.types import MIB
from icekeep.storage.base import (
    REQUESTS_AT_ONCE,
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    answer_each,
)
from icekeep.storage.locations import Location
from icekeep.storage.objects.errors import (
    STORE_ERRORS,
    check_key,
    has_roots,
    is_out_of_reach,
    is_unimplemented,
    translate_store_error,
    translated,
    without_empty_parts,
)
from icekeep.storage.objects.stores import (
    Stores,
    bucket_of,
    check_process,
    has_empty_parts,
    open_stores,
    parsed_location,
    taken_apart,
)
from icekeep.storage.vended import VendedProperties

STAMP = "icekeepcreate"
"""Metadata of an object that names the call that made it; Azure allows letters only."""

_DELETES_IN_A_REQUEST = 1000
_BATCHES_AT_ONCE = 4
_STORES_MAX = 256


class ObjectAddress(NamedTuple):
    """An object: its bucket's clients, its name in the bucket, and how the caller spelled it."""

    stores: Stores
    key: str
    location: str
    root: str = ""
    """What is before the key and a slash, for names with empty parts."""


def looked_at(target: ObjectAddress) -> Any:
    """What the store says of an object; raises the client's errors."""
    return target.stores.ask(lambda: obstore.head(target.stores.patient, target.key))


class ObjectBuckets:
    """The part of the storage on object stores that finds them: each bucket's clients, and names in it.

    `properties` are those of the catalog, `vended` the same if it renews them.
    """

    def __init__(self, properties: Mapping[str, str], runtime: Runtime, vended: VendedProperties | None = None) -> None:
        self._properties = dict(properties)
        self._vended = vended
        self._runtime = runtime
        self._stores: dict[tuple[str, ...], Stores] = {}
        self._proved: dict[tuple[str, str], Capabilities] = {}
        self._versioned: set[tuple[str, str]] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": {}}

    def _target(self, location: str) -> ObjectAddress:
        parsed = parsed_location(location)
        key, root = parsed.path[1:], ""
        if has_empty_parts(key) and has_roots(parsed):
            check_key(without_empty_parts(key), location)
            root, key = taken_apart(key)
        check_key(key, location)
        return ObjectAddress(self._bucket(parsed, (root, root)) if root else self._bucket(parsed), key, location, root)

    def _directory(self, location: str) -> tuple[Stores, str]:
        parsed = parsed_location(location)
        prefix = parsed.path[1:].rstrip("/")
        if prefix:
            check_key(without_empty_parts(prefix) if has_roots(parsed) else prefix, location)
        return self._bucket(parsed), prefix

    def _bucket(self, location: Location, roots: tuple[str, str] = ("", "")) -> Stores:
        check_process()
        key = (*bucket_of(location), *roots)
        known = self._stores.get(key)
        if known is None:
            if len(self._stores) >= _STORES_MAX:
                self._stores = {}
            properties = self._properties if self._vended is None else self._vended.current()
            known = self._stores.setdefault(key, open_stores(location, properties, self._vended, roots))
        return known


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
