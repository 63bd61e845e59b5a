"""How far Spark jobs have got, told while they run: the tasks that are done, by Spark's own status, which needs no web page.

What Spark's pages say of the Spark jobs of a run, and how all of them are stopped at once.

A run is opened once, where a job's function is called (`spark_run`), and its steps say what they do (`described`). Both are
context variables: a session may be started in the middle of a run, and nobody has to hand them on. Where a Spark job begins
(`Begun`) it is given the run's tag, its group, and a description such as `icekeep compact db.t: reading manifests`.

It begins in a thread of its own. So what is set for it is gone with that thread, and the caller's own group, description and
tags stay as they are. And an interrupt finds the caller waiting, never in the middle of a call to the JVM, after which the
thread's connection to it gives each later call the answer of the one before.

Rows between the driver and Spark's DataFrames.

Columns and rows as Spark can hold them: Iceberg has types that Spark has not.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import mmh3
import pyarrow as pa

from icekeep.errors import UnsupportedError
from icekeep.events import SILENT, Listener, StepAdvanced, StepFinished, StepStarted
from icekeep.formats.arrow.schema import arrow_type
from icekeep.planning.spark.failures import translated
from icekeep.planning.spark.session import F, from_arrow_schema, spark_is_3, to_arrow_schema
from icekeep.runtime import SYSTEM
from icekeep.spec.schema import Schema
from icekeep.spec.types import ListType, MapType, NestedField, PrimitiveType, StructType, Type

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, Row, SparkSession

FIRST_MS = 2_000
"""What is over before that is not told."""

EVERY_SECONDS = 1.0


class SparkWatch:
    """Looks at the Spark jobs of a run from one thread, which begins with the first of them and ends with `close`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    @contextmanager
    def watching(self, context: "SparkContext", tag: str, step: str) -> Iterator[None]:
        """Tell the listener of the jobs with a tag while the block lasts, as of a step; one without a name is not told of."""
        if self._listener is SILENT or not step:
            yield
            return
        watched = _Watched(context, tag, step)
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="spark progress", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._watched.remove(watched)
                watched.end(self._listener)

    def close(self) -> None:
        """End the thread."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            with self._lock:
                some = [watched for watched in self._watched if watched.is_long]
            for watched in some:
                done, total = watched.tasks()
                with self._lock:
                    if watched in self._watched:
                        watched.tell(done, total, self._listener)


class _Watched:
    """Spark jobs with one tag, and what has been told of them."""

    def __init__(self, context: "SparkContext", tag: str, step: str) -> None:
        self._context, self._tag, self._step = context, tag, step
        self._began_ms = SYSTEM.monotonic_ms()
        self._done, self._total = 0, 0

    @property
    def is_long(self) -> bool:
        """Whether they have lasted for long enough to be told of."""
        return SYSTEM.monotonic_ms() - self._began_ms >= FIRST_MS

    def tasks(self) -> tuple[int, int]:
        """How many tasks are done, and how many there are as far as is known by now."""
        from py4j.protocol import Py4JError

        try:
            stages = stages_of(self._context, self._tag)
            return sum(stage.numCompletedTasks() for stage in stages), sum(stage.numTasks() for stage in stages)
        except Py4JError:
            # Of a JVM that is gone somebody else tells.
            return 0, 0

    def tell(self, done: int, total: int, listener: Listener) -> None:
        """Tell what is new; a stage that is done again, since an executor was lost, takes nothing back."""
        if not self._total:
            # One task says nothing before its end.
            if total <= 1:
                return
            listener.on(StepStarted(self._step, total, "tasks"))
            self._total = total
        if done > self._done or total > self._total:
            listener.on(StepAdvanced(self._step, max(0, done - self._done), max(total, self._total)))
            self._done, self._total = max(done, self._done), max(total, self._total)

    def end(self, listener: Listener) -> None:
        """Tell that it is over, where it was told that it had begun."""
        if self._total:
            listener.on(StepFinished(self._step))


def stages_of(context: "SparkContext", tag: str) -> list[Any]:
    """What Spark's status says of the stages of the jobs with a tag (`SparkStageInfo`)."""
    # What PySpark has of it knows groups alone, and a group may be the user's own.
    tracker = context._jsc.sc().statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForTag(tag)]
    numbers = {number for job in jobs if job.isDefined() for number in job.get().stageIds()}
    return [found.get() for found in map(tracker.getStageInfo, sorted(numbers)) if found.isDefined()]


A = TypeVar("A")
R = TypeVar("R")

