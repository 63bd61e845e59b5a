"""The Spark jobs of a run: their descriptions in Spark's UI, their progress, and how they are cancelled together.

A run is opened where a job's function is called (`spark_run`), and its steps are described (`described`). Both are context
variables: a session may be started in the middle of a run, and nothing has to pass them on. A Spark job (`SparkAction`) gets
the run's tag, its group, and a description such as `icekeep compact db.t: reading manifests`.

It begins in a thread of its own. So its properties are gone with that thread, and the caller's own group, description and tags
are unchanged. And an interrupt finds the caller waiting, never in a call to the JVM, after which the thread's connection would
return to each later call the answer of the one before.

Progress is read from Spark's status tracker, which needs no UI.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from icekeep.events import SILENT, Listener, StepAdvanced, StepFinished, StepStarted
from icekeep.planning.spark.session import ask_apart, spark_is_3
from icekeep.runtime import SYSTEM

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

A = TypeVar("A")
R = TypeVar("R")

FIRST_MS = 2_000
"""Jobs that end sooner report no progress."""

EVERY_SECONDS = 1.0

_GROUP = "spark.jobGroup.id"
_CANCEL_MS = 30_000
_TASKS_MS = 10_000
"""How long to wait for killed tasks: a Python worker has `spark.python.task.killTimeout`, by default 2 s, and an executor may be
gone."""


class _Run:
    """A run of a job on a table, and its Spark context once a Spark job has begun.

    One thread watches its Spark jobs, from the first of them until `over` is set.
    """

    def __init__(self, title: str, listener: Listener) -> None:
        self.title = title
        self.tag = f"icekeep-{SYSTEM.new_uuid()}"
        self._listener = listener
        self.action_numbers = count(1)
        self.context: SparkContext | None = None
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._thread: threading.Thread | None = None
        self.over = threading.Event()

    @contextmanager
    def watching(self, context: "SparkContext", tag: str, step: str) -> Iterator[None]:
        """Report the progress of the jobs with a tag in the block as a step's, if it has a name."""
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
                if watched.total:
                    self._listener.on(StepFinished(step))

    def _watch(self) -> None:
        while not self.over.wait(EVERY_SECONDS):
            since_ms = SYSTEM.monotonic_ms() - FIRST_MS
            with self._lock:
                long = [watched for watched in self._watched if watched.began_ms <= since_ms]
            for watched in long:
                done, total = watched.tasks()
                with self._lock:
                    if watched in self._watched:
                        watched.report(done, total, self._listener)


class _Watched:
    """Spark jobs with one tag, and their reported progress."""

    def __init__(self, context: "SparkContext", tag: str, step: str) -> None:
        self._context, self._tag, self._step = context, tag, step
        self.began_ms = SYSTEM.monotonic_ms()
        self._done, self.total = 0, 0

    def tasks(self) -> tuple[int, int]:
        """The numbers of completed tasks, and of those that Spark has planned so far."""
        from py4j.protocol import Py4JError

        try:
            stages = _stages(self._context, self._tag)
            return sum(stage.numCompletedTasks() for stage in stages), sum(stage.numTasks() for stage in stages)
        except Py4JError:
            # Where the JVM is gone, the jobs themselves fail.
            return 0, 0

    def report(self, done: int, total: int, listener: Listener) -> None:
        """Report progress since the last call; it never decreases, even where a stage is repeated after a lost executor."""
        if not self.total:
            # A single task has no progress before its end.
            if total <= 1:
                return
            listener.on(StepStarted(self._step, total, "tasks"))
            self.total = total
        if done > self._done or total > self.total:
            listener.on(StepAdvanced(self._step, max(0, done - self._done), max(total, self.total)))
            self._done, self.total = max(done, self._done), max(total, self.total)


def _stages(context: "SparkContext", tag: str) -> list[Any]:
    """The `SparkStageInfo` of the stages of the jobs with a tag."""
    # PySpark's tracker has groups only, and a group may be the user's own.
    tracker = context._jsc.sc().statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForTag(tag)]
    numbers = {number for job in jobs if job.isDefined() for number in job.get().stageIds()}
    return [stage.get() for stage in map(tracker.getStageInfo, sorted(numbers)) if stage.isDefined()]


_RUN: ContextVar[_Run | None] = ContextVar("run", default=None)
_STEPS: ContextVar[tuple[str, ...]] = ContextVar("steps", default=())


@contextmanager
def spark_run(job: str, table_name: str, listener: Listener) -> Iterator[None]:
    """All Spark jobs that begin in the block are one run's; an exception cancels them.

    Inside another run it does nothing: a job that another one calls is a part of that.

    Args:
        job: the name of its command.
        listener: receives the progress of steps with several tasks.
    """
    if is_in_run():
        yield
        return
    run = _Run(f"icekeep {job} {table_name}", listener)
    token = _RUN.set(run)
    try:
        yield
    except BaseException:
        if (context := run.context) is not None:
            ask_apart(lambda: context.cancelJobsWithTag(run.tag), _CANCEL_MS)
        raise
    finally:
        run.over.set()
        _RUN.reset(token)


