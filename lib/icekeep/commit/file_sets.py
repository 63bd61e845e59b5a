"""Live files as they were read: which of them a change removes. Few are held as they are, many lie in storage.

To find them again in a base, a digest of all that must still be so is enough: sixteen bytes a file, wherever its entry is
listed by then. A stored set is kept in parts, one for each manifest that its files were read from, so that who filters a
manifest loads what concerns it and no more.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.applicability import AppliedDelete, partition_key
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.storage.base import Storage

HELD_MAX_COUNT = 100_000
"""Above so many files a set is stored: their entries would take some 100 MB of the driver."""

Digest = bytes


class ReadFile(msgspec.Struct, frozen=True):
    """A live file as it was read, the manifest that listed it, and the delete files that were applied to its rows."""

    entry: ManifestEntry
    manifest_path: str
    applied_deletes: frozenset[AppliedDelete] = frozenset()


class StoredFileSet(msgspec.Struct, frozen=True):
    """A set in storage; `parts` says by manifest path which number its part has.

    `files_count` and `records_count` are those of the whole set.
    """

    directory: str
    parts: Mapping[str, int]
    files_count: int
    records_count: int

    def locations(self) -> list[str]:
        """Where its parts lie, for whoever removes them."""
        return [self._location(number) for number in self.parts.values()]

    def load(self, storage: Storage, manifest_paths: Iterable[str]) -> "Wanted":
        """The files that were read from some manifests; raises `InvalidTableError` for a part that is broken."""
        wanted = Wanted({}, {})
        for path in manifest_paths:
            location = self._location(self.parts[path])
            try:
                part = msgspec.msgpack.decode(storage.read(location), type=Wanted)
            except msgspec.DecodeError as error:
                raise InvalidTableError(f"cannot read the set of files in {location!r}: {error}") from error
            wanted = Wanted({**wanted.paths, **part.paths}, {**wanted.applied, **part.applied})
        return wanted

    def _location(self, number: int) -> str:
        return f"{self.directory}/files-{number}.msgpack"


class Wanted(msgspec.Struct, frozen=True):
    """Files to be found: the path of each by the digest of its entry; of a stored set also the applied deletes, by path."""

    paths: Mapping[Digest, str]
    applied: Mapping[str, frozenset[AppliedDelete]]


FileSet = tuple[ManifestEntry, ...] | StoredFileSet
"""Files that a change removes: entries as they were read, or a handle that a `ManifestReader` resolves."""


def count_of(files: FileSet) -> int:
    """How many files a set has."""
    return files.files_count if isinstance(files, StoredFileSet) else len(files)


def wanted_of(entries: Iterable[ManifestEntry]) -> Wanted:
    """What to look for, for entries that are held."""
    return Wanted({entry_digest(entry): entry.data_file.file_path for entry in entries}, {})


def entry_digest(entry: ManifestEntry) -> Digest:
    """Equal for a live entry as it was read and as a base holds it: same file, sequence number, partition, row id."""
    file = entry.data_file
    facts = (file.file_path, file.content_offset, entry.sequence_number, partition_key(file), file.first_row_id)
    return _digest(repr(facts))


def path_digest(path: str) -> Digest:
    """What a path is compared by where paths are too many to hold."""
    return _digest(path)


def store_file_set(files: Iterable[ReadFile], storage: Storage, directory: str) -> StoredFileSet:
    """Write files, neighbours by manifest, as a set in storage; memory grows with the files of one manifest.

    Raises:
        InvalidTableError: a file was read twice, so that only one of its entries would be removed.
    """
    parts: dict[str, int] = {}
    seen: set[Digest] = set()
    files_count = records_count = 0
    for manifest_path, some in groupby(files, attrgetter("manifest_path")):
        if manifest_path in parts:
            raise IcekeepBug(f"files of {manifest_path!r} are not given one after the other")
        paths: dict[Digest, str] = {}
        applied: dict[str, frozenset[AppliedDelete]] = {}
        for file in some:
            path = file.entry.data_file.file_path
            if (digest := path_digest(path)) in seen:
                raise live_twice(path)
            seen.add(digest)
            paths[entry_digest(file.entry)] = path
            if file.applied_deletes:
                applied[path] = file.applied_deletes
            records_count += file.entry.data_file.record_count
        files_count += len(paths)
        stored = StoredFileSet(directory, {manifest_path: len(parts)}, 0, 0)
        with storage.write(stored.locations()[0]) as stream:
            stream.write(msgspec.msgpack.encode(Wanted(paths, applied)))
        parts[manifest_path] = len(parts)
    return StoredFileSet(directory, parts, files_count, records_count)


def live_twice(path: str) -> InvalidTableError:
    """The error for a data file that two live entries list."""
    # Its rows were read as often as it is listed, but only one of its entries would be removed.
    return InvalidTableError(f"data file {path!r} is live more than once in the table; it cannot be rewritten")


def _digest(text: str) -> Digest:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
