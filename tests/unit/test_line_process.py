"""A process that is asked by lines: it answers; where it has ended, the end of its log is told."""

import sys

import pytest

from kit.java import LineProcess, NoAnswerError, environment_without

pytestmark = pytest.mark.process

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


def test_it_answers_in_its_directory_until_it_is_closed(process):
    assert process.ask("one") == f"{process.home} {process.home} ONE"
    assert process.ask("two").endswith("TWO")
    assert process.is_running
    process.close()
    assert not process.is_running
    assert not process.home.exists()


def test_how_it_ended_is_told_each_time_that_it_is_asked(process):
    for line in ("end", "more"):
        with pytest.raises(NoAnswerError, match=r"^echo ended; its log ends:\nwhy$"):
            process.ask(line)
        assert not process.is_running


def test_who_says_nothing_is_killed(process, monkeypatch):
    monkeypatch.setattr("kit.java.TIMEOUT_S", 0.01)
    with pytest.raises(NoAnswerError, match=r"^echo has not answered in 0\.01 s"):
        process.answer()
    assert not process.is_running


def test_variables_that_begin_so_are_left_out(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/spark")
    monkeypatch.setenv("KEPT", "1")
    found = environment_without("SPARK_", "PYSPARK_", TZ="UTC")
    assert (found.get("SPARK_HOME"), found["KEPT"], found["TZ"]) == (None, "1", "UTC")
