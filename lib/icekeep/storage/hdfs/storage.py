"""Files and directories in HDFS, through hdfs-native.

A new name appears by `rename2` without `OVERWRITE`: the NameNode refuses it, under its lock, if the name is taken. The
older `rename` that Iceberg Java's HadoopCatalog calls refuses as well, so the two may commit to one table.

Symbolic links, switched off in HDFS since 2.x, cannot be told from files here.
"""

import errno
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, cast

from hdfs_native import Client, FileStatus, FileWriter, WriteOptions

from icekeep.errors import IcekeepError, MissingFileError, OutcomeUnknownError, UnavailableError, UnsupportedError
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.types import MIB
from icekeep.storage.base import (
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    FileInfo,
    ListingShare,
    MoveOutcome,
    answer_each,
    directory_shares,
    moved_one_by_one,
    whole,
)
from icekeep.storage.hdfs.client import FAILURES, HdfsClients, abandon, reason, translated
from icekeep.storage.ranges import RangeReader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def status_of(client: Client, path: str, location: str) -> FileStatus | None:
    """What the NameNode knows about a path; `None` if it is not there."""
    try:
        with translated("look at", location):
            return client.get_file_info(path)
    except MissingFileError:
        return None


def entries_of(client: Client, directory_path: str, location: str) -> Iterator[tuple[str, FileStatus]]:
    """The names right in a directory and what they are, streamed; nothing if there is no such directory."""
    try:
        with translated("list", location):
            for status in client.list_status(directory_path):
                # The listing of a file is the file itself.
                if status.path != directory_path:
                    yield status.path.rsplit("/", 1)[-1], status
    except MissingFileError:
        return


_BUFFER_BYTES = MIB
_CALLS_AT_ONCE = 8


