"""Interrupts of jobs that run side by side in threads of one process: a signal reaches the main thread alone.

A job whose run is being stopped ends where it tells of a step, or where it sleeps: in its own thread, once, and not while it
cleans up after something else, though that waits for no longer than some seconds then for what is out of reach. So it is with a
signal in a process that has one job: a second one breaks no clean-up that the first one began, and threads that a job has begun
end their work as it tells them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from icekeep.events import CommitRetried, Event, InRun, Listener, StepAdvanced, StepStarted
from icekeep.operations.interrupts import Interrupted
from icekeep.runtime import Runtime, is_cleaning_up

_INTERRUPTED = 130
_BETWEEN_STEPS = StepStarted | StepAdvanced | CommitRetried


class JobInterrupts:
    """Interrupts the jobs of one run, once `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._here = stop, threading.local()

    @contextmanager
    def of_job(self) -> Iterator[None]:
        """Take what this thread does while the block lasts for a job, which may be interrupted once."""
        self._here.may_end = True
        try:
            yield
        finally:
            self._here.may_end = False

    def check(self) -> None:
        """End the job of this thread if it has to end, and is not ending already."""
        if self.is_awaited and self._stop.is_set():
            self._here.may_end = False
            raise Interrupted(_INTERRUPTED)

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep until the run stops, but for so many milliseconds at most; the job of this thread ends then, if it may."""
        self._stop.wait(duration_ms / 1000)
        self.check()

    @property
    def is_awaited(self) -> bool:
        """Whether this thread has a job that is not ending yet."""
        return getattr(self._here, "may_end", False) and not is_cleaning_up()

    @property
    def is_stopped(self) -> bool:
        """Whether the run has to end."""
        return self._stop.is_set()

    @property
    def wakes(self) -> bool:
        """Whether this thread, if it sleeps, wakes where the run stops: a clean-up has less patience from then on."""
        return self.is_awaited or (getattr(self._here, "may_end", False) and not self.is_stopped)

    def runtime(self, runtime: Runtime) -> Runtime:
        """All of a runtime; who sleeps, as between two attempts to commit, wakes where the run stops."""
        stoppable: Any = _Stoppable(runtime, self)
        return cast(Runtime, stoppable)

    def listener(self, listener: Listener) -> Listener:
        """Passes events of a job on; between steps the job can end."""
        return _Stopped(listener, self)


class _Stoppable:
    def __init__(self, runtime: Runtime, interrupts: JobInterrupts) -> None:
        self._runtime, self._interrupts = runtime, interrupts

    def __reduce__(self) -> tuple[Any, ...]:
        # Storages take it along to Spark's tasks, which Spark itself ends.
        return _itself, (self._runtime,)

    def sleep_ms(self, duration_ms: int) -> None:
        if self._interrupts.wakes:
            self._interrupts.sleep_ms(duration_ms)
        else:
            self._runtime.sleep_ms(duration_ms)

    def is_stopping(self) -> bool:
        return self._interrupts.is_stopped or self._runtime.is_stopping()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class _Stopped:
    def __init__(self, listener: Listener, interrupts: JobInterrupts) -> None:
        self._listener, self._interrupts = listener, interrupts

    def on(self, event: Event) -> None:
        """Pass it on; what has been committed is told in any case."""
        self._listener.on(event)
        if isinstance(event.event if isinstance(event, InRun) else event, _BETWEEN_STEPS):
            self._interrupts.check()


def _itself(runtime: Runtime) -> Runtime:
    return runtime
