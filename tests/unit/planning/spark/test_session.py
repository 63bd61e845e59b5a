"""Sessions: their Java, what Spark's configuration says before Spark runs, and the settings of a command's own session.

tests/end_to_end/test_own_session.py starts one.
"""

import resource
import subprocess
import sys
from types import ModuleType

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

import icekeep.planning.spark.configuration
import icekeep.spec.types
from icekeep.errors import UsageError
from icekeep.formats import machine as address_space
from icekeep.planning.spark import configuration, session
from icekeep.planning.spark import own_session as jvm_options
from icekeep.planning.spark.configuration import PYTHON_MEMORY, configured_properties, python_memory, shortage
from icekeep.planning.spark.own_session import are_workers_limited, lean_jvms
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
from icekeep.spec.types import GIB
from kit.cases import for_each
from kit.examples import check_examples
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


def test_application_ended_by_cluster_is_one_line_error(monkeypatch):
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


def test_config_comes_from_files_without_spark_submit(monkeypatch, tmp_path):
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
def test_local_session_uses_unix_sockets_by_default(configured, extra, expected):
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
def test_spark_ui_is_off_only_in_local_sessions(configured, expected):
    assert session_settings(configured, {}).get("spark.ui.enabled") == expected


def java_options(configured):
    return session_settings(configured, {}).get("spark.driver.extraJavaOptions")


def test_jvm_logs_with_shipped_config_from_any_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text("rootLogger.level = trace\n")
    monkeypatch.chdir(tmp_path)
    assert java_options({}) == f"-Dlog4j2.configurationFile={shipped_file(LOG4J).as_uri()}"


def test_jvm_gets_no_log_options_if_running_or_configured(monkeypatch, tmp_path):
    """A running JVM, options of the operator, or a missing file leave the JVM's logging alone."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert java_options({"spark.driver.extraJavaOptions": "-Xss4m"}) is None
    monkeypatch.setattr(session, "shipped_file", lambda name: None)
    assert java_options({}) is None
    monkeypatch.undo()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert java_options({}) is None


def test_given_settings_override_configuration():
    """Given settings override the configuration, and the default catalog is always Spark's own."""
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


def test_session_being_started_is_not_running_yet(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("configured", "is_limited"),
    [({}, False), ({PYTHON_MEMORY: "0"}, False), ({PYTHON_MEMORY: "4g"}, True), ({PYTHON_MEMORY: "512"}, True)],
)
def test_spark_s_setting_are_workers_limited_unless_it_is_0(configured, is_limited, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not address_space.is_limited()
    assert are_workers_limited(configured) == is_limited


def test_workers_of_this_machine_inherit_the_shell_s_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 << 30, resource.RLIM_INFINITY))
    assert are_workers_limited({})
    assert are_workers_limited({"spark.master": "local[4]"})
    assert not are_workers_limited({"spark.master": "yarn"})
    assert not are_workers_limited({"spark.master": "local-cluster[2,1,1024]"})


OPTIONS = "spark.driver.defaultJavaOptions"
OF_EXECUTORS = "spark.executor.defaultJavaOptions"
SERIAL = "-XX:+UseSerialGC"


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch):
    monkeypatch.setattr(jvm_options, "processors_count", lambda: 2)


def options_of(configured, environ=None):
    return lean_jvms(configured, {"SPARK_CONF_DIR": "/nowhere", **(environ or {})}).get(OPTIONS, "").split()


@pytest.mark.parametrize("configured", [{}, {"spark.master": "local[2]"}, {"spark.driver.memory": "2g"}])
def test_local_jvm_compiles_little_with_full_optimization(configured):
    options = options_of(configured)
    assert "-XX:Tier4InvocationThreshold=50000" in options
    assert SERIAL in options


