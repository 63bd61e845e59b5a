"""What is said of executors by what they answer; `tests/spark` asks real ones."""

from typing import Any

import pytest

from icekeep.errors import UsageError
from icekeep.operations.doctor.driver import Notes, NotTried, configured_memory, machine_memory, settings_memory
from icekeep.operations.doctor.examination import look_at_clocks, look_at_differences, look_at_reach, package_problems
from icekeep.operations.doctor.places import StorePlace
from icekeep.planning.spark.executors import ExecutorAnswer
from icekeep.planning.spark.failures import GIVE_ALL, GIVE_PACKAGE
from icekeep.spec.types import GIB
from kit.cases import for_each
from kit.storage import MemoryStorage

OURS = {"packages": {"icekeep": "0.1.0", "pyarrow": "26.0.0"}}


def executor(host: str, **packages: str | None) -> dict[str, Any]:
    return {"host": host, "above": 7, "python": "3.11.2", "packages": {**OURS["packages"], **packages}}


def findings(notes: Notes) -> list[tuple[str, str]]:
    return [(one.check, one.status) for one in notes.result(0).findings]


def test_executors_like_this_machine_are_one_line() -> None:
    notes = Notes()
    assert look_at_differences(notes, OURS, [executor("a"), executor("b")])
    assert findings(notes) == [("packages", "ok")]


def test_other_versions_are_named_with_their_hosts() -> None:
    notes = Notes()
    found = [
        executor("a"),
        executor("b", pyarrow="25.0.0"),
        executor("c", pyarrow="25.0.0"),
        executor("d", pyarrow=None),
    ]
    assert look_at_differences(notes, OURS, found)
    old, missing = notes.result(0).findings
    assert old.message.startswith("pyarrow is 25.0.0 on b, c, and this machine has 26.0.0; ")
    assert missing.message == f"pyarrow is missing on d, and this machine has 26.0.0; {GIVE_ALL}"
    assert {old.status, missing.status} == {"wrong"}


def test_executors_without_icekeep_cannot_be_asked_more() -> None:
    notes = Notes()
    assert not look_at_differences(notes, OURS, [executor("a"), executor("b", icekeep=None)])
    (finding,) = notes.result(0).findings
    assert "icekeep is missing on b" in finding.message
    assert finding.message.endswith(GIVE_PACKAGE)


@for_each(("theirs", "ours"), [("", "26.0.0"), ("26.0.0", ""), (None, None), ("26.0.0", None)])
def test_a_version_that_nobody_tells_is_no_difference(theirs: str | None, ours: str | None) -> None:
    assert package_problems("pyarrow", ours, [executor("a", pyarrow=theirs)]) == []


@pytest.mark.parametrize(
    ("clocks_ms", "status"), [((5_000, 5_500), "ok"), ((5_000, 15_000), "wrong"), ((-9_000, 5_000), "wrong")]
)
def test_the_clock_that_is_furthest_off_decides(clocks_ms: tuple[int, int], status: str) -> None:
    notes = Notes()
    look_at_clocks(notes, [ExecutorAnswer(f"host-{n}", ms, 0, ()) for n, ms in enumerate(clocks_ms)], 4_000, 6_000)
    assert findings(notes) == [("clock", status)]


def test_an_executor_that_does_not_reach_the_store_is_named() -> None:
    notes = Notes()
    places = [StorePlace(MemoryStorage(), "memory://a/b"), StorePlace(MemoryStorage(), "memory://c/d")]
    seen = [
        ExecutorAnswer("x", 0, 0, ("", "")),
        ExecutorAnswer("y", 0, 0, ("", "no route")),
        ExecutorAnswer("y", 0, 0, ("", "no route")),
    ]
    look_at_reach(notes, seen, places)
    told = [(one.about, one.status, one.message) for one in notes.result(0).findings]
    assert told == [
        ("store memory://a/b", "ok", "by all that were checked"),
        ("store memory://c/d", "unavailable", "y: no route"),
    ]


def test_a_machine_that_is_too_small_for_its_tasks_is_told() -> None:
    assert machine_memory("host-1", 8 * GIB, GIB, 4) == "host-1 has 8.0 GiB: 1.8 GiB for each of 4 tasks at once"
    with pytest.raises(
        UsageError, match=r"leaves 896\.0 MiB to each of 8 tasks, which may take 1\.0 GiB each; run fewer"
    ):
        machine_memory("host-1", 8 * GIB, GIB, 8)


@for_each(
    ("properties", "said"),
    [
        ({}, "6.0 GiB for each of 2 tasks"),
        ({"spark.master": "local[4]"}, "3.0 GiB for each of 4 tasks"),
        ({"spark.master": "local"}, "12.0 GiB for each of 1 tasks"),
        ({"spark.master": "local[*, 3]", "spark.driver.memory": "5g"}, "4.0 GiB for each of 2 tasks"),
        (
            {"spark.master": "yarn", "spark.executor.memoryOverhead": "4g", "spark.executor.cores": "2"},
            "2 tasks share an executor, and spark.executor.memoryOverhead leaves them 3.6 GiB",
        ),
    ],
)
def test_memory_is_told_by_the_configuration(properties: dict[str, str], said: str) -> None:
    assert said in configured_memory(properties, 2, 13 * GIB)


def test_memory_that_the_configuration_does_not_give_is_told() -> None:
    with pytest.raises(UsageError, match=r"set spark\.executor\.memoryOverhead=5g"):
        configured_memory({"spark.master": "yarn", "spark.executor.cores": "4"}, 2, 13 * GIB)
    with pytest.raises(UsageError, match="run fewer at once"):
        configured_memory({"spark.master": "local[20]"}, 2, 13 * GIB)


@for_each("name", ["spark.executor.cores", "spark.task.cpus"])
@for_each("value", ["x", "", "0", "1.5"])
def test_invalid_number_error_names_its_setting(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} is '{value}'; give a whole number"):
        configured_memory({"spark.master": "yarn", name: value}, 2, 13 * GIB)


def test_what_a_standalone_master_gives_only_spark_knows() -> None:
    with pytest.raises(NotTried, match="give --executors"):
        configured_memory({"spark.master": "spark://host:7077"}, 2, 13 * GIB)
    assert "no setting limits" in settings_memory({}, "spark://host:7077", 8)
