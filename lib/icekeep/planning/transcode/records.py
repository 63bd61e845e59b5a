"""Manifests -> the records of their live entries, each with its sort key and what the new manifest counts.

Records are existing entries of the target's struct, encoded once: they are shuffled, sorted and written into new manifests
unchanged. Their keys, of partition fields or lower bounds of any column, compare with memcmp.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepError, NotFoundError, UnsupportedError, UsageError, argument
from icekeep.planning.decoder import DecodedBlocks, ManifestDecoder
from icekeep.planning.entries import ManifestsTask
from icekeep.planning.manifests import (
    EntryLayout,
    EntryRun,
    ManifestBatchReader,
    batch_of_entries,
    bundles,
    map_positions,
)
from icekeep.planning.partition_columns import distinct_partitions
from icekeep.planning.transcode.layout import INHERITED, RecordLayout
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, PartitionCodec
from icekeep.spec.schema import Schema, meant_column
from icekeep.spec.transforms import Identity
from icekeep.spec.types import StructType, Type
from icekeep.spec.values import java_order, sort_key, value_from_bytes
from icekeep.storage.base import Storage


class PartitionPart(msgspec.Struct, frozen=True):
    """Cluster by the partition field at an index of its spec."""

    index: int
    type: Type


class BoundPart(msgspec.Struct, frozen=True):
    """Cluster by the lower bound of a column."""

    field_id: int
    type: Type


SortPart: TypeAlias = PartitionPart | BoundPart


def sort_parts(names: Sequence[str] | None, partition: StructType, schema: Schema) -> tuple[SortPart, ...]:
    """The parts that names of partition fields, or else of columns, stand for; all partition fields if null.

    Raises:
        UsageError: `names` is empty or has duplicates.
        NotFoundError: there is no such partition field or column.
        UnsupportedError: values of the column have no order.
    """
    of_fields = tuple(PartitionPart(index, field.type) for index, field in enumerate(partition.fields))
    if names is None:
        return of_fields
    if not names:
        raise UsageError(
            f"{argument('sort_by')} is empty; name partition fields or columns, or leave it out for all partition fields"
        )
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise UsageError(f"{argument('sort_by')} names {twice[0]!r} twice")
    by_name = {field.name: part for field, part in zip(partition.fields, of_fields, strict=True)}
    return tuple(by_name.get(name) or _bound_part(name, partition, schema) for name in names)


def _bound_part(name: str, partition: StructType, schema: Schema) -> BoundPart:
    try:
        column = schema.field(name)
    except NotFoundError:
        fields = [field.name for field in partition.fields]
        meant = meant_column(name, [*schema.ids_by_name, *fields], fields, "the partition fields")
        raise NotFoundError(
            f"{argument('sort_by')}: there is neither a partition field nor a column {name!r}; {meant}", name=name
        ) from None
    if not Identity().accepts(column.type):
        raise UnsupportedError(
            f"{argument('sort_by')}: column {name!r} is of type {column.type}, whose values have no order"
        )
    return BoundPart(column.field_id, column.type)


def needs_bounds(parts: Sequence[SortPart]) -> bool:
    """Whether entries are clustered by more than their partitions, so that the summaries in a manifest list do not suffice."""
    return any(isinstance(part, BoundPart) for part in parts)


def entry_keys(
    partitions: Sequence[tuple[Any, ...]],
    codes: NDArray[np.int64],
    lower_bounds: pa.MapArray | None,
    parts: Sequence[SortPart],
) -> pa.Array:
    """The sort keys of entries; `codes` are indices into `partitions`, `lower_bounds` is null if no part needs it."""
    keys = []
    for part in parts:
        if isinstance(part, PartitionPart):
            distinct = [cluster_key(part.type, values[part.index]) for values in partitions]
            keys.append(pa.array(distinct, pa.binary()).take(pa.array(codes)))
        else:
            assert lower_bounds is not None
            positions = map_positions(lower_bounds, part.field_id)
            bounds = lower_bounds.items.take(pa.array(positions, mask=positions < 0))
            coded = bounds.dictionary_encode(null_encoding="encode")
            distinct = [_bound_key(part.type, bound) for bound in coded.dictionary.to_pylist()]
            keys.append(pa.array(distinct, pa.binary()).take(coded.indices))
    if len(keys) == 1:
        return keys[0]
    return pc.binary_join_element_wise(
        pa.repeat(pa.scalar(b"", pa.binary()), len(codes)), *keys, pa.scalar(b"", pa.binary())
    )


def cluster_key(type_: Type, value: Any) -> bytes:
    """A value as bytes in the order of partition summaries: UUIDs in Java's order, all else as `values.sort_key`."""
    return sort_key([type_], [UUID(int=java_order(value)) if isinstance(value, UUID) else value])


