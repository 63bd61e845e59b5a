"""Run a function over payloads, in Spark tasks or in threads of this process: how work reaches executors.

Paths and descriptions cross between the JVM and Python, rows of data do not. A payload travels to the one task that it is for;
what all tasks share travels once.
"""

import pickle
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import count, islice
from typing import Any, Self, TypeVar

import mmh3
import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icekeep.errors import IcekeepError, JobFailedError, revived
from icekeep.planning.slow_reads import SlowReads, add_slow_reads, slow_reads, slow_reads_since
from icekeep.planning.spark.executor_errors import line_of

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")

_PAYLOADS = pa.schema([pa.field("key", pa.int32(), nullable=False), pa.field("payload", pa.binary(), nullable=False)])
_ANSWERS = pa.schema([("answer", pa.binary())])
_MAX_CLOSURE_BYTES = 256 << 10
_DESCRIPTION = "spark.job.description"

_SPARK_SEED = 42
_MENTION = re.compile(
    # As Python prints an error at the end of a traceback, or as Spark wraps the text of `raise_error`.
    r"^(?:.*\[USER_RAISED_EXCEPTION\] )?icekeep\.errors\.(\w+): (.*?)(?: SQLSTATE: \w+\]?)?$",
    re.MULTILINE,
)


class _Answer(msgspec.Struct, frozen=True):
    """What came of one payload: a result, or an error of ours; and the files that were read in the slow way meanwhile."""

    result: Any = None
    error: IcekeepError | None = None
    slow_reads: SlowReads = SlowReads()


def run_tasks(
    spark: SparkSession | None,
    payloads: Sequence[P],
    work: Callable[[P, S], R],
    shared: S,
    *,
    step: str | None = None,
    threads: int = 1,
    stop: Callable[[], object] = lambda: None,
) -> tuple[list[R], list[IcekeepError]]:
    """Do some work on each payload: in Spark tasks, one for each, or without a session in threads of this process.

    A task that fails for good does not take the results of the others with it, and so not the names of the files that these
    wrote, which somebody must remove.

    Args:
        payloads: anything that can be pickled; few and fat, since a Python task costs some 50 ms.
        work: a function of a module; called with a payload and with what all tasks share.
        step: what Spark's pages say that the tasks do; what the caller has said if `None`.
        threads: how many at a time, without a session; after an error no other payload is begun.
        stop: makes work in threads that is under way end soon; called on an interrupt.

    Returns:
        The results in the order of the payloads, and the errors of tasks that failed.
    """
    answers = (
        _in_threads(payloads, work, shared, threads, stop)
        if spark is None
        else _in_spark(spark, payloads, work, shared, step)
    )
    return _sorted_out(answers)


def run_over_partitions(
    rows: DataFrame,
    work: Callable[[Iterable[pa.RecordBatch], S], R],
    shared: S,
    *,
    step: str | None = None,
) -> tuple[list[R], list[IcekeepError]]:
    """Do some work on the rows of each partition of a DataFrame, of an empty one too; the rest is as `run_tasks` says.

    An error of the tasks that make the rows is raised.
    """
    spark = rows.sparkSession
    handed = _Shared.of(shared, spark.sparkContext)
    run = partial(_run_rows, work, handed, max_task_failures(spark))
    try:
        with described(spark, step):
            found = collected(rows.mapInArrow(run, from_arrow_schema(_ANSWERS)))
    finally:
        handed.forget()
    return _sorted_out([pickle.loads(row["answer"]) for row in found])


def _sorted_out(answers: Iterable[_Answer]) -> tuple[list[Any], list[IcekeepError]]:
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
) -> list[_Answer]:
    has_failed = threading.Event()

    def answer(payload: P) -> _Answer | None:
        if has_failed.is_set():
            return None
        try:
            return _Answer(work(payload, shared))
        except Exception as error:  # noqa: BLE001 - as in a Spark task
            has_failed.set()
            return _Answer(error=_known(error))

    pool = ThreadPoolExecutor(max(1, min(threads, len(payloads))))
    try:
        return [one for one in pool.map(answer, payloads) if one is not None]
    except BaseException:
        stop()
        raise
    finally:
        # After an interrupt what was not begun is not done any more.
        pool.shutdown(wait=True, cancel_futures=True)


