"""Decode the entries of manifests, and prune them by a filter.

Few entries are decoded in threads of the driver, faster than a Spark task starts; many in Spark tasks, with about the same
number of bytes of manifests each. Storage is never listed nor asked for lengths, which the manifest list has. Filters are
evaluated on whole Arrow batches, right after decoding, so that a pruned entry never leaves this module.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.machine import processors_count
from icekeep.planning.decoder import ManifestDecoder, chosen_decoder, note_slow_read
from icekeep.planning.manifests import ENTRIES, METRICS, STORED, partition_keys, read_manifests, read_through
from icekeep.planning.memory import Columns, RememberedStorage
from icekeep.planning.prune import columns_needed, files_that_may_match, files_that_must_match, partitions_that_match
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, dataframe_from_tasks, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, TaskSize, tasks_count
from icekeep.spec.collections import balanced, packed
from icekeep.spec.filters.evaluators import project_strict
from icekeep.spec.filters.expressions import ALWAYS_TRUE, BoundPredicate, Expression, predicates
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestFile, Status
from icekeep.spec.manifests.write import partition_codec
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB, StructType
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage
from icekeep.storage.locations import are_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FoldT = TypeVar("FoldT", bound="Fold")
R = TypeVar("R")
T = TypeVar("T", bound="ManifestsTask")

_CHUNK_BYTES = 5 * MIB
_MIN_ENTRY_BYTES = 50


class SpecFilter(msgspec.Struct, frozen=True):
    """The partition type of one spec, and the inclusive projection of the scan's filter onto it.

    `strict`, which only the column `ALL_MATCH` needs, has the strict projection of each predicate of the filter.
    """

    partition: StructType
    matches: Expression = ALWAYS_TRUE
    strict: Mapping[BoundPredicate, Expression] = {}

    def strictly(self, rows: Expression, spec: PartitionSpec, schema: Schema) -> "SpecFilter":
        """With the strict projections of a filter that is bound to a schema, onto the partitions of the spec."""
        strict = {predicate: project_strict(predicate, spec, schema) for predicate in predicates(rows)}
        return msgspec.structs.replace(self, strict=strict)


ALL_MATCH = pa.field("all_match", pa.bool_(), nullable=False)
"""A column beside those of `ENTRIES`: whether all rows of the file match the filter, by its partition and metrics."""


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries of manifests to select.

    Attributes:
        specs: by the spec id of a manifest.
        where: the filter over rows, bound to the scan's schema, which bounds and counts are asked about.
        live_only: leave out entries of deleted files.
        added_by: only files that one of these snapshots added; `None` for all.
        path_end: only files whose path ends with it.
    """

    specs: Mapping[int, SpecFilter]
    where: Expression = ALWAYS_TRUE
    live_only: bool = True
    added_by: frozenset[int] | None = None
    path_end: str = ""


