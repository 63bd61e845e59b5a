"""Run tests with other releases of Python and of what icekeep needs, and tell what came of it: `make matrix`.

Each combination is resolved anew within the ranges of pyproject.toml, gets an environment of its own (.venv-matrix-NAME/, where
its releases are in releases.txt and what pytest said is in pytest.log), and is a row of the table in docs/matrix.md. So that
row says what was installed on its day; the rows of other combinations stay. A Python that is not on this machine is a row
without figures.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "matrix.md"


class Combination(NamedTuple):
    """Releases that are tried together.

    `pins` stand beside the ranges of pyproject.toml. Each package is the newest that all these allow; or, where
    `is_lowest`, the oldest, if icekeep itself names it. What only the tests need is the newest in any case.
    Another Spark alone runs the tests that start one.
    """

    name: str
    python: str
    pins: tuple[str, ...] = ()
    is_lowest: bool = False


COMBINATIONS = (
    Combination("newest", "3.11"),
    Combination("python-3.14", "3.14"),
    Combination("spark-4.2", "3.13", ("pyspark==4.2.*",)),
    Combination("spark-4.1", "3.12", ("pyspark==4.1.*",)),
    Combination("spark-4.0", "3.11", ("pyspark==4.0.*",)),
    Combination("spark-3.5", "3.11", ("pyspark==3.5.*",)),
    Combination("lowest", "3.11", is_lowest=True),
)
IN_SPARK = ("tests/spark", "tests/end_to_end/test_jobs.py", "tests/end_to_end/test_own_session.py")
TESTS = (
    *("tests/unit/spec", "tests/unit/formats", "tests/unit/commit", "tests/unit/catalog", "tests/unit/planning"),
    *IN_SPARK,
)
CASES = 0.3
"""Of the generated cases so many: what a release does wrong shows in few of them."""
EXTRAS = ("spark", "postgres", "catalogs", "s3", "hdfs", "telemetry", "report", "otel", "openlineage", "notify")
SHOWN = ("pyspark", "pyarrow", "datafusion", "fastavro", "msgspec", "sqlalchemy", "numpy", "pandas", "rich", "obstore")
BEGIN, END = "<!-- The table is written by `make matrix`. -->", "<!-- end of the table -->"


class Row(NamedTuple):
    """What came of a combination; no releases where its Python is not there, or nothing could be resolved."""

    combination: Combination
    python: str
    releases: Mapping[str, str]
    outcome: str


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run tests with other releases of Python and of what icekeep needs.")
    parser.add_argument("--uv", default="uv", help="the program uv (default: the one on the PATH)")
    parser.add_argument("--workers", type=int, default=2, help="processes of tests beside each other (default: 2)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these combinations (default: all)")
    parser.add_argument(
        "--tests", nargs="*", default=[], metavar="PATH", help="these tests, and leave the page as it is"
    )
    given = parser.parse_args(words)
    unknown = {*given.only} - {one.name for one in COMBINATIONS}
    if unknown:
        parser.error(f"there is no combination {', '.join(sorted(unknown))}; see COMBINATIONS in {__file__}")
    uv = [given.uv, "--no-config"]
    rows = []
    for combination in COMBINATIONS:
        if not given.only or combination.name in given.only:
            rows.append(
                _tried(combination, uv, given.workers, given.tests or (IN_SPARK if combination.pins else TESTS))
            )
            print(f"{combination.name}: {rows[-1].outcome}", flush=True)
    print(_table(_lines(rows).values()))
    if not given.tests:
        _save(rows)
    return 0 if all(" failed" not in row.outcome and "error" not in row.outcome for row in rows) else 1


def _tried(combination: Combination, uv: list[str], workers: int, tests: Sequence[str]) -> Row:
    environment = ROOT / f".venv-matrix-{combination.name}"
    try:
        found = _said([*uv, "python", "find", combination.python])
    except subprocess.CalledProcessError:
        return Row(combination, combination.python, {}, "not run: this Python was not on the machine")
    try:
        _install(combination, uv, found, environment)
    except subprocess.CalledProcessError as error:
        (environment / "pytest.log").write_text(str(error.stderr))
        return Row(combination, combination.python, {}, "error: cannot be installed, see pytest.log in its environment")
    releases = _releases(environment / "releases.txt")
    python = _said([str(environment / "bin" / "python"), "-c", "import platform; print(platform.python_version())"])
    return Row(combination, python, releases, _tested(environment, workers, tests))


def _install(combination: Combination, uv: list[str], python: str, environment: Path) -> None:
    _said([*uv, "venv", "--clear", "--python", python, str(environment)])
    compiled = [*uv, "pip", "compile", "--python", python, "--no-header", "--no-annotate", "pyproject.toml"]
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    pins = environment / "pins.txt"
    pins.write_text("".join(f"{pin}\n" for pin in combination.pins))
    if combination.is_lowest:
        lowest = environment / "lowest.txt"
        _said(
            [
                *compiled,
                *extras,
                "--constraint",
                str(pins),
                "--resolution",
                "lowest-direct",
                "--output-file",
                str(lowest),
            ]
        )
        found = _releases(lowest)
        pins.write_text("".join(f"{name}=={found[name]}\n" for name in _own_packages() if name in found))
    releases = environment / "releases.txt"
    _said([*compiled, *extras, "--extra", "dev", "--constraint", str(pins), "--output-file", str(releases)])
    installed = [*uv, "pip", "install", "--python", str(environment)]
    # PySpark has no wheel; the one that is built of it need not be compressed.
    stored = ["--config-settings-package", "pyspark:--build-option=--compression=stored"]
    _said([*installed, *stored, "--requirements", str(releases)])
    _said([*installed, "--no-deps", "--no-build-isolation", "--editable", "."])


def _tested(environment: Path, workers: int, tests: Sequence[str]) -> str:
    began = time.monotonic()
    beside = ["--numprocesses", str(workers), "--dist", "worksteal"] if workers > 1 else []
    with (environment / "pytest.log").open("w") as log:
        told = ["--quiet", "--tb=short", "--cases", str(CASES)]
        command = [str(environment / "bin" / "python"), "-m", "pytest", *told, *beside, *tests]
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, check=False).returncode
    seconds = round(time.monotonic() - began)
    lines = (environment / "pytest.log").read_text().splitlines()
    ended = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed|error)", line)), "")
    counted = re.findall(r"(\d+) (passed|failed|errors?)", ended)
    counts = ", ".join(f"{int(count):,} {what}" for count, what in counted) or f"error: pytest ended with {status}"
    return f"{counts}, {seconds} s"


def _own_packages() -> list[str]:
    """The packages that icekeep itself names, but for those of development."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *(need for extra in EXTRAS for need in project["optional-dependencies"][extra])]
    return sorted({re.match(r"[A-Za-z0-9._-]+", need)[0].lower() for need in needs})  # type: ignore[index]


