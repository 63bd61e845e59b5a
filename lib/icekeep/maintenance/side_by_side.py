"""Groups of a run as Spark jobs side by side: each comes back as it is finished, and of what nobody saw nothing is left."""

import re
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from icekeep.errors import JobFailedError

Group = TypeVar("Group")
Done = TypeVar("Done")

_PYTHON_ERROR = re.compile(r"\w+(Error|Exception): ")


def side_by_side(
    groups: Iterable[Group],
    work: Callable[[Group], Done],
    spark: SparkSession,
    *,
    tag: str,
    concurrency: int,
    undo: Callable[[Done], object],
) -> Generator[Done, None, None]:
    """Do some work for each group, at most `concurrency` at a time, and yield what comes of it.

    When the caller stops early, groups that have not begun are dropped and the jobs of running ones are cancelled.

    Args:
        work: runs in a thread of its own, with the session's local properties.
        tag: of all its Spark jobs; no other run has it.
        undo: removes what came of a group that was not yielded.
    """

    def run(group: Group) -> Done:
        spark.sparkContext.addJobTag(tag)
        return work(group)

    target = inheritable_thread_target(spark)(run)
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="group")
    unseen: set[Future[Done]] = set()
    try:
        unseen = {pool.submit(target, group) for group in groups}
        while unseen:
            for future in wait(unseen, return_when=FIRST_COMPLETED).done:
                done = future.result()
                unseen.remove(future)
                yield done
    finally:
        if unseen:
            pool.shutdown(wait=False, cancel_futures=True)
            spark.sparkContext.cancelJobsWithTag(tag)
        pool.shutdown(wait=True)
        for future in unseen:
            if not future.cancelled() and future.exception() is None:
                undo(future.result())


def spark_failed(error: Exception) -> JobFailedError:
    """The error for work that failed by none of ours: a lost executor, or a worker without our packages."""
    failed = JobFailedError(f"Spark failed: {_mentioned(error)}")
    failed.__cause__ = error
    return failed


def _mentioned(error: Exception) -> str:
    """The line of an error that says most: the last Python error in what Spark tells, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _PYTHON_ERROR.match(line)), lines[0] if lines else repr(error))
