"""The harness of the benchmarks: what a rival's process says is believed only where it can be."""

import sys
from pathlib import Path

import msgspec
import pytest

from bench.big_rows import Shape
from bench.big_tables import FILTERS, filters
from bench.planning import Figures, agreed
from bench.processes import RivalFailedError, run
from bench.rival import measured

FIGURES = Figures(rival="ours", files=7, bytes=700, first_s=2.0, warm_s=1.0, jvm_bytes=0, python_bytes=0)


def script(directory: Path, text: str) -> list[str]:
    path = directory / "script.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_the_last_line_of_a_process_is_its_answer_and_its_memory_is_seen(tmp_path: Path) -> None:
    text = "import time\ndata = bytearray(300_000_000)\ntime.sleep(0.5)\nprint('noise')\nprint('{\"files\": 7}')"
    command = script(tmp_path, text)
    ended = run(command, command[1])
    assert ended.answer == {"files": 7}
    assert ended.process_bytes > 300_000_000
    assert ended.seconds > 0


@pytest.mark.parametrize("text", ["raise ValueError('no table')", "print('{}')\nraise ValueError('no table')"])
def test_a_process_that_fails_is_an_error_that_says_why(tmp_path: Path, text: str) -> None:
    command = script(tmp_path, text)
    with pytest.raises(RivalFailedError, match=r"status 1: (?s:.*)no table"):
        run(command, command[1])


def test_a_process_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    command = script(tmp_path, "pass")
    with pytest.raises(RivalFailedError, match="status 0"):
        run(command, command[1])


def test_the_python_below_a_process_is_the_driver_and_others_are_not(tmp_path: Path) -> None:
    driver, other = tmp_path / "driver.py", tmp_path / "other.py"
    for path, size in ((driver, 100_000_000), (other, 400_000_000)):
        path.write_text(f"import time\ndata = bytearray({size})\ntime.sleep(1)")
    command = script(
        tmp_path,
        "import subprocess, sys\n"
        f"children = [subprocess.Popen([sys.executable, p]) for p in ({str(driver)!r}, {str(other)!r})]\n"
        "[child.wait() for child in children]\nprint('{}')",
    )
    ended = run(command, str(driver))
    assert 100_000_000 < ended.python_bytes < 200_000_000
    assert ended.process_bytes < 100_000_000


def test_a_plan_that_differs_from_call_to_call_is_an_error() -> None:
    results = iter([(7, 700), (7, 700), (6, 600)])
    with pytest.raises(AssertionError, match="different results"):
        measured(lambda: None, lambda _: next(results), repeat=2)


def test_each_plan_is_of_a_table_that_was_just_loaded() -> None:
    tables = iter(range(10))
    seen = []

    def plan(table: int) -> tuple[int, int]:
        seen.append(table)
        return 7, 700

    figures = measured(lambda: next(tables), plan, repeat=3)
    assert seen == [0, 1, 2, 3]
    assert (figures["files"], figures["bytes"]) == (7, 700)


def test_rivals_agree_only_where_files_and_bytes_are_equal() -> None:
    assert agreed([FIGURES, FIGURES])
    assert not agreed([FIGURES, msgspec.structs.replace(FIGURES, files=8)])
    assert not agreed([FIGURES, msgspec.structs.replace(FIGURES, bytes=701)])


def test_every_table_has_every_filter() -> None:
    for partitions in (1, 100, 1000):
        assert tuple(filters(Shape(entries=1, manifests=1, partitions=partitions))) == FILTERS
