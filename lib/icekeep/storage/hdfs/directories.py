"""Directories in HDFS, empty ones included; and how the entries of one are listed."""

from collections.abc import Iterator, Sequence

from hdfs_native import Client, FileStatus

from icekeep.errors import MissingFileError
from icekeep.storage.hdfs.client import HdfsClients
from icekeep.storage.hdfs.errors import translated


class HdfsDirectories:
    """The part of the HDFS storage that a catalog in a directory needs beside files."""

    _clients: HdfsClients

    def directory_exists(self, location: str) -> bool:
        client, place = self._clients.at(location)
        status = status_of(client, place.path, location)
        return status is not None and status.isdir

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

    def _children(self, location: str) -> list[tuple[str, FileStatus]]:
        client, place = self._clients.at(location)
        return list(entries_of(client, place.path, location))


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
