"""The entries of what looks wrong, read again with all that is to be told of them, and judged: here, or in Spark tasks."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.maintenance.checking.entries.comparing import part_of
from icekeep.maintenance.checking.entries.judging import Judge
from icekeep.maintenance.checking.entries.keys import keys_of
from icekeep.maintenance.checking.entries.reading import Numbered, batches, chunks, decode_task
from icekeep.maintenance.checking.entries.suspects import Suspects
from icekeep.maintenance.checking.faults import Tally
from icekeep.maintenance.deletion.path_set import among
from icekeep.planning.entries import DecodeTask, threads_count
from icekeep.planning.spark.session import SparkSource, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import LISTED_FILES, MANIFEST_BYTES, tasks_count
from icekeep.spec.collections import balanced
from icekeep.storage.location_keys import Keys

TOLD = (
    "spec_id",
    "partition",
    "snapshot_id",
    "sequence_number",
    "content",
    "file_path",
    "file_format",
    "record_count",
    "file_size_in_bytes",
    "key_metadata",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
)
"""Columns of entries that are told of faults, or say what is one."""


class _Looking(msgspec.Struct, frozen=True):
    """What all tasks share."""

    decode: DecodeTask
    files: Keys
    targets: Keys
    judge: Judge
    parts: int = 1


class _Found(msgspec.Struct, frozen=True):
    """Entries with the numbers of their manifests; `of_targets` are vectors, for their data files."""

    of_files: pa.Table | None = None
    of_targets: pa.Table | None = None
    tally: Tally | None = None


def look_closer(
    table: Table,
    manifests: Sequence[Numbered],
    suspects: Suspects,
    judge: Judge,
    spark: SparkSource,
    *,
    in_tasks: bool,
) -> Tally:
    """The faults among the entries that look wrong, and what cannot be read of them.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    chosen = [one for one in manifests if one[0] in suspects.manifests]
    decode = decode_task(table, (manifest for _, manifest in chosen), TOLD)
    shared = _Looking(decode, suspects.files, suspects.targets, judge)
    if not in_tasks:
        threads = threads_count(manifest.manifest_path for _, manifest in chosen)
        read = all_results(run_tasks(None, chunks(chosen), _look, shared, threads=threads))
        return _judged((one for some in read for one in some), judge)
    session = started(spark)
    tasks = tasks_count(session, sum(manifest.manifest_length for _, manifest in chosen), MANIFEST_BYTES)
    bins = balanced(chosen, lambda one: one[1].manifest_length, tasks)
    parts = tasks_count(session, suspects.rows_count, LISTED_FILES, a_slot=2)
    shared = msgspec.structs.replace(shared, parts=parts)
    total = Tally(judge.whole)
    ran = run_exchange(session, bins, _send, parts, _received, shared, step="looking closer at files")
    for tally in all_results(ran):
        total.merge(tally)
    return total


def _look(some: Sequence[Numbered], shared: _Looking) -> list[_Found]:
    return [one for _, one in _send(some, shared)]


def _send(manifests: Sequence[Numbered], shared: _Looking) -> Iterator[tuple[int, _Found]]:
    tally = Tally()
    for some in chunks(manifests):
        for batch, numbers in batches(some, shared.decode, tally):
            rows = batch.append_column("manifest", pa.array(numbers))
            for part, chosen in _chosen(rows, keys_of(rows["file_path"])[0], shared.files, shared.parts):
                yield part, _Found(of_files=chosen)
            targets = keys_of(rows["referenced_data_file"])[0]
            for part, chosen in _chosen(rows, targets, shared.targets, shared.parts):
                yield part, _Found(of_targets=chosen)
    yield 0, _Found(tally=tally)


def _chosen(rows: pa.RecordBatch, keys: Keys, wanted: Keys, parts: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows whose keys are wanted, for the parts that they go to."""
    indices = np.flatnonzero(among(keys, wanted))
    if not len(indices):
        return
    numbers = part_of(keys[indices], parts)
    # Taken, so that what is sent of a batch is not all of it.
    table = pa.Table.from_batches([rows]).append_column("key", pa.array(keys))
    for part in np.unique(numbers).tolist():
        yield part, table.take(pa.array(indices[numbers == part]))


def _received(part: int, sent: Iterable[tuple[int, _Found]], shared: _Looking) -> Tally:
    return _judged((one for _, one in sent), shared.judge)


def _judged(found: Iterable[_Found], judge: Judge) -> Tally:
    of_files: list[pa.Table] = []
    of_targets: list[pa.Table] = []
    tally = Tally(judge.whole)
    for one in found:
        if one.of_files is not None:
            of_files.append(one.of_files)
        if one.of_targets is not None:
            of_targets.append(one.of_targets)
        if one.tally is not None:
            tally.merge(one.tally)
    judge.files([row for table in of_files for row in table.to_pylist()], tally)
    judge.targets([row for table in of_targets for row in table.to_pylist()], tally)
    return tally
