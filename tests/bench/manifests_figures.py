"""What the rivals of `manifests.py` took, what they left, and how it is printed."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table as Columns

RIVALS = ("icekeep", "java")
console = Console(width=150, soft_wrap=True)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A rival's plan of one filter; seconds of the first time and of the best of the later ones."""

    files: int
    bytes: int
    first_s: float
    warm_s: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what it took, and what the rival said of it."""

    seconds: float
    cpu_seconds: float
    driver_bytes: int
    jvm_bytes: int
    worker_bytes: int
    total_bytes: int
    result: Mapping[str, Any]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rival's process said: `manifests_running.answer_of`."""

    runs: tuple[Run, ...] = ()
    before: Mapping[str, Plan] = {}
    after: Mapping[str, Plan] = {}

    def joined(self, other: "Answer") -> "Answer":
        """The runs of both, and of each plan the faster one."""
        return Answer(
            runs=(*self.runs, *other.runs),
            before=_faster(self.before, other.before),
            after=_faster(self.after, other.after),
        )


def _faster(one: Mapping[str, Plan], other: Mapping[str, Plan]) -> dict[str, Plan]:
    pairs = {name: [plans[name] for plans in (one, other) if name in plans] for name in {**one, **other}}
    return {name: min(plans, key=lambda plan: plan.warm_s) for name, plans in pairs.items()}


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a table holds.

    Attributes:
        manifests, bytes: by the manifest list.
        listed_files, listed_records: live ones, by the manifest list.
        files, records: by the entries.
        opened: how many manifests a filter of one partition opens.
        found: how many files it finds.
    """

    manifests: int
    bytes: int
    listed_files: int
    listed_records: int
    files: int
    records: int
    opened: int
    found: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one rival did in one case, and the table before and after."""

    case: str
    rival: str
    answer: Answer
    before: Content
    after: Content

    @property
    def best(self) -> Run:
        return min(self.answer.runs, key=lambda run: run.seconds)

    @property
    def total_bytes(self) -> int:
        return max(run.total_bytes for run in self.answer.runs)


def print_figures(figures: Figures) -> None:
    """The runs of a rival, and the table before and after."""
    columns = Columns()
    columns.add_column(figures.rival)
    for title in ("s", "CPU s", "all MB", "JVM MB", "driver MB", "worker MB"):
        columns.add_column(title, justify="right")
    for number, one in enumerate(figures.answer.runs, 1):
        memory = (one.total_bytes, one.jvm_bytes, one.driver_bytes, one.worker_bytes)
        times = (f"{one.seconds:.2f}", f"{one.cpu_seconds:.2f}")
        columns.add_row(f"run {number}", *times, *(f"{size / 1e6:,.0f}" for size in memory))
    console.print(columns)
    before, after = figures.before, figures.after
    console.print(
        f"{figures.rival}: {before.manifests:,} manifests of {before.bytes / 1e6:,.1f} MB -> {after.manifests:,} of "
        f"{after.bytes / 1e6:,.1f} MB; a filter of one partition opens {before.opened:,} -> {after.opened:,}"
    )
    print_plans(figures.rival, figures.answer)


def print_plans(planner: str, answer: Answer) -> None:
    """How long the planning of each filter takes, before (if that is known) and after."""
    for name, plan in answer.after.items():
        before = answer.before.get(name)
        was = "" if before is None else f"{before.warm_s:.3f} s -> "
        gain = "" if before is None else f", {before.warm_s / plan.warm_s:.2f} x"
        console.print(f"{planner} plans {name}: {was}{plan.warm_s:.3f} s{gain} ({plan.files:,} files)")


def print_summary(figures: Sequence[Figures]) -> None:
    """One line a case: Java's figures by icekeep's."""
    columns = Columns(title="by how much icekeep takes less than Iceberg Java")
    columns.add_column("case")
    for title in ("manifests", "icekeep makes", "Java makes", "icekeep s", "Java s", "wall", "CPU", "memory"):
        columns.add_column(title, justify="right")
    by_case = {(f.case, f.rival): f for f in figures}
    for name in dict.fromkeys(f.case for f in figures):
        ours, theirs = (by_case.get((name, rival)) for rival in RIVALS)
        both = [f for f in (ours, theirs) if f is not None]
        columns.add_row(
            name,
            f"{both[0].before.manifests:,}",
            *("" if f is None else f"{f.after.manifests:,}" for f in (ours, theirs)),
            *("" if f is None else f"{f.best.seconds:.2f}" for f in (ours, theirs)),
            *(["", "", ""] if ours is None or theirs is None else _ratios(ours, theirs)),
        )
    console.print(columns)


def _ratios(ours: Figures, theirs: Figures) -> list[str]:
    return [
        f"{theirs.best.seconds / ours.best.seconds:.2f} x",
        f"{theirs.best.cpu_seconds / max(0.01, ours.best.cpu_seconds):.2f} x",
        f"{theirs.total_bytes / ours.total_bytes:.2f} x",
    ]
