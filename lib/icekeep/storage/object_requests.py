"""Requests to object stores that several operations share: making a new object, deleting some, proving what a store does."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from icekeep.storage.base import Capabilities, DeleteOutcome, DeleteStatus
from icekeep.storage.object_errors import STORE_ERRORS, is_unimplemented, translate_store_error, translated
from icekeep.storage.object_stores import Stores

STAMP = "icekeepcreate"
"""Metadata of an object that names the call that made it; Azure allows letters only."""

_DELETES_IN_A_REQUEST = 1000


class Target(NamedTuple):
    """An object: its bucket's clients, its name in the bucket, and how the caller spelled it."""

    stores: Stores
    key: str
    location: str


def send_new(target: Target, store: ObjectStore, data: bytes, stamp: str) -> None:
    """Send an object in one request that a store must refuse when there is one; raises the client's errors."""
    obstore.put(store, target.key, data, mode="create", use_multipart=False, attributes={STAMP: stamp})


def delete_objects(targets: Sequence[Target]) -> list[DeleteOutcome]:
    """Delete objects of one bucket that were there a moment ago, many by one request."""
    outcomes: list[DeleteOutcome] = []
    for start in range(0, len(targets), _DELETES_IN_A_REQUEST):
        some = targets[start : start + _DELETES_IN_A_REQUEST]
        try:
            obstore.delete(some[0].stores.patient, [target.key for target in some])
            outcomes += [DeleteOutcome(target.location, DeleteStatus.DELETED) for target in some]
        except STORE_ERRORS:
            # The client tells the first failure only, and some stores know no request for many.
            outcomes += [_delete_object(target) for target in some]
    return outcomes


def _delete_object(target: Target) -> DeleteOutcome:
    try:
        obstore.delete(target.stores.once, [target.key])
    except FileNotFoundError:
        return DeleteOutcome(target.location, DeleteStatus.MISSING)
    except STORE_ERRORS as error:
        reason = translate_store_error(error, "delete", target.location).message
        return DeleteOutcome(target.location, DeleteStatus.FAILED, reason)
    return DeleteOutcome(target.location, DeleteStatus.DELETED)


def prove(first: Target, second: Target) -> Capabilities:
    """What a store can do, by trying it with two names that nobody uses; nothing stays there.

    Raises:
        UsageError, UnavailableError: the store cannot be written to, so that nothing is proved either way.
    """

    def create(number: int) -> None:
        send_new(first, first.stores.once, b"%d" % number, f"probe{number}")

    def copy(_: int) -> None:
        obstore.copy(first.stores.once, first.key, second.key, overwrite=False)

    try:
        with translated("write below", first.location):
            is_exclusive = _only_the_first_succeeds(create)
            if is_exclusive:
                is_exclusive = bytes(obstore.get(first.stores.patient, first.key).bytes()) == b"1"
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
