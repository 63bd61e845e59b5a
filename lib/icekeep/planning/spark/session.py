"""The Spark session of a job: neutral towards catalogs of other engines, quiet, in UTC, and stopped for certain.

A cluster's `spark-defaults.conf` often names an Iceberg catalog as the default one, and without Iceberg's jar every query
would fail on it; icekeep needs none of Spark's catalogs. Whatever else the operator configured stays.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icekeep.errors import UsageError
from icekeep.planning.spark.conf import SUBMITTED_VARIABLE, configured_properties, has_local_master
from icekeep.planning.spark.java import java_program
from icekeep.runs import note_application
from icekeep.shipped import LOG4J, shipped_file

_FORCED = {
    "spark.sql.defaultCatalog": "spark_catalog",
    # Spark 3.5 has no word for its own catalog: one that is configured there has to be on its classpath.
    **({} if pyspark.__version__.startswith("3.") else {"spark.sql.catalog.spark_catalog": "builtin"}),
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
}
_UNLESS_CONFIGURED = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
_LOCAL_UNLESS_CONFIGURED = {"spark.ui.enabled": "false", "spark.python.unix.domain.socket.enabled": "true"}
"""On one machine nobody looks at Spark's pages, and they take a port; on a cluster they are as the operator has them.

Over TCP each Python task waits 40 ms for an acknowledgement that the other side puts off. Elsewhere the operator decides:
the path of an executor's temporary directory may be too long for such a socket.
"""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_STOP_SECONDS = 30


def build_session(app_name: str, extra_conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or take the session that runs, as it is but for `extra_conf`, which wins over what is configured.

    Raises:
        UsageError: there is no Java, or Spark does not start.
    """
    with starting():
        if is_running():
            # `getOrCreate` applies what it is given to the session it finds, which is the application's.
            return noted(SparkSession.builder.config(map=dict(extra_conf or {})).getOrCreate())
        settings = session_settings(live_properties(), extra_conf or {})
        return noted(SparkSession.builder.appName(app_name).config(map=settings).getOrCreate())


@contextmanager
def starting() -> Iterator[None]:
    """The block starts Spark.

    Raises:
        UsageError: there is no Java, or Spark does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _require_java()
    try:
        yield
    # Where the cluster ends the application meanwhile PySpark knows no class for what the JVM says.
    except (PySparkException, Py4JJavaError) as error:
        raise UsageError(f"cannot start Spark: {_said(error)}; what Spark says stands above") from error


def noted(spark: SparkSession) -> SparkSession:
    """The session; its application is that of this process from now on, whether any work goes to it or not."""
    note_application(spark.sparkContext.applicationId)
    return spark


def is_running() -> bool:
    """Whether this process has a Spark session; the active one is that of a thread, and others may have none."""
    return SparkContext._active_spark_context is not None


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, whatever state an interrupt left it in; never raises and never hangs."""
    # py4j keeps a connection a thread; an interrupted call leaves an unread answer in that of this thread.
    thread = threading.Thread(target=_stop, args=(spark,), daemon=True)
    thread.start()
    thread.join(_STOP_SECONDS)
    note_application(None)


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel all running Spark jobs, without waiting; safe in a signal handler."""
    threading.Thread(target=_cancel, args=(spark,), daemon=True).start()


def live_properties() -> dict[str, str]:
    """Spark's configuration: the JVM's under `spark-submit`, otherwise what a new session would be started with."""
    if SUBMITTED_VARIABLE in os.environ:
        # Without a connection to the JVM a SparkConf is empty; nothing public of PySpark connects without a context.
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return configured_properties(os.environ)


def session_settings(configured: Mapping[str, str], extra_conf: Mapping[str, str]) -> dict[str, str]:
    """What a session is started with beside what is configured."""
    wished = dict(_UNLESS_CONFIGURED)
    if has_local_master({**configured, **extra_conf}):
        wished |= _LOCAL_UNLESS_CONFIGURED
    settings = {key: value for key, value in wished.items() if key not in configured}
    return settings | _quiet_jvm(configured) | _worker_path(configured) | _FORCED | dict(extra_conf)


def _said(error: Exception) -> str:
    """The first line of what went wrong; py4j's says only which call it was."""
    lines = str(error).splitlines()
    return lines[1].removeprefix(": ") if isinstance(error, Py4JJavaError) and len(lines) > 1 else lines[0]


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:  # noqa: BLE001 - the JVM may be gone already; the job's own outcome is what counts
        return


def _cancel(spark: SparkSession) -> None:
    try:
        spark.sparkContext.cancelAllJobs()
    except Exception:  # noqa: BLE001 - as above: nothing is left to cancel
        return


def _require_java() -> None:
    """Say in one line what Spark's launcher says in ten."""
    if SUBMITTED_VARIABLE in os.environ:
        return
    try:
        java_program(os.environ)
    except UsageError as error:
        raise UsageError(f"cannot start Spark: {error.message}") from error


def _quiet_jvm(configured: Mapping[str, str]) -> dict[str, str]:
    """Let a JVM that is started here log as the shipped `conf/log4j2.properties` says, from its first line on."""
    file = shipped_file(LOG4J)
    if SUBMITTED_VARIABLE in os.environ or _JAVA_OPTIONS in configured or file is None:
        return {}
    return {_JAVA_OPTIONS: f"-Dlog4j2.configurationFile={file.as_uri()}"}


def _worker_path(configured: Mapping[str, str]) -> dict[str, str]:
    """Workers import this package too; where it runs from a checkout they are told where that is."""
    root = Path(__file__).resolve().parents[3]
    if root.name in ("site-packages", "dist-packages") or not root.is_dir():
        return {}
    paths = [str(root), *filter(None, [configured.get(_WORKER_PATH)])]
    return {_WORKER_PATH: os.pathsep.join(paths)}
