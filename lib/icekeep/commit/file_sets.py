"""Live files as they were read, which a change removes: a small set is held in memory, a large one is stored.

A file is found again in a base by a digest, 16 bytes, of all that may not have changed, whichever manifest lists its entry
then. A stored set has one part for each manifest that its files were read from, so that filtering a manifest loads one part.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b

import msgspec

from icekeep.decoding import from_msgpack
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.collections import PartSet, PositionSet, Renumbering, narrowed, packed_positions, unpacked_positions
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.reach import DIGEST_BYTES, AppliedDelete, partition_key
from icekeep.storage.base import Storage

HELD_MAX_COUNT = 100_000
"""A larger set is stored: the entries of this many files take about 100 MB of the driver."""

Digest = bytes


def digest_of(facts: object) -> Digest:
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def digest_of_all(facts: Iterable[Hashable]) -> Digest:
    """A digest of a set, whatever the order, which stands for the set in keys."""
    return digest_of(sorted(map(repr, facts)))


def entry_digest(entry: ManifestEntry) -> Digest:
    """Equal for a live entry as it was read and as it is in a base: same file, sequence number, partition, first row id."""
    file = entry.data_file
    facts = (file.file_path, file.content_offset, entry.sequence_number, partition_key(file), file.first_row_id)
    return digest_of(facts)


class FilesToFind(msgspec.Struct, frozen=True):
    """The path of each file by its `entry_digest`; of a stored set also the applied deletes, by path."""

    paths: Mapping[Digest, str]
    applied: Mapping[str, AbstractSet[AppliedDelete]]


class ReadFile(msgspec.Struct, frozen=True):
    """A live file as it was read, the manifest that listed it, and the delete files that were applied to its rows."""

    entry: ManifestEntry
    manifest_path: str
    applied_deletes: AbstractSet[AppliedDelete] = frozenset()


class StoredPart(msgspec.Struct, frozen=True):
    """The files of a stored set that were read from one manifest; `number` is in the name of the part's file."""

    manifest_path: str
    number: int
    files_count: int
    records_count: int


class StoredFileSet(msgspec.Struct, frozen=True):
    """A set in storage; `parts` has the number of each part by manifest path. Its length is that in files."""

    directory: str
    parts: Mapping[str, int]
    files_count: int
    records_count: int

    @classmethod
    def of(cls, directory: str, parts: Sequence[StoredPart]) -> "StoredFileSet":
        numbers = {part.manifest_path: part.number for part in parts}
        if len(numbers) < len(parts):
            raise IcekeepBug(f"two parts of the set of files in {directory!r} are of one manifest")
        return cls(directory, numbers, sum(p.files_count for p in parts), sum(p.records_count for p in parts))

    def __len__(self) -> int:
        return self.files_count

    def locations(self) -> list[str]:
        return [_part_location(self.directory, number) for number in self.parts.values()]

    def load(self, storage: Storage, manifest_paths: Iterable[str]) -> FilesToFind:
        """The files that were read from these manifests; raises `InvalidTableError` for a corrupt part."""
        paths: dict[Digest, str] = {}
        applied: dict[str, AbstractSet[AppliedDelete]] = {}
        for path in manifest_paths:
            location = _part_location(self.directory, self.parts[path])
            try:
                part = from_msgpack(storage.read(location), _Part, unpacked_positions)
            except msgspec.DecodeError as error:
                raise InvalidTableError(f"cannot read the set of files in {location!r}: {error}") from error
            paths.update(part.paths)
            # Files with the same deletes share one set.
            sets: dict[PositionSet, PartSet[AppliedDelete]] = {}
            for file_path, some in part.applied_by.items():
                applied[file_path] = sets.setdefault(some, PartSet(part.deletes, some))
        return FilesToFind(paths, applied)


FileSet = tuple[ManifestEntry, ...] | StoredFileSet
"""Files that a change removes: entries as they were read, or a handle that a `ManifestReader` resolves."""


class _Part(msgspec.Struct, frozen=True):
    """`FilesToFind` as it is encoded: each delete file once, since many data files may share theirs."""

    paths: Mapping[Digest, str]
    deletes: tuple[AppliedDelete, ...]
    applied_by: Mapping[str, PositionSet]


def _part_location(directory: str, number: int) -> str:
    return f"{directory}/files-{number}.msgpack"


def store_part(files: Sequence[ReadFile], storage: Storage, directory: str, number: int) -> StoredPart:
    """Write the files of one manifest as a part of a set; the same files are the same bytes.

    Raises `InvalidTableError` where a file was read twice. `number` is that of no other part of the set.
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
    """All delete files, each once, and by data file path the positions of its own among them, if any."""
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
    # Its rows were read as often as it is listed, but only one of its entries would be removed.
    return InvalidTableError(f"data file {path!r} is live more than once in the table; it cannot be rewritten")
