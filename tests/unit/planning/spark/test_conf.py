import pytest

from icekeep.planning.spark.session import configured_properties
from kit.cases import for_each


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
