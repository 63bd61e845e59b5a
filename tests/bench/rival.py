"""What the process of each rival does: plan, measure, answer with one JSON line. Standard library only.

Such a process gets its request as the only argument, a JSON object. Whatever else it prints goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 20
"""A rival whose first call takes longer is not called again: what a second one saves does not matter then."""


def request() -> dict[str, Any]:
    """What is asked of this process."""
    return json.loads(sys.argv[1])


def answering() -> Callable[[dict[str, Any]], None]:
    """A function that answers; Spark's JVM and all others write to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    return answer


def measured(load: Callable[[], Any], plan: Callable[[Any], tuple[int, int]], repeat: int) -> dict[str, Any]:
    """Plan once, then `repeat` times more, each time a table that was just loaded; loading is not counted.

    Args:
        plan: gives the number of files and the sum of their bytes.

    Returns:
        `first_s`, the best of the others as `warm_s`, `files` and `bytes`.
    """
    seconds, results = [], set()
    for _ in range(1 + repeat):
        table = load()
        began = time.perf_counter()
        results.add(plan(table))
        seconds.append(time.perf_counter() - began)
        if seconds[0] > PATIENCE_S:
            break
    if len(results) > 1:
        raise AssertionError(f"the same plan has different results: {sorted(results)}")
    [(files, size_bytes)] = results
    return {"first_s": seconds[0], "warm_s": min(seconds[1:] or seconds), "files": files, "bytes": size_bytes}


def peak_bytes(pid: int) -> int:
    """The most memory that a process had at once (resident set)."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return peaks[0] * 1024 if peaks else 0


def memory(spark: Any = None) -> dict[str, int]:
    """The peaks of this Python and of Spark's JVM, which in local mode is driver and executor at once."""
    python = {"python_bytes": peak_bytes(os.getpid())}
    if spark is None:
        return python
    return {**python, "jvm_bytes": peak_bytes(spark._jvm.java.lang.ProcessHandle.current().pid())}
