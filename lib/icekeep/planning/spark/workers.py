"""How many tasks a Spark session runs at once, and how often it tries one.

Who does the tasks of a run that rewrites files: threads of this process where the work is little, else Spark.

To start Spark takes longer than to rewrite some gigabytes. Who runs under `spark-submit`, or has started a session of a cluster,
has a JVM, and asks for more than one machine: what would be done before the first executor is there is still done here. Who
gives a session has its workers: on this machine, what these would not do faster is still done here.

How many tasks a job would run at once, as far as that is known before it begins; nothing is started for it.

Turns of tasks that rewrite files in threads: of all runs in this process together no more go at once than have memory.

Groups of a run go side by side, and so may runs over several tables in one process. Each counts its tasks as if it were
alone, by the processors and the memory of this process (`workers.thread_workers`).

How much one Spark task gets: work is cut by its amount, and the scheduler finds the slots.

How many cores are registered says nothing of that: under dynamic allocation there are two when a run begins, and hundreds
when it is under way. Little work is cut finely, as long as a task is worth its start; much work coarsely, since each task
costs milliseconds, and memory of the driver for what it answers.

What operators set keeps its meaning. `spark.default.parallelism` is how many tasks may be small, 100 where nobody has set it;
it makes no task larger than it may be, nor so small that its start takes longer than its work. On a local master, whose
slots never change, it is the number of these. `spark.sql.shuffle.partitions` is for the joins and aggregations that Spark
divides by itself.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from icekeep.formats.machine import processors_count, task_memory_bytes
from icekeep.planning.spark.session import (
    LIMITS,
    SUBMITTED_VARIABLE,
    Limits,
    SparkSource,
    is_started,
    limits_of,
    running_context,
    started,
    task_context,
)
from icekeep.spec.types import GIB, MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_local(spark: "SparkSession") -> bool:
    """Whether all tasks run in one process of Spark, on this machine."""
    return is_local_master(spark.sparkContext.master)


def is_local_master(master: str) -> bool:
    """Whether a master is Spark itself, in one process on this machine."""
    return master.startswith("local") and not master.startswith("local-cluster")


def is_running_on_cluster() -> bool:
    """Whether this process has a Spark session whose tasks run on other machines."""
    context = running_context()
    return context is not None and not is_local_master(context.master)


def max_task_failures(spark: "SparkSession") -> int:
    """How often Spark tries a task; once on a local master, unless it is written `local[N,F]`."""
    if is_local(spark):
        tries = re.fullmatch(r"local\[[^,]*,\s*(\d+)\]", spark.sparkContext.master)
        return int(tries[1]) if tries else 1
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4"))


def is_speculative(spark: "SparkSession") -> bool:
    """Whether Spark makes a second attempt at a slow task beside the first (`spark.speculation`)."""
    return spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true"


def parallelism(spark: "SparkSession") -> int:
    """How many tasks the session runs at once, on all executors together, or what `spark.default.parallelism` says."""
    return int(spark.sparkContext.defaultParallelism)


def executor_slots(spark: "SparkSession") -> int:
    """How many tasks share one executor, and so its memory; with a local master all that run at once.

    It is `spark.executor.cores` by `spark.task.cpus`. Where nobody set the former an executor has what the master gives it: all
    cores of its worker on a standalone cluster, one on YARN and Kubernetes.
    """
    conf = spark.sparkContext.getConf()
    return max(1, _executor_cores(spark) // max(1, int(conf.get("spark.task.cpus", "1") or 1)))


def _executor_cores(spark: "SparkSession") -> int:
    context = spark.sparkContext
    if is_local(spark):
        threads = re.match(r"local\[\s*(\*|\d+)", context.master)
        if threads is None:
            return 1
        # The processors that the JVM sees, which heeds a container's limit.
        return int(
            context._jvm.java.lang.Runtime.getRuntime().availableProcessors() if threads[1] == "*" else threads[1]
        )
    given = context.getConf().get("spark.executor.cores")
    if given is not None:
        return int(given)
    if workers := re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)", context.master):
        return int(workers[1])
    if not context.master.startswith("spark://"):
        return 1
    # Nothing public of Spark tells it. The driver is no executor; where none has come yet all slots may be on one.
    found = context._jsc.sc().statusStore().executorList(True)
    cores = [found.apply(n).totalCores() for n in range(found.size()) if found.apply(n).id() != "driver"]
    return int(max(cores, default=context.defaultParallelism))


def is_tried_again(max_failures: int) -> bool:
    """Whether Spark tries this task once more if it fails now."""
    context = task_context()
    return context is not None and context.attemptNumber() + 1 < max_failures


def was_tried_before() -> bool:
    """Whether an attempt at this task has failed, or was lost with its executor, or is under way at the same time."""
    context = task_context()
    return context is not None and context.attemptNumber() > 0


def attempt_id() -> int:
    """The number of the attempt at this task, for names of what it writes; no other of the Spark application has it."""
    context = task_context()
    return 0 if context is None else int(context.taskAttemptId())


THREAD_BYTES = GIB
"""What a thread that rewrites files has of the memory of this process or its container: with it row groups of the usual size
are read and written whole (`formats/machine.py`). A thread took 0.6 GB for a file of 150 MB of lineitem."""


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Who does tasks.

    Attributes:
        spark: `None` for threads of this process.
        slots: how many tasks run at once.
        process_slots: how many of these share the memory of one executor, or of this process.
        is_local: whether all run on this machine.
        limits: up to where this process does work by itself.
    """

    spark: "SparkSession | None"
    slots: int
    process_slots: int
    is_local: bool
    limits: Limits = LIMITS