class PruningStats(msgspec.Struct):
    """A `Fold`: files, and the sum of their sizes, that remained after each step of pruning.

    Attributes:
        opened_count: entries asked for in the manifests that were opened.
        by_partition_count: of these, left by their partition.
        by_metrics_count: of the rest, left by their bounds and counts.
        slow_manifests_count: manifests that the slow decoder read after the fast one had failed.
    """

    opened_count: int = 0
    opened_bytes: int = 0
    by_partition_count: int = 0
    by_partition_bytes: int = 0
    by_metrics_count: int = 0
    by_metrics_bytes: int = 0
    slow_manifests_count: int = 0

    def add(self, decoded: "DecodedEntries") -> None:
        self.merge(decoded.steps)

    def merge(self, other: "PruningStats") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ManifestsTask(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests that a thread or a Spark task works through, one after another."""

    manifests: tuple[ManifestFile, ...]


class DecodeTask(ManifestsTask, frozen=True, kw_only=True):
    """Manifests to decode, and the columns of `planning.manifests.ENTRIES` to decode."""

    wanted: EntryFilter
    columns: frozenset[str]
    storage: Storage
    decoder: ManifestDecoder


class DecodedEntries(msgspec.Struct, frozen=True):
    """A batch of selected entries, in order, and what each step of pruning left of the batch."""

    entries: pa.RecordBatch
    steps: PruningStats


class ReadBy(StrEnum):
    DRIVER = "driver"
    TASKS = "tasks"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How manifests are read, and the reason, for people."""

    by: ReadBy
    decoder: ManifestDecoder
    reason: str


class Fold(Protocol):
    """A mergeable aggregate over entries in any order; it is pickled, so it must stay small."""

    def add(self, decoded: DecodedEntries) -> None:
        """Add a batch."""

    def merge(self, other: Self) -> None:
        """Add another aggregate."""


def entries_count(manifests: Iterable[ManifestFile]) -> int:
    """The entries of manifests, counted by their list, or estimated by length where (in version 1) it has no counts."""
    total = 0
    for manifest in manifests:
        live, deleted = manifest.live_files_count, manifest.deleted_files_count
        if live is None or deleted is None:
            total += manifest.manifest_length // _MIN_ENTRY_BYTES
        else:
            total += live + deleted
    return total


def chosen_reading(manifests: Iterable[ManifestFile], limit: int) -> Reading:
    """Choose how manifests are read: on the driver up to `limit` entries, one of `Limits`."""
    count = entries_count(manifests)
    decoder, why = chosen_decoder()
    where, reason = ReadBy.TASKS, f"above {limit:,} Spark tasks are faster"
    if count <= limit:
        where, reason = ReadBy.DRIVER, f"up to {limit:,} are ready before Spark tasks would be"
    return Reading(by=where, decoder=decoder, reason=f"{count:,} entries, and {reason}; {why}")


def entries(
    storage: Storage,
    spark: SparkSource,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    columns: Iterable[str],
    reading: Reading | None = None,
) -> "DataFrame":
    """The selected entries of manifests, their columns in the order of `ENTRIES`; lazy where tasks decode them.

    Raises InvalidTableError, MissingFileError or UnsupportedError where a manifest cannot be read whole, now or in the tasks.
    """
    chosen = chosen_reading(manifests, limits_of(spark).entries_count) if reading is None else reading
    if chosen.by is ReadBy.DRIVER:
        return arrow_dataframe(started(spark), few_entries(storage, manifests, wanted, columns, chosen.decoder))
    whole = DecodeTask(
        manifests=tuple(manifests), wanted=wanted, columns=frozenset(columns), storage=storage, decoder=chosen.decoder
    )
    session = started(spark)
    return dataframe_from_tasks(session, shares(whole, session), _batches, entries_schema(whole.columns))


def few_entries(
    storage: Storage,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    columns: Iterable[str],
    decoder: ManifestDecoder,
    *,
    encoded: Collection[str] = (),
) -> pa.Table:
    """The selected entries of few manifests as a table on the driver, without Spark; raises as `entries` does.

    Columns that are `encoded` come as dictionaries: the path of a manifest, of each of its entries, takes as much as theirs.
    """
    whole = DecodeTask(
        manifests=tuple(manifests), wanted=wanted, columns=frozenset(columns), storage=storage, decoder=decoder
    )
    schema = entries_schema(whole.columns)
    names = [name for name in schema.names if name in encoded]
    for name in names:
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_type(pa.dictionary(pa.int32(), schema.field(place).type)))

    def read(task: DecodeTask) -> list[pa.RecordBatch]:
        batches = (batch for batch in _batches(task) if batch.num_rows)
        if not names:
            return [*batches]
        return [
            pa.RecordBatch.from_arrays(
                [
                    c.dictionary_encode() if name in names else c
                    for name, c in zip(schema.names, batch.columns, strict=True)
                ],
                schema=schema,
            )
            for batch in batches
        ]

    decoded = in_threads(whole, read)
    return pa.Table.from_batches([batch for batches in decoded for batch in batches], schema).unify_dictionaries()


def folded(
    storage: Storage,
    spark: SparkSource,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    columns: Iterable[str],
    new: Callable[[], FoldT],
    reading: Reading | None = None,
) -> FoldT:
    """Fold the selected entries of manifests into one value; no row reaches Spark, and few entries do not start it.

    `new` makes an empty fold and is pickled: a class, or a function of a module. Raises as `entries` does.
    """
    chosen = chosen_reading(manifests, limits_of(spark).folded_entries_count) if reading is None else reading
    session = None if chosen.by is ReadBy.DRIVER else started(spark)
    some = [*manifest_chunks(manifests)] if session is None else manifests_by_task(manifests, session)
    decode_none = DecodeTask(
        manifests=(), wanted=wanted, columns=frozenset(columns), storage=storage, decoder=chosen.decoder
    )
    threads = threads_count(manifest.manifest_path for manifest in manifests)
    total = new()
    step = "reading manifests"
    for part in all_results(run_tasks(session, some, _fold, (decode_none, new), step=step, threads=threads)):
        total.merge(part)
    return total


