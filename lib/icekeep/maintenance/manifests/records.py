"""Sorted records -> manifests: blocks are cut from the records as they lie one after another, and packed.

A run of few entries is rewritten in this process: threads read, sort and write. Records are held as they were read; above some
hundred megabytes they lie in files of a temporary directory that are mapped into memory, so that the machine decides what stays
there. A run of many entries is rewritten in Spark tasks: some read, a shuffle brings the records of a range of keys to one that
writes. Ranges are cut by a survey of the keys, so that all have about as many entries, and a partition that is too large for
one is spread over several.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.commit.manifest_writer import manifest_compression
from icekeep.maintenance.manifests.survey import Survey, cut_weights, sampled
from icekeep.maintenance.rewrite.run import undoing
from icekeep.planning.entries import in_threads, manifests_by_task, threads_count
from icekeep.planning.spark.rows import hash_keys
from icekeep.planning.spark.tasks import dataframe_from_tasks, run_over_partitions
from icekeep.planning.spark.workers import NEW_MANIFESTS, tasks_count
from icekeep.planning.transcode import (
    PLACES_A_MANIFEST,
    RECORDS,
    RecordsTask,
    RecordTarget,
    fast_packer,
    joined,
    live_records,
    record_blocks,
    value_offsets,
)
from icekeep.runtime import SYSTEM
from icekeep.spec.avro import BLOCK_BYTES
from icekeep.spec.collections import cut_evenly
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.manifests.write import ManifestBuilder, PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import metadata_directory
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLES_COUNT = 16


class RunWriter(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to write manifests of one spec and content, here or in a task; sizes in bytes."""

    directory: str
    spec: PartitionSpec
    schema: Schema
    content: ManifestContent
    target: RecordTarget
    codec: str
    level: int | None
    target_bytes: int
    storage: Storage
    run_id: str = ""

    @classmethod
    def of(
        cls,
        metadata: TableMetadata,
        spec_id: int,
        content: ManifestContent,
        target: RecordTarget,
        target_bytes: int,
        storage: Storage,
        run_id: str = "",
    ) -> "RunWriter":
        """What a table's properties ask for; raises `PropertyError` where they are wrong."""
        codec, level = manifest_compression(metadata.properties)
        return cls(
            directory=metadata_directory(metadata),
            spec=metadata.specs_by_id[spec_id],
            schema=metadata.manifest_schema(spec_id),
            content=content,
            target=target,
            codec=codec,
            level=level,
            target_bytes=target_bytes,
            storage=storage,
            run_id=run_id,
        )

    def write(self, records: Iterable[pa.Table]) -> ManifestFile:
        """Write sorted records as one manifest; its row of the manifest list has neither snapshot nor sequence number."""
        # Orphan removal knows by the name of the run in it that the run is alive.
        name = f"optimized-m-{'-'.join(filter(None, (self.run_id, str(SYSTEM.new_uuid()))))}.avro"
        data, manifest = self._built(records, f"{self.directory}/{name}")
        with self.storage.write(manifest.manifest_path) as stream:
            stream.write(data)
        return manifest

    def foresee(self, records: Iterable[pa.Table]) -> ManifestFile:
        """The row of the manifest that `write` would write; it has no path."""
        return self._built(records, "")[1]

    def _built(self, records: Iterable[pa.Table], location: str) -> tuple[bytes, ManifestFile]:
        builder = self._builder(location)
        partitions: set[bytes] = set()
        for block in (block for table in records for batch in table.to_batches() for block in record_blocks(batch)):
            builder.add_block(block.payload, block.files_count, block.rows_count, block.min_sequence_number)
            partitions.update(block.partitions)
        codec = PartitionCodec(self.target.partition)
        builder.add_partitions(map(codec.decode, partitions))
        return builder.finish(None)

    @property
    def header_bytes(self) -> int:
        """What every manifest takes, without an entry."""
        return self._builder("").length_bytes

    def _builder(self, location: str) -> ManifestBuilder:
        return ManifestBuilder(
            location,
            self.target.encoder,
            self.spec,
            self.schema,
            format_version=self.target.format_version,
            content=self.content,
            codec=self.codec,
            level=self.level,
            pack=fast_packer(self.codec, self.level),
        )

    def discard(self, manifests: Iterable[ManifestFile]) -> None:
        """Remove manifests that were written and that no snapshot lists."""
        self.storage.delete_many([manifest.manifest_path for manifest in manifests])

    def packed_ratio(self, samples: Iterable[bytes]) -> float:
        """How many bytes of a manifest a byte of records takes, as far as some samples show."""
        pack = fast_packer(self.codec, self.level)
        pairs = [(len(pack(sample)), len(sample)) for sample in samples]
        return sum(packed for packed, _ in pairs) / max(1, sum(size for _, size in pairs))

    def parts_count(self, records_bytes: int, ratio: float) -> int:
        """Into how many manifests records are cut so that they come nearest to the target size."""
        return max(1, round(records_bytes * ratio / self.target_bytes))


