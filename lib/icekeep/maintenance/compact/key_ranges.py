"""A partition with more files than one task can plan is planned in ranges of the order, each by itself.

Files are divided by where they lie in the order: by the lower end of their keys, on a curve by that of its first column, and
without an order by their paths. A sample says where, so that all ranges have about as many. How files of two ranges overlap is
not looked at: what is sorted once lies in one of them, and a run after that finds little that reaches over.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.decoding import from_msgpack
from icekeep.maintenance.compact.candidates import METRICS, RANGE, ends_of_row, with_key_metrics
from icekeep.maintenance.compact.grouping import GroupRules
from icekeep.planning.entries import entries_count
from icekeep.planning.scan.plan import Scan, planned_files
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema, with_field
from icekeep.planning.spark.tasks import prepare_worker
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = "group_partition"
"""A column: the second half of `GroupRules.key_of`."""

PLANNED_FILES_COUNT = 500_000
"""The most files of one partition that a task plans: an order needs all of them, and some 1.5 kB are held of each."""

_SAMPLE_COUNT = 10_000
_POSITIONS = pa.schema([("spec_id", pa.int32()), (KEY, pa.binary()), ("position", pa.binary())])

Key = tuple[int, bytes]
"""As `GroupRules.key_of`."""

SortPosition = tuple[tuple[bytes, ...], str]
"""Where a file lies: the lower end of its keys, and its path, since many may have equal keys."""


class KeyRanges(msgspec.Struct, frozen=True):
    """How many files there are of one key, and the position of the first one of each range but the first range."""

    files_count: int
    starts: tuple[SortPosition, ...]


def key_ranges(scan: Scan, spark: SparkSource, rules: GroupRules) -> dict[Key, KeyRanges]:
    """The keys with more files than a task plans, and their ranges; few files are not looked at.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: manifests cannot be read whole.
    """
    crowded = _crowded(scan, spark, rules)
    if not crowded:
        return {}
    columns = ("file_path", "record_count", "spec_id", "partition", *(() if rules.space is None else METRICS))
    files = _with_keys(with_key_metrics(planned_files(scan, spark, columns), rules.space), rules)
    sample: dict[Key, list[SortPosition]] = defaultdict(list)
    sampled = files.mapInArrow(partial(_sampled, rules, crowded), from_arrow_schema(_POSITIONS))
    for row in collected(sampled, "cutting partitions with many files"):
        sample[row["spec_id"], bytes(row[KEY])].append(from_msgpack(bytes(row["position"]), SortPosition))
    found = {}
    for key, files_count in crowded.items():
        # None of them where a filter leaves no file.
        positions, count = sorted(sample[key]), -(-files_count // PLANNED_FILES_COUNT)
        starts = {positions[len(positions) * number // count] for number in range(1, count) if positions}
        found[key] = KeyRanges(files_count, tuple(sorted(starts)))
    return found


def _crowded(scan: Scan, spark: SparkSource, rules: GroupRules) -> dict[Key, int]:
    """The keys with more files than a task plans, and how many these are.

    Where all files of a spec have one key the manifest list tells. Else entries are counted, for an order alone: without one
    a task holds no more than a group at a time.
    """
    metadata, by_spec = scan.table.metadata, Counter[int]()
    for manifest in scan.data.opened:
        by_spec[manifest.partition_spec_id] += entries_count([manifest])
    found: dict[Key, int] = {}
    asked = []
    for spec_id, count in by_spec.items():
        if count <= PLANNED_FILES_COUNT:
            continue
        if rules.is_moved(spec_id):
            found[spec_id, b""] = count
        elif metadata.specs_by_id[spec_id].is_unpartitioned:
            found[spec_id, PartitionCodec(metadata.partition_type(spec_id)).encode(())] = count
        elif rules.strategy.ordering is not None:
            asked.append(spec_id)
    if asked:
        keys = planned_files(scan, spark, ("spec_id", "partition")).where(F.col("spec_id").isin(asked))
        counts = keys.groupBy("spec_id", "partition").count().where(F.col("count") > PLANNED_FILES_COUNT)
        rows = collected(counts, "counting the files of partitions")
        found |= {(row["spec_id"], bytes(row["partition"])): row["count"] for row in rows}
    return found


def _with_keys(files: "DataFrame", rules: GroupRules) -> "DataFrame":
    moved = [spec_id for spec_id in rules.output_specs if rules.is_moved(spec_id)]
    key = F.when(F.col("spec_id").isin(moved), F.lit(bytearray())).otherwise(F.col("partition"))
    return files.select("*", key.alias(KEY))


def _sampled(
    rules: GroupRules, crowded: Mapping[Key, int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The positions of every n-th file of each key, and of one at least of each batch."""
    prepare_worker()
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for (spec_id, key), count in crowded.items():
            own = pc.and_(pc.equal(batch["spec_id"], spec_id), pc.equal(batch[KEY], key))
            numbers = np.flatnonzero(own.to_numpy(zero_copy_only=False))[:: max(1, count // _SAMPLE_COUNT)]
            rows += batch.take(pa.array(numbers)).to_pylist()
        found = [
            {"spec_id": row["spec_id"], KEY: row[KEY], "position": msgspec.msgpack.encode(_position(row, rules))}
            for row in rows
        ]
        if found:
            yield pa.RecordBatch.from_pylist(found, schema=_POSITIONS)


def note_of(key: Key, found: KeyRanges, metadata: TableMetadata, rules: GroupRules) -> str:
    """What people should know of a key that is planned in ranges."""
    name = "a partition spec that files move from"
    if not rules.is_moved(key[0]):
        name = f"partition {path_of(key, metadata)!r}"
    return (
        f"{name} has {found.files_count:,} data files, more than the {PLANNED_FILES_COUNT:,} that one task plans: they are "
        f"planned as {len(found.starts) + 1} ranges of {'paths' if rules.space is None else 'the sort order'}, each by itself; "
        "nothing is to be done, but finer partitions would be planned faster"
    )


def path_of(key: Key, metadata: TableMetadata) -> str:
    """The path of the partition of a key, for people."""
    spec_id, partition = key
    return metadata.partition_path(spec_id, PartitionCodec(metadata.partition_type(spec_id)).decode(partition))


def with_range_numbers(files: "DataFrame", rules: GroupRules, ranges: Mapping[Key, KeyRanges]) -> "DataFrame":
    """Rows of `planned_candidates` with their keys, and with the number of the range that each is in."""
    keyed = _with_keys(files, rules)
    if not ranges:
        return keyed.withColumn(RANGE, F.lit(0))
    return keyed.mapInArrow(partial(_numbered, rules, ranges), with_field(keyed.schema, RANGE, pa.int32()))


def _numbered(
    rules: GroupRules, ranges: Mapping[Key, KeyRanges], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        rows = batch.drop_columns(["deletes"]) if "deletes" in batch.schema.names else batch
        numbers = []
        for row in rows.to_pylist():
            found = ranges.get((row["spec_id"], row[KEY]))
            numbers.append(0 if found is None else bisect_right(found.starts, _position(row, rules)))
        yield batch.append_column(pa.field(RANGE, pa.int32(), nullable=False), pa.array(numbers, pa.int32()))


def _position(row: Mapping[str, Any], rules: GroupRules) -> SortPosition:
    if rules.space is None:
        return (), row["file_path"]
    lower, _ = ends_of_row(row, rules.space)
    return lower[:1] if rules.space.is_curve else lower, row["file_path"]
