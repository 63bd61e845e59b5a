"""Which delete file reaches which data file (spec, "Scan Planning" and "Delete Formats").

One rule, on entries as manifests hold them once they are committed: commits ask it of values, planning as joins. A delete
file reaches a data file when a reader of the data file must apply it. Two things follow that no pair of files can tell:
a deletion vector takes the place of position delete files, and a delete file that reaches no live file is dangling.
"""

import math
import struct
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.metadata_columns import DELETE_FILE_PATH
from icekeep.spec.partitioning import PartitionSpec

PartitionKey = tuple[int, tuple[Any, ...]]
PathDigest = bytes
PathBounds = tuple[bytes | None, bytes | None]
Specs = Mapping[int, PartitionSpec]


class AppliedDelete(msgspec.Struct, frozen=True):
    """Names one committed delete file; the vectors of one Puffin file differ in their offset."""

    file_path: str
    content_offset: int | None
    sequence_number: int
    content: FileContent = FileContent.POSITION_DELETES


def applied_delete(delete: ManifestEntry) -> AppliedDelete:
    """What names the delete file of an entry."""
    file = delete.data_file
    return AppliedDelete(file.file_path, file.content_offset, sequence_number(delete), file.content)


def is_deletion_vector(file: DataFile) -> bool:
    """Whether a file is a blob of a Puffin file that holds the deleted positions of one data file."""
    return file.content is FileContent.POSITION_DELETES and file.file_format.lower() == "puffin"


def partition_key(file: DataFile) -> PartitionKey:
    """The spec and partition of a file, equal where the spec says partitions are.

    Floating point values are compared by their bits: a NaN equals every NaN, and -0.0 is not 0.0.
    """
    return file.spec_id, tuple(_bits(value) if isinstance(value, float) else value for value in file.partition)


def path_digest(path: str | bytes) -> PathDigest:
    """What a path, or its UTF-8, is compared by where paths are too many to hold."""
    return blake2b(path if isinstance(path, bytes) else _encoded(path), digest_size=16).digest()


def sequence_number(entry: ManifestEntry) -> int:
    """The data sequence number of a committed entry."""
    if entry.sequence_number is None:
        raise IcekeepBug(f"the entry of {entry.data_file.file_path!r} has no sequence number: it is not committed")
    return entry.sequence_number


def reaches(delete: ManifestEntry, data: ManifestEntry, specs: Specs) -> bool:
    """Whether a delete file must be applied to a data file, unless a deletion vector takes its place.

    A position delete file whose bounds of paths are one path is for that data file; other bounds say nothing, see
    `sole_path`. A delete file that is for this data file alone by `referenced_data_file`, and new enough, and lies in
    another partition, is an error: no reader can tell whether it applies.

    Args:
        delete: the entry of a position delete file, a deletion vector or an equality delete file.
        data: the entry of a data file.
        specs: the partition specs of the table.

    Raises:
        InvalidTableError: a deletion vector names no data file, a partition spec is missing, or a delete file is for this
            data file alone and has another partition spec or partition.
    """
    file, path = delete.data_file, data.data_file.file_path
    is_everywhere, only = is_global(file, specs), only_data_file(file)
    if only not in (None, path) or not is_newer(delete, sequence_number(data)):
        return False
    if is_everywhere:
        return True
    is_elsewhere = partition_key(file) != partition_key(data.data_file)
    if is_elsewhere and only is not None:
        raise in_another_partition(file.file_path, path)
    return not is_elsewhere and (file.content is FileContent.EQUALITY_DELETES or may_name(file, path))


def is_newer(delete: ManifestEntry, data_sequence_number: int) -> bool:
    """Whether a delete file is new enough for data of a sequence number: equality deletes spare their own commit's."""
    match delete.data_file.content:
        case FileContent.POSITION_DELETES:
            return sequence_number(delete) >= data_sequence_number
        case FileContent.EQUALITY_DELETES:
            return sequence_number(delete) > data_sequence_number
    raise IcekeepBug(f"{delete.data_file.file_path!r} is a data file, not a delete file")


