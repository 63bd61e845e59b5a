"""Which delete file reaches which data file (spec, "Scan Planning" and "Delete Formats").

One rule, on entries as manifests hold them once they are committed: commits ask it of values, planning as joins. A delete
file reaches a data file when a reader of the data file must apply it. Two things follow that no pair of files can tell:
a deletion vector takes the place of position delete files, and a delete file that reaches no live file is dangling.

What reaches each of many data files, as positions in one list of delete files: the rule of `applicability` for sets of files.

A thousand equality delete files may reach each of ten thousand data files. In the order of their sequence numbers those that
reach a data file are the end of the list of its partition or of the table, and so two numbers say which they are.

The frame of a deletion vector: what a Puffin blob `deletion-vector-v1` holds around its bitmap (Puffin spec).

    length (4 bytes, big-endian, of magic and bitmap) | magic | bitmap | CRC-32 of magic and bitmap (4 bytes, big-endian)

The bitmap itself is `formats/puffin.py`.
"""

import math
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from itertools import accumulate
from operator import itemgetter
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.collections import PartSet, PositionSet, Renumbering, Span, of_spans, spans
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import DELETE_FILE_PATH

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


_Ranked = tuple[int, ManifestEntry]


class ReachedFiles(msgspec.Struct, frozen=True):
    """What reaches each data file.

    Attributes:
        deletes: delete files that may reach any of them.
        ranks: where each of them came in the stream of all.
        positions: by path those in `deletes` of what a reader applies to the data file.
    """

    deletes: Sequence[ManifestEntry]
    ranks: Sequence[int]
    positions: Mapping[str, PositionSet]

    def of_path(self, path: str) -> list[ManifestEntry]:
        """The delete files that reach a data file, in the order of the stream."""
        return self.in_order(self.positions[path])

    def in_order(self, positions: Iterable[int]) -> list[ManifestEntry]:
        """Some delete files in the order of the stream."""
        return [self.deletes[position] for position in sorted(positions, key=self.ranks.__getitem__)]


class Difference(msgspec.Struct, frozen=True):
    """What was applied to a data file and reaches it no more, and what reaches it and was not applied."""

    gone: frozenset[AppliedDelete] = frozenset()
    new: Sequence[ManifestEntry] = ()


def reached_files(data: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry], specs: Specs) -> ReachedFiles:
    """The same as `reaching_deletes`, whose errors it raises; memory grows with `data` and with the delete files alone."""
    files = DataFileIndex(data)
    lists: dict[Hashable, list[_Ranked]] = defaultdict(list)
    others: list[tuple[int, ManifestEntry, list[str]]] = []
    for rank, delete in enumerate(deletes):
        name = list_of(delete.data_file, path_bounds(delete.data_file), specs)
        if name is None:
            found = [e for e in files.that_may_be_reached(delete, specs) if reaches(delete, e, specs)]
            if found:
                others.append((rank, delete, [entry.data_file.file_path for entry in found]))
        elif files.by_path if is_global(delete.data_file, specs) else files.in_partition_of(delete.data_file):
            lists[name].append((rank, delete))
    # Those that reach one data file alone are put side by side.
    others.sort(key=lambda one: one[2][0] if len(one[2]) == 1 else "")
    reach = _Reach(files.by_path)
    for some in lists.values():
        reach.add_list(some, files, specs)
    for rank, delete, paths in others:
        reach.add_one(rank, delete, paths)
    return ReachedFiles(reach.deletes, reach.ranks, reach.positions())


def list_of(file: DataFile, bounds: PathBounds, specs: Specs) -> Hashable | None:
    """What names the list of a delete file that reaches whatever is old enough in a partition or in the table; else `None`.

    Bounds of paths are asked of position delete files alone, and only for one path: see `sole_path`.

    Raises:
        InvalidTableError: as `is_global` and `only_data_file`.
    """
    if is_global(file, specs):
        return (file.content,)
    if only_data_file(file) is not None:
        return None
    if file.content is FileContent.POSITION_DELETES and sole_path(bounds) is not None:
        return None
    return file.content, partition_key(file)


