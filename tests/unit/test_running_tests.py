"""How tests are run: cases in one item, a budget of minutes, groups for workers, where the seconds went, and the nights."""

import datetime
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nightly
from changed import affected
from kit import examples
from kit.cases import for_each
from kit.examples import check_examples
from kit.java import LineProcess, NoAnswerError, environment_without
from kit.runs import Workers, shared_out
from kit.shell import ROOT
from nightly import PARTS, Part, reached_by, run, seed_of

FEW = ("tests/unit/test_events.py", "tests/unit/spec/test_collections.py")


def pytest_says(*words: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *FEW]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_run_reports_time_spent_and_tests_not_reached() -> None:
    whole = pytest_says("--seed", "7", "--numprocesses", "2", "--dist", "loadgroup")
    count = int(re.search(r"^=+ (\d+) passed", whole, re.MULTILINE)[1])  # type: ignore[index]
    assert f"seed 7: {count} of {count} tests were reached\n" in whole
    assert re.search(rf"^ +[\d.]+ +{count}  together$", whole, re.MULTILINE)
    assert {*re.findall(r"^(gw\d): [\d.]+ s, of them ", whole, re.MULTILINE)} == {"gw0", "gw1"}
    assert re.search(r"^ +[\d.]+ +\d+  unit/spec/test_collections.py$", whole, re.MULTILINE)
    assert re.search(rf"^ +[\d.]+ +{count}  nothing$", whole, re.MULTILINE)
    assert re.search(r"^ +[\d.]+  tests/unit/\S+::test_\w+", whole, re.MULTILINE)
    nothing = pytest_says("--minutes", "0")
    assert f"seed 0: 0 of {count} tests were reached in 0.0 minutes\n" in nothing
    assert {*re.findall(r"^not reached: +\d+ of (\S+)$", nothing, re.MULTILINE)} == {*FEW}


def test_all_examples_that_fail_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "UNIT", tmp_path)
    (tmp_path / "some.txt").write_text("# Head\nx = 1\nx ==\n    1\nint('a')  !! ValueError: 'a'\n")
    check_examples("some.txt")
    (tmp_path / "some.txt").write_text(
        "x = 2\nx == 1\nx  !! ValueError\ny = 1  !! ValueError\nint('a')  !! KeyError\nz\n"
    )
    with pytest.raises(AssertionError, match=r"^5 of 6 examples fail\n") as failed:
        check_examples("some.txt")
    found = re.findall(r"^    (.*)$", str(failed.value), re.MULTILINE)
    assert found[:3] == ["2 == 1", "raises nothing and gives 2", "raises nothing and gives True"]
    assert [line.partition(":")[0] for line in found[3:]] == ["ValueError", "NameError"]
    (tmp_path / "some.txt").write_text("# Head\n")
    with pytest.raises(AssertionError, match="has no example"):
        check_examples("some.txt")


def test_all_cases_that_fail_are_listed_and_fixtures_are_left() -> None:
    tried = []

    @for_each("number", [1, 2, pytest.param(3, id="three")])
    @for_each("text", ["a", "b"])
    def test(number: int, text: str, fixture: str) -> None:
        tried.append((number, text, fixture))
        assert number < 2 or text == "a", "too large"

    with pytest.raises(AssertionError, match=r"^2 of 3 cases fail\n--- 2\n") as failed:
        test(fixture="given")
    assert len(tried) == 6
    assert "--- three" in str(failed.value)
    assert str(failed.value).count("too large") >= 2
    with pytest.raises(AssertionError, match="there is no case"):
        for_each("number", [])(lambda number: None)()
    with pytest.raises(AssertionError, match="use parametrize"):
        for_each("number", [pytest.param(1, marks=pytest.mark.nightly)])


def test_a_case_that_should_have_raised_is_listed() -> None:
    @for_each("number", [1])
    def test(number: int) -> None:
        with pytest.raises(ValueError):
            pass

    with pytest.raises(AssertionError, match="1 of 1 cases fail"):
        test()


def item(path: str, *fixtures: str) -> Any:
    marks: list[Any] = []
    found = SimpleNamespace(path=Path(path), fixturenames=fixtures, marks=marks)
    found.add_marker = lambda mark: marks.extend(mark.args)
    found.get_closest_marker = lambda name: name if name in fixtures else None
    return found


