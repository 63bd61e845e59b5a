"""Files in object stores: Amazon S3 and what speaks its language, Google Cloud Storage, Azure.

A new name appears by a request that carries its own condition, "if there is none" (`If-None-Match: *`). Of what such a
request did an answer may be lost, or be about an earlier sending of the same request that something on the way repeated.
So every object is stamped with a number that only the call knows which makes it, and a call that meets a name taken, or
hears nothing, looks whose it is: equal bytes would not tell, since two writers may write the same.

A move is a copy that replaces nothing, after which the old name is deleted. A directory is a prefix below which something
lies. An empty one is kept by an object called `.icekeep-directory`, which no listing of icekeep shows. Hadoop and the
stores' own consoles make an object whose name ends with a slash; those are seen, and cannot be made or removed here.
"""

import errno
import io
from collections.abc import Iterable, Iterator, Sequence
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
    UnsupportedError,
    UsageError,
)
from icekeep.spec.types import MIB
from icekeep.storage.base import (
    REQUESTS_AT_ONCE,
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    MoveOutcome,
    MoveStatus,
    moved_one_by_one,
    whole,
)
from icekeep.storage.locations import GCS
from icekeep.storage.objects.errors import (
    STORE_ERRORS,
    is_collision,
    is_out_of_reach,
    is_refused,
    name_is_taken,
    reason,
    translate_store_error,
    translated,
)
from icekeep.storage.objects.listing import MARKER, ObjectListing
from icekeep.storage.objects.requests import (
    PART_BYTES,
    READ_AHEAD_BYTES,
    STAMP,
    ObjectAddress,
    ObjectWriter,
    Parts,
    delete_objects,
    looked_at,
    prove,
    send_new,
)
from icekeep.storage.objects.stores import (
    bucket_of,
    has_empty_parts,
    parsed_location,
)
from icekeep.storage.ranges import RangeReader

_COMPARED_BYTES = 8 * MIB
_SENDS_MS = 300_000
_SEND_WAIT_MS = 100
_SEND_WAIT_MAX_MS = 10_000


class ObjectStorage(ObjectListing):
    """Storage on object stores.

    Names are taken as they are spelled. Those that the client would change or cannot send are refused: with `.` or `..` as a
    part, with a slash at the end, with a control character; and, but for S3, with an empty part (`a//b`).
    """

    def open(self, location: str) -> BinaryIO:
        """Open an object for reading; bytes are brought as they are asked for, a mebibyte or more at a time."""
        target = self._target(location)
        with translated("open", location):
            size_bytes = looked_at(target)["size"]

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
        bucket = bucket_of(parsed_location(location))
        # Google's store counts what it writes, whether it keeps that or not.
        if bucket[0] != GCS and answer.meta.get("version"):
            self._versioned.add(bucket)
        return whole(data, location, answer.meta["size"], length_bytes)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        """Stream a new object; up to 16 MiB are kept and sent with the condition that the name is free.

        A larger one is sent in parts, to which stores attach no such condition: the name is looked at before the first
        part and before the last. Two that write one large object at one moment may both succeed, so what commits stand
        on is made by `create`.
        """
        target, stamp = self._target(location), str(self._runtime.new_uuid())
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
        target, stamp = self._target(location), str(self._runtime.new_uuid())
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
        # Before there are threads that would each try.
        for directory in {target.rpartition("/")[0]: None for _, target in asked}:
            with suppress(IcekeepError):
                self.capabilities(directory)
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
                stores = self._bucket(parsed_location(target), (new.root, old.root))
                stores.ask(lambda: obstore.copy(stores.once, old.key, new.key, overwrite=False))
            except AlreadyExistsError as error:
                if not self._are_equal(source, target):
                    raise name_is_taken(target) from error
        return old

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

    def directory_exists(self, location: str) -> bool:
        stores, prefix = self._directory(location)
        with translated("look at", location):
            below = stores.ask(
                lambda: next((some for some in obstore.list(stores.patient, prefix or None) if some), None)
            )
        return below is not None or not prefix

    def make_directory(self, location: str) -> None:
        _, prefix = self._directory(location)
        root = location.rstrip("/").removesuffix(prefix).rstrip("/")
        parts = prefix.split("/") if prefix else []
        for length in range(1, len(parts) + 1):
            directory = "/".join((root, *parts[:length]))
            # The last one is marked in any case, so that it stays when what lies in it now is removed.
            if length == len(parts) or not self.directory_exists(directory):
                try:
                    self.create(f"{directory}/{MARKER}", b"")
                except FileExistsError:
                    continue

    def remove_directory(self, location: str) -> None:
        stores, prefix = self._directory(location)
        if self.child_names(location):
            raise UnavailableError(f"cannot remove directory {location!r}: directory not empty", location=location)
        if not self.directory_exists(location):
            raise MissingFileError(f"cannot remove directory {location!r}: there is none", location=location)
        with translated("remove directory", location):
            stores.ask(lambda: obstore.delete(stores.once, [f"{prefix}/{MARKER}" if prefix else MARKER]))
        if prefix and self.directory_exists(location):
            raise UnsupportedError(
                f"cannot remove directory {location!r}: another program keeps it by the object {prefix + '/'!r}; remove "
                "that with the store's own tools",
                location=location,
            )

    def child_directories(self, location: str) -> Sequence[str]:
        directories, _ = self._children(location)
        return sorted(name for name in directories if not name.startswith("."))

    def child_names(self, location: str) -> Sequence[str]:
        _, prefix = self._directory(location)
        if has_empty_parts(prefix):
            # The client cannot ask for one level of such names.
            start = len(location.rstrip("/")) + 1
            return sorted({info.location[start:].partition("/")[0] for info in self.list(location)})
        directories, files = self._children(location)
        return sorted(directories | files)

    def _children(self, location: str) -> tuple[set[str], set[str]]:
        stores, prefix = self._directory(location)
        with translated("list", location):
            found: Any = stores.ask(lambda: obstore.list_with_delimiter(stores.patient, prefix or None))
        start = f"{prefix}/" if prefix else ""
        directories = {str(path) for path in found["common_prefixes"]}
        # An object called like the directory itself is a marker that ends with a slash, which the client takes away.
        files = {str(meta["path"]) for meta in found["objects"] if str(meta["path"]) != prefix}
        return {p.removeprefix(start) for p in directories}, {p.removeprefix(start) for p in files} - {MARKER}

    def capabilities(self, location: str) -> Capabilities:
        """Prove it once for each bucket, by objects called `<uuid>.tmp` below the location."""
        bucket = bucket_of(parsed_location(location))
        if bucket not in self._proved:
            base = location.rstrip("/")
            first, second = (self._target(f"{base}/{self._runtime.new_uuid()!s}.tmp") for _ in range(2))
            self._proved[bucket] = prove(first._replace(location=location), second._replace(location=location))
        return self._proved[bucket]

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


def _not_created(error: Exception, location: str, action: str = "create") -> IcekeepError:
    """The error for a name that certainly was not made; a store that has no such place is the user's fault."""
    translated_error = translate_store_error(error, action, location)
    if isinstance(translated_error, MissingFileError):
        return UsageError(f"cannot {action} {location!r}: the store knows no such place", location=location)
    return translated_error


def _unknown(location: str, cause: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"cannot tell whether file {location!r} was created: {cause}", location=location)
