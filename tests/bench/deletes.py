"""A table with very many delete files against Iceberg Java on Spark: `make bench-deletes`, or a part of it:

    .venv/bin/python tests/bench/deletes.py --data-files 200 --position-deletes 200 --equality-deletes 20 --partitions 4

The table is what a CDC writer leaves (see `changes.py`), by default 20,000 data files with 20,000 position and 2,000 equality
delete files. The rivals plan a scan of it (`plan`), compact it with all deletes applied, dangling ones removed with it
(`compact`), and merge its position deletes (`merge`). Each has a process of its own for each job and does a small table first;
compaction and merging are then done to fresh copies of the table. Spark with Iceberg's own reader reads what both made,
which must be the live rows, as whoever made the table knows them.

Memory is for all processes of a rival together, 4 GB by default: the JVM's heap is what of that is left beside Python, whose
workers read and write in icekeep. The most that all had at one glance is held against the limit; pages that processes share
count for each.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Columns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import compacting
from bench.changes import CACHE, CATALOG, NAMESPACE, Changes, add_sizes, changes_lake, made, sizes
from bench.engines import JAVAS, OURS, jars, java_catalog, names_among, spark_settings
from bench.planning import CLASSES, compiled
from bench.processes import RivalFailedError, run
from icekeep.catalog.open import open_catalog
from icekeep.spec.manifests.structs import DataFile, FileContent
from kit.naive_scan import live_entries

HERE = Path(__file__).resolve().parent
RIVALS = ("icekeep", "java")
COPY = f"{compacting.NAMESPACE}.copy"
console = Console(width=170, soft_wrap=True)


class Job(msgspec.Struct, frozen=True):
    """What rivals do to copies of a table: the script of each is `<script>_with_<rival>.py`; options are Iceberg's."""

    script: str
    options: dict[str, str]


JOBS = {
    "compact": Job("compact", {"remove-dangling-deletes": "true"}),
    "merge": Job("merge_deletes", {}),
}
PLAN = "plan"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line chose; `heaps` has the JVM's by rival."""

    changes: Changes
    jobs: tuple[str, ...]
    rivals: tuple[str, ...]
    limit_bytes: int
    heaps: dict[str, str]
    target_bytes: int
    repeat: int
    cache: Path

    @property
    def small(self) -> Changes:
        """A table of the same kind that each rival does first."""
        few = {"data_files": 40, "position_deletes": 40, "equality_deletes": 4}
        return msgspec.structs.replace(self.changes, **few, partitions=min(2, self.changes.partitions))


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job; `bytes` and `files` are those written."""

    seconds: float
    cpu_seconds: float
    driver_bytes: int
    jvm_bytes: int
    worker_bytes: int
    total_bytes: int
    files: int
    bytes: int
    result: dict[str, Any]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one rival did: its runs, and how many files of each kind the table of the last one has."""

    job: str
    rival: str
    runs: tuple[Run, ...]
    left: dict[str, int]

    @property
    def best(self) -> Run:
        return min(self.runs, key=lambda run: run.seconds)

    def most(self, name: str) -> int:
        return max(getattr(run, name) for run in self.runs)


def main() -> int:
    """Run it; 0 if every rival answered, no rows were changed, and icekeep kept within the memory."""
    settings, save = parse_arguments()
    table, rows_count = made(settings.changes, settings.cache)
    made(settings.small, settings.cache)
    console.print(f"[bold]{settings.changes.name}[/]: {rows_count:,} rows in {counted(live_files(table))}")
    failed, figures = False, []
    for job in settings.jobs:
        try:
            if job == PLAN:
                compare_plans(settings)
            else:
                figures += compare(job, settings, rows_count)
        except RivalFailedError as error:
            failed = True
            console.print(f"[red]failed[/]: {escape(str(error))}")
    if save is not None:
        save.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    too_much = [f.job for f in figures if f.rival == "icekeep" and f.most("total_bytes") > settings.limit_bytes]
    for job in too_much:
        console.print(f"[red]icekeep took more than {settings.limit_bytes / 1e6:,.0f} MB for {job}[/]")
    return 1 if failed or too_much else 0


