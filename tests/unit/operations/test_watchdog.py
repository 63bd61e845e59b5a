"""With real processes: a starter that is killed with -9, and what the driver that it started does then."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from icekeep.errors import IcekeepBug, InvalidTableError, JobFailedError, NotFoundError, UnavailableError
from icekeep.events import SILENT
from icekeep.operations.interrupts import Interrupted, ending_when_abandoned
from icekeep.planning.spark.failures import known_error, spark_failed
from kit.changes import Recorder
from kit.runtime import FakeRuntime

pytestmark = pytest.mark.process

STARTER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
"""
# Only the watchdog ends this before half a minute is over. `stubborn` stands for a clean-up that calls a dead JVM.
DRIVER = """
import os, sys, threading
from icekeep.operations.interrupts import interrupts
from icekeep.operations.interrupts import ending_when_abandoned
from icekeep.runtime import SYSTEM

class Telling:
    def on(self, event):
        print(event.message, flush=True)

def wait_long():
    threading.Event().wait(30)

grace_seconds = 0.2 if "stubborn" in sys.argv else 60
with interrupts():
    try:
        with ending_when_abandoned(SYSTEM, Telling(), 0.02, grace_seconds):
            print("ready", flush=True)
            if "finished" not in sys.argv:
                wait_long()
    except BaseException as error:
        print("unwound:", type(error).__name__, error.code, flush=True)
        if "stubborn" in sys.argv:
            wait_long()
    print("cleaned up", flush=True)
    if "finished" in sys.argv:
        sys.stdin.readline()
        print("still here", flush=True)
"""
GONE = "the process that started this one (spark-submit) is gone: the work ends, nothing more is committed"


def after_the_kill(how: str, *, submitted: bool = True) -> list[str]:
    """What a driver says once its starter was killed, up to its own end."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_GATEWAY_PORT"} | {"PYTHONPATH": paths}
    if submitted:
        environment["PYSPARK_GATEWAY_PORT"] = "1"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, DRIVER, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        cwd=Path.cwd(),
    )
    assert starter.stdout is not None
    assert starter.stdin is not None
    assert starter.stdout.readline() == "ready\n"
    said = []
    if how == "finished":
        said.append(starter.stdout.readline().strip())
    starter.kill()
    starter.wait()
    starter.stdin.close()
    # The driver holds the other end: this ends when it does.
    with starter.stdout as lines:
        return [*said, *(line.strip() for line in lines)]


def test_driver_unwinds_as_by_sigterm_when_submitter_is_killed():
    assert after_the_kill("working") == [GONE, "unwound: Interrupted 143", "cleaned up"]


def test_a_driver_whose_clean_up_hangs_ends_all_the_same():
    assert after_the_kill("stubborn") == [GONE, "unwound: Interrupted 143"]


def test_a_driver_whose_work_is_over_is_left_alone():
    assert after_the_kill("finished") == ["cleaned up", "still here"]


def test_without_a_death_nothing_happens():
    heard = Recorder()
    with ending_when_abandoned(FakeRuntime(), heard, 0.001):
        watching = [thread for thread in threading.enumerate() if thread.name == "watchdog"]
    assert heard.events == []
    assert len(watching) == 1
    watching[0].join(20)
    assert not watching[0].is_alive()


def abandoned() -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.abandoned = True
    return runtime


def failed_job(*causes: Exception) -> JobFailedError:
    """A failed job that came of others, the last of which was the first to fail."""
    failed = JobFailedError("cannot rewrite 10 files")
    whole: Exception = failed
    for cause in causes:
        whole.__cause__ = cause
        whole = cause
    return failed


REFUSED = ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    "failure",
    [
        REFUSED,
        failed_job(REFUSED),
        failed_job(JobFailedError("Spark failed"), REFUSED),
        failed_job(UnavailableError("the store does not answer")),
        JobFailedError("Spark failed"),
    ],
    ids=["a call", "a group of files", "all groups", "what would be tried again", "nothing that caused it"],
)
def test_what_fails_because_the_jvm_above_is_gone_says_so(failure):
    with (
        pytest.raises(UnavailableError, match=r"the JVM of Spark is gone.*run it again") as raised,
        ending_when_abandoned(abandoned(), SILENT, interval_seconds=60),
    ):
        raise failure
    assert raised.value.__cause__ is failure


@pytest.mark.parametrize(
    "failure",
    [
        NotFoundError("no table"),
        Interrupted(143),
        failed_job(IcekeepBug("9 rows where 10 went in, kept as evidence: 's3://lake/x.parquet'")),
        failed_job(JobFailedError("a group"), InvalidTableError("a damaged file")),
        failed_job(known_error(OSError(28, "No space left on device"), "a task")),
        failed_job(spark_failed(MemoryError())),
        pickle.loads(pickle.dumps(known_error(OSError(28, "No space left on device"), "a task"))),
        UnavailableError("the store does not answer"),
    ],
    ids=[
        "no table",
        "Ctrl-C",
        "wrong rows",
        "a damaged file",
        "a full disk",
        "no memory",
        "a full disk of an executor",
        "a store that is away",
    ],
)
def test_what_is_known_better_stays(failure):
    with (
        pytest.raises(type(failure)) as raised,
        ending_when_abandoned(abandoned(), SILENT, interval_seconds=60),
    ):
        raise failure
    assert raised.value is failure


class Context:
    """As much of PySpark as holds a JVM that was started from here."""

    class _Gateway:
        proc: subprocess.Popen[bytes] | None = None

    _gateway: "Context._Gateway | None" = None


@pytest.fixture
def jvm(monkeypatch):
    """A process in the JVM's place."""
    started = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    gateway = Context._Gateway()
    gateway.proc = started
    monkeypatch.setattr(Context, "_gateway", gateway)
    monkeypatch.setitem(sys.modules, "pyspark", type("pyspark", (), {"SparkContext": Context}))
    yield started
    started.kill()
    started.communicate()


def test_what_fails_because_the_jvm_below_was_killed_says_so(jvm):
    os.kill(jvm.pid, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="JVM of Spark is gone"), ending_when_abandoned(FakeRuntime(), SILENT):
        raise ConnectionResetError(104, "Connection reset by peer")


@pytest.mark.usefixtures("jvm")
def test_what_fails_while_the_jvm_lives_stays():
    with pytest.raises(ValueError, match="another fault"), ending_when_abandoned(FakeRuntime(), SILENT):
        raise ValueError("another fault")


def test_a_session_that_was_given_has_no_jvm_of_ours(monkeypatch):
    monkeypatch.setattr(Context, "_gateway", Context._Gateway())
    monkeypatch.setitem(sys.modules, "pyspark", type("pyspark", (), {"SparkContext": Context}))
    with pytest.raises(ValueError, match="another fault"), ending_when_abandoned(FakeRuntime(), SILENT):
        raise ValueError("another fault")
