"""Streams that are closed, and stderr under spark-submit.

In client mode spark-submit starts the Python driver with stderr merged into stdout, so that progress would end up in the
middle of the one JSON object that stdout promises. The JVM's own stderr is still there, one process up.
"""

import os
import sys


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
    sys.stderr.flush()
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
