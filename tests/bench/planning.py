"""Scan planning against its rivals: `make bench-planning`, or a part of it:

    .venv/bin/python tests/bench/planning.py --entries 100000 --manifests 20 --filters bounds --rivals icekeep,java-local

Each rival plans each filter over each table in a process of its own, one after another: once, and then again for the
best of three, in a session that is warm; the rivals whose names end in `-process` are timed from spark-submit to the
answer. All must find the same files. What memory a driver has: `--driver-memory 2g`. `--entries 10000000 --manifests 200
--rivals icekeep` is how ten million entries are planned.

Memory is the peak of the resident set, of the JVM (driver and executor at once in local mode) and of the driver's Python.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Columns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import big_tables
from bench.big_rows import Shape
from bench.big_tables import CACHE, CATALOG, FILTERS, ROOT, TABLE, BigTable, Filter, big_table, filters
from bench.engines import JAVAS, OURS, jars, java_catalog, names_among, spark_settings
from bench.processes import RivalFailedError, run

HERE = Path(__file__).resolve().parent
CLASSES = CACHE / "classes"
TABLE_NAME = ".".join(TABLE)
RIVALS = (
    "icekeep",
    "java-local",
    "java-distributed",
    "java-files",
    "pyiceberg",
    "icekeep-process",
    "java-process",
)
console = Console(width=150, soft_wrap=True)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line chose."""

    shapes: tuple[Shape, ...]
    filters: tuple[str, ...]
    rivals: tuple[str, ...]
    driver_memory: str
    repeat: int
    cache: Path


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one rival did with one filter; times in seconds, `first_s` null for a whole process."""

    rival: str
    files: int
    bytes: int
    first_s: float | None
    warm_s: float
    jvm_bytes: int
    python_bytes: int


def main() -> int:
    """Run it; 0 if every rival answered and all found the same."""
    settings = parse_arguments()
    outcomes = []
    for shape in settings.shapes:
        table = made(shape, settings.cache)
        for name in settings.filters:
            outcomes.append(compare(table, name, filters(shape)[name], settings))
    return 0 if all(outcomes) else 1


def made(shape: Shape, cache: Path) -> BigTable:
    """The table, made if it is not there yet, and its manifests in the page cache."""
    table = big_table(shape, cache)
    if not table.is_made:
        # In a process of its own: the memory that it takes is nobody's here.
        command = [sys.executable, big_tables.__file__, *big_tables.arguments(shape), "--out", str(cache)]
        subprocess.run(command, check=True)
    for path in table.directory.rglob("*.avro"):
        path.read_bytes()
    return table


def compare(table: BigTable, name: str, chosen: Filter, settings: Settings) -> bool:
    """Let each rival plan one filter and print what it took; false if one failed or found something else."""
    shape = table.shape
    console.print(
        f"\n[bold]{shape.entries:,} entries in {shape.manifests:,} manifests, filter {name}[/]: {chosen.where}"
    )
    figures, failed = [], False
    for rival in settings.rivals:
        try:
            figures.append(measure(rival, table, chosen, settings))
        except RivalFailedError as error:
            failed = True
            console.print(f"[red]{rival} failed[/]: {escape(str(error))}")
    print_figures(figures)
    if not agreed(figures):
        console.print("[bold red]the rivals disagree about the files[/]: the times above mean nothing")
    return not failed and agreed(figures)


def agreed(figures: Sequence[Figures]) -> bool:
    """Whether all found as many files with as many bytes."""
    return len({(f.files, f.bytes) for f in figures}) <= 1


def measure(rival: str, table: BigTable, chosen: Filter, settings: Settings) -> Figures:
    """Run one rival; raises `RivalFailedError`."""
    if rival == "icekeep-process":
        where = [] if chosen.where == "true" else ["--where", chosen.where]
        job = [str(ROOT / "jobs/plan_scan.py"), "--conf", str(table.conf), "--catalog", CATALOG, "--table", TABLE_NAME]
        spark = spark_settings(settings.driver_memory)
        return whole_process(rival, OURS, spark, [*job, *where, "--output", "json"], settings.repeat)
    request = {
        **msgspec.structs.asdict(chosen),
        "catalog": CATALOG,
        "table": TABLE_NAME,
        "conf": str(table.conf),
        "metadata_location": table.load().metadata_location,
        "spark": spark_settings(settings.driver_memory)
        | (iceberg_java(table, rival) if rival.startswith("java-") else {}),
        "over_files": rival == "java-files",
        "repeat": settings.repeat,
    }
    script = str(HERE / f"plan_with_{rival.split('-')[0]}.py")
    if rival == "java-process":
        return whole_process(rival, JAVAS, request["spark"], [script, json.dumps(request)], settings.repeat)
    python = JAVAS if rival.startswith("java-") else OURS
    answer = run([str(python / "python"), script, json.dumps(request)], script).answer
    return msgspec.convert({"rival": rival, "jvm_bytes": 0, **answer}, Figures)


def whole_process(rival: str, programs: Path, spark: Mapping[str, str], job: Sequence[str], repeat: int) -> Figures:
    """The best of some runs of spark-submit, and the most memory that one of them had."""
    # The class path of the driver is fixed when its JVM starts: --conf comes in time, a session's builder too late.
    confs = [text for key, value in spark.items() for text in ("--conf", f"{key}={value}")]
    runs = [run([str(programs / "spark-submit"), *confs, *job], job[0]) for _ in range(repeat)]
    answer = runs[0].answer.get("result", runs[0].answer)
    return Figures(
        rival=rival,
        files=answer["data_files_count"],
        bytes=answer["data_files_bytes"],
        first_s=None,
        warm_s=min(ended.seconds for ended in runs),
        jvm_bytes=max(ended.process_bytes for ended in runs),
        python_bytes=max(ended.python_bytes for ended in runs),
    )


def iceberg_java(table: BigTable, rival: str) -> dict[str, str]:
    """What Iceberg Java's Spark is told beside that; a whole process plans locally, the faster mode on one machine."""
    mode = "distributed" if rival == "java-distributed" else "local"
    return {
        **java_catalog(CATALOG, table.properties["warehouse"]),
        "spark.driver.extraClassPath": os.pathsep.join([str(compiled(CLASSES)), *jars()]),
        "spark.sql.iceberg.data-planning-mode": mode,
        "spark.sql.iceberg.delete-planning-mode": mode,
    }