@for_each(
    ("configured", "environ"),
    [
        ({"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}, {}),
        ({OPTIONS: "-XX:+UseZGC"}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-XX:+UseG1GC"}),
        ({}, {"JDK_JAVA_OPTIONS": "-Xss4m"}),
        ({}, {"_JAVA_OPTIONS": "-XX:+UseParallelGC"}),
        ({}, {"SPARK_SUBMIT_OPTS": "-Dx=y"}),
    ],
)
def test_a_jvm_that_an_operator_has_told_options_is_told_none(configured, environ):
    assert lean_jvms(configured, {"SPARK_CONF_DIR": "/nowhere", **environ}) == {}


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077", "k8s://host", "local-cluster[2,1,1024]"])
def test_a_driver_of_a_cluster_is_told_none(master):
    assert options_of({"spark.master": master}) == []


def test_cluster_executors_compile_less_and_keep_collector():
    found = lean_jvms({"spark.master": "yarn", "spark.executor.extraJavaOptions": ""}, {"PYSPARK_GATEWAY_PORT": "1"})
    assert "-XX:Tier4InvocationThreshold=50000" in found[OF_EXECUTORS]
    assert SERIAL not in found[OF_EXECUTORS]
    assert OF_EXECUTORS not in lean_jvms({}, {"SPARK_CONF_DIR": "/nowhere"})


@pytest.mark.parametrize("name", [OF_EXECUTORS, "spark.executor.extraJavaOptions"])
def test_executors_with_operator_options_get_none(name):
    assert lean_jvms({"spark.master": "yarn", name: "-Dx=y"}, {}) == {}


def test_a_jvm_that_runs_already_is_told_none():
    assert options_of({}, {"PYSPARK_GATEWAY_PORT": "1"}) == []


def test_a_script_of_the_operator_s_may_tell_options_too(tmp_path):
    assert options_of({}, {"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "spark-env.sh").write_text("")
    assert options_of({}, {"SPARK_CONF_DIR": str(tmp_path)}) == []
    (tmp_path / "conf").mkdir()
    (tmp_path / "spark-env.sh").rename(tmp_path / "conf" / "spark-env.sh")
    assert options_of({}, {"SPARK_CONF_DIR": "", "SPARK_HOME": str(tmp_path)}) == []


def test_a_large_heap_or_many_processors_keep_their_collector(monkeypatch):
    assert SERIAL not in options_of({"spark.driver.memory": "3g"})
    monkeypatch.setattr(jvm_options, "processors_count", lambda: 5)
    options = options_of({})
    assert options
    assert SERIAL not in options


YARN = {"spark.master": "yarn", "spark.executor.cores": "4", "spark.executor.instances": "8"}
DYNAMIC = {**YARN, "spark.dynamicAllocation.enabled": "true"}


@pytest.fixture(autouse=True)
def _six_processors(monkeypatch):
    monkeypatch.setattr(configuration, "processors_count", lambda: 6)


@pytest.fixture
def conf_dir(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\nspark.a   1\nspark.b=2 3\nspark.c : x=y\n\n! old\nother.key 1\nspark.d\n"
    )
    return tmp_path


def test_the_defaults_file_is_read_as_spark_reads_it(conf_dir):
    found = configured_properties({"SPARK_CONF_DIR": str(conf_dir)})
    assert found == {"spark.a": "1", "spark.b": "2 3", "spark.c": "x=y"}


def test_the_file_is_found_below_spark_home_too(conf_dir, tmp_path):
    (tmp_path / "home").mkdir()
    conf_dir.joinpath("spark-defaults.conf").rename(tmp_path / "home" / "spark-defaults.conf")
    (tmp_path / "home").rename(tmp_path / "conf")
    assert configured_properties({"SPARK_HOME": str(tmp_path)})["spark.a"] == "1"


def test_submit_arguments_win_over_the_file(conf_dir):
    found = configured_properties(
        {
            "SPARK_CONF_DIR": str(conf_dir),
            "PYSPARK_SUBMIT_ARGS": "--conf spark.a=9 --conf 'spark.e=f g' --conf=spark.h=i --master yarn pyspark-shell",
        }
    )
    assert (found["spark.a"], found["spark.e"], found["spark.h"], found["spark.b"]) == ("9", "f g", "i", "2 3")
    assert found["spark.master"] == "yarn"


def test_a_properties_file_replaces_the_defaults_file(conf_dir, tmp_path):
    (tmp_path / "mine.conf").write_text("spark.z 1\n")
    found = configured_properties(
        {
            "SPARK_CONF_DIR": str(conf_dir),
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {tmp_path}/mine.conf pyspark-shell",
        }
    )
    assert found == {"spark.z": "1"}


@for_each("arguments", ["", "--conf", "--conf 'unbalanced", "pyspark-shell"])
def test_without_configuration_there_are_no_properties(arguments):
    assert configured_properties({"PYSPARK_SUBMIT_ARGS": arguments, "SPARK_CONF_DIR": "/nowhere"}) == {}


@for_each("overhead", [None, "1g", "4g", "4479m"])
def test_a_shortage_says_which_setting_ends_it(overhead: str | None) -> None:
    properties = {} if overhead is None else {"spark.executor.memoryOverhead": overhead}
    problem = shortage(python_memory(properties, "yarn"), 4, GIB)
    assert problem is not None
    assert "the 4 Python tasks that share an executor may take 1,024 MiB each" in problem
    assert "set spark.executor.memoryOverhead=5g" in problem
    assert shortage(python_memory({"spark.executor.memoryOverhead": "5g"}, "yarn"), 4, GIB) is None


def test_examples():
    check_examples(
        "planning/spark/configuration.txt", icekeep.planning.spark.configuration, icekeep.spec.types, globals()
    )
