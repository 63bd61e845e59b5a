from types import SimpleNamespace
from typing import Any

from icekeep.events import Event, Warned
from icekeep.planning.spark.workers import (
    Workers,
    heap_bytes,
    python_memory,
    shortage,
    size_bytes,
    thread_workers,
    warn_of_memory,
)
from icekeep.spec.types import GIB, MIB
from kit.cases import for_each


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


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)


def in_spark(master: str, **properties: str) -> Workers:
    conf = SimpleNamespace(getAll=lambda: [(f"spark.executor.{key}", value) for key, value in properties.items()])
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: conf))
    return Workers(spark=session, slots=400, process_slots=4, is_local=False)


@for_each(
    ("workers", "is_warned"),
    [
        (in_spark("yarn"), True),
        (in_spark("yarn", memoryOverhead="5g"), False),
        (in_spark("spark://host:7077"), False),
        (thread_workers(), False),
    ],
)
def test_a_job_warns_in_one_line_before_it_begins(workers: Workers, is_warned: bool) -> None:
    told = Told()
    warn_of_memory(workers, GIB, told)
    assert [type(event) for event in told.events] == [Warned] * is_warned
