"""What a benchmark is: cases as data, what rivals are told of each, and its rounds, in which each rival has a process of its own.

Metadata names files by their whole paths, so that a copy elsewhere would not do.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace
from rich.markup import escape

from bench.rival.process import copied
from bench.runner.figures import Answer, Fact, Figures, Run, console, print_figures, print_summary
from bench.runner.rivals import (
    OURS,
    Rival,
    RivalFailedError,
    RivalsCatalog,
    process,
    spark_settings,
    start,
    submit_process,
    time_command,
    write_conf,
)
from bench.tables.kept import Kept, made

BENCH, SMALL = "bench", "small"
"""The catalogs of the table that counts and of the small one."""

OF_RIVALS = "rivals-"
"""Begins the names of cases that need the environment of the rivals: they are done where they are named."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to which table.

    Attributes:
        work: the function of each rival's module, and the command where whole commands are timed (`is_process`).
        runs: how often in each round; a round is a process of each rival.
        rivals: who takes part unless others are named.
    """

    table: Any
    work: str
    runs: int = 2
    rounds: int = 2
    is_process: bool = False
    driver_memory: str = "4g"
    rivals: tuple[str, ...] = ("icekeep", "java")

    @property
    def small(self) -> Any:
        """A table of the same kind that each rival does first, and that `--quick` does alone."""
        return self.table.small


class Trial:
    """A case that is under way. Subclasses say what rivals are told and check what they did.

    Attributes:
        room: the package with a module `with_<engine>` for each rival.
        directory: its own, for as long as the case lasts.
    """

    room: ClassVar[str]

    def __init__(self, case: Any, cache: Path, directory: Path) -> None:
        self.case, self.cache, self.directory = case, cache, directory
        self.table: Kept = made(case.table, cache)
        self.small: Kept = made(case.small, cache)

    def warehouses(self, *rivals: str) -> dict[str, Path]:
        """The warehouse of each catalog that these rivals know."""
        return {BENCH: self.table.warehouse, SMALL: self.small.warehouse}

    def conf_of(self, *rivals: str) -> Path:
        """A configuration file of icekeep's that names all these catalogs."""
        path = self.directory / "icekeep.yaml"
        write_conf(path, self.warehouses(*rivals))
        return path

    def driver_memory(self, rival: Rival) -> str:
        return str(self.case.driver_memory)

    def spark(self, rival: Rival) -> dict[str, str]:
        """Spark's configuration for a rival."""
        return spark_settings(rival, self.driver_memory(rival), self.warehouses(rival.name))

    def targets(self, rival: Rival) -> dict[str, Any]:
        """The `table` of a rival, and the `small` one that it does first, if any."""
        return {"table": target(BENCH, self.table.name)}

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        """What the rivals' functions need to know besides, and `before` and `after`: which of them look at the table then."""
        return {}

    def command(self, rival: Rival, request: Mapping[str, Any]) -> list[str]:
        """The command of icekeep's that is timed from its start to its end."""
        where = ["--conf", request["conf"], "--catalog", BENCH, "--table", self.table.name]
        return [str(OURS / "icekeep"), self.case.work, *where, *self.flags(request), "--output", "json"]

    def flags(self, request: Mapping[str, Any]) -> list[str]:
        return []

    def check_turn(self, rival: Rival, answer: Answer) -> None:
        """Raise `RivalFailedError` where the outcome of a round is not what it must be."""

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        """When all rounds are over: what there is to say about what each rival left."""
        return {}

    def check(self, figures: Sequence[Figures]) -> None:
        """Raise `RivalFailedError` where the rivals do not agree, or have not kept what they must."""

    def close(self) -> None:
        """Leave tables as they were made."""


def target(
    catalog: str, name: str, before: Sequence[str] = (), after: Sequence[str] = (), path: Path | None = None
) -> dict[str, Any]:
    """A table, as a rival's process is told of it; those that work through REST register it by its path."""
    where = {} if path is None else {"path": str(path)}
    return {"catalog": catalog, "name": name, "before": list(before), "after": list(after), **where}


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """A name on the command line.

    Attributes:
        quick: the cases that `--quick` does unless some are named.
        trial: makes a case's `Trial`.
        compared: facts whose ratios stand in the summary.
        summary: prints what the figures of all cases say together; it is told what is compared.
    """

    about: str
    cases: Mapping[str, Case]
    quick: tuple[str, ...]
    trial: Callable[[Any, Path, Path], Trial]
    compared: tuple[str, ...] = ()
    summary: Callable[[Sequence[Figures], Sequence[str]], None] = print_summary