def _fold(manifests: Sequence[ManifestFile], shared: tuple[DecodeTask, Callable[[], Any]]) -> Any:
    decode_none, new = shared
    fold = new()
    for decoded in decode(msgspec.structs.replace(decode_none, manifests=tuple(manifests))):
        fold.add(decoded)
    return fold


def shares(whole: DecodeTask, spark: "SparkSession") -> list[DecodeTask]:
    return [msgspec.structs.replace(whole, manifests=tuple(some)) for some in manifests_by_task(whole.manifests, spark)]


def manifests_by_task(
    manifests: Sequence[ManifestFile], spark: "SparkSession", amount: TaskSize = MANIFEST_BYTES
) -> list[list[ManifestFile]]:
    """The manifests of each Spark task, balanced by their bytes."""
    bins_count = tasks_count(spark, sum(m.manifest_length for m in manifests), amount)
    return balanced(manifests, lambda m: m.manifest_length, min(bins_count, len(manifests)))


def in_threads(whole: T, work: Callable[[T], R]) -> Iterator[R]:
    """Do the work in threads of this process, some manifests at a time; results are in the order of the manifests."""
    tasks = [msgspec.structs.replace(whole, manifests=some) for some in manifest_chunks(whole.manifests)]
    threads = threads_count(manifest.manifest_path for manifest in whole.manifests)
    pool = ThreadPoolExecutor(min(threads, max(1, len(tasks))))
    try:
        yield from pool.map(work, tasks)
    finally:
        # After an error or an interrupt, no more manifests are begun.
        pool.shutdown(wait=True, cancel_futures=True)


def threads_count(locations: Iterable[str]) -> int:
    """The number of threads that read or write files: as many as processors, or more where they mostly wait for the network."""
    threads = processors_count()
    return threads if are_local(locations) else max(threads, REQUESTS_AT_ONCE)


def manifest_chunks(manifests: Iterable[ManifestFile]) -> Iterator[tuple[ManifestFile, ...]]:
    """Runs of manifests of some megabytes: few enough bytes to balance threads, enough to read small manifests together."""
    return map(tuple, packed(manifests, (lambda m: m.manifest_length, _CHUNK_BYTES)))


def entries_schema(columns: frozenset[str]) -> pa.Schema:
    return pa.schema([field for field in (*ENTRIES, ALL_MATCH) if field.name in columns])


