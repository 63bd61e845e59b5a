"""Groups of a run side by side, in Spark or here: each comes back as it is finished; what nobody saw leaves nothing behind."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from pyspark.sql import SparkSession

from icekeep.planning.spark.steps import inherited

Group = TypeVar("Group")
Done = TypeVar("Done")


def side_by_side(
    groups: Iterable[Group],
    work: Callable[[Group], Done],
    spark: SparkSession | None,
    *,
    tag: str,
    concurrency: int,
    stop: Callable[[], object],
    undo: Callable[[Done], object],
) -> Generator[Done, None, None]:
    """Do some work for each group, at most `concurrency` at a time, and yield what comes of it.

    When the caller stops early, groups that have not begun are dropped and the jobs of running ones are cancelled.

    Args:
        work: runs in a thread of its own, with the session's local properties, as a part of the run.
        tag: of all its Spark jobs; no other run has it.
        stop: makes work that is under way end soon, beside cancelling its Spark jobs.
        undo: removes what came of a group that was not yielded.
    """
    target = work if spark is None else _tagged(work, spark, tag)
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
            stop()
            if spark is not None:
                spark.sparkContext.cancelJobsWithTag(tag)
        pool.shutdown(wait=True)
        for future in unseen:
            if not future.cancelled() and future.exception() is None:
                undo(future.result())


def _tagged(work: Callable[[Group], Done], spark: SparkSession, tag: str) -> Callable[[Group], Done]:
    def run(group: Group) -> Done:
        spark.sparkContext.addJobTag(tag)
        return work(group)

    return inherited(spark, run)
