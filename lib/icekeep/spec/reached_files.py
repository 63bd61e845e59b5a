"""What reaches each of many data files, as positions in one list of delete files: the rule of `applicability` for sets of files.

A thousand equality delete files may reach each of ten thousand data files. In the order of their sequence numbers those that
reach a data file are the end of the list of its partition or of the table, and so two numbers say which they are.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from operator import itemgetter

import msgspec

from icekeep.spec.applicability import (
    AppliedDelete,
    DataFileIndex,
    PathBounds,
    Specs,
    applied_delete,
    is_deletion_vector,
    is_global,
    max_reached,
    only_data_file,
    partition_key,
    path_bounds,
    reaches,
    sequence_number,
    several_vectors,
    sole_path,
)
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.position_sets import PartSet, PositionSet, Renumbering, Span, of_spans, spans

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
