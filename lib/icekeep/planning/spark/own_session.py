"""The session of a command, whose process, JVM and Python workers belong to that command alone (decision 37).

So it is leaner than a shared one: SQL begins when a job needs it, workers do without pandas, and a JVM that is started here
compiles less. An operator's configuration wins.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import install_exception_handler
from pyspark.sql import SparkSession

from icekeep.formats.machine import LIMITED_POOL, POOL_VARIABLE, is_limited, processors_count
from icekeep.planning.spark.configuration import (
    PYTHON_MEMORY,
    SUBMITTED_VARIABLE,
    heap_bytes,
    is_local_master,
    size_bytes,
)
from icekeep.planning.spark.session import build_session, is_running, live_properties, session_settings, starting
from icekeep.planning.spark.tasks import OWN_WORKER_VARIABLE
from icekeep.runs import note_application
from icekeep.spec.types import GIB

_OWN_WORKER = f"spark.executorEnv.{OWN_WORKER_VARIABLE}"
_POOL = f"spark.executorEnv.{POOL_VARIABLE}"
_CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
_CONNECT_PROPERTIES = ("spark.remote", "spark.api.mode")

_JVM_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Other sources of JVM options. Some options exclude each other, and a JVM with both does not start."""

_LATE_COMPILATION = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""The optimizing compiler begins at ten times as many calls: in a short job it costs more than it saves. Hot code, as where Spark
joins millions of rows, still reaches that."""

_ONE_COLLECTOR = "-XX:+UseSerialGC"
_SMALL_PROCESSORS, _SMALL_HEAP_BYTES = 4, 2 * GIB
"""Up to this size the serial garbage collector is the cheapest."""

_SET_BY_CONSTRUCTOR = frozenset({"_jsparkSession", "_jsc", "_jvm", "_profiler_collector"})
"""Attributes that PySpark's constructor sets beside the context."""


def build_own_session(app_name: str) -> SparkSession:
    """Start Spark for a command; as `build_session`, it takes a running session, and raises the same."""
    with starting():
        configured = {} if is_running() else live_properties()
        # Spark Connect has no context in this process.
        if is_running() or os.environ.keys() & {*_CONNECT_VARIABLES} or configured.keys() & {*_CONNECT_PROPERTIES}:
            return build_session(app_name)
        settings = session_settings(configured, {}) | lean_jvms(configured, os.environ)
        if _OWN_WORKER not in configured:
            settings[_OWN_WORKER] = "1"
        is_local = is_local_master(configured.get("spark.master", "local"))
        is_chosen = _POOL in configured or (is_local and POOL_VARIABLE in os.environ)
        if are_workers_limited(configured) and not is_chosen:
            settings[_POOL] = LIMITED_POOL
        # As `SparkSession.builder`, without SQL.
        conf = SparkConf().setAppName(app_name).setAll([*settings.items()])
        session = LateSession(SparkContext.getOrCreate(conf), settings)
        note_application(session.sparkContext.applicationId)
        return session


def are_workers_limited(configured: Mapping[str, str]) -> bool:
    """Whether the address space of Python workers is limited, by Spark's setting, or on this machine by inheritance."""
    is_local = is_local_master(configured.get("spark.master", "local"))
    return bool(size_bytes(configured.get(PYTHON_MEMORY, ""))) or (is_local and is_limited())


def lean_jvms(configured: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of the JVMs of a new session; none for a JVM with any options of an operator's."""
    is_local = is_local_master(configured.get("spark.master", "local"))
    kind = "spark.driver" if is_local else "spark.executor"
    if any(configured.get(f"{kind}.{name}") for name in ("defaultJavaOptions", "extraJavaOptions")):
        return {}
    options: tuple[str, ...] = _LATE_COMPILATION
    # One JVM is driver and executor at once.
    if is_local:
        directory = environ.get("SPARK_CONF_DIR") or Path(
            environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "conf"
        )
        # The launcher first runs an operator's script, which may set JVM options too.
        has_script = Path(directory, "spark-env.sh").exists()
        if SUBMITTED_VARIABLE in environ or has_script or any(map(environ.get, _JVM_VARIABLES)):
            return {}
        if processors_count() <= _SMALL_PROCESSORS and heap_bytes(configured, is_driver=True) <= _SMALL_HEAP_BYTES:
            options = (*options, _ONE_COLLECTOR)
    return {f"{kind}.defaultJavaOptions": " ".join(options)}


class LateSession(SparkSession):
    """A session around a running context, whose SQL begins when it is first used.

    Most jobs run functions over payloads, for which Spark's core is enough. SQL takes the JVM two to three seconds of processor
    time to start: thousands of classes, and a thousand settings. PySpark's constructor is called at the first use of an
    attribute that only it sets, with `options` of SQL as `SparkSession.builder` takes them.
    """

    def __init__(self, context: SparkContext, options: dict[str, Any]) -> None:
        self._sc = context
        # As in any session, exceptions of the JVM become PySpark's errors from now on.
        install_exception_handler()
        self._late_options, self._late_lock, self._is_whole = options, RLock(), False

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only. PySpark creates `_conf` and the like itself after it has looked for them.
        if name.startswith("__") or name not in _SET_BY_CONSTRUCTOR:
            raise AttributeError(name)
        with self._late_lock:
            if not self._is_whole:
                super().__init__(self._sc, options=self._late_options)
                self._is_whole = True
        return self.__dict__[name]

    def getTags(self) -> set[str]:
        return super().getTags() if self._is_whole else set()

    def newSession(self) -> SparkSession:
        return SparkSession(self._sc, self._jsparkSession.newSession())

    def stop(self) -> None:
        if self._is_whole:
            super().stop()
        else:
            self._sc.stop()
