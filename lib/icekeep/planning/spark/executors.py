"""Describes Python processes: this one, and the workers of executors, which may lack all our packages.

So the functions that describe a process need only the standard library, and are pickled by value. Several tasks for each slot
ask, so that hardly an executor is missed by chance.
"""

import os
import platform
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import msgspec

from icekeep.errors import IcekeepError
from icekeep.formats.machine import task_memory_bytes
from icekeep.planning.spark.failures import translated
from icekeep.planning.spark.jobs import described, in_spark
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.runtime import SYSTEM
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNKNOWN_VERSION = ""
"""Of a package that can be imported without being installed: from a zip, or from Spark itself."""

_TASKS_A_SLOT = 3
_TASK_MS = 200
"""The least duration of a task in milliseconds: shorter ones might all run on one executor."""


class ExecutorAnswer(msgspec.Struct, frozen=True):
    """The answer of an executor that has icekeep.

    Attributes:
        now_ms: its clock, epoch milliseconds.
        memory_bytes: of its container, or else of its machine.
        problems: for each place why it cannot be reached, or an empty text.
    """

    host: str
    now_ms: int
    memory_bytes: int
    problems: tuple[str, ...]


def executor_processes(spark: "SparkSession", packages: Sequence[str], step: str) -> list[dict[str, Any]]:
    """The `described_process` of each executor's Python; executors need none of our packages.

    Raises `JobFailedError` where Spark cannot run Python there, such as for another version than the driver's.
    """
    context, count = spark.sparkContext, spark.sparkContext.defaultParallelism * _TASKS_A_SLOT
    work = partial(described_in_task, tuple(packages), _TASK_MS / 1000)
    with described(step), translated(), by_value():
        answers = in_spark(spark, context.parallelize(range(count), count).mapPartitions(work).collect)
    return list({(one["host"], one["above"]): one for one in answers}.values())


def executor_answers(spark: "SparkSession", places: Sequence[tuple[Storage, str]], step: str) -> list[ExecutorAnswer]:
    """The answers of executors that have icekeep, one a task, and whether they reach places; raises as tasks do."""
    return all_results(
        run_tasks(
            spark, range(spark.sparkContext.defaultParallelism * _TASKS_A_SLOT), _answered, tuple(places), step=step
        )
    )


def _answered(_: int, places: tuple[tuple[Storage, str], ...]) -> ExecutorAnswer:
    now_ms, problems = SYSTEM.now_ms(), []
    for storage, location in places:
        problem = ""
        # Whether the file exists does not matter.
        try:
            storage.head(location)
        except IcekeepError as error:
            problem = error.message
        problems.append(problem)
    SYSTEM.sleep_ms(_TASK_MS)
    return ExecutorAnswer(socket.gethostname(), now_ms, task_memory_bytes(1), tuple(problems))


@contextmanager
def by_value() -> Iterator[None]:
    """In the block, functions of this module are pickled by value: executors do not import it."""
    from pyspark import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def described_in_task(packages: Sequence[str], seconds: float, _: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The process of a task, which lasts for some seconds so that other tasks go elsewhere."""
    yield described_process(packages)
    threading.Event().wait(seconds)


def described_process(packages: Sequence[str]) -> dict[str, Any]:
    """This process: its host, parent process, Python, and the version of each package, `None` where it is missing.

    The workers of one executor have the same parent process.
    """
    return {
        "host": socket.gethostname(),
        "above": os.getppid(),
        "python": platform.python_version(),
        "packages": {package: installed_version(package) for package in packages},
    }


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        pass
    try:
        module = import_module(package.replace("-", "_"))
        return str(module.__version__)
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 - it exists, without a version
        return UNKNOWN_VERSION