_GROUP = "spark.jobGroup.id"
_CANCEL_MS = 30_000
_TASKS_MS = 10_000
"""How long to wait for tasks that Spark ends: it gives a Python worker `spark.python.task.killTimeout`, which is 2 s unless it
is set, and an executor may be gone."""


class _Run:
    """A run of a job on a table, and the Spark application that it has to do with, if it has come to that."""

    def __init__(self, title: str, listener: Listener) -> None:
        self.title = title
        self.tag = f"icekeep-{SYSTEM.new_uuid()}"
        self.watch = SparkWatch(listener)
        self._numbers = count(1)
        self._context: SparkContext | None = None

    def new_tag(self, context: "SparkContext") -> str:
        """A tag for what begins now and nothing else."""
        self._context = context
        return f"{self.tag}-{next(self._numbers)}"

    def cancel(self) -> None:
        """Stop all Spark jobs of the run that are under way."""
        if self._context is not None:
            _cancel(self._context, self.tag, _CANCEL_MS)


_RUN: ContextVar[_Run | None] = ContextVar("run", default=None)
_STEPS: ContextVar[tuple[str, ...]] = ContextVar("steps", default=())


@contextmanager
def spark_run(job: str, table_name: str, listener: Listener) -> Iterator[None]:
    """Take all Spark jobs that begin while the block lasts for those of one run; whatever ends it early stops them.

    Where a run is open already, it goes on: a job that another one calls is a part of that.

    Args:
        job: as its command is called.
        listener: is told how many tasks are done while a step has many of them.
    """
    if _RUN.get() is not None:
        yield
        return
    run = _Run(f"icekeep {job} {table_name}", listener)
    token = _RUN.set(run)
    try:
        yield
    except BaseException:
        run.cancel()
        raise
    finally:
        run.watch.close()
        _RUN.reset(token)


def is_in_run() -> bool:
    """Whether what calls this is a part of such a run."""
    return _RUN.get() is not None


@contextmanager
def described(step: str | None) -> Iterator[None]:
    """Let Spark's pages say what the Spark jobs do that begin while the block lasts, behind what is said already."""
    token = _STEPS.set((*_STEPS.get(), step) if step else _STEPS.get())
    try:
        yield
    finally:
        _STEPS.reset(token)


def _job_thread(act: Callable[[], None], done: "Future[Any]") -> threading.Thread:
    """A thread with the caller's local properties; to take these over it asks the JVM, which may be gone."""
    from pyspark import InheritableThread

    class JobThread(InheritableThread):
        def run(self) -> None:
            try:
                super().run()
            except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
                done.set_exception(error)

    return JobThread(act, daemon=True, name="spark jobs")


class Begun(Generic[R]):
    """Something that begins Spark jobs, under way in a thread of its own."""

    def __init__(self, spark: "SparkSession", action: Callable[[], R]) -> None:
        self._context, self._run, self._step = spark.sparkContext, _RUN.get(), ": ".join(_STEPS.get())
        run = self._run
        self._tag = f"icekeep-{SYSTEM.new_uuid()}" if run is None else run.new_tag(self._context)
        self._done: Future[R] = Future()
        self._action = action
        _job_thread(self._act, self._done).start()

    def result(self) -> R:
        """What came of it, once it is over; an interrupt stops the jobs before it is raised."""
        try:
            return self._done.result()
        except BaseException:
            self.cancel()
            raise

    def when_done(self, tell: Callable[[BaseException | None], object]) -> None:
        """Call a function with the error, or `None`, as soon as it is over."""
        self._done.add_done_callback(lambda done: tell(done.exception()))

    def cancel(self) -> None:
        """Stop the jobs if they have not ended, and wait until they have; not for ever, as a JVM that is gone never says so.

        A job is over before its tasks are: what these write may still appear until Spark has ended them. So whoever's jobs
        failed waits too.
        """
        until_ms = SYSTEM.monotonic_ms() + _CANCEL_MS
        while not self._done.done() and (left_ms := until_ms - SYSTEM.monotonic_ms()) > 0:
            # Again and again: the next job of the action may have begun just after the last call.
            _cancel(self._context, self._tag, left_ms)
            with suppress(Exception):
                self._done.exception(1)
        if not self._done.done() or self._done.exception() is not None:
            _apart(lambda: _await_tasks(self._context, self._tag), _TASKS_MS)

    def _act(self) -> None:
        run = self._run
        try:
            self._mark()
            with run.watch.watching(self._context, self._tag, self._step) if run else nullcontext():
                result = self._action()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            self._done.set_exception(error)
        else:
            self._done.set_result(result)

    def _mark(self) -> None:
        """Set what is said of the Spark jobs that this thread begins."""
        context, run, text = self._context, self._run, self._step
        from py4j.clientserver import ClientServer

        if not isinstance(context._gateway, ClientServer):
            # With PYSPARK_PIN_THREAD=false a thread of ours has none in the JVM, and what is set there would be anybody's.
            return
        context.addJobTag(self._tag)
        if run is not None:
            context.addJobTag(run.tag)
            # Who has set a group of their own cancels by that, and wants ours to be cancelled with the rest.
            if context.getLocalProperty(_GROUP) is None:
                context.setLocalProperty(_GROUP, run.tag)
            text = f"{run.title}: {text}" if text else run.title
        if text:
            context.setJobDescription(text)


