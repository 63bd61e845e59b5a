"""Files in object stores: Amazon S3 and what speaks its language, Google Cloud Storage, Azure.

A new name appears by a request that carries its own condition, "if there is none" (`If-None-Match: *`). Of what such a
request did an answer may be lost, or be about an earlier sending of the same request that something on the way repeated.
So every object is stamped with a number that only the call knows which makes it, and a call that meets a name taken, or
hears nothing, looks whose it is: equal bytes would not tell, since two writers may write the same.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, BinaryIO, cast

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError

from icekeep.errors import (
    IcekeepError,
    MissingFileError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from icekeep.runtime import Runtime
from icekeep.storage.base import Capabilities, DeleteOutcome, DeleteStatus, FileInfo, whole
from icekeep.storage.locations import GCS, Location
from icekeep.storage.objects.errors import (
    STORE_ERRORS,
    check_key,
    has_roots,
    is_collision,
    is_out_of_reach,
    is_refused,
    name_is_taken,
    reason,
    translate_store_error,
    translated,
    without_empty_parts,
)
from icekeep.storage.objects.listing import ObjectDirectories, ObjectListing, epoch_ms
from icekeep.storage.objects.requests import (
    PART_BYTES,
    READ_AHEAD_BYTES,
    STAMP,
    ObjectAddress,
    ObjectMoves,
    ObjectWriter,
    Parts,
    delete_objects,
    prove,
    send_new,
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
from icekeep.storage.ranges import RangeReader
from icekeep.storage.vended import VendedProperties

_SENDS_MS = 300_000
_SEND_WAIT_MS = 100
_SEND_WAIT_MAX_MS = 10_000
_STORES_MAX = 256


class ObjectStorage(ObjectListing, ObjectMoves, ObjectDirectories):
    """Storage on object stores; `properties` are those of the catalog, `vended` the same if it renews them.

    Names are taken as they are spelled. Those that the client would change or cannot send are refused: with `.` or `..` as a
    part, with a slash at the end, with a control character; and, but for S3, with an empty part (`a//b`).
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

    def open(self, location: str) -> BinaryIO:
        """Open an object for reading; bytes are brought as they are asked for, a mebibyte or more at a time."""
        target = self._target(location)
        with translated("open", location):
            size_bytes = _looked_at(target)["size"]

        def fetch(start: int, length: int) -> memoryview:
            with translated("read", location):
                stores = target.stores
                data = stores.ask(lambda: obstore.get_range(stores.patient, target.key, start=start, length=length))
            if len(data) != length:
                raise UnavailableError(f"cannot read {location!r}: the store sent {len(data)} of {length} bytes")
            return memoryview(data)

        return cast(BinaryIO, io.BufferedReader(RangeReader(fetch, size_bytes), READ_AHEAD_BYTES))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        target = self._target(location)
        with translated("read", location):
            answer = target.stores.ask(lambda: obstore.get(target.stores.patient, target.key))
            data = bytes(answer.bytes())
        self._note_version(location, answer.meta)
        return whole(data, location, answer.meta["size"], length_bytes)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        """Stream a new object; up to 16 MiB are kept and sent with the condition that the name is free.

        A larger one is sent in parts, to which stores attach no such condition: the name is looked at before the first
        part and before the last. Two that write one large object at one moment may both succeed, so what commits stand
        on is made by `create`.
        """
        target, stamp = self._target(location), self._new_stamp()
        stream = ObjectWriter(
            put=lambda data: self._put_new(target, data, stamp),
            begin=lambda: self._begin_parts(target, stamp),
            finish=lambda parts: self._finish_parts(target, parts, stamp),
        )
        try:
            yield cast(BinaryIO, stream)
        except BaseException as error:
            stream.abandon(error)
            raise
        try:
            stream.complete()
        except BaseException as error:
            stream.abandon(error)
            with suppress(Exception):
                # The answer may be all that was lost; an object with another stamp is another call's.
                if self._stamp(target) == stamp:
                    delete_objects([target])
            raise

    def create(self, location: str, data: bytes) -> None:
        """Create a small object, by a request that is sent again as it stands until an answer says what became of it.

        An answer that the name is taken is believed only if the object there bears another call's stamp: else it is about
        our own object. So it does no harm that a request whose answer was lost, or which a store could not serve (503), may
        land late: whichever of them lands first keeps out the others, and all of them write the same. A store that answers
        that two writes collided did not carry out ours and wants it sent again.
        """
        target, stamp = self._target(location), self._new_stamp()
        is_in_doubt, problem = False, ""
        for _ in self._sends():
            try:
                send_new(target, target.stores.once, data, stamp)
                return
            except STORE_ERRORS as error:
                # Of the requests before it a refusal says nothing.
                if is_refused(error) and not is_in_doubt:
                    raise _not_created(error, location) from error
                problem = self._unsettled(target, stamp, error)
                is_in_doubt = is_in_doubt or not is_collision(error, target.key)
            except FileExistsError:
                raise
            except IcekeepError as error:
                # The credentials have ended, and the catalog gives no others now.
                if is_in_doubt:
                    raise _unknown(location, error.message) from error
                raise
            if not problem:
                return
        raise _unknown(location, problem)

    def _unsettled(self, target: ObjectAddress, stamp: str, error: Exception) -> str:
        """Why it cannot be told after an error whether an object was created; empty where it was, by a request before.

        Raises:
            FileExistsError: another call's object has the name, so that this one's never will.
            OutcomeUnknownError: to send it again would not tell either.
        """
        try:
            holder = self._stamp(target)
        except UnavailableError as unseen:
            return unseen.message
        except IcekeepError as unseen:
            raise _unknown(target.location, unseen.message) from error
        if holder == stamp:
            return ""
        if holder is not None:
            raise name_is_taken(target.location) from error
        if is_collision(error, target.key):
            return "other writes of the name went on and on"
        if isinstance(error, AlreadyExistsError):
            raise _unknown(target.location, "the name was taken, and then it was not") from error
        if is_refused(error) and not is_out_of_reach(error):
            refusal = translate_store_error(error, "create", target.location).message
            raise _unknown(target.location, f"it was sent again, and {refusal}") from error
        return reason(error)

    def _sends(self) -> Iterator[int]:
        """The numbers of sendings, with waits of up to ten seconds slept between them; ends after some minutes."""
        began_ms = self._runtime.monotonic_ms()
        for number in count():
            yield number
            # Who started an abandoned process may have begun its work again.
            if self._runtime.monotonic_ms() - began_ms > _SENDS_MS or self._runtime.is_abandoned():
                return
            wait_ms = min(_SEND_WAIT_MS * 2**number, _SEND_WAIT_MAX_MS)
            self._runtime.sleep_ms(round(wait_ms * (1 - self._runtime.uniform(0, 0.5))))

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        """Delete objects, a thousand by one request where the store knows such; see `DeleteStatus` for `MISSING`.

        That a bucket keeps older versions is known from what was read there before.
        """
        asked = list(locations)
        answers: dict[int, DeleteOutcome] = {}
        targets: dict[int, ObjectAddress] = {}
        for position, location in enumerate(asked):
            try:
                targets[position] = self._target(location)
            except IcekeepError as error:
                answers[position] = DeleteOutcome(location, DeleteStatus.FAILED, error.message)
        for position, outcome in zip(targets, delete_objects(list(targets.values())), strict=True):
            is_kept = (
                outcome.status is DeleteStatus.DELETED
                and bucket_of(parsed_location(outcome.location)) in self._versioned
            )
            answers[position] = msgspec.structs.replace(outcome, is_kept_as_version=is_kept)
        return [answers[position] for position in range(len(asked))]

    def head(self, location: str) -> FileInfo | None:
        target = self._target(location)
        try:
            with translated("look at", location):
                meta = _looked_at(target)
        except MissingFileError:
            return None
        return FileInfo(location, meta["size"], epoch_ms(meta["last_modified"]))

    def capabilities(self, location: str) -> Capabilities:
        """Prove it once for each bucket, by objects called `<uuid>.tmp` below the location."""
        bucket = bucket_of(parsed_location(location))
        if bucket not in self._proved:
            base = location.rstrip("/")
            first, second = (self._target(f"{base}/{self._new_stamp()}.tmp") for _ in range(2))
            self._proved[bucket] = prove(first._replace(location=location), second._replace(location=location))
        return self._proved[bucket]

    def _note_version(self, location: str, meta: Any) -> None:
        """Google's store counts what it writes, whether it keeps that or not."""
        bucket = bucket_of(parsed_location(location))
        if bucket[0] != GCS and meta.get("version"):
            self._versioned.add(bucket)

    def _put_new(self, target: ObjectAddress, data: bytes, stamp: str) -> None:
        """Send an object that no commit stands on: again and again if need be, since the stamp tells ours."""
        try:
            send_new(target, target.stores.patient, data, stamp)
        except STORE_ERRORS as error:
            holder = self._stamp(target)
            if holder == stamp:
                return
            if isinstance(error, AlreadyExistsError) and holder is not None:
                raise name_is_taken(target.location) from error
            raise _not_created(error, target.location, "write") from error

    def _begin_parts(self, target: ObjectAddress, stamp: str) -> Parts:
        self._check_free(target)
        with translated("write", target.location):
            parts = target.stores.ask(
                lambda: obstore.open_writer(
                    target.stores.patient,
                    target.key,
                    attributes={STAMP: stamp},
                    buffer_size=PART_BYTES,
                    max_concurrency=4,
                )
            )
        return _Translating(parts, target.location)

    def _finish_parts(self, target: ObjectAddress, parts: Parts, stamp: str) -> None:
        self._check_free(target)
        try:
            parts.close()
        except IcekeepError:
            # Its answer may be all that was lost.
            if self._stamp(target) != stamp:
                raise

    def _check_free(self, target: ObjectAddress) -> None:
        if self.head(target.location) is not None:
            raise name_is_taken(target.location)

    def _stamp(self, target: ObjectAddress) -> str | None:
        """The stamp of the object that is there, an empty one if another program made it; `None` if there is none."""
        try:
            with translated("look at", target.location):
                stores = target.stores
                found = stores.ask(lambda: obstore.get(stores.patient, target.key, options={"head": True}))
        except MissingFileError:
            return None
        return found.attributes.get(STAMP, "")

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

    def _between(self, source: ObjectAddress, target: ObjectAddress) -> Stores:
        return self._bucket(parsed_location(target.location), (target.root, source.root))

    def _bucket(self, location: Location, roots: tuple[str, str] = ("", "")) -> Stores:
        check_process()
        key = (*bucket_of(location), *roots)
        known = self._stores.get(key)
        if known is None:
            if len(self._stores) >= _STORES_MAX:
                self._stores = {}
            known = self._stores.setdefault(key, open_stores(location, self._now_held(), self._vended, roots))
        return known

    def _now_held(self) -> Mapping[str, str]:
        return self._properties if self._vended is None else self._vended.current()

    def _new_stamp(self) -> str:
        return str(self._runtime.new_uuid())


class _Translating:
    """The client's writer, with errors of ours."""

    def __init__(self, parts: Any, location: str) -> None:
        self._parts = parts
        self._location = location

    def write(self, data: Any, /) -> int:
        with translated("write", self._location):
            return int(self._parts.write(data))

    def close(self) -> None:
        with translated("write", self._location):
            self._parts.close()

    def __exit__(self, *raised: Any) -> None:
        with suppress(*STORE_ERRORS):
            self._parts.__exit__(*raised)


def _looked_at(target: ObjectAddress) -> Any:
    return target.stores.ask(lambda: obstore.head(target.stores.patient, target.key))


def _not_created(error: Exception, location: str, action: str = "create") -> IcekeepError:
    """The error for a name that certainly was not made; a store that has no such place is the user's fault."""
    translated_error = translate_store_error(error, action, location)
    if isinstance(translated_error, MissingFileError):
        return UsageError(f"cannot {action} {location!r}: the store knows no such place", location=location)
    return translated_error


def _unknown(location: str, cause: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"cannot tell whether file {location!r} was created: {cause}", location=location)
