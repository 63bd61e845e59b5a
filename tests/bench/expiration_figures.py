"""What the rivals of `expiration.py` took, and how it is printed."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Columns

RIVALS = ("icekeep", "java")
console = Console(width=150, soft_wrap=True)


class Left(msgspec.Struct, frozen=True):
    """How many files a run left, and a digest of their names."""

    files: int
    digest: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what it took, what it answered and what it left."""

    seconds: float
    cpu_seconds: float
    driver_bytes: int
    jvm_bytes: int
    worker_bytes: int
    total_bytes: int
    result: dict[str, Any]
    left: Left


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one rival did in one case."""

    case: str
    rival: str
    runs: tuple[Run, ...]

    @property
    def best(self) -> Run:
        return min(self.runs, key=lambda run: run.seconds)

    @property
    def total_bytes(self) -> int:
        return max(run.total_bytes for run in self.runs)


def print_figures(figures: Figures) -> None:
    """One line a run."""
    columns = Columns()
    columns.add_column(figures.rival)
    for title in ("s", "CPU s", "all MB", "JVM MB", "driver MB", "worker MB", "files left"):
        columns.add_column(title, justify="right")
    for number, one in enumerate(figures.runs, 1):
        memory = (one.total_bytes, one.jvm_bytes, one.driver_bytes, one.worker_bytes)
        columns.add_row(
            f"run {number}",
            f"{one.seconds:.2f}",
            f"{one.cpu_seconds:.2f}",
            *(f"{size / 1e6:,.0f}" for size in memory),
            f"{one.left.files:,}",
        )
    console.print(columns)
    counts = {key: value for key, value in figures.runs[-1].result.items() if key.endswith("_count") and value}
    console.print(f"{figures.rival}: {escape(json.dumps(counts))}")


def print_summary(figures: Sequence[Figures]) -> None:
    """One line a case: Java's figures by icekeep's."""
    columns = Columns(title="by how much icekeep takes less than Iceberg Java")
    columns.add_column("case")
    for title in ("icekeep s", "Java s", "wall", "CPU", "memory"):
        columns.add_column(title, justify="right")
    by_case = {(f.case, f.rival): f for f in figures}
    for name in dict.fromkeys(f.case for f in figures):
        ours, theirs = (by_case.get((name, rival)) for rival in RIVALS)
        ratios = ["", "", ""]
        if ours is not None and theirs is not None:
            ratios = [
                f"{theirs.best.seconds / ours.best.seconds:.2f} x",
                f"{theirs.best.cpu_seconds / max(0.01, ours.best.cpu_seconds):.2f} x",
                f"{theirs.total_bytes / ours.total_bytes:.2f} x",
            ]
        seconds = ("" if f is None else f"{f.best.seconds:.2f}" for f in (ours, theirs))
        columns.add_row(name, *seconds, *ratios)
    console.print(columns)
