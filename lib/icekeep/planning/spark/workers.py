"""What does tasks, how many at once, and with how much memory: threads of this process where the work is little, else Spark.

To start Spark takes longer than to rewrite some gigabytes. Under `spark-submit`, or with a session of a cluster, there is a JVM,
and more than one machine was asked for: what would be done before the first executor is there is still done here. A session that
is given has its workers: on this machine, what these would not do faster is still done here.

Work is cut by its amount, and the scheduler finds the slots. How many cores are registered says nothing of that: under dynamic
allocation there are two when a run begins, and hundreds when it is under way. Little work is cut finely, as long as a task is
worth its start; much work coarsely, since each task costs milliseconds, and memory of the driver for what it answers.

What operators set keeps its meaning. `spark.default.parallelism` is how many tasks may be small, 100 where it is not set; it
makes no task larger than it may be, nor so small that its start takes longer than its work. On a local master, whose slots never
change, it is the number of these. `spark.sql.shuffle.partitions` is for the joins and aggregations that Spark divides by itself.
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
from icekeep.planning.spark.session import (
    LIMITS,
    SUBMITTED_VARIABLE,
    Limits,
    SparkSource,
    is_started,
    limits_of,
    live_properties,
    running_context,
    started,
    task_context,
)
from icekeep.spec.types import GIB, MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")

THREAD_BYTES = GIB
"""What a thread that rewrites files has of the memory of this process or its container: with it row groups of the usual size
are read and written whole (`formats/machine.py`). A thread took 0.6 GB for a file of 150 MB of lineitem."""


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """What does tasks.

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
    """The workers that open a number of files, and read and write a number of bytes.

    Executors of a cluster get all that a session was given for, since they have memory, try a failed task again, and stop where
    Spark is told to stop.
    """
    limits = limits_of(source)
    if not is_started(source):
        # The JVM of spark-submit, or a session that runs, may have executors beside the driver.
        if work_bytes > _own_rewrite_bytes(limits) or (files_count > limits.waiting_files_count and _has_executors()):
            return spark_workers(source)
        return thread_workers(limits)
    given = spark_workers(source)
    if not given.is_local or work_bytes > limits.session_rewrite_bytes or files_count > limits.waiting_files_count:
        return given
    threads = thread_workers(limits)
    slots = min(threads.slots, given.slots)
    return msgspec.structs.replace(threads, slots=slots, process_slots=slots)


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


def _own_rewrite_bytes(limits: Limits) -> int:
    """Up to how many bytes this process rewrites by itself where no session is given."""
    asked_for_more = SUBMITTED_VARIABLE in os.environ or is_running_on_cluster()
    return limits.submitted_rewrite_bytes if asked_for_more else limits.rewrite_bytes


def _has_executors() -> bool:
    if running_context() is not None:
        return is_running_on_cluster()
    return SUBMITTED_VARIABLE in os.environ and not is_local_master(live_properties().get("spark.master", ""))


def is_running_on_cluster() -> bool:
    """Whether this process has a Spark session whose tasks run on other machines."""
    context = running_context()
    return context is not None and not is_local_master(context.master)


def is_local(spark: "SparkSession") -> bool:
    """Whether all tasks run in one process of Spark, on this machine."""
    return is_local_master(spark.sparkContext.master)


def is_local_master(master: str) -> bool:
    """Whether a master is Spark itself, in one process on this machine."""
    return master.startswith("local") and not master.startswith("local-cluster")


def _local_slots(master: str, processors: Callable[[], int]) -> int:
    threads = re.match(r"local\[\s*(\*|\d+)", master)
    return 1 if threads is None else processors() if threads[1] == "*" else max(1, int(threads[1]))


def parallelism(spark: "SparkSession") -> int:
    """How many tasks the session runs at once, on all executors together, or what `spark.default.parallelism` says."""
    return int(spark.sparkContext.defaultParallelism)


