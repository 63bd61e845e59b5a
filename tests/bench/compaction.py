"""Compaction against Iceberg Java on Spark: `make bench-compaction`, or a part of it:

    .venv/bin/python tests/bench/compaction.py --tables sf1-200,sf1-200-deletes --jobs binpack,zorder --repeat 1

The tables are TPC-H's lineitem (see `lineitem.py`): scale factor 1 in 200 and in 2,000 files, of which each job makes about
eight, and scale factor 10 in 40 files, which the job `stitch` brings to 512 MB; with and without deletes. For each job each
rival has a process of its own, compacts a small table first, and then, one after another, fresh copies of the table that
counts, with the same codec and options. `--rivals icekeep,reencode` compares icekeep with itself when it copies nothing
(`stitch=never`), and tables such as sf1-200-pyiceberg are written by PyIceberg. Spark with Iceberg's own reader then reads
what all made, which must be the rows of the table before. For sorted tables icekeep counts the files that range queries over
two columns would open.

Processor time is of all processes of a rival, Spark's Python workers among them. Memory is the peak of the resident set: of
the JVM, which is driver and executor at once, of the driver's Python, and of the largest Python worker.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Columns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import compacting
from bench.engines import JAVAS, OURS, jars, java_catalog, names_among, spark_settings
from bench.lineitem import CACHE, CATALOG, Lineitem, lineitem_lake, made, parse_name
from bench.processes import RivalFailedError, run
from bench.range_queries import range_queries
from kit.written_deletes import data_files

HERE = Path(__file__).resolve().parent
# `reencode` is icekeep that copies neither row groups nor pages, but decodes and encodes all rows.
RIVALS = ("icekeep", "java", "reencode")
TABLES = ("sf1-200", "sf1-200-deletes", "sf1-2000", "sf1-2000-deletes", "sf10-40", "sf10-40-deletes")
SMALL = "sf0.01-20"
OURSELVES = "icekeep"
CLUSTERED_BY = ("l_shipdate", "l_partkey")
STITCHED_BYTES = 512 << 20
console = Console(width=170, soft_wrap=True)


class Job(msgspec.Struct, frozen=True):
    """A compaction: the arguments that both rivals know, and how many files shall come out, null for 512 MB a file."""

    arguments: dict[str, str]
    files: int | None

    def target_bytes(self, table_bytes: int) -> int:
        return STITCHED_BYTES if self.files is None else table_bytes // self.files


def _sorted(order: str) -> dict[str, str]:
    return {"strategy": "sort", "sort_order": order}


JOBS = {
    "binpack": Job({}, 8),
    "sort": Job(_sorted("l_shipdate, l_orderkey"), 8),
    "zorder": Job(_sorted(f"zorder({', '.join(CLUSTERED_BY)})"), 8),
    "hilbert": Job(_sorted(f"hilbert({', '.join(CLUSTERED_BY)})"), 8),
    # The same in more files: eight are few to tell how well a curve keeps neighbours together.
    "zorder-64": Job(_sorted(f"zorder({', '.join(CLUSTERED_BY)})"), 64),
    "hilbert-64": Job(_sorted(f"hilbert({', '.join(CLUSTERED_BY)})"), 64),
    "stitch": Job({}, None),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line chose."""

    tables: tuple[Lineitem, ...]
    jobs: tuple[str, ...]
    rivals: tuple[str, ...]
    driver_memory: str
    repeat: int
    cache: Path

    @property
    def spark(self) -> dict[str, str]:
        return spark_settings(self.driver_memory)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction; `bytes` and `files` are those written."""

    seconds: float
    cpu_seconds: float
    driver_bytes: int
    jvm_bytes: int
    worker_bytes: int
    files: int
    bytes: int
    result: dict[str, Any]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one rival did with one table: its runs, what a scan of the last one's table took, and the files it opens."""

    table: str
    job: str
    rival: str
    runs: tuple[Run, ...]
    scan_seconds: float
    opened: tuple[int, ...] | None

    @property
    def best_seconds(self) -> float:
        return min(run.seconds for run in self.runs[1:] or self.runs)

    @property
    def cpu_seconds(self) -> float:
        return min(run.cpu_seconds for run in self.runs[1:] or self.runs)

    def most(self, name: str) -> int:
        return max(getattr(run, name) for run in self.runs)


