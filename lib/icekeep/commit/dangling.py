"""Dangling delete files: those that reach no live data file once a change is made, removed in the same commit.

Iceberg removes them in a later commit, which a commit in between can make wrong. Here each attempt asks the manifests of its
base, and takes in the files that the change itself adds; answers are kept for later attempts.

Two passes, since neither side fits into memory: the delete manifests give the scopes of their files (`DeleteScopes`), the data
manifests the least data sequence number in each (`MinNumbers`), and a delete file that is too old for its scope is dangling.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from icekeep.commit.attempt import Gatherer
from icekeep.commit.file_sets import Digest, digest_of_all, entry_digest
from icekeep.commit.live_files import PathProof, ProvenPaths, live_among, min_data_sequence_number, proven_min_number
from icekeep.commit.manifests import (
    Gathering,
    LiveFilesQuestion,
    ManifestReader,
    manifest_key,
    without_history,
)
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import (
    PartitionKey,
    PathDigest,
    Specs,
    is_global,
    is_newer,
    max_reached,
    only_data_file,
    own_path,
    own_path_digest,
    partition_key,
    path_digest,
    sequence_number,
)
from icekeep.spec.types import DOUBLE, FLOAT, OPAQUE, UUID, NestedField, PrimitiveType, Type
from icekeep.spec.values import are_crossed, value_from_bytes

_Key = TypeVar("_Key")
_Scope = tuple[tuple[Any, ...], int]
"""A partition, and the greatest data sequence number that delete files reach in it."""


class DeleteScopes(msgspec.Struct, frozen=True):
    """Where delete files apply.

    Attributes:
        partitions: those that delete files lie in, with the greatest data sequence number that any of them there reaches.
        paths: `path_digest` of each `own_path`.
    """

    partitions: Mapping[PartitionKey, int] = {}
    paths: frozenset[PathDigest] = frozenset()

    @classmethod
    def of(cls, deletes: Iterable[ManifestEntry], specs: Specs) -> "DeleteScopes":
        """Global equality deletes have no scope here: the least number of the table decides over them."""
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
    def union(cls, parts: Iterable["DeleteScopes"]) -> "DeleteScopes":
        parts = [*parts]
        paths = frozenset[PathDigest]().union(*(one.paths for one in parts))
        return cls(_joined((one.partitions for one in parts), max), paths)


class MinNumbers(msgspec.Struct, frozen=True):
    """The least data sequence numbers of live data files by partition, and by the digest of their path."""

    partitions: Mapping[PartitionKey, int] = {}
    paths: Mapping[PathDigest, int] = {}

    @classmethod
    def of(cls, asked: DeleteScopes, data: Iterable[ManifestEntry]) -> "MinNumbers":
        """Those of some data files, in the scopes of `asked` alone."""
        partitions: dict[PartitionKey, int] = {}
        paths: dict[PathDigest, int] = {}
        for entry in data:
            file, number = entry.data_file, sequence_number(entry)
            if (partition := partition_key(file)) in asked.partitions:
                partitions[partition] = min(number, partitions.get(partition, number))
            if asked.paths and (path := path_digest(file.file_path)) in asked.paths:
                paths[path] = min(number, paths.get(path, number))
        return cls(partitions, paths)

    @classmethod
    def union(cls, parts: Iterable["MinNumbers"]) -> "MinNumbers":
        parts = [*parts]
        return cls(_joined((one.partitions for one in parts), min), _joined((one.paths for one in parts), min))


def _joined(parts: Iterable[Mapping[_Key, int]], choice: Callable[[int, int], int]) -> dict[_Key, int]:
    joined: dict[_Key, int] = {}
    for part in parts:
        for key, number in part.items():
            joined[key] = choice(number, joined.get(key, number))
    return joined


def is_dangling(delete: ManifestEntry, least: MinNumbers, min_of_table: int, specs: Specs) -> bool:
    """Whether a live delete file reaches no live data file, by sequence number, partition and the data file that it names.

    Neither bounds of paths nor vectors that supersede it count, so a file that is not dangling may still delete nothing.

    Args:
        least: of all live data files, with those that the same commit adds.
        min_of_table: the least data sequence number of any of them, or a lower one.
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
    """Whether a live position delete file reaches nothing if all its rows are of the one path that both its bounds give.

    Only its rows can prove that: the bounds may be wrong or truncated.
    """
    file = delete.data_file
    if file.referenced_data_file is not None or (own := own_path(file)) is None:
        return False
    number = least.paths.get(path_digest(own))
    return number is None or not is_newer(delete, number)


