"""Sessions: their Java, their configuration, and the functions that must work before PySpark is imported."""

import subprocess
import sys
from types import ModuleType

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from icekeep.errors import UsageError
from icekeep.planning.spark import session
from icekeep.planning.spark.session import (
    build_session,
    is_session,
    live_properties,
    running_context,
    session_settings,
    stop_session,
    task_context,
)
from icekeep.planning.spark.workers import is_running_on_cluster
from icekeep.shipped import LOG4J, shipped_file
from kit.cases import for_each
from kit.shell import ROOT


@pytest.fixture
def _no_java(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.mark.usefixtures("_no_java")
def test_without_java_one_line_says_what_to_install():
    with pytest.raises(UsageError, match="cannot start Spark: there is no Java; install Java 17 or later"):
        build_session("test")


class StoppedByTheCluster(Py4JJavaError):
    def __init__(self):
        pass

    def __str__(self):
        return "An error occurred while calling None.SparkSession.\n: java.lang.IllegalStateException: it is stopped\n\tat x"


def test_a_cluster_that_ends_the_application_at_once_is_told_in_one_line(monkeypatch):
    def ended():
        raise StoppedByTheCluster

    monkeypatch.setattr(session, "live_properties", ended)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "is_running", lambda: False)
    with pytest.raises(
        UsageError, match=r"cannot start Spark: java.lang.IllegalStateException: it is stopped; what Spark"
    ):
        build_session("test")


@pytest.mark.usefixtures("_no_java")
def test_a_java_home_without_java_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=f"there is no bin/java under JAVA_HOME, '{tmp_path}'"):
        build_session("test")


@pytest.mark.process
def test_without_pyspark_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from icekeep.operations.jobs import resolve\n"
        "try: resolve('icekeep.planning.spark.session:build_session')('test')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "lib")}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == (
        "UsageError this needs Spark, and PySpark is not installed: icekeep[spark] brings it (how to install it: "
        "docs/install.md), or run the job with spark-submit"
    )


def test_outside_spark_submit_the_configuration_is_that_of_the_files(monkeypatch, tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled true\n")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert live_properties() == {"spark.ui.enabled": "true"}


@for_each(
    ("configured", "extra", "expected"),
    [
        ({}, {}, "true"),
        ({"spark.master": "local[4]"}, {}, "true"),
        ({"spark.master": "yarn"}, {}, None),
        ({"spark.master": "local-cluster[2,1,1024]"}, {}, None),
        ({"spark.master": "local[4]"}, {"spark.master": "k8s://host"}, None),
        ({"spark.python.unix.domain.socket.enabled": "false"}, {}, None),
    ],
)
def test_on_one_machine_python_is_reached_without_tcp_unless_the_operator_says_otherwise(configured, extra, expected):
    assert session_settings(configured, extra).get("spark.python.unix.domain.socket.enabled") == expected


@for_each(
    ("configured", "expected"),
    [
        ({}, "false"),
        ({"spark.master": "local[4]"}, "false"),
        ({"spark.master": "local[4]", "spark.ui.enabled": "true"}, None),
        ({"spark.master": "yarn"}, None),
        ({"spark.master": "local-cluster[2,1,1024]"}, None),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "yarn", "spark.ui.enabled": "false"}, None),
    ],
)
def test_spark_s_pages_are_off_on_one_machine_alone_unless_the_operator_says_otherwise(configured, expected):
    assert session_settings(configured, {}).get("spark.ui.enabled") == expected


def java_options(configured):
    return session_settings(configured, {}).get("spark.driver.extraJavaOptions")


def test_a_jvm_logs_as_the_shipped_file_says_wherever_the_command_is_run(monkeypatch, tmp_path):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text("rootLogger.level = trace\n")
    monkeypatch.chdir(tmp_path)
    assert java_options({}) == f"-Dlog4j2.configurationFile={shipped_file(LOG4J).as_uri()}"


def test_a_jvm_is_told_nothing_of_logs_where_it_runs_already_or_has_options_or_nothing_is_shipped(
    monkeypatch, tmp_path
):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert java_options({"spark.driver.extraJavaOptions": "-Xss4m"}) is None
    monkeypatch.setattr(session, "shipped_file", lambda name: None)
    assert java_options({}) is None
    monkeypatch.undo()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert java_options({}) is None


def test_what_is_given_wins_over_what_is_configured_but_for_catalogs_of_other_engines():
    configured = {"spark.ui.enabled": "true", "spark.log.level": "INFO", "spark.sql.defaultCatalog": "theirs"}
    settings = session_settings(configured, {"spark.log.level": "ERROR"})
    assert "spark.ui.enabled" not in settings
    assert (settings["spark.log.level"], settings["spark.sql.defaultCatalog"]) == ("ERROR", "spark_catalog")


def test_stopping_a_session_whose_jvm_is_gone_does_not_fail():
    class Gone:
        def stop(self):
            raise ConnectionRefusedError

    stop_session(Gone())


@pytest.mark.parametrize("is_begun", [False, True])
def test_nothing_runs_before_pyspark_is_imported_as_a_whole(monkeypatch: pytest.MonkeyPatch, is_begun: bool) -> None:
    """A session may be started by another thread: a module that is being imported is there, and has not all of its names."""
    for name in ("pyspark", "pyspark.sql"):
        if is_begun:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        else:
            monkeypatch.delitem(sys.modules, name, raising=False)
    assert running_context() is None
    assert task_context() is None
    assert not is_session(object())


def test_a_session_that_another_thread_is_starting_does_not_run_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark names its context before that has a master, which was an error for those who asked."""
    context = SparkContext.__new__(SparkContext)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    assert running_context() is None
    assert not is_running_on_cluster()
    context.master = "spark://host:7077"
    assert running_context() is None
    context._jsc = object()
    assert running_context() is context
    assert is_running_on_cluster()
