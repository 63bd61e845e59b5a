"""What Spark's configuration says before Spark runs."""

import pytest

from icekeep.planning.spark import configuration
from icekeep.planning.spark.configuration import (
    configured_properties,
    configured_slots,
    heap_bytes,
    python_memory,
    shortage,
    size_bytes,
)
from icekeep.spec.types import GIB, MIB
from kit.cases import for_each

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


@for_each(
    ("properties", "count"),
    [
        ({}, 6),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[ *, 4]"}, 6),
        ({"spark.master": "local-cluster[2,3,1024]", "spark.executor.instances": "2"}, 2),
        (YARN, 32),
        ({**YARN, "spark.task.cpus": "2"}, 16),
        ({"spark.master": "yarn"}, 1),
        (DYNAMIC, 32),
        ({**DYNAMIC, "spark.dynamicAllocation.maxExecutors": "50"}, 200),
        ({**YARN, "spark.dynamicAllocation.maxExecutors": "50"}, 32),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "96"}, 96),
        ({**YARN, "spark.executor.instances": "many"}, 4),
        ({**YARN, "spark.task.cpus": "0"}, 32),
    ],
)
def test_the_configuration_says_how_many_executors_there_will_be(properties, count):
    assert configured_slots(properties) == count


@for_each(
    ("text", "expected"),
    [
        ("1g", GIB),
        ("512", 512 * MIB),
        ("512m", 512 * MIB),
        ("2048k", 2 * MIB),
        ("4GB", 4 * GIB),
        ("1t", 1024 * GIB),
        ("", None),
        ("much", None),
        ("1.5g", None),
    ],
)
def test_a_size_is_read_as_spark_reads_it(text: str, expected: int | None) -> None:
    assert size_bytes(text) == expected


@for_each(
    ("properties", "master", "available_bytes"),
    [
        # Spark's own default leaves nothing beside what the JVM needs.
        ({}, "yarn", 0),
        ({"spark.executor.memory": "20g"}, "yarn", 0),
        ({"spark.executor.memoryOverhead": "4g"}, "yarn", 4 * GIB - 384 * MIB),
        ({"spark.executor.memoryOverhead": "4096", "spark.executor.memory": "10g"}, "yarn", 3 * GIB),
        ({"spark.executor.memoryOverheadFactor": "0.5", "spark.executor.memory": "10g"}, "yarn", 4 * GIB),
        ({"spark.executor.memory": "10g"}, "k8s://https://x", 3 * GIB),
        ({"spark.executor.pyspark.memory": "2g", "spark.executor.memoryOverhead": "8g"}, "yarn", 2 * GIB),
        ({}, "spark://host:7077", None),
        ({}, "local[4]", None),
        ({}, "local-cluster[2,1,1024]", None),
    ],
)
def test_what_is_left_to_python(properties: dict[str, str], master: str, available_bytes: int | None) -> None:
    assert python_memory(properties, master).available_bytes == available_bytes


@for_each("overhead", [None, "1g", "4g", "4479m"])
def test_a_shortage_says_which_setting_ends_it(overhead: str | None) -> None:
    properties = {} if overhead is None else {"spark.executor.memoryOverhead": overhead}
    problem = shortage(python_memory(properties, "yarn"), 4, GIB)
    assert problem is not None
    assert "the 4 Python tasks that share an executor may take 1,024 MiB each" in problem
    assert "set spark.executor.memoryOverhead=5g" in problem
    assert shortage(python_memory({"spark.executor.memoryOverhead": "5g"}, "yarn"), 4, GIB) is None


def test_where_python_s_memory_is_set_that_is_to_be_raised() -> None:
    problem = shortage(python_memory({"spark.executor.pyspark.memory": "3g"}, "yarn"), 4, GIB)
    assert problem is not None
    assert "set spark.executor.pyspark.memory=4g" in problem
    assert shortage(python_memory({"spark.executor.pyspark.memory": "4g"}, "yarn"), 4, GIB) is None


def test_what_no_setting_limits_is_no_shortage() -> None:
    assert shortage(python_memory({}, "spark://host:7077"), 400, GIB) is None


def test_the_heap_of_the_driver_is_another_than_that_of_executors() -> None:
    properties = {"spark.executor.memory": "3g", "spark.driver.memory": "2g"}
    assert (heap_bytes(properties), heap_bytes(properties, is_driver=True)) == (3 * GIB, 2 * GIB)
    assert heap_bytes({}) == GIB
