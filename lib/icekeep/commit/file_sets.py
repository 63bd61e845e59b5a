"""Live files as they were read, which a change removes: few are held as they are, many lie in storage.

To find them again in a base, a digest of all that must still be so is enough: sixteen bytes a file, wherever its entry is
listed then. A stored set is kept in parts, one for each manifest that its files were read from, so that filtering a manifest
loads what concerns it and no more.

Deletes of positions that come while a data file is rewritten follow its rows: a change only finds which these are. To read
them, and to write them as deletes of the rows in the new files, it needs a `DeleteCarrier`, as it needs a `ManifestReader`
for manifests.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Protocol

import msgspec

from icekeep.decoding import from_msgpack
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.collections import PartSet, PositionSet, Renumbering, narrowed, packed_positions, unpacked_positions
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import AppliedDelete, partition_key
from icekeep.storage.base import Storage

HELD_MAX_COUNT = 100_000
"""A larger set is stored: the entries of this many files take some 100 MB of the driver."""

Digest = bytes


def digest_of(facts: object) -> Digest:
    """Sixteen bytes that are equal for equal facts."""
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def digest_of_all(facts: Iterable[Hashable]) -> Digest:
    """The same of many facts, whatever their order: what a large set is compared by in a key."""
    return digest_of(sorted(map(repr, facts)))


def entry_digest(entry: ManifestEntry) -> Digest:
    """Equal for a live entry as it was read and as a base holds it: same file, sequence number, partition, row id."""
    file = entry.data_file
    facts = (file.file_path, file.content_offset, entry.sequence_number, partition_key(file), file.first_row_id)
    return digest_of(facts)


class FilesToFind(msgspec.Struct, frozen=True):
    """The path of each file by the digest of its entry; of a stored set also the applied deletes, by path."""

    paths: Mapping[Digest, str]
    applied: Mapping[str, AbstractSet[AppliedDelete]]


class ReadFile(msgspec.Struct, frozen=True):
    """A live file as it was read, the manifest that listed it, and the delete files that were applied to its rows."""

    entry: ManifestEntry
    manifest_path: str
    applied_deletes: AbstractSet[AppliedDelete] = frozenset()


class StoredPart(msgspec.Struct, frozen=True):
    """The files of a stored set that were read from one manifest; `number` names the file that says which they are."""

    manifest_path: str
    number: int
    files_count: int
    records_count: int


class StoredFileSet(msgspec.Struct, frozen=True):
    """A set in storage, of whose parts `parts` says the number, by manifest path; its length is that in files."""

    directory: str
    parts: Mapping[str, int]
    files_count: int
    records_count: int

    @classmethod
    def of(cls, directory: str, parts: Sequence[StoredPart]) -> "StoredFileSet":
        """The set whose parts were written to a directory."""
        numbers = {part.manifest_path: part.number for part in parts}
        if len(numbers) < len(parts):
            raise IcekeepBug(f"two parts of the set of files in {directory!r} are of one manifest")
        return cls(directory, numbers, sum(p.files_count for p in parts), sum(p.records_count for p in parts))

    def __len__(self) -> int:
        return self.files_count

    def locations(self) -> list[str]:
        """Where its parts lie."""
        return [_part_location(self.directory, number) for number in self.parts.values()]

    def load(self, storage: Storage, manifest_paths: Iterable[str]) -> FilesToFind:
        """The files that were read from some manifests; raises `InvalidTableError` for a part that is broken."""
        paths: dict[Digest, str] = {}
        applied: dict[str, AbstractSet[AppliedDelete]] = {}
        for path in manifest_paths:
            location = _part_location(self.directory, self.parts[path])
            try:
                part = from_msgpack(storage.read(location), _Part, unpacked_positions)
            except msgspec.DecodeError as error:
                raise InvalidTableError(f"cannot read the set of files in {location!r}: {error}") from error
            paths.update(part.paths)
            # Files with the same deletes have the same set, not equal ones.
            sets: dict[PositionSet, PartSet[AppliedDelete]] = {}
            for file_path, some in part.applied_by.items():
                applied[file_path] = sets.setdefault(some, PartSet(part.deletes, some))
        return FilesToFind(paths, applied)


FileSet = tuple[ManifestEntry, ...] | StoredFileSet
"""Files that a change removes: entries as they were read, or a handle that a `ManifestReader` resolves."""


class _Part(msgspec.Struct, frozen=True):
    """What a part of a set says: as `FilesToFind`, with each delete file once, since many files may share theirs."""

    paths: Mapping[Digest, str]
    deletes: tuple[AppliedDelete, ...]
    applied_by: Mapping[str, PositionSet]


def _part_location(directory: str, number: int) -> str:
    return f"{directory}/files-{number}.msgpack"


def store_part(files: Sequence[ReadFile], storage: Storage, directory: str, number: int) -> StoredPart:
    """Write the files of one manifest as a part of a set, of a number that no other part has; the same files, the same bytes.

    Raises:
        InvalidTableError: a file was read twice.
    """
    paths: dict[Digest, str] = {}
    applied: dict[str, PartSet[AppliedDelete]] = {}
    for file in files:
        path, deletes = file.entry.data_file.file_path, file.applied_deletes
        if path in applied:
            raise live_twice(path)
        paths[entry_digest(file.entry)] = path
        if not isinstance(deletes, PartSet):
            in_order = sorted(deletes, key=lambda d: (d.file_path, d.content_offset or 0, d.sequence_number))
            deletes = PartSet(in_order, PositionSet(range(len(in_order))))
        applied[path] = deletes
    part = _Part(paths, *_numbered(applied))
    with storage.write(_part_location(directory, number)) as stream:
        stream.write(msgspec.msgpack.encode(part, enc_hook=packed_positions))
    return StoredPart(
        manifest_path=files[0].manifest_path,
        number=number,
        files_count=len(paths),
        records_count=sum(file.entry.data_file.record_count for file in files),
    )


def _numbered(
    applied: Mapping[str, PartSet[AppliedDelete]],
) -> tuple[tuple[AppliedDelete, ...], dict[str, PositionSet]]:
    """The delete files of all, each once, and which of them each path has, if any."""
    by_whole: dict[int, list[str]] = defaultdict(list)
    for path, part in applied.items():
        by_whole[id(part.whole)].append(path)
    numbers: dict[AppliedDelete, int] = {}
    positions: dict[str, PositionSet] = {}
    for paths in by_whole.values():
        used, parts = narrowed(applied[paths[0]].whole, [applied[path].positions for path in paths])
        places = Renumbering([numbers.setdefault(delete, len(numbers)) for delete in used])
        positions |= zip(paths, map(places.moved, parts), strict=True)
    return tuple(numbers), {path: positions[path] for path in applied if positions[path]}


def live_twice(path: str) -> InvalidTableError:
    """The error for a data file that two live entries list."""
    # Its rows were read as often as it is listed, but only one of its entries would be removed.
    return InvalidTableError(f"data file {path!r} is live more than once in the table; it cannot be rewritten")


class ChangedDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """What deletes positions of one replaced data file in a base, where it is not what the rewrite applied.

    Attributes:
        deletes: the live position delete files, or the vector, that must be looked at.
        lacks_positions: of those that were applied one is not live any more: these must hold all positions that it held.
        lacks_keys: an equality delete file that was applied is not: these must hold every row that the rewrite dropped.
    """

    deletes: tuple[ManifestEntry, ...]
    lacks_positions: bool = False
    lacks_keys: bool = False


class Carried(msgspec.Struct, frozen=True):
    """Deletes of rows of the new files, and the data files for which that cannot be done, each with why."""

    deletes: tuple[DataFile, ...] = ()
    refusals: Mapping[str, str] = {}


class DeleteCarrier(Protocol):
    """Knows where each row of the replaced files went; asked by every attempt of a commit, each with its own base."""

    def carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, noted: Callable[[str], None]
    ) -> Carried:
        """Write the deletes that came since the rewrite read, as deletes of the rows where they are now.

        Args:
            changed: by the path of a replaced data file.
            base: whose format version says what kind of delete files these are.
            noted: is given each location once it is written, so that what no snapshot names is removed.
        """
