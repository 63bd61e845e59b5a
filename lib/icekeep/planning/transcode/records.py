"""Manifests -> the records of their live entries, each with what it is clustered and counted by.

Records are existing entries of the target's struct, encoded once and for all: they travel, are sorted and end up in new
manifests as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.commit.manifests import refuse_encrypted_manifest
from icekeep.planning.entries.decode import ManifestsTask
from icekeep.planning.manifests.avro_decoder import DecodedBlocks, NotReadError, read_batches, read_together
from icekeep.planning.manifests.entry_columns import StoredColumns, StoredEntries
from icekeep.planning.manifests.partition_columns import distinct_partitions
from icekeep.planning.manifests.reader import ManifestDecoder, batch_of_entries, batch_schema, bundles
from icekeep.planning.slow_reads import note_slow_read
from icekeep.planning.transcode.cluster_keys import SortPart, entry_keys, needs_bounds
from icekeep.planning.transcode.record_layout import INHERITED, RecordLayout
from icekeep.spec.avro import AvroHeader
from icekeep.spec.manifests.decode import open_manifest, read_manifest
from icekeep.spec.manifests.encode import EntryEncoder, PartitionCodec
from icekeep.spec.manifests.structs import ManifestFile, Status
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

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
"""Live entries: what they are sorted by, first `key`, then `place`, which tells where each was; what their new manifest sums
up; and the encoded entries themselves."""

PLACES_A_MANIFEST = 1 << 32
_ENTRIES_A_BATCH = 8192


class RecordTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What records are made for.

    Attributes:
        partition: the partition type of the spec.
        sort: what entries are to be sorted by; nothing where their order stays.
    """

    partition: StructType
    format_version: int
    sort: tuple[SortPart, ...] = ()

    @property
    def encoder(self) -> EntryEncoder:
        return EntryEncoder(self.partition, self.format_version)


class RecordsTask(ManifestsTask, frozen=True, kw_only=True):
    """Manifests of one spec and content to read; `numbers` are their places among all of a run, by path."""

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
    """Batches of `RECORDS`, manifest by manifest, entries in their order.

    Raises:
        InvalidTableError, MissingFileError: a manifest is not whole, which may show only after its last entry.
        UnsupportedError: a manifest is encrypted.
    """
    reader = _Reader(task)
    for bundle in bundles(task.manifests):
        yield from (batch for batch in reader.read(bundle) if batch.num_rows)


class _Known:
    """What depends on the Avro schema of manifests: of thousands of them most have the same, to the letter."""

    def __init__(self, schema: bytes, reader: "_Reader") -> None:
        target = reader.target
        self.columns = StoredColumns(schema, target.partition, reader.schema.names)
        self.layout = RecordLayout(schema, reader.encoder.struct)


