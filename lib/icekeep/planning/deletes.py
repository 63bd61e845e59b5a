"""Which delete files reach which data files, where both are few: the rule of `spec.applicability` over Arrow tables.

Spark takes longer to begin than this takes to end. Delete files that are for a partition or for all data files are put in
the order of their sequence numbers: what of them reaches a data file is the end of that list, a run, however many they are.
The others come one after another, each with the data files that it may reach. `delete_join` says the same as joins.

Which delete files reach which data files, as joins: the rule of `spec.applicability` over DataFrames.

Delete files are put together once by their scope: one data file, one partition of a spec, or the whole table. Each data
file then meets its scopes by equality, however many delete files they hold, and takes from each what its sequence number
and path allow. What the rule refuses fails the Spark job with the same error. Few files are matched by `delete_index`;
decision 21 (`docs/design/decisions`) has why the rule is said here again, and the test that holds the two together.

Which delete files reach which data files, where a partition is crowded with deletes: `delete_index`, asked in Spark tasks.

`delete_join` hands each data file all delete files of its partition, and asks one after the other. With a hundred thousand of
them that is a row of 20 MB for each data file. Here data files are dealt out by their paths. A delete file that is for one of
them goes where that is, and all others go everywhere: so a task has no fewer data files than there are of these.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug
from icekeep.planning.entries import DecodedEntries, EntryFilter, folded
from icekeep.planning.manifests import REACHING_DELETES, SOLE_PATH
from icekeep.planning.spark.rows import partition_key as partition_key_of_rows
from icekeep.planning.spark.session import F, SparkSource, with_field
from icekeep.planning.spark.tasks import prepare_worker
from icekeep.planning.spark.workers import MATCHED_FILES, tasks_count
from icekeep.spec.collections import PositionSet, of_spans
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.reach import (
    PartitionKey,
    PathBounds,
    is_global,
    list_of,
    max_reached,
    named_range,
    only_data_file,
    partition_key,
    reaches,
    several_vectors,
    sole_path,
)
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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


BROADCAST_MAX_COUNT = 20_000
"""With no more delete files than this, some 10 MB, each executor gets them all and no data file is shuffled."""

_delete_join_FIELDS = tuple(field.name for field in REACHING_DELETES.value_type if field != SOLE_PATH)
_WHOLE_TABLE = bytearray(b"t")


def with_deletes(
    data: "DataFrame", deletes: "DataFrame", specs: Mapping[int, PartitionSpec], *, deletes_count: int | None = None
) -> "DataFrame":
    """The data files, each with the delete files that a reader must apply to it; lazy.

    Both are read once. The new column `deletes` has the type `entry_schema.REACHING_DELETES`, is never null, and is ordered by
    sequence number, path and offset. A row with many deletes is wide: narrow it before it is shuffled.

    Args:
        data: live data files; at least `file_path`, `spec_id`, `partition` and `sequence_number` of `entry_schema.ENTRIES`.
        deletes: live delete files; the columns `entry_schema.MATCHED_COLUMNS`.
        specs: the partition specs of the table.
        deletes_count: how many delete files there are at most, as manifest lists tell; `None` where they do not.

    Raises:
        InvalidTableError: (when rows are computed) two deletion vectors reach one data file, a delete file for one data
            file lies in another partition, a vector names no data file, or a partition spec is missing.

    Spec: "Scan Planning", "Delete Formats"; `spec.applicability.reaching_deletes` says the same of values.
    """
    scopes = _scopes(deletes, specs)
    is_small = deletes_count is not None and deletes_count <= BROADCAST_MAX_COUNT
    # Spark's own guess of what tasks yield is far too low; it would bring a million deletion vectors to the driver.
    known = F.broadcast(scopes) if is_small else scopes.hint("merge")
    of_file = known.select(F.col("scope").alias("file_scope"), F.col("members").alias("of_file"))
    of_partition = known.select(F.col("scope").alias("partition_scope"), F.col("members").alias("of_partition"))
    # The file's own come first: there are few of them, and the next join may shuffle what this one adds.
    joined = data.join(of_file, _file_scope(F.col("file_path")) == F.col("file_scope"), "left")
    joined = joined.join(of_partition, _partition_scope() == F.col("partition_scope"), "left")
    if any(spec.is_unpartitioned for spec in specs.values()):
        whole = F.flatten(F.collect_list(F.when(F.col("scope") == F.lit(_WHOLE_TABLE), F.col("members"))))
        joined = joined.crossJoin(F.broadcast(scopes.agg(whole.alias("of_table"))))
    else:
        joined = joined.withColumn("of_table", F.array())
    members = scopes.schema["members"].dataType
    reaching = joined.select(
        *(F.col(name) for name in data.columns),
        F.filter(F.coalesce("of_file", F.array().cast(members)), _is_newer).alias("of_file"),
        F.filter(F.coalesce("of_partition", F.array().cast(members)), _is_newer_and_may_name).alias("of_partition"),
        F.filter(F.col("of_table").cast(members), _is_newer).alias("of_table"),
    )
    return reaching.select(*(F.col(name) for name in data.columns), _delete_join_in_force().alias("deletes"))


def deletes_in_use(planned: "DataFrame") -> "DataFrame":
    """One row that counts the delete files of a plan's column `deletes`, each once however many data files it reaches.

    For `deletion_vectors`, `position_delete_files` and `equality_delete_files`: columns `<kind>_count`, `<kind>_bytes` (of
    a vector those of its blob) and `<kind>_record_count` (deleted positions, or rows of values to delete by).
    """
    file = F.col("delete")
    used = planned.select(F.explode("deletes").alias("delete")).select(
        file.file_path.alias("file_path"),
        file.content_offset.alias("content_offset"),
        F.when(_is_equality(file), "equality_delete_files")
        .when(_is_vector(file), "deletion_vectors")
        .otherwise("position_delete_files")
        .alias("kind"),
        F.when(_is_vector(file), file.content_size_in_bytes).otherwise(file.file_size_in_bytes).alias("size_in_bytes"),
        file.record_count.alias("record_count"),
    )
    distinct = used.dropDuplicates(["file_path", "content_offset"])
    return distinct.agg(
        *(
            column
            for kind in ("deletion_vectors", "position_delete_files", "equality_delete_files")
            for column in (
                F.count_if(F.col("kind") == kind).alias(f"{kind}_count"),
                _sum_where(kind, "size_in_bytes").alias(f"{kind}_bytes"),
                _sum_where(kind, "record_count").alias(f"{kind}_record_count"),
            )
        )
    )


def _sum_where(kind: str, column: str) -> "Column":
    return F.coalesce(F.sum(F.when(F.col("kind") == kind, F.col(column))), F.lit(0))


def _scopes(deletes: "DataFrame", specs: Mapping[int, PartitionSpec]) -> "DataFrame":
    """A row for each scope that has delete files: its name, and its members in the order of the column `deletes`."""
    delete = F.struct(*_delete_join_FIELDS, _sole_path().alias(SOLE_PATH.name))
    member = F.struct("sequence_number", "file_path", "content_offset", delete.alias("delete"))
    named = deletes.select(_scope(specs).alias("scope"), member.alias("member"))
    # One list and no filter below this: then all joins share one shuffle, whatever each uses, and `deletes` is read once.
    return named.groupBy("scope").agg(F.sort_array(F.collect_list("member")).alias("members"))


def _sole_path() -> "Column":
    """As `applicability.sole_path`, of position delete files that do not name their data file."""
    lower, upper = (F.col(name).getItem(DELETE_FILE_PATH.field_id) for name in ("lower_bounds", "upper_bounds"))
    is_asked = (F.col("content") == int(FileContent.POSITION_DELETES)) & F.col("referenced_data_file").isNull()
    return F.when(is_asked & (lower == upper), lower)


def _scope(specs: Mapping[int, PartitionSpec]) -> "Column":
    """What a delete file is for, as bytes that start with the kind of scope."""
    path, only, spec_id = F.col("file_path"), F.col("referenced_data_file"), F.col("spec_id")
    is_positions = F.col("content") == int(FileContent.POSITION_DELETES)
    unpartitioned = [number for number, spec in specs.items() if spec.is_unpartitioned]
    no_spec = _error("delete file '", path, "' has partition spec ", spec_id, ", which is not there")
    no_file = _error("the deletion vector in '", path, "' does not say which data file it is for")
    scope = (
        F.when(~spec_id.isin(list(specs)), no_spec)
        .when(is_positions & only.isNotNull(), _file_scope(only))
        .when(is_positions & (F.lower("file_format") == "puffin"), no_file)
        .when(~is_positions & spec_id.isin(unpartitioned), F.lit(_WHOLE_TABLE))
        .otherwise(_partition_scope())
    )
    # Never null, and Spark shall know it: it would filter by it in some of the uses of `_scopes`.
    return F.coalesce(scope, F.lit(bytearray()))


def _file_scope(path: "Column") -> "Column":
    return F.concat(F.lit(bytearray(b"f")), path.cast("binary"))


def _partition_scope() -> "Column":
    number = F.col("spec_id").cast("string").cast("binary")
    return F.concat(F.lit(bytearray(b"p")), number, F.lit(bytearray(b":")), F.col("partition"))


def _is_newer(member: "Column") -> "Column":
    """Whether a delete file is new enough for the data file: equality deletes spare their own commit's."""
    number = F.col("sequence_number")
    return (member.sequence_number > number) | (~_is_equality(member.delete) & (member.sequence_number == number))


