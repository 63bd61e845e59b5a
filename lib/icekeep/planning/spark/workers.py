"""Who does the tasks of a run that rewrites files: threads of this process where the work is little, else Spark.

To start Spark takes longer than to rewrite some gigabytes. Who runs under `spark-submit`, or has started a session of a cluster,
has a JVM, and asks for more than one machine: what would be done before the first executor is there is still done here. Who
gives a session has its workers: on this machine, what these would not do faster is still done here.
"""

import os
from typing import TYPE_CHECKING

import msgspec

from icekeep.formats.memory import task_memory_bytes
from icekeep.formats.processors import processors_count
from icekeep.planning.spark.conf import SUBMITTED_VARIABLE
from icekeep.planning.spark.lazily import running_context
from icekeep.planning.spark.limits import LIMITS, Limits
from icekeep.planning.spark.slots import executor_slots, is_local, is_local_master, is_running_on_cluster, parallelism
from icekeep.planning.spark.source import SparkSource, is_started, limits_of, started
from icekeep.spec.units import GIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREAD_BYTES = GIB
"""What a thread that rewrites files has of the memory of this process or its container: with it row groups of the usual size
are read and written whole (`formats/memory.py`). A thread took 0.6 GB for a file of 150 MB of lineitem."""


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