def is_in_run() -> bool:
    return _RUN.get() is not None


@contextmanager
def described(step: str | None) -> Iterator[None]:
    """Append a step to the description, in Spark's UI, of the Spark jobs that begin in the block."""
    token = _STEPS.set((*_STEPS.get(), step) if step else _STEPS.get())
    try:
        yield
    finally:
        _STEPS.reset(token)


class SparkAction(Generic[R]):
    """An action that begins Spark jobs, running in a thread of its own; `future` has its result."""

    def __init__(self, spark: "SparkSession", action: Callable[[], R]) -> None:
        self._context, self._run, self._step = spark.sparkContext, _RUN.get(), ": ".join(_STEPS.get())
        run = self._run
        if run is None:
            self._tag = f"icekeep-{SYSTEM.new_uuid()}"
        else:
            run.context = self._context
            self._tag = f"{run.tag}-{next(run.action_numbers)}"
        self.future: Future[R] = Future()
        self._action = action
        _job_thread(self._act, self.future).start()

    def result(self) -> R:
        """Wait for the result; an interrupt cancels the jobs before it is raised."""
        try:
            return self.future.result()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the jobs if they have not ended, and wait for that, within limits: a JVM that is gone never answers.

        A job ends before its tasks do, and what these write may still appear until Spark has killed them. So this waits for the
        tasks of failed jobs too.
        """
        until_ms = SYSTEM.monotonic_ms() + _CANCEL_MS
        while not self.future.done() and (left_ms := until_ms - SYSTEM.monotonic_ms()) > 0:
            # Repeatedly: the next job of the action may have begun just after the last call.
            ask_apart(lambda: self._context.cancelJobsWithTag(self._tag), left_ms)
            with suppress(Exception):
                self.future.exception(1)
        if not self.future.done() or self.future.exception() is not None:
            ask_apart(self._await_tasks, _TASKS_MS)

    def _await_tasks(self) -> None:
        """Wait until no task of the jobs is active by Spark's status."""
        until_ms = SYSTEM.monotonic_ms() + _TASKS_MS
        # Events reach the status through a queue.
        self._context._jsc.sc().listenerBus().waitUntilEmpty(_TASKS_MS)
        while SYSTEM.monotonic_ms() < until_ms and any(s.numActiveTasks() for s in _stages(self._context, self._tag)):
            SYSTEM.sleep_ms(20)

    def _act(self) -> None:
        run = self._run
        try:
            self._mark()
            with run.watching(self._context, self._tag, self._step) if run else nullcontext():
                result = self._action()
        except BaseException as error:  # noqa: BLE001 - it is raised by `result`
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def _mark(self) -> None:
        """Set tags, group and description of the Spark jobs that this thread begins."""
        context, run, text = self._context, self._run, self._step
        from py4j.clientserver import ClientServer

        if not isinstance(context._gateway, ClientServer):
            # With PYSPARK_PIN_THREAD=false this thread has none in the JVM, and properties there would affect any job.
            return
        context.addJobTag(self._tag)
        if run is not None:
            context.addJobTag(run.tag)
            # Users who have set a group cancel by it, and expect our jobs to be cancelled with the rest.
            if context.getLocalProperty(_GROUP) is None:
                context.setLocalProperty(_GROUP, run.tag)
            text = f"{run.title}: {text}" if text else run.title
        if text:
            context.setJobDescription(text)


def _job_thread(act: Callable[[], None], future: "Future[Any]") -> threading.Thread:
    """A thread with the caller's local properties, which it copies from the JVM, if that is not gone."""
    from pyspark import InheritableThread

    class JobThread(InheritableThread):
        def run(self) -> None:
            try:
                super().run()
            except BaseException as error:  # noqa: BLE001 - it is raised by `SparkAction.result`
                future.set_exception(error)

    return JobThread(act, daemon=True, name="spark jobs")


def in_spark(spark: "SparkSession", action: Callable[[], R]) -> R:
    """Run an action as Spark jobs of the run and the step, and wait for its result."""
    return SparkAction(spark, action).result()


def inherited(spark: "SparkSession | None", work: Callable[[A], R]) -> Callable[[A], R]:
    """Work for other threads, several at a time, as a part of this run and step, with this thread's properties."""
    context = copy_context()

    def run(argument: A) -> R:
        return context.copy().run(work, argument)

    if spark is None:
        return run
    from pyspark import inheritable_thread_target

    wrapped = inheritable_thread_target if spark_is_3(spark) else inheritable_thread_target(spark)
    target: Callable[[A], R] = wrapped(run)
    return target