def test_tests_of_engine_share_group_and_slow_ones_come_first() -> None:
    items = [
        item("tests/unit/test_c.py"),
        item("tests/unit/planning/spark/test_e.py"),
        item("tests/unit/test_d.py"),
        item("tests/unit/test_d.py", "slow"),
        item("tests/spark/test_a.py", "spark_session"),
        item("tests/end_to_end/test_a.py"),
        item("tests/interop/test_a.py", "java", "trino"),
        item("tests/interop/test_b.py", "panel"),
        item("tests/interop/test_b.py", "java"),
    ]
    Workers().pytest_collection_modifyitems(items)
    assert [(one.path.parent.name, one.path.stem, one.marks) for one in items] == [
        ("unit", "test_d", []),
        ("unit", "test_d", []),
        ("interop", "test_b", []),
        ("spark", "test_e", []),
        ("unit", "test_c", []),
        ("spark", "test_a", ["spark"]),
        ("end_to_end", "test_a", ["end-to-end"]),
        ("interop", "test_a", ["trino"]),
        ("interop", "test_b", ["trino"]),
    ]


class Node:
    """A worker of pytest-xdist as its scheduler sees it."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


@for_each("workers", [1, 2, 3])
def test_every_test_runs_and_groups_follow_spark_in_worker(workers: int) -> None:
    names = [f"tests/unit/test_{n}.py::test_{m}" for n in range(3) for m in range(3)]
    names += [f"tests/spark/test_s.py::test_{m}@spark" for m in range(3)]
    names += [f"tests/unit/test_{n}.py::test_{m}" for n in range(3, 9) for m in range(3)]
    names += [f"tests/end_to_end/test_e.py::test_{m}@end-to-end" for m in range(3)]
    config: Any = SimpleNamespace(
        option=SimpleNamespace(dist="loadgroup", loadscopereorder=False), getvalue=lambda name: ["popen"] * workers
    )
    scheduler: Any = Workers().pytest_xdist_make_scheduler(config, None)
    nodes: list[Any] = [Node(f"gw{n}") for n in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, names)
    scheduler.schedule()
    done: dict[Any, list[int]] = {node: [] for node in nodes}
    while busy := [node for node in nodes if len(done[node]) < len(node.given)]:
        for node in busy:
            number = node.given[len(done[node])]
            done[node].append(number)
            scheduler.mark_test_complete(node, number)
    assert sorted(number for ran in done.values() for number in ran) == [*range(len(names))]
    if workers > 1:
        for ran in done.values():
            groups = ["@" in names[number] for number in ran]
            assert groups == sorted(groups)


def test_no_two_nights_have_a_seed_in_common() -> None:
    nights = [seed_of(datetime.date(2026, 11, 29) + datetime.timedelta(days=n)) for n in range(3)]
    assert {b - a for a, b in pairwise(nights)} == {nightly.SEEDS_A_NIGHT}


def test_each_part_of_the_night_names_files_that_there_are() -> None:
    named = [word for part in PARTS for word in (*part.command.split(), *part.entries) if word.startswith("tests/")]
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_failed_part_fails_night_and_passes_its_minutes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter([0, 3, 5])
    began = []

    def runs(command: list[str], cwd: Path) -> SimpleNamespace:
        began.append(command[1:])
        return SimpleNamespace(returncode=next(statuses))

    monkeypatch.setattr(nightly, "subprocess", SimpleNamespace(run=runs))
    parts = [Part(name, weight, f"{name} {{minutes}} {{seed}}") for name, weight in (("a", 1), ("b", 1), ("c", 2))]
    outcomes = run(parts, 40, 7)
    assert [one.status for one in outcomes] == [0, 3, 0]
    assert [
        (name, float(minutes) > least, seed) for (name, minutes, seed), least in zip(began, (9, 12, 38), strict=True)
    ] == [(name, True, "7") for name in "abc"]


@pytest.mark.slow
@for_each(
    ("changed", "expected"),
    [
        ("lib/icekeep/commit/retry.py", {"mutants", "lies", "kills", "cluster", "streaming", "histories"}),
        ("tests/fuzz/targets.py", {"fuzz"}),
        ("docs/install.md", set()),
    ],
)
def test_a_change_leads_to_its_parts_of_the_night(changed: str, expected: set[str]) -> None:
    assert {part.name for part in reached_by({changed})} == expected


def names(*changed: str) -> set[str]:
    return {path.removeprefix("tests/") for path in affected({*changed})}


@pytest.mark.slow
@pytest.mark.nightly
def test_module_selects_tests_that_import_it_indirectly():
    found = names("lib/icekeep/maintenance/orphans/listing.py")
    assert "spark/test_removed_files.py" in found
    assert "end_to_end/test_jobs.py" in found
    assert found.isdisjoint(
        {"unit/spec/test_schema.py", "unit/formats/test_writer.py", "local/storage/test_objects.py"}
    )


@pytest.mark.slow
@pytest.mark.nightly
def test_widely_imported_module_selects_all_its_tests():
    found = names("lib/icekeep/spec/types.py")
    assert {"unit/spec/test_schema.py", "unit/formats/test_writer.py", "interop/test_compaction.py"} <= found


@pytest.mark.slow
@pytest.mark.nightly
def test_helper_selects_tests_that_import_it_indirectly():
    found = names("tests/kit/object_store.py")
    assert {"local/storage/test_objects.py", "local/catalog/test_filesystem_on_s3.py"} <= found
    assert "unit/spec/test_schema.py" not in found


@pytest.mark.slow
@pytest.mark.nightly
@for_each(
    ("path", "test"),
    [
        ("README.md", "unit/test_pages.py"),
        ("airflow_dags/maintenance.py", "unit/airflow/test_dags.py"),
        ("tests/unit/spec/filters/expressions.txt", "unit/spec/filters/test_parsing.py"),
        ("tests/unit/spec/retention.txt", "unit/spec/test_retention.py"),
        ("tests/unit/maintenance/orphans/conftest.py", "unit/maintenance/orphans/test_remove.py"),
        ("tests/kit/java_judge/Tables.java", "interop/test_java_writes.py"),
        ("tests/kit/java_worker.py", "interop/test_compaction.py"),
        (".ci/java/pom.xml", "interop/test_hdfs.py"),
        (".ci/flink/pom.xml", "interop/test_flink.py"),
        ("tests/kit/java_flink/Jobs.java", "interop/test_flink.py"),
        (".ci/trino/pom.xml", "interop/test_trino.py"),
    ],
)
def test_what_is_no_module_leads_to_the_tests_that_speak_of_it(path: str, test: str):
    assert test in names(path)


@pytest.mark.slow
@pytest.mark.nightly
def test_test_selects_itself_and_settings_select_all():
    assert names("tests/unit/spec/test_schema.py") == {"unit/spec/test_schema.py"}
    assert len(names("pyproject.toml")) > 300
    assert names() == set()
    assert len(names(".ci/run")) < len(names("pyproject.toml")) / 5


def halved(number):
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return number / 2


@pytest.mark.slow
def test_each_piece_has_its_result():
    assert sorted(shared_out(halved, range(12), 2)) == [number / 2 for number in range(12)]


@pytest.mark.slow
def test_pieces_that_would_begin_too_late_have_none():
    assert list(shared_out(halved, range(12), 1, minutes=0)) == []


@pytest.mark.slow
def test_a_process_that_dies():
    with pytest.raises(RuntimeError, match=r"a process died at one of \[.*\b13\b"):
        list(shared_out(halved, range(20), 2))


ECHO = """
import os, sys
for line in sys.stdin:
    if line == "end\\n":
        sys.exit("why\\n\\tat Java.line(1)")
    print(os.getcwd(), sys.argv[1], line.upper(), flush=True, end="")
