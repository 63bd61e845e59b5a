"""Work of a run side by side, in Spark or here: each result comes back as it is there; what nobody saw leaves nothing behind."""

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from icekeep.planning.spark.jobs import inherited

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Done = TypeVar("Done")


_BETWEEN_CANCELS_SECONDS = 0.5


class _Ended(msgspec.Struct, frozen=True):
    """An item has no more results, because of an error if there is one."""

    error: BaseException | None


class _Result(msgspec.Struct, Generic[Done], frozen=True):
    done: Done


_Arrived: TypeAlias = SimpleQueue[_Result[Done] | _Ended]


def side_by_side(
    items: Sequence[Item],
    work: Callable[[Item], Generator[Done, None, None]],
    spark: "SparkSession | None",
    *,
    tag: str,
    concurrency: int,
    stop: Callable[[], object],
    undo: Callable[[Done], object],
) -> Generator[Done, None, None]:
    """Do some work for each item, at most `concurrency` at a time, and yield what comes of it.

    When the caller stops early, items that have not begun are dropped and the jobs of running ones are cancelled.

    Args:
        work: runs in a thread of its own, with the session's local properties, as a part of the run.
        tag: of all its Spark jobs; no other run has it.
        stop: makes work that is under way end soon, beside cancelling its Spark jobs.
        undo: removes a result that was not yielded.
    """
    arrived: _Arrived[Done] = SimpleQueue()
    is_over = threading.Event()

    feed = partial(_feed, work, arrived, is_over, None if spark is None else partial(spark.sparkContext.addJobTag, tag))
    target = inherited(spark, feed)
    pool = ThreadPoolExecutor(max(1, min(concurrency, len(items))), thread_name_prefix="group")
    left = len(items)
    futures: list[Future[None]] = []
    try:
        for item in items:
            future = pool.submit(target, item)
            futures.append(future)
            future.add_done_callback(partial(_told, arrived))
        while left:
            one = arrived.get()
            if isinstance(one, _Result):
                yield one.done
                continue
            left -= 1
            if one.error is not None:
                raise one.error
    finally:
        if left:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            # Again and again: work that was between two Spark jobs begins the next one.
            while spark is not None and (running := [future for future in futures if not future.done()]):
                # The JVM may be gone.
                with suppress(Exception):
                    spark.sparkContext.cancelJobsWithTag(tag)
                wait(running, _BETWEEN_CANCELS_SECONDS)
        pool.shutdown(wait=True)
        while not arrived.empty():
            unseen = arrived.get()
            if isinstance(unseen, _Result):
                undo(unseen.done)


def told(
    results: Generator[Done, None, None], tell: Callable[[Done], object], undo: Callable[[Done], object]
) -> Generator[Done, None, None]:
    """The same results, each told of before it is yielded. One at which `tell` raises is undone: nobody else has it by then."""
    with closing(results):
        for one in results:
            try:
                tell(one)
            except BaseException:
                undo(one)
                raise
            yield one


def _feed(
    work: Callable[[Item], Generator[Done, None, None]],
    arrived: "_Arrived[Done]",
    is_over: threading.Event,
    begin: Callable[[], None] | None,
    item: Item,
) -> None:
    """Hand on what comes of an item, until the caller has enough; in a thread of its own."""
    if begin is not None:
        begin()
    with closing(work(item)) as results:
        for done in results:
            arrived.put(_Result(done))
            if is_over.is_set():
                break


def _told(arrived: "_Arrived[Done]", future: "Future[None]") -> None:
    """Hand on that an item has ended, be it before its work began, as where the JVM is gone."""
    if not future.cancelled():
        arrived.put(_Ended(future.exception()))
