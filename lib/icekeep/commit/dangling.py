"""Delete files that reach no live data file once a change is made: found on its base, to go in the same commit.

Iceberg removes them in a commit of its own that looks at nothing else, so that a commit between the look and the removal can
make it wrong. Here the manifests of each attempt's base are asked, and what the change itself adds; what was asked of a
manifest is not asked again by later attempts.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from functools import cached_property
from typing import Any

import msgspec

from icekeep.commit.file_sets import digest_of_all
from icekeep.commit.filtering import EntryReader, Gatherer, Identity, PartitionRanges, identity, without_history
from icekeep.commit.live_files import PathProof, ProvenPaths, live_among, min_data_sequence_number, proven_min_number
from icekeep.commit.manifests import ManifestReader
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import (
    DeleteScopes,
    MinNumbers,
    PathDigest,
    Specs,
    is_dangling,
    is_global,
    own_path_digest,
    seems_dangling,
    sequence_number,
)
from icekeep.spec.types import OPAQUE, Type

_Asked = tuple[tuple[Any, ...], int]


class Dangling:
    """The delete files that reach none of the data files of which these are the least data sequence numbers.

    Those that do not name their data file are among them where their rows have shown that they are of one: `proven`, each an
    `own_path_digest`.
    """

    def __init__(
        self, least: MinNumbers, min_of_table: int, specs: Specs, proven: Set[PathDigest] = frozenset()
    ) -> None:
        self.least, self.min_of_table, self.specs, self._proven = least, min_of_table, specs, frozenset(proven)

    def key(self, manifest: ManifestFile) -> Hashable:
        return self.numbers

    @cached_property
    def numbers(self) -> Hashable:
        """All that it goes by."""
        least = self.least
        return (
            "dangling",
            digest_of_all(least.partitions.items()),
            digest_of_all(least.paths.items()),
            self.min_of_table,
            digest_of_all(self._proven),
        )

    def manifest(self, manifest: ManifestFile) -> bool:
        return True

    def entry(self, entry: ManifestEntry) -> bool:
        if is_dangling(entry, self.least, self.min_of_table, self.specs):
            return True
        is_proven = bool(self._proven) and own_path_digest(entry.data_file) in self._proven
        return is_proven and seems_dangling(entry, self.least)


class _Seeming(msgspec.Struct, frozen=True):
    """The delete files that are dangling if what equal bounds of paths say is so."""

    found: Dangling

    @property
    def key(self) -> Hashable:
        return "seeming", self.found.numbers

    def entry(self, entry: ManifestEntry) -> bool:
        return self.found.entry(entry) or seems_dangling(entry, self.found.least)

    def asks(self, entry: ManifestEntry) -> bool:
        """Whether its rows must show it."""
        return not self.found.entry(entry) and seems_dangling(entry, self.found.least)


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
    """Which delete files go since they reach no live data file; `None` where there are no delete files at all.

    What the manifest list says of data manifests only tells which to ask first: a delete file goes if none of all of them has
    a data file that it reaches.

    Args:
        deletes: the delete manifests of the base.
        data: its data manifests, without the files that the change removes.
        added: the data files that the change adds.
        added_number: their data sequence number; `None`: the commit's own.
        proof: who reads the rows of position delete files that only equal bounds of paths say to be of one data file; without
            it these are for any of their partition.
    """
    if not deletes:
        return None
    asked = DeleteScopes.union(asks.gathered(deletes, _ScopesOf(without_history(base))))
    possible = PossibleManifests(asked, base)
    matter = [manifest for manifest in data if possible.holds_reached_files(manifest)]
    number = base.next_sequence_number if added_number is None else added_number
    found = asks.gathered(matter, MinNumbersAt(without_history(base), asked))
    least = MinNumbers.union([*found, MinNumbers.of(((file, number) for file in added), asked)])
    seeming = _Seeming(Dangling(least, min_data_sequence_number(data, base, number), base.specs_by_id))
    proved = _proved(seeming, deletes, data, {*map(identity, matter)}, base, asks, number)
    if proof is None:
        return proved
    proven = asks.gathered(deletes, ProvenPaths(without_history(base), _Seeming(proved), proof))
    return Dangling(proved.least, proved.min_of_table, proved.specs, frozenset().union(*proven))


def _proved(
    seeming: _Seeming,
    deletes: Sequence[ManifestFile],
    data: Sequence[ManifestFile],
    asked: Set[Identity],
    base: TableMetadata,
    asks: Gatherer,
    added_number: int,
) -> Dangling:
    """What seems to be dangling, as far as the data manifests that were not asked yet agree."""
    found = asks.gathered(deletes, _SeemingScopes(without_history(base), seeming))
    places = DeleteScopes.union(scopes for scopes, _ in found)
    least, of_table = seeming.found.least, seeming.found.min_of_table
    others = [manifest for manifest in data if identity(manifest) not in asked]
    if places.partitions and others:
        least = MinNumbers.union([least, *asks.gathered(others, MinNumbersAt(without_history(base), places))])
    if any(has_global for _, has_global in found):
        of_table = min(of_table, proven_min_number(data, base, asks, added_number))
    return Dangling(least, of_table, base.specs_by_id)


def dangling_deletes_count(
    metadata: TableMetadata, branch: str, reader: ManifestReader, proof: PathProof | None = None
) -> int:
    """How many delete files of a branch reach no live data file, as `dangling` says; nothing is changed."""
    head = metadata.head(branch)
    live = live_among([] if head is None else reader.manifests(head))
    found = dangling(live.deletes, live.data, (), metadata, reader, proof=proof)
    if found is None:
        return 0
    return sum(reader.gathered(live.deletes, _CountOf(without_history(metadata), found)))


class _ScopesOf(msgspec.Struct, frozen=True):
    """Where the delete files of a manifest look for rows."""

    base: TableMetadata

    @property
    def key(self) -> Hashable:
        return "places"

    def run(self, manifest: ManifestFile, reader: EntryReader) -> DeleteScopes:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        return DeleteScopes.of(live, self.base.specs_by_id)


class MinNumbersAt(msgspec.Struct, frozen=True):
    """The least data sequence numbers of a manifest's data files at some places."""

    base: TableMetadata
    asked: DeleteScopes

    @property
    def key(self) -> Hashable:
        return "least", digest_of_all(self.asked.partitions), digest_of_all(self.asked.paths)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> MinNumbers:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        return MinNumbers.of(((entry.data_file, sequence_number(entry)) for entry in live), self.asked)