_DAY_MS = 24 * 60 * 60 * 1000


class InPlaceTrial(Trial):
    def targets(self, rival: Rival) -> dict[str, Any]:
        listing = ["left", str(self.table.path), str(self.listing(rival.name))]
        return {
            "table": target(BENCH, self.table.name, _restoring(self.table), listing, path=self.table.path),
            "small": target(SMALL, self.small.name, _restoring(self.small), path=self.small.path),
        }

    def listing(self, rival: str) -> Path:
        """Where the names of the files that a rival's last run left are."""
        return self.directory / f"left-by-{rival}.txt"

    def close(self) -> None:
        copied(_restoring(self.table))


def _restoring(table: Kept) -> list[str]:
    return ["restore", str(table.path), str(table.pristine)]


def days_ago_ms(days: int) -> int:
    return time.time_ns() // 1_000_000 - days * _DAY_MS


def compare(
    benchmark: Benchmark, name: str, case: Case, rivals: Sequence[Rival], cache: Path
) -> tuple[list[Figures], bool]:
    """Let rivals do a case and print what they took; false if one failed, or left what it must not.

    A rival that fails is left out of what follows: the others go on.
    """
    console.print(f"\n[bold]{name}[/]: {case.table.name}")
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="trial-", dir=cache) as directory, RivalsCatalog() as rivals_catalog:
        trial = benchmark.trial(case, cache, Path(directory))
        runs: dict[str, tuple[Run, ...]] = {}
        failed: set[str] = set()
        try:
            for rival in in_turn(rivals, case.rounds):
                if rival.name in failed:
                    continue
                try:
                    answer = take_turn(trial, rival, rivals_catalog)
                    trial.check_turn(rival, answer)
                except RivalFailedError as error:
                    failed.add(rival.name)
                    _print_failure(rival.name, error)
                else:
                    runs[rival.name] = (*runs.get(rival.name, ()), *answer.runs)
            return _judged(trial, name, {who: own for who, own in runs.items() if who not in failed}, bool(failed))
        finally:
            trial.close()


def in_turn(rivals: Sequence[Rival], rounds: int) -> Iterator[Rival]:
    """All rivals in each round; who was last in one round is first in the next."""
    for number in range(rounds):
        yield from reversed(rivals) if number % 2 else rivals


def take_turn(trial: Trial, rival: Rival, rivals_catalog: RivalsCatalog) -> Answer:
    """One round of a rival; raises `RivalFailedError`."""
    case = trial.case
    request = {
        "module": f"bench.{trial.room}.with_{rival.engine}",
        "work": case.work,
        "spark": trial.spark(rival),
        "conf": str(trial.conf_of(rival.name)),
        "runs": case.runs,
        **trial.targets(rival),
        **trial.asks(rival),
    }
    is_registered = rival.is_by_rest and "path" in request.get("table", {})
    if is_registered:
        request["uri"] = rivals_catalog.uri
    answer = (
        _times_command(trial, rival, request) if case.is_process else msgspec.convert(start(rival, request), Answer)
    )
    if is_registered:
        rivals_catalog.publish(request["table"])
    return answer


def _times_command(trial: Trial, rival: Rival, request: Mapping[str, Any]) -> Answer:
    if rival.is_by_rest:
        command = process(rival, request)
    else:
        command = submit_process(rival, request) if rival.engine == "java" else trial.command(rival, request)
    runs = []
    for _ in range(trial.case.runs):
        copied(request["table"]["before"])
        run: dict[str, Any] = time_command(rival, command)
        runs.append(msgspec.convert({**run, "left": copied(request["table"]["after"])}, Run))
    return Answer(runs=tuple(runs))


def _judged(trial: Trial, name: str, runs: dict[str, tuple[Run, ...]], has_failed: bool) -> tuple[list[Figures], bool]:
    figures = [Figures(case=name, rival=rival, runs=own) for rival, own in runs.items()]
    if not figures:
        return [], not has_failed
    try:
        found = trial.find(figures)
        figures = [replace(one, facts=dict(found.get(one.rival, {}))) for one in figures]
        print_figures(figures)
        trial.check(figures)
    except RivalFailedError as error:
        _print_failure(name, error)
        return figures, False
    return figures, not has_failed


def _print_failure(who: str, error: RivalFailedError) -> None:
    console.print(f"[bold red]{who} failed[/]: {escape(str(error))}")
