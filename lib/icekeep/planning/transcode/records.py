"""What entries are clustered by, as keys that compare with memcmp: partition fields, and lower bounds of any column.

Manifests -> the records of their live entries, each with what it is clustered and counted by.

Records are existing entries of the target's struct, encoded once and for all: they travel, are sorted and end up in new
manifests as they are.

The `ManifestReader` for large tables: what a commit asks of many entries is worked out in Spark tasks.

The `ManifestReader` for appends: it merges manifests by copying the records of entries, not by decoding them.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import count, groupby, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.commit.attempt import noting_storage
from icekeep.commit.filtering import FilteredShare, FilterManifests, Gathering, MergeManifests, read_as
from icekeep.commit.manifests import StorageManifestReader, refuse_encrypted_manifest
from icekeep.errors import IcekeepError, NotFoundError, UnsupportedError, UsageError, argument
from icekeep.planning.decoder import DecodedBlocks, NotReadError, distinct_partitions, read_batches, read_together
from icekeep.planning.entries import DecodedEntries, EntryFilter, ManifestsTask, SpecFilter, folded, in_threads
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.manifests import (
    ManifestDecoder,
    StoredColumns,
    StoredEntries,
    batch_of_entries,
    batch_schema,
    bundles,
    chosen_decoder,
    note_slow_read,
)
from icekeep.planning.spark.session import Limits, SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import FILTERED_MANIFEST_BYTES, attempt_id, tasks_count
from icekeep.planning.transcode.layout import INHERITED, RecordLayout, fast_packer, record_blocks
from icekeep.spec.avro import AvroHeader
from icekeep.spec.collections import balanced
from icekeep.spec.manifests.read import open_manifest, read_manifest
from icekeep.spec.manifests.structs import ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema, meant_column
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.transforms import Identity
from icekeep.spec.types import StructType, Type
from icekeep.spec.values import java_order, sort_key, value_from_bytes
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    """What names say to cluster by: of partition fields, or else of columns; all partition fields if null.

    Raises:
        UsageError: there are no names, or one is there twice.
        NotFoundError: there is no such partition field or column.
        UnsupportedError: values of the column have no order.
    """
    if names is None:
        return tuple(PartitionPart(index, field.type) for index, field in enumerate(partition.fields))
    if not names:
        raise UsageError(
            f"{argument('sort_by')} is empty; name partition fields or columns, or leave it out for all partition fields"
        )
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise UsageError(f"{argument('sort_by')} names {twice[0]!r} twice")
    return tuple(_part(name, partition, schema) for name in names)


def _part(name: str, partition: StructType, schema: Schema) -> SortPart:
    for index, field in enumerate(partition.fields):
        if field.name == name:
            return PartitionPart(index, field.type)
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


def entry_keys(
    partitions: Sequence[tuple[Any, ...]],
    codes: NDArray[np.int64],
    lower_bounds: pa.MapArray | None,
    parts: Sequence[SortPart],
) -> pa.Array:
    """The sort keys of some entries.

    Args:
        partitions: the different partition tuples.
        codes: which of them each entry lies in.
        lower_bounds: of each entry; null if no part asks for them.
    """
    indices = pa.array(codes)
    keys = []
    for part in parts:
        if isinstance(part, PartitionPart):
            keys.append(_partition_keys(part, partitions).take(indices))
        else:
            assert lower_bounds is not None
            keys.append(_bound_keys(part, lower_bounds))
    if not keys:
        return pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(codes), np.int64)))
    return keys[0] if len(keys) == 1 else pc.binary_join_element_wise(*keys, pa.scalar(b"", pa.binary()))


def cluster_key(type_: Type, value: Any) -> bytes:
    """One value as bytes that compare as partition summaries do: UUIDs in Java's order, all else as `ordering.sort_key`."""
    return sort_key([type_], [UUID(int=java_order(value)) if isinstance(value, UUID) else value])


def needs_bounds(parts: Sequence[SortPart]) -> bool:
    """Whether entries are clustered by more than their partitions, so that a manifest list does not tell how they lie."""
    return any(isinstance(part, BoundPart) for part in parts)


def _partition_keys(part: PartitionPart, tuples: Sequence[tuple[Any, ...]]) -> pa.Array:
    return pa.array([cluster_key(part.type, values[part.index]) for values in tuples], pa.binary())


