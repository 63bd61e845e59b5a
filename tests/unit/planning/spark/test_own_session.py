"""The settings of a command's own session; tests/end_to_end/test_own_session.py starts one."""

import resource

import pytest

from icekeep.formats import machine as address_space
from icekeep.planning.spark import own_session as jvm_options
from icekeep.planning.spark.configuration import PYTHON_MEMORY
from icekeep.planning.spark.own_session import are_workers_limited, lean_jvms
from kit.cases import for_each


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
def test_on_one_machine_little_is_compiled_with_all_optimizations(configured):
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


def test_executors_of_a_cluster_compile_less_and_keep_their_collector():
    found = lean_jvms({"spark.master": "yarn", "spark.executor.extraJavaOptions": ""}, {"PYSPARK_GATEWAY_PORT": "1"})
    assert "-XX:Tier4InvocationThreshold=50000" in found[OF_EXECUTORS]
    assert SERIAL not in found[OF_EXECUTORS]
    assert OF_EXECUTORS not in lean_jvms({}, {"SPARK_CONF_DIR": "/nowhere"})


@pytest.mark.parametrize("name", [OF_EXECUTORS, "spark.executor.extraJavaOptions"])
def test_executors_that_an_operator_has_told_options_are_told_none(name):
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
