"""What tables of several sizes take, side by side: how much more than a smaller one takes a larger one."""

from collections.abc import Sequence

from rich.table import Table as Columns

from bench.runner.figures import Fact, Figures, console

_MB = 1_000_000


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
    before: Figures | None = None
    for f in figures_by_job(figures):
        columns.add_row(f.case, f"{f.seconds:.1f}", *(_text(value) for value in f.facts.values()))
        if before is not None and job_of(before) == job_of(f):
            found = growth(before, f)
            columns.add_row("  growth", *(f"{found[title]:.2f} x" if title in found else "" for title in titles))
        before = f
    console.print(columns)


def figures_by_job(figures: Sequence[Figures]) -> list[Figures]:
    """Those of one job side by side, small tables first."""
    jobs = list(dict.fromkeys(map(job_of, figures)))
    return sorted(figures, key=lambda f: (jobs.index(job_of(f)), f.facts["files"]))


def job_of(f: Figures) -> str:
    """What was done, whatever the size of the table."""
    return f.case.rpartition("-")[0]


def growth(smaller: Figures, larger: Figures) -> dict[str, float]:
    """How many times more each figure grew than the number of files did; what grows with the table at most has no more than 1."""
    table = _number(larger.facts["files"]) / _number(smaller.facts["files"])
    pairs = {title: (_number(smaller.facts[title]), _number(larger.facts[title])) for title in _GROWING}
    pairs["s"] = (smaller.seconds, larger.seconds)
    return {title: now / was / table for title, (was, now) in pairs.items() if was}


def _number(fact: Fact) -> float:
    assert not isinstance(fact, str)
    return float(fact)


def _text(fact: Fact) -> str:
    return f"{fact:,.1f}" if isinstance(fact, float) else f"{fact:,}" if isinstance(fact, int) else fact