def in_spark(spark: "SparkSession", action: Callable[[], R]) -> R:
    """Do what begins Spark jobs, as jobs of the run and the step, and wait for it."""
    return Begun(spark, action).result()


def inherited(spark: "SparkSession | None", work: Callable[[A], R]) -> Callable[[A], R]:
    """Work that other threads may do, several at a time, as a part of this run and step, with this thread's properties."""
    context = copy_context()

    def run(argument: A) -> R:
        return context.copy().run(work, argument)

    if spark is None:
        return run
    from pyspark import inheritable_thread_target

    wrapped = inheritable_thread_target if spark_is_3(spark) else inheritable_thread_target(spark)
    target: Callable[[A], R] = wrapped(run)
    return target


def _cancel(context: "SparkContext", tag: str, wait_ms: int) -> None:
    """Cancel the jobs with a tag."""
    _apart(lambda: context.cancelJobsWithTag(tag), wait_ms)


def _await_tasks(context: "SparkContext", tag: str) -> None:
    """Wait until no task of the jobs with a tag is active, as far as Spark's status says."""
    until_ms = SYSTEM.monotonic_ms() + _TASKS_MS
    # What has happened reaches the status by a queue.
    context._jsc.sc().listenerBus().waitUntilEmpty(_TASKS_MS)
    while any(stage.numActiveTasks() for stage in stages_of(context, tag)) and SYSTEM.monotonic_ms() < until_ms:
        SYSTEM.sleep_ms(20)


def _apart(ask: Callable[[], object], wait_ms: int) -> None:
    """Ask the JVM from a thread of its own, and wait for so long: an interrupt may have spoilt this one's connection to it."""

    def asked() -> None:
        # The JVM may be gone, and with it what was to be stopped.
        with suppress(Exception):
            ask()

    thread = threading.Thread(target=asked, daemon=True)
    thread.start()
    thread.join(wait_ms / 1000)


_SPARK_SEED = 42


def arrow_dataframe(spark: "SparkSession", rows: pa.Table) -> "DataFrame":
    """Rows that the driver holds as a DataFrame, nullability and all."""
    # Spark stops reading at a batch without rows, and fails at a column without chunks.
    whole = rows.combine_chunks() if rows.num_rows else pa.Table.from_pylist([], schema=rows.schema)
    schema = from_arrow_schema(rows.schema)
    if spark_is_3(spark):
        return _spark_3_dataframe(spark, whole.cast(to_arrow_schema(schema)), schema)
    return spark.createDataFrame(whole, schema)


def _spark_3_dataframe(spark: "SparkSession", rows: pa.Table, schema: Any) -> "DataFrame":
    """What `createDataFrame` of Spark 4 does with an Arrow table, by the same parts, which Spark 3.5 has for one of pandas."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    jvm = spark._jvm
    size = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    batches = rows.to_batches(max_chunksize=size if size > 0 else None)
    streams = spark.sparkContext._serialize_to_jvm(
        batches,
        ArrowStreamSerializer(),
        lambda path: jvm.PythonSQLUtils.readArrowStreamFromFile(path),
        lambda: jvm.ArrowIteratorServer(),
    )
    return DataFrame(jvm.PythonSQLUtils.toDataFrame(streams, schema.json(), spark._jsparkSession), spark)


def record_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, size: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Rows, values in the order of a schema's columns, as batches of at most `size` rows."""
    rows = iter(rows)
    while pending := list(islice(rows, size)):
        columns = zip(zip(*pending, strict=True), schema, strict=True)
        yield pa.record_batch([pa.array(values, field.type) for values, field in columns], schema=schema)


def collected(rows: "DataFrame", step: str | None = None) -> list["Row"]:
    """Run a DataFrame's tasks and bring its rows here; raises an error of ours that a task raised as what it is.

    Args:
        step: what Spark's pages say that the tasks do.
    """
    with described(step), translated():
        return in_spark(rows.sparkSession, rows.collect)