def _is_newer_and_may_name(member: "Column") -> "Column":
    # As `applicability.named_range`: only equal bounds say no, which equality deletes have none of.
    sole = member.delete.sole_path
    return _is_newer(member) & (sole.isNull() | F.startswith(F.col("file_path").cast("binary"), sole))


def _delete_join_in_force() -> "Column":
    """What remains once a deletion vector took the place of position deletes, in order."""
    of_file, of_partition, of_table = F.col("of_file"), F.col("of_partition"), F.col("of_table")
    vectors = F.filter(of_file, lambda member: _is_vector(member.delete))
    elsewhere = F.filter(of_file, _is_elsewhere)
    equality = F.filter(of_partition, lambda member: _is_equality(member.delete))
    in_force = (
        F.when(
            F.size(elsewhere) > 0,
            _error(
                *("delete file '", F.get(elsewhere, F.lit(0)).file_path, "' is for data file '", F.col("file_path")),
                "', which has another partition spec or partition",
            ),
        )
        .when(
            F.size(vectors) > 1,
            _error("data file '", F.col("file_path"), "' has ", F.size(vectors), " deletion vectors; it may have one"),
        )
        .when(F.size(vectors) == 1, F.concat(vectors, equality, of_table))
        .otherwise(F.concat(of_file, of_partition, of_table))
    )
    return F.transform(F.sort_array(in_force), lambda member: member.delete)


