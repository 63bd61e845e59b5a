"""How far Spark jobs have got, told while they run: the tasks that are done, by Spark's own status, which needs no web page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icekeep.events import SILENT, Listener, StepAdvanced, StepFinished, StepStarted
from icekeep.runtime import SYSTEM

if TYPE_CHECKING:
    from pyspark import SparkContext

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