@cache
def compiled(classes: Path) -> Path:
    """The directory of the compiled classes of `java/bench`."""
    spark = next((JAVAS.parent / "lib").glob("python*/site-packages/pyspark/jars"))
    path = os.pathsep.join([*jars(), f"{spark}/*"])
    sources = [str(source) for source in sorted((HERE / "java/bench").glob("*.java"))]
    subprocess.run(["javac", "-d", str(classes), "-cp", path, *sources], check=True)
    return classes


def print_figures(figures: Sequence[Figures]) -> None:
    """One line a rival; the ratio is to icekeep's time of the same kind."""
    columns = Columns()
    columns.add_column("rival")
    for title in ("files", "GB", "first s", "best s", "icekeep is faster by", "JVM MB", "Python MB"):
        columns.add_column(title, justify="right")
    seconds = {f.rival: f.warm_s for f in figures}
    for f in figures:
        ours = seconds.get("icekeep-process" if f.first_s is None else "icekeep")
        columns.add_row(
            f.rival,
            f"{f.files:,}",
            f"{f.bytes / 1e9:,.3f}",
            "" if f.first_s is None else f"{f.first_s:.2f}",
            f"{f.warm_s:.2f}",
            "" if ours is None or f.rival.startswith("icekeep") else f"{f.warm_s / ours:.2f} x",
            f"{f.jvm_bytes / 1e6:,.0f}" if f.jvm_bytes else "",
            f"{f.python_bytes / 1e6:,.0f}",
        )
    console.print(columns)


def parse_arguments() -> Settings:
    parser = argparse.ArgumentParser(description="Compare icekeep's scan planning with PyIceberg's and Iceberg Java's.")
    parser.add_argument("--entries", type=numbers, default=(100_000, 1_000_000), help="such as 100000,1000000")
    parser.add_argument("--manifests", type=numbers, default=(20, 2000), help="such as 20,2000")
    parser.add_argument("--filters", type=names_among(FILTERS), default=FILTERS, help=",".join(FILTERS))
    parser.add_argument("--rivals", type=names_among(RIVALS), default=RIVALS, help=",".join(RIVALS))
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many runs counts (default: %(default)s)")
    parser.add_argument("--driver-memory", default="2g", help="of each Spark (default: %(default)s)")
    parser.add_argument("--tables", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    given = parser.parse_args()
    return Settings(
        shapes=tuple(Shape(entries=e, manifests=m) for e in given.entries for m in given.manifests),
        filters=given.filters,
        rivals=given.rivals,
        driver_memory=given.driver_memory,
        repeat=given.repeat,
        cache=given.tables.absolute(),
    )


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