def _releases(file: Path) -> dict[str, str]:
    """The release of each package, of a file that uv has compiled."""
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\n]+)", file.read_text(), re.MULTILINE))


def _said(command: Sequence[str]) -> str:
    # Of pyenv's Pythons only those are on the PATH that somebody has chosen there.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    path = os.pathsep.join([os.environ["PATH"], *map(str, sorted(pyenv.glob("versions/*/bin")))])
    environ = {**os.environ, "PATH": path, "UV_PYTHON_DOWNLOADS": "never"}
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environ).stdout.strip()


def _lines(rows: Sequence[Row]) -> dict[str, str]:
    """A line of the table for each row, under the name of its combination."""
    day = str(datetime.datetime.now(datetime.UTC).date())
    return {
        row.combination.name: _line(
            [row.combination.name, row.outcome, day, row.python, *(row.releases.get(name, "") for name in SHOWN)]
        )
        for row in rows
    }


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(lines: Iterable[str]) -> str:
    """A table in Markdown of these lines."""
    head = ["combination", "tests", "day", "Python", *SHOWN]
    return "\n".join([_line(head), _line(["---"] * len(head)), *lines])


def _save(rows: Sequence[Row]) -> None:
    """Write these rows into the page, and leave there those of the other combinations."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines()} | _lines(rows)
    kept = [lines[one.name] for one in COMBINATIONS if one.name in lines]
    PAGE.write_text(f"{before}{BEGIN}\n\n{_table(kept)}\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