def compare_plans(settings: Settings) -> None:
    """Let each rival plan a scan of the whole table, and print what it took; raises `RivalFailedError`."""
    lake = changes_lake(settings.cache)
    with TemporaryDirectory(prefix="plan-", dir=lake.directory) as directory:
        lakes = {CATALOG: lake.warehouse}
        request = {
            "catalog": CATALOG,
            "table": f"{NAMESPACE}.{settings.changes.table_name}",
            "conf": str(_conf(lakes, Path(directory, "icekeep.yaml"))),
            "where": "true",
            "sql": "true",
            "over_files": False,
            "repeat": 1 + settings.repeat,
        }
        answers = {rival: _answer(rival, "plan", request, lakes, settings) for rival in settings.rivals}
    columns = Columns(title="scan planning")
    for title in ("", "first s", "best s", "files", "JVM MB", "Python MB"):
        columns.add_column(title, justify="right")
    for rival, answer in answers.items():
        columns.add_row(
            rival,
            f"{answer['first_s']:.2f}",
            f"{answer['warm_s']:.2f}",
            f"{answer['files']:,}",
            f"{answer['jvm_bytes'] / 1e6:,.0f}",
            f"{answer['python_bytes'] / 1e6:,.0f}",
        )
    console.print(columns)
    if len({(answer["files"], answer["bytes"]) for answer in answers.values()}) > 1:
        raise RivalFailedError("the rivals' plans have different files")
    if len(answers) == len(RIVALS):
        console.print(f"Java's time by icekeep's: {answers['java']['warm_s'] / answers['icekeep']['warm_s']:.2f} x")


def compare(name: str, settings: Settings, rows_count: int) -> list[Figures]:
    """Let each rival do one job and print what it took.

    Raises:
        RivalFailedError: one failed, or changed rows.
    """
    job, lake = JOBS[name], changes_lake(settings.cache)
    options = (
        {**job.options, "target-file-size-bytes": str(settings.target_bytes)} if name == "compact" else job.options
    )
    console.print(f"\n[bold]{name}[/]: {options}")
    with TemporaryDirectory(prefix="runs-", dir=lake.directory) as runs:
        lakes = {CATALOG: lake.warehouse, **{rival: Path(runs, rival) for rival in RIVALS}}
        request = {
            "source": str(lake.path(settings.changes)),
            "small": str(lake.path(settings.small)),
            "conf": str(_conf(lakes, Path(runs, "icekeep.yaml"))),
            "arguments": {},
            "options": options,
            "repeat": settings.repeat,
        }
        figures = []
        for rival in settings.rivals:
            asked = {**request, "catalog": rival, "warehouse": str(lakes[rival])}
            answer = _answer(rival, job.script, asked, lakes, settings)
            copy = open_catalog(rival, _catalog(lakes[rival])).load(COPY)
            found = Figures(
                job=name,
                rival=rival,
                runs=msgspec.convert(answer["runs"], tuple[Run, ...]),
                left=Counter(map(_kind, live_files(copy))),
            )
            figures.append(found)
            print_figures([found], settings)
        print_ratios(figures)
        _check_rows(lakes, settings, rows_count)
    return figures


def _answer(
    rival: str, script: str, request: dict[str, Any], lakes: Mapping[str, Path], settings: Settings
) -> dict[str, Any]:
    path = str(HERE / f"{script}_with_{rival}.py")
    python, spark = OURS, spark_settings(settings.heaps[rival])
    if rival == "java":
        python = JAVAS
        spark |= {
            "spark.driver.extraClassPath": os.pathsep.join([str(compiled(CLASSES)), *jars()]),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.iceberg.data-planning-mode": "local",
            "spark.sql.iceberg.delete-planning-mode": "local",
        }
        for name, warehouse in lakes.items():
            spark |= java_catalog(name, warehouse.as_uri())
    return run([str(python / "python"), path, json.dumps({**request, "spark": spark})], path).answer


def _catalog(warehouse: Path) -> dict[str, str]:
    return {"type": "hadoop", "warehouse": warehouse.as_uri()}


def _conf(lakes: Mapping[str, Path], path: Path) -> Path:
    """A configuration file that names all catalogs."""
    path.write_text(json.dumps({"catalogs": {name: _catalog(warehouse) for name, warehouse in lakes.items()}}))
    return path


