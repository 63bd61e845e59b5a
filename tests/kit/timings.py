"""Where the seconds of a test run go, printed at its end: by folder, by need, by fixture, and the slowest tests.

Under pytest-xdist every worker measures, and the controller adds up and prints.
"""

import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

SLOWEST = 50
COVERED = 0.97
"""The share of a table's seconds that is printed line by line; the rest is one line."""


class Timings:
    """A plugin of pytest; `needs` are the marks by which tests are added up."""

    def __init__(self, tests: Path, needs: tuple[str, ...]) -> None:
        self._tests, self._needs = tests, needs
        self._began = perf_counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        """Set-up, call and teardown of each test, by its node id."""
        self._needs_of: dict[str, str] = {}
        self._waiting: Counter[str] = Counter()
        """Seconds of set-up and teardown of all tests, by phase; fixtures are among them."""
        self._fixtures: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0])
        self._nested = [0.0]
        self._collection = 0.0
        self._busy: dict[str, float] = {}
        self._workers: dict[str, dict[str, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        began = perf_counter()
        answer = yield
        self._collection = perf_counter() - began
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        began = perf_counter()
        self._nested.append(0.0)
        try:
            return (yield)
        finally:
            # What the fixture asks for by `getfixturevalue` is counted under its own name.
            seconds = perf_counter() - began
            found = self._fixtures[f"{fixturedef.argname} ({fixturedef.scope})"]
            found[0] += seconds - self._nested.pop()
            found[1] += 1
            self._nested[-1] += seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        needs = " ".join(need for need in self._needs if item.get_closest_marker(need))
        item.user_properties.append(("needs", needs or "nothing"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when != "call":
            self._waiting[str(report.when)] += report.duration
        self._needs_of[report.nodeid] = dict(report.user_properties).get("needs", "nothing")
        worker = getattr(getattr(report, "node", None), "gateway", None)
        name = worker.id if worker else "this process"
        self._busy[name] = self._busy.get(name, 0.0) + report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        measured = {
            "collection": self._collection,
            "run": perf_counter() - self._began,
            "processor": sum(_processor_seconds(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)),
        }
        output = getattr(session.config, "workeroutput", None)
        if output is None:
            self._workers.setdefault("this process", measured)
        else:
            output["timings"] = measured, dict(self._fixtures)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", None)
        if output is None:
            return
        self._workers[node.gateway.id], fixtures = output["timings"]
        for name, (seconds, count) in fixtures.items():
            self._fixtures[name][0] += seconds
            self._fixtures[name][1] += count

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._seconds:
            return
        write = terminalreporter.write_line
        terminalreporter.section("where the seconds went")
        for name, measured in sorted(self._workers.items()):
            write(
                f"{name}: {measured['run']:.1f} s, of them {self._busy.get(name, 0.0):.1f} in tests and "
                f"{measured['collection']:.1f} in collection; {measured['processor']:.1f} processor seconds"
            )
        folders: Counter[str] = Counter()
        needs: Counter[str] = Counter()
        for test, seconds in self._seconds.items():
            folders[self._folder(test)] += seconds
            needs[self._needs_of[test]] += seconds
        for line in _table("folder", folders, Counter(map(self._folder, self._seconds))):
            write(line)
        for line in _table("what tests need", needs, Counter(self._needs_of.values())):
            write(line)
        fixtures = Counter({name: seconds for name, (seconds, _) in self._fixtures.items()})
        calls = Counter({name: int(count) for name, (_, count) in self._fixtures.items()})
        write(f"{'':>9}  set-up {self._waiting['setup']:.1f} s, teardown {self._waiting['teardown']:.1f} s")
        for line in _table("fixture", fixtures, calls):
            write(line)
        write(f"  seconds  the {SLOWEST} slowest tests")
        for test, seconds in Counter(self._seconds).most_common(SLOWEST):
            write(f"{seconds:9.1f}  {test}")

    def _folder(self, test: str) -> str:
        """Two levels below `tests`, below `unit` three; the last may be a file."""
        path = Path(test.partition("::")[0])
        parts = path.parts[1:] if path.parts[0] == self._tests.name else path.parts
        return "/".join(parts[: 3 if parts[0] == "unit" else 2])


def _table(title: str, seconds: Counter[str], counts: Counter[str]) -> Iterator[str]:
    total = sum(seconds.values())
    yield f"  seconds    items  {title}"
    shown = 0.0
    for number, (name, value) in enumerate(seconds.most_common()):
        if number > 2 and shown >= COVERED * total:
            others = seconds.most_common()[number:]
            yield f"{total - shown:9.1f} {sum(counts[one] for one, _ in others):8,}  {len(others)} others"
            break
        shown += value
        yield f"{value:9.1f} {counts[name]:8,}  {name}"
    yield f"{total:9.1f} {sum(counts[name] for name in seconds):8,}  together"


def _processor_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
