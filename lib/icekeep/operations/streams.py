"""stderr under spark-submit.

In client mode spark-submit starts the Python driver with stderr merged into stdout, so that progress would end up in the
middle of the one JSON object that stdout promises. The JVM's own stderr is still there, one process up.
"""

import os
import sys


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


def _same_file(left: int, right: int) -> bool:
    try:
        return os.path.sameopenfile(left, right)
    except OSError:
        return False
