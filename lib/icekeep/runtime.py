"""Time, sleep, randomness and identifiers: the only file that touches them.

Everything else takes a `Runtime`, so that a simulation can hand in its own and a test can fix the clock.
"""

import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Protocol


class Runtime(Protocol):
    """What the library may ask of the world besides storage and catalogs."""

    def now_ms(self) -> int:
        """Epoch milliseconds, UTC."""

    def monotonic_ms(self) -> int:
        """A clock that never goes back, in milliseconds, for measuring spans."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for `duration_ms` milliseconds."""

    def uniform(self, low: float, high: float) -> float:
        """A random number between `low` and `high`, for jitter."""

    def new_uuid(self) -> uuid.UUID:
        """A random version 4 UUID."""

    def is_abandoned(self) -> bool:
        """Whether the process that started this one, and would tell what came of it, is gone: then nothing is committed.

        Who started the work takes it for dead, and may have begun it again.
        """

    def is_stopping(self) -> bool:
        """Whether the work is being stopped, by somebody who waits for its end no longer than some seconds."""


class SystemRuntime:
    """The real clock, the real randomness and the real processes of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def new_uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def is_abandoned(self) -> bool:
        return _SUBMITTER.is_gone()

    def is_stopping(self) -> bool:
        return is_interrupted()


class _CleanUps(threading.local):
    open_count = 0


_CLEAN_UPS = _CleanUps()


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Take what this thread does while the block lasts for a clean-up, which a job that is to end does still to its end."""
    _CLEAN_UPS.open_count += 1
    try:
        yield
    finally:
        _CLEAN_UPS.open_count -= 1


def is_cleaning_up() -> bool:
    """Whether this thread is in such a block, or does what is done after an error or an interrupt."""
    return _CLEAN_UPS.open_count > 0 or sys.exc_info()[1] is not None


def interrupt_behind(error: BaseException) -> BaseException | None:
    """The interrupt (`KeyboardInterrupt`, `SystemExit`) that an error is, or was raised from; `None` if there is none.

    One that was only being handled meanwhile, by whoever called, is none of its own.
    """
    return next((one for one in _behind(error, with_contexts=False) if isinstance(one, _INTERRUPTS)), None)


def is_interrupted() -> bool:
    """Whether what this thread does comes after an interrupt that is on its way up."""
    return any(isinstance(one, _INTERRUPTS) for one in _behind(sys.exc_info()[1], with_contexts=True))


_INTERRUPTS = (KeyboardInterrupt, SystemExit)


def _behind(error: BaseException | None, *, with_contexts: bool) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    link, seen = error, set[int]()
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or (link.__context__ if with_contexts else None)


_STOPPING_PATIENCE_MS = 10_000
"""A pod is given 30 s from the request to stop to its kill, a task of Airflow 45 s."""


def patience_ms(runtime: Runtime, timeout_ms: int) -> int:
    """How long something that is out of reach is waited for: `timeout_ms`, but no longer than some seconds by who is stopped."""
    return min(timeout_ms, _STOPPING_PATIENCE_MS) if runtime.is_stopping() else timeout_ms


SUBMITTER = "ICEKEEP_SUBMITTER"
"""The environment variable that says whose end makes this process an abandoned one: one of `SUBMITTERS`."""

SUBMITTERS = ("parent", "none")
"""The process above this one; nobody."""


class Submitter:
    """The `spark-submit` that started this process: its JVM, which a Python driver outlives when it is killed.

    A process that a shell or a scheduler started has none: it may go on when these end, and tells its outcome itself. A
    driver that was forked from one that was submitted has that one in its place. Where a wrapper starts Python and ends,
    as it is meant to, the process above is none; the variable `SUBMITTER` says so, or that any process above is one.
    """

    def __init__(self) -> None:
        self._process_id: int | None = None
        self.remember()
        os.register_at_fork(after_in_child=self.remember)

    def remember(self) -> None:
        """Take the process above this one for the submitter, if there is one."""
        told = os.environ.get(SUBMITTER)
        has_one = told == "parent" or (told != "none" and "PYSPARK_GATEWAY_PORT" in os.environ)
        self._process_id = os.getppid() if has_one else None

    def is_gone(self) -> bool:
        """Whether it has ended; another process is above this one from the moment that it has."""
        return self._process_id is not None and os.getppid() != self._process_id


_SUBMITTER = Submitter()
SYSTEM = SystemRuntime()


def new_snapshot_id(runtime: Runtime, taken: Container[int] = frozenset()) -> int:
    """A positive 63-bit snapshot id that is not in `taken` (spec, Appendix F "Assignment of Snapshot IDs")."""
    while True:
        number = runtime.new_uuid().int
        candidate = ((number >> 64) ^ (number & (2**64 - 1))) & (2**63 - 1)
        if candidate and candidate not in taken:
            return candidate


def new_token() -> str:
    """A text of 43 characters for an address that nobody can guess: 256 random bits, fit for secrets."""
    return secrets.token_urlsafe(32)


def process_cpu_ms() -> int:
    """The processor time that this process has taken, in milliseconds: what work costs, never what is decided by."""
    return time.process_time_ns() // 1_000_000


def thread_cpu_ms() -> int:
    """The same of this thread alone."""
    return time.thread_time_ns() // 1_000_000
