"""What travels between the driver and tasks: what all tasks share, payloads, answers and errors."""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepError
from icekeep.formats.arrow.memory_pool import choose_pool
from icekeep.formats.arrow.without_pandas import leave_pandas_out
from icekeep.planning.slow_reads import SlowReads, add_slow_reads, slow_reads, slow_reads_since
from icekeep.planning.spark.failures import known_error
from icekeep.planning.spark.slots import is_tried_again
from icekeep.storage.last_read import forget_reads

if TYPE_CHECKING:
    from pyspark import SparkContext

P = TypeVar("P")
R = TypeVar("R")

OWN_WORKER_VARIABLE = "ICEKEEP_OWN_WORKER"
"""An environment variable of Python workers that do tasks of a command alone."""

_MAX_CLOSURE_BYTES = 256 << 10


class Answer(msgspec.Struct, frozen=True):
    """What came of one payload: a result, or an error of ours; and the files that were read in the slow way meanwhile."""

    result: Any = None
    error: IcekeepError | None = None
    slow_reads: SlowReads = SlowReads()


class Arrivals:
    """Answers on their way to the driver (an `AccumulatorParam` of PySpark's).

    Spark hands on those of a task when it has ended well, and once.
    """

    def __init__(self, queue: SimpleQueue[Any] | None = None) -> None:
        self._queue = queue

    def __reduce__(self) -> tuple[type["Arrivals"], tuple[()]]:
        """In a task, where answers wait until it ends."""
        return Arrivals, ()

    def zero(self, value: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        return []

    def addInPlace(self, value1: list[tuple[int, bytes]], value2: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        # Taken once: `close` may come from another thread, and an error here would spoil all accumulators of the session.
        queue = self._queue
        if queue is None:
            return value1 + value2
        for one in value2:
            queue.put(one)
        return value1

    def close(self) -> None:
        """Keep nothing any more: PySpark keeps its accumulators for as long as the process lives."""
        self._queue = None


class Shared:
    """What all tasks of a Spark job share: in their closure where it is small, else broadcast, so that a worker reads it once."""

    def __init__(self, pickled: bytes | None, broadcast: Any) -> None:
        self._pickled, self._broadcast = pickled, broadcast

    @classmethod
    def of(cls, shared: Any, context: "SparkContext") -> Self:
        # By value where workers cannot import it, such as a class of a notebook.
        from pyspark import cloudpickle

        pickled = cloudpickle.dumps(shared)
        if len(pickled) <= _MAX_CLOSURE_BYTES:
            return cls(pickled, None)
        return cls(None, context.broadcast(pickled))

    def value(self) -> Any:
        """In a task."""
        return pickle.loads(self._pickled) if self._pickled is not None else _of_broadcast(self._broadcast)

    def forget(self) -> None:
        """On the driver, when no task needs it any more."""
        if self._broadcast is not None:
            self._broadcast.destroy()


@lru_cache(maxsize=1)
def _of_broadcast(broadcast: Any) -> Any:
    """What was broadcast; a worker, which has one object for it, loads it once for all tasks that it does of a job."""
    return pickle.loads(broadcast.value)


def pickled_answer(work: Callable[[P], R], payload: P, max_failures: int) -> bytes:
    """Do a task's work; a failure is raised while Spark would try again, and then reported."""
    before = slow_reads().count
    forget_reads()
    try:
        result = work(payload)
        return pickle.dumps(Answer(result, slow_reads=slow_reads_since(before)))
    except Exception as error:
        if is_tried_again(max_failures):
            raise
        return pickle.dumps(Answer(error=known_error(error, payload), slow_reads=slow_reads_since(before)))


def sorted_out(answers: Iterable[Answer]) -> tuple[list[Any], list[IcekeepError]]:
    """The results and the errors of answers, each in their order; what was read in the slow way is counted here."""
    results, errors = [], []
    for answer in answers:
        add_slow_reads(answer.slow_reads)
        if answer.error is None:
            results.append(answer.result)
        else:
            errors.append(answer.error)
    return results, errors


@contextmanager
def told_of(payload: Any) -> Iterator[None]:
    """Let an error of work on a payload say at which file it was."""
    forget_reads()
    try:
        yield
    except Exception as error:
        known = known_error(error, payload)
        if known is error:
            raise
        raise known from error


def prepare_worker() -> None:
    """Let Arrow take small pages and no threads: a slot of Spark's is one thread, and others would only fight over it.

    A worker that is a command's own needs no pandas; in one of others, PySpark may hand Arrow what is of pandas.
    """
    if OWN_WORKER_VARIABLE in os.environ:
        leave_pandas_out()
    choose_pool()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