"""


@pytest.fixture
def process():
    process = LineProcess("echo", (sys.executable, "-c", ECHO, "{home}"), environment_without("PYTHON"))
    yield process
    process.close()


@pytest.mark.process
def test_it_answers_in_its_directory_until_it_is_closed(process):
    assert process.ask("one") == f"{process.home} {process.home} ONE"
    assert process.ask("two").endswith("TWO")
    assert process.is_running
    process.close()
    assert not process.is_running
    assert not process.home.exists()


@pytest.mark.process
def test_how_it_ended_is_told_each_time_that_it_is_asked(process):
    for line in ("end", "more"):
        with pytest.raises(NoAnswerError, match=r"^echo ended; its log ends:\nwhy$"):
            process.ask(line)
        assert not process.is_running


@pytest.mark.process
def test_who_says_nothing_is_killed(process, monkeypatch):
    monkeypatch.setattr("kit.java.TIMEOUT_S", 0.01)
    with pytest.raises(NoAnswerError, match=r"^echo has not answered in 0\.01 s"):
        process.answer()
    assert not process.is_running


@pytest.mark.process
def test_variables_that_begin_so_are_left_out(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/spark")
    monkeypatch.setenv("KEPT", "1")
    found = environment_without("SPARK_", "PYSPARK_", TZ="UTC")
    assert (found.get("SPARK_HOME"), found["KEPT"], found["TZ"]) == (None, "1", "UTC")
