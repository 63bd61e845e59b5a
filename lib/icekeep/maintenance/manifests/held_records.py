"""A run of manifests rewritten in this process: threads read, sort and write; no Spark has a part in it.

Records are held as they were read. Above some hundred megabytes they lie in files of a temporary directory that are mapped
into memory, so that the machine decides what stays there.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.maintenance.manifests.partition_overlap import sampled
from icekeep.maintenance.manifests.writing import RunWriter, sample_places
from icekeep.planning.entries import in_threads, threads_count
from icekeep.planning.transcode import RECORDS, RecordsTask, joined, live_records, value_offsets
from icekeep.spec.collections import cut_evenly
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.types import MIB

_HELD_BYTES = 256 * MIB
_PIECE_ROWS = 16_384


def rewritten_here(task: RecordsTask, writer: RunWriter) -> tuple[list[ManifestFile], list[bytes]]:
    """Write the live entries of a task's manifests, sorted, as manifests of the target size; none where nothing is live.

    With the manifests a sample of the files' partitions is returned, as `partition_overlap.sampled` takes it.

    Raises:
        IcekeepError: a manifest cannot be read or written; what was written is removed.
    """
    return _made(task, writer, writer.write, writer.discard)


def foreseen_here(task: RecordsTask, writer: RunWriter) -> tuple[list[ManifestFile], list[bytes]]:
    """The same, but that nothing is written: the manifests have no paths."""
    return _made(task, writer, writer.foresee, _nothing_to_discard)


def _made(
    task: RecordsTask,
    writer: RunWriter,
    make: Callable[[Iterable[pa.Table]], ManifestFile],
    discard: Callable[[list[ManifestFile]], None],
) -> tuple[list[ManifestFile], list[bytes]]:
    with TemporaryDirectory(prefix="icekeep-") as directory:
        held = _HeldRecords(Path(directory))
        # What was read is put away by who read it: nothing waits for the others in memory.
        for _ in in_threads(task, held.read):
            pass
        if not held.count:
            return [], []
        order = held.order()
        parts = _parts(held, order, writer)
        with ThreadPoolExecutor(min(threads_count([writer.directory]), len(parts))) as pool:
            futures = [pool.submit(lambda part: make(held.pieces(order[part])), part) for part in parts]
            try:
                return [future.result() for future in futures], held.partitions()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                discard([future.result() for future in futures if _is_made(future)])
                raise


def _is_made(future: Future[ManifestFile]) -> bool:
    return not future.cancelled() and future.exception() is None


def _nothing_to_discard(_: list[ManifestFile]) -> None:
    pass


class _HeldRecords:
    """Batches of records, in any order, and all of them seen as one sorted list."""

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

    def lengths(self) -> NDArray[np.int64]:
        """The bytes of each record."""
        return np.concatenate([np.diff(value_offsets(batch["record"])) for batch in self._batches])

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


def _parts(held: _HeldRecords, order: NDArray[np.int64], writer: RunWriter) -> list[slice]:
    """Which rows make a manifest each, as far as samples tell how well they pack."""
    lengths = held.lengths()[order]
    samples = [held.taken(order[first:last])["record"] for first, last in sample_places(lengths)]
    ratio = writer.packed_ratio(joined(sample.combine_chunks()) for sample in samples)
    count = writer.parts_count(int(lengths.sum()), ratio)
    # Not as a list: there are as many as entries.
    parts = cut_evenly(range(len(lengths)), lengths.data.__getitem__, count)
    return [slice(part[0], part[-1] + 1) for part in parts]
