"""How the JVMs of a command's own session run: they live for one job, and hand payloads to Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from icekeep.formats.processors import processors_count
from icekeep.planning.spark.conf import SUBMITTED_VARIABLE, has_local_master
from icekeep.planning.spark.memory_settings import heap_bytes
from icekeep.spec.units import GIB

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
