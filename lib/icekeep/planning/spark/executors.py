"""Questions to the executors of a session: each is asked by several tasks a slot, so that hardly one is left out by chance."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from icekeep.errors import IcekeepError
from icekeep.formats.memory import task_memory_bytes
from icekeep.planning.spark import process
from icekeep.planning.spark.failures import translated
from icekeep.planning.spark.process import described_in_task, described_process
from icekeep.planning.spark.slots import parallelism
from icekeep.planning.spark.steps import described, in_spark
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.runtime import SYSTEM
from icekeep.storage.base import Storage

_TASKS_A_SLOT = 3
_TASK_MS = 200
"""A task ends no sooner, lest one executor does the tasks of all."""


class ExecutorSeen(msgspec.Struct, frozen=True):
    """What an executor says that has icekeep.

    Attributes:
        now_ms: its clock, epoch milliseconds.
        memory_bytes: of its container, or else of its machine.
        problems: why it cannot reach each place that it was asked about; empty where it can.
    """

    host: str
    now_ms: int
    memory_bytes: int
    problems: tuple[str, ...]


def executor_processes(spark: SparkSession, packages: Sequence[str], step: str) -> list[dict[str, Any]]:
    """What each executor's Python is and has, as `described_process` says it; executors need nothing of ours for that.

    Raises:
        JobFailedError: Spark cannot run Python there, such as where it is of another version than the driver's.
    """
    context, count = spark.sparkContext, _tasks_count(spark)
    work = partial(described_in_task, tuple(packages), _TASK_MS / 1000)
    with described(step), translated(), by_value():
        found = in_spark(spark, context.parallelize(range(count), count).mapPartitions(work).collect)
    return list({(one["host"], one["above"]): one for one in found}.values())


def executors_seen(spark: SparkSession, places: Sequence[tuple[Storage, str]], step: str) -> list[ExecutorSeen]:
    """What executors that have icekeep say, and whether they reach places; an answer a task; raises as tasks do."""
    return all_results(run_tasks(spark, range(_tasks_count(spark)), _seen, tuple(places), step=step))


@contextmanager
def by_value() -> Iterator[None]:
    """While the block lasts, what travels to executors brings the functions of `process` along: there they cannot be imported."""
    cloudpickle.register_pickle_by_value(process)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(process)


def _seen(_: int, places: tuple[tuple[Storage, str], ...]) -> ExecutorSeen:
    now_ms = SYSTEM.now_ms()
    problems = tuple(_problem(storage, location) for storage, location in places)
    SYSTEM.sleep_ms(_TASK_MS)
    return ExecutorSeen(described_process(())["host"], now_ms, task_memory_bytes(1), problems)


def _problem(storage: Storage, location: str) -> str:
    """Why a location cannot be looked at; whether something is there does not matter."""
    try:
        storage.head(location)
    except IcekeepError as error:
        return error.message
    return ""


def _tasks_count(spark: SparkSession) -> int:
    return parallelism(spark) * _TASKS_A_SLOT
