"""What rivals took and left, and how it is printed."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Columns

from bench.runner.rivals import ICEKEEP

console = Console(width=150, soft_wrap=True)

Fact = int | float | str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what it took (`Watch`), what the rival says of it, and what is left of the table."""

    seconds: float
    cpu_seconds: float
    driver_bytes: int
    jvm_bytes: int
    worker_bytes: int
    total_bytes: int
    result: dict[str, Any]
    driver_cpu_seconds: float = 0.0
    executor_jvm_bytes: int = 0
    driver_total_bytes: int = 0
    steal_seconds: float = 0.0
    others_cpu_seconds: float = 0.0
    left: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rival's process says: its runs, and what it finds before the first of them and after the last."""

    runs: tuple[Run, ...] = ()
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one rival did in one case, in all rounds, and what was found out about what it left."""

    case: str
    rival: str
    runs: tuple[Run, ...]
    facts: dict[str, Fact] = {}

    @property
    def seconds(self) -> float:
        return min(run.seconds for run in self.runs)

    @property
    def cpu_seconds(self) -> float:
        return min(run.cpu_seconds for run in self.runs)

    def most(self, name: str) -> int:
        return max(getattr(run, name) for run in self.runs)


def print_figures(figures: Sequence[Figures]) -> None:
    """One line a rival; below, what is known of what each left, and what it says itself."""
    columns = Columns()
    columns.add_column("")
    for title in ("runs s", "best s", "CPU s", "all MB", "JVM MB", "driver MB", "worker MB"):
        columns.add_column(title, justify="right")
    for f in figures:
        columns.add_row(
            f.rival,
            " ".join(f"{run.seconds:.2f}" for run in f.runs),
            f"{f.seconds:.2f}",
            f"{f.cpu_seconds:.2f}",
            *(f"{f.most(f'{name}_bytes') / 1e6:,.0f}" for name in ("total", "jvm", "driver", "worker")),
        )
    console.print(columns)
    _print_facts({f.rival: f.facts for f in figures})
    for f in figures:
        said = {key: value for key, value in f.runs[-1].result.items() if key.endswith("_count") and value}
        console.print(f"{f.rival} says: {escape(json.dumps(said))}")


def _print_facts(facts: Mapping[str, Mapping[str, Fact]]) -> None:
    titles = dict.fromkeys(title for own in facts.values() for title in own)
    if not titles:
        return
    columns = Columns()
    for title in ("", *titles):
        columns.add_column(title, justify="right" if title else "left")
    for rival, own in facts.items():
        columns.add_row(rival, *(_text(own.get(title, "")) for title in titles))
    console.print(columns)


def _text(fact: Fact) -> str:
    if isinstance(fact, str):
        return fact
    return f"{fact:,}" if isinstance(fact, int) else f"{fact:,.3f}"


def print_summary(figures: Sequence[Figures], compared: Sequence[str]) -> None:
    """One line a case and rival: the rival's figures by icekeep's, and so the facts that are compared."""
    columns = Columns(title="how many times what icekeep takes")
    for title in ("case", "rival"):
        columns.add_column(title)
    for title in ("icekeep s", "rival s", "wall", "CPU", "memory", *compared):
        columns.add_column(title, justify="right")
    ours = {f.case: f for f in figures if f.rival == ICEKEEP}
    for theirs in figures:
        own = ours.get(theirs.case)
        if own is None or theirs is own:
            continue
        pairs = [
            (theirs.seconds, own.seconds),
            (theirs.cpu_seconds, own.cpu_seconds),
            (theirs.most("total_bytes"), own.most("total_bytes")),
            *((theirs.facts.get(name), own.facts.get(name)) for name in compared),
        ]
        seconds = (f"{own.seconds:.2f}", f"{theirs.seconds:.2f}")
        columns.add_row(theirs.case, theirs.rival, *seconds, *(_ratio(*pair) for pair in pairs))
    console.print(columns)


def _ratio(theirs: Fact | None, ours: Fact | None) -> str:
    if isinstance(theirs, int | float) and isinstance(ours, int | float) and ours:
        return f"{theirs / ours:.2f} x"
    return ""