class HdfsStorage:
    """Storage in HDFS, for locations with `hdfs:`; see `HdfsClients` for the properties.

    Files and directories get the permissions that Hadoop's clients give them, with the property
    `fs.permissions.umask-mode` (octal) or 022.
    """

    def __init__(self, properties: Mapping[str, str], runtime: Runtime = SYSTEM) -> None:
        self._clients = HdfsClients(properties)
        self._runtime = runtime
        self._proved: dict[str, Capabilities] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_proved": {}}

    def open(self, location: str) -> BinaryIO:
        client, place = self._clients.at(location)
        with translated("open", location):
            reader = client.read(place.path)

        def fetch(start: int, length: int) -> bytes:
            with translated("read", location):
                data = reader.read_range(start, length)
            if len(data) != length:
                # To go on with less would end a file before its end.
                raise UnavailableError(f"cannot read {location!r}: {len(data)} of {length} bytes came")
            return data

        # The stream of hdfs-native itself panics on a seek beyond the end.
        return cast(BinaryIO, io.BufferedReader(RangeReader(fetch, reader.size), _BUFFER_BYTES))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        client, place = self._clients.at(location)
        return _read(client, place.path, location, length_bytes)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        client, place = self._clients.at(location)
        with translated("write", location):
            writer = client.create(place.path, self._new_file())
        try:
            # The writer outlives the stream, since some users close the stream that they are given.
            sink = _NewFile(writer, location)
            stream = io.BufferedWriter(sink, _BUFFER_BYTES)
            try:
                yield cast(BinaryIO, stream)
            except BaseException:
                sink.is_abandoned = True
                stream.close()
                raise
            stream.close()
            with translated("write", location):
                _finish(writer)
        except BaseException:
            abandon(writer)
            _remove_if_possible(client, place.path)
            raise

    def create(self, location: str, data: bytes) -> None:
        """Create a small file, as `Storage.create` says: write it under a name of its own, then rename it.

        A rename whose answer is lost may have happened, and one that was sent twice is refused although it happened. The
        temporary name settles it, since it is a fresh UUID that only this call renames or deletes: while we can still delete
        that file it was not renamed, and whatever of ours is still on its way will find nothing to rename. If it is gone and
        `location` holds our bytes, it was renamed. Anything else leaves the outcome unknown. Equal bytes alone would prove
        nothing: two writers may write the same.
        """
        client, place = self._clients.at(location)
        # Not hidden, so that what a crash leaves behind is an orphan to every engine's orphan removal.
        temporary = f"{_parent(place.path)}/{self._runtime.new_uuid()}.tmp"
        self._write_temporary(client, temporary, data, location)
        try:
            with translated("create", location):
                client.rename(temporary, place.path, overwrite=False)
        except (IcekeepError, FileExistsError) as error:
            if not _was_renamed(client, temporary, place.path, data, location, error):
                raise
        except BaseException:
            _remove_if_possible(client, temporary)
            raise

    def move(self, source: str, target: str) -> None:
        client, source_place = self._clients.at(source)
        _, target_place = self._clients.at(target)
        if source_place.authority != target_place.authority:
            raise UnsupportedError(
                f"cannot move {source!r} to {target!r}: they are in different stores", location=source
            )
        if source_place.path == target_place.path:
            raise FileExistsError(errno.EEXIST, "cannot move a file to itself", target)
        before = status_of(client, source_place.path, source)
        if before is None or before.isdir:
            raise MissingFileError(f"cannot move {source!r}: there is no such file", location=source)
        self.make_directory(target.rstrip("/").rsplit("/", 1)[0])
        try:
            with translated("move", source):
                client.rename(source_place.path, target_place.path, overwrite=False)
        except (UnavailableError, MissingFileError):
            # Renamed, and the answer was lost or the request was sent twice?
            after = status_of(client, target_place.path, target)
            # A rename changes nothing else of a file.
            is_moved = after is not None and _identity(before) == _identity(after)
            if status_of(client, source_place.path, source) is not None or not is_moved:
                raise

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        """As `Storage.move_many`: several renames at a time, each of which the NameNode has written down when it answers."""
        return moved_one_by_one(self.move, moves, _CALLS_AT_ONCE)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return answer_each(self._delete, list(locations), lambda location: location, _CALLS_AT_ONCE)

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return directory_shares(prefix_location, count, self._subdirectories)

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        client, place = self._clients.at(share.prefix)
        directories = [(share.prefix.rstrip("/"), place.path)]
        while directories:
            location, path = directories.pop()
            for name, status in entries_of(client, path, location):
                if not status.isdir:
                    yield _file_info(f"{location}/{name}", status)
                elif share.is_deep:
                    directories.append((f"{location}/{name}", status.path))

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        return self.list_share(ListingShare(prefix_location))

    def head(self, location: str) -> FileInfo | None:
        client, place = self._clients.at(location)
        status = status_of(client, place.path, location)
        return None if status is None or status.isdir else _file_info(location, status)

    def directory_exists(self, location: str) -> bool:
        client, place = self._clients.at(location)
        return _is_directory(client, place.path, location)

    def make_directory(self, location: str) -> None:
        client, place = self._clients.at(location)
        with translated("make directory", location):
            client.mkdirs(place.path, 0o777 & ~self._clients.umask, create_parent=True)

    def remove_directory(self, location: str) -> None:
        client, place = self._clients.at(location)
        if not self.directory_exists(location):
            raise MissingFileError(
                f"cannot remove directory {location!r}: there is no such directory", location=location
            )
        with translated("remove directory", location):
            client.delete(place.path, recursive=False)

    def child_directories(self, location: str) -> Sequence[str]:
        return sorted(name for name, status in self._children(location) if status.isdir and not name.startswith("."))

    def child_names(self, location: str) -> Sequence[str]:
        return sorted(name for name, _ in self._children(location))

    def _children(self, location: str) -> Sequence[tuple[str, FileStatus]]:
        client, place = self._clients.at(location)
        return list(entries_of(client, place.path, location))

    def capabilities(self, location: str) -> Capabilities:
        """As `Storage.capabilities` says; tried once for each NameNode or nameservice in the life of this storage."""
        client, place = self._clients.at(location)
        if place.authority not in self._proved:
            directory = place.path
            while not _is_directory(client, directory, location):
                directory = _parent(directory) or "/"
            proved = self._second_rename_fails(client, directory.rstrip("/"), location)
            self._proved[place.authority] = Capabilities(exclusive_create=proved, move=proved)
        return self._proved[place.authority]

    def _subdirectories(self, location: str) -> Sequence[str]:
        base = location.rstrip("/")
        return [f"{base}/{name}" for name, status in self._children(location) if status.isdir]

    def _new_file(self) -> WriteOptions:
        return WriteOptions(permission=0o666 & ~self._clients.umask, overwrite=False, create_parent=True)

    def _write_temporary(self, client: Client, path: str, data: bytes, location: str) -> None:
        try:
            with translated("create", location):
                writer = client.create(path, self._new_file())
        except FileExistsError as error:
            raise UnavailableError(
                f"cannot create {location!r}: its temporary file {path!r} exists already, by a request that was sent twice",
                location=location,
            ) from error
        try:
            with translated("create", location):
                if data:
                    writer.write(data)
                _finish(writer)
        except BaseException:
            abandon(writer)
            _remove_if_possible(client, path)
            raise

    def _second_rename_fails(self, client: Client, directory: str, location: str) -> bool:
        first, second, target = (f"{directory}/{self._runtime.new_uuid()}.tmp" for _ in range(3))
        try:
            for path in (first, second):
                self._write_temporary(client, path, path.encode(), location)
            with translated("try", location):
                client.rename(first, target, overwrite=False)
                try:
                    client.rename(second, target, overwrite=False)
                except FileExistsError:
                    return _read(client, target, location) == first.encode()
            return False
        finally:
            for path in (first, second, target):
                _remove_if_possible(client, path)

    def _delete(self, location: str) -> DeleteOutcome:
        try:
            client, place = self._clients.at(location)
            status = status_of(client, place.path, location)
            if status is None:
                return DeleteOutcome(location, DeleteStatus.MISSING)
            if status.isdir:
                return DeleteOutcome(location, DeleteStatus.FAILED, f"{location!r} is a directory")
            with translated("delete", location):
                deleted = client.delete(place.path, recursive=False)
        except IcekeepError as error:
            return DeleteOutcome(location, DeleteStatus.FAILED, error.message)
        return DeleteOutcome(location, DeleteStatus.DELETED if deleted else DeleteStatus.MISSING)


