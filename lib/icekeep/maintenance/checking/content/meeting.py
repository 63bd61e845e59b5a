"""Entries of many manifests brought together by file, here or in Spark tasks, so that each file is read once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.maintenance.checking.content.judging import Judge, Row
from icekeep.maintenance.checking.content.known import Known
from icekeep.maintenance.checking.entries.comparing import part_of
from icekeep.maintenance.checking.entries.keys import keys_of
from icekeep.maintenance.checking.entries.reading import Numbered, batches, chunks
from icekeep.maintenance.checking.faults import Tally
from icekeep.planning.entries import threads_count
from icekeep.planning.spark.session import SparkSource, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, TaskSize, tasks_count
from icekeep.spec.collections import balanced
from icekeep.spec.types import GIB, MIB
from icekeep.storage.locations import canonical_or_text

_CHECKED_BYTES = TaskSize(16 * MIB, GIB)
_MOST_PARTS = 20_000
_FILE_BYTES = 64 * 1024
"""What reading the smallest file counts for."""


class Shared(msgspec.Struct, frozen=True):
    """What all tasks know; `parts` is how many there are to read files."""

    known: Known
    parts: int = 1


def entries_here(manifests: Sequence[Numbered], known: Known) -> pa.Table | None:
    """The entries of few manifests, with the numbers of these; `None` where there are none."""
    threads = threads_count(manifest.manifest_path for _, manifest in manifests)
    read = all_results(run_tasks(None, chunks(manifests), _entries, known, threads=threads))
    found = [batch for some in read for batch in some]
    return pa.Table.from_batches(found) if found else None


def bytes_of(entries: pa.Table) -> int:
    """The bytes of the files of entries, of each once."""
    _, firsts = np.unique(entries["file_path"].to_numpy(), return_index=True)
    return int(entries["file_size_in_bytes"].to_numpy()[firsts].sum())


def judge_here(entries: pa.Table, known: Known) -> Tally:
    """The faults of the files of some entries, which are read in threads of this process."""
    files = _by_file(entries.to_pylist())
    total = Tally(known.whole)
    threads = threads_count(rows[0]["file_path"] for rows in files)
    for tally in all_results(run_tasks(None, files, _judged, known, threads=threads)):
        total.merge(tally)
    return total


def judge_in_tasks(manifests: Sequence[Numbered], known: Known, spark: SparkSource) -> Tally:
    """The faults of the files of many manifests.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    session = started(spark)
    tasks = tasks_count(session, sum(manifest.manifest_length for _, manifest in manifests), MANIFEST_BYTES)
    bins = balanced(manifests, lambda one: one[1].manifest_length, tasks)
    sizes = all_results(run_tasks(session, bins, _bytes_of, known, step="adding up data files"))
    parts = min(_MOST_PARTS, tasks_count(session, sum(sizes), _CHECKED_BYTES))
    shared = Shared(known, parts)
    total = Tally(known.whole)
    ran = run_exchange(session, bins, _send, parts, _received, shared, step="checking data files")
    for tally in all_results(ran):
        total.merge(tally)
    return total


def _entries(some: Sequence[Numbered], known: Known) -> list[pa.RecordBatch]:
    # What cannot be read has been told among files.
    read = batches(some, known.decode, Tally())
    return [batch.append_column("manifest", pa.array(numbers)) for batch, numbers in read]


def _bytes_of(manifests: Sequence[Numbered], known: Known) -> int:
    """What reading the files of manifests takes; a file of several manifests counts several times."""
    total = 0
    decode = msgspec.structs.replace(known.decode, columns=frozenset({"manifest_path", "file_size_in_bytes"}))
    for some in chunks(manifests):
        for batch, _ in batches(some, decode, Tally()):
            total += int(np.maximum(batch["file_size_in_bytes"].to_numpy(), _FILE_BYTES).sum())
    return total


def _send(manifests: Sequence[Numbered], shared: Shared) -> Iterator[tuple[int, pa.Table]]:
    for some in chunks(manifests):
        for batch in _entries(some, shared.known):
            numbers = part_of(keys_of(batch["file_path"])[0], shared.parts)
            table = pa.Table.from_batches([batch])
            for part in np.unique(numbers).tolist():
                yield part, table.take(pa.array(np.flatnonzero(numbers == part)))


def _received(part: int, sent: Iterable[tuple[int, pa.Table]], shared: Shared) -> Tally:
    tables = [table for _, table in sent]
    total = Tally(shared.known.whole)
    if tables:
        # A file at a time as Python values: metrics take ten times as much so.
        entries = pa.concat_tables(tables).combine_chunks()
        keys = keys_of(entries["file_path"].combine_chunks())[0]
        order = np.argsort(keys, kind="stable")
        for indices in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            for rows in _by_file(entries.take(pa.array(indices)).to_pylist()):
                total.merge(_judged(rows, shared.known))
    return total


def _judged(rows: Sequence[Row], known: Known) -> Tally:
    tally = Tally(known.whole)
    Judge(known, tally).file(rows)
    return tally


def _by_file(rows: Iterable[Row]) -> list[list[Row]]:
    """The entries of each file together."""
    files: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        files[canonical_or_text(row["file_path"])].append(row)
    return [*files.values()]
