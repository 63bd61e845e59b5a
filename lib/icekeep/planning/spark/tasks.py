"""Runs a function over payloads, in Spark tasks or in threads of this process.

Paths and descriptions cross between the JVM and Python, rows of data do not. A payload travels to its task only; a shared value
travels once; each task returns an answer, which is a result or an error.
"""

import os
import pickle
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from operator import itemgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepBug, IcekeepError, JobFailedError
from icekeep.formats.machine import choose_pool, leave_pandas_out
from icekeep.planning.decoder import SlowReads, add_slow_reads, slow_reads
from icekeep.planning.spark.failures import known_error, spark_failed, translated
from icekeep.planning.spark.jobs import SparkAction, described, in_spark
from icekeep.planning.spark.rows import arrow_dataframe, collected, hash_keys
from icekeep.planning.spark.session import from_arrow_schema, task_context
from icekeep.planning.spark.workers import is_local
from icekeep.storage.open import forget_reads

if TYPE_CHECKING:
    from pyspark import RDD, Accumulator, SparkContext
    from pyspark.sql import DataFrame, SparkSession

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")
V = TypeVar("V")

OWN_WORKER_VARIABLE = "ICEKEEP_OWN_WORKER"
"""An environment variable of Python workers that belong to a command alone."""

_MAX_CLOSURE_BYTES = 256 << 10
_PAYLOADS = pa.schema([pa.field("key", pa.int32(), nullable=False), pa.field("payload", pa.binary(), nullable=False)])
_ANSWERS = pa.schema([("answer", pa.binary())])


class TaskAnswer(msgspec.Struct, frozen=True):
    """The result of one payload, or an error of ours; and the files that were read in the slow way meanwhile."""

    result: Any = None
    error: IcekeepError | None = None
    slow_reads: SlowReads = SlowReads()


class SharedValue:
    """A value that all tasks of a Spark job share: in their closure where it is small, else broadcast."""

    def __init__(self, value: Any, context: "SparkContext") -> None:
        # cloudpickle, since workers cannot import everything, such as a class of a notebook.
        from pyspark import cloudpickle

        pickled = cloudpickle.dumps(value)
        is_small = len(pickled) <= _MAX_CLOSURE_BYTES
        self._pickled = pickled if is_small else None
        self._broadcast: Any = None if is_small else context.broadcast(pickled)

    def value(self) -> Any:
        return pickle.loads(self._pickled) if self._pickled is not None else _unpickled(self._broadcast)

    def forget(self) -> None:
        """Free the broadcast; to be called on the driver, when no task needs it any more."""
        if self._broadcast is not None:
            self._broadcast.destroy()


@lru_cache(maxsize=1)
def _unpickled(broadcast: Any) -> Any:
    """A worker has one object for a broadcast, and so unpickles it once for all its tasks of a job."""
    return pickle.loads(broadcast.value)