class _Reach:
    """Puts delete files in one list, and takes down which of them reach each path."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.deletes: list[ManifestEntry] = []
        self.ranks: list[int] = []
        self._equality: dict[str, list[Span]] = {path: [] for path in paths}
        self._positions: dict[str, list[Span]] = defaultdict(list)
        self._vectors: dict[str, list[Span]] = defaultdict(list)

    def add_list(self, some: Sequence[_Ranked], files: DataFileIndex, specs: Specs) -> None:
        """Delete files that reach whatever is old enough of one partition, or of the table."""
        some = sorted(some, key=lambda one: (sequence_number(one[1]), one[0]))
        first, file = len(self.deletes), some[0][1].data_file
        self.ranks += map(itemgetter(0), some)
        self.deletes += map(itemgetter(1), some)
        greatest = [max_reached(delete) for _, delete in some]
        into = self._equality if file.content is FileContent.EQUALITY_DELETES else self._positions
        for entry in files.by_path.values() if is_global(file, specs) else files.in_partition_of(file):
            start = bisect_left(greatest, sequence_number(entry))
            if start < len(some):
                into[entry.data_file.file_path].append((first + start, first + len(some)))

    def add_one(self, rank: int, delete: ManifestEntry, paths: Iterable[str]) -> None:
        """A delete file of positions in data files at some paths."""
        into = self._vectors if is_deletion_vector(delete.data_file) else self._positions
        for path in paths:
            into[path].append((len(self.deletes), len(self.deletes) + 1))
        self.ranks.append(rank)
        self.deletes.append(delete)

    def positions(self) -> dict[str, PositionSet]:
        """What remains once a deletion vector took the place of position deletes."""
        for path in self._equality:
            if len(vectors := self._vectors.get(path, ())) > 1:
                raise several_vectors(path, len(vectors))
        of_positions = {**self._positions, **self._vectors}
        return {path: of_spans([*some, *of_positions.get(path, [])]) for path, some in self._equality.items()}


class Comparison:
    """Holds what was applied to data files against what reaches them; what is a part of one list is compared as positions."""

    def __init__(self, reached: ReachedFiles) -> None:
        self._reached = reached
        self._names = [*map(applied_delete, reached.deletes)]
        self._places: dict[AppliedDelete, int] = {}
        for place, name in enumerate(self._names):
            self._places.setdefault(name, place)
        # A delete file that is listed twice has one name.
        self._named = Renumbering([self._places[name] for name in self._names])
        self._wholes: dict[int, _Whole] = {}

    def difference(self, path: str, applied: AbstractSet[AppliedDelete]) -> Difference | None:
        """How what reaches a data file differs from what was applied to it; None where it does not."""
        reaching = self._named.moved(self._reached.positions[path])
        was, lost = self._applied(applied)
        if was == reaching and not lost:
            return None
        gone = {self._names[place] for place in was - reaching}
        return Difference(frozenset(gone.union(lost)), self._reached.in_order(reaching - was))

    def _applied(self, applied: AbstractSet[AppliedDelete]) -> tuple[PositionSet, Sequence[AppliedDelete]]:
        """The places of what was applied, and what has none."""
        if not isinstance(applied, PartSet):
            lost = [name for name in applied if name not in self._places]
            return PositionSet(self._places[name] for name in applied if name in self._places), lost
        known = self._wholes.get(id(applied.whole))
        if known is None:
            known = self._wholes[id(applied.whole)] = _Whole(applied.whole, self._places)
        return known.numbers.moved(applied.positions), known.lost(applied.positions)


class _Whole:
    """A list that sets of applied delete files are parts of, and where its members stand among those that are live."""

    def __init__(self, members: Sequence[AppliedDelete], places: Mapping[AppliedDelete, int]) -> None:
        found = [places.get(member, -1) for member in members]
        self.numbers = Renumbering(found)
        self._members, self._found = members, found
        self._lost_before = [*accumulate((place < 0 for place in found), initial=0)]

    def lost(self, positions: PositionSet) -> list[AppliedDelete]:
        """Those of some members that are not live any more."""
        some = [span for span in spans(positions) if self._lost_before[span[0]] < self._lost_before[span[1]]]
        return [self._members[n] for span in some for n in range(*span) if self._found[n] < 0]


BLOB_TYPE = "deletion-vector-v1"

_MAGIC = bytes.fromhex("d1d33964")
_NUMBER_BYTES = 4


def frame(bitmap: bytes) -> bytes:
    """A serialized bitmap as the bytes of its blob."""
    body = _MAGIC + bitmap
    return len(body).to_bytes(_NUMBER_BYTES, "big") + body + zlib.crc32(body).to_bytes(_NUMBER_BYTES, "big")


def unframe(blob: bytes, where: str) -> bytes:
    """The bitmap in a blob, its length, magic and checksum verified; `where` names the blob in errors.

    Raises:
        InvalidTableError: the blob is damaged or is no deletion vector.
    """
    body, checksum = blob[_NUMBER_BYTES:-_NUMBER_BYTES], blob[-_NUMBER_BYTES:]
    if len(blob) < 2 * _NUMBER_BYTES + len(_MAGIC) or int.from_bytes(blob[:_NUMBER_BYTES], "big") != len(body):
        raise InvalidTableError(
            f"the deletion vector {where} has {len(blob)} bytes, which is not the length that it says"
        )
    if not body.startswith(_MAGIC):
        raise InvalidTableError(f"the deletion vector {where} begins with {body[:4].hex()}, not with {_MAGIC.hex()}")
    if int.from_bytes(checksum, "big") != zlib.crc32(body):
        raise InvalidTableError(f"the deletion vector {where} is damaged: its checksum does not fit")
    return body[len(_MAGIC) :]
