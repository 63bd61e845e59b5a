"""Run a function over payloads in Spark tasks, one task a payload: how work reaches executors.

Paths and descriptions cross between the JVM and Python, rows of data do not. Payloads travel pickled inside the task's
closure, so that no shuffle is needed to deal them out.
"""

import pickle
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, TypeVar

import mmh3
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icekeep.errors import IcekeepError, JobFailedError, revived
from icekeep.planning.slow_reads import SlowReads, add_slow_reads, slow_reads

P = TypeVar("P")

REPORT = pa.schema([("result", pa.binary()), ("error", pa.binary()), ("slow_reads", pa.binary())])
"""The columns of a task's report: a pickled result, or a pickled error; and `SlowReads` where the task had some, pickled."""

_SPARK_SEED = 42
_MENTION = re.compile(
    # As Python prints an error at the end of a traceback, or as Spark wraps the text of `raise_error`.
    r"^(?:.*\[USER_RAISED_EXCEPTION\] )?icekeep\.errors\.(\w+): (.*?)(?: SQLSTATE: \w+\]?)?$",
    re.MULTILINE,
)


def dataframe_from_tasks(
    spark: SparkSession, payloads: Sequence[P], run: Callable[[P], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """The rows that `run` yields for each payload, each payload in a task of its own; lazy.

    Args:
        payloads: anything that can be pickled; few and fat, since a Python task costs some 50 ms.
        run: a function of a module, called on the executors; yields batches of `schema`.
        schema: the Arrow schema of the rows; Spark takes batches as they are and casts nothing.
    """
    pickled = [pickle.dumps(payload) for payload in payloads]

    def run_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The Spark slot is the unit of parallelism: Arrow's own threads would only fight over it.
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from run(pickle.loads(pickled[number]))

    numbers = spark.range(0, len(pickled), 1, max(1, len(pickled)))
    return numbers.mapInArrow(run_task, from_arrow_schema(schema))


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


def reported(work: Callable[[], Any], max_failures: int) -> pa.RecordBatch:
    """Do a task's work and report its result; a failure is raised while Spark would try again, and then reported.

    A failed task that only raised would take the results of its finished sisters with it, and so the names of the files
    that they wrote, which somebody must remove.
    """
    before = slow_reads().count
    try:
        row = {"result": pickle.dumps(work()), "error": None}
    except Exception as error:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() + 1 < max_failures:
            raise
        known = error if isinstance(error, IcekeepError) else JobFailedError(f"{type(error).__name__}: {error}")
        row = {"result": None, "error": pickle.dumps(known)}
    found = slow_reads()
    if found.count > before:
        row["slow_reads"] = pickle.dumps(SlowReads(found.count - before, found.example))
    return pa.RecordBatch.from_pylist([row], schema=REPORT)


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
    """An error that left a task arrives as text in one of Spark's: make it again from its last mention there."""
    try:
        yield
    # Two stages that fail at once make an error that PySpark knows no class for.
    except (PySparkException, Py4JJavaError) as error:
        mentions = _MENTION.findall(str(error))
        if not mentions:
            raise
        name, message = mentions[-1]
        raise revived(name, message) from error


def read_reports(reports: DataFrame) -> tuple[list[Any], list[IcekeepError]]:
    """Run the tasks; the results of those that succeeded and the errors of those that did not."""
    rows = collected(reports)
    for row in rows:
        if row["slow_reads"] is not None:
            add_slow_reads(pickle.loads(row["slow_reads"]))
    results = [pickle.loads(row["result"]) for row in rows if row["result"] is not None]
    return results, [pickle.loads(row["error"]) for row in rows if row["error"] is not None]


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


def attempt_id() -> int:
    """The number of the attempt at this task; no other of the Spark application has it. 0 outside of tasks."""
    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())


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
