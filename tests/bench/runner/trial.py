"""What a benchmark is: cases as data, and for each kind of case what rivals are told and how their outcome is checked."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from bench.runner.figures import Answer, Fact, Figures, print_summary
from bench.runner.rivals import OURS, Rival, spark_settings, write_conf
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
