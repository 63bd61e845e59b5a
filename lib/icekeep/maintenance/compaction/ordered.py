"""A group whose rows several threads or tasks order: each takes a range of keys.

Where all slots are on one machine, a task has a thread for each of them, and they read the files once together: nobody else has
a use for the other slots meanwhile. On a cluster, and above `methods.MAX_RANGES` times what a thread orders at a time, rows go
through Spark's shuffle, and each file is read once too.

In threads of this process what outgrows their memory is put on disk in order. For 190 MB of lineitem, 14 times that memory, it
took 17 seconds of a processor, to read them seven times 31, and Spark's shuffle 44.
"""

import math
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from icekeep.errors import IcekeepError
from icekeep.formats.rewrite.run import sample_task
from icekeep.formats.rewrite.task import RewriteTask
from icekeep.formats.sort.keys import KeySample, ranges_of_files, split_points
from icekeep.maintenance.compaction.estimate import RewriteMethod
from icekeep.maintenance.compaction.plan import FileGroup
from icekeep.maintenance.compaction.rewriting import Ran, rewritten
from icekeep.maintenance.compaction.shuffle import shuffled
from icekeep.maintenance.compaction.tasks import range_tasks
from icekeep.planning.spark.tasks import run_tasks
from icekeep.planning.spark.workers import DATA_BYTES, Workers, tasks_count
from icekeep.spec.collections import balanced
from icekeep.storage.base import Storage
from icekeep.storage.many import REQUESTS_AT_ONCE

_SAMPLED_FILES_COUNT = 128
_SAMPLED_FILES_A_PART = 16


def run_ordered(
    whole: RewriteTask,
    group: FileGroup,
    method: RewriteMethod,
    workers: Workers,
    storage: Storage,
    *,
    slots: int,
    parts_a_file: int,
) -> Ran:
    """Rewrite a group in the order that its task says.

    Args:
        whole: the task that would do all of it.
        slots: how many tasks this group may have at once.
        parts_a_file: into how many parts a file is cut to find where it ends (option `shuffle-partitions-per-file`).
    """
    shuffles = method is RewriteMethod.SHUFFLE
    files_count = max(1, group.expected_files_count)
    parts = files_count if shuffles else min(slots, files_count)
    if parts == 1 and not shuffles:
        return rewritten(workers, storage, [whole])
    samples, errors = _samples(whole, parts, workers, storage, slots)
    if errors:
        return Ran((), errors)
    if whole.files_count is None:
        points, files_counts = split_points(samples, parts * parts_a_file if shuffles else parts), None
    else:
        points, files_counts = ranges_of_files(samples, whole.files_count, parts, finer=parts_a_file)
    if shuffles:
        assert workers.spark is not None
        return shuffled(whole, points, files_counts, workers.spark, storage)
    # What outgrows the memory of a range is put on disk.
    return rewritten(workers, storage, [tuple(range_tasks(whole, points, files_counts))])


def _samples(
    whole: RewriteTask, parts: int, workers: Workers, storage: Storage, slots: int
) -> tuple[Sequence[KeySample], Sequence[IcekeepError]]:
    """Samples of the keys of some files, chosen by no chance."""
    files_count = min(_SAMPLED_FILES_COUNT, _SAMPLED_FILES_A_PART * parts)
    pieces = whole.pieces[:: math.ceil(len(whole.pieces) / files_count)]
    size_bytes = sum(piece.size_bytes for piece in pieces)
    spark = None if size_bytes <= workers.limits.sort_sample_bytes else workers.spark
    bins = balanced(
        pieces, attrgetter("size_bytes"), slots if spark is None else tasks_count(spark, size_bytes, DATA_BYTES)
    )
    tasks = [msgspec.structs.replace(whole, pieces=tuple(some), delete_files=()) for some in bins]
    return run_tasks(
        spark,
        tasks,
        sample_task,
        storage,
        step="sampling sort keys",
        threads=min(slots, REQUESTS_AT_ONCE),
    )
