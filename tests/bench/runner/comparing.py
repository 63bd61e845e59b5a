"""The rounds of a case: each rival in a process of its own, one at a time, in an order that is turned around."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec.structs import replace
from rich.markup import escape

from bench.rival.process import copied
from bench.runner.figures import Answer, Figures, Run, console, print_figures
from bench.runner.processes import RivalFailedError
from bench.runner.rivals import Rival, process, start, submit_process, time_command
from bench.runner.rivals_catalog import RivalsCatalog
from bench.runner.trial import Benchmark, Case, Trial


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
