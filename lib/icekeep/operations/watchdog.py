"""The death of spark-submit, noticed by the Python driver that it started.

Where `kill -9`, or a machine that runs out of memory, ends the JVM of spark-submit, the driver that it started lives on: its
scheduler takes the run for dead and may start another, while finished work waits here to be committed. `commit` asks
`Runtime.is_abandoned` right before each swap and commits nothing more. The watch below ends the process, as SIGTERM would,
unless a call to the JVM fails first: then the job ends as unavailable.

What holds where:

* `spark-submit` in client mode: the JVM on this machine is the driver's parent, and its death is noticed within half a second.
* Cluster mode (YARN, Kubernetes): the JVM that runs the driver in its container or pod is the parent there, so the same
  holds. When a container is killed or a machine is lost, both die. The `spark-submit` that only waits elsewhere is no parent,
  and its death means nothing.
* `icekeep JOB`, a notebook, any Python that starts Spark itself: the JVM is the child. When it dies the calls to it fail, and
  the job ends by itself; a process that lives may commit groups that are finished, and tells what came of it.
* A wrapper between the two (`spark.pyspark.driver.python` is a script that does not `exec` Python) is the parent, and hides
  the death of the JVM for as long as it lives: then only failing calls end the job. One that ends, with Python going on, looks
  like a death: `ICEKEEP_SUBMITTER=none` says that it is none.

A swap that has begun when spark-submit dies is not called back: it lands or not, as if it had come a moment earlier.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from icekeep.errors import UnavailableError, says_why
from icekeep.events import Listener, Warned
from icekeep.runtime import Runtime

_INTERVAL_SECONDS = 0.5
_GRACE_SECONDS = 60.0
_DYING_SECONDS = 0.5
_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def ending_when_abandoned(
    runtime: Runtime,
    listener: Listener,
    interval_seconds: float = _INTERVAL_SECONDS,
    grace_seconds: float = _GRACE_SECONDS,
) -> Iterator[None]:
    """End this process by SIGTERM, with the clean-up that belongs to it, if it is abandoned while the block runs.

    Args:
        grace_seconds: how long the clean-up may take; then the process ends as it is, since calls to a JVM that is gone may
            wait for ever.

    Raises:
        UnavailableError: the block failed because the JVM is gone, be it this process's parent or its child.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(interval_seconds):
            if runtime.is_abandoned():
                _end(listener, grace_seconds)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        with telling_of_a_dead_jvm(runtime):
            yield
    finally:
        over.set()


@contextmanager
def telling_of_a_dead_jvm(runtime: Runtime) -> Iterator[None]:
    """Say of what the block raises that the JVM is gone, where nothing else explains it.

    Raises:
        UnavailableError: the block failed because the JVM is gone, be it this process's parent or its child.
    """
    try:
        yield
    except Exception as failure:
        if not says_why(failure) and (runtime.is_abandoned() or _own_jvm_has_ended()):
            raise UnavailableError(
                "the JVM of Spark is gone (killed, or out of memory?); nothing is broken, run it again"
            ) from failure
        raise


def _end(listener: Listener, grace_seconds: float) -> None:
    listener.on(
        Warned("the process that started this one (spark-submit) is gone: the work ends, nothing more is committed")
    )
    os.kill(os.getpid(), signal.SIGTERM)
    # Not until the block is over: what hangs may be what Python does at the end of a process.
    threading.Event().wait(grace_seconds)
    os._exit(_TERMINATED)


def _own_jvm_has_ended() -> bool:
    """Whether this process has started a JVM, and that is gone or about to go."""
    pyspark = sys.modules.get("pyspark")
    # Nothing public of PySpark tells; there is no context where a JVM ended before one was made.
    jvm = getattr(getattr(getattr(pyspark, "SparkContext", None), "_gateway", None), "proc", None)
    if jvm is None:
        return False
    try:
        # Its connections are closed a moment before the process has ended.
        jvm.wait(_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True
