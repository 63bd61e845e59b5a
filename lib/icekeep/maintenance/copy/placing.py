"""Files that appear at a target whole or not at all, and never in the place of others.

A process may be killed at any line: no file is seen under its name before all of it is there. What is there already is left,
if it is what was to be put there.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from icekeep.errors import IcekeepError, SafetyError, UnavailableError
from icekeep.runtime import Runtime
from icekeep.storage.base import Storage
from icekeep.storage.locations import STORES_OF_KEYS, parse_location, store_kind
from icekeep.storage.wrappers import StorageWrapper

_CHUNK_BYTES = 8 << 20


class WholeFiles(StorageWrapper):
    """Another storage whose `write` shows a file under its name once it is complete, also where the process is killed.

    Object stores do that by themselves. On disks and in HDFS a file is written beside its place, as `<uuid>.tmp`, and moved
    there; one that a kill leaves is an orphan.
    """

    def __init__(self, inner: Storage, runtime: Runtime) -> None:
        super().__init__(inner)
        self._runtime = runtime

    def __reduce__(self) -> tuple[type["WholeFiles"], tuple[Storage, Runtime]]:
        return type(self), (self.inner, self._runtime)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        if store_kind(parse_location(location).scheme) in STORES_OF_KEYS:
            with self.inner.write(location) as stream:
                yield stream
            return
        temporary = f"{location.rpartition('/')[0]}/{self._runtime.new_uuid()}.tmp"
        with self.inner.write(temporary) as stream:
            yield stream
        try:
            self.inner.move(temporary, location)
        except BaseException:
            with suppress(IcekeepError):
                self.inner.delete_many([temporary])
            raise


def taken(location: str) -> SafetyError:
    """The error for a place at the target that another file has."""
    return SafetyError(
        f"{location!r} is at the target already and has another content than the copy; nothing was overwritten; give another "
        "target, or remove that file if nobody needs it",
        location=location,
    )


def put(storage: Storage, location: str, data: bytes, is_same: Callable[[bytes], bool]) -> int:
    """Put a small file in its place; returns how long the file is that is there.

    Args:
        storage: one of `WholeFiles`.
        is_same: whether other bytes mean the same.

    Raises:
        SafetyError: another file has the name.
    """
    try:
        with storage.write(location) as stream:
            stream.write(data)
    except FileExistsError:
        there = storage.read(location)
        if there != data and not is_same(there):
            raise taken(location) from None
        return len(there)
    return len(data)


def copy_file(source: Storage, location: str, target: Storage, to: str, size_bytes: int, *, verify: bool) -> int:
    """Copy a file; returns how many bytes were copied, 0 where it is there already.

    Args:
        target: one of `WholeFiles`.
        size_bytes: how long it is by metadata.
        verify: read both files once the copy is in its place, and compare their checksums.

    Raises:
        MissingFileError: it is not at the source.
        SafetyError: another file has the name, or the source is not as long as metadata says.
        UnavailableError: what came is not what was read before.
    """
    found = target.head(to)
    copied = b""
    if found is None:
        try:
            copied = _copied(source, location, target, to, size_bytes)
        except FileExistsError:
            found = target.head(to)
    if found is not None and (
        found.size_bytes != size_bytes or (verify and _checksum(source, location) != _checksum(target, to))
    ):
        raise taken(to)
    if found is None and verify and _checksum(target, to) != copied:
        raise UnavailableError(
            f"the copy {to!r} is not what was read of {location!r}; remove it and run the copy again"
        )
    return 0 if found is not None else size_bytes


def _copied(source: Storage, location: str, target: Storage, to: str, size_bytes: int) -> bytes:
    """Copy the bytes; returns their checksum."""
    checksum, length = hashlib.blake2b(), 0
    with source.open(location) as stream, target.write(to) as out:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum.update(chunk)
            length += len(chunk)
            out.write(chunk)
        if length != size_bytes:
            raise SafetyError(
                f"file {location!r} is {length} bytes long where metadata says {size_bytes}; it was not copied; "
                "`icekeep check` says what else is wrong with the table",
                location=location,
            )
    return checksum.digest()


def _checksum(storage: Storage, location: str) -> bytes:
    checksum = hashlib.blake2b()
    with storage.open(location) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum.update(chunk)
    return checksum.digest()
