"""Entries of manifests, decoded and pruned where they are read: on the driver in threads, or inside Spark tasks.

Filters are evaluated on whole Arrow batches, right after decoding, so that a pruned entry never leaves this module.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.planning.entries.metrics_evaluator import columns_needed, files_that_may_match, partitions_that_match
from icekeep.planning.manifests.column_memory import Columns, known_columns
from icekeep.planning.manifests.entry_schema import ENTRIES, METRICS, STORED
from icekeep.planning.manifests.partition_columns import partition_keys
from icekeep.planning.manifests.reader import ManifestDecoder, read_manifests, read_through
from icekeep.planning.slow_reads import note_slow_read
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, predicates
from icekeep.spec.manifests.encode import PartitionCodec
from icekeep.spec.manifests.structs import ManifestFile, Status
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage


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