def _bound_keys(part: BoundPart, lower_bounds: pa.MapArray) -> pa.Array:
    """Keys of lower bounds; of an entry that tells none, or what is no value of the column's type, that of null."""
    coded = _bounds(lower_bounds, part.field_id).dictionary_encode(null_encoding="encode")
    keys = [_bound_key(part.type, bound) for bound in coded.dictionary.to_pylist()]
    return pa.array(keys, pa.binary()).take(coded.indices)


def _bound_key(type_: Type, bound: bytes | None) -> bytes:
    if bound is not None:
        try:
            return cluster_key(type_, value_from_bytes(type_, bound))
        except IcekeepError:
            # Bytes that are no value of the type, or more than its order has room for.
            pass
    return cluster_key(type_, None)


def _bounds(maps: pa.MapArray, field_id: int) -> pa.Array:
    """The value of each map at a key, null where it has none."""
    offsets = maps.offsets.to_numpy()
    keys = maps.keys.to_numpy()
    found = np.flatnonzero(keys == field_id)
    found = found[(found >= offsets[0]) & (found < offsets[-1])] if len(offsets) > 1 else found[:0]
    indices = np.full(len(maps), -1, np.int64)
    indices[np.searchsorted(offsets, found, side="right") - 1] = found
    is_there = (indices >= 0) & np.asarray(maps.is_valid())
    return maps.items.take(pa.array(indices, mask=~is_there))


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


T = TypeVar("T")


