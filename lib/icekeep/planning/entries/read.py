"""Entries of many manifests: the one seam that chooses where manifests are decoded, and by what.

Few entries are decoded on the driver, in threads, since they are ready before a Spark task has begun; many in Spark tasks,
each of which is given about the same number of bytes of manifests. Storage is never listed and never asked for lengths:
the manifest list knows them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec
import pyarrow as pa

from icekeep.formats.processors import processors_count
from icekeep.planning.entries.decode import (
    DecodedEntries,
    DecodeTask,
    EntryFilter,
    ManifestsTask,
    decode,
    entries_schema,
)
from icekeep.planning.manifests.reader import ManifestDecoder, chosen_decoder
from icekeep.planning.spark.amounts import MANIFEST_BYTES, tasks_count
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.source import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, dataframe_from_tasks, run_tasks
from icekeep.spec.bins import balanced, packed
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage
from icekeep.storage.locations import parse_location
from icekeep.storage.many import REQUESTS_AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
