"""Whether the tasks that share an executor have the memory that they may take, by Spark's settings alone: nothing is run.

On YARN and Kubernetes an executor is a container with a limit. Its JVM takes `spark.executor.memory`; its Python workers take
what else there is, `spark.executor.memoryOverhead`, of which the JVM needs a part, or `spark.executor.pyspark.memory`, if
that is set. Who takes more is killed. Elsewhere the machine is the limit.

How the JVMs of a command's own session run: they live for one job, and hand payloads to Python.

A session of Spark whose SQL begins when it is first used.

Most jobs run functions over payloads, for which Spark's core is enough. Its SQL takes the JVM two to three seconds of a
processor until it is there: thousands of classes, and a thousand settings.

The session of a command, whose process, JVM and Python workers belong to that command alone (decision 37).

So it is leaner than one that others go on to use: SQL begins when a job needs it, workers leave pandas out, and a JVM that is
started here is told to compile less. Whatever an operator has configured holds.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import msgspec
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import install_exception_handler
from pyspark.sql import SparkSession

from icekeep.events import Listener, Warned
from icekeep.formats.machine import LIMITED_POOL, POOL_VARIABLE, is_limited, processors_count
from icekeep.planning.spark.session import (
    SUBMITTED_VARIABLE,
    build_session,
    has_local_master,
    is_running,
    live_properties,
    noted,
    session_settings,
    starting,
)
from icekeep.planning.spark.tasks import OWN_WORKER_VARIABLE
from icekeep.planning.spark.workers import Workers
from icekeep.spec.types import GIB, MIB

OVERHEAD = "spark.executor.memoryOverhead"
PYTHON_MEMORY = "spark.executor.pyspark.memory"

_HEAP = "spark.executor.memory"
_DRIVER_HEAP = "spark.driver.memory"
_FACTOR = "spark.executor.memoryOverheadFactor"
_LEAST = "spark.executor.minMemoryOverhead"
_DEFAULT_HEAP = "1g"
_DEFAULT_FACTOR = 0.1
_DEFAULT_FACTORS = {"k8s": 0.4}
_DEFAULT_LEAST = "384m"
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "": MIB, "m": MIB, "g": GIB, "t": GIB << 10, "p": GIB << 20}


class PythonMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the Python workers of an executor may take together.

    Attributes:
        available_bytes: `None` where no setting limits it.
        jvm_bytes: what the JVM needs of the setting beside them.
        setting: which setting says so.
    """

    available_bytes: int | None
    jvm_bytes: int = 0
    setting: str = OVERHEAD


def size_bytes(text: str) -> int | None:
    """A size as Spark reads it for memory, in MiB where it has no unit; `None` for what is no size.

    >>> size_bytes("2g") == size_bytes("2048") == size_bytes("2048MB")
    True
    """
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def heap_bytes(properties: Mapping[str, str], *, is_driver: bool = False) -> int:
    """How large the heap of an executor's JVM may grow, or of the driver's."""
    return _size(properties, _DRIVER_HEAP if is_driver else _HEAP, _DEFAULT_HEAP)


def python_memory(properties: Mapping[str, str], master: str) -> PythonMemory:
    """What Spark's settings leave to the Python workers of an executor."""
    manager = master.partition(":")[0].partition("[")[0]
    if manager not in ("yarn", "k8s"):
        return PythonMemory(available_bytes=None)
    given = size_bytes(properties.get(PYTHON_MEMORY, ""))
    if given:
        return PythonMemory(available_bytes=given, setting=PYTHON_MEMORY)
    heap, least = heap_bytes(properties), _size(properties, _LEAST, _DEFAULT_LEAST)
    jvm_bytes = max(least, int(heap * _DEFAULT_FACTOR))
    overhead_bytes = max(least, int(heap * _factor(properties, _DEFAULT_FACTORS.get(manager, _DEFAULT_FACTOR))))
    overhead_bytes = size_bytes(properties.get(OVERHEAD, "")) or overhead_bytes
    return PythonMemory(available_bytes=max(0, overhead_bytes - jvm_bytes), jvm_bytes=jvm_bytes)


def shortage(memory: PythonMemory, slots: int, task_bytes: int) -> str | None:
    """What is wrong and what to set, in one line, where `slots` tasks may take more than they have; else `None`."""
    needed_bytes = slots * task_bytes
    if memory.available_bytes is None or memory.available_bytes >= needed_bytes:
        return None
    setting = f"{memory.setting}={-(-(needed_bytes + memory.jvm_bytes) // GIB)}g"
    return (
        f"the {slots} Python tasks that share an executor may take {task_bytes // MIB:,} MiB each, and {memory.setting} leaves "
        f"them {memory.available_bytes // MIB:,} MiB together: an executor that takes more is killed; set {setting}, or let "
        "fewer tasks share an executor (spark.executor.cores)"
    )


def warn_of_memory(workers: Workers, task_bytes: int, listener: Listener) -> None:
    """Warn before work starts whose tasks may take so much each; costs a question to the driver, and no Spark job."""
    if workers.spark is None:
        return
    context = workers.spark.sparkContext
    memory = python_memory(dict(context.getConf().getAll()), context.master)
    problem = shortage(memory, workers.process_slots, task_bytes)
    if problem is not None:
        listener.on(Warned(problem))


def _size(properties: Mapping[str, str], name: str, default: str) -> int:
    return size_bytes(properties.get(name, "")) or size_bytes(default) or 0


def _factor(properties: Mapping[str, str], default: float) -> float:
    try:
        return float(properties.get(_FACTOR, default))
    except ValueError:
        # Spark itself refuses it.
        return default