class SparkManifestReader(StorageManifestReader):
    """Reads lists and single manifests here; many entries are filtered and asked in tasks, a share of the manifests each."""

    def __init__(self, spark: SparkSource, storage: Storage) -> None:
        super().__init__(storage)
        self._spark = spark

    def spec_ids(self, snapshots: Sequence[Snapshot]) -> frozenset[int]:
        listed = listed_manifests(self.storage, self._spark, snapshots, check=True, trust=True)
        return frozenset(manifest.partition_spec_id for manifest in listed.manifests)

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests, locations: Iterator[str]
    ) -> list[FilteredShare]:
        if _are_few(manifests, limits_of(self._spark)):
            return super().filtered(manifests, work, locations)
        session = started(self._spark)
        tasks = [(tuple(some), next(locations)) for some in _bins(manifests, session)]
        shares, errors = run_tasks(
            session, tasks, _filter, (work, self.storage), step="committing: filtering manifests"
        )
        if errors:
            asked = {manifest.manifest_path for manifest in manifests}
            self.storage.delete_many(location for share in shares for location in share.written(asked))
            raise errors[0]
        return list(shares)

    def check_counts(self, manifests: Sequence[ManifestFile], metadata: TableMetadata) -> None:
        if _are_few(manifests, limits_of(self._spark)):
            super().check_counts(manifests, metadata)
            return
        spec_ids = {manifest.partition_spec_id for manifest in manifests}
        wanted = EntryFilter(specs={spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in spec_ids})
        folded(self.storage, self._spark, manifests, wanted, {"record_count"}, _Nothing)

    def _asked(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        if _are_few(manifests, limits_of(self._spark)):
            return super()._asked(manifests, work)
        session = started(self._spark)
        shared, step = (work, self.storage), "committing: asking manifests"
        answers = all_results(run_tasks(session, _bins(manifests, session), _gather, shared, step=step))
        found = dict(pair for some in answers for pair in some)
        return [found[read_as(manifest)] for manifest in manifests]


class _Nothing:
    """A `Fold` of which only the reading counts."""

    def add(self, decoded: DecodedEntries) -> None:
        pass

    def merge(self, other: "_Nothing") -> None:
        pass


def _bins(manifests: Sequence[ManifestFile], session: "SparkSession") -> list[list[ManifestFile]]:
    bins_count = tasks_count(session, sum(m.manifest_length for m in manifests), FILTERED_MANIFEST_BYTES)
    return balanced(manifests, lambda m: m.manifest_length, min(bins_count, len(manifests)))


def _gather(manifests: Sequence[ManifestFile], shared: tuple[Gathering[T], Storage]) -> list[tuple[Hashable, T]]:
    """Put a question to one share of the manifests."""
    work, storage = shared
    reader = StorageManifestReader(storage)
    return [(read_as(manifest), work.run(manifest, reader)) for manifest in manifests]


def _filter(task: tuple[tuple[ManifestFile, ...], str], shared: tuple[FilterManifests, Storage]) -> FilteredShare:
    """Filter one share; its new manifests are named after the task's location, one of the commit's own."""
    (manifests, location), (work, storage) = task, shared
    made: list[str] = []
    writer = msgspec.structs.replace(work.writer, storage=noting_storage(storage, made))
    locations = (f"{location.removesuffix('.avro')}-{attempt_id()}-{number}.avro" for number in count())
    try:
        return msgspec.structs.replace(work, writer=writer).run(manifests, StorageManifestReader(storage), locations)
    except BaseException:
        storage.delete_many(made)
        raise


def _are_few(manifests: Sequence[ManifestFile], limits: Limits) -> bool:
    """Whether the driver is the faster one."""
    counts = [(m.live_files_count, m.deleted_files_count) for m in manifests]
    # A list of version 1 may say nothing; then there may be many.
    are_few = all(None not in pair for pair in counts) and sum(map(_sum, counts)) < limits.commit_entries_count
    return len(manifests) == 1 or (are_few and len(manifests) <= limits.commit_manifests_count)


def _sum(counts: tuple[int | None, int | None]) -> int:
    return sum(count or 0 for count in counts)


_FEW_ENTRIES_COUNT = 1000
"""So many are merged entry by entry before DataFusion is loaded."""

_MAX_SHARE_OF_TARGET = 1.5


class MergingManifestReader(StorageManifestReader):
    """Reads through a storage, in this process; merges many entries as encoded records."""

    def merged(
        self, manifests: Sequence[ManifestFile], work: MergeManifests, locations: Iterator[str]
    ) -> list[ManifestFile]:
        if sum(m.live_files_count or 0 for m in manifests) <= _FEW_ENTRIES_COUNT:
            return super().merged(manifests, work, locations)
        decoder, _ = chosen_decoder()
        if decoder is ManifestDecoder.FASTAVRO:
            return super().merged(manifests, work, locations)
        return _Merging(self, work, locations, decoder).run(manifests)


class _Merging:
    """One merge: entries of the writer's own snapshot are added one by one, those of older manifests as blocks."""

    def __init__(
        self, reader: StorageManifestReader, work: MergeManifests, locations: Iterator[str], decoder: ManifestDecoder
    ) -> None:
        self._reader, self._work, self._locations, self._decoder = reader, work, locations, decoder
        writer = work.writer
        self._target = RecordTarget(partition=writer.partitions[work.spec_id], format_version=writer.format_version)
        self._encoder = self._target.encoder
        self._codec = PartitionCodec(self._target.partition)
        self._pack = fast_packer(writer.codec, writer.level)
        self._builder: ManifestBuilder | None = None
        self._written: list[ManifestFile] = []

    def run(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        own = self._work.writer.snapshot_id
        for is_own, some in groupby(manifests, lambda manifest: manifest.added_snapshot_id == own):
            if is_own:
                self._add_entries([*some])
            else:
                self._add_records(tuple(some))
        if self._builder is not None:
            self._written.append(self._work.writer.finished(self._builder))
        return self._written

    def _add_entries(self, manifests: Sequence[ManifestFile]) -> None:
        for manifest in manifests:
            for entry in self._work.kept(self._reader.entries(manifest, self._work.base)):
                self._begun().add(self._work.writer.owned(entry))
                self._cut()

    def _add_records(self, manifests: tuple[ManifestFile, ...]) -> None:
        task = RecordsTask.of(manifests, self._target, self._reader.storage, self._decoder)
        for batches in in_threads(task, _read):
            for block in (block for batch in batches for block in record_blocks(batch)):
                builder = self._begun()
                builder.add_block(block.payload, block.files_count, block.rows_count, block.min_sequence_number)
                builder.add_partitions(map(self._codec.decode, block.partitions))
                self._cut()

    def _begun(self) -> ManifestBuilder:
        if self._builder is None:
            work = self._work
            self._builder = work.writer.begun(
                self._encoder, work.spec_id, work.content, next(self._locations), self._pack
            )
        return self._builder

    def _cut(self) -> None:
        """Write a manifest that is well above the target size: a bin of that size may pack a little worse than it was."""
        if (
            self._builder is not None
            and self._builder.length_bytes >= _MAX_SHARE_OF_TARGET * self._work.writer.target_bytes
        ):
            self._written.append(self._work.writer.finished(self._builder))
            self._builder = None


def _read(task: RecordsTask) -> list[pa.RecordBatch]:
    return [*live_records(task)]
