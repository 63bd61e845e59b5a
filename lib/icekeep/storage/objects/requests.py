"""Requests to object stores that several operations share: making a new object, deleting some, proving what a store does."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from icekeep.errors import IcekeepError, MissingFileError
from icekeep.storage.base import Capabilities, DeleteOutcome, DeleteStatus
from icekeep.storage.many import REQUESTS_AT_ONCE, answer_each
from icekeep.storage.objects.errors import (
    STORE_ERRORS,
    is_out_of_reach,
    is_unimplemented,
    translate_store_error,
    translated,
)
from icekeep.storage.objects.stores import Stores

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