def main() -> int:
    """Run it; 0 if every rival answered and no rows were changed."""
    settings, save = parse_arguments()
    figures: list[Figures] = []
    failed = False
    for table in settings.tables:
        for job in settings.jobs:
            if (job == "stitch") == table.is_large:
                try:
                    figures += compare(table, job, settings)
                except RivalFailedError as error:
                    failed = True
                    console.print(f"[red]failed[/]: {escape(str(error))}")
    print_summary(figures)
    if save is not None:
        save.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    return 1 if failed else 0


def compare(table: Lineitem, name: str, settings: Settings) -> list[Figures]:
    """Let each rival do one job and print what it took.

    Raises:
        RivalFailedError: one failed, or changed rows.
    """
    small = msgspec.structs.replace(parse_name(SMALL), has_deletes=table.has_deletes)
    made(small, settings.cache)
    files = data_files(made(table, settings.cache))
    size_bytes = sum(file.file_size_in_bytes for file in files)
    job, lake = JOBS[name], lineitem_lake(settings.cache)
    target_bytes = job.target_bytes(size_bytes)
    console.print(
        f"\n[bold]{table.name}, {name}[/]: {len(files):,} files of {size_bytes / 1e6:,.1f} MB in all, "
        f"target {target_bytes / 1e6:,.1f} MB {job.arguments or ''}"
    )
    with TemporaryDirectory(prefix="runs-", dir=lake.directory) as runs:
        lakes = {CATALOG: lake.warehouse, **{rival: Path(runs, rival) for rival in RIVALS}}
        conf = _conf(lakes, Path(runs, "icekeep.yaml"))
        request = {
            "source": str(lake.path(table)),
            "small": str(lake.path(small)),
            "arguments": job.arguments,
            "options": {"target-file-size-bytes": str(target_bytes)},
            "repeat": settings.repeat,
        }
        answers = {rival: _answer(rival, request, lakes, conf, settings) for rival in settings.rivals}
        places = {CATALOG: f"{compacting.NAMESPACE}.{table.table_name}"}
        places |= dict.fromkeys(settings.rivals, f"{compacting.NAMESPACE}.copy")
        scanned = _scanned(places, lakes, settings)
        opened = {}
        if "sort_order" in job.arguments:
            opened = _opened(places, conf, settings, float(table.scale))
    figures = [
        Figures(
            table=table.name,
            job=name,
            rival=rival,
            runs=msgspec.convert(answers[rival]["runs"], tuple[Run, ...]) if rival in answers else (),
            scan_seconds=scanned[f"{rival}.{place}"]["seconds"],
            opened=opened.get(f"{rival}.{place}"),
        )
        for rival, place in places.items()
    ]
    print_figures(figures)
    _check_rows({rival: scanned[f"{rival}.{place}"]["sums"] for rival, place in places.items()})
    return figures


def _answer(
    rival: str, request: dict[str, Any], lakes: dict[str, Path], conf: Path, settings: Settings
) -> dict[str, Any]:
    request = {**request, "catalog": rival, "warehouse": str(lakes[rival])}
    if rival == "java":
        return _run_with_java(str(HERE / "compact_with_java.py"), request, lakes, settings)
    if rival == "reencode":
        request["options"] = {**request["options"], "stitch": "never"}
    script = str(HERE / "compact_with_icekeep.py")
    request |= {"conf": str(conf), "spark": settings.spark}
    return run([str(OURS / "python"), script, json.dumps(request)], script).answer


