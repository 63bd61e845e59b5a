"""Entries of manifests, decoded and pruned where they are read: on the driver in threads, or inside Spark tasks.

Filters are evaluated on whole Arrow batches, right after decoding, so that a pruned entry never leaves this module.

Entries of many manifests: the one seam that chooses where manifests are decoded, and by what.

Few entries are decoded on the driver, in threads, since they are ready before a Spark task has begun; many in Spark tasks,
each of which is given about the same number of bytes of manifests. Storage is never listed and never asked for lengths:
the manifest list knows them.

Rows of delete files as values.

The manifests of a snapshot, and which of them a filter needs. Rows of a manifest list; the driver holds these.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.commit.live_files import check_totals
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError
from icekeep.formats.machine import processors_count
from icekeep.planning.decoder import ManifestDecoder, chosen_decoder, note_slow_read
from icekeep.planning.manifests import ENTRIES, METRICS, STORED, read_manifests, read_through
from icekeep.planning.memory import Columns, known_columns
from icekeep.planning.partition_columns import partition_keys
from icekeep.planning.prune import columns_needed, files_that_may_match, partitions_that_match
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, dataframe_from_tasks, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, tasks_count
from icekeep.spec.collections import balanced, packed
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import manifest_may_match
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, predicates
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.filters.projections import project_inclusive
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestFile, Status
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB, StructType
from icekeep.storage.base import Storage
from icekeep.storage.locations import parse_location
from icekeep.storage.many import REQUESTS_AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SpecFilter(msgspec.Struct, frozen=True):
    """The partition type of one spec, and the filter over it: what rows of the scan's filter may lie in."""

    partition: StructType
    matches: Expression = ALWAYS_TRUE


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries of a manifest a reader wants.

    Attributes:
        specs: by the spec of a manifest.
        rows: the filter over rows, bound to the scan's schema, for bounds.
        live_only: leave out entries of deleted files.
        added_by: only files that one of these snapshots added; `None` for all.
        path_end: only files whose path ends so.
    """

    specs: Mapping[int, SpecFilter]
    rows: Expression = ALWAYS_TRUE
    live_only: bool = True
    added_by: frozenset[int] | None = None
    path_end: str = ""


class Amount(msgspec.Struct, frozen=True):
    """So many files of so many bytes together."""

    files_count: int = 0
    bytes: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.files_count + other.files_count, self.bytes + other.bytes)


class Steps(msgspec.Struct, frozen=True):
    """What was left after each step: of the entries that the manifests list, by their partitions, by their bounds.

    `slow_manifests_count` is how many of the manifests were decoded in the slow way, though the fast one was chosen.
    """

    opened: Amount = Amount()
    by_partition: Amount = Amount()
    by_metrics: Amount = Amount()
    slow_manifests_count: int = 0

    def __add__(self, other: "Steps") -> "Steps":
        return Steps(
            self.opened + other.opened,
            self.by_partition + other.by_partition,
            self.by_metrics + other.by_metrics,
            self.slow_manifests_count + other.slow_manifests_count,
        )


class ManifestsTask(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests with which something is done, one after another, in a thread or a Spark task."""

    manifests: tuple[ManifestFile, ...]


class DecodeTask(ManifestsTask, frozen=True, kw_only=True):
    """Manifests that are read, and the columns of `entry_schema.ENTRIES` that are wanted of them."""

    wanted: EntryFilter
    columns: frozenset[str]
    storage: Storage
    decoder: ManifestDecoder


class DecodedEntries(msgspec.Struct, frozen=True):
    """Some of the wanted entries, in order, in the columns that were asked for; and what was dropped on the way to them."""

    entries: pa.RecordBatch
    steps: Steps


def decode(task: DecodeTask) -> Iterator[DecodedEntries]:
    """The wanted entries of a task's manifests, in order.

    Raises:
        InvalidTableError, MissingFileError: a manifest is not whole.
    """
    for _, alike in groupby(task.manifests, lambda manifest: (manifest.partition_spec_id, manifest.content)):
        yield from _decode([*alike], task)


def entries_schema(columns: frozenset[str]) -> pa.Schema:
    """The wanted columns in the order of `entry_schema.ENTRIES`."""
    return pa.schema([field for field in ENTRIES if field.name in columns])


