"""How long it takes from a command to the first row that a Spark task has rewritten, and to its end.

    python tests/bench/submitted/first_row.py [--earlier CHECKOUT] [--runs N] [--only local]

The table is TPC-H's lineitem, 11 MB in 20 files on this disk, of which one task makes one. Little as it is, threads of the
command are not given it: Spark's tasks rewrite it, those of a session that the command starts (`local[*]`), or those of a
standalone cluster of two executors of one core, by `spark-submit` with the zipped package. So nothing takes long but the start.
Processor seconds are those of all processes. The package of an earlier checkout does the same in turn.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.rival.watching import Watch
from bench.tables import copies
from bench.tables.kept import Kept, made
from bench.tables.lineitem import Lineitem
from kit.shell import ROOT
from kit.submitting import Standalone, Submitter, bare_python, python_with_wheels

TABLE = Lineitem(scale="0.06", files=20, by_pyiceberg=True)
SCRIPT = """
import sys
from icekeep.cli import main
from icekeep.planning.spark import session as source

source.LIMITS = source.Limits(rewrite_bytes=0, submitted_rewrite_bytes=0)

if __name__ == "__main__":
    sys.exit(main(job=sys.argv.pop(1)))
"""
"""A job of a given name, none of whose rewriting is so little that threads would do it."""
ALL = ("--option", "rewrite-all=true")
PLAIN = {"spark.driver.extraJavaOptions": "", "spark.executor.extraJavaOptions": "", "spark.eventLog.enabled": "false"}
"""As users have it."""
_GLANCE_S = 0.01

Run = Callable[[Path, Path], None]
"""Does a compaction of the table `db.copy` of a warehouse, in a directory of its own."""


class Taken(NamedTuple):
    """What a run took, in seconds: until the first new file was there, until its end, and of processors."""

    first: float
    seconds: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--earlier", type=Path, help="the root of another checkout, whose package is measured too")
    parser.add_argument("--runs", type=int, default=3, help="of each package in each way")
    parser.add_argument("--only", choices=("local", "submitted"), help="one way alone")
    given = parser.parse_args()
    roots = {"now": ROOT} | ({"earlier": given.earlier.resolve()} if given.earlier else {})
    ways = {"local": _in_own_sessions, "submitted": _submitted}
    table = made(TABLE, ROOT / ".bench")
    with tempfile.TemporaryDirectory() as place:
        for name, way in ways.items():
            if given.only in (None, name):
                with way(roots, Path(place)) as packages:
                    _print(name, _all_taken(table, packages, given.runs, Path(place, name)))


def _all_taken(table: Kept, packages: Mapping[str, Run], runs: int, directory: Path) -> Mapping[str, list[Taken]]:
    """Of each package some runs, those of a round in turn."""
    taken: dict[str, list[Taken]] = {name: [] for name in packages}
    for number in range(runs):
        for name, run in [*packages.items()][:: 1 if number % 2 == 0 else -1]:
            edge = directory / f"{name}-{number}"
            copies.clone(table.path, edge / "warehouse" / "db" / "copy")
            taken[name].append(_taken(run, edge))
    return taken


def _taken(run: Run, edge: Path) -> Taken:
    warehouse, firsts, is_over = edge / "warehouse", list[float](), threading.Event()

    def look(began: float) -> None:
        while not is_over.wait(_GLANCE_S):
            if any((warehouse / "db" / "copy" / "data").rglob("*.parquet")):
                firsts.append(time.perf_counter() - began)
                return

    with Watch() as watch:
        looking = threading.Thread(target=look, args=(time.perf_counter(),))
        looking.start()
        try:
            run(edge, warehouse)
        finally:
            is_over.set()
            looking.join()
    return Taken(firsts[0], watch.seconds, watch.cpu_seconds)


@contextmanager
def _in_own_sessions(roots: Mapping[str, Path], directory: Path) -> Iterator[Mapping[str, Run]]:
    """By icekeep's own command, which starts a session."""
    script = directory / "in_spark.py"
    script.write_text(SCRIPT)

    def run(root: Path, edge: Path, warehouse: Path) -> None:
        conf = edge / "icekeep.yaml"
        conf.write_text(f"catalogs: {{lake: {{type: hadoop, warehouse: '{warehouse.as_uri()}'}}}}\n")
        words = ["compact", "--config", str(conf), "--table", "lake.db.copy", *ALL, "--output", "json"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
        environ = {**inherited, "PYTHONPATH": str(root / "lib")}
        with (edge / "said").open("wb") as said:
            command = [sys.executable, str(script), *words]
            subprocess.run(command, cwd=edge, env=environ, stdout=said, stderr=said, check=True)

    yield {name: _of(run, root) for name, root in roots.items()}


@contextmanager
def _submitted(roots: Mapping[str, Path], directory: Path) -> Iterator[Mapping[str, Run]]:
    """By `spark-submit`, to a cluster."""
    python = python_with_wheels(directory / "wheels")

    def run(root: Path, edge: Path, warehouse: Path) -> None:
        catalog = {"type": "hadoop", "warehouse": warehouse.as_uri()}
        submitter = Submitter.with_zip(edge, catalog, cluster.master, directory / f"{root.name}.zip", python)
        (edge / "jobs" / "in_tasks.py").write_text(SCRIPT)
        done = submitter.run("compact", *ALL, table="db.copy", in_tasks=True, settings=PLAIN)
        assert done.status == 0, done.err
        cluster.forget_applications()

    for root in roots.values():
        subprocess.run([sys.executable, f"{root}/.ci/zip_package.py", str(directory / f"{root.name}.zip")], check=True)
    with closing(Standalone(bare_python(directory / "bare"), workers=2)) as cluster:
        yield {name: _of(run, root) for name, root in roots.items()}


def _of(run: Callable[[Path, Path, Path], None], root: Path) -> Run:
    return lambda edge, warehouse: run(root, edge, warehouse)


def _print(way: str, taken: Mapping[str, Sequence[Taken]]) -> None:
    medians = {name: Taken(*map(median, zip(*runs, strict=True))) for name, runs in taken.items()}
    for name, one in medians.items():
        print(
            f"{way}, {name}: first row after {one.first:.1f} s, end after {one.seconds:.1f} s, {one.cpu_seconds:.1f} processor "
            f"seconds (medians of {len(taken[name])})"
        )
    if len(medians) > 1:
        shares = [now / earlier for now, earlier in zip(medians["now"], medians["earlier"], strict=True)]
        print("  now takes {:.2f}, {:.2f} and {:.2f} of what it took".format(*shares))


if __name__ == "__main__":
    main()
