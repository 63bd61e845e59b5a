"""The session of a command, whose process, JVM and Python workers belong to that command alone (decision 37).

So it is leaner than one that others go on to use: SQL begins when a job needs it, workers leave pandas out, and a JVM that is
started here is told to compile less. Whatever an operator has configured holds.
"""

import os
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from icekeep.formats.arrow.address_space import LIMITED_POOL, POOL_VARIABLE, is_limited
from icekeep.planning.spark.answers import OWN_WORKER_VARIABLE
from icekeep.planning.spark.conf import has_local_master
from icekeep.planning.spark.jvm_options import lean_jvms
from icekeep.planning.spark.late_session import LateSession
from icekeep.planning.spark.memory_settings import PYTHON_MEMORY, size_bytes
from icekeep.planning.spark.session import build_session, is_running, live_properties, noted, session_settings, starting

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
