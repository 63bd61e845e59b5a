"""Match delete files to the data files they reach (`spec.delete_runs`), for plans of any size.

* `reaching`: over Arrow tables, where files are few. Spark takes longer to start than this takes to finish.
* `with_deletes`: as Spark joins, where files are many. Delete files are grouped once by their scope: one data file, one
  partition of a spec, or the whole table. Each data file joins its scopes by equality, however many delete files they hold,
  and keeps from each those that its sequence number and path allow. This states the rule a second time, in Spark's columns;
  decision 21 (`docs/design/decisions`) has the reason, and the test that holds the two together.
* `with_deletes_in_tasks`: `reaching` in Spark tasks, where a partition is crowded with deletes. A join gives each data file
  all delete files of its partition: with a hundred thousand of them that is a row of 20 MB for each data file. Tasks get
  data files by a hash of their paths. A delete file for one data file goes to that file's task, and all others go to every
  task: so a task has at least as many data files as there are such deletes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug
from icekeep.planning.entries import DecodedEntries, EntryFilter, folded
from icekeep.planning.manifests import REACHING_DELETES, SOLE_PATH
from icekeep.planning.spark.rows import shuffle_key
from icekeep.planning.spark.session import F, SparkSource, with_field
from icekeep.planning.spark.tasks import prepare_worker
from icekeep.planning.spark.workers import MATCHED_FILES, tasks_count
from icekeep.spec.delete_runs import NO_LIMIT, SEVERAL_FILES, DataColumns, DeleteColumns, DeleteRuns, match
from icekeep.spec.manifests.structs import FileContent, ManifestFile
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.reach import PathBounds, missing_spec, nameless_vector
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_PAIRS = 5_000_000
"""The most pairs of a data file and a delete file that reaches it, where the driver writes out each."""

MAX_RUNS = 5_000_000
"""The most runs of delete files that reach a data file on the driver: 8 bytes each, and some 60 while they are computed."""

EVERY_PAIR = NO_LIMIT
"""The limit of pairs where only runs are needed."""

BROADCAST_MAX_COUNT = 20_000
"""Up to this many delete files, some 10 MB, are broadcast, and no data file is shuffled."""

CROWDED_COUNT = 2_000
"""A partition is crowded with more delete files than this that may be for several data files."""

_PATHS_AT_ONCE = 250_000

_BATCH_PAIRS = 100_000
"""Pairs of a data file and a delete file that reaches it in one batch of a task: some 20 MB."""

_FIELDS = [field.name for field in REACHING_DELETES.value_type]
_STORED_FIELDS = [name for name in _FIELDS if name != SOLE_PATH.name]
_POSITIONS, _EQUALITY = int(FileContent.POSITION_DELETES), int(FileContent.EQUALITY_DELETES)
_WHOLE_TABLE = bytearray(b"t")
_Numbers = NDArray[np.int64]

MATCHED_DATA_COLUMNS = frozenset({"file_path", "spec_id", "partition", "sequence_number"})
"""The columns of data files that `reaching` needs."""


class ReachingDeletes(DeleteRuns, frozen=True, kw_only=True):
    """The runs of `deletes` that reach each row of a table of data files.

    `ranks` are the places of delete files in the order of a plan's column `deletes`.
    """

    deletes: pa.Table

    def own_record_counts(self, paths: pa.ChunkedArray) -> _Numbers:
        """The positions in each row's own deletes, those that `own_path` says are for its data file alone; `paths` are the rows'.

        A position in two of them counts twice, so a count may exceed the rows of the data file.
        """
        path = pc.coalesce(self.deletes["referenced_data_file"].cast(SOLE_PATH.type), self.deletes[SOLE_PATH.name])
        own = np.flatnonzero(pc.and_(pc.equal(self.deletes["content"], _POSITIONS), path.is_valid()).to_numpy())
        named = path.take(pa.array(own))
        different = named.unique()
        places = _places_in(different, paths.cast(SOLE_PATH.type))
        # Where two rows have a path, the first one counts.
        those = np.flatnonzero(places >= 0)[::-1]
        row_of_path = np.full(len(different), -1)
        row_of_path[places[those]] = those
        rows = row_of_path[_places_in(different, named)]
        own, rows = own[rows >= 0], rows[rows >= 0]
        counts = np.zeros(len(self.offsets) - 1, np.int64)
        if len(self.starts):
            # Runs are in the order of their rows, and those of a row in that of their starts.
            width = len(self.ranks) + 1
            runs = np.searchsorted(self.rows * width + self.starts, rows * width + own, "right") - 1
            is_reached = (runs >= 0) & (self.rows[runs] == rows) & (own < self.stops[runs])
            records = self.deletes["record_count"].to_numpy()
            np.add.at(counts, rows[is_reached], records[own[is_reached]])
        return counts


def reaching(
    data: pa.Table, deletes: pa.Table, specs: Mapping[int, PartitionSpec], max_pairs: int = MAX_PAIRS
) -> ReachingDeletes | None:
    """Match live delete files, with `MATCHED_COLUMNS`, to live data files, with `MATCHED_DATA_COLUMNS`.

    `None` where more than `max_pairs` of a data file and a delete file are needed, or `MAX_RUNS`. Raises `InvalidTableError`
    where two deletion vectors reach one data file, a delete file for one data file lies in another partition, a vector names
    no data file, or a partition spec is missing.
    """
    # Bounds are most of what is known of a delete file: they go before anything is sorted, and copied.
    deletes = deletes.append_column(SOLE_PATH, _sole_paths(deletes)).drop_columns(["lower_bounds", "upper_bounds"])
    ordered = in_order(deletes, ("sequence_number", "file_path"))
    del deletes
    only, is_of_positions = ordered["referenced_data_file"], pc.equal(ordered["content"], _POSITIONS)
    is_vector = pc.and_(is_of_positions, pc.equal(pc.utf8_lower(ordered["file_format"]), "puffin"))
    nameless = ordered["file_path"].filter(pc.and_(is_vector, pc.is_null(only)))
    if len(nameless):
        raise nameless_vector(nameless[0].as_py())
    has_no_spec = pc.invert(pc.is_in(ordered["spec_id"], pa.array([*specs], pa.int32())))
    for row in ordered.select(["file_path", "spec_id"]).filter(has_no_spec)[:1].to_pylist():
        raise missing_spec(row["file_path"], row["spec_id"])

    def beginnings(length: int, rows: _Numbers, places: _Numbers) -> tuple[_Numbers, _Numbers]:
        soles = ordered[SOLE_PATH.name].take(pa.array(places)).combine_chunks()
        different = soles.unique()
        found = [np.empty(0, np.int64)]
        # A part of the paths at a time is copied.
        for start in range(0, len(data), _PATHS_AT_ONCE):
            first, last = np.searchsorted(rows, [start, start + _PATHS_AT_ONCE])
            paths = data["file_path"].slice(start, _PATHS_AT_ONCE)
            if last - first < len(paths):
                paths = paths.take(pa.array(rows[first:last] - start))
            lengths = pc.binary_length(paths)
            paths = paths.cast(pa.binary())
            if pc.min_max(lengths).as_py() != {"min": length, "max": length}:
                paths = pc.if_else(pc.less(lengths, length), None, pc.binary_slice(paths, 0, length))
            found.append(_places_in(different, paths))
        return np.concatenate(found), _places_in(different, soles)

    @cache
    def whole_paths() -> pa.Array:
        return data["file_path"].combine_chunks()

    def paths(rows: _Numbers) -> list[str]:
        # Of one array: taking from many chunks is slow, and is done for each partition.
        some: list[str] = whole_paths().take(pa.array(rows)).to_pylist()
        return some

    is_equality = ~is_of_positions.to_numpy()
    unpartitioned = [number for number, spec in specs.items() if spec.is_unpartitioned]
    is_named = pc.and_(is_of_positions, pc.is_valid(only))
    encoded = only.filter(is_named).combine_chunks().dictionary_encode()
    files = np.full(len(ordered), SEVERAL_FILES)
    files[is_named.to_numpy()] = encoded.indices.to_numpy()
    texts, texts_of_deletes = _numbers_of(data["partition"], ordered["partition"])
    spec_ids, spec_ids_of_deletes = data["spec_id"].to_numpy(), ordered["spec_id"].to_numpy()
    runs = match(
        DataColumns(
            files=_places_in(encoded.dictionary, data["file_path"]) if len(encoded) else np.full(len(data), -1),
            partitions=texts << 32 | spec_ids,
            sequence_numbers=data["sequence_number"].to_numpy(),
            paths=paths,
        ),
        DeleteColumns(
            files=files,
            partitions=texts_of_deletes << 32 | spec_ids_of_deletes,
            sequence_numbers=ordered["sequence_number"].to_numpy(),
            is_equality=is_equality,
            is_vector=is_vector.to_numpy(),
            is_global=is_equality & np.isin(spec_ids_of_deletes, unpartitioned),
            sole_lengths=pc.fill_null(pc.binary_length(ordered[SOLE_PATH.name]), -1).to_numpy().astype(np.int64),
            beginnings=beginnings,
            sole_paths=lambda rows: ordered[SOLE_PATH.name].take(pa.array(rows)).to_pylist(),
            paths=lambda rows: ordered["file_path"].take(pa.array(rows)).to_pylist(),
        ),
        max_pairs=max_pairs,
        max_runs=MAX_RUNS,
    )
    if runs is None:
        return None
    return ReachingDeletes(deletes=ordered.select(_FIELDS).take(pa.array(runs.ranks)), **msgspec.structs.asdict(runs))


def in_order(deletes: pa.Table, names: Sequence[str]) -> pa.Table:
    """Delete files sorted by some columns, then by their offset, nulls first."""
    keys = deletes.select([*names])
    keys = keys.append_column("offset", pc.fill_null(deletes["content_offset"], -1))
    return deletes.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))


def bounds_of_paths(deletes: pa.Table) -> Iterator[PathBounds]:
    """The bounds of each delete file on the paths in it: `reach.path_bounds` over rows of entries."""
    lower, upper = _path_bounds(deletes)
    return zip(lower.to_pylist(), upper.to_pylist(), strict=True)


def _path_bounds(deletes: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    path_id = pa.scalar(DELETE_FILE_PATH.field_id, pa.int32())
    return tuple(pc.map_lookup(deletes[name], path_id, "first") for name in ("lower_bounds", "upper_bounds"))


def _sole_paths(deletes: pa.Table) -> pa.ChunkedArray:
    """`reach.sole_path` of each position delete file that does not name its data file; null for others."""
    lower, upper = _path_bounds(deletes)
    is_nameless = pc.and_(pc.equal(deletes["content"], _POSITIONS), pc.is_null(deletes["referenced_data_file"]))
    return pc.if_else(pc.and_(is_nameless, pc.equal(lower, upper)), lower, None).cast(SOLE_PATH.type)


def _numbers_of(of_data: pa.ChunkedArray, of_deletes: pa.ChunkedArray) -> tuple[_Numbers, _Numbers]:
    """Numbers that are equal where the values are, from 0 on in the order of the data."""
    encoded = pa.chunked_array([*of_data.chunks, *of_deletes.chunks], of_data.type).dictionary_encode()
    codes = [chunk.indices.to_numpy().astype(np.int64) for chunk in encoded.chunks]
    numbers = np.concatenate([np.empty(0, np.int64), *codes])
    return numbers[: len(of_data)], numbers[len(of_data) :]


def _places_in(different: pa.Array, values: pa.Array | pa.ChunkedArray) -> _Numbers:
    """The place of each value among different ones; -1 for one that is not there."""
    places: _Numbers = pc.fill_null(pc.index_in(values, value_set=different), -1).to_numpy().astype(np.int64)
    return places


def with_deletes(
    data: "DataFrame", deletes: "DataFrame", specs: Mapping[int, PartitionSpec], *, deletes_count: int | None = None
) -> "DataFrame":
    """The data files, each with the delete files that a reader must apply to it; lazy.

    Both are read once; their columns are those of `reaching`, whose errors come when rows are computed. The new column
    `deletes` has the type `REACHING_DELETES`, is never null, and is ordered by sequence number, path and offset. A row with
    many deletes is wide: drop columns before a shuffle. `deletes_count` is the most that there may be, by the manifest lists.
    """
    scopes = _scopes(deletes, specs)
    is_small = deletes_count is not None and deletes_count <= BROADCAST_MAX_COUNT
    # Spark's own estimate of the tasks' output is far too low; it would bring a million deletion vectors to the driver.
    hinted = F.broadcast(scopes) if is_small else scopes.hint("merge")
    of_file = hinted.select(F.col("scope").alias("file_scope"), F.col("members").alias("of_file"))
    of_partition = hinted.select(F.col("scope").alias("partition_scope"), F.col("members").alias("of_partition"))
    # Deletes of single files come first: there are few for each, and the next join may shuffle what this one adds.
    joined = data.join(of_file, _file_scope(F.col("file_path")) == F.col("file_scope"), "left")
    joined = joined.join(of_partition, _partition_scope() == F.col("partition_scope"), "left")
    if any(spec.is_unpartitioned for spec in specs.values()):
        whole = F.flatten(F.collect_list(F.when(F.col("scope") == F.lit(_WHOLE_TABLE), F.col("members"))))
        joined = joined.crossJoin(F.broadcast(scopes.agg(whole.alias("of_table"))))
    else:
        joined = joined.withColumn("of_table", F.array())
    members, path = scopes.schema["members"].dataType, F.col("file_path").cast("binary")
    reaching = joined.select(
        *(F.col(name) for name in data.columns),
        F.filter(F.coalesce("of_file", F.array().cast(members)), _is_newer).alias("of_file"),
        # As `reach.named_range`: only equal bounds rule a path out, and equality deletes have none.
        F.filter(
            F.coalesce("of_partition", F.array().cast(members)),
            lambda member: (
                _is_newer(member) & (member.delete.sole_path.isNull() | F.startswith(path, member.delete.sole_path))
            ),
        ).alias("of_partition"),
        F.filter(F.col("of_table").cast(members), _is_newer).alias("of_table"),
    )
    return reaching.select(*(F.col(name) for name in data.columns), _in_force().alias("deletes"))


def count_deletes_in_use(planned: "DataFrame") -> "DataFrame":
    """One row that counts the distinct delete files in a plan's column `deletes`.

    For `deletion_vectors`, `position_delete_files` and `equality_delete_files`: columns `<kind>_count`, `<kind>_bytes` (for
    vectors those of the blobs) and `<kind>_record_count` (deleted positions, or rows of an equality delete file).
    """
    file = F.col("delete")
    used = planned.select(F.explode("deletes").alias("delete")).select(
        file.file_path.alias("file_path"),
        file.content_offset.alias("content_offset"),
        F.when(file.content == _EQUALITY, "equality_delete_files")
        .when(_is_vector(file), "deletion_vectors")
        .otherwise("position_delete_files")
        .alias("kind"),
        F.when(_is_vector(file), file.content_size_in_bytes).otherwise(file.file_size_in_bytes).alias("size_in_bytes"),
        file.record_count.alias("record_count"),
    )
    distinct = used.dropDuplicates(["file_path", "content_offset"])
    counts = []
    for kind in ("deletion_vectors", "position_delete_files", "equality_delete_files"):
        counts.append(F.count_if(F.col("kind") == kind).alias(f"{kind}_count"))
        for column, name in (("size_in_bytes", "bytes"), ("record_count", "record_count")):
            total = F.sum(F.when(F.col("kind") == kind, F.col(column)))
            counts.append(F.coalesce(total, F.lit(0)).alias(f"{kind}_{name}"))
    return distinct.agg(*counts)


def _scopes(deletes: "DataFrame", specs: Mapping[int, PartitionSpec]) -> "DataFrame":
    """A row for each scope with delete files: its name, bytes that start with its kind, and its members in the order of the
    column `deletes`.
    """
    path, only, spec_id = F.col("file_path"), F.col("referenced_data_file"), F.col("spec_id")
    is_positions = F.col("content") == _POSITIONS
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
    # Never null, and Spark must know it: else it would add a filter to some uses of the scopes, which then share no shuffle.
    scope = F.coalesce(scope, F.lit(bytearray()))
    lower, upper = (F.col(name).getItem(DELETE_FILE_PATH.field_id) for name in ("lower_bounds", "upper_bounds"))
    # `reach.sole_path`, for position delete files that do not name their data file.
    sole = F.when(is_positions & only.isNull() & (lower == upper), lower)
    delete = F.struct(*_STORED_FIELDS, sole.alias(SOLE_PATH.name))
    member = F.struct("sequence_number", "file_path", "content_offset", delete.alias("delete"))
    named = deletes.select(scope.alias("scope"), member.alias("member"))
    # One list and no filter below this: then all joins share one shuffle, whichever members they use, and `deletes` is read once.
    return named.groupBy("scope").agg(F.sort_array(F.collect_list("member")).alias("members"))


def _file_scope(path: "Column") -> "Column":
    return F.concat(F.lit(bytearray(b"f")), path.cast("binary"))


def _partition_scope() -> "Column":
    number = F.col("spec_id").cast("string").cast("binary")
    return F.concat(F.lit(bytearray(b"p")), number, F.lit(bytearray(b":")), F.col("partition"))


def _is_newer(member: "Column") -> "Column":
    """Whether a delete file applies by sequence number: equality deletes spare data files of their own commit."""
    number = F.col("sequence_number")
    return (member.sequence_number > number) | (
        (member.delete.content != _EQUALITY) & (member.sequence_number == number)
    )


def _in_force() -> "Column":
    """The delete files to apply, in order: a deletion vector supersedes position deletes."""
    of_file, of_partition, of_table = F.col("of_file"), F.col("of_partition"), F.col("of_table")
    vectors = F.filter(of_file, lambda member: _is_vector(member.delete))
    elsewhere = F.filter(
        of_file,
        lambda member: (member.delete.spec_id != F.col("spec_id")) | (member.delete.partition != F.col("partition")),
    )
    equality = F.filter(of_partition, lambda member: member.delete.content == _EQUALITY)
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


def _is_vector(file: "Column") -> "Column":
    return (file.content == _POSITIONS) & (F.lower(file.file_format) == "puffin")


def _error(*parts: "str | Column") -> "Column":
    """Fail the job with an error that `spark.rows.collected` rebuilds; `parts` are texts and columns of its message."""
    columns = (F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts)
    return F.raise_error(F.concat(F.lit("icekeep.errors.InvalidTableError: "), *columns))


def crowded_count(
    storage: Storage, spark: SparkSource, manifests: Sequence[ManifestFile], wanted: EntryFilter
) -> int | None:
    """The number of delete files that are not for one data file alone, if some partition is crowded with them, else `None`."""
    columns = {"content", "spec_id", "partition", "referenced_data_file"}
    counts = folded(storage, spark, manifests, wanted, columns, SharedDeleteCounts)
    return counts.total() if max(counts.values(), default=0) > CROWDED_COUNT else None


class SharedDeleteCounts(Counter[tuple[int, bytes]]):
    """A `Fold`: for each partition, the number of delete files that may be for several data files."""

    def add(self, decoded: DecodedEntries) -> None:
        rows = decoded.entries
        is_alone = pc.and_(pc.equal(rows["content"], _POSITIONS), pc.is_valid(rows["referenced_data_file"]))
        shared = pa.Table.from_batches([rows]).filter(pc.invert(is_alone))
        for row in shared.group_by(["spec_id", "partition"]).aggregate([([], "count_all")]).to_pylist():
            self[row["spec_id"], row["partition"]] += row["count_all"]

    def merge(self, other: "SharedDeleteCounts") -> None:
        self.update(other)


def with_deletes_in_tasks(
    data: "DataFrame",
    deletes: "DataFrame",
    specs: Mapping[int, PartitionSpec],
    *,
    data_count: int,
    shared_count: int,
) -> "DataFrame":
    """The same result and errors as `with_deletes`; lazy. `shared_count` delete files are not for one data file alone."""
    parts_count = tasks_count(data.sparkSession, data_count, MATCHED_FILES, beside=shared_count)
    only = F.when(F.col("content") == _POSITIONS, F.col("referenced_data_file"))
    everywhere = F.sequence(F.lit(0), F.lit(parts_count - 1))
    parts_of_delete = F.when(only.isNotNull(), F.array(_part(only, parts_count))).otherwise(everywhere)
    file, delete = F.struct(*data.columns), F.struct(*deletes.columns)
    files = data.select(_part(F.col("file_path"), parts_count).alias("part"), file.alias("data"))
    others = deletes.select(F.explode(parts_of_delete).alias("part"), delete.alias("delete"))
    both = files.unionByName(others, allowMissingColumns=True)
    met = both.repartition(parts_count, shuffle_key(F.col("part"), parts_count)).select("data", "delete")
    return met.mapInArrow(partial(_matched, specs), with_field(data.schema, "deletes", REACHING_DELETES))


def _part(path: "Column", parts_count: int) -> "Column":
    return F.pmod(F.hash(path), F.lit(parts_count))


def _matched(specs: Mapping[int, PartitionSpec], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The data files of one part with the deletes that reach each, in an order that does not depend on how rows arrive."""
    prepare_worker()
    both: tuple[list[pa.RecordBatch], ...] = [], []
    for batch in batches:
        for name, rows in zip(("data", "delete"), both, strict=True):
            rows.append(pa.RecordBatch.from_struct_array(batch[name].filter(batch[name].is_valid())))
    if not both[0]:
        return
    data, deletes = map(pa.Table.from_batches, both)
    pending = [data.sort_by([("file_path", "ascending"), ("sequence_number", "ascending")]).combine_chunks()]
    while pending:
        some = pending.pop()
        matched = reaching(some, deletes, specs, EVERY_PAIR)
        if matched is not None:
            yield from _written_out(some, matched)
        elif some.num_rows < 2:
            raise IcekeepBug(f"{deletes.num_rows} delete files are too many for one data file")
        else:
            half = some.num_rows // 2
            pending += [some[half:], some[:half]]


