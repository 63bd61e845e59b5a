"""Manifests and manifest lists that had to be read by fastavro, entry by entry, ten to twenty times slower: counted and told.

DataFusion's reader is the fast way. Where it fails, or what it gives is in doubt, the slow way gives the entries or the exact
error; a release of it that always failed would show in nothing but time. Each process counts for itself, and what a Spark
task counts comes to the driver with the task's report (`spark.tasks.run_tasks`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from icekeep.events import SILENT, Listener, Warned


class SlowReads(msgspec.Struct, frozen=True):
    """How many files were read in the slow way; `example` is one line about one of them."""

    count: int = 0
    example: str = ""

    def __add__(self, other: "SlowReads") -> "SlowReads":
        return SlowReads(self.count + other.count, self.example or other.example)


class _Tally:
    """What this process has counted, and who is told of the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Listener = SILENT
        self._has_told = False
        self.all = SlowReads()

    def add(self, some: SlowReads) -> None:
        if not some.count:
            return
        with self._lock:
            self.all += some
            tells, self._has_told = not self._has_told, True
            listener = self._listener
        if tells:
            listener.on(Warned(f"{some.example}; such files are read about ten times slower"))

    def listen(self, listener: Listener) -> Listener:
        with self._lock:
            before, self._listener, self._has_told = self._listener, listener, False
        return before


_TALLY = _Tally()


def note_slow_read(location: str, reason: Exception | str) -> None:
    """Count a file that is read in the slow way; the first is told to the listener of `warning_of_slow_reads`."""
    add_slow_reads(SlowReads(1, f"{location!r} is read by fastavro, as DataFusion's reader fails: {_line(reason)}"))


def add_slow_reads(some: SlowReads) -> None:
    """Take in what another process has counted."""
    _TALLY.add(some)


def slow_reads() -> SlowReads:
    """All that this process has counted; the difference of two counts is what was read between them."""
    return _TALLY.all


def slow_reads_since(count: int) -> SlowReads:
    """What this process has read in the slow way since it had counted so many."""
    found = slow_reads()
    return SlowReads(found.count - count, found.example) if found.count > count else SlowReads()


@contextmanager
def warning_of_slow_reads(listener: Listener) -> Iterator[None]:
    """Tell a listener of the first file that is read in the slow way while the block lasts."""
    before = _TALLY.listen(listener)
    try:
        yield
    finally:
        _TALLY.listen(before)


def _line(reason: Exception | str) -> str:
    return " ".join(str(reason).split()) or "it does not say why"