def arrow_table(rows: "DataFrame", step: str | None = None) -> pa.Table:
    """The same as an Arrow table."""
    spark = rows.sparkSession
    with described(step), translated():
        return in_spark(spark, partial(_spark_3_arrow_table, rows) if spark_is_3(spark) else rows.toArrow)


def _spark_3_arrow_table(rows: "DataFrame") -> pa.Table:
    """`DataFrame.toArrow` of Spark 4, by what Spark 3.5 collects for `toPandas`."""
    return pa.Table.from_batches(rows._collect_as_arrow(), to_arrow_schema(rows.schema))


def streamed(rows: "DataFrame", step: str | None = None) -> Iterator["Row"]:
    """The same as `collected`, a partition at a time."""
    with translated():
        # A block around the rows would describe what the caller does between them.
        with described(step):
            found = in_spark(rows.sparkSession, rows.toLocalIterator)
        yield from found


def partition_key(number: "Column", parts: int) -> "Column":
    """What a shuffle of so many partitions by one column sends to the partition of a number, an int below `parts`."""
    # As text, which Spark parses once: a plan with a node for each of thousands of keys would be slow.
    keys = F.split(F.lit(",".join(map(str, hash_keys(parts)))), ",").cast("array<int>")
    return F.get(keys, number)


def hash_keys(parts: int) -> tuple[int, ...]:
    """For each of so many partitions of a shuffle by one column a number (int) that Spark's hash partitioning sends there."""
    places: dict[int, int] = {}
    for number in count():
        # Spark's hash of an int: Murmur3 of its four bytes.
        places.setdefault(mmh3.hash(struct.pack("<i", number), _SPARK_SEED, signed=True) % parts, number)
        if len(places) == parts:
            return tuple(places[part] for part in range(parts))
    raise AssertionError


_REFUSED = ("time", "timestamp_ns", "timestamptz_ns", "variant", "geometry", "geography")
_NAMES = {"time": "times of a day", "timestamp_ns": "nanoseconds", "timestamptz_ns": "nanoseconds"}


def spark_columns(schema: Schema) -> pa.Schema:
    """The columns of a DataFrame for a schema: UUIDs are text and `fixed` is binary, as Iceberg has them in Spark.

    Raises:
        UnsupportedError: Spark has no type for a column; its full name is in the message.
    """
    return pa.schema([_field(field, field.name) for field in schema.fields])


def spark_rows(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Rows as they were read in the columns of `spark_columns`."""
    arrays = [
        pa.chunked_array([_as(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(rows.columns, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def _field(field: NestedField, name: str) -> pa.Field:
    return pa.field(field.name, _type(field.type, name), nullable=not field.required)


def _type(type_: Type, name: str) -> pa.DataType:
    match type_:
        case StructType(fields=fields):
            return pa.struct([_field(field, f"{name}.{field.name}") for field in fields])
        case ListType():
            element = _type(type_.element, f"{name}.element")
            return pa.list_(pa.field("element", element, nullable=not type_.element_required))
        case MapType():
            value = pa.field("value", _type(type_.value, f"{name}.value"), nullable=not type_.value_required)
            return pa.map_(_type(type_.key, f"{name}.key"), value)
    kind = type_.name if isinstance(type_, PrimitiveType) else str(type_)
    if kind in _REFUSED:
        why = f" ({_NAMES[kind]})" if kind in _NAMES else ""
        raise UnsupportedError(
            f"column {name!r}: Spark has no type for {kind}{why}; name the other columns with select", column=name
        )
    if kind == "uuid":
        return pa.string()
    return pa.binary() if kind == "fixed" else arrow_type(type_)


def _as(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if array.type == type_:
        return array
    if isinstance(array.type, pa.UuidType):
        return pa.array([None if b is None else str(UUID(bytes=b)) for b in array.storage.to_pylist()], pa.string())
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        children = [_as(array.field(n), field.type) for n, field in enumerate(type_)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pa.types.is_list(type_):
        dense = pa.concat_arrays([array])
        return pa.ListArray.from_arrays(dense.offsets, _as(dense.values, type_.value_type), type_, mask=mask)
    if pa.types.is_map(type_):
        dense = pa.concat_arrays([array])
        keys, items = _as(dense.keys, type_.key_type), _as(dense.items, type_.item_type)
        return pa.MapArray.from_arrays(dense.offsets, keys, items, type_, mask=mask)
    return array.cast(type_)