def sample_places(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Where some blocks would be that show how well records pack: first and last row, evenly over all of them."""
    ends = np.cumsum(lengths)
    if not len(ends) or ends[-1] <= _SAMPLES_COUNT * BLOCK_BYTES:
        return [(0, len(ends))] if len(ends) else []
    starts = np.searchsorted(ends, np.arange(_SAMPLES_COUNT) * (ends[-1] // _SAMPLES_COUNT))
    stops = np.searchsorted(ends, ends[starts] + BLOCK_BYTES)
    return [(int(start), max(int(start) + 1, int(stop))) for start, stop in zip(starts, stops, strict=True)]


_HELD_BYTES = 256 * MIB
_PIECE_ROWS = 16_384


def rewritten_here(
    task: RecordsTask, writer: RunWriter, *, foresees: bool = False
) -> tuple[list[ManifestFile], list[bytes]]:
    """Write the live entries of a task's manifests, sorted, as manifests of the target size; none where nothing is live.

    With the manifests a sample of the files' partitions is returned, as `survey.sampled` takes it.

    Args:
        foresees: nothing is written, and the manifests have no paths.
    """
    make = writer.foresee if foresees else writer.write
    with TemporaryDirectory(prefix="icekeep-") as directory:
        held = _HeldRecords(Path(directory))
        # Each thread puts away what it read: nothing waits for the others in memory.
        for _ in in_threads(task, held.read):
            pass
        if not held.count:
            return [], []
        order = held.order()
        parts = held.parts(order, writer)
        with ThreadPoolExecutor(min(threads_count([writer.directory]), len(parts))) as pool:
            futures = [pool.submit(lambda part: make(held.pieces(order[part])), part) for part in parts]
            try:
                return [future.result() for future in futures], held.partitions()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                if not foresees:
                    made = [one for one in futures if not one.cancelled() and one.exception() is None]
                    writer.discard([future.result() for future in made])
                raise


class _HeldRecords:
    """Batches of records, in any order, and all of them as one sorted list."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._batches: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._lock = Lock()
        self._numbers = count()

    @property
    def count(self) -> int:
        """How many records there are."""
        return sum(batch.num_rows for batch in self._batches)

    def read(self, task: RecordsTask) -> None:
        """Take in the records of a task's manifests; several threads may do so."""
        for batch in live_records(task):
            with self._lock:
                self._held_bytes += batch.nbytes
                is_too_much = self._held_bytes > _HELD_BYTES
            self._batches.append(self._mapped(batch) if is_too_much else batch)

    def _mapped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        path = str(self._directory / f"{next(self._numbers)}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(path)).get_batch(0)

    def order(self) -> NDArray[np.int64]:
        """The rows of all batches in the order of their keys, then of their places."""
        keys = self._column("key").dictionary_encode().combine_chunks()
        ranks = np.empty(len(keys.dictionary), np.int64)
        ranks[pc.sort_indices(keys.dictionary).to_numpy()] = np.arange(len(ranks))
        return np.lexsort((self._column("place").to_numpy(), ranks[keys.indices.to_numpy()]))

    def parts(self, order: NDArray[np.int64], writer: RunWriter) -> list[slice]:
        """Which rows of an order make a manifest each, as far as samples show how well they pack."""
        lengths = np.concatenate([np.diff(value_offsets(batch["record"])) for batch in self._batches])[order]
        samples = [self.taken(order[first:last])["record"] for first, last in sample_places(lengths)]
        ratio = writer.packed_ratio(joined(sample.combine_chunks()) for sample in samples)
        count = writer.parts_count(int(lengths.sum()), ratio)
        # Not as a list: there are as many as entries.
        parts = cut_evenly(range(len(lengths)), lengths.data.__getitem__, count)
        return [slice(part[0], part[-1] + 1) for part in parts]

    def partitions(self) -> list[bytes]:
        """A sample of the partitions."""
        return sampled(self._column("partition").unique().to_pylist())

    def taken(self, rows: NDArray[np.int64]) -> pa.Table:
        """Some rows in the order in which they are named."""
        starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        ascending = np.argsort(rows, kind="stable")
        ends = np.searchsorted(rows[ascending], starts)
        parts = [
            batch.take(pa.array(rows[ascending[first:last]] - start))
            for batch, start, first, last in zip(self._batches, starts[:-1], ends[:-1], ends[1:], strict=True)
            if last > first
        ]
        back = np.empty(len(rows), np.int64)
        back[ascending] = np.arange(len(rows))
        return pa.Table.from_batches(parts, RECORDS).combine_chunks().take(pa.array(back))

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
        """The same in pieces, so that no more is in memory than a manifest takes that packs well."""
        for start in range(0, len(rows), _PIECE_ROWS):
            yield self.taken(rows[start : start + _PIECE_ROWS])

    def _column(self, name: str) -> pa.ChunkedArray:
        return pa.chunked_array([batch[name] for batch in self._batches])


_BATCH_ROWS = 4096
_RANGE = "range"
_CROSSING = pa.schema([pa.field(_RANGE, pa.int32(), nullable=False), *RECORDS])


class _Reading(msgspec.Struct, frozen=True):
    """Manifests to read, the keys at which ranges end, and how many manifests there are in all."""

    task: RecordsTask
    points: tuple[bytes, ...]
    manifests_count: int


class _Writing(msgspec.Struct, frozen=True):
    """How a task writes; each has about `entries_count` entries."""

    writer: RunWriter
    entries_count: int


def rewritten_in_tasks(
    task: RecordsTask, writer: RunWriter, found: Survey, expected_count: int, spark: "SparkSession"
) -> list[ManifestFile]:
    """The same as `rewritten_here`, by tasks; about `expected_count` manifests come of it.

    Args:
        found: how the entries lie.
    """
    parts = cut_weights(found.weights(), tasks_count(spark, expected_count, NEW_MANIFESTS))
    points = tuple(part[0].key for part in parts[1:])
    entries_count = sum(weight.count for part in parts for weight in part)
    bins = manifests_by_task(task.manifests, spark)
    readings = [_Reading(_share(task, some), points, len(task.manifests)) for some in bins]
    writing = _Writing(writer, max(1, entries_count // len(parts)))
    rows = dataframe_from_tasks(spark, readings, _read, _CROSSING)
    in_order = rows.repartition(len(parts), _RANGE).sortWithinPartitions("key", "place")
    results, errors = run_over_partitions(in_order, _write, writing, step="writing manifests")
    manifests = [manifest for result in results for manifest in result]
    if errors:
        writer.discard(manifests)
        raise errors[0]
    return sorted(manifests, key=lambda m: m.manifest_path)


def _share(task: RecordsTask, some: Sequence[ManifestFile]) -> RecordsTask:
    numbers = {manifest.manifest_path: task.numbers[manifest.manifest_path] for manifest in some}
    return msgspec.structs.replace(task, manifests=tuple(some), numbers=numbers)


def _read(reading: _Reading) -> Iterator[pa.RecordBatch]:
    places = np.array(hash_keys(len(reading.points) + 1), np.int32)
    for batch in live_records(reading.task):
        ranges = pa.array(places[range_numbers(batch, reading.points, reading.manifests_count)])
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch.slice(start, _BATCH_ROWS)
            yield pa.RecordBatch.from_arrays([ranges.slice(start, _BATCH_ROWS), *part.columns], schema=_CROSSING)


def range_numbers(batch: pa.RecordBatch, points: Sequence[bytes], manifests_count: int) -> NDArray[np.int64]:
    """The range that each record falls into.

    A key at which ranges end belongs to all that begin or end with it: those get its records manifest by manifest.

    Args:
        batch: of `RECORDS`.
        points: the first key of each range but the first; several are equal where one key fills whole ranges.
        manifests_count: of how many manifests the records come.
    """
    coded = batch["key"].dictionary_encode()
    keys = coded.dictionary.to_pylist()
    codes = coded.indices.to_numpy()
    first = np.array([bisect_left(points, key) for key in keys], np.int64)[codes]
    last = np.array([bisect_right(points, key) for key in keys], np.int64)[codes]
    numbers = batch["place"].to_numpy() // PLACES_A_MANIFEST
    return first + numbers * (last - first + 1) // manifests_count


def _write(batches: Iterable[pa.RecordBatch], writing: _Writing) -> list[ManifestFile]:
    """Write sorted records as manifests of about even size; what was written is removed if that fails."""
    written: list[ManifestFile] = []
    with undoing(lambda: writing.writer.discard(written)):
        for records in _even_parts(writing, batches):
            written.append(writing.writer.write([records]))
    return written


def _even_parts(writing: _Writing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Records in the order in which they come, cut evenly; the last part takes a rest of less than half a part with it."""
    pending: list[pa.RecordBatch] = []
    held = room = 0
    for batch in (batch for batch in batches if batch.num_rows):
        room = room or _rows_a_manifest(writing, batch)
        pending.append(batch.select(RECORDS.names))
        held += batch.num_rows
        while held >= room + room // 2:
            whole = pa.Table.from_batches(pending, RECORDS)
            yield whole[:room]
            pending = whole[room:].to_batches()
            held -= room
    if held:
        yield pa.Table.from_batches(pending, RECORDS)


def _rows_a_manifest(writing: _Writing, rows: pa.RecordBatch) -> int:
    """How many records make one manifest, so that the task's entries are dealt out evenly; judged by the first ones."""
    records = rows["record"]
    ratio = writing.writer.packed_ratio([joined(records)])
    task_bytes = int(np.diff(value_offsets(records)).mean()) * writing.entries_count
    return max(2, -(-writing.entries_count // writing.writer.parts_count(task_bytes, ratio)))
