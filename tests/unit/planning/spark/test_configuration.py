"""What Spark's configuration says before Spark runs."""

import pytest

import icekeep.planning.spark.configuration
import icekeep.spec.types
from icekeep.planning.spark import configuration
from icekeep.planning.spark.configuration import (
    configured_properties,
    python_memory,
    shortage,
)
from icekeep.spec.types import GIB
from kit.cases import for_each
from kit.examples import check_examples

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
