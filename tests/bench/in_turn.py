"""The cases of a benchmark, one after another: one that fails does not keep the others from being run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.markup import escape

from bench.processes import RivalFailedError

C = TypeVar("C")
F = TypeVar("F")


def run_cases(
    cases: Mapping[str, C],
    compare: Callable[[str, C], list[F]],
    print_summary: Callable[[list[F]], Any],
    save: Path | None,
    console: Console,
) -> int:
    """Compare the rivals in each case and print and save the figures; 0 if every rival answered and left what it must."""
    figures: list[F] = []
    failed = []
    for name, case in cases.items():
        try:
            figures += compare(name, case)
        except RivalFailedError as error:
            failed.append(name)
            console.print(f"[bold red]{name} failed[/]: {escape(str(error))}")
    print_summary(figures)
    if save is not None:
        save.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    if failed:
        console.print(f"[bold red]what failed[/]: {', '.join(failed)}; their times mean nothing")
    return 1 if failed else 0
