"""Which delete files reach which data files, where both are few: the rule of `spec.applicability` over Arrow tables.

Spark takes longer to begin than this takes to end. Delete files that are for a partition or for all data files are put in
the order of their sequence numbers: what of them reaches a data file is the end of that list, a run, however many they are.
The others come one after another, each with the data files that it may reach. `delete_join` says the same as joins.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.planning.manifests.entry_schema import REACHING_DELETES, SOLE_PATH
from icekeep.spec.applicability import (
    PartitionKey,
    PathBounds,
    is_global,
    max_reached,
    named_range,
    only_data_file,
    partition_key,
    reaches,
    several_vectors,
    sole_path,
)
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.metadata_columns import DELETE_FILE_PATH
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.position_sets import PositionSet, of_spans
from icekeep.spec.reached_files import list_of

MAX_PAIRS = 5_000_000
"""The driver holds so many pairs of a data file and a delete file that reaches it, where they are written out one by one."""

MAX_RUNS = 5_000_000
"""It holds so many runs of delete files that reach a data file: 8 bytes each, and some 60 while they are made."""

EVERY_PAIR = 2**62
"""The limit for one who asks for runs alone."""

_FIELDS = tuple(field.name for field in REACHING_DELETES.value_type)
_POSITIONS = int(FileContent.POSITION_DELETES)
_OF_DATA = ("file_path", "spec_id", "partition", "sequence_number")
_OF_DELETES = ("content", "file_path", "file_format", "spec_id", "partition", "sequence_number", "referenced_data_file")

_Numbers = NDArray[np.int64]
_Places = NDArray[np.int32]
_NONE: _Numbers = np.empty(0, np.int64)


class Reaching(msgspec.Struct, frozen=True, kw_only=True):
    """What reaches each row of a table of data files.

    Attributes:
        deletes: delete files; those of one partition or of the whole table together, by their sequence numbers.
        ranks: where each of them stands in the order of a plan's column `deletes`.
        lists: a number for each, which those have in common that are together. Those of one data file are such a list, too.
        offsets: the runs of the row n are those from `offsets[n]` to `offsets[n + 1]`.
        reached: which of `deletes` reach any row, a vector not being asked whether it takes their place.
        starts, stops: of each run, which has members of one list, its first position in `deletes` and the one behind its last.
    """

    deletes: pa.Table
    ranks: _Places
    lists: _Places
    reached: NDArray[np.bool_]
    offsets: _Numbers
    starts: _Places
    stops: _Places

    @property
    def rows(self) -> _Numbers:
        """For each run the row that is reached."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which of `deletes` a reader applies to any row."""
        return _covered(self.starts, self.stops, len(self.ranks))

    def own_record_counts(self, paths: pa.ChunkedArray) -> _Numbers:
        """How many positions each row's own deletes hold: those in force that are for this data file alone, `own_path` says.

        A position that two of them hold counts twice, and a count may be more than the rows of the data file.

        Args:
            paths: those of the rows.
        """
        path = pc.coalesce(self.deletes["referenced_data_file"].cast(SOLE_PATH.type), self.deletes[SOLE_PATH.name])
        found = pc.index_in(path, value_set=paths.cast(SOLE_PATH.type).combine_chunks())
        is_asked = pc.and_(pc.equal(self.deletes["content"], _POSITIONS), pc.is_valid(found)).to_numpy()
        own = np.flatnonzero(is_asked)
        rows = pc.fill_null(found, 0).to_numpy()[own].astype(np.int64)
        own, rows = (some[self._reach(own, rows)] for some in (own, rows))
        counts = np.zeros(len(self.offsets) - 1, np.int64)
        np.add.at(counts, rows, self.deletes["record_count"].to_numpy()[own])
        return counts

    def _reach(self, deletes: _Numbers, rows: _Numbers) -> NDArray[np.bool_]:
        """Whether each of some delete files reaches the row beside it."""
        if not len(self.starts):
            return np.zeros(len(deletes), np.bool_)
        width = len(self.ranks) + 1
        # Runs are in the order of their rows, and those of a row in that of their starts.
        runs = np.searchsorted(self.rows * width + self.starts, rows * width + deletes, "right") - 1
        found: NDArray[np.bool_] = (runs >= 0) & (self.rows[runs] == rows) & (deletes < self.stops[runs])
        return found

    def positions_of_row(self, row: int) -> PositionSet:
        """Those of what reaches a row."""
        some = slice(self.offsets[row], self.offsets[row + 1])
        return of_spans(zip(self.starts[some].tolist(), self.stops[some].tolist(), strict=True))

    def of_row(self, row: int) -> list[int]:
        """The same one by one, in the order of a plan's column `deletes`."""
        return sorted(self.positions_of_row(row), key=self.ranks.__getitem__)