def _bound_key(type_: Type, bound: bytes | None) -> bytes:
    """The key of a lower bound; a missing or invalid one gets the key of null."""
    if bound is not None:
        try:
            return cluster_key(type_, value_from_bytes(type_, bound))
        except IcekeepError:
            # The bytes are no value of the type, or beyond the range of its order.
            pass
    return cluster_key(type_, None)


RECORDS = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("place", pa.int64(), nullable=False),
        pa.field("partition", pa.binary(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("record", pa.binary(), nullable=False),
    ]
)
"""Live entries, sorted by `key`, then `place`, their old position; the other columns are summed up in the new manifest."""

PLACES_A_MANIFEST = 1 << 32


class RecordTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests that records are made for.

    Attributes:
        partition: the partition type of the spec.
        sort: the order of the entries; empty if it does not change.
    """

    partition: StructType
    format_version: int
    sort: tuple[SortPart, ...] = ()

    @property
    def encoder(self) -> EntryEncoder:
        return EntryEncoder(self.partition, self.format_version)


class RecordsTask(ManifestsTask, frozen=True, kw_only=True):
    """Manifests of one spec and content; `numbers` are their positions among all of a run, by path."""

    numbers: Mapping[str, int]
    target: RecordTarget
    storage: Storage
    decoder: ManifestDecoder

    @classmethod
    def of(
        cls, manifests: Sequence[ManifestFile], target: RecordTarget, storage: Storage, decoder: ManifestDecoder
    ) -> "RecordsTask":
        """All manifests of a run, numbered in their order."""
        numbers = {manifest.manifest_path: number for number, manifest in enumerate(manifests)}
        return cls(manifests=tuple(manifests), numbers=numbers, target=target, storage=storage, decoder=decoder)


def live_records(task: RecordsTask) -> Iterator[pa.RecordBatch]:
    """Batches of `RECORDS`, in the order of manifests and entries; raises as `manifests.read_manifests`."""
    reader = _RecordReader(task)
    for bundle in bundles(task.manifests):
        yield from (batch for batch in reader.read(bundle) if batch.num_rows)


class _RecordReader(ManifestBatchReader):
    def __init__(self, task: RecordsTask) -> None:
        columns = {"status", "record_count", "partition", *INHERITED.values()}
        if needs_bounds(task.target.sort):
            columns.add("lower_bounds")
        super().__init__(task.target.partition, task.storage, columns, task.decoder)
        self._numbers, self._sort = task.numbers, task.target.sort
        self._encoder, self._codec = task.target.encoder, PartitionCodec(task.target.partition)

    def layout(self, schema_json: bytes) -> RecordLayout:
        return RecordLayout(schema_json, self._encoder, self.schema.names)

    def of_decoded(
        self, entries: pa.RecordBatch, decoded: DecodedBlocks, layout: EntryLayout, runs: Sequence[EntryRun]
    ) -> pa.RecordBatch:
        assert isinstance(layout, RecordLayout)
        live = np.flatnonzero(entries["status"].to_numpy() != Status.DELETED)
        records = layout.records(decoded, entries, live)
        return self._batch(entries.take(pa.array(live)), self._places(runs)[live], records)

    def of_entries(self, entries: list[ManifestEntry], run: EntryRun) -> pa.RecordBatch:
        rows, live = [], []
        for row, entry in enumerate(entries):
            if entry.is_live:
                rows.append(row)
                live.append(msgspec.structs.replace(entry, status=Status.EXISTING))
        batch = batch_of_entries(live, self.schema, self.partition, run.manifest.manifest_path)
        records = pa.array([self._encoder.encode(entry) for entry in live], pa.binary())
        return self._batch(batch, self._places([run])[np.array(rows, np.int64)], records)

    def _places(self, runs: Sequence[EntryRun]) -> NDArray[np.int64]:
        firsts = [self._numbers[run.manifest.manifest_path] * PLACES_A_MANIFEST + run.first for run in runs]
        return np.concatenate([first + np.arange(run.length) for first, run in zip(firsts, runs, strict=True)])

    def _batch(self, entries: pa.RecordBatch, places: NDArray[np.int64], records: pa.Array) -> pa.RecordBatch:
        tuples, codes = distinct_partitions(entries["partition"])
        bounds = entries["lower_bounds"] if "lower_bounds" in self.schema.names else None
        keys = entry_keys(tuples, codes, bounds, self._sort)
        partitions = pa.array([self._codec.encode(values) for values in tuples], pa.binary()).take(pa.array(codes))
        return pa.RecordBatch.from_arrays(
            [keys, pa.array(places), partitions, entries["record_count"], entries["sequence_number"], records],
            schema=RECORDS,
        )