def is_global(file: DataFile, specs: Specs) -> bool:
    """Whether a delete file holds equality deletes for all partitions, as those of unpartitioned specs do.

    Raises:
        InvalidTableError: the partition spec of the file is missing.
    """
    if file.spec_id not in specs:
        raise InvalidTableError(f"delete file {file.file_path!r} has partition spec {file.spec_id}, which is not there")
    return file.content is FileContent.EQUALITY_DELETES and specs[file.spec_id].is_unpartitioned


def only_data_file(file: DataFile) -> str | None:
    """The path of the one data file that a position delete file or deletion vector is for; `None`: it may be for several.

    Raises:
        InvalidTableError: a deletion vector does not say which data file it is for.
    """
    if file.content is not FileContent.POSITION_DELETES:
        return None
    if file.referenced_data_file is None and is_deletion_vector(file):
        raise InvalidTableError(f"the deletion vector in {file.file_path!r} does not say which data file it is for")
    return file.referenced_data_file


def may_name(file: DataFile, path: str) -> bool:
    """Whether a position delete file or deletion vector may hold positions of the data file at a path.

    Raises:
        InvalidTableError: a deletion vector does not say which data file it is for.
    """
    only = only_data_file(file)
    if only is not None:
        return only == path
    return named_range([_encoded(path)], path_bounds(file)) == slice(0, 1)


def path_bounds(file: DataFile) -> PathBounds:
    """The least and the greatest path that a position delete file says it names, as UTF-8; `None` where it does not say."""
    lower = (file.lower_bounds or {}).get(DELETE_FILE_PATH.field_id)
    return lower, (file.upper_bounds or {}).get(DELETE_FILE_PATH.field_id)


def sole_path(bounds: PathBounds) -> bytes | None:
    """The one path that equal bounds say all rows name; `None` where they differ, and so do not keep a delete from a file.

    Bounds of several paths that are wrong, or the wrong way round, would bring deleted rows back, and other readers do not
    go by them: they look at those that are equal, and else into the file.
    """
    lower, upper = bounds
    return lower if lower == upper else None


def own_path(file: DataFile) -> bytes | None:
    """The path of the one data file that a vector or position delete file says it is of; `None` where it may be of several.

    It chooses files and counts rows. Equal bounds may be wrong, and where they were cut they are the path of no data file, so
    no delete file is dropped because of them before its rows were read.

    Raises:
        InvalidTableError: a deletion vector does not say which data file it is for.
    """
    if file.content is not FileContent.POSITION_DELETES:
        return None
    only = only_data_file(file)
    return sole_path(path_bounds(file)) if only is None else _encoded(only)


def own_path_digest(file: DataFile) -> PathDigest:
    """What a delete file and the data file that it says it is of are compared by: of two entries of one file they may differ."""
    return path_pair_digest(file.file_path, own_path(file) or b"")


def path_pair_digest(delete_path: str, data_path: bytes) -> PathDigest:
    """The `own_path_digest` of a delete file that says which data file it is of, by the paths of both."""
    return path_digest(b"\0".join((_encoded(delete_path), data_path)))


def named_range(paths: Sequence[bytes], bounds: PathBounds) -> slice:
    """Which of some paths, in order, bounds leave possible."""
    sole = sole_path(bounds)
    if sole is None:
        return slice(0, len(paths))
    # Some writers cut both bounds, and do not increment the upper one: then they are what a path begins with.
    return slice(bisect_left(paths, sole), bisect_right(paths, sole, key=lambda path: path[: len(sole)]))


def reaching_deletes(
    data: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry], specs: Specs
) -> dict[str, tuple[ManifestEntry, ...]]:
    """The deletes that a reader applies to each data file, by path, in the order of `deletes`.

    Memory grows with `data` and with what reaches it; `deletes` may be a stream.

    Raises:
        InvalidTableError: two deletion vectors reach one data file, a data file is listed twice, or as `reaches`.
    """
    files = DataFileIndex(data)
    found: dict[str, list[ManifestEntry]] = {path: [] for path in files.by_path}
    for delete in deletes:
        for entry in files.that_may_be_reached(delete, specs):
            if reaches(delete, entry, specs):
                found[entry.data_file.file_path].append(delete)
    return {path: _in_force(path, reaching) for path, reaching in found.items()}