def _written_out(data: pa.Table, matched: ReachingDeletes) -> Iterator[pa.RecordBatch]:
    """Data files with their lists of deletes, in batches: a delete file that reaches many is in many lists."""
    lengths = (matched.stops - matched.starts).astype(np.int64)
    counts = np.bincount(matched.rows, lengths, data.num_rows).astype(np.int64)
    ends = np.cumsum(counts)
    members = pa.concat_arrays(matched.deletes.to_struct_array().chunks) if matched.deletes.num_rows else None
    type_ = REACHING_DELETES if members is None else pa.list_(pa.field("element", members.type, nullable=False))
    start = 0
    while start < data.num_rows:
        before = ends[start] - counts[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + _BATCH_PAIRS, "right")))
        if members is None:
            lists = pa.array([[]] * (stop - start), type_)
        else:
            # In the order of a plan's column `deletes`.
            runs = slice(matched.offsets[start], matched.offsets[stop])
            some, of_run = lengths[runs], matched.starts[runs].astype(np.int64)
            positions = np.arange(some.sum()) + np.repeat(of_run - (np.cumsum(some) - some), some)
            rows = np.repeat(matched.rows[runs] - start, some)
            order = np.lexsort((matched.ranks[positions], rows))
            offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=stop - start))])
            taken = members.take(pa.array(positions[order]))
            lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), taken, type=type_)
        files = data[start:stop].combine_chunks()
        yield from files.append_column(pa.field("deletes", lists.type, nullable=False), lists).to_batches()
        start = stop