def _in_spark(
    spark: SparkSession, payloads: Sequence[P], work: Callable[[P, S], R], shared: S, step: str | None
) -> list[_Answer]:
    if not payloads:
        return []
    context, tries = spark.sparkContext, max_task_failures(spark)
    handed = _Shared.of(shared, context)
    rows = context.parallelize([pickle.dumps(payload) for payload in payloads], len(payloads))
    try:
        with described(spark, step), _translated():
            found = rows.mapPartitions(partial(_run_partition, work, handed, tries)).collect()
    finally:
        handed.forget()
    return [pickle.loads(one) for one in found]


def _run_partition(
    work: Callable[[P, S], R], shared: "_Shared", max_failures: int, payloads: Iterable[bytes]
) -> Iterator[bytes]:
    one_thread()
    for payload in payloads:
        yield _pickled_answer(lambda one: work(pickle.loads(one), shared.value()), payload, max_failures)


def _pickled_answer(work: Callable[[P], R], payload: P, max_failures: int) -> bytes:
    """Do a task's work; a failure is raised while Spark would try again, and then reported."""
    before = slow_reads().count
    try:
        result = work(payload)
        return pickle.dumps(_Answer(result, slow_reads=slow_reads_since(before)))
    except Exception as error:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() + 1 < max_failures:
            raise
        return pickle.dumps(_Answer(error=_known(error), slow_reads=slow_reads_since(before)))


def _known(error: Exception) -> IcekeepError:
    if isinstance(error, IcekeepError):
        return error
    failed = JobFailedError(f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


class _Shared:
    """What all tasks of a Spark job share: in their closure where it is small, else broadcast, so that a worker reads it once."""

    def __init__(self, pickled: bytes | None, broadcast: Any) -> None:
        self._pickled, self._broadcast = pickled, broadcast

    @classmethod
    def of(cls, shared: Any, context: SparkContext) -> Self:
        # By value where workers cannot import it, such as a class of a notebook.
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


@contextmanager
def described(spark: SparkSession | None, step: str | None) -> Iterator[None]:
    """Let Spark's pages say what the jobs do that this thread starts while the block lasts; without either nothing is said."""
    if spark is None or step is None:
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(step)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def _run_rows(
    work: Callable[[Iterable[pa.RecordBatch], S], R],
    shared: _Shared,
    max_failures: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    one_thread()
    answer = _pickled_answer(lambda rows: work(rows, shared.value()), batches, max_failures)
    yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], schema=_ANSWERS)


