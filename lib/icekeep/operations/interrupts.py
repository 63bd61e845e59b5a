"""What ends a job early: SIGTERM, Ctrl-C and the death of spark-submit. The job unwinds and cleans up, and the status says why.

**Signals.** The work is cancelled, and an exception unwinds the job. Spark installs a handler of its own for Ctrl-C that fails in
the middle of a call to the JVM, so ours is put back when the session is there.

A signal reaches the main thread alone. A job in a thread of a process that runs several ends where it reports a step, or where
it sleeps: once, and not while it cleans up after something else, though that waits at most some seconds then for what is out of
reach. So it is with a signal in a process that has one job: a second one breaks no clean-up that the first one began.

**The death of spark-submit** is noticed by the Python driver that it started. Where `kill -9`, or a machine that runs out of
memory, ends the JVM of spark-submit, the driver that it started lives on: its scheduler takes the run for dead and may start
another, while finished work waits here to be committed. `commit` asks `Runtime.is_abandoned` right before each swap and commits
nothing more. The watch below ends the process, as SIGTERM would, unless a call to the JVM fails first: then the job ends as
unavailable.

What holds where:

* `spark-submit` in client mode: the JVM on this machine is the driver's parent, and its death is noticed within half a second.
* Cluster mode (YARN, Kubernetes): the JVM that runs the driver in its container or pod is the parent there, so the same
  holds. When a container is killed or a machine is lost, both die. The `spark-submit` that only waits elsewhere is no parent,
  and its death means nothing.
* `icekeep JOB`, a notebook, any Python that starts Spark itself: the JVM is the child. When it dies the calls to it fail, and
  the job ends by itself; a process that lives may commit groups that are finished, and tells what came of it.
* A wrapper between the two (`spark.pyspark.driver.python` is a script that does not `exec` Python) is the parent, and hides
  the death of the JVM for as long as it lives: then only failing calls end the job. One that ends, with Python going on, looks
  like a death: `ICEKEEP_SUBMITTER=none` says that it is none.

A swap that has begun when spark-submit dies is not called back: it lands or not, as if it had come a moment earlier.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

from icekeep.errors import UnavailableError, says_why
from icekeep.events import CommitRetried, Event, InRun, Listener, StepAdvanced, StepStarted, Warned
from icekeep.runtime import Runtime, is_cleaning_up

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """A signal asked the process to end; the code is the shell's: 128 and the signal's number."""


class Interrupts:
    """The handlers while a command runs.

    Attributes:
        signal: the one that was taken, `None` as long as none was.
    """

    def __init__(self) -> None:
        self._cancel: Callable[[], None] | None = None
        self._is_delivering = self._is_spared = False
        self.signal: signal.Signals | None = None

    def install(self, cancel: Callable[[], None] | None = None) -> None:
        """Take the signals (again), and call `cancel` before one unwinds the job.

        Signals can be taken in the main thread only; elsewhere this does nothing.
        """
        self._cancel = cancel
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle)

    def spare_delivery(self) -> None:
        """From now on the work is done, and its answer is delivered: the next signal is passed over, and one after it ends that.

        An answer that is cut off looks like a failure to its reader; but it may go to a reader that never reads on.
        """
        self._is_delivering = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._is_delivering and not self._is_spared:
            self._is_spared = True
            return
        if self._is_delivering:
            raise Interrupted(128 + number)
        # A second signal must not break the clean-up that the first one began; SIGKILL is left for that.
        if self.signal is not None:
            return
        self.signal = signal.Signals(number)
        if self._cancel is not None:
            self._cancel()
        raise Interrupted(128 + number)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take the signals for the length of a block and put the handlers back that were there before."""
    before: list[Any] = [signal.getsignal(number) for number in _SIGNALS]
    taken = Interrupts()
    taken.install()
    try:
        yield taken
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(_SIGNALS, before, strict=True):
                # One that was not installed from Python cannot be put back.
                if handler is not None:
                    signal.signal(number, handler)


@contextmanager
def passing_on() -> Iterator[Interrupts]:
    """Take the signals for the length of a block; one that came is raised again after it, for the handler that was there before.

    So a program that calls the work ends, or goes on, as it would have without it, once the work has cleaned up.

    Raises:
        KeyboardInterrupt: the block was ended by a signal, and the handler of the program did not end it.
    """
    taken = Interrupts()
    try:
        with interrupts() as taken:
            yield taken
    except BaseException as ended:
        _raise_again(taken)
        if isinstance(ended, Interrupted):
            raise KeyboardInterrupt from None
        raise
    _raise_again(taken)


def _raise_again(taken: Interrupts) -> None:
    if taken.signal is not None:
        signal.raise_signal(taken.signal)


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


_INTERVAL_SECONDS = 0.5
_GRACE_SECONDS = 60.0
_DYING_SECONDS = 0.5
_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def ending_when_abandoned(
    runtime: Runtime,
    listener: Listener,
    interval_seconds: float = _INTERVAL_SECONDS,
    grace_seconds: float = _GRACE_SECONDS,
) -> Iterator[None]:
    """End this process by SIGTERM, with the clean-up that belongs to it, if it is abandoned while the block runs.

    Args:
        grace_seconds: how long the clean-up may take; then the process ends as it is, since calls to a JVM that is gone may
            wait for ever.

    Raises:
        UnavailableError: the block failed because the JVM is gone, be it this process's parent or its child.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(interval_seconds):
            if runtime.is_abandoned():
                _end(listener, grace_seconds)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        with explaining_dead_jvm(runtime):
            yield
    finally:
        over.set()


@contextmanager
def explaining_dead_jvm(runtime: Runtime) -> Iterator[None]:
    """Say of what the block raises that the JVM is gone, where nothing else explains it.

    Raises:
        UnavailableError: the block failed because the JVM is gone, be it this process's parent or its child.
    """
    try:
        yield
    except Exception as failure:
        if not says_why(failure) and (runtime.is_abandoned() or _own_jvm_has_ended()):
            raise UnavailableError(
                "the JVM of Spark is gone (killed, or out of memory?); nothing is broken, run it again"
            ) from failure
        raise


def _end(listener: Listener, grace_seconds: float) -> None:
    listener.on(
        Warned("the process that started this one (spark-submit) is gone: the work ends, nothing more is committed")
    )
    os.kill(os.getpid(), signal.SIGTERM)
    # Not until the block is over: what hangs may be what Python does at the end of a process.
    threading.Event().wait(grace_seconds)
    os._exit(_TERMINATED)


def _own_jvm_has_ended() -> bool:
    """Whether this process has started a JVM, and that is gone or about to go."""
    pyspark = sys.modules.get("pyspark")
    # Nothing public of PySpark tells; there is no context where a JVM ended before one was made.
    jvm = getattr(getattr(getattr(pyspark, "SparkContext", None), "_gateway", None), "proc", None)
    if jvm is None:
        return False
    try:
        # Its connections are closed a moment before the process has ended.
        jvm.wait(_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True
