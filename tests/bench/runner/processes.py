"""Processes of rivals: started one at a time, their answers read."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 3600
_LOG_LINES = 12


class RivalFailedError(Exception):
    """A rival ended without an answer, or with one that cannot be; the message says so, with the end of what it wrote."""


def run(command: Sequence[str], python_path: Sequence[Path] = ()) -> dict[str, Any]:
    """Run a rival to its end; its answer is the last line of what it prints.

    Raises:
        RivalFailedError: it fails, says nothing, or takes longer than `TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        log, out = Path(directory, "log"), Path(directory, "out")
        with log.open("wb") as err, out.open("wb") as answers:
            environment = _environment(command, python_path)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=answers, stderr=err, cwd=directory, env=environment
            )
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise RivalFailedError(f"{command[0]} has not ended after {TIMEOUT_S} s") from error
            finally:
                process.kill()
                process.wait()
        lines = out.read_text(errors="replace").splitlines()
        if process.returncode == 0 and lines:
            return dict(json.loads(lines[-1]))
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise RivalFailedError(f"{command[0]} ended with status {process.returncode}: {tail[-3000:]}")


def _environment(command: Sequence[str], python_path: Sequence[Path]) -> dict[str, str]:
    """The caller's environment without its Spark: the Python beside the program is that of driver and workers."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    python = str(Path(command[0]).with_name("python"))
    path = os.pathsep.join(map(str, python_path))
    return {**kept, "TZ": "UTC", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": path}