_DRIVER, _EXECUTOR = "spark.driver", "spark.executor"
_OPTIONS, _EXTRA_OPTIONS = "defaultJavaOptions", "extraJavaOptions"
_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""By these a JVM is told options too. Some exclude each other, and a JVM that is told both does not start."""

_LATE_COMPILATION = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""The optimizing compiler begins at ten times as many calls: in a short job it takes more than it gives. What is called so often,
as where Spark joins millions of rows, is compiled as before."""

_ONE_COLLECTOR = "-XX:+UseSerialGC"
_SMALL_PROCESSORS, _SMALL_HEAP_BYTES = 4, 2 * GIB
"""Up to so much a collector of garbage with one thread, and none of its own, is the cheaper one."""


def lean_jvms(configured: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of the JVMs of a session that is to be started; none for a JVM that an operator has told any options."""
    options = _driver_options(configured, environ) if has_local_master(configured) else ()
    found = {f"{_DRIVER}.{_OPTIONS}": " ".join(options)} if options else {}
    if not has_local_master(configured) and not _is_told(configured, _EXECUTOR):
        found[f"{_EXECUTOR}.{_OPTIONS}"] = " ".join(_LATE_COMPILATION)
    return found


def _driver_options(configured: Mapping[str, str], environ: Mapping[str, str]) -> Sequence[str]:
    """Of the JVM that is driver and executor at once, if it is started here."""
    is_told = _is_told(configured, _DRIVER) or any(map(environ.get, _VARIABLES)) or _has_script(environ)
    if SUBMITTED_VARIABLE in environ or is_told:
        return ()
    is_small = processors_count() <= _SMALL_PROCESSORS and heap_bytes(configured, is_driver=True) <= _SMALL_HEAP_BYTES
    return (*_LATE_COMPILATION, _ONE_COLLECTOR) if is_small else _LATE_COMPILATION


def _is_told(configured: Mapping[str, str], kind: str) -> bool:
    return any(configured.get(f"{kind}.{name}") for name in (_OPTIONS, _EXTRA_OPTIONS))


def conf_directory(environ: Mapping[str, str]) -> Path:
    """Where Spark's launcher looks for scripts and properties, whether that is there or not."""
    given = environ.get("SPARK_CONF_DIR")
    return Path(given) if given else Path(environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "conf")


def _has_script(environ: Mapping[str, str]) -> bool:
    """Whether the launcher runs a script of the operator's first, which may tell the JVM options too."""
    return Path(conf_directory(environ), "spark-env.sh").exists()


class LateSession(SparkSession):
    """A session around a context that runs; PySpark's own constructor is called for the first attribute that only that sets.

    `options` are of its SQL, as `SparkSession.builder` takes them.
    """

    def __init__(self, context: SparkContext, options: dict[str, Any]) -> None:
        self._sc = context
        # What the JVM says is an error of PySpark's from now on, as in any session.
        install_exception_handler()
        self._late_options, self._late_lock, self._is_whole = options, RLock(), False

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is not there. `_conf` and the like are made by PySpark itself once it has looked for them.
        if name.startswith("__") or name not in _OF_WHOLE:
            raise AttributeError(name)
        with self._late_lock:
            if not self._is_whole:
                super().__init__(self._sc, options=self._late_options)
                self._is_whole = True
        return self.__dict__[name]

    def getTags(self) -> set[str]:
        """Of a session that nobody has used there are none."""
        return super().getTags() if self._is_whole else set()

    def newSession(self) -> SparkSession:
        return SparkSession(self._sc, self._jsparkSession.newSession())

    def stop(self) -> None:
        """Stop the context, and with it the session."""
        if self._is_whole:
            super().stop()
        else:
            self._sc.stop()


_OF_WHOLE = frozenset({"_jsparkSession", "_jsc", "_jvm", "_profiler_collector"})
"""What PySpark's constructor sets beside the context."""


_OWN_WORKER = f"spark.executorEnv.{OWN_WORKER_VARIABLE}"
_POOL = f"spark.executorEnv.{POOL_VARIABLE}"
_CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
_CONNECT_PROPERTIES = ("spark.remote", "spark.api.mode")


def build_own_session(app_name: str) -> SparkSession:
    """Start Spark for a command; a session that runs already is taken as `build_session` takes it.

    Raises:
        UsageError: there is no Java, or Spark does not start.
    """
    with starting():
        configured = {} if is_running() else live_properties()
        # A server of Spark Connect has no context here.
        if is_running() or os.environ.keys() & {*_CONNECT_VARIABLES} or configured.keys() & {*_CONNECT_PROPERTIES}:
            return build_session(app_name)
        settings = session_settings(configured, {}) | lean_jvms(configured, os.environ)
        if _OWN_WORKER not in configured:
            settings[_OWN_WORKER] = "1"
        is_chosen = _POOL in configured or (has_local_master(configured) and POOL_VARIABLE in os.environ)
        if are_workers_limited(configured) and not is_chosen:
            settings[_POOL] = LIMITED_POOL
        # As `SparkSession.builder` does it, but for SQL.
        conf = SparkConf().setAppName(app_name).setAll([*settings.items()])
        return noted(LateSession(SparkContext.getOrCreate(conf), settings))


def are_workers_limited(configured: Mapping[str, str]) -> bool:
    """Whether the address space of Python workers is limited: Spark limits it by a setting, on this machine they inherit ours."""
    return bool(size_bytes(configured.get(PYTHON_MEMORY, ""))) or (has_local_master(configured) and is_limited())