def _is_equality(file: "Column") -> "Column":
    return file.content == int(FileContent.EQUALITY_DELETES)


def _is_vector(file: "Column") -> "Column":
    return (file.content == int(FileContent.POSITION_DELETES)) & (F.lower(file.file_format) == "puffin")


def _is_elsewhere(member: "Column") -> "Column":
    file = member.delete
    return (file.spec_id != F.col("spec_id")) | (file.partition != F.col("partition"))


def _error(*parts: "str | Column") -> "Column":
    """Fails the job with an error that `spark.rows.collected` makes again; the parts of its line, texts and columns."""
    columns = (F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts)
    return F.raise_error(F.concat(F.lit("icekeep.errors.InvalidTableError: "), *columns))


CROWDED_COUNT = 2_000
"""A partition with more delete files that may be for several data files is crowded."""

_BATCH_PAIRS = 100_000
"""Pairs of a data file and a delete file that reaches it which are written out together: some 20 MB."""


class Crowd(msgspec.Struct, frozen=True):
    """Delete files that are not for one data file alone: how many there are, and the most that one partition has."""

    shared_count: int
    most_count: int

    @property
    def is_crowded(self) -> bool:
        """Whether `with_deletes_in_tasks` is the way to match them."""
        return self.most_count > CROWDED_COUNT


def crowd_of(storage: Storage, spark: SparkSource, manifests: Sequence[ManifestFile], wanted: EntryFilter) -> Crowd:
    """Count the delete files of some manifests; raises as `folded` does."""
    columns = {"content", "spec_id", "partition", "referenced_data_file"}
    counts = folded(storage, spark, manifests, wanted, columns, _Counts).by_partition
    return Crowd(counts.total(), max(counts.values(), default=0))


class _Counts:
    """Delete files of each partition that may be for several data files."""

    def __init__(self) -> None:
        self.by_partition: Counter[tuple[int, bytes]] = Counter()

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        is_alone = pc.and_(pc.equal(rows["content"], _POSITIONS), pc.is_valid(rows["referenced_data_file"]))
        shared = pa.Table.from_batches([rows]).filter(pc.invert(is_alone))
        for row in shared.group_by(["spec_id", "partition"]).aggregate([([], "count_all")]).to_pylist():
            self.by_partition[row["spec_id"], row["partition"]] += row["count_all"]

    def merge(self, other: "_Counts") -> None:
        self.by_partition.update(other.by_partition)