class Arrivals:
    """An `AccumulatorParam` of PySpark's that passes answers to a queue on the driver.

    Spark delivers those of a task once, when it has succeeded.
    """

    def __init__(self, queue: SimpleQueue[Any] | None = None) -> None:
        self._queue = queue

    def __reduce__(self) -> tuple[type["Arrivals"], tuple[()]]:
        # In a task answers wait until it ends.
        return Arrivals, ()

    def zero(self, value: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        return []

    def addInPlace(self, value1: list[tuple[int, bytes]], value2: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        # Read once: `close` may be called by another thread, and an error here would break all accumulators of the session.
        queue = self._queue
        if queue is None:
            return value1 + value2
        for one in value2:
            queue.put(one)
        return value1

    def close(self) -> None:
        """Release the queue: PySpark keeps its accumulators for the life of the process."""
        self._queue = None


def run_tasks(
    spark: "SparkSession | None",
    payloads: Sequence[P],
    work: Callable[[P, S], R],
    shared: S,
    *,
    step: str | None = None,
    threads: int = 1,
    stop: Callable[[], object] = lambda: None,
) -> tuple[list[R], list[IcekeepError]]:
    """Work on each payload: in Spark tasks, one for each, or without a session in threads of this process.

    The results of the others survive a task that fails for good, since they name the files that these wrote, which the caller
    must remove. Where Spark's job fails as a whole, by lost executors or killed workers, there is its error and no result.

    Args:
        payloads: can be pickled; few and large, since a Python task costs some 50 ms.
        work: a function of a module; called with a payload and the shared value.
        step: the description in Spark's UI; that of the caller if `None`.
        threads: how many at a time, without a session; after an error no other payload is begun.
        stop: makes running work in threads end soon; called on an interrupt.

    Returns:
        The results in the order of the payloads, and the errors of failed tasks.
    """
    if spark is None:
        with closing(_in_threads(payloads, work, shared, threads, stop)) as answers:
            return _results_and_errors(answer for _, answer in sorted(answers, key=itemgetter(0)))
    if not payloads:
        return [], []
    shared_value = SharedValue(shared, spark.sparkContext)
    answered = partial(_answers, work, shared_value, max_task_failures(spark))
    # Proofs need all answers: Spark collects them all, or fails.
    return _collected_answers(
        spark, _payload_rdd(spark, payloads).mapPartitions(answered), shared_value, step, payloads
    )


def all_results(ran: tuple[list[R], list[IcekeepError]]) -> list[R]:
    """The results of tasks; raises the first of their errors."""
    results, errors = ran
    if errors:
        raise errors[0]
    return results


def finished_tasks(
    spark: "SparkSession | None",
    payloads: Sequence[P],
    work: Callable[[P, S], R],
    shared: S,
    *,
    step: str | None = None,
    threads: int = 1,
    stop: Callable[[], object] = lambda: None,
) -> Generator[tuple[int, R | IcekeepError], None, None]:
    """As `run_tasks`, but each answer comes as soon as its task has ended, with the number of its payload.

    In Spark all payloads are one job. Where that fails as a whole, by lost executors or killed workers, or an answer does not
    arrive, the last number is -1 with the error; the answers of tasks that had ended come before it. When the caller stops
    early, the job is cancelled, or no other payload is begun.
    """
    answers = (
        _in_threads(payloads, work, shared, threads, stop)
        if spark is None
        else _in_spark(spark, payloads, work, shared, step)
    )
    with closing(answers):
        for number, answer in answers:
            add_slow_reads(answer.slow_reads)
            yield number, answer.result if answer.error is None else answer.error


def run_over_partitions(
    rows: "DataFrame",
    work: Callable[[Iterable[pa.RecordBatch], S], R],
    shared: S,
    *,
    step: str | None = None,
) -> tuple[list[R], list[IcekeepError]]:
    """Work on the rows of each partition of a DataFrame, also of empty ones; otherwise as `run_tasks`.

    An error of the tasks that make the rows is raised.
    """
    spark = rows.sparkSession
    shared_value = SharedValue(shared, spark.sparkContext)
    run = partial(_run_rows, work, shared_value, max_task_failures(spark))
    try:
        answers = collected(rows.mapInArrow(run, from_arrow_schema(_ANSWERS)), step)
    finally:
        shared_value.forget()
    return _results_and_errors(pickle.loads(row["answer"]) for row in answers)


def run_exchange(
    spark: "SparkSession",
    payloads: Sequence[P],
    send: Callable[[P, S], Iterator[tuple[int, V]]],
    parts: int,
    receive: Callable[[int, Iterable[tuple[int, V]], S], R],
    shared: S,
    *,
    step: str | None = None,
) -> tuple[list[R], list[IcekeepError]]:
    """Let tasks send values through Spark's shuffle, each to one of `parts` numbers; otherwise as `run_tasks`.

    Args:
        send: yields numbers and values, which can be pickled.
        receive: called once for each number, with the number and what was sent there, in no order.

    Returns:
        The results, and the errors of failed tasks; the error of a sending task comes alone, without results.
    """
    shared_value = SharedValue(shared, spark.sparkContext)
    sent = _payload_rdd(spark, payloads).mapPartitions(partial(_send, send, shared_value)).partitionBy(parts, int)
    received = sent.mapPartitionsWithIndex(partial(_receive, receive, shared_value, max_task_failures(spark)))
    return _collected_answers(spark, received, shared_value, step)


def dataframe_from_tasks(
    spark: "SparkSession", payloads: Sequence[P], run: Callable[[P], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> "DataFrame":
    """The rows that `run` yields for each payload, each payload in a task of its own; lazy.

    Payloads are few and large, since a Python task costs some 50 ms; `run` is a function of a module. Spark casts nothing.
    """
    if not payloads:
        return spark.createDataFrame([], from_arrow_schema(schema))
    keys = pa.array(hash_keys(len(payloads)), pa.int32())
    rows = pa.table([keys, pa.array([*map(pickle.dumps, payloads)], pa.binary())], schema=_PAYLOADS)
    # A partition for each: only after a shuffle by a column does Spark not coalesce partitions.
    each = arrow_dataframe(spark, rows).repartition(len(payloads), "key").select("payload")
    return each.mapInArrow(partial(_rows_of_payloads, run), from_arrow_schema(schema))


def max_task_failures(spark: "SparkSession") -> int:
    """How often Spark tries a task; once on a local master, unless that is `local[N,F]`."""
    if is_local(spark):
        tries = re.fullmatch(r"local\[[^,]*,\s*(\d+)\]", spark.sparkContext.master)
        return int(tries[1]) if tries else 1
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4"))


def is_speculative(spark: "SparkSession") -> bool:
    """Whether Spark starts second attempts of slow tasks beside the first (`spark.speculation`)."""
    return spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true"


def is_tried_again(max_failures: int) -> bool:
    """Whether Spark retries this task if it fails now."""
    context = task_context()
    return context is not None and context.attemptNumber() + 1 < max_failures


def was_tried_before() -> bool:
    """Whether another attempt of this task has failed, was lost with its executor, or is running at the same time."""
    context = task_context()
    return context is not None and context.attemptNumber() > 0


def attempt_id() -> int:
    """The id of this task attempt, unique in the Spark application, for names of files."""
    context = task_context()
    return 0 if context is None else int(context.taskAttemptId())


def prepare_worker() -> None:
    """Let Arrow use small pages and no threads of its own: a slot of Spark is one thread.

    A command's own workers need no pandas; in others, PySpark may pass pandas objects to Arrow.
    """
    if OWN_WORKER_VARIABLE in os.environ:
        leave_pandas_out()
    choose_pool()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _payload_rdd(spark: "SparkSession", payloads: Sequence[Any]) -> "RDD[bytes]":
    return spark.sparkContext.parallelize([pickle.dumps(payload) for payload in payloads], len(payloads))


def _collected_answers(
    spark: "SparkSession", answers: "RDD[bytes]", shared: SharedValue, step: str | None, payloads: Sequence[Any] = ()
) -> tuple[list[Any], list[IcekeepError]]:
    """Collect the answers, one of each task; errors name the tasks' `payloads`."""
    try:
        with described(step), translated(payloads):
            gathered = in_spark(spark, answers.collect)
    except IcekeepError as error:
        return [], [error]
    finally:
        shared.forget()
    if len(gathered) != answers.getNumPartitions():
        raise IcekeepBug(f"{answers.getNumPartitions()} tasks gave {len(gathered)} answers")
    return _results_and_errors(map(pickle.loads, gathered))


def _results_and_errors(answers: Iterable[TaskAnswer]) -> tuple[list[Any], list[IcekeepError]]:
    """The results and the errors of answers, in order; counts what was read in the slow way."""
    results, errors = [], []
    for answer in answers:
        add_slow_reads(answer.slow_reads)
        if answer.error is None:
            results.append(answer.result)
        else:
            errors.append(answer.error)
    return results, errors


def _in_threads(
    payloads: Sequence[P], work: Callable[[P, S], R], shared: S, threads: int, stop: Callable[[], object]
) -> Generator[tuple[int, TaskAnswer], None, None]:
    has_failed = threading.Event()

    def answer(payload: P) -> TaskAnswer | None:
        if has_failed.is_set():
            return None
        forget_reads()
        try:
            return TaskAnswer(work(payload, shared))
        except Exception as error:  # noqa: BLE001 - as in a Spark task
            has_failed.set()
            return TaskAnswer(error=known_error(error, payload, in_thread=True))

    pool = ThreadPoolExecutor(max(1, min(threads, len(payloads))))
    try:
        numbers = {pool.submit(answer, payload): number for number, payload in enumerate(payloads)}
        for future in as_completed(numbers):
            if (one := future.result()) is not None:
                yield numbers[future], one
    except BaseException:
        stop()
        raise
    finally:
        # After an interrupt nothing else is begun.
        pool.shutdown(wait=True, cancel_futures=True)


def _in_spark(
    spark: "SparkSession", payloads: Sequence[P], work: Callable[[P, S], R], shared: S, step: str | None
) -> Generator[tuple[int, TaskAnswer], None, None]:
    if not payloads:
        return
    arrived: SimpleQueue[tuple[int, bytes] | IcekeepError | None] = SimpleQueue()
    shared_value = SharedValue(shared, spark.sparkContext)
    arrivals = Arrivals(arrived)
    answered = partial(_answers, work, shared_value, max_task_failures(spark))
    deliver = partial(_deliver, answered, spark.sparkContext.accumulator([], arrivals))
    rows = _payload_rdd(spark, payloads)

    def act() -> None:
        with translated(payloads):
            rows.foreachPartition(deliver)

    def end(error: BaseException | None) -> None:
        arrived.put(error if error is None or isinstance(error, IcekeepError) else spark_failed(error))

    with described(step):
        begun = SparkAction(spark, act)
    begun.future.add_done_callback(lambda future: end(future.exception()))
    missing_count = len(payloads)
    try:
        while isinstance(one := arrived.get(), tuple):
            missing_count -= 1
            yield one[0], pickle.loads(one[1])
        # A task succeeds for Spark even where its answer could not be delivered.
        if one is None and missing_count:
            one = JobFailedError(
                f"Spark has handed on {len(payloads) - missing_count} answers of {len(payloads)} tasks: its accumulators do not "
                "work any more, as when one of other code in this session has failed; start a new session"
            )
        if one is not None:
            yield -1, TaskAnswer(error=one)
    finally:
        begun.cancel()
        arrivals.close()
        shared_value.forget()


# What follows runs in Spark's tasks.


def _pickled_answer(work: Callable[[P, Any], R], shared: SharedValue, max_failures: int, payload: P) -> bytes:
    """Do a task's work; an error is raised while Spark would retry, and then answered."""
    before = slow_reads().count
    forget_reads()
    try:
        result = work(payload, shared.value())
        return pickle.dumps(TaskAnswer(result, slow_reads=slow_reads(before)))
    except Exception as error:
        if is_tried_again(max_failures):
            raise
        return pickle.dumps(TaskAnswer(error=known_error(error, payload), slow_reads=slow_reads(before)))


@contextmanager
def _errors_named(payload: Any) -> Iterator[None]:
    forget_reads()
    try:
        yield
    except Exception as error:
        named = known_error(error, payload)
        if named is error:
            raise
        raise named from error


def _answers(
    work: Callable[[P, S], R], shared: SharedValue, max_failures: int, payloads: Iterable[bytes]
) -> Iterator[bytes]:
    prepare_worker()
    for pickled in payloads:
        yield _pickled_answer(work, shared, max_failures, pickle.loads(pickled))


def _deliver(
    answered: Callable[[Iterable[bytes]], Iterator[bytes]],
    arrivals: "Accumulator[list[tuple[int, bytes]]]",
    payloads: Iterable[bytes],
) -> None:
    context = task_context()
    assert context is not None
    arrivals.add([(context.partitionId(), answer) for answer in answered(payloads)])


def _send(
    send: Callable[[P, S], Iterator[tuple[int, V]]], shared: SharedValue, payloads: Iterable[bytes]
) -> Iterator[tuple[int, V]]:
    prepare_worker()
    for pickled in payloads:
        payload = pickle.loads(pickled)
        with _errors_named(payload):
            yield from send(payload, shared.value())


def _receive(
    receive: Callable[[int, Iterable[tuple[int, V]], S], R],
    shared: SharedValue,
    max_failures: int,
    number: int,
    sent: Iterable[tuple[int, V]],
) -> Iterator[bytes]:
    prepare_worker()
    yield _pickled_answer(partial(receive, number), shared, max_failures, sent)


def _run_rows(
    work: Callable[[Iterable[pa.RecordBatch], S], R],
    shared: SharedValue,
    max_failures: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    answer = _pickled_answer(work, shared, max_failures, batches)
    yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], schema=_ANSWERS)


def _rows_of_payloads(
    run: Callable[[Any], Iterator[pa.RecordBatch]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        for pickled in batch.column(0).to_pylist():
            payload = pickle.loads(pickled)
            with _errors_named(payload):
                yield from run(payload)