def _covered(starts: _Places, stops: _Places, count: int) -> NDArray[np.bool_]:
    """Which of `count` positions lie in any run."""
    edges = np.bincount(starts, minlength=count + 1) - np.bincount(stops, minlength=count + 1)
    found: NDArray[np.bool_] = np.cumsum(edges)[:-1] > 0
    return found


def reaching(
    data: pa.Table, deletes: pa.Table, specs: Mapping[int, PartitionSpec], max_pairs: int = MAX_PAIRS
) -> Reaching | None:
    """Match delete files to data files; `None` where too many reach too many.

    Args:
        data: live data files; at least `file_path`, `spec_id`, `partition` and `sequence_number` of `entry_schema.ENTRIES`.
        deletes: live delete files; the columns `entry_schema.MATCHED_COLUMNS`.
        specs: the partition specs of the table.
        max_pairs: of a data file and a delete file; there are never more runs than `MAX_RUNS`.

    Raises:
        InvalidTableError: two deletion vectors reach one data file, a delete file for one data file lies in another partition,
            a vector names no data file, or a partition spec is missing.

    Spec: "Scan Planning", "Delete Formats".
    """
    ordered = in_order(deletes, ("sequence_number", "file_path"))
    ordered = ordered.append_column(SOLE_PATH, _sole_paths(ordered))
    entries = _entries(ordered)
    rows_of = _RowsOf(data, entries, specs)
    lists: dict[Hashable, list[int]] = defaultdict(list)
    others: list[tuple[int, _Numbers]] = []
    pairs_count = 0
    for rank, (entry, bounds) in enumerate(zip(entries, bounds_of_paths(ordered), strict=True)):
        name = list_of(entry.data_file, bounds, specs)
        if name is not None:
            lists[name].append(rank)
            continue
        reached = rows_of.reached(entry, bounds)
        others.append((rank, reached))
        pairs_count += len(reached)
        if pairs_count > min(max_pairs, MAX_RUNS):
            return None
    # Those that reach one data file alone are put side by side, in a list of its own.
    others.sort(key=_only_row)
    found: list[_Found] = []
    first = 0
    for ranks in lists.values():
        found.append(rows_of.reached_by_list([entries[rank] for rank in ranks], first))
        first += len(ranks)
        pairs_count += found[-1].pairs_count
    runs_count = sum(len(some.rows) for some in found) + sum(len(rows) for _, rows in others)
    if pairs_count > max_pairs or runs_count > MAX_RUNS:
        return None
    found.append(_Found.one_by_one([rows for _, rows in others], first))
    order = np.array([*chain(*lists.values(), (rank for rank, _ in others))], np.int32)
    # One that reaches several rows in its own way, or none, is a list by itself.
    alone = [row < 0 or row != before for before, row in pairwise([-1, *map(_only_row, others)])]
    numbers = np.repeat(np.arange(len(lists), dtype=np.int32), [*map(len, lists.values())])
    return _in_force(
        data,
        ordered.select([*_FIELDS]).take(pa.array(order)),
        order,
        np.concatenate([numbers, len(lists) + np.cumsum(alone, dtype=np.int32)]).astype(np.int32),
        _Found.all_of(found),
    )


def in_order(deletes: pa.Table, names: Sequence[str]) -> pa.Table:
    """Delete files by some columns, then by their offset; what has no offset comes first."""
    keys = deletes.select([*names])
    keys = keys.append_column("offset", pc.fill_null(deletes["content_offset"], -1))
    return deletes.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))