class _Reader:
    def __init__(self, task: RecordsTask) -> None:
        self._task = task
        self.target = task.target
        self.encoder = task.target.encoder
        self._codec = PartitionCodec(task.target.partition)
        wanted = {"status", "record_count", "partition", *INHERITED.values()}
        if needs_bounds(task.target.sort):
            wanted.add("lower_bounds")
        self.schema = batch_schema(wanted, task.target.partition)
        self._known: dict[bytes, _Known | None] = {}
        self._slow_schemas: dict[bytes, NotReadError] = {}

    def read(self, bundle: Sequence[ManifestFile]) -> Iterator[pa.RecordBatch]:
        """The records of neighbours, decoded together if they can be."""
        files = [self._opened(manifest) for manifest in bundle]
        if len(bundle) > 1 and (batch := self._together(bundle, files)) is not None:
            yield batch
            return
        for manifest, (data, header) in zip(bundle, files, strict=True):
            yield from self._one(manifest, data, header)

    def _opened(self, manifest: ManifestFile) -> tuple[bytes, AvroHeader]:
        refuse_encrypted_manifest(manifest)
        data = self._task.storage.read(manifest.manifest_path)
        return data, open_manifest(data, manifest)[0]

    def _together(
        self, bundle: Sequence[ManifestFile], files: Sequence[tuple[bytes, AvroHeader]]
    ) -> pa.RecordBatch | None:
        """The records of small manifests as one batch; `None` where one of them needs a closer look."""
        known = [self._known_of(header) for _, header in files]
        if known[0] is None or any(one is not known[0] for one in known):
            return None
        try:
            decoded, lengths = read_together(files, known[0].layout.layout)
            stored = StoredEntries(known[0].columns, bundle, self.schema)
            batch = self._batch(decoded, stored, known[0].layout, lengths, self._places(bundle, lengths))
            stored.check_counts()
        except NotReadError:
            return None
        return batch

    def _one(self, manifest: ManifestFile, data: bytes, header: AvroHeader) -> Iterator[pa.RecordBatch]:
        known, read_count = self._known_of(header), 0
        reason = self._slow_schemas.get(header.metadata["avro.schema"])
        if known is not None:
            try:
                stored = StoredEntries(known.columns, [manifest], self.schema)
                for decoded in read_batches(data, header, known.layout.layout):
                    count = decoded.batch.num_rows
                    places = self._places([manifest], [count]) + read_count
                    yield self._batch(decoded, stored, known.layout, [count], places)
                    read_count += count
                stored.check_counts()
                return
            except NotReadError as error:
                reason = error
        yield from self._in_the_slow_way(manifest, data, read_count)
        if reason is not None:
            note_slow_read(manifest.manifest_path, reason)

    def _known_of(self, header: AvroHeader) -> _Known | None:
        """`None` where records of this schema are decoded and encoded one by one."""
        schema = header.metadata["avro.schema"]
        if schema not in self._known:
            try:
                is_fast = self._task.decoder is ManifestDecoder.DATAFUSION
                self._known[schema] = _Known(schema, self) if is_fast else None
            except NotReadError as error:
                self._known[schema], self._slow_schemas[schema] = None, error
        return self._known[schema]

    def _places(self, manifests: Sequence[ManifestFile], lengths: Sequence[int]) -> NDArray[np.int64]:
        numbers = [self._task.numbers[manifest.manifest_path] for manifest in manifests]
        starts = np.repeat(np.array(numbers, np.int64) * PLACES_A_MANIFEST, lengths)
        within = np.arange(sum(lengths)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return starts + within

    def _batch(
        self,
        decoded: DecodedBlocks,
        stored: StoredEntries,
        layout: RecordLayout,
        lengths: Sequence[int],
        places: NDArray[np.int64],
    ) -> pa.RecordBatch:
        entries = stored.of(decoded.batch, lengths)
        live = np.flatnonzero(entries["status"].to_numpy() != Status.DELETED)
        records = layout.records(decoded.batch, decoded.blocks, entries, live)
        return self._of_entries(entries.take(pa.array(live)), places[live], records)

    def _in_the_slow_way(self, manifest: ManifestFile, data: bytes, read_count: int) -> Iterator[pa.RecordBatch]:
        """The entries that follow those that were read, each decoded and encoded; or the error that says what is wrong."""
        partition, location = self.target.partition, manifest.manifest_path
        _, entries = read_manifest(data, manifest, partition)
        rest = enumerate(entries)
        next(islice(rest, read_count, read_count), None)
        while chunk := [*islice(rest, _ENTRIES_A_BATCH)]:
            live = [(place, entry) for place, entry in chunk if entry.is_live]
            batch = batch_of_entries([entry for _, entry in live], self.schema, partition, location)
            existing = (msgspec.structs.replace(entry, status=Status.EXISTING) for _, entry in live)
            records = pa.array([self.encoder.encode(entry) for entry in existing], pa.binary())
            places = self._places([manifest], [len(live)])[:1].repeat(len(live))
            yield self._of_entries(batch, places + np.array([place for place, _ in live], np.int64), records)

    def _of_entries(self, entries: pa.RecordBatch, places: NDArray[np.int64], records: pa.Array) -> pa.RecordBatch:
        tuples, codes = distinct_partitions(entries["partition"])
        bounds = entries["lower_bounds"] if "lower_bounds" in self.schema.names else None
        keys = entry_keys(tuples, codes, bounds, self.target.sort)
        partitions = pa.array([self._codec.encode(values) for values in tuples], pa.binary()).take(pa.array(codes))
        return pa.RecordBatch.from_arrays(
            [keys, pa.array(places), partitions, entries["record_count"], entries["sequence_number"], records],
            schema=RECORDS,
        )
