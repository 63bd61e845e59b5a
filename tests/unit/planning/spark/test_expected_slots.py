"""How many tasks would run at once, told without a session."""

import pytest
from pyspark import SparkContext

from icekeep.planning.spark import workers as module
from icekeep.planning.spark.session import LIMITS, SUBMITTED_VARIABLE
from icekeep.planning.spark.workers import configured_slots, expected_slots, thread_workers
from kit.cases import for_each

MUCH = LIMITS.rewrite_bytes + 1
YARN = {"spark.master": "yarn", "spark.executor.cores": "4", "spark.executor.instances": "8"}
DYNAMIC = {**YARN, "spark.dynamicAllocation.enabled": "true"}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv(SUBMITTED_VARIABLE, raising=False)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(module, "processors_count", lambda: 6)


class Running:
    """A session of a cluster; `at_once` are the cores of the executors that are there by now."""

    _jsc = "its JVM's"

    def __init__(self, at_once, properties=YARN):
        self.master, self.defaultParallelism, self._properties = properties["spark.master"], at_once, properties

    def getConf(self):
        return self

    def getAll(self):
        return [*self._properties.items()]


def refused():
    raise AssertionError("Spark's configuration is asked for")


def fails():
    raise OSError("the gateway is gone")


@for_each(
    ("properties", "count"),
    [
        ({}, 6),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[ *, 4]"}, 6),
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


def test_what_is_little_is_done_by_threads_and_spark_is_not_asked():
    assert expected_slots(refused, LIMITS.rewrite_bytes) == thread_workers().slots


def test_what_is_much_is_done_by_the_session_that_would_be_started():
    assert expected_slots(lambda: YARN, MUCH) == 32


def test_under_spark_submit_less_is_much(monkeypatch):
    monkeypatch.setenv(SUBMITTED_VARIABLE, "1234")
    assert expected_slots(lambda: YARN, LIMITS.submitted_rewrite_bytes + 1) == 32
    assert expected_slots(refused, LIMITS.submitted_rewrite_bytes) == thread_workers().slots


@pytest.mark.parametrize(
    ("at_once", "properties", "count"),
    [(400, YARN, 400), (2, YARN, 32), (2, {**DYNAMIC, "spark.dynamicAllocation.maxExecutors": "50"}, 200)],
)
def test_a_session_that_runs_tells_it_and_its_executors_may_still_be_coming(monkeypatch, at_once, properties, count):
    monkeypatch.setattr(SparkContext, "_active_spark_context", Running(at_once, properties))
    assert expected_slots(refused, MUCH) == count


def test_a_spark_that_does_not_answer_makes_no_error():
    assert expected_slots(fails, MUCH) >= 1
