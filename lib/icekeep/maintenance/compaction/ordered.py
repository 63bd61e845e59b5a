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

from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.formats.rewrite.sampling import sample_task
from icekeep.formats.rewrite.task import RewriteTask
from icekeep.formats.row_hash.multiset import RowSum
from icekeep.formats.sort.ranges import split_points
from icekeep.maintenance.compaction.estimate import RewriteMethod
from icekeep.maintenance.compaction.methods import ARROW_GROWTH
from icekeep.maintenance.compaction.plan import FileGroup
from icekeep.maintenance.compaction.rewriting import Done, Ran, rewritten
from icekeep.maintenance.compaction.shuffle import shuffled
from icekeep.maintenance.compaction.tasks import range_tasks
from icekeep.planning.spark.amounts import DATA_BYTES, tasks_count
from icekeep.planning.spark.tasks import run_tasks
from icekeep.planning.spark.workers import Workers
from icekeep.spec.bins import balanced
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
        parts_a_file: ranges for each file that is expected (option `shuffle-partitions-per-file`), where rows are shuffled.
    """
    if method is RewriteMethod.SHUFFLE:
        parts = group.expected_files_count * parts_a_file
        points, errors = _points(whole, parts, workers, storage, slots)
        assert workers.spark is not None
        return Ran((), errors) if errors else shuffled(whole, points, workers.spark, storage)
    parts = min(slots, group.expected_files_count)
    for_memory = math.ceil(group.bytes * ARROW_GROWTH / whole.budget_bytes)
    if for_memory > parts and workers.spark is not None:
        # All slots have as much to do in each round.
        parts = math.ceil(for_memory / slots) * slots
    if parts == 1:
        return rewritten(workers, storage, [whole])
    points, errors = _points(whole, parts, workers, storage, slots)
    if errors:
        return Ran((), errors)
    tasks = range_tasks(whole, points, group)
    done: list[Done] = []
    for first in range(0, len(tasks), slots):
        ran = rewritten(workers, storage, [tuple(tasks[first : first + slots])])
        done += ran.done
        if ran.errors:
            return Ran(done, ran.errors)
    return _agreed(Ran(done))


def _agreed(ran: Ran) -> Ran:
    """Tasks that each read everything must have read the same; what they read counts once."""
    if ran.errors or len(ran.done) < 2:
        return ran
    if len(set(map(_reading, ran.done))) > 1:
        return Ran(ran.done, [IcekeepBug("tasks that read the same files found different rows in them")])
    return Ran([ran.done[0], *map(_without_reading, ran.done[1:])])


def _reading(done: Done) -> tuple[int, int, bytes, RowSum | None]:
    outcome = done.outcome
    dropped = b"" if outcome.moves is None else outcome.moves.reading
    return outcome.read_count, outcome.live_count, dropped, outcome.hash_in


def _without_reading(done: Done) -> Done:
    nothing = None if done.outcome.hash_in is None else RowSum()
    return Done(msgspec.structs.replace(done.outcome, read_count=0, live_count=0, hash_in=nothing), done.cpu_ms)


def _points(
    whole: RewriteTask, parts: int, workers: Workers, storage: Storage, slots: int
) -> tuple[tuple[bytes, ...], Sequence[IcekeepError]]:
    """Keys that cut the rows into about equal parts, from a sample of some files; in order, so by no chance."""
    files_count = min(_SAMPLED_FILES_COUNT, _SAMPLED_FILES_A_PART * parts)
    pieces = whole.pieces[:: math.ceil(len(whole.pieces) / files_count)]
    size_bytes = sum(piece.size_bytes for piece in pieces)
    spark = None if size_bytes <= workers.limits.sort_sample_bytes else workers.spark
    bins = balanced(
        pieces, attrgetter("size_bytes"), slots if spark is None else tasks_count(spark, size_bytes, DATA_BYTES)
    )
    tasks = [msgspec.structs.replace(whole, pieces=tuple(some), delete_files=()) for some in bins]
    samples, errors = run_tasks(
        spark,
        tasks,
        sample_task,
        storage,
        step="sampling sort keys",
        threads=min(slots, REQUESTS_AT_ONCE),
    )
    return (() if errors else split_points(samples, parts)), errors
