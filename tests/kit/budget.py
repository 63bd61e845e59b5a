"""A test run that ends in time: `--seed` says in which order the files run, `--minutes` when no further test begins.

Nights have other seeds, so what one did not reach another does. What was not reached is printed.
"""

from collections import Counter
from time import perf_counter
from typing import Any

import pytest

from kit.choices import Choices

LISTED = 20
"""How many files are listed of which not all tests were reached."""


class Budget:
    """A plugin of pytest; under pytest-xdist each worker keeps the time, and the controller prints."""

    def __init__(self, seed: int, minutes: float | None) -> None:
        self._seed, self._minutes = seed, minutes
        self._ends = None if minutes is None else perf_counter() + 60 * minutes
        self._reached = 0
        self._not_reached: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The files in another order; the tests of a file stay together, since they share fixtures."""
        files: dict[str, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(_file(item.nodeid), []).append(item)
        order = sorted(files)
        Choices(self._seed).shuffle(order)
        items[:] = [item for file in order for item in files[file]]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self._ends is None or perf_counter() < self._ends:
            self._reached += 1
            return None
        self._not_reached.append(item.nodeid)
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["budget"] = self._reached, self._not_reached

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        reached, not_reached = getattr(node, "workeroutput", {}).get("budget", (0, []))
        self._reached += reached
        self._not_reached += not_reached

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        count = self._reached + len(self._not_reached)
        within = "" if self._minutes is None else f" in {self._minutes:.1f} minutes"
        write(f"seed {self._seed}: {self._reached:,} of {count:,} tests were reached{within}")
        files = Counter(map(_file, self._not_reached)).most_common()
        for file, tests in files[:LISTED]:
            write(f"not reached: {tests:5,} of {file}")
        if files[LISTED:]:
            write(f"not reached: {sum(tests for _, tests in files[LISTED:]):5,} of {len(files[LISTED:])} other files")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
