"""Which delete files reach which data files, where a partition is crowded with deletes: `delete_index`, asked in Spark tasks.

`delete_join` hands each data file all delete files of its partition, and asks one after the other. With a hundred thousand of
them that is a row of 20 MB for each data file. Here data files are dealt out by their paths. A delete file that is for one of
them goes where that is, and all others go everywhere: so a task has no fewer data files than there are of these.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepBug
from icekeep.planning.deletes.delete_index import EVERY_PAIR, Reaching, reaching
from icekeep.planning.entries.decode import DecodedEntries, EntryFilter
from icekeep.planning.entries.read import folded
from icekeep.planning.manifests.entry_schema import REACHING_DELETES
from icekeep.planning.spark.amounts import MATCHED_FILES, tasks_count
from icekeep.planning.spark.answers import prepare_worker
from icekeep.planning.spark.lazily import F, with_field
from icekeep.planning.spark.rows import partition_key
from icekeep.planning.spark.source import SparkSource
from icekeep.spec.manifests.structs import FileContent, ManifestFile
from icekeep.spec.partitioning import PartitionSpec
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CROWDED_COUNT = 2_000
"""A partition with more delete files that may be for several data files is crowded."""

_BATCH_PAIRS = 100_000
"""Pairs of a data file and a delete file that reaches it which are written out together: some 20 MB."""

_POSITIONS = int(FileContent.POSITION_DELETES)


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
    met = both.repartition(parts_count, partition_key(F.col("part"), parts_count)).select("data", "delete")
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
