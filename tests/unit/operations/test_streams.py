import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

CHILD = """
import sys
from icekeep.operations.streams import separate_stderr
separate_stderr()
print("progress", file=sys.stderr, flush=True)
print("result", flush=True)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.run([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(child.stdout, end="")
"""


def parent(**environment: str) -> subprocess.CompletedProcess[str]:
    """A process that starts a child as spark-submit starts Python: with stderr merged into stdout."""
    return subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )


def test_under_spark_submit_progress_goes_to_the_stderr_of_the_process_above() -> None:
    done = parent(PYSPARK_GATEWAY_PORT="25333")
    assert (done.stdout, done.stderr) == ("result\n", "progress\n")


def test_without_spark_submit_nothing_is_moved() -> None:
    done = parent()
    assert (done.stdout, done.stderr) == ("progress\nresult\n", "")
