"""Who does the tasks of a run that rewrites files: threads of this process where the work is little, else Spark.

To start Spark takes longer than to rewrite some gigabytes. Who gives a session, or runs under `spark-submit`, has it already.
"""

import os

import msgspec
from pyspark.sql import SparkSession

from icekeep.planning.spark.session import SUBMITTED_VARIABLE
from icekeep.planning.spark.source import SparkSource, started
from icekeep.planning.spark.tasks import executor_slots, is_local, parallelism

THREADS_MAX_BYTES = 2 << 30
"""Up to so many bytes of files are rewritten here, where there is no session yet."""


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Who does tasks.

    Attributes:
        spark: `None` for threads of this process.
        slots: how many tasks run at once.
        process_slots: how many of these share the memory of one executor, or of this process.
        is_local: whether all run on this machine.
    """

    spark: SparkSession | None
    slots: int
    process_slots: int
    is_local: bool


def chosen_workers(source: SparkSource, work_bytes: float) -> Workers:
    """Who reads and writes files of so many bytes."""
    if isinstance(source, SparkSession) or SUBMITTED_VARIABLE in os.environ or work_bytes > THREADS_MAX_BYTES:
        return spark_workers(started(source))
    return thread_workers()


def thread_workers() -> Workers:
    """Threads of this process, one for each of its processors."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Workers(spark=None, slots=threads, process_slots=threads, is_local=True)


def spark_workers(session: SparkSession) -> Workers:
    """The executors of a session."""
    own, local = executor_slots(session), is_local(session)
    # What an operator says of a session's parallelism puts no more threads on one machine.
    slots = min(own, parallelism(session)) if local else parallelism(session)
    return Workers(spark=session, slots=slots, process_slots=own, is_local=local)
