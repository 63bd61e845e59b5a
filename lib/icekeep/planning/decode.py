"""Manifests decoded and pruned inside a task: bytes in, Arrow batches of entries out.

Filters are evaluated where the entry was decoded, so that a pruned entry never leaves the task.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.commit.manifests import StorageManifestReader
from icekeep.planning.columns import ENTRIES, PRUNED_BY_METRICS, PRUNED_BY_PARTITION
from icekeep.planning.tasks import record_batches
from icekeep.spec.filters.evaluators import file_may_match, partition_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.encode import PartitionCodec
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage


class SpecFilter(msgspec.Struct, frozen=True):
    """The partition type of one spec, and the filter over it: what rows of the scan's filter may lie in."""

    partition: StructType
    matches: Expression = ALWAYS_TRUE


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries of a manifest a reader wants.

    `rows` is the filter over rows, bound to the current schema, for bounds. `keep_pruned` keeps dropped entries, with the
    step that dropped them, for counting.
    """

    specs: Mapping[int, SpecFilter]
    rows: Expression = ALWAYS_TRUE
    live_only: bool = True
    keep_pruned: bool = False


class DecodeTask(msgspec.Struct, frozen=True):
    """Manifests that one task reads."""

    manifests: tuple[ManifestFile, ...]
    wanted: EntryFilter
    storage: Storage


def decode(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    """The wanted entries of a task's manifests, in order, as batches of `columns.ENTRIES`.

    Raises:
        InvalidTableError, MissingFileError: a manifest is not whole.
    """
    for manifest in task.manifests:
        yield from record_batches(_rows(manifest, task), ENTRIES)


def _rows(manifest: ManifestFile, task: DecodeTask) -> Iterator[tuple[Any, ...]]:
    spec = task.wanted.specs[manifest.partition_spec_id]
    codec = PartitionCodec(spec.partition)
    for entry in StorageManifestReader(task.storage).typed_entries(manifest, spec.partition):
        if task.wanted.live_only and not entry.is_live:
            continue
        pruned = _pruned(entry.data_file, spec, task.wanted.rows)
        if pruned is None or task.wanted.keep_pruned:
            yield _row(manifest, entry, codec, pruned)


def _pruned(file: DataFile, spec: SpecFilter, rows: Expression) -> str | None:
    if spec.matches is not ALWAYS_TRUE and not partition_matches(spec.matches, spec.partition.fields, file.partition):
        return PRUNED_BY_PARTITION
    if rows is not ALWAYS_TRUE and not file_may_match(rows, file):
        return PRUNED_BY_METRICS
    return None


def _row(manifest: ManifestFile, entry: ManifestEntry, codec: PartitionCodec, pruned: str | None) -> tuple[Any, ...]:
    file = entry.data_file
    return (
        manifest.manifest_path,
        int(entry.status),
        entry.snapshot_id,
        entry.sequence_number,
        entry.file_sequence_number,
        int(file.content),
        file.file_path,
        file.file_format,
        file.spec_id,
        codec.encode(file.partition),
        file.record_count,
        file.file_size_in_bytes,
        file.split_offsets,
        file.sort_order_id,
        file.first_row_id,
        file.key_metadata,
        pruned,
    )
