"""Where tasks run, how many at once, and with how much memory: in threads of this process where the work is small, else in Spark.

To start Spark takes longer than to rewrite some gigabytes. Under `spark-submit`, or with a session of a cluster, there is a
JVM, and more than one machine was asked for: only work that ends before the first executor is there is done here. A given
session has its workers: on this machine, work that these would not do faster is still done here.

Work is divided by its amount, and the scheduler finds the slots. The registered cores do not matter: under dynamic allocation
there are two when a run begins, and hundreds later. Small work is divided finely, as long as a task is worth its start; large
work coarsely, since each task costs milliseconds, and memory of the driver for its answer.

Settings of operators keep their meaning. `spark.default.parallelism` is how many tasks may be small, 100 where it is not set; it
does not change the limits of a task's size. On a local master, whose slots never change, it is the number of these.
`spark.sql.shuffle.partitions` is for the joins and aggregations that Spark divides by itself.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from icekeep.events import Listener, Warned
from icekeep.formats.machine import processors_count, task_memory_bytes
from icekeep.planning.spark.configuration import (
    SUBMITTED_VARIABLE,
    configured_slots,
    is_local_master,
    local_slots,
    python_memory,
    shortage,
)
from icekeep.planning.spark.session import (
    LIMITS,
    Limits,
    SparkSource,
    is_started,
    limits_of,
    live_properties,
    running_context,
    started,
)
from icekeep.spec.types import GIB, MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")

THREAD_BYTES = GIB
"""The memory of a thread that rewrites files: with it row groups of the usual size are read and written whole
(`formats/machine.py`). A thread took 0.6 GB for a file of 150 MB of lineitem."""


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Executors of a session, or threads of this process.

    Attributes:
        spark: `None` for threads.
        slots: how many tasks run at once.
        process_slots: how many of these share the memory of one executor, or of this process.
        is_local: whether all run on this machine.
        would_start: whether a run would start the session; a preview does not.
    """

    spark: "SparkSession | None"
    slots: int
    process_slots: int
    is_local: bool
    limits: Limits = LIMITS
    would_start: bool = False


def chosen_workers(source: SparkSource, work_bytes: float, files_count: float) -> Workers:
    """The workers for opening a number of files, and reading and writing a number of bytes.

    A given session of a cluster gets all work, since its executors have memory, retry failed tasks, and stop with Spark.
    """
    limits = limits_of(source)
    if not is_started(source):
        return spark_workers(source) if _is_much(limits, work_bytes, files_count) else thread_workers(limits)
    given = spark_workers(source)
    if not given.is_local or work_bytes > limits.session_rewrite_bytes or files_count > limits.waiting_files_count:
        return given
    threads = thread_workers(limits)
    slots = min(threads.slots, given.slots)
    return msgspec.structs.replace(threads, slots=slots, process_slots=slots)


def foreseen_workers(source: SparkSource, work_bytes: int, files_count: float) -> Workers:
    """As `chosen_workers`, for a preview: a session that does not run is not started."""
    limits = limits_of(source)
    if is_started(source) or not _is_much(limits, work_bytes, files_count):
        return chosen_workers(source, work_bytes, files_count)
    slots, master = _slots_and_master(live_properties)
    is_local = is_local_master(master)
    return Workers(spark=None, slots=slots, process_slots=slots, is_local=is_local, limits=limits, would_start=True)


def _is_much(limits: Limits, work_bytes: float, files_count: float) -> bool:
    """Whether work is for a session, though none is given."""
    if work_bytes > _own_rewrite_bytes(limits):
        return True
    if files_count > limits.waiting_files_count:
        # The JVM of spark-submit, or a running session, may have executors beside the driver.
        if running_context() is not None:
            return is_running_on_cluster()
        if SUBMITTED_VARIABLE in os.environ:
            return not is_local_master(live_properties().get("spark.master", ""))
    return False


