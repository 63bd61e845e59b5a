"""What grows with a table: plans and jobs over 1, 3 and 10 million data files with 100,000 delete files (`scale_tables.py`).

A standalone Spark cluster of two small executors does it, with a driver whose memory, JVM and Python together, must stay below
2 GB. Data files are not there. No job reads them, and the listing of orphan removal is made up (`AbsentFilesStorage`).

Each process does a small table first, all of it in Spark, so that what counts is warm. The last table of the run says how much
more a larger table takes: processor time, bytes and the driver's memory should grow no faster than the table.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table as Columns

from bench.runner.figures import Fact, Figures, console
from bench.runner.rivals import ICEKEEP, OURS, TESTS, Rival, RivalFailedError
from bench.runner.trial import BENCH, SMALL, Benchmark, Case, InPlaceTrial, days_ago_ms
from bench.tables.scale_tables import Scale
from kit.killing import processes
from kit.submitting import Standalone

_MB = 1_000_000

FAR_FILES = 1_000_000_000
FAR_SLOTS = 400
"""A hundred executors of four cores."""


def taken(f: Figures, files: int) -> dict[str, Fact]:
    """What one case took, by the titles of the columns."""
    run = f.runs[-1]
    return {
        "files": files,
        "CPU s": run.cpu_seconds,
        "driver CPU s": run.driver_cpu_seconds,
        "driver MB": run.driver_total_bytes // _MB,
        "executor JVM MB": run.executor_jvm_bytes // _MB,
        "executor Python MB": run.worker_bytes // _MB,
        "payload MB": run.result["payloads_bytes"] / _MB,
        "result MB": run.result["results_bytes"] / _MB,
        "shuffled MB": run.result["shuffled_bytes"] // _MB,
        "jobs": run.result["jobs"],
        "tasks": run.result["tasks"],
    }


_GROWING = ("CPU s", "driver CPU s", "driver MB", "payload MB", "result MB", "shuffled MB")


def print_growth(figures: Sequence[Figures], compared: Sequence[str]) -> None:
    """A line for each case, and one for how much more a larger table takes, by how much larger it is."""
    columns = Columns(title="what each takes, and how much faster than the table it grows")
    columns.add_column("case")
    titles = ("s", *dict.fromkeys(title for f in figures for title in f.facts))
    for title in titles:
        columns.add_column(title, justify="right")
    grown = {id(larger): growth(smaller, larger) for smaller, larger in pairs_of_sizes(figures)}
    for f in figures_by_job(figures):
        columns.add_row(f.case, f"{f.seconds:.1f}", *(_text(value) for value in f.facts.values()))
        if (found := grown.get(id(f))) is not None:
            columns.add_row("  growth", *(f"{found[title]:.2f} x" if title in found else "" for title in titles))
    console.print(columns)
    _print_far(figures)


def figures_by_job(figures: Sequence[Figures]) -> list[Figures]:
    """Those of one job side by side, small tables first."""
    jobs = list(dict.fromkeys(map(job_of, figures)))
    return sorted(figures, key=lambda f: (jobs.index(job_of(f)), f.facts["files"]))


def job_of(f: Figures) -> str:
    """What was done and by whom, whatever the size of the table."""
    job = f.case.rpartition("-")[0]
    return job if f.rival == ICEKEEP else f"{job} of {f.rival}"


def pairs_of_sizes(figures: Sequence[Figures]) -> list[tuple[Figures, Figures]]:
    """Neighbours of one job, of which the second has the larger table."""
    pairs = pairwise(figures_by_job(figures))
    return [(a, b) for a, b in pairs if job_of(a) == job_of(b) and a.facts["files"] != b.facts["files"]]


def growth(smaller: Figures, larger: Figures) -> dict[str, float]:
    """How many times more each figure grew than the number of files did; what grows with the table at most has no more than 1."""
    table = _number(larger.facts["files"]) / _number(smaller.facts["files"])
    pairs = {title: (_number(smaller.facts[title]), _number(larger.facts[title])) for title in _GROWING}
    pairs["s"] = (smaller.seconds, larger.seconds)
    return {title: now / was / table for title, (was, now) in pairs.items() if was}


class Far(msgspec.Struct, frozen=True):
    """What a job would take of a table of `FAR_FILES` with `FAR_SLOTS`: no measurement."""

    driver_s: float
    tasks_s: float
    driver_mb: float


def far(smaller: Figures, larger: Figures) -> Far:
    """By the line through two sizes: processor seconds of the driver one after another, those of tasks in all slots evenly.

    Files are as many times more as manifests and deletes are; what a line would have shrink stays as it is.
    """

    def at(small: float, large: float) -> float:
        sizes = _number(smaller.facts["files"]), _number(larger.facts["files"])
        slope = (large - small) / (sizes[1] - sizes[0])
        return large + max(0.0, slope) * (FAR_FILES - sizes[1])

    drivers = [f.runs[-1].driver_cpu_seconds for f in (smaller, larger)]
    tasks = [f.runs[-1].cpu_seconds - driver for f, driver in zip((smaller, larger), drivers, strict=True)]
    memory = [f.most("driver_total_bytes") / _MB for f in (smaller, larger)]
    return Far(driver_s=at(*drivers), tasks_s=at(*tasks) / FAR_SLOTS, driver_mb=at(*memory))


def _print_far(figures: Sequence[Figures]) -> None:
    last = {job_of(larger): (smaller, larger) for smaller, larger in pairs_of_sizes(figures)}
    if not last:
        return
    columns = Columns(title=f"extrapolated, not measured: {FAR_FILES:,} files, {FAR_SLOTS} slots")
    columns.add_column("job")
    for title in ("driver s", "tasks s", "together min", "driver MB"):
        columns.add_column(title, justify="right")
    for job, pair in last.items():
        one = far(*pair)
        minutes = (one.driver_s + one.tasks_s) / 60
        columns.add_row(job, f"{one.driver_s:,.0f}", f"{one.tasks_s:,.0f}", f"{minutes:,.1f}", f"{one.driver_mb:,.0f}")
    console.print(columns)


def _number(fact: Fact) -> float:
    assert not isinstance(fact, str)
    return float(fact)


def _text(fact: Fact) -> str:
    return f"{fact:,.1f}" if isinstance(fact, float) else f"{fact:,}" if isinstance(fact, int) else fact


MILLION = 1_000_000
_CLUSTER = "org.apache.spark.deploy."


class ScaleCase(Case, frozen=True, kw_only=True):
    """
    Attributes:
        driver_memory, executor_memory: of JVMs; Python has its own.
        limit_mb: what the driver may have, JVM and Python together.
        says: what the answer must have, by the field of the shape that it must be equal to.
    """

    table: Scale
    executors: int = 2
    executor_memory: str = "1g"
    driver_memory: str = "1g"
    limit_mb: int = 2000
    says: dict[str, str] = {}
    runs: int = 1
    rounds: int = 1
    rivals: tuple[str, ...] = ("icekeep",)


class ScaleTrial(InPlaceTrial):
    room = "scale"

    def __init__(self, case: ScaleCase, cache: Path, directory: Path) -> None:
        super().__init__(case, cache, directory)
        self._events = directory / "events"
        self._events.mkdir()
        self._cluster = Standalone(OURS / "python", workers=case.executors, cores=1, memory=case.executor_memory)

    def spark(self, rival: Rival) -> dict[str, str]:
        return {
            **super().spark(rival),
            "spark.master": self._cluster.master,
            "spark.executor.memory": self.case.executor_memory,
            "spark.executorEnv.PYTHONPATH": f"{rival.lib}:{TESTS}",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }

    def targets(self, rival: Rival) -> dict[str, Any]:
        found = super().targets(rival)
        return {name: {**table, "is_small": name == "small"} for name, table in found.items()}

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        shapes = {BENCH: self.table.shape, SMALL: self.small.shape}
        cluster = [pid for pid, parent, words in processes() if parent == os.getpid() and _CLUSTER in words]
        return {"older_than_ms": days_ago_ms(0), "cluster": cluster, "shapes": msgspec.to_builtins(shapes)}

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        return {f.rival: taken(f, self.case.table.files) for f in figures}

    def check(self, figures: Sequence[Figures]) -> None:
        for f in figures:
            for key, field in self.case.says.items():
                wanted, said = self.table.facts[field], f.runs[-1].result[key]
                if said != wanted:
                    raise RivalFailedError(f"{f.rival} says {said:,} as {key}, not {wanted:,}")
            if f.most("driver_total_bytes") > self.case.limit_mb * MILLION:
                raise RivalFailedError(f"the driver took more than {self.case.limit_mb:,} MB")

    def close(self) -> None:
        self._cluster.close()
        super().close()


def _cases() -> Iterator[tuple[str, ScaleCase]]:
    for millions in (1, 3, 10):
        for work, says in _SAID.items():
            table = Scale(files=millions * MILLION)
            yield f"{work.replace('_', '-')}-{millions}m", ScaleCase(table=table, work=work, says=says)


_SAID = {
    "plan_scan": {"data_files_count": "files"},
    "plan_binpack": {"candidate_files_count": "small"},
    "plan_sort": {"rewritten_data_files_count": "files"},
    "plan_position_deletes": {"candidate_files_count": "position_deletes"},
    "plan_expiration": {"expired_snapshots_count": "expired"},
    "expire_snapshots": {"expired_snapshots_count": "expired", "missing_files_count": "garbage"},
    "plan_orphans": {"orphan_files_count": "orphans"},
    "rewrite_manifests": {"entries_count": "entries"},
    "check": {"faults_count": "faults"},
    "table_health": {},
}
"""What is done; and what each answer must have, by the fact of the table (`scale_tables.make`) that it must be equal to."""

SCALE = Benchmark(
    about="plans and jobs over 1, 3 and 10 million files with 100,000 delete files, on a cluster with a driver of 2 GB",
    cases=dict(_cases()),
    quick=("*-1m",),
    trial=ScaleTrial,
    summary=print_growth,
)
