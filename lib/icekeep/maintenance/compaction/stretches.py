"""A partition with more files than one task can plan: it is cut into stretches, each of which is planned by itself.

Files are cut where they lie in the order: by the lower end of their keys, on a curve by that of its first column, and without
an order by their paths. A sample says where, so that all stretches have about as many. How files of two stretches overlap
nobody looks at: what is sorted once lies in one of them, and a run after that finds little that reaches over.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.decoding import from_msgpack
from icekeep.maintenance.compaction.grouping import GroupRules
from icekeep.maintenance.compaction.planned_files import METRICS, STRETCH, ends_of_row, with_key_metrics
from icekeep.planning.entries import entries_count
from icekeep.planning.scan.plan import Scan, planned_files
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema, with_field
from icekeep.planning.spark.tasks import prepare_worker
from icekeep.spec.manifests.write import PartitionCodec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = "group_partition"

PLANNED_FILES_COUNT = 500_000
"""A task plans so many files of one partition: an order needs all of them, and some 1.5 kB are held of each."""

_SAMPLE_COUNT = 10_000
_PLACES = pa.schema([("spec_id", pa.int32()), (KEY, pa.binary()), ("place", pa.binary())])

Key = tuple[int, bytes]
"""As `GroupRules.key_of`."""

Place = tuple[tuple[bytes, ...], str]
"""Where a file lies: the lower end of its keys, and its path, since many may have equal keys."""


class Cuts(msgspec.Struct, frozen=True):
    """Where files of one key are cut: the place of the first file of each stretch but the first; and how many files these are."""

    files_count: int
    points: tuple[Place, ...]


def group_key(rules: GroupRules) -> "Column":
    """The second half of `GroupRules.key_of` as a column."""
    moved = [spec_id for spec_id in rules.output_specs if rules.is_moved(spec_id)]
    return F.when(F.col("spec_id").isin(moved), F.lit(bytearray())).otherwise(F.col("partition")).alias(KEY)


def cuts_of(scan: Scan, spark: SparkSource, rules: GroupRules) -> dict[Key, Cuts]:
    """The keys with more files than a task plans, and where these are cut; few files are not looked at.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: manifests cannot be read whole.
    """
    crowded = _crowded(scan, spark, rules)
    if not crowded:
        return {}
    columns = ("file_path", "record_count", "spec_id", "partition", *(() if rules.space is None else METRICS))
    files = with_key_metrics(planned_files(scan, spark, columns), rules.space).select("*", group_key(rules))
    sample: dict[Key, list[Place]] = defaultdict(list)
    sampled = files.mapInArrow(partial(_sampled, rules, crowded), from_arrow_schema(_PLACES))
    for row in collected(sampled, "cutting partitions with many files"):
        sample[row["spec_id"], bytes(row[KEY])].append(from_msgpack(bytes(row["place"]), Place))
    return {key: Cuts(n, _points(sample[key], -(-n // PLANNED_FILES_COUNT))) for key, n in crowded.items()}


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


def _points(places: list[Place], count: int) -> tuple[Place, ...]:
    """What cuts some places into about so many stretches of as many."""
    if not places:
        # A filter leaves none of them.
        return ()
    places.sort()
    return tuple(sorted({places[len(places) * number // count] for number in range(1, count)}))


def _sampled(
    rules: GroupRules, crowded: Mapping[Key, int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        rows = _every(batch, crowded)
        places = [msgspec.msgpack.encode(_place(row, rules)) for row in rows]
        columns = [pa.array(values) for values in zip(*((row["spec_id"], row[KEY]) for row in rows), strict=True)]
        if rows:
            yield pa.RecordBatch.from_arrays([*columns, pa.array(places)], schema=_PLACES)


def _every(batch: pa.RecordBatch, crowded: Mapping[Key, int]) -> list[dict[str, Any]]:
    """Rows of a sample: of each key every so-manieth, and of each batch one at least."""
    rows: list[dict[str, Any]] = []
    for (spec_id, key), count in crowded.items():
        own = pc.and_(pc.equal(batch["spec_id"], spec_id), pc.equal(batch[KEY], key))
        numbers = np.flatnonzero(own.to_numpy(zero_copy_only=False))[:: max(1, count // _SAMPLE_COUNT)]
        rows += batch.take(pa.array(numbers)).to_pylist()
    return rows


def with_stretches(files: "DataFrame", rules: GroupRules, cuts: Mapping[Key, Cuts]) -> "DataFrame":
    """Rows of `many_planned_files` with their keys, and with the number of the stretch that each is in."""
    keyed = files.select("*", group_key(rules))
    if not cuts:
        return keyed.withColumn(STRETCH, F.lit(0))
    return keyed.mapInArrow(partial(_numbered, rules, cuts), with_field(keyed.schema, STRETCH, pa.int32()))


def _numbered(
    rules: GroupRules, cuts: Mapping[Key, Cuts], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        rows = batch.drop_columns(["deletes"]) if "deletes" in batch.schema.names else batch
        numbers = pa.array([_stretch(row, rules, cuts) for row in rows.to_pylist()], pa.int32())
        yield batch.append_column(pa.field(STRETCH, pa.int32(), nullable=False), numbers)


def _stretch(row: Mapping[str, Any], rules: GroupRules, cuts: Mapping[Key, Cuts]) -> int:
    found = cuts.get((row["spec_id"], row[KEY]))
    return 0 if found is None else bisect_right(found.points, _place(row, rules))


def _place(row: Mapping[str, Any], rules: GroupRules) -> Place:
    if rules.space is None:
        return (), row["file_path"]
    lower, _ = ends_of_row(row, rules.space)
    return lower[:1] if rules.space.is_curve else lower, row["file_path"]


def notes_of(cuts: Mapping[Key, Cuts], names: Sequence[str], what: str) -> tuple[str, ...]:
    """What people are told: a line for each key, whose names these are; `what` says what ranges are of."""
    return tuple(
        f"{name} has {one.files_count:,} data files, more than the {PLANNED_FILES_COUNT:,} that one task plans: they are "
        f"planned as {len(one.points) + 1} ranges of {what}, each by itself; nothing is to be done, but finer partitions would "
        "be planned faster"
        for name, one in zip(names, cuts.values(), strict=True)
    )