class Dangling(msgspec.Struct, frozen=True):
    """A `Selection` of the delete files that `is_dangling` names, and of those that `seems_dangling` does and rows have proven.

    Attributes:
        numbers: equal for the same selection; not worked out again in tasks.
        proven: `own_path_digest`.
        only: no file without one of these digests (`entry_digest`) is selected; `None`: any.
    """

    numbers: Hashable
    least: MinNumbers
    min_of_table: int
    specs: Specs
    proven: frozenset[PathDigest] = frozenset()
    only: frozenset[Digest] | None = None

    @classmethod
    def of(
        cls, least: MinNumbers, min_of_table: int, specs: Specs, proven: frozenset[PathDigest] = frozenset()
    ) -> "Dangling":
        digests = (digest_of_all(least.partitions.items()), digest_of_all(least.paths.items()), digest_of_all(proven))
        return cls(("dangling", min_of_table, *digests), least, min_of_table, specs, proven)

    def limited_to(self, only: frozenset[Digest] | None) -> "Dangling":
        if only is None:
            return self
        return msgspec.structs.replace(self, numbers=(self.numbers, digest_of_all(only)), only=only)

    def key(self, manifest: ManifestFile) -> Hashable:
        return self.numbers

    def entry(self, entry: ManifestEntry) -> bool:
        if self.only is not None and entry_digest(entry) not in self.only:
            return False
        if is_dangling(entry, self.least, self.min_of_table, self.specs):
            return True
        is_proven = bool(self.proven) and own_path_digest(entry.data_file) in self.proven
        return is_proven and seems_dangling(entry, self.least)


def dangling(
    deletes: Sequence[ManifestFile],
    data: Sequence[ManifestFile],
    added: Iterable[DataFile],
    base: TableMetadata,
    asks: Gatherer,
    *,
    added_number: int | None = None,
    proof: PathProof | None = None,
) -> Dangling | None:
    """The delete files that reach no live data file; `None` where there are no delete manifests.

    The manifest list only decides which data manifests are asked first: a delete file is dangling if all of them agree.

    Args:
        deletes: the delete manifests of the base.
        data: its data manifests, without the files that the change removes.
        added: the data files that the change adds.
        added_number: their data sequence number; `None`: the commit's own.
        proof: reads position delete files whose bounds give one path without naming it; without a proof these apply to their
            whole partition.
    """
    if not deletes:
        return None
    scopes_of = LiveFilesQuestion.of(base, "places", partial(DeleteScopes.of, specs=base.specs_by_id))
    asked = DeleteScopes.union(asks.gathered(deletes, scopes_of))
    possible = PossibleManifests(asked, base)
    likely = [manifest for manifest in data if possible.holds_reached_files(manifest)]
    number = base.next_sequence_number if added_number is None else added_number
    new = (ManifestEntry(status=Status.ADDED, data_file=file, sequence_number=number) for file in added)
    least = MinNumbers.union([*asks.gathered(likely, min_numbers_in(asked, base)), MinNumbers.of(asked, new)])
    by_lists = Dangling.of(least, min_data_sequence_number(data, base, number), base.specs_by_id)
    likely_keys = {*map(manifest_key, likely)}
    others = [manifest for manifest in data if manifest_key(manifest) not in likely_keys]
    proved = _proved(by_lists, deletes, data, others, base, asks, number)
    if proof is None:
        return proved
    key, is_asked = ("proven", "seeming", proved.numbers), partial(_is_unproven, proved)
    proven = asks.gathered(deletes, ProvenPaths(without_history(base), key, is_asked, proof))
    return Dangling.of(proved.least, proved.min_of_table, proved.specs, frozenset().union(*proven))


def _is_unproven(by_numbers: Dangling, entry: ManifestEntry) -> bool:
    """Whether a delete file is dangling only if its bounds of paths are right."""
    return not by_numbers.entry(entry) and seems_dangling(entry, by_numbers.least)


def _proved(
    by_lists: Dangling,
    deletes: Sequence[ManifestFile],
    data: Sequence[ManifestFile],
    others: Sequence[ManifestFile],
    base: TableMetadata,
    asks: Gatherer,
    added_number: int,
) -> Dangling:
    """The delete files that are dangling by the manifest list, as far as the remaining data manifests (`others`) agree."""
    work = LiveFilesQuestion.of(base, ("seeming", by_lists.numbers), partial(_seeming_scopes, by_lists))
    answers = asks.gathered(deletes, work)
    scopes = DeleteScopes.union(one for one, _ in answers)
    least, min_of_table = by_lists.least, by_lists.min_of_table
    if scopes.partitions and others:
        least = MinNumbers.union([least, *asks.gathered(others, min_numbers_in(scopes, base))])
    if any(has_global for _, has_global in answers):
        min_of_table = min(min_of_table, proven_min_number(data, base, asks, added_number))
    return Dangling.of(least, min_of_table, base.specs_by_id)


def dangling_deletes_count(
    metadata: TableMetadata, branch: str, reader: ManifestReader, proof: PathProof | None = None
) -> int:
    head = metadata.head(branch)
    live = live_among([] if head is None else reader.manifests(head))
    selected = dangling(live.deletes, live.data, (), metadata, reader, proof=proof)
    if selected is None:
        return 0
    work = LiveFilesQuestion.of(metadata, ("count", selected.numbers), partial(_count, selected))
    return sum(reader.gathered(live.deletes, work))