class DataFileIndex:
    """Data files where delete files look for them: by their paths, as they came, and by their partitions."""

    def __init__(self, data: Iterable[ManifestEntry]) -> None:
        """Raises `InvalidTableError` where a data file is listed twice."""
        self.by_path: dict[str, ManifestEntry] = {}
        for entry in data:
            if entry.data_file.file_path in self.by_path:
                raise InvalidTableError(f"data file {entry.data_file.file_path!r} is live more than once in the table")
            self.by_path[entry.data_file.file_path] = entry
        self._by_partition: dict[PartitionKey, _InOrder] = defaultdict(_InOrder)
        # In the order of their UTF-8, which is that of code points: those that path bounds leave are neighbours.
        for path in sorted(self.by_path):
            self._by_partition[partition_key(self.by_path[path].data_file)].add(self.by_path[path])

    def in_partition_of(self, delete: DataFile) -> Sequence[ManifestEntry]:
        """Those of the same spec and partition as a delete file."""
        found = self._by_partition.get(partition_key(delete))
        return () if found is None else found.entries

    def that_may_be_reached(self, delete: ManifestEntry, specs: Specs) -> Iterable[ManifestEntry]:
        """All that a delete file reaches, and few others; raises `InvalidTableError` as `is_global` and `only_data_file`."""
        file = delete.data_file
        if is_global(file, specs):
            return self.by_path.values()
        only = only_data_file(file)
        if only is not None:
            return [self.by_path[only]] if only in self.by_path else ()
        found = self._by_partition.get(partition_key(file))
        return () if found is None else found.that_may_be_named(file)


class _InOrder:
    """The data files of a partition, in the order of their paths."""

    def __init__(self) -> None:
        self.entries: list[ManifestEntry] = []
        self._paths: list[bytes] = []

    def add(self, entry: ManifestEntry) -> None:
        self.entries.append(entry)
        self._paths.append(_encoded(entry.data_file.file_path))

    def that_may_be_named(self, delete: DataFile) -> list[ManifestEntry]:
        """Those that the path bounds of a delete file leave possible; all for equality deletes."""
        if delete.content is FileContent.EQUALITY_DELETES:
            return self.entries
        return self.entries[named_range(self._paths, path_bounds(delete))]


class DeleteScopes(msgspec.Struct, frozen=True):
    """Where live delete files look for rows: what must be known of live data files to tell which of them are dangling.

    Attributes:
        partitions: those that delete files lie in, with the greatest data sequence number that any of them there reaches.
        paths: digests of the data files that some are for alone, as `own_path` says.
    """

    partitions: Mapping[PartitionKey, int] = {}
    paths: frozenset[PathDigest] = frozenset()

    @classmethod
    def of(cls, deletes: Iterable[ManifestEntry], specs: Specs) -> "DeleteScopes":
        """The places of delete files; those of global equality deletes are none, since all they ask is the table's least."""
        partitions: dict[PartitionKey, int] = {}
        paths: set[PathDigest] = set()
        for delete in deletes:
            if is_global(delete.data_file, specs):
                continue
            partition = partition_key(delete.data_file)
            partitions[partition] = max(max_reached(delete), partitions.get(partition, -1))
            if (own := own_path(delete.data_file)) is not None:
                paths.add(path_digest(own))
        return cls(partitions, frozenset(paths))

    @classmethod
    def union(cls, some: Iterable["DeleteScopes"]) -> "DeleteScopes":
        """The places of all."""
        partitions: dict[PartitionKey, int] = {}
        paths: set[PathDigest] = set()
        for places in some:
            for partition, number in places.partitions.items():
                partitions[partition] = max(number, partitions.get(partition, -1))
            paths |= places.paths
        return cls(partitions, frozenset(paths))