def bounds_of_paths(deletes: pa.Table) -> Iterator[PathBounds]:
    """What each of some delete files says of the paths that it names: `applicability.path_bounds` over rows of entries."""
    path_id = pa.scalar(DELETE_FILE_PATH.field_id, pa.int32())
    lower, upper = (
        pc.map_lookup(deletes[name], path_id, "first").to_pylist() for name in ("lower_bounds", "upper_bounds")
    )
    return zip(lower, upper, strict=True)


def _sole_paths(deletes: pa.Table) -> pa.Array:
    """The column `sole_path` of some delete files."""
    is_asked = pc.and_(pc.equal(deletes["content"], _POSITIONS), pc.is_null(deletes["referenced_data_file"]))
    known = zip(is_asked.to_pylist(), bounds_of_paths(deletes), strict=True)
    return pa.array([sole_path(bounds) if is_asked else None for is_asked, bounds in known], SOLE_PATH.type)


def _only_row(one: tuple[int, _Numbers]) -> int:
    """The row that a delete file reaches, -1 where there is none or several."""
    return int(one[1][0]) if len(one[1]) == 1 else -1


class _Found(msgspec.Struct, frozen=True):
    """Runs of delete files, each with the row that it reaches."""

    rows: _Places
    starts: _Places
    stops: _Places

    @property
    def pairs_count(self) -> int:
        return int((self.stops - self.starts).sum(dtype=np.int64))

    @classmethod
    def one_by_one(cls, rows: Sequence[_Numbers], first: int) -> "_Found":
        """Delete files from a position on, each with the rows that it reaches."""
        positions = np.repeat(np.arange(first, first + len(rows), dtype=np.int32), [*map(len, rows)])
        return cls(np.concatenate([_NONE, *rows]).astype(np.int32), positions, positions + 1)

    @classmethod
    def all_of(cls, some: Sequence["_Found"]) -> "_Found":
        rows, starts, stops = (
            np.concatenate([getattr(one, name) for one in some]).astype(np.int32, copy=False)
            for name in cls.__struct_fields__
        )
        return cls(rows, starts, stops)

    def only(self, kept: NDArray[Any]) -> "_Found":
        """Some of them, or all in another order."""
        return _Found(self.rows[kept], self.starts[kept], self.stops[kept])