def _batches(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    return (decoded.entries for decoded in decode(task))


def decode(task: DecodeTask) -> Iterator[DecodedEntries]:
    """The selected entries of a task's manifests, in order; raises as `entries` does."""
    for (spec_id, _), alike in groupby(task.manifests, lambda manifest: (manifest.partition_spec_id, manifest.content)):
        yield from _decode([*alike], spec_id, task)


def _decode(manifests: list[ManifestFile], spec_id: int, task: DecodeTask) -> Iterator[DecodedEntries]:
    """As `decode`, for manifests of one spec and content."""
    wanted, spec = task.wanted, task.wanted.specs[spec_id]
    schema, codec = entries_schema(task.columns), partition_codec(spec.partition)
    remembered = task.storage if isinstance(task.storage, RememberedStorage) else None
    read = read_manifests if remembered is None else partial(read_through, remembered)
    slow_manifests: list[str] = []

    def note_slow(location: str, error: Exception) -> None:
        slow_manifests.append(location)
        note_slow_read(location, error)

    columns = _columns_to_read(task, spec)
    for batch in read(manifests, spec.partition, task.storage, columns, decoder=task.decoder, slow=note_slow):
        # Masks first, rows last: metrics are wide, and are copied only if they are asked for.
        opened = in_partition = _asked_for(batch, wanted)
        if spec.matches is not ALWAYS_TRUE:
            in_partition = opened & partitions_that_match(spec.matches, spec.partition.fields, batch["partition"])
        selected = in_partition
        if wanted.where is not ALWAYS_TRUE and in_partition.any():
            selected = in_partition & files_that_may_match(wanted.where, batch)
        sizes = batch["file_size_in_bytes"].to_numpy()
        left = [(int(np.count_nonzero(mask)), int(sizes[mask].sum())) for mask in (opened, in_partition, selected)]
        steps = PruningStats(*left[0], *left[1], *left[2], len(slow_manifests))
        slow_manifests.clear()
        stored = batch.select([name for name in schema.names if name in batch.schema.names])
        rows = stored if selected.all() else stored.filter(pa.array(selected))
        arrays = []
        for name in schema.names:
            if name == "spec_id":
                arrays.append(pa.repeat(pa.scalar(spec_id, pa.int32()), steps.by_metrics_count))
            elif name == "partition":
                arrays.append(partition_keys(rows[name], codec))
            elif name == ALL_MATCH.name:
                all_match = files_that_must_match(wanted.where, batch, spec.partition.fields, spec.strict)
                arrays.append(pa.array(all_match[selected]))
            else:
                # DataFusion's arrays lie in larger buffers, which they keep: a third of the memory of a plan's paths.
                is_large = remembered is None and rows is stored
                arrays.append(pa.concat_arrays([rows[name]]) if is_large else rows[name])
        yield DecodedEntries(pa.RecordBatch.from_arrays(arrays, schema=schema), steps)
    if slow_manifests:
        nothing = pa.RecordBatch.from_pylist([], schema)
        yield DecodedEntries(nothing, PruningStats(slow_manifests_count=len(slow_manifests)))


def _columns_to_read(task: DecodeTask, spec: SpecFilter) -> Columns:
    """The columns to read, each with the field ids to read of it; of metrics that only the filter needs, those of its fields."""
    wanted = task.wanted
    stored = task.columns & {"manifest_path", *STORED.names}
    strictly = ALL_MATCH.name in task.columns
    read = {"status", "file_size_in_bytes", *columns_needed(wanted.where, strictly=strictly), *stored}
    if strictly or "partition" in task.columns or spec.matches is not ALWAYS_TRUE:
        read.add("partition")
    if wanted.added_by is not None:
        read.add("snapshot_id")
    if wanted.path_end:
        read.add("file_path")
    field_ids = frozenset(predicate.field.field_id for predicate in predicates(wanted.where))
    filtered_by = {*METRICS.names} - task.columns
    return {name: field_ids if name in filtered_by else None for name in sorted(read)}


def _asked_for(batch: pa.RecordBatch, wanted: EntryFilter) -> np.ndarray:
    mask = np.ones(batch.num_rows, dtype=bool)
    status = batch["status"].to_numpy()
    if wanted.live_only:
        mask &= status != Status.DELETED
    if wanted.added_by is not None:
        added_by = np.fromiter(wanted.added_by, dtype=np.int64)
        snapshot_ids = batch["snapshot_id"].fill_null(-1).to_numpy()
        mask &= (status == Status.ADDED) & np.isin(snapshot_ids, added_by)
    if wanted.path_end:
        mask &= pc.ends_with(batch["file_path"], wanted.path_end).to_numpy(zero_copy_only=False)
    return mask


def delete_file_from_row(row: Mapping[str, Any], partition: tuple[Any, ...]) -> DataFile:
    """The delete file of a row of `planning.manifests.REACHING_DELETES`, with the fields that applying it needs.

    Nullable fields of the row may be missing.
    """
    ids, key = row.get("equality_ids"), row.get("key_metadata")
    return DataFile(
        content=FileContent(row["content"]),
        file_path=row["file_path"],
        file_format=row["file_format"],
        spec_id=row["spec_id"],
        partition=partition,
        record_count=row["record_count"],
        file_size_in_bytes=row["file_size_in_bytes"],
        equality_ids=None if ids is None else tuple(ids),
        referenced_data_file=row.get("referenced_data_file"),
        content_offset=row.get("content_offset"),
        content_size_in_bytes=row.get("content_size_in_bytes"),
        key_metadata=None if key is None else bytes(key),
    )