def _check_rows(lakes: Mapping[str, Path], settings: Settings, rows_count: int) -> None:
    """Raise where a copy holds other rows than it must: their number, and the sum of hashes of each whole row."""
    live = f"{CATALOG}.{NAMESPACE}.{settings.changes.live_table_name}"
    copies = {rival: f"{rival}.{COPY}" for rival in settings.rivals}
    answer = _answer("java", "scan", {"tables": [live, *copies.values()], "repeat": 1}, lakes, settings)
    sums = answer[live]["sums"]
    if sums[0] != rows_count:
        raise RivalFailedError(f"the table of live rows has {sums[0]:,}, not {rows_count:,}")
    if wrong := [rival for rival, name in copies.items() if answer[name]["sums"] != sums]:
        raise RivalFailedError(f"the output of {' and '.join(wrong)} does not have the rows that are live: {answer}")
    seconds = ", ".join(f"{rival} {answer[name]['seconds']:.1f} s" for rival, name in copies.items())
    console.print(f"all hold the {rows_count:,} live rows; a scan takes {seconds}")


def live_files(table: Any) -> list[DataFile]:
    """The live files of a table, of all kinds."""
    return [entry.data_file for entry in live_entries(table)]


def counted(files: Sequence[DataFile]) -> str:
    """How many files of each kind, and their size."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(map(_kind, files)).items())
    return f"{kinds} files, {sum(file.file_size_in_bytes for file in files) / 1e6:,.0f} MB"


def _kind(file: DataFile) -> str:
    return FileContent(file.content).name.lower().replace("_", " ")


def print_figures(figures: Sequence[Figures], settings: Settings) -> None:
    """One line a rival."""
    columns = Columns()
    columns.add_column("")
    titles = ("s", "CPU s", "all MB", "JVM MB", "driver MB", "worker MB", "files", "MB written", "left")
    for title in titles:
        columns.add_column(title, justify="right")
    memory = ("total_bytes", "jvm_bytes", "driver_bytes", "worker_bytes")
    for f in figures:
        within = "" if f.most("total_bytes") <= settings.limit_bytes else " (too much)"
        columns.add_row(
            f.rival + within,
            f"{f.best.seconds:.1f}",
            f"{f.best.cpu_seconds:.1f}",
            *(f"{f.most(name) / 1e6:,.0f}" for name in memory),
            f"{f.runs[-1].files:,}",
            f"{f.runs[-1].bytes / 1e6:,.1f}",
            ", ".join(f"{count:,} {kind}" for kind, count in sorted(f.left.items())),
        )
    console.print(columns)
    for f in figures:
        console.print(f"{f.rival}: {escape(json.dumps(f.runs[-1].result))}")


def print_ratios(figures: Sequence[Figures]) -> None:
    """Java's figures by icekeep's."""
    runs = {f.rival: f for f in figures}
    if len(runs) < len(RIVALS):
        return
    ours, theirs = runs["icekeep"], runs["java"]
    console.print(
        f"icekeep takes less than Iceberg Java by: {theirs.best.seconds / ours.best.seconds:.2f} x wall, "
        f"{theirs.best.cpu_seconds / ours.best.cpu_seconds:.2f} x CPU, "
        f"{theirs.most('total_bytes') / ours.most('total_bytes'):.2f} x memory, "
        f"{theirs.runs[-1].bytes / max(1, ours.runs[-1].bytes):.2f} x bytes written"
    )


def parse_arguments() -> tuple[Settings, Path | None]:
    parser = argparse.ArgumentParser(description="Compare icekeep with Iceberg Java on a table with many delete files.")
    add_sizes(parser)
    jobs = (PLAN, *JOBS)
    parser.add_argument("--jobs", type=names_among(jobs), default=(PLAN, "compact"), help=f"among {','.join(jobs)}")
    parser.add_argument("--rivals", type=names_among(RIVALS), default=RIVALS, help=",".join(RIVALS))
    parser.add_argument("--repeat", type=int, default=0, help="runs after the first (default: %(default)s)")
    parser.add_argument("--memory-mb", type=int, default=4000, help="of a rival's processes together (default: 4000)")
    parser.add_argument("--icekeep-heap", default="1500m", help="of its JVM, beside its Python (default: %(default)s)")
    parser.add_argument("--java-heap", default="3200m", help="of its JVM (default: %(default)s)")
    parser.add_argument("--target-mb", type=int, default=16, help="target size of data files (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="a file for all figures as JSON")
    given = parser.parse_args()
    settings = Settings(
        changes=sizes(given),
        jobs=given.jobs,
        rivals=given.rivals,
        limit_bytes=given.memory_mb * 1_000_000,
        heaps={"icekeep": given.icekeep_heap, "java": given.java_heap},
        target_bytes=given.target_mb << 20,
        repeat=given.repeat,
        cache=given.cache.absolute(),
    )
    return settings, given.save


if __name__ == "__main__":
    sys.exit(main())