def chosen_workers(source: SparkSource, work_bytes: float, files_count: float) -> Workers:
    """Who opens so many files, and reads and writes so many bytes."""
    limits = limits_of(source)
    if is_started(source):
        return _given_workers(source, limits, work_bytes, files_count)
    if work_bytes > own_rewrite_bytes(limits) or (files_count > limits.waiting_files_count and _has_executors()):
        return spark_workers(source)
    return thread_workers(limits)


def _given_workers(source: SparkSource, limits: Limits, work_bytes: float, files_count: float) -> Workers:
    """The session that was given, or on its own machine as many threads as it has.

    Executors of a cluster get all, since they have memory, try a failed task again, and stop where Spark is told to stop.
    """
    given = spark_workers(source)
    if not given.is_local or work_bytes > limits.session_rewrite_bytes or files_count > limits.waiting_files_count:
        return given
    threads = thread_workers(limits)
    slots = min(threads.slots, given.slots)
    return msgspec.structs.replace(threads, slots=slots, process_slots=slots)


def _has_executors() -> bool:
    """Whether a session that is begun, or that runs, has executors beside the driver."""
    context = running_context()
    if context is not None:
        return not is_local_master(context.master)
    if SUBMITTED_VARIABLE not in os.environ:
        return False
    # It asks the JVM of spark-submit, by PySpark.
    from icekeep.planning.spark.session import live_properties

    return not is_local_master(live_properties().get("spark.master", ""))


def own_rewrite_bytes(limits: Limits) -> int:
    """Up to how many bytes this process rewrites by itself where no session is given.

    It is less where more than this machine was asked for: a session of a cluster runs, or `spark-submit` has started the process.
    """
    has_cluster = SUBMITTED_VARIABLE in os.environ or is_running_on_cluster()
    return limits.submitted_rewrite_bytes if has_cluster else limits.rewrite_bytes