class MinNumbers(msgspec.Struct, frozen=True):
    """The least data sequence numbers of live data files: in a partition, and at a path (of which there may be one file).

    DeleteScopes that hold no live data file have none.
    """

    partitions: Mapping[PartitionKey, int] = {}
    paths: Mapping[PathDigest, int] = {}

    @classmethod
    def of(cls, data: Iterable[tuple[DataFile, int]], asked: DeleteScopes) -> "MinNumbers":
        """Those of data files, each with its data sequence number, at the places that were asked for; may be a stream."""
        partitions: dict[PartitionKey, int] = {}
        paths: dict[PathDigest, int] = {}
        for file, number in data:
            if (partition := partition_key(file)) in asked.partitions:
                partitions[partition] = min(number, partitions.get(partition, number))
            if asked.paths and (path := path_digest(file.file_path)) in asked.paths:
                paths[path] = min(number, paths.get(path, number))
        return cls(partitions, paths)

    @classmethod
    def union(cls, some: Iterable["MinNumbers"]) -> "MinNumbers":
        """Those of all."""
        partitions: dict[PartitionKey, int] = {}
        paths: dict[PathDigest, int] = {}
        for numbers in some:
            _lower(partitions, numbers.partitions)
            _lower(paths, numbers.paths)
        return cls(partitions, paths)


def is_dangling(delete: ManifestEntry, least: MinNumbers, min_of_table: int, specs: Specs) -> bool:
    """Whether a live delete file reaches none of the live data files, by sequence numbers, partitions and its one data file.

    Path bounds are not asked, and not whether a vector takes its place, so that a file which is not dangling may do nothing
    all the same. One whose data file lies in another partition, which no table may have, is not either.

    Args:
        least: of all live data files, those that the same commit adds among them.
        min_of_table: the least data sequence number of any of them, or one below it.

    Raises:
        InvalidTableError: a deletion vector names no data file, or a partition spec is missing.
    """
    file = delete.data_file
    only = only_data_file(file)
    if is_global(file, specs):
        number: int | None = min_of_table
    elif only is not None:
        number = least.paths.get(path_digest(only))
    else:
        number = least.partitions.get(partition_key(file))
    return number is None or not is_newer(delete, number)


def seems_dangling(delete: ManifestEntry, least: MinNumbers) -> bool:
    """Whether a live position delete file reaches nothing if all its rows are of the path that both its bounds are.

    Only its rows can show that they are: the bounds may be wrong, or were cut.

    Args:
        least: as for `is_dangling`.
    """
    file = delete.data_file
    if file.referenced_data_file is not None or (own := own_path(file)) is None:
        return False
    number = least.paths.get(path_digest(own))
    return number is None or not is_newer(delete, number)


def max_reached(delete: ManifestEntry) -> int:
    """The greatest data sequence number that is still reached."""
    number = sequence_number(delete)
    return number if is_newer(delete, number) else number - 1


def _lower(numbers: dict[Any, int], others: Mapping[Any, int]) -> None:
    for place, number in others.items():
        numbers[place] = min(number, numbers.get(place, number))


_NAN = struct.pack(">d", math.nan)


def _encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass")


def _bits(value: float) -> bytes:
    return _NAN if math.isnan(value) else struct.pack(">d", value)


def in_another_partition(delete_path: str, data_path: str) -> InvalidTableError:
    """The error for a delete file that is for one data file of another spec or partition."""
    return InvalidTableError(
        f"delete file {delete_path!r} is for data file {data_path!r}, which has another partition spec or partition"
    )


def several_vectors(path: str, count: int) -> InvalidTableError:
    """The error for a data file that several deletion vectors reach."""
    return InvalidTableError(f"data file {path!r} has {count} deletion vectors; it may have one")


def _in_force(path: str, reaching: list[ManifestEntry]) -> tuple[ManifestEntry, ...]:
    vectors = [delete for delete in reaching if is_deletion_vector(delete.data_file)]
    if len(vectors) > 1:
        raise several_vectors(path, len(vectors))
    if not vectors:
        return tuple(reaching)
    # A vector holds all that older position delete files held (spec, "Deletion Vectors").
    return tuple(d for d in reaching if d is vectors[0] or d.data_file.content is FileContent.EQUALITY_DELETES)