def _decode(manifests: list[ManifestFile], task: DecodeTask) -> Iterator[DecodedEntries]:
    """The wanted entries of manifests of one spec and content."""
    spec_id = manifests[0].partition_spec_id
    wanted, spec = task.wanted, task.wanted.specs[spec_id]
    shape = _Shape(spec_id, task)
    columns = _columns_to_read(task, spec)
    known = known_columns(task.storage)
    read = read_manifests if known is None else partial(read_through, known)
    told: list[str] = []

    def slow(location: str, error: Exception) -> None:
        told.append(location)
        note_slow_read(location, error)

    for batch in read(manifests, spec.partition, task.storage, columns, decoder=task.decoder, slow=slow):
        # Masks first, rows last: metrics are wide, and nobody wants them moved.
        opened = in_partition = _asked_for(batch, wanted)
        if spec.matches is not ALWAYS_TRUE:
            in_partition = opened & partitions_that_match(spec.matches, spec.partition.fields, batch["partition"])
        left = in_partition
        if wanted.rows is not ALWAYS_TRUE and in_partition.any():
            left = in_partition & files_that_may_match(wanted.rows, batch)
        sizes = batch["file_size_in_bytes"].to_numpy()
        steps = Steps(_amount(sizes, opened), _amount(sizes, in_partition), _amount(sizes, left), len(told))
        told.clear()
        yield DecodedEntries(shape.of(batch, left), steps)
    if told:
        yield DecodedEntries(
            pa.RecordBatch.from_pylist([], entries_schema(task.columns)), Steps(slow_manifests_count=len(told))
        )


def _columns_to_read(task: DecodeTask, spec: SpecFilter) -> Columns:
    """The columns to read; of metrics that only the filter looks at, the fields that it is about."""
    wanted = task.wanted
    stored = task.columns & {"manifest_path", *STORED.names}
    read = {"status", "file_size_in_bytes", *columns_needed(wanted.rows), *stored}
    if "partition" in task.columns or spec.matches is not ALWAYS_TRUE:
        read.add("partition")
    if wanted.added_by is not None:
        read.add("snapshot_id")
    if wanted.path_end:
        read.add("file_path")
    field_ids = frozenset(predicate.field.field_id for predicate in predicates(wanted.rows))
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


def _amount(sizes: np.ndarray, mask: np.ndarray) -> Amount:
    return Amount(int(np.count_nonzero(mask)), int(sizes[mask].sum()))


class _Shape:
    """Brings rows of one spec into the columns that were asked for."""

    def __init__(self, spec_id: int, task: DecodeTask) -> None:
        self._schema = entries_schema(task.columns)
        self._spec_id = spec_id
        self._codec = PartitionCodec(task.wanted.specs[spec_id].partition)

    def of(self, batch: pa.RecordBatch, mask: np.ndarray) -> pa.RecordBatch:
        stored = batch.select([name for name in self._schema.names if name in batch.schema.names])
        rows = stored if mask.all() else stored.filter(pa.array(mask))
        row_count = int(np.count_nonzero(mask))
        columns = [self._column(name, rows, row_count) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, rows: pa.RecordBatch, row_count: int) -> pa.Array:
        match name:
            case "spec_id":
                return pa.repeat(pa.scalar(self._spec_id, pa.int32()), row_count)
            case "partition":
                return partition_keys(rows["partition"], self._codec)
        return rows[name]


F = TypeVar("F", bound="Fold")
R = TypeVar("R")
T = TypeVar("T", bound=ManifestsTask)

_CHUNK_BYTES = 5 * MIB
_MIN_ENTRY_BYTES = 50


