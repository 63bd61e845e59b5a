"""What tables of several sizes take, side by side; and what far larger ones would take, if all goes on growing as it did."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from rich.table import Table as Columns

from bench.runner.figures import Fact, Figures, console
from bench.runner.rivals import ICEKEEP

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