class _NewFile(io.RawIOBase):
    """The raw end of a stream that is being written; one that is abandoned takes what comes and forgets it."""

    def __init__(self, writer: FileWriter, location: str) -> None:
        self._writer = writer
        self._location = location
        self._written_bytes = 0
        self.is_abandoned = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written_bytes

    def write(self, data: "ReadableBuffer", /) -> int:
        view = memoryview(data)
        if not self.is_abandoned and view.nbytes:
            with translated("write", self._location):
                self._writer.write(view.tobytes())
        self._written_bytes += view.nbytes
        return view.nbytes


def _was_renamed(
    client: Client, temporary: str, path: str, data: bytes, location: str, refusal: IcekeepError | FileExistsError
) -> bool:
    """Settle a rename that failed: true if it happened all the same, false with a proof that it did not and will not."""
    cause = refusal
    try:
        if status_of(client, temporary, location) is None:
            if _read(client, path, location) == data:
                return True
        else:
            with translated("delete", location):
                if client.delete(temporary, recursive=False):
                    return False
    except IcekeepError as error:
        cause = error
    raise OutcomeUnknownError(
        f"cannot tell whether file {location!r} was created: {reason(refusal.__cause__)}", location=location
    ) from cause


def _read(client: Client, path: str, location: str, length_bytes: int | None = None) -> bytes:
    with translated("read", location):
        reader = client.read(path)
        data, stored_bytes = reader.read(), reader.size
    return whole(data, location, stored_bytes, length_bytes)


def _finish(writer: FileWriter) -> None:
    """Close a file durably: on the disks of its DataNodes, and known to the NameNode."""
    # An erasure-coded file cannot be flushed before it is closed.
    with suppress(NotImplementedError):
        writer.hsync()
    writer.close()


def _remove_if_possible(client: Client, path: str) -> None:
    with suppress(*FAILURES):
        client.delete(path, recursive=False)


def _is_directory(client: Client, path: str, location: str) -> bool:
    status = status_of(client, path, location)
    return status is not None and status.isdir


def _identity(status: FileStatus) -> tuple[object, ...]:
    return status.isdir, status.length, status.modification_time, status.owner


def _file_info(location: str, status: FileStatus) -> FileInfo:
    return FileInfo(location, status.length, status.modification_time)


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0]
