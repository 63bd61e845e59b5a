"""What Spark's pages say of the Spark jobs of a run, and how all of them are stopped at once.

A run is opened once, where a job's function is called (`spark_run`), and its steps say what they do (`described`). Both are
context variables: a session may be started in the middle of a run, and nobody has to hand them on. Where a Spark job begins
(`Begun`) it is given the run's tag, its group, and a description such as `icekeep compact db.t: reading manifests`.

It begins in a thread of its own. So what is set for it is gone with that thread, and the caller's own group, description and
tags stay as they are. And an interrupt finds the caller waiting, never in the middle of a call to the JVM, after which the
thread's connection to it gives each later call the answer of the one before.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from icekeep.events import Listener
from icekeep.planning.spark.lazily import spark_is_3
from icekeep.planning.spark.watching import SparkWatch, stages_of
from icekeep.runtime import SYSTEM

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

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
