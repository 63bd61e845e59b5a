"""Who does the tasks of a run that rewrites files: threads of this process where the work is little, else Spark.

To start Spark takes longer than to rewrite some gigabytes. Who gives a session has it already; who runs under `spark-submit` has
a JVM, and asks for a cluster: what would be done before its first executor is there is still done here.
"""

import os

import msgspec
from pyspark.sql import SparkSession

from icekeep.planning.spark.conf import SUBMITTED_VARIABLE
from icekeep.planning.spark.limits import LIMITS, Limits
from icekeep.planning.spark.slots import executor_slots, is_local, parallelism
from icekeep.planning.spark.source import SparkSource, is_started, limits_of, started


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Who does tasks.

    Attributes:
        spark: `None` for threads of this process.
        slots: how many tasks run at once.
        process_slots: how many of these share the memory of one executor, or of this process.
        is_local: whether all run on this machine.
        limits: up to where this process does work by itself.
    """

    spark: SparkSession | None
    slots: int
    process_slots: int
    is_local: bool
    limits: Limits = LIMITS


def chosen_workers(source: SparkSource, work_bytes: float) -> Workers:
    """Who reads and writes files of so many bytes."""
    limits = limits_of(source)
    limit_bytes = limits.submitted_rewrite_bytes if SUBMITTED_VARIABLE in os.environ else limits.rewrite_bytes
    if is_started(source) or work_bytes > limit_bytes:
        return spark_workers(source)
    return thread_workers(limits)


def thread_workers(limits: Limits = LIMITS) -> Workers:
    """Threads of this process, one for each of its processors."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sharing = threads * max(1, limits.sharers_count)
    return Workers(spark=None, slots=threads, process_slots=sharing, is_local=True, limits=limits)


def spark_workers(source: SparkSource) -> Workers:
    """The executors of a session, which is started if it is not yet."""
    session = started(source)
    own, local = executor_slots(session), is_local(session)
    # What an operator says of a session's parallelism puts no more threads on one machine.
    slots = min(own, parallelism(session)) if local else parallelism(session)
    return Workers(spark=session, slots=slots, process_slots=own, is_local=local, limits=limits_of(source))