def thread_workers(limits: Limits = LIMITS) -> Workers:
    """Threads of this process, one for each processor, or fewer where these would have too little memory."""
    threads = max(1, min(processors_count(), task_memory_bytes(1) // THREAD_BYTES))
    return Workers(spark=None, slots=threads, process_slots=threads, is_local=True, limits=limits)


def spark_workers(source: SparkSource) -> Workers:
    """The executors of a session, which is started if necessary."""
    session = started(source)
    process_slots, local = executor_slots(session), is_local(session)
    # Of all executors; or `spark.default.parallelism`, which adds no threads to one machine.
    slots = session.sparkContext.defaultParallelism
    slots = min(process_slots, slots) if local else slots
    return Workers(spark=session, slots=slots, process_slots=process_slots, is_local=local, limits=limits_of(source))


def _own_rewrite_bytes(limits: Limits) -> int:
    """The most bytes that this process rewrites by itself where no session is given."""
    asked_for_more = SUBMITTED_VARIABLE in os.environ or is_running_on_cluster()
    return limits.submitted_rewrite_bytes if asked_for_more else limits.rewrite_bytes


def is_running_on_cluster() -> bool:
    """Whether this process has a Spark session whose tasks run on other machines."""
    context = running_context()
    return context is not None and not is_local_master(context.master)


def is_local(spark: "SparkSession") -> bool:
    """Whether all tasks run in one process of Spark, on this machine."""
    return is_local_master(spark.sparkContext.master)


def executor_slots(spark: "SparkSession") -> int:
    """How many tasks share one executor, and so its memory; with a local master all that run at once.

    It is `spark.executor.cores` by `spark.task.cpus`. Where the former is not set, an executor has all cores of its worker on a
    standalone cluster, and one on YARN and Kubernetes.
    """
    context = spark.sparkContext
    conf = context.getConf()
    cores = conf.get("spark.executor.cores")
    if is_local(spark):
        # The JVM respects a container's limit.
        cores = local_slots(
            context.master, lambda: int(context._jvm.java.lang.Runtime.getRuntime().availableProcessors())
        )
    elif cores is None and (workers := re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)", context.master)):
        cores = workers[1]
    elif cores is None and context.master.startswith("spark://"):
        # Spark has no public call for it. The driver is no executor; where there is none yet, all slots may be on one.
        listed = context._jsc.sc().statusStore().executorList(True)
        executors = [listed.apply(n) for n in range(listed.size())]
        registered = [executor.totalCores() for executor in executors if executor.id() != "driver"]
        cores = max(registered, default=context.defaultParallelism)
    return max(1, int(cores or 1) // max(1, int(conf.get("spark.task.cpus", "1") or 1)))


def expected_slots(properties: Callable[[], Mapping[str, str]], work_bytes: int) -> int:
    """How many tasks of a job that reads a number of bytes would run at once, at least one; nothing is started.

    Under dynamic allocation all executors count that may be allocated. `properties` returns Spark's configuration, and may raise.
    """
    if work_bytes <= _own_rewrite_bytes(LIMITS):
        return thread_workers().slots
    return _slots_and_master(properties)[0]


def _slots_and_master(properties: Callable[[], Mapping[str, str]]) -> tuple[int, str]:
    """As `expected_slots`, of the session that runs or would be started, and its master."""
    configured: Mapping[str, str] = {}
    running, context = 0, running_context()
    # A session that is ending may raise anything, and an estimate is not worth an error.
    with suppress(Exception):
        if context is not None:
            running = int(context.defaultParallelism)
            configured = {"spark.master": context.master, **dict(context.getConf().getAll())}
        else:
            configured = properties()
    return max(running, configured_slots(configured)), configured.get("spark.master", "local[*]")


class Turns:
    """A first-in-first-out semaphore for tasks that rewrite files in threads.

    Groups of a run go side by side, and so may runs over several tables in one process. Each counts its tasks as if it were
    alone, by the processors and the memory of this process; all together must not take more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._busy = 0

    @contextmanager
    def taken(self, count: int, most: int) -> Iterator[None]:
        """Wait until a block that keeps `count` threads busy may run; one with more than `most` runs alone."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is turn and self._busy + count <= max(most, count))
                self._busy += count
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy -= count
                self._changed.notify_all()


TURNS = Turns()
"""The turns of this process."""


def in_turns(
    work: Callable[[P, S], R], workers: Workers, count: Callable[[P], int] = lambda _: 1
) -> Callable[[P, S], R]:
    """The same work for `run_tasks`; in threads, a payload that keeps `count` of them busy waits for its turn."""
    if workers.spark is not None:
        return work

    def done(payload: P, shared: S) -> R:
        with TURNS.taken(count(payload), workers.slots):
            return work(payload, shared)

    return done


class TaskSize(msgspec.Struct, frozen=True):
    """The amount of work of a task: `least` is worth its start, `most` is enough for any."""

    least: int
    most: int


MANIFEST_BYTES = TaskSize(4 * MIB, 32 * MIB)  # stored, that are decoded: some 70,000 to 500,000 entries
FILTERED_MANIFEST_BYTES = TaskSize(MIB // 2, 8 * MIB)  # where each entry is an object, as in a commit
LIST_ROWS = TaskSize(1_000_000, 8_000_000)  # of manifest lists, and the equivalent of opening them
NEW_MANIFESTS = TaskSize(8, 16)  # of a range of keys; enough that the last one, which is cut short, matters little
MATCHED_FILES = TaskSize(20_000, 100_000)  # data files, with the delete files that reach them
LISTED_FILES = TaskSize(20_000, 100_000)
DESCRIBED_FILES = TaskSize(5_000, 50_000)  # of groups, each with its metadata for a commit
SHUFFLED_KEYS = TaskSize(100_000, 1_000_000)  # rows of a partition: a key, and at most a location beside it
DATA_BYTES = TaskSize(16 * MIB, 128 * MIB)  # of data files that are read


def tasks_count(spark: "SparkSession", total: float, amount: TaskSize, *, a_slot: int = 1, beside: float = 0) -> int:
    """The number of tasks for some work, at least one.

    Args:
        total: all of the work, in the unit of `amount`.
        a_slot: as for `small_tasks`.
        beside: what each task reads in any case, in the same unit; its own work is at least as much.
    """
    least, most = max(amount.least, beside), max(amount.most, beside)
    return max(1, int(-(-total // most)), min(small_tasks(spark, a_slot=a_slot), int(total // least)))


def small_tasks(spark: "SparkSession", *, a_slot: int = 1) -> int:
    """How many tasks may be small; on a local master `a_slot` for each slot, more than one where times vary."""
    context = spark.sparkContext
    if context.getConf().get("spark.default.parallelism") is not None:
        return context.defaultParallelism
    return a_slot * context.defaultParallelism if is_local(spark) else 100


def warn_of_memory(workers: Workers, task_bytes: int, listener: Listener) -> None:
    """Warn before work starts whose tasks may take `task_bytes` each; costs a call to the driver, and no Spark job."""
    if workers.spark is None:
        return
    context = workers.spark.sparkContext
    memory = python_memory(dict(context.getConf().getAll()), context.master)
    problem = shortage(memory, workers.process_slots, task_bytes)
    if problem is not None:
        listener.on(Warned(problem))