class _SeemingScopes(msgspec.Struct, frozen=True):
    """Where the delete files of a manifest look for rows that seem to be dangling; and whether one is for the whole table."""

    base: TableMetadata
    seeming: _Seeming

    @property
    def key(self) -> Hashable:
        return self.seeming.key

    def run(self, manifest: ManifestFile, reader: EntryReader) -> tuple[DeleteScopes, bool]:
        found = [e for e in reader.entries(manifest, self.base) if e.is_live and self.seeming.entry(e)]
        specs = self.base.specs_by_id
        return DeleteScopes.of(found, specs), any(is_global(entry.data_file, specs) for entry in found)


class PossibleManifests:
    """Tells by the manifest list alone which data manifests may hold a file that one of the delete files reaches.

    Where one of these does, the delete file is not dangling, and the others need not be asked.
    """

    def __init__(self, asked: DeleteScopes, base: TableMetadata) -> None:
        self._base = base
        by_spec: defaultdict[int, list[_Asked]] = defaultdict(list)
        for (spec_id, values), number in asked.partitions.items():
            by_spec[spec_id].append((values, number))
        self._asked = {
            spec_id: _Partitions(some, [field.type for field in base.partition_type(spec_id).fields])
            for spec_id, some in by_spec.items()
        }

    def holds_reached_files(self, manifest: ManifestFile) -> bool:
        asked, least = self._asked.get(manifest.partition_spec_id), manifest.min_sequence_number or 0
        if asked is None or asked.greatest < least:
            return False
        ranges = PartitionRanges(manifest, self._base)
        return any(number >= least and ranges.may_hold(values) for values, number in asked.within(ranges))


class _Partitions:
    """Partitions of one spec, each with the greatest sequence number that is asked for, in the order of their first values.

    Manifests are many and so are partitions: each manifest asks those alone that lie within its bounds of the first field.
    """

    def __init__(self, asked: Iterable[_Asked], types: Sequence[Type]) -> None:
        has_order = bool(types) and types[0] != OPAQUE
        known: list[_Asked] = []
        self._others: list[_Asked] = []
        for one in asked:
            values, _ = one
            (known if has_order and values[0] is not None else self._others).append(one)
        self._known = sorted(known, key=_first_value)
        self._firsts = [*map(_first_value, self._known)]
        self.greatest = max(number for _, number in (*self._known, *self._others))

    def within(self, ranges: PartitionRanges) -> Iterator[_Asked]:
        """Those that a manifest's bounds of the first field leave, and those that have no such value."""
        yield from self._others
        lower, upper = ranges.first_bounds
        begin = 0 if lower is None else bisect_left(self._firsts, lower)
        end = len(self._firsts) if upper is None else bisect_right(self._firsts, upper)
        # A slice begins where it is to begin; an iterator would walk there.
        yield from self._known[begin:end]


def _first_value(one: _Asked) -> Any:
    return one[0][0]


class _CountOf(msgspec.Struct, frozen=True):
    """How many live files of a manifest are selected."""

    base: TableMetadata
    selected: Dangling

    @property
    def key(self) -> Hashable:
        return "count", self.selected.numbers

    def run(self, manifest: ManifestFile, reader: EntryReader) -> int:
        return sum(entry.is_live and self.selected.entry(entry) for entry in reader.entries(manifest, self.base))