def thread_workers(limits: Limits = LIMITS) -> Workers:
    """Threads of this process, one for each of its processors, or fewer where these would have too little memory."""
    threads = max(1, min(processors_count(), task_memory_bytes(1) // THREAD_BYTES))
    return Workers(spark=None, slots=threads, process_slots=threads, is_local=True, limits=limits)


def spark_workers(source: SparkSource) -> Workers:
    """The executors of a session, which is started if it is not yet."""
    session = started(source)
    own, local = executor_slots(session), is_local(session)
    # What an operator says of a session's parallelism puts no more threads on one machine.
    slots = min(own, parallelism(session)) if local else parallelism(session)
    return Workers(spark=session, slots=slots, process_slots=own, is_local=local, limits=limits_of(source))


Properties = Callable[[], Mapping[str, str]]
"""Gives Spark's configuration, `spark.*`; may raise whatever the JVM raises."""

_USUAL_MASTER = "local[*]"


def expected_slots(properties: Properties, work_bytes: int) -> int:
    """How many tasks of a job that reads so many bytes would run at once, at least one.

    Where executors come and go as they are needed, it is as many as may come.
    """
    if work_bytes <= own_rewrite_bytes(LIMITS):
        return thread_workers().slots
    told: Mapping[str, str] = {}
    running, context = 0, running_context()
    # A session that is about to end answers with whatever it likes, and an estimate is worth no error.
    with suppress(Exception):
        if context is not None:
            running = int(context.defaultParallelism)
            told = {"spark.master": context.master, **dict(context.getConf().getAll())}
        else:
            told = properties()
    return max(1, running, configured_slots(told))


def configured_slots(properties: Mapping[str, str]) -> int:
    """How many tasks a session of this configuration runs at once, once all its executors are there; 1 where it does not say.

    >>> configured_slots({"spark.master": "yarn", "spark.executor.instances": "8", "spark.executor.cores": "4"})
    32
    """
    master = properties.get("spark.master", _USUAL_MASTER)
    each = max(1, _number(properties, "spark.task.cpus", 1))
    if is_local_master(master):
        threads = re.match(r"local\[\s*(\*|\d+)", master)
        return 1 if threads is None else processors_count() if threads[1] == "*" else max(1, int(threads[1]))
    cores = _number(properties, "spark.executor.cores", 1)
    is_dynamic = properties.get("spark.dynamicAllocation.enabled", "").lower() == "true"
    executors = _number(properties, "spark.executor.instances", 1)
    if is_dynamic:
        executors = max(executors, _number(properties, "spark.dynamicAllocation.maxExecutors", 1))
    most = max(executors * (cores // each), _number(properties, "spark.cores.max", 1) // each)
    return max(1, most)


def _number(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key, "").strip()
    return int(text) if text.isdecimal() else default


P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")


class Turns:
    """Who waits and who is at work; who came first goes first, however much it takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._taken = 0

    @contextmanager
    def taken(self, count: int, most: int) -> Iterator[None]:
        """Let the block run when its turn has come.

        Args:
            count: how many threads the block keeps busy.
            most: how many may be busy at once; a block that takes more goes alone.
        """
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is me and self._taken + count <= max(most, count))
                self._taken += count
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= count
                self._changed.notify_all()


TURNS = Turns()
"""Of this process."""


def in_turns(
    work: Callable[[P, S], R], workers: Workers, count: Callable[[P], int] = lambda _: 1
) -> Callable[[P, S], R]:
    """The same work for `run_tasks`; in threads of this process each payload waits for its turn.

    Args:
        count: how many threads a payload keeps busy.
    """
    if workers.spark is not None:
        return work

    def done(payload: P, shared: S) -> R:
        with TURNS.taken(count(payload), workers.slots):
            return work(payload, shared)

    return done


_SMALL_TASKS = 100
_PARALLELISM = "spark.default.parallelism"


class Amount(msgspec.Struct, frozen=True):
    """What a task gets of some work: `least` is worth its start, `most` is enough for any."""

    least: int
    most: int


MANIFEST_BYTES = Amount(4 * MIB, 32 * MIB)
"""Stored bytes of manifests that are decoded: some 70,000 to 500,000 entries."""

FILTERED_MANIFEST_BYTES = Amount(MIB // 2, 8 * MIB)
"""The same where each entry is an object, as in a commit."""

LIST_ROWS = Amount(1_000_000, 8_000_000)
"""Rows of manifest lists, and what opening them counts for in rows."""

NEW_MANIFESTS = Amount(8, 16)
"""Manifests that a task writes of a range of keys: so many that the last one, which is cut short, matters little."""

MATCHED_FILES = Amount(20_000, 100_000)
"""Data files that are matched with the delete files that reach them."""

LISTED_FILES = Amount(20_000, 100_000)
"""Files of a listing."""

DESCRIBED_FILES = Amount(5_000, 50_000)
"""Files of groups, each with what a commit must know of it."""

SHUFFLED_KEYS = Amount(100_000, 1_000_000)
"""Rows of a partition of a shuffle by keys: a key, and at most a location beside it."""

DATA_BYTES = Amount(16 * MIB, 128 * MIB)
"""Bytes of data files that are read."""


def tasks_count(spark: "SparkSession", total: float, amount: Amount, *, a_slot: int = 1, beside: float = 0) -> int:
    """Into how many tasks work is cut, at least one.

    Args:
        total: all of the work, in the unit of `amount`.
        a_slot: as for `small_tasks`.
        beside: what each task reads in any case, in the same unit: of its own it gets at least as much.
    """
    least, most = max(amount.least, beside), max(amount.most, beside)
    return max(1, int(-(-total // most)), min(small_tasks(spark, a_slot=a_slot), int(total // least)))


def small_tasks(spark: "SparkSession", *, a_slot: int = 1) -> int:
    """How many tasks may be small.

    Args:
        a_slot: how many for each slot of a local master; several where shares of equal amounts take unequal times.
    """
    if spark.sparkContext.getConf().get(_PARALLELISM) is not None:
        return parallelism(spark)
    return a_slot * parallelism(spark) if is_local(spark) else _SMALL_TASKS