def _run_with_java(script: str, request: dict[str, Any], lakes: dict[str, Path], settings: Settings) -> dict[str, Any]:
    spark = {
        **settings.spark,
        "spark.driver.extraClassPath": os.pathsep.join(jars()),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    for name, warehouse in lakes.items():
        spark |= java_catalog(name, warehouse.as_uri())
    return run([str(JAVAS / "python"), script, json.dumps({**request, "spark": spark})], script).answer


def _conf(lakes: dict[str, Path], path: Path) -> Path:
    """A configuration file that names all catalogs."""
    settings = {name: {"type": "hadoop", "warehouse": warehouse.as_uri()} for name, warehouse in lakes.items()}
    path.write_text(json.dumps({"catalogs": settings}))
    return path


def _scanned(places: dict[str, str], lakes: dict[str, Path], settings: Settings) -> dict[str, Any]:
    names = [f"{catalog}.{name}" for catalog, name in places.items()]
    return _run_with_java(
        str(HERE / "scan_with_java.py"), {"tables": names, "repeat": max(1, settings.repeat)}, lakes, settings
    )


def _opened(places: dict[str, str], conf: Path, settings: Settings, scale: float) -> dict[str, Any]:
    script = str(HERE / "open_with_icekeep.py")
    filters = range_queries(scale)
    request = {"conf": str(conf), "spark": settings.spark, "tables": list(places.items()), "filters": filters}
    return run([str(OURS / "python"), script, json.dumps(request)], script).answer


def _check_rows(sums: dict[str, list[int]]) -> None:
    """Raise where a table holds other rows than the one before: their number, and the sum of hashes of each whole row."""
    wrong = sorted(name for name, found in sums.items() if found != sums[CATALOG])
    if wrong:
        raise RivalFailedError(f"rows are not those of the table before in the output of {' and '.join(wrong)}: {sums}")
    console.print(f"all hold the same {sums[CATALOG][0]:,} rows")


def print_figures(figures: Sequence[Figures]) -> None:
    """One line a rival and one for the table before; a ratio is Java's figure to icekeep's."""
    columns = Columns()
    columns.add_column("")
    titles = (
        "first s",
        "best s",
        "CPU s",
        "JVM MB",
        "driver MB",
        "worker MB",
        "files",
        "MB written",
        "scan s",
        "opened",
    )
    for title in titles:
        columns.add_column(title, justify="right")
    for f in figures:
        opened = "" if f.opened is None else f"{sum(f.opened) / len(f.opened):.2f}"
        if not f.runs:
            columns.add_row("before", *[""] * 8, f"{f.scan_seconds:.2f}", opened)
            continue
        columns.add_row(
            f.rival,
            f"{f.runs[0].seconds:.2f}",
            f"{f.best_seconds:.2f}",
            f"{f.cpu_seconds:.2f}",
            *(f"{f.most(name) / 1e6:,.0f}" for name in ("jvm_bytes", "driver_bytes", "worker_bytes")),
            f"{f.runs[-1].files:,}",
            f"{f.runs[-1].bytes / 1e6:,.1f}",
            f"{f.scan_seconds:.2f}",
            opened,
        )
    console.print(columns)
    for f in figures:
        if f.runs:
            console.print(f"{f.rival}: {escape(json.dumps(f.runs[-1].result))}")


def print_summary(figures: Sequence[Figures]) -> None:
    """One line a job and rival: the rival's figures by icekeep's."""
    columns = Columns(title="by how much icekeep takes less than its rivals")
    for title in ("table", "job", "rival"):
        columns.add_column(title)
    for title in ("icekeep s", "rival s", "wall", "CPU", "bytes written", "scan"):
        columns.add_column(title, justify="right")
    by_case = {(f.table, f.job, f.rival): f for f in figures if f.runs}
    for (table, job, rival), theirs in by_case.items():
        ours = by_case.get((table, job, OURSELVES))
        if rival != OURSELVES and ours is not None:
            columns.add_row(
                table,
                job,
                rival,
                f"{ours.best_seconds:.2f}",
                f"{theirs.best_seconds:.2f}",
                f"{theirs.best_seconds / ours.best_seconds:.2f} x",
                f"{theirs.cpu_seconds / ours.cpu_seconds:.2f} x",
                f"{theirs.runs[-1].bytes / ours.runs[-1].bytes:.2f} x",
                f"{theirs.scan_seconds / ours.scan_seconds:.2f} x",
            )
    console.print(columns)


def parse_arguments() -> tuple[Settings, Path | None]:
    parser = argparse.ArgumentParser(description="Compare icekeep's compaction with Iceberg Java's.")
    parser.add_argument(
        "--tables",
        type=lambda text: tuple(parse_name(name) for name in text.split(",")),
        default=",".join(TABLES),
        help="such as %(default)s",
    )
    parser.add_argument("--jobs", type=names_among(tuple(JOBS)), default=",".join(JOBS), help="among %(default)s")
    parser.add_argument("--rivals", type=names_among(RIVALS), default=RIVALS[:2], help=f"among {','.join(RIVALS)}")
    parser.add_argument(
        "--repeat", type=int, default=2, help="runs after the first; the best counts (default: %(default)s)"
    )
    parser.add_argument("--driver-memory", default="4g", help="of each Spark (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="a file for all figures as JSON")
    given = parser.parse_args()
    settings = Settings(
        tables=given.tables,
        jobs=given.jobs,
        rivals=given.rivals,
        driver_memory=given.driver_memory,
        repeat=given.repeat,
        cache=given.cache.absolute(),
    )
    return settings, given.save


if __name__ == "__main__":
    sys.exit(main())
