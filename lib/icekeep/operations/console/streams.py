"""Streams that are closed, stderr under spark-submit, and stderr of which every line is taken.

In client mode spark-submit starts the Python driver with stderr merged into stdout, so that progress would end up in the
middle of the one JSON object that stdout promises. The JVM's own stderr is still there, one process up.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class LossyStream:
    """A stream whose reader may have gone: what cannot be written is dropped, and the job goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it; returns its length."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was written, or drop it."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def open_closed_streams() -> None:
    """Let go nowhere what is said on a stream that whoever started this process has closed (`>&-`, `2>&-`).

    Python has `None` in its place, so that each line of progress would be an error. Also no file is given the number of a
    closed stream, to which others would print.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number and not _is_open(number):
                os.dup2(nowhere, number)
                os.close(nowhere)
                nowhere = number
            setattr(sys, name, os.fdopen(nowhere, "w"))


def separate_stderr() -> None:
    """Give this process the stderr of the spark-submit that started it; without one, nothing happens.

    Where that cannot be reached (no /proc, another user's process) and stdout is not a terminal, stderr goes nowhere:
    errors are in the result too, and the result must stay readable for machines.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ or not _same_file(1, 2):
        return
    LossyStream(sys.stderr).flush()
    try:
        parent = os.open(f"/proc/{os.getppid()}/fd/2", os.O_WRONLY | os.O_APPEND)
    except OSError:
        if os.isatty(1):
            return
        parent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(parent, 2)
    os.close(parent)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _same_file(left: int, right: int) -> bool:
    try:
        return os.path.sameopenfile(left, right)
    except OSError:
        return False


_OWN_STDERR = 2
_FLUSH_SECONDS = 2


@contextmanager
def lines_of_stderr(take: Callable[[str], None]) -> Iterator[TextIO | None]:
    """Take all that this process and those that it starts write to stderr, line by line, while the block lasts.

    A JVM and libraries write there past Python. Where `sys.stderr` is not the process's own stderr, as under a test or in a
    notebook, nothing is taken.

    Args:
        take: is given each line, without its end, in a thread of its own.

    Yields:
        Where stderr has been; `None` where nothing is taken.
    """
    if not _is_own_stderr():
        yield None
        return
    LossyStream(sys.stderr).flush()
    before = os.dup(_OWN_STDERR)
    reading, writing = os.pipe()
    os.dup2(writing, _OWN_STDERR)
    os.close(writing)

    def read() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                take(line.rstrip("\r\n"))

    reader = threading.Thread(target=read, name="icekeep stderr", daemon=True)
    reader.start()
    stream = open(before, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closing it may fail
    try:
        yield stream
    finally:
        LossyStream(sys.stderr).flush()
        os.dup2(before, _OWN_STDERR)
        # A process that was started and lives on still has the other end.
        reader.join(_FLUSH_SECONDS)
        # What could not be written is still in its buffer, and closing it tries once more.
        with suppress(OSError):
            stream.close()


def _is_own_stderr() -> bool:
    try:
        return sys.stderr.fileno() == _OWN_STDERR
    except (OSError, ValueError, AttributeError):
        return False
