"""The delete files that reach data files, by committed manifest entries: `delete_runs` for commits.

A thousand delete files may reach each of ten thousand data files: those of a data file are held as positions in one list of all,
and compared as such with those that were applied to it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import msgspec

from icekeep.errors import InvalidTableError
from icekeep.spec.collections import PartSet, PositionSet, Renumbering
from icekeep.spec.manifests.structs import FileContent, ManifestEntry
from icekeep.spec.reach import (
    AppliedDelete,
    PartitionKey,
    Specs,
    applied_delete,
    encoded_path,
    is_deletion_vector,
    is_global,
    is_newer,
    only_data_file,
    partition_key,
    path_bounds,
    sequence_number,
    sole_path,
)

if TYPE_CHECKING:
    from icekeep.spec.delete_runs import Numbers


class DataFileIndex:
    """Data files by path, in their original order, and by partition."""

    def __init__(self, data: Iterable[ManifestEntry]) -> None:
        """Raises `InvalidTableError` where a data file is listed twice."""
        self.by_path: dict[str, ManifestEntry] = {}
        self.by_partition: dict[PartitionKey, list[ManifestEntry]] = defaultdict(list)
        for entry in data:
            if entry.data_file.file_path in self.by_path:
                raise InvalidTableError(f"data file {entry.data_file.file_path!r} is live more than once in the table")
            self.by_path[entry.data_file.file_path] = entry
            self.by_partition[partition_key(entry.data_file)].append(entry)

    def candidates(self, delete: ManifestEntry, specs: Specs) -> Iterable[ManifestEntry]:
        """The data files that a delete file may reach; sequence numbers and bounds of paths are not considered."""
        file = delete.data_file
        if is_global(file, specs):
            return self.by_path.values()
        only = only_data_file(file)
        if only is None:
            return self.by_partition.get(partition_key(file), ())
        return [self.by_path[only]] if only in self.by_path else ()


class MatchedDeletes(msgspec.Struct, frozen=True):
    """The delete files that reach each data file.

    Attributes:
        deletes: delete files that may reach any data file.
        ranks: their places in the input.
        positions: for each path of a data file, the positions in `deletes` of those that a reader applies to it.
    """

    deletes: Sequence[ManifestEntry]
    ranks: Sequence[int]
    positions: Mapping[str, PositionSet]

    def of_path(self, path: str) -> list[ManifestEntry]:
        """The delete files that reach a data file, in the order of the input."""
        return self.in_order(self.positions[path])

    def in_order(self, positions: Iterable[int]) -> list[ManifestEntry]:
        """The delete files at some positions, in the order of the input."""
        return [self.deletes[position] for position in sorted(positions, key=self.ranks.__getitem__)]


def match_deletes(data: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry], specs: Specs) -> MatchedDeletes:
    """The delete files that reach data files; memory grows with the data files and the delete files of their partitions.

    Raises `InvalidTableError` where two deletion vectors reach one data file, a delete file for one lies in another partition, a
    data file is listed twice, a vector names no data file, or a partition spec is missing.
    """
    # Importing NumPy takes longer than most commands without delete files.
    import numpy as np

    from icekeep.spec.delete_runs import SEVERAL_FILES, DataColumns, DeleteColumns, match

    index = DataFileIndex(data)
    paths = [*index.by_path]
    files = {path: number for number, path in enumerate(paths)}
    partitions = {key: number for number, key in enumerate(index.by_partition)}
    oldest = min(map(sequence_number, index.by_path.values()), default=0)
    ranks: list[int] = []
    chosen: list[ManifestEntry] = []
    for rank, delete in enumerate(deletes):
        if index.candidates(delete, specs) and is_newer(delete, oldest):
            ranks.append(rank)
            chosen.append(delete)
    only = [only_data_file(delete.data_file) for delete in chosen]
    soles = [
        sole_path(path_bounds(delete.data_file))
        if path is None and delete.data_file.content is FileContent.POSITION_DELETES
        else None
        for path, delete in zip(only, chosen, strict=True)
    ]

    def beginnings(length: int, rows: "Numbers", places: "Numbers") -> tuple["Numbers", "Numbers"]:
        numbers: dict[bytes | None, int] = {}
        of_deletes = [numbers.setdefault(soles[place], len(numbers)) for place in places.tolist()]
        encoded = (encoded_path(paths[row]) for row in rows.tolist())
        of_data = [numbers.get(path[:length], -1) if len(path) >= length else -1 for path in encoded]
        return np.array(of_data, np.int64), np.array(of_deletes, np.int64)

    runs = match(
        DataColumns(
            files=np.arange(len(paths)),
            partitions=np.array([partitions[partition_key(e.data_file)] for e in index.by_path.values()], np.int64),
            sequence_numbers=np.array([*map(sequence_number, index.by_path.values())], np.int64),
            paths=lambda rows: [paths[row] for row in rows],
        ),
        DeleteColumns(
            files=np.array([SEVERAL_FILES if path is None else files.get(path, -1) for path in only], np.int64),
            partitions=np.array([partitions.get(partition_key(d.data_file), -1) for d in chosen], np.int64),
            sequence_numbers=np.array([*map(sequence_number, chosen)], np.int64),
            is_equality=np.array([d.data_file.content is FileContent.EQUALITY_DELETES for d in chosen], np.bool_),
            is_vector=np.array([is_deletion_vector(d.data_file) for d in chosen], np.bool_),
            is_global=np.array([is_global(d.data_file, specs) for d in chosen], np.bool_),
            sole_lengths=np.array([-1 if sole is None else len(sole) for sole in soles], np.int64),
            beginnings=beginnings,
            sole_paths=lambda places: [path for place in places if (path := soles[place]) is not None],
            paths=lambda rows: [chosen[row].data_file.file_path for row in rows],
        ),
    )
    assert runs is not None
    order = runs.ranks.tolist()
    return MatchedDeletes(
        [chosen[place] for place in order],
        [ranks[place] for place in order],
        {path: runs.positions_of_row(row) for row, path in enumerate(paths)},
    )


def reaching_deletes(
    data: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry], specs: Specs
) -> dict[str, tuple[ManifestEntry, ...]]:
    """The deletes that a reader applies to each data file, by path, in the order of `deletes`; raises as `match_deletes`."""
    matched = match_deletes(data, deletes, specs)
    return {path: tuple(matched.of_path(path)) for path in matched.positions}


def reaches(delete: ManifestEntry, data: ManifestEntry, specs: Specs) -> bool:
    """Whether a delete file must be applied to a data file, unless a vector takes its place; raises as `match_deletes`."""
    return bool(reaching_deletes([data], [delete], specs)[data.data_file.file_path])


class Difference(msgspec.Struct, frozen=True):
    """The deletes that were applied to a data file and no longer reach it, and those that reach it and were not applied."""

    gone: frozenset[AppliedDelete] = frozenset()
    new: Sequence[ManifestEntry] = ()


class Comparison:
    """Compares the deletes that were applied to data files with those that reach them, parts of one list as positions."""

    def __init__(self, matched: MatchedDeletes) -> None:
        self._matched = matched
        self._names = [*map(applied_delete, matched.deletes)]
        self._places: dict[AppliedDelete, int] = {}
        for place, name in enumerate(self._names):
            self._places.setdefault(name, place)
        # A delete file that is listed twice has one name.
        self._named = Renumbering([self._places[name] for name in self._names])
        self._wholes: dict[int, tuple[Sequence[AppliedDelete], Renumbering, PositionSet]] = {}

    def difference(self, path: str, applied: AbstractSet[AppliedDelete]) -> Difference | None:
        """The difference between applied and reaching deletes of a data file; None if there is none."""
        reaching = self._named.moved(self._matched.positions[path])
        if isinstance(applied, PartSet):
            if id(applied.whole) not in self._wholes:
                places = [self._places.get(name, -1) for name in applied.whole]
                lost_places = PositionSet(number for number, place in enumerate(places) if place < 0)
                # The list itself is held too, so that its id is not reused.
                self._wholes[id(applied.whole)] = applied.whole, Renumbering(places), lost_places
            whole, numbers, lost_places = self._wholes[id(applied.whole)]
            was, lost = numbers.moved(applied.positions), [whole[n] for n in applied.positions & lost_places]
        else:
            was = PositionSet(self._places[name] for name in applied if name in self._places)
            lost = [name for name in applied if name not in self._places]
        if was == reaching and not lost:
            return None
        gone = {self._names[place] for place in was - reaching}
        return Difference(frozenset(gone.union(lost)), self._matched.in_order(reaching - was))
