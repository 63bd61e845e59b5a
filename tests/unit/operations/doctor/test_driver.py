import subprocess
from pathlib import Path
from typing import Any

import pytest

from icekeep.errors import UsageError
from icekeep.operations.doctor import driver
from icekeep.operations.doctor.driver import (
    Needs,
    Notes,
    NotTried,
    Requirement,
    checked_java,
    checked_python,
    look_at_driver,
    look_at_packages,
)

NEEDS = Needs(Requirement("Python", ((">=", "3.11"),)), (Requirement("pyarrow", ((">=", "26"),)),))


@pytest.fixture
def java_home(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch()
    return tmp_path


def saying(text: str) -> Any:
    return lambda *_, **__: subprocess.CompletedProcess((), 0, "", text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', "17.0.9"),
        ('java version "21" 2023-09-19 LTS', "21"),
        ('openjdk version "24-ea"', "24-ea"),
    ],
)
def test_java_says_its_version(java_home: Path, text: str, version: str) -> None:
    program = str(java_home / "bin" / "java")
    assert checked_java({"JAVA_HOME": str(java_home)}, saying(text)) == f"{version} ({program})"


@pytest.mark.parametrize("version", ["1.8.0_372", "11.0.21"])
def test_a_java_that_is_too_old_is_told(java_home: Path, version: str) -> None:
    with pytest.raises(UsageError, match=rf"Java is {version} \(.*/bin/java\), and Spark needs 17 or later"):
        checked_java({"JAVA_HOME": str(java_home)}, saying(f'java version "{version}"'))


def test_a_java_home_without_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no bin/java under JAVA_HOME"):
        checked_java({"JAVA_HOME": str(tmp_path)})


def test_no_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no Java; install Java 17 or later"):
        checked_java({"PATH": str(tmp_path)})


def test_a_java_that_says_nothing_is_told(java_home: Path) -> None:
    with pytest.raises(UsageError, match="does not say which Java it is"):
        checked_java({"JAVA_HOME": str(java_home)}, saying("command not found"))


@pytest.mark.parametrize("failure", [PermissionError("denied"), subprocess.TimeoutExpired("java", 30)])
def test_a_java_that_cannot_be_run_is_told(java_home: Path, failure: Exception) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise failure

    with pytest.raises(UsageError, match="cannot be run"):
        checked_java({"JAVA_HOME": str(java_home)}, run)


def test_under_spark_submit_java_runs_already() -> None:
    with pytest.raises(NotTried):
        checked_java({"PYSPARK_GATEWAY_PORT": "1234"})


def test_a_python_that_is_too_old_is_told() -> None:
    assert checked_python("3.12.1", NEEDS) == "3.12.1"
    with pytest.raises(UsageError, match=r"Python is 3\.10\.2, and icekeep needs >=3\.11"):
        checked_python("3.10.2", NEEDS)
    assert checked_python("3.10.2", None) == "3.10.2"


def test_a_package_that_is_missing_has_a_line_of_its_own() -> None:
    notes = Notes()
    absent = Requirement("icekeep-is-not-this", ((">=", "1"),))
    old = Requirement("pyarrow", ((">=", "99"),))
    look_at_packages(notes, "driver", [absent, Requirement("msgspec"), old])
    absent_line, old_line, well = notes.result(0).findings
    assert (absent_line.check, absent_line.status) == ("package icekeep-is-not-this", "wrong")
    assert (old_line.check, old_line.status) == ("package pyarrow", "wrong")
    assert "icekeep needs >=99" in old_line.message
    assert well.status == "ok"
    assert well.message.startswith("msgspec ")


def test_this_machine_is_fit_for_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "checked_java", lambda _: "17")
    notes = Notes()
    look_at_driver(notes, NEEDS, {})
    assert [(one.check, one.status) for one in notes.result(0).findings] == [
        ("python", "ok"),
        ("packages", "ok"),
        ("java", "ok"),
    ]


def test_a_machine_without_spark_is_fit_for_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"msgspec": "0.22", "pyspark": None}
    monkeypatch.setattr(
        driver,
        "described_process",
        lambda names: {"python": "3.11.9", "packages": {one: versions[one] for one in names}},
    )
    monkeypatch.setattr(driver, "checked_java", lambda _: "17")
    spark = Requirement("pyspark", ((">=", "4"),), "spark")
    needs = Needs(NEEDS.python, (Requirement("msgspec"), spark))
    small, large = Notes(), Notes()
    look_at_driver(small, needs, {})
    *_, told = small.result(0).findings
    assert (small.result(0).status, told.check, told.status) == ("ok", "spark", "not-tried")
    assert "icekeep[spark] brings it" in told.message
    look_at_driver(large, needs, {}, with_spark=True)
    told = next(one for one in large.result(0).findings if one.check == "package pyspark")
    assert (large.result(0).status, told.message) == (
        "wrong",
        "pyspark is not installed; icekeep[spark] brings it (how to install it: docs/install.md)",
    )


def test_what_is_not_installed_as_a_package_tells_of_no_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "checked_java", lambda _: "17")
    notes = Notes()
    look_at_driver(notes, None, {})
    assert [one.status for one in notes.result(0).findings] == ["ok", "not-tried", "ok"]
