"""The entries of data files as work on their manifests sees them: here in threads, or in Spark tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.maintenance.checking.entries.keys import keys_of
from icekeep.maintenance.checking.entries.reading import Numbered, batches, chunks
from icekeep.maintenance.checking.faults import Tally
from icekeep.planning.entries import DecodeTask, entries_count, threads_count
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, tasks_count
from icekeep.spec.collections import balanced
from icekeep.storage.location_keys import Keys

R = TypeVar("R")
S = TypeVar("S")


def over_manifests(
    spark: SparkSource, manifests: Sequence[Numbered], work: Callable[[Sequence[Numbered], S], R], shared: S, step: str
) -> list[R]:
    """Do some work, which keeps little, on manifests.

    Args:
        work: a function of a module, called with some manifests and what all share.
        step: what Spark's pages say of it.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    session, some = None, chunks(manifests)
    if entries_count(manifest for _, manifest in manifests) > limits_of(spark).folded_entries_count:
        session = started(spark)
        length = sum(manifest.manifest_length for _, manifest in manifests)
        some = balanced(manifests, lambda one: one[1].manifest_length, tasks_count(session, length, MANIFEST_BYTES))
    threads = threads_count(manifest.manifest_path for _, manifest in manifests)
    return all_results(run_tasks(session, some, work, shared, step=step, threads=threads))


def keyed_batches(
    manifests: Sequence[Numbered], decode: DecodeTask
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int32], Keys, NDArray[np.bool_]]]:
    """Live entries, with the numbers of their manifests, keys of their paths, and which of the paths are locations.

    What cannot be read was noted when entries were held against the store.
    """
    for some in chunks(manifests):
        for batch, numbers in batches(some, decode, Tally()):
            keys, there = keys_of(batch["file_path"])
            yield batch, numbers, keys, there
