"""This machine: its Python, its packages, and the Java that Spark would be started with."""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from icekeep.errors import UsageError, brought_by
from icekeep.operations.doctor.findings import NOT_TRIED, OK, WRONG, Notes, NotTried
from icekeep.operations.doctor.requirements import SPARK_EXTRA, Needs, Requirement
from icekeep.planning.spark.configuration import SUBMITTED_VARIABLE
from icekeep.planning.spark.executors import described_process
from icekeep.planning.spark.session import OLDEST_JAVA, java_program

DRIVER = "driver"

_NO_SPARK = f"PySpark is not installed; only large tables need it: {brought_by(SPARK_EXTRA)}, and Java is needed too"

_JAVA_VERSION = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_JAVA_SECONDS = 30


def look_at_driver(notes: Notes, needs: Needs | None, environ: Mapping[str, str], *, with_spark: bool = False) -> None:
    """Look at Python, at what is always needed beside it, and at PySpark and Java.

    Args:
        with_spark: whether Spark is wanted for certain; else it may be missing, since small tables need none.
    """
    has_spark = with_spark or described_process(["pyspark"])["packages"]["pyspark"] is not None
    notes.look(DRIVER, "python", partial(checked_python, described_process(())["python"], needs))
    if needs is None:
        notes.look(DRIVER, "packages", _not_installed)
    else:
        look_at_packages(notes, DRIVER, (*needs.of(""), *(needs.of(SPARK_EXTRA) if has_spark else ())))
    if has_spark:
        notes.look(DRIVER, "java", partial(checked_java, environ))
    else:
        notes.tell(DRIVER, "spark", NOT_TRIED, _NO_SPARK)


def look_at_packages(notes: Notes, about: str, requirements: Sequence[Requirement]) -> None:
    """Look at packages on this machine: one line for all that are well, and one for each other."""
    versions = described_process([one.package for one in requirements])["packages"]
    well = []
    for requirement in requirements:
        version = versions[requirement.package]
        problem = requirement.problem(version)
        if problem is not None:
            notes.tell(about, f"package {requirement.package}", WRONG, problem)
        else:
            well.append(f"{requirement.package} {version or '(of no known version)'}")
    if well:
        notes.tell(about, "packages", OK, ", ".join(well))


def checked_python(version: str, needs: Needs | None) -> str:
    """What is said of this Python.

    Raises:
        UsageError: icekeep does not run on it.
    """
    if needs is not None and not needs.python.allows(version):
        raise UsageError(f"Python is {version}, and icekeep needs {needs.python.range}")
    return version


def checked_java(
    environ: Mapping[str, str], run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run
) -> str:
    """What is said of Java.

    Raises:
        UsageError: there is none, it does not start, or Spark does not run on it.
        NotTried: Spark runs already.
    """
    if SUBMITTED_VARIABLE in environ:
        raise NotTried("spark-submit has started Java already; what it is stands with the executors")
    program = java_program(environ)
    try:
        done = run([program, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{program!r} cannot be run ({error}); set JAVA_HOME to where Java {OLDEST_JAVA} or later is"
        ) from error
    told = _JAVA_VERSION.search(done.stderr + done.stdout)
    if told is None:
        raise UsageError(
            f"{program!r} does not say which Java it is; set JAVA_HOME to where Java {OLDEST_JAVA} or later is"
        )
    return checked_java_version(told[1], program)


def checked_java_version(version: str, where: str) -> str:
    """What is said of a release of Java.

    Raises:
        UsageError: Spark does not run on it.
    """
    major = int(re.split(r"\D", version.removeprefix("1."))[0])
    if major < OLDEST_JAVA:
        raise UsageError(
            f"Java is {version} ({where}), and Spark needs {OLDEST_JAVA} or later; install it, and set JAVA_HOME"
        )
    return f"{version} ({where})"


def _not_installed() -> str:
    raise NotTried(
        "icekeep runs from a zip or a checkout and is not installed as a package, so the releases that it needs are not known"
    )