class ReadBy(StrEnum):
    """Where manifests are decoded."""

    DRIVER = "driver"
    TASKS = "tasks"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How manifests are read, and why so."""

    by: ReadBy
    decoder: ManifestDecoder
    reason: str


class Fold(Protocol):
    """What is worked out from entries as they are decoded, in any order; it is pickled, and keeps no rows."""

    def add(self, decoded: DecodedEntries) -> None:
        """Take in some entries."""

    def merge(self, other: Self) -> None:
        """Take in what another fold of the same make has found."""


def chosen_reading(manifests: Iterable[ManifestFile], limit: int) -> Reading:
    """Decide how manifests are read; a list of version 1 may not say how many entries it leads to, then their bytes do.

    Args:
        limit: up to so many entries are read on the driver; one of `Limits`.
    """
    count = entries_count(manifests)
    decoder, why = chosen_decoder()
    if count <= limit:
        where = ReadBy.DRIVER
        reason = f"{count:,} entries, and up to {limit:,} are ready before Spark tasks would be"
    else:
        where = ReadBy.TASKS
        reason = f"{count:,} entries, and above {limit:,} Spark tasks are faster"
    return Reading(by=where, decoder=decoder, reason=f"{reason}; {why}")


def entries(
    storage: Storage,
    spark: SparkSource,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    columns: Iterable[str],
    reading: Reading | None = None,
) -> "DataFrame":
    """The wanted entries of some manifests; lazy where tasks decode them.

    Args:
        columns: names from `entry_schema.ENTRIES`; only what they need is decoded. The columns come in that schema's order.
        reading: how to read; chosen by the number of entries if `None`.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole; at once, or in the tasks.
    """
    chosen = chosen_reading(manifests, limits_of(spark).entries_count) if reading is None else reading
    whole = DecodeTask(
        manifests=tuple(manifests), wanted=wanted, columns=frozenset(columns), storage=storage, decoder=chosen.decoder
    )
    if chosen.by is ReadBy.TASKS:
        session = started(spark)
        return dataframe_from_tasks(session, shares(whole, session), _decoded_rows, entries_schema(whole.columns))
    return arrow_dataframe(started(spark), _held(whole))


def few_entries(
    storage: Storage,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    columns: Iterable[str],
    decoder: ManifestDecoder,
) -> pa.Table:
    """The same as a table that the driver holds, for few manifests: no Spark has a part in it; raises as `entries` does."""
    return _held(
        DecodeTask(
            manifests=tuple(manifests), wanted=wanted, columns=frozenset(columns), storage=storage, decoder=decoder
        )
    )


def folded(
    storage: Storage,
    spark: SparkSource,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    columns: Iterable[str],
    new: Callable[[], F],
    reading: Reading | None = None,
) -> F:
    """Fold the wanted entries of some manifests into one value; no row reaches Spark, and few entries do not start it.

    Args:
        new: makes an empty fold; a class, or a function of a module.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole.
    """
    chosen = chosen_reading(manifests, limits_of(spark).folded_entries_count) if reading is None else reading
    whole = DecodeTask(
        manifests=tuple(manifests), wanted=wanted, columns=frozenset(columns), storage=storage, decoder=chosen.decoder
    )
    session = None if chosen.by is ReadBy.DRIVER else started(spark)
    some = [*manifest_chunks(whole.manifests)] if session is None else manifests_by_task(whole.manifests, session)
    folding = _Folding(msgspec.structs.replace(whole, manifests=()), new)
    threads = threads_count(manifest.manifest_path for manifest in whole.manifests)
    total = new()
    for part in all_results(run_tasks(session, some, _fold, folding, step="reading manifests", threads=threads)):
        total.merge(part)
    return total


class _Folding(msgspec.Struct, frozen=True):
    """What all tasks of a fold share; `decode` lacks the manifests."""

    decode: DecodeTask
    new: Callable[[], Any]


def shares(whole: DecodeTask, spark: "SparkSession") -> list[DecodeTask]:
    """The same work in parts, one for each Spark task."""
    return [msgspec.structs.replace(whole, manifests=tuple(some)) for some in manifests_by_task(whole.manifests, spark)]


def manifests_by_task(manifests: Sequence[ManifestFile], spark: "SparkSession") -> list[list[ManifestFile]]:
    """The manifests that each Spark task reads, balanced by their bytes."""
    bins_count = tasks_count(spark, sum(m.manifest_length for m in manifests), MANIFEST_BYTES)
    return balanced(manifests, lambda m: m.manifest_length, min(bins_count, len(manifests)))


def _held(whole: DecodeTask) -> pa.Table:
    batches = [batch for some in in_threads(whole, _rows_of) for batch in some if batch.num_rows]
    return pa.Table.from_batches(batches, entries_schema(whole.columns))


def _decoded_rows(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    return (decoded.entries for decoded in decode(task))


def _rows_of(task: DecodeTask) -> list[pa.RecordBatch]:
    return list(_decoded_rows(task))


def _fold(manifests: Sequence[ManifestFile], folding: _Folding) -> Any:
    fold = folding.new()
    for decoded in decode(msgspec.structs.replace(folding.decode, manifests=tuple(manifests))):
        fold.add(decoded)
    return fold


def in_threads(whole: T, work: Callable[[T], R]) -> Iterator[R]:
    """Do work on the manifests, some at a time, in threads of this process; results in the order of the manifests."""
    tasks = [msgspec.structs.replace(whole, manifests=some) for some in manifest_chunks(whole.manifests)]
    threads = threads_count(manifest.manifest_path for manifest in whole.manifests)
    pool = ThreadPoolExecutor(min(threads, max(1, len(tasks))))
    try:
        yield from pool.map(work, tasks)
    finally:
        # After an error or an interrupt, manifests that were not begun are not read any more.
        pool.shutdown(wait=True, cancel_futures=True)


def threads_count(locations: Iterable[str]) -> int:
    """How many threads read or write files at once: as many as there are processors, more where they mostly wait."""
    threads = processors_count()
    if any(parse_location(location).scheme != "file" for location in locations):
        return max(threads, REQUESTS_AT_ONCE)
    return threads


def manifest_chunks(manifests: Iterable[ManifestFile]) -> Iterator[tuple[ManifestFile, ...]]:
    """Neighbours of some megabytes together: little enough to be dealt out evenly, enough for small ones to go together."""
    return map(tuple, packed(manifests, (lambda m: m.manifest_length, _CHUNK_BYTES)))


def entries_count(manifests: Iterable[ManifestFile]) -> int:
    """How many entries manifests have, by what their lists say, else by their bytes."""
    return sum(map(_entries_count, manifests))


def _entries_count(manifest: ManifestFile) -> int:
    counts = (manifest.live_files_count, manifest.deleted_files_count)
    if None in counts:
        return manifest.manifest_length // _MIN_ENTRY_BYTES
    return sum(count or 0 for count in counts)


def delete_file(row: Mapping[str, Any], partition: tuple[Any, ...]) -> DataFile:
    """The delete file of a row of `entry_schema.REACHING_DELETES`, as far as applying it asks for.

    Args:
        row: its fields; those that may be null may be missing.
        partition: what the bytes in the row stand for.
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


class ManifestSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests to open, those that a filter let us skip, and what is asked of the partitions of each spec."""

    opened: tuple[ManifestFile, ...] = ()
    skipped: tuple[ManifestFile, ...] = ()
    specs: dict[int, SpecFilter] = {}


def snapshot_manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    """The manifests of a snapshot that have live files; none for a table without a snapshot.

    Those that the list calls empty are among them where the totals of the summary do not agree: whoever reads them sees
    whether the list is right.
    """
    if snapshot is None:
        return []
    rows = ManifestReader(table.storage).manifests(snapshot)
    try:
        agree = check_totals(rows, snapshot)
    except InvalidTableError:
        agree = False
    return [row for row in rows if row.may_have_live_files] if agree else rows


def data_manifests(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    """Those that track data files."""
    return [m for m in manifests if m.content is ManifestContent.DATA]


def delete_manifests(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    """Those that track delete files."""
    return [m for m in manifests if m.content is ManifestContent.DELETES]


def select_manifests(
    metadata: TableMetadata, schema: Schema, manifests: Sequence[ManifestFile], rows: Expression
) -> ManifestSelection:
    """The manifests that may hold a file for a filter, by their partition summaries.

    Args:
        schema: of the scan.
        rows: a filter over rows, bound to it. It is projected through each manifest's own spec.
    """
    specs = {
        spec_id: _spec_filter(metadata, schema, spec_id, rows) for spec_id in {m.partition_spec_id for m in manifests}
    }
    opened: list[ManifestFile] = []
    skipped: list[ManifestFile] = []
    for manifest in manifests:
        spec = specs[manifest.partition_spec_id]
        (opened if may_hold_matches(manifest, spec) else skipped).append(manifest)
    return ManifestSelection(opened=tuple(opened), skipped=tuple(skipped), specs=specs)


def may_hold_matches(manifest: ManifestFile, spec: SpecFilter) -> bool:
    """Whether a manifest of a spec may hold a file that a filter over its partitions matches, by the summaries."""
    return manifest.partitions is None or manifest_may_match(spec.matches, spec.partition.fields, manifest.partitions)


def _spec_filter(metadata: TableMetadata, schema: Schema, spec_id: int, rows: Expression) -> SpecFilter:
    partition = metadata.partition_type(spec_id)
    if rows is ALWAYS_TRUE:
        return SpecFilter(partition)
    return SpecFilter(partition, project_inclusive(rows, metadata.specs_by_id[spec_id], schema))


def bound_filter(where: str | Expression, metadata: TableMetadata, schema: Schema, moment_ms: int) -> Expression:
    """A filter given as text or as an expression, bound to a schema of the table.

    Args:
        moment_ms: what `now` in the text is, in epoch milliseconds.

    Raises:
        ExpressionError, NotFoundError: the filter does not fit the schema.
    """
    expression = parse_where(where, moment_ms) if isinstance(where, str) else where
    return bind(expression, schema, metadata.partition_specs)