def min_numbers_in(asked: DeleteScopes, base: TableMetadata) -> Gathering[MinNumbers]:
    key = "least", digest_of_all(asked.partitions), digest_of_all(asked.paths)
    return LiveFilesQuestion.of(base, key, partial(MinNumbers.of, asked))


def _seeming_scopes(by_lists: Dangling, live: Iterator[ManifestEntry]) -> tuple[DeleteScopes, bool]:
    """The scopes of the delete files that are or seem dangling, and whether one of these is global."""
    chosen = [entry for entry in live if by_lists.entry(entry) or seems_dangling(entry, by_lists.least)]
    return DeleteScopes.of(chosen, by_lists.specs), any(is_global(entry.data_file, by_lists.specs) for entry in chosen)


def _count(selected: Dangling, live: Iterator[ManifestEntry]) -> int:
    return sum(map(selected.entry, live))


class PossibleManifests:
    """Which data manifests may, by the manifest list, hold a file that one of the delete files reaches.

    A delete file that reaches a file of these is not dangling, and the other manifests need not be asked about it.
    """

    def __init__(self, asked: DeleteScopes, base: TableMetadata) -> None:
        self._base = base
        by_spec: defaultdict[int, list[_Scope]] = defaultdict(list)
        for (spec_id, values), number in asked.partitions.items():
            by_spec[spec_id].append((values, number))
        self._asked = {
            spec_id: _Partitions(scopes, [field.type for field in base.partition_type(spec_id).fields])
            for spec_id, scopes in by_spec.items()
        }

    def holds_reached_files(self, manifest: ManifestFile) -> bool:
        asked, least = self._asked.get(manifest.partition_spec_id), manifest.min_sequence_number or 0
        if asked is None or asked.greatest < least:
            return False
        ranges = partition_ranges(manifest, self._base)
        return any(
            number >= least and all(one.may_hold(value) for one, value in zip(ranges, values, strict=False))
            for values, number in asked.within(*((ranges[0].lower, ranges[0].upper) if ranges else (None, None)))
        )


class _Partitions:
    """Scopes of one spec in the order of their first values, so that a manifest asks those alone within its bounds there."""

    def __init__(self, scopes: Sequence[_Scope], types: Sequence[Type]) -> None:
        has_order = bool(types) and types[0] != OPAQUE
        ordered = [one for one in scopes if has_order and one[0][0] is not None]
        self._others = [one for one in scopes if not has_order or one[0][0] is None]
        self._ordered = sorted(ordered, key=lambda one: one[0][0])
        self._firsts = [values[0] for values, _ in self._ordered]
        self.greatest = max(number for _, number in scopes)

    def within(self, lower: Any, upper: Any) -> Iterator[_Scope]:
        """Scopes within bounds of the first field, which are `None` where unknown, and those without an ordered value there."""
        yield from self._others
        begin = 0 if lower is None else bisect_left(self._firsts, lower)
        end = len(self._firsts) if upper is None else bisect_right(self._firsts, upper)
        # A slice: `islice` would walk from the beginning.
        yield from self._ordered[begin:end]


class FieldRange(NamedTuple):
    """The partition values that a field summary allows: all without bounds, or for a type whose order differs between writers."""

    may_hold_null: bool
    may_hold_values: bool
    lower: Any
    upper: Any

    def may_hold(self, value: Any) -> bool:
        if value is None:
            return self.may_hold_null
        above = self.lower is None or bool(self.lower <= value)
        return self.may_hold_values and above and (self.upper is None or bool(value <= self.upper))


def partition_ranges(manifest: ManifestFile, base: TableMetadata) -> list[FieldRange]:
    """The values of each partition field that a manifest may hold by its row of the list; none, which allow all, without it."""
    ranges = []
    fields = base.partition_type(manifest.partition_spec_id).fields if manifest.partitions else ()
    for field, summary in zip(fields, manifest.partitions or (), strict=False):
        is_ordered = isinstance(field.type, PrimitiveType) and field.type not in (FLOAT, DOUBLE, UUID, OPAQUE)
        is_bounded = summary.lower_bound is not None or summary.upper_bound is not None
        lower = upper = None
        if is_ordered:
            lower, upper = (_decoded(field, bound) for bound in (summary.lower_bound, summary.upper_bound))
        if are_crossed(lower, upper):
            lower = upper = None
        # Both bounds are null where all values are; without nulls, missing bounds say nothing.
        may_hold_values = is_bounded or not is_ordered or not summary.contains_null
        ranges.append(FieldRange(summary.contains_null, may_hold_values, lower, upper))
    return ranges


def _decoded(field: NestedField, bound: bytes | None) -> Any:
    try:
        return None if bound is None else value_from_bytes(field.type, bound)
    except (InvalidTableError, UnsupportedError):
        return None
