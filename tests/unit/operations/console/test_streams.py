import json
import os
import subprocess
import sys

import pytest

from icekeep.operations.console.streams import lines_of_stderr

pytestmark = pytest.mark.process

CHILD = """
import sys
from icekeep.operations.console.streams import separate_stderr
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


def test_progress_goes_to_parent_stderr_under_spark_submit() -> None:
    done = parent(PYSPARK_GATEWAY_PORT="25333")
    assert (done.stdout, done.stderr) == ("result\n", "progress\n")


def test_without_spark_submit_nothing_is_moved() -> None:
    done = parent()
    assert (done.stdout, done.stderr) == ("progress\nresult\n", "")


TAKING = """
import json, os, subprocess, sys
from icekeep.operations.console.logs import configure_logs, only_log_lines
import logging
configure_logs(verbose=False, log_format="json")
with only_log_lines():
    logging.getLogger("icekeep.x").warning("ours")
    print("of python", file=sys.stderr, flush=True)
    print(json.dumps({"a": 1}), file=sys.stderr, flush=True)
    os.write(2, "26/11/27 07:32:23 WARN Utils: of log4j\\n2026-11-27T07:32:23Z ERROR a.B: of ours\\n".encode())
    subprocess.run([sys.executable, "-c", "import sys; print('WARNING: of a child', file=sys.stderr)"], check=True)
    for number in range(300):
        print(json.dumps({"b": number}), file=sys.stderr)
print("afterwards", file=sys.stderr)
"""


def test_each_line_on_stderr_becomes_one_of_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", TAKING], capture_output=True, text=True, check=True)
    *lines, last = done.stderr.splitlines()
    found = [json.loads(line) for line in lines]
    assert last == "afterwards"
    assert sorted((one["level"], one["logger"], one["message"]) for one in found if not {"a", "b"} & one.keys()) == [
        ("error", "jvm", "a.B: of ours"),
        ("info", "stderr", "of python"),
        ("warning", "icekeep.x", "ours"),
        ("warning", "jvm", "Utils: of log4j"),
        ("warning", "jvm", "of a child"),
    ]
    assert {"a": 1} in found
    # What is written last is not lost, and not told twice.
    assert [one["b"] for one in found if "b" in one] == [*range(300)]


LIVING_ON = """
import subprocess, sys, time
from icekeep.operations.console.streams import lines_of_stderr
began = time.monotonic()
with lines_of_stderr(lambda line: None):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print("back", file=sys.stderr)
child.kill()
assert time.monotonic() - began < 30
"""


@pytest.mark.slow
def test_a_child_that_lives_on_does_not_hold_the_process_up() -> None:
    done = subprocess.run([sys.executable, "-c", LIVING_ON], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "back\n"


READER_GONE = """
import logging, os, sys, threading
from icekeep.operations.console.logs import configure_logs, only_log_lines, say_error
configure_logs(verbose=False, log_format="json")
with only_log_lines():
    os.write(2, b"of a JVM\\n")
    os.write(2, b'{"a": "line of the log"}\\n')
    for number in range(3000):
        logging.getLogger("icekeep.x").warning("line %d, long enough to fill a pipe", number)
        print("of python, long enough to fill a pipe", file=sys.stderr)
    say_error("the end", {"kind": "error"})
    print(*(one.name for one in threading.enumerate() if one.name == "icekeep stderr"))
print("done", flush=True)
"""


def run_without_reader_of_stderr(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a pipe as its stderr that nobody reads, and of which the reading end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=writing, text=True, timeout=60, check=False
        )
    finally:
        os.close(writing)


def test_json_logs_whose_reader_has_gone_hold_up_nothing() -> None:
    done = run_without_reader_of_stderr("-c", READER_GONE)
    assert (done.stdout, done.returncode) == ("icekeep stderr\ndone\n", 0)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_error_that_nobody_reads_keeps_its_exit_status(log_format: str) -> None:
    words = ("config", "show", "--config", "/nowhere/conf.yaml", "--log-format", log_format, "--verbose")
    assert run_without_reader_of_stderr("-m", "icekeep", *words).returncode == 2


def test_where_stderr_is_not_the_process_s_own_nothing_is_taken() -> None:
    with lines_of_stderr(lambda line: None) as stream:
        assert stream is None