def executor_slots(spark: "SparkSession") -> int:
    """How many tasks share one executor, and so its memory; with a local master all that run at once.

    It is `spark.executor.cores` by `spark.task.cpus`. Where the former is not set an executor has what the master gives it: all
    cores of its worker on a standalone cluster, one on YARN and Kubernetes.
    """
    context = spark.sparkContext
    conf = context.getConf()
    cores = conf.get("spark.executor.cores")
    if is_local(spark):
        # The processors that the JVM sees, which heeds a container's limit.
        cores = _local_slots(
            context.master, lambda: int(context._jvm.java.lang.Runtime.getRuntime().availableProcessors())
        )
    elif cores is None and (workers := re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)", context.master)):
        cores = workers[1]
    elif cores is None and context.master.startswith("spark://"):
        # Nothing public of Spark tells it. The driver is no executor; where none has come yet all slots may be on one.
        listed = context._jsc.sc().statusStore().executorList(True)
        executors = [listed.apply(n) for n in range(listed.size())]
        registered = [executor.totalCores() for executor in executors if executor.id() != "driver"]
        cores = max(registered, default=context.defaultParallelism)
    return max(1, int(cores or 1) // max(1, int(conf.get("spark.task.cpus", "1") or 1)))


def configured_slots(properties: Mapping[str, str]) -> int:
    """How many tasks a session of this configuration runs at once, once all its executors are there; 1 where it does not say.

    >>> configured_slots({"spark.master": "yarn", "spark.executor.instances": "8", "spark.executor.cores": "4"})
    32
    """

    def number(key: str) -> int:
        text = properties.get(key, "").strip()
        return int(text) if text.isdecimal() else 1

    master = properties.get("spark.master", "local[*]")
    if is_local_master(master):
        return _local_slots(master, processors_count)
    executors, cpus = number("spark.executor.instances"), max(1, number("spark.task.cpus"))
    if properties.get("spark.dynamicAllocation.enabled", "").lower() == "true":
        executors = max(executors, number("spark.dynamicAllocation.maxExecutors"))
    return max(1, executors * (number("spark.executor.cores") // cpus), number("spark.cores.max") // cpus)


def expected_slots(properties: Callable[[], Mapping[str, str]], work_bytes: int) -> int:
    """How many tasks of a job that reads a number of bytes would run at once, at least one; nothing is started.

    Where executors come and go as they are needed, it is as many as may come. `properties` gives Spark's configuration, and may
    raise whatever the JVM raises.
    """
    if work_bytes <= _own_rewrite_bytes(LIMITS):
        return thread_workers().slots
    configured: Mapping[str, str] = {}
    running, context = 0, running_context()
    # A session that is about to end answers with whatever it likes, and an estimate is worth no error.
    with suppress(Exception):
        if context is not None:
            running = int(context.defaultParallelism)
            configured = {"spark.master": context.master, **dict(context.getConf().getAll())}
        else:
            configured = properties()
    return max(running, configured_slots(configured))


def max_task_failures(spark: "SparkSession") -> int:
    """How often Spark tries a task; once on a local master, unless it is written `local[N,F]`."""
    if is_local(spark):
        tries = re.fullmatch(r"local\[[^,]*,\s*(\d+)\]", spark.sparkContext.master)
        return int(tries[1]) if tries else 1
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4"))


def is_speculative(spark: "SparkSession") -> bool:
    """Whether Spark makes a second attempt at a slow task beside the first (`spark.speculation`)."""
    return spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true"


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


class Turns:
    """Turns of tasks that rewrite files in threads, first come first served, however much a task takes.

    Groups of a run go side by side, and so may runs over several tables in one process. Each counts its tasks as if it were
    alone, by the processors and the memory of this process; of all together no more go at once than have memory.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._busy = 0

    @contextmanager
    def taken(self, count: int, most: int) -> Iterator[None]:
        """Let a block that keeps `count` threads busy run when its turn has come; one of more than `most` goes alone."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is me and self._busy + count <= max(most, count))
                self._busy += count
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy -= count
                self._changed.notify_all()


TURNS = Turns()
"""Of this process."""


def in_turns(
    work: Callable[[P, S], R], workers: Workers, count: Callable[[P], int] = lambda _: 1
) -> Callable[[P, S], R]:
    """The same work for `run_tasks`; in threads of this process a payload, which keeps `count` of them busy, waits its turn."""
    if workers.spark is not None:
        return work

    def done(payload: P, shared: S) -> R:
        with TURNS.taken(count(payload), workers.slots):
            return work(payload, shared)

    return done


class TaskSize(msgspec.Struct, frozen=True):
    """What a task gets of some work: `least` is worth its start, `most` is enough for any."""

    least: int
    most: int


MANIFEST_BYTES = TaskSize(4 * MIB, 32 * MIB)  # stored, that are decoded: some 70,000 to 500,000 entries
FILTERED_MANIFEST_BYTES = TaskSize(MIB // 2, 8 * MIB)  # the same where each entry is an object, as in a commit
LIST_ROWS = TaskSize(1_000_000, 8_000_000)  # of manifest lists, and what opening them counts for in rows
NEW_MANIFESTS = TaskSize(8, 16)  # of a range of keys; enough that the last one, which is cut short, matters little
MATCHED_FILES = TaskSize(20_000, 100_000)  # data files, with the delete files that reach them
LISTED_FILES = TaskSize(20_000, 100_000)
DESCRIBED_FILES = TaskSize(5_000, 50_000)  # of groups, each with what a commit must know of it
SHUFFLED_KEYS = TaskSize(100_000, 1_000_000)  # rows of a partition: a key, and at most a location beside it
DATA_BYTES = TaskSize(16 * MIB, 128 * MIB)  # of data files that are read


def tasks_count(spark: "SparkSession", total: float, amount: TaskSize, *, a_slot: int = 1, beside: float = 0) -> int:
    """Into how many tasks work is cut, at least one.

    Args:
        total: all of the work, in the unit of `amount`.
        a_slot: as for `small_tasks`.
        beside: what each task reads in any case, in the same unit: of its own it gets at least that much.
    """
    least, most = max(amount.least, beside), max(amount.most, beside)
    return max(1, int(-(-total // most)), min(small_tasks(spark, a_slot=a_slot), int(total // least)))


def small_tasks(spark: "SparkSession", *, a_slot: int = 1) -> int:
    """How many tasks may be small; on a local master `a_slot` for each slot, several where equal amounts take unequal times."""
    if spark.sparkContext.getConf().get("spark.default.parallelism") is not None:
        return parallelism(spark)
    return a_slot * parallelism(spark) if is_local(spark) else 100


PYTHON_MEMORY = "spark.executor.pyspark.memory"
_OVERHEAD = "spark.executor.memoryOverhead"
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "": MIB, "m": MIB, "g": GIB, "t": GIB << 10, "p": GIB << 20}


class PythonMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the Python workers of an executor may take together.

    Attributes:
        available_bytes: `None` where no setting limits it.
        jvm_bytes: what the JVM needs of the setting beside them.
        setting: which setting says so.
    """

    available_bytes: int | None
    jvm_bytes: int = 0
    setting: str = _OVERHEAD


def size_bytes(text: str) -> int | None:
    """A size as Spark reads it for memory, in MiB where it has no unit; `None` for what is no size.

    >>> size_bytes("2g") == size_bytes("2048") == size_bytes("2048MB")
    True
    """
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def heap_bytes(properties: Mapping[str, str], *, is_driver: bool = False) -> int:
    """How large the heap of an executor's JVM may grow, or of the driver's."""
    return size_bytes(properties.get("spark.driver.memory" if is_driver else "spark.executor.memory", "")) or GIB


def python_memory(properties: Mapping[str, str], master: str) -> PythonMemory:
    """What Spark's settings leave to the Python workers of an executor.

    On YARN and Kubernetes an executor is a container with a limit. Its JVM takes `spark.executor.memory`; its Python workers
    take what else there is, `spark.executor.memoryOverhead`, of which the JVM needs a part, or `spark.executor.pyspark.memory`,
    if that is set. An executor that takes more is killed. Elsewhere the machine is the limit.
    """
    manager = master.partition(":")[0].partition("[")[0]
    if manager not in ("yarn", "k8s"):
        return PythonMemory(available_bytes=None)
    given = size_bytes(properties.get(PYTHON_MEMORY, ""))
    if given:
        return PythonMemory(available_bytes=given, setting=PYTHON_MEMORY)
    factor = 0.4 if manager == "k8s" else 0.1
    # Spark itself refuses what is no number.
    with suppress(ValueError):
        factor = float(properties.get("spark.executor.memoryOverheadFactor", factor))
    heap = heap_bytes(properties)
    least = size_bytes(properties.get("spark.executor.minMemoryOverhead", "")) or 384 * MIB
    jvm_bytes = max(least, int(heap * 0.1))
    overhead_bytes = size_bytes(properties.get(_OVERHEAD, "")) or max(least, int(heap * factor))
    return PythonMemory(available_bytes=max(0, overhead_bytes - jvm_bytes), jvm_bytes=jvm_bytes)


def shortage(memory: PythonMemory, slots: int, task_bytes: int) -> str | None:
    """What is wrong and what to set, in one line, where `slots` tasks may take more than they have; else `None`."""
    needed_bytes = slots * task_bytes
    if memory.available_bytes is None or memory.available_bytes >= needed_bytes:
        return None
    setting = f"{memory.setting}={-(-(needed_bytes + memory.jvm_bytes) // GIB)}g"
    return (
        f"the {slots} Python tasks that share an executor may take {task_bytes // MIB:,} MiB each, and {memory.setting} leaves "
        f"them {memory.available_bytes // MIB:,} MiB together: an executor that takes more is killed; set {setting}, or let "
        "fewer tasks share an executor (spark.executor.cores)"
    )


def warn_of_memory(workers: Workers, task_bytes: int, listener: Listener) -> None:
    """Warn before work starts whose tasks may take that much each; costs a question to the driver, and no Spark job."""
    if workers.spark is None:
        return
    context = workers.spark.sparkContext
    memory = python_memory(dict(context.getConf().getAll()), context.master)
    problem = shortage(memory, workers.process_slots, task_bytes)
    if problem is not None:
        listener.on(Warned(problem))
