"""Processes of rivals: started one at a time, watched from outside, their answers read."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.rival import peak_bytes

TIMEOUT_S = 3600
_GLANCE_S = 0.05
_LOG_LINES = 12


class RivalFailedError(Exception):
    """A rival's process ended without an answer, or not at all; the message is the end of what it wrote."""


class Ended(msgspec.Struct, frozen=True):
    """A process that has ended: its answer, the time from its start to its end, and the most memory that it had.

    `python_bytes` is that of the driver's Python below spark-submit, 0 for a process that is no spark-submit.
    """

    answer: dict[str, Any]
    seconds: float
    process_bytes: int
    python_bytes: int


def run(command: Sequence[str], script: str) -> Ended:
    """Run a rival to its end.

    Args:
        script: the Python file that is the driver, as it stands in the command: Spark's workers are not counted.

    Raises:
        RivalFailedError: it fails, says nothing, or takes longer than `TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        log, out = Path(directory, "log"), Path(directory, "out")
        with log.open("wb") as err, out.open("wb") as answers:
            began = time.perf_counter()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=answers, stderr=err, cwd=directory, env=_environment(command)
            )
            try:
                process_bytes, python_bytes = _watch(process, script)
                seconds = time.perf_counter() - began
            except BaseException:
                process.kill()
                process.wait()
                raise
        lines = out.read_text(errors="replace").splitlines()
        if process.returncode == 0 and lines:
            return Ended(json.loads(lines[-1]), seconds, process_bytes, python_bytes)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise RivalFailedError(f"{script} ended with status {process.returncode}: {tail[-3000:]}")


def _environment(command: Sequence[str]) -> dict[str, str]:
    """The caller's environment without its Spark: the Python beside the program is that of driver and workers."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    python = str(Path(command[0]).with_name("python"))
    return {**kept, "TZ": "UTC", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


def _watch(process: subprocess.Popen[bytes], script: str) -> tuple[int, int]:
    """Wait for the end; the most memory of the process and of its Python, by looking now and then.

    What the kernel reports at the end is the larger of the two: a process has waited for its children.
    """
    driver, process_bytes, python_bytes = None, 0, 0
    deadline = time.perf_counter() + TIMEOUT_S
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            return process_bytes, python_bytes
        process_bytes = max(process_bytes, _peak_bytes(process.pid))
        driver = driver or _child(process.pid, script)
        if driver is not None:
            python_bytes = max(python_bytes, _peak_bytes(driver))
        time.sleep(_GLANCE_S)
    raise RivalFailedError(f"{script} has not ended after {TIMEOUT_S} s")


def _peak_bytes(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return peak_bytes(pid)
    return 0


def _child(parent: int, script: str) -> int | None:
    """The child of a process that runs a Python file."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            after_name = (process / "stat").read_text().rpartition(")")[2].split()
            # First after the program: spark-submit's own launcher has the script further behind.
            if int(after_name[1]) == parent and (process / "cmdline").read_text().split("\0")[1:2] == [script]:
                return int(process.name)
    return None