class _RowsOf:
    """Finds the data files that a delete file reaches, vectors not being asked whether they take its place."""

    def __init__(self, data: pa.Table, deletes: Sequence[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        # By path, as UTF-8 is ordered: what path bounds leave of a partition are neighbours.
        self._order: _Numbers = (
            pc.sort_indices(data, sort_keys=[("file_path", "ascending")]).to_numpy().astype(np.int64)
        )
        in_order = data.select([*_OF_DATA]).take(self._order)
        self._numbers: _Numbers = in_order["sequence_number"].to_numpy()
        self._files: list[tuple[Any, ...]] = [*zip(*(in_order[name].to_pylist() for name in _OF_DATA), strict=True)]
        self._at_path = _indices_by_key(
            (path for path, *_ in self._files), {only_data_file(delete.data_file) for delete in deletes}
        )
        self._in_partition = _indices_by_key(
            ((spec_id, (partition,)) for _, spec_id, partition, _ in self._files),
            {partition_key(delete.data_file) for delete in deletes if not is_global(delete.data_file, specs)},
        )
        self._paths: dict[PartitionKey, list[bytes]] = {}

    def reached(self, delete: ManifestEntry, bounds: PathBounds) -> _Numbers:
        """Rows of the data that a delete file reaches by its path or the bounds of paths, in no order."""
        only = only_data_file(delete.data_file)
        if only is not None:
            named = self._at_path.get(only, _NONE).tolist()
            indices = np.array([p for p in named if reaches(delete, self._data_file(p), self._specs)], np.int64)
        else:
            indices = self._of_partition(partition_key(delete.data_file), bounds)
        return self._order[indices[self._numbers[indices] <= max_reached(delete)]]

    def reached_by_list(self, deletes: Sequence[ManifestEntry], first: int) -> _Found:
        """The rows that delete files of one list reach, which stand in the order of their numbers, from a position on."""
        indices = np.arange(len(self._order))
        if not is_global(deletes[0].data_file, self._specs):
            indices = self._in_partition.get(partition_key(deletes[0].data_file), _NONE)
        greatest = np.array([*map(max_reached, deletes)], np.int64)
        starts = np.searchsorted(greatest, self._numbers[indices]).astype(np.int32)
        is_reached = starts < len(deletes)
        starts = starts[is_reached]
        stops = np.full(len(starts), first + len(deletes), np.int32)
        return _Found(self._order[indices[is_reached]].astype(np.int32), starts + np.int32(first), stops)

    def _of_partition(self, partition: PartitionKey, bounds: PathBounds) -> _Numbers:
        indices = self._in_partition.get(partition, _NONE)
        if not len(indices):
            return indices
        if partition not in self._paths:
            self._paths[partition] = [self._files[index][0].encode() for index in indices.tolist()]
        return indices[named_range(self._paths[partition], bounds)]

    def _data_file(self, index: int) -> ManifestEntry:
        path, spec_id, partition, number = self._files[index]
        return _entry(FileContent.DATA, path, "", spec_id, partition, number, None)


def _indices_by_key(keys: Iterable[Hashable], asked: Collection[Hashable]) -> dict[Any, _Numbers]:
    found = defaultdict(list)
    for index, key in enumerate(keys):
        if key in asked:
            found[key].append(index)
    return {key: np.array(indices, np.int64) for key, indices in found.items()}


def _entries(deletes: pa.Table) -> list[ManifestEntry]:
    return [*map(_entry, *(deletes[name].to_pylist() for name in _OF_DELETES))]


def _entry(
    content: int, path: str, file_format: str, spec_id: int, partition: bytes, number: int, only: str | None
) -> ManifestEntry:
    """As much of an entry as the rule asks for; bytes stand for the partition, equal where partitions are."""
    file = DataFile(
        content=FileContent(content),
        file_path=path,
        file_format=file_format,
        spec_id=spec_id,
        partition=(partition,),
        record_count=0,
        file_size_in_bytes=0,
        referenced_data_file=only,
    )
    return ManifestEntry(status=Status.EXISTING, sequence_number=number, data_file=file)


def _in_force(data: pa.Table, deletes: pa.Table, ranks: _Places, lists: _Places, found: _Found) -> Reaching:
    """What remains of runs once a deletion vector took the place of position deletes."""
    reached = _covered(found.starts, found.stops, len(ranks))
    is_equality = deletes["content"].to_numpy() == FileContent.EQUALITY_DELETES
    is_vector = ~is_equality & (pc.utf8_lower(deletes["file_format"]).to_numpy() == "puffin")
    vectors_count = np.bincount(found.rows[is_vector[found.starts]], minlength=data.num_rows)
    if (vectors_count > 1).any():
        row = int(np.argmax(vectors_count > 1))
        path = data["file_path"][row].as_py()
        raise several_vectors(path, int(vectors_count[row]))
    if vectors_count.any():
        has_none = vectors_count[found.rows] == 0
        found = found.only(is_vector[found.starts] | is_equality[found.starts] | has_none)
    found = found.only(np.lexsort((found.starts, found.rows)))
    if len(found.rows):
        found = _joined(found, lists)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(found.rows, minlength=data.num_rows))])
    return Reaching(
        deletes=deletes,
        ranks=ranks,
        lists=lists,
        reached=reached,
        offsets=offsets,
        starts=found.starts,
        stops=found.stops,
    )


def _joined(found: _Found, lists: _Places) -> _Found:
    """The same with neighbours of one list that reach one row as one run; they come in order."""
    same = found.rows[1:] == found.rows[:-1]
    same &= (found.starts[1:] == found.stops[:-1]) & (lists[found.starts[1:]] == lists[found.starts[:-1]])
    begins = np.flatnonzero(np.concatenate([[True], ~same]))
    ends = np.concatenate([begins[1:], [len(found.rows)]]) - 1
    return _Found(found.rows[begins], found.starts[begins], found.stops[ends])