def dataframe_from_tasks(
    spark: SparkSession, payloads: Sequence[P], run: Callable[[P], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """The rows that `run` yields for each payload, each payload in a task of its own; lazy.

    Args:
        payloads: anything that can be pickled; few and fat, since a Python task costs some 50 ms.
        run: a function of a module, called on the executors; yields batches of `schema`.
        schema: the Arrow schema of the rows; Spark takes batches as they are and casts nothing.
    """
    if not payloads:
        return spark.createDataFrame([], from_arrow_schema(schema))
    keys = pa.array(hash_keys(len(payloads)), pa.int32())
    rows = pa.table([keys, pa.array([*map(pickle.dumps, payloads)], pa.binary())], schema=_PAYLOADS)
    # A partition for each: a shuffle by a column is the only public way that Spark does not put partitions together again.
    each = arrow_dataframe(spark, rows).repartition(len(payloads), "key").select("payload")
    return each.mapInArrow(partial(_rows_of_payloads, run), from_arrow_schema(schema))


def _rows_of_payloads(
    run: Callable[[Any], Iterator[pa.RecordBatch]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    one_thread()
    for batch in batches:
        for payload in batch.column(0).to_pylist():
            yield from run(pickle.loads(payload))


def one_thread() -> None:
    """The Spark slot is the unit of parallelism: Arrow's own threads would only fight over it."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def arrow_dataframe(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows that the driver holds as a DataFrame, nullability and all."""
    # Spark stops reading at a batch without rows, and fails at a column without chunks.
    whole = rows.combine_chunks() if rows.num_rows else pa.Table.from_pylist([], schema=rows.schema)
    return spark.createDataFrame(whole, from_arrow_schema(rows.schema))


def record_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, size: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Rows, values in the order of a schema's columns, as batches of at most `size` rows."""
    rows = iter(rows)
    while pending := list(islice(rows, size)):
        columns = zip(zip(*pending, strict=True), schema, strict=True)
        yield pa.record_batch([pa.array(values, field.type) for values, field in columns], schema=schema)


def attempt_id() -> int:
    """The number of the attempt at this task, for names of what it writes; no other of the Spark application has it."""
    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())


def collected(rows: DataFrame) -> list[Row]:
    """Run a DataFrame's tasks and bring its rows here; raises an error of ours that a task raised as what it is."""
    with _translated():
        return rows.collect()


def streamed(rows: DataFrame) -> Iterator[Row]:
    """The same, a partition at a time."""
    with _translated():
        yield from rows.toLocalIterator()


@contextmanager
def _translated() -> Iterator[None]:
    """An error that left a task arrives as text in one of Spark's: make it again from its last mention there.

    Raises:
        JobFailedError: Spark mentions none of ours, such as where executors are lost.
    """
    try:
        yield
    # Two stages that fail at once make an error that PySpark knows no class for.
    except (PySparkException, Py4JError) as error:
        mentions = _MENTION.findall(str(error))
        if not mentions:
            raise spark_failed(error) from error
        name, message = mentions[-1]
        raise revived(name, message) from error


def spark_failed(error: Exception) -> JobFailedError:
    """The error for work that failed by none of ours: a lost executor, or a worker without our packages."""
    failed = JobFailedError(f"Spark failed: {line_of(error)}")
    failed.__cause__ = error
    return failed


def is_local(spark: SparkSession) -> bool:
    """Whether all tasks run in one process of Spark, on this machine."""
    master = spark.sparkContext.master
    return master.startswith("local") and not master.startswith("local-cluster")


def max_task_failures(spark: SparkSession) -> int:
    """How often Spark tries a task; once on a local master, unless it is written `local[N,F]`."""
    if is_local(spark):
        tries = re.fullmatch(r"local\[[^,]*,\s*(\d+)\]", spark.sparkContext.master)
        return int(tries[1]) if tries else 1
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4"))


def hash_keys(parts: int) -> tuple[int, ...]:
    """For each of so many partitions of a shuffle by one column a number (int) that Spark's hash partitioning sends there."""
    places: dict[int, int] = {}
    for number in count():
        # Spark's hash of an int: Murmur3 of its four bytes.
        places.setdefault(mmh3.hash(struct.pack("<i", number), _SPARK_SEED, signed=True) % parts, number)
        if len(places) == parts:
            return tuple(places[part] for part in range(parts))
    raise AssertionError


def parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at once, on all executors together, or what `spark.default.parallelism` says."""
    return int(spark.sparkContext.defaultParallelism)


def executor_slots(spark: SparkSession) -> int:
    """How many tasks share one executor, and so its memory; with a local master all that run at once.

    It is `spark.executor.cores` by `spark.task.cpus`. Where nobody set the former an executor has what the master gives it: all
    cores of its worker on a standalone cluster, one on YARN and Kubernetes.
    """
    conf = spark.sparkContext.getConf()
    return max(1, _executor_cores(spark) // max(1, int(conf.get("spark.task.cpus", "1") or 1)))


def _executor_cores(spark: SparkSession) -> int:
    context = spark.sparkContext
    if is_local(spark):
        threads = re.match(r"local\[\s*(\*|\d+)", context.master)
        if threads is None:
            return 1
        # The processors that the JVM sees, which heeds a container's limit.
        return int(
            context._jvm.java.lang.Runtime.getRuntime().availableProcessors() if threads[1] == "*" else threads[1]
        )
    given = context.getConf().get("spark.executor.cores")
    if given is not None:
        return int(given)
    if workers := re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)", context.master):
        return int(workers[1])
    if not context.master.startswith("spark://"):
        return 1
    # Nothing public of Spark tells it. The driver is no executor; where none has come yet all slots may be on one.
    found = context._jsc.sc().statusStore().executorList(True)
    cores = [found.apply(n).totalCores() for n in range(found.size()) if found.apply(n).id() != "driver"]
    return int(max(cores, default=context.defaultParallelism))
