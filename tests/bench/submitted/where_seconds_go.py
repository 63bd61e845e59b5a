"""Where the seconds of a small job on a cluster go, from the command to its end.

    python tests/bench/submitted/where_seconds_go.py [--earlier CHECKOUT] [--runs N]

The cluster is Spark's own, of two executors of one core; the table, two files of together 9.5 MB, lies in an S3 server on this
machine. So nothing takes long but what every run takes. The parts of a run are from Spark's event log; processor seconds are
those of all processes, the S3 server among them. The package of an earlier checkout does the same in turn.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pyarrow as pa

from bench.rival.watching import Watch
from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append, create_table
from kit.object_store import ObjectStore
from kit.shell import ROOT
from kit.submitting import Events, Standalone, Submitter, bare_python, python_with_wheels

ROWS_A_FILE = 300_000
JOBS = {
    "compact": ("--option", "rewrite-all=true"),
    "expire_snapshots": ("--older-than", "0s", "--retain-last", "1", "--trash", "0", "--option", "grace=0s"),
}
PLAIN = {"spark.driver.extraJavaOptions": "", "spark.executor.extraJavaOptions": ""}
"""As users have it: no shorter compilation of Java."""


class Package(NamedTuple):
    """A version of icekeep that is measured."""

    name: str
    root: Path
    zipped: Path


class Taken(NamedTuple):
    """What a run took, in seconds, part by part, in their order; processor seconds; and the most memory of its processes without
    the cluster's, in bytes.
    """

    parts: Mapping[str, float]
    cpu_seconds: float
    total_bytes: int

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def main() -> None:
    given = _arguments()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        packages = [_packed("now", ROOT, directory)]
        if given.earlier:
            packages.append(_packed("earlier", given.earlier.resolve(), directory))
        python = python_with_wheels(directory / "wheels")
        cluster, store = Standalone(bare_python(directory / "bare"), workers=2), ObjectStore()
        try:
            for job in JOBS:
                for in_tasks in (False, True):
                    taken = _all_taken(job, in_tasks, packages, given.runs, python, cluster, store, directory)
                    _print(f"{job}, {'all of it in tasks' if in_tasks else 'as it is'}", taken)
        finally:
            store.close()
            cluster.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--earlier", type=Path, help="the root of another checkout, whose package is measured too")
    parser.add_argument("--runs", type=int, default=3, help="of each job by each package")
    return parser.parse_args()


def _packed(name: str, root: Path, directory: Path) -> Package:
    zipped = directory / name / "icekeep.zip"
    subprocess.run([sys.executable, f"{root}/.ci/zip_package.py", str(zipped)], check=True)
    return Package(name, root, zipped)


def _all_taken(
    job: str,
    in_tasks: bool,
    packages: Sequence[Package],
    runs: int,
    python: Path,
    cluster: Standalone,
    store: ObjectStore,
    directory: Path,
) -> Mapping[str, list[Taken]]:
    """Of each package some runs, those of a round in turn; each on a table of its own."""
    taken: dict[str, list[Taken]] = {package.name: [] for package in packages}
    for number in range(runs):
        for package in packages if number % 2 == 0 else packages[::-1]:
            edge = directory / f"{job}-{in_tasks}-{package.name}-{number}"
            bucket = store.new_bucket()
            catalog = {
                "type": "sql",
                "uri": f"sqlite:///{edge}.db",
                "warehouse": f"s3://{bucket}/wh",
                **store.properties(),
            }
            _make_table(catalog)
            submitter = Submitter.with_zip(edge, catalog, cluster.master, package.zipped, python)
            taken[package.name].append(_taken(submitter, job, JOBS[job], in_tasks=in_tasks))
            cluster.forget_applications()
    return taken


def _make_table(catalog: Mapping[str, str]) -> Table:
    opened = open_catalog("lake", catalog)
    opened.create_namespace(("db",))
    random = np.random.default_rng(1)
    rows = [_rows(random, number) for number in range(2)]
    table = create_table(opened, ("db", "events"), rows[0].schema)
    return append(append(table, rows[:1]), rows[1:])


def _rows(random: np.random.Generator, number: int) -> pa.Table:
    """About 4.7 MB of Parquet."""
    ids = np.arange(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)
    return pa.table({"id": ids, "amount": random.random(ROWS_A_FILE), "code": random.integers(0, 1 << 30, ROWS_A_FILE)})


def _taken(submitter: Submitter, job: str, arguments: Sequence[str], *, in_tasks: bool) -> Taken:
    with Watch() as watch:
        began_ms = SYSTEM.now_ms()
        done = submitter.run(job, *arguments, table="db.events", in_tasks=in_tasks, settings=PLAIN)
        ended_ms = SYSTEM.now_ms()
    assert done.status == 0, done.err
    parts = dict(_parts(submitter.events(), began_ms, ended_ms))
    return Taken(parts, watch.cpu_seconds, watch.total_bytes)


def _parts(events: Events, began_ms: int, ended_ms: int) -> Iterator[tuple[str, float]]:
    """The time between two moments that Spark has written down, one after the other."""
    added, jobs, ends = events.of("ExecutorAdded"), events.of("JobStart"), events.of("JobEnd")
    begun = events.of("ApplicationStart")
    if not begun:
        yield "spark-submit, Python and the job, without a session", (ended_ms - began_ms) / 1000
        return
    moments: list[tuple[str, int]] = [
        ("spark-submit, Python, the plan, until a session is wanted", begun[0]["Timestamp"])
    ]
    if jobs:
        moments.append(("until an executor is there", added[0]["Timestamp"]))
        done_ms = moments[-1][1]
        for start, ended in zip(jobs, ends, strict=True):
            if start["Submission Time"] > done_ms:
                moments.append(("between Spark jobs", start["Submission Time"]))
            step = (start["Properties"] or {}).get("spark.job.description", "without a description")
            done_ms = ended["Completion Time"]
            moments.append((step.partition(": ")[2] or step, done_ms))
    moments.append(("commit, and what follows", events.of("ApplicationEnd")[0]["Timestamp"]))
    moments.append(("until the command is over", ended_ms))
    last_ms = began_ms
    for part, moment_ms in moments:
        yield part, max(0, moment_ms - last_ms) / 1000
        last_ms = max(last_ms, moment_ms)


def _print(job: str, taken: Mapping[str, list[Taken]]) -> None:
    for name, runs in taken.items():
        parts = dict.fromkeys(part for run in runs for part in run.parts)
        print(f"\n{job}, {name}: {_median(run.seconds for run in runs):.1f} s, ", end="")
        print(f"{_median(run.cpu_seconds for run in runs):.1f} processor seconds (median of {len(runs)}), ", end="")
        print(f"at most {max(run.total_bytes for run in runs) / 1e6:,.0f} MB of the command's processes")
        for part in parts:
            print(f"  {_median(run.parts.get(part, 0.0) for run in runs):6.1f} s  {part}")
    if len(taken) > 1:
        now, earlier = (_median(run.seconds for run in taken[name]) for name in ("now", "earlier"))
        print(f"  now takes {now / earlier:.2f} of what it took")


def _median(values: Any) -> float:
    return float(median(values))


if __name__ == "__main__":
    main()