def with_deletes_in_tasks(
    data: "DataFrame",
    deletes: "DataFrame",
    specs: Mapping[int, PartitionSpec],
    *,
    data_count: int,
    shared_count: int,
) -> "DataFrame":
    """What `delete_join.with_deletes` gives, and raises, for the same arguments; lazy.

    Args:
        data_count: about how many data files there are.
        shared_count: how many delete files are not for one data file alone.
    """
    parts_count = tasks_count(data.sparkSession, data_count, MATCHED_FILES, beside=shared_count)
    only = F.when(F.col("content") == _POSITIONS, F.col("referenced_data_file"))
    everywhere = F.sequence(F.lit(0), F.lit(parts_count - 1))
    parts_of_delete = F.when(only.isNotNull(), F.array(_part(only, parts_count))).otherwise(everywhere)
    file, delete = F.struct(*data.columns), F.struct(*deletes.columns)
    files = data.select(_part(F.col("file_path"), parts_count).alias("part"), file.alias("data"))
    others = deletes.select(F.explode(parts_of_delete).alias("part"), delete.alias("delete"))
    both = files.unionByName(others, allowMissingColumns=True)
    met = both.repartition(parts_count, partition_key_of_rows(F.col("part"), parts_count)).select("data", "delete")
    return met.mapInArrow(partial(_matched, specs), with_field(data.schema, "deletes", REACHING_DELETES))


def _part(path: "Column", parts_count: int) -> "Column":
    return F.pmod(F.hash(path), F.lit(parts_count))


def _matched(specs: Mapping[int, PartitionSpec], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The data files of one part with what reaches each, in an order that does not hang on that in which rows come."""
    prepare_worker()
    together = [(_rows(batch["data"]), _rows(batch["delete"])) for batch in batches]
    if together:
        data, deletes = map(pa.Table.from_batches, zip(*together, strict=True))
        by_path = [("file_path", "ascending"), ("sequence_number", "ascending")]
        yield from _with_deletes(data.sort_by(by_path).combine_chunks(), deletes, specs)


def _rows(structs: pa.StructArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(structs.filter(structs.is_valid()))


def _with_deletes(data: pa.Table, deletes: pa.Table, specs: Mapping[int, PartitionSpec]) -> Iterator[pa.RecordBatch]:
    found = reaching(data, deletes, specs, EVERY_PAIR)
    if found is not None:
        yield from _written_out(data, found)
        return
    if data.num_rows < 2:
        raise IcekeepBug(f"{deletes.num_rows} delete files are too many for one data file")
    half = data.num_rows // 2
    for some in (data[:half], data[half:]):
        yield from _with_deletes(some, deletes, specs)


def _written_out(data: pa.Table, found: Reaching) -> Iterator[pa.RecordBatch]:
    """Data files with lists of deletes, some at a time: what reaches many is in many lists."""
    lengths = (found.stops - found.starts).astype(np.int64)
    counts = np.bincount(found.rows, lengths, data.num_rows).astype(np.int64)
    ends = np.cumsum(counts)
    members = pa.concat_arrays(found.deletes.to_struct_array().chunks) if found.deletes.num_rows else None
    start = 0
    while start < data.num_rows:
        before = ends[start] - counts[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + _BATCH_PAIRS, "right")))
        rows = data[start:stop].combine_chunks()
        lists = _lists(found, members, lengths, start, stop)
        yield from rows.append_column(pa.field("deletes", lists.type, nullable=False), lists).to_batches()
        start = stop


def _lists(found: Reaching, members: pa.StructArray | None, lengths: np.ndarray, start: int, stop: int) -> pa.ListArray:
    """What reaches some rows, in the order of a plan's column `deletes`."""
    runs = slice(found.offsets[start], found.offsets[stop])
    some, of_run = lengths[runs], found.starts[runs].astype(np.int64)
    positions = np.arange(some.sum()) + np.repeat(of_run - (np.cumsum(some) - some), some)
    rows = np.repeat(found.rows[runs] - start, some)
    order = np.lexsort((found.ranks[positions], rows))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=stop - start))])
    if members is None:
        return pa.array([[]] * (stop - start), REACHING_DELETES)
    type_ = pa.list_(pa.field("element", members.type, nullable=False))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), members.take(pa.array(positions[order])), type=type_)
