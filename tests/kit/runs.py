"""How tests are run: in which order and for how long, on which worker, and where their seconds went.

`--seed` says in which order the files run, `--minutes` when no further test begins; nights have other seeds, so what one did not
reach another does. Tests of one engine share a worker of pytest-xdist (`--dist loadgroup`), so that the engine is started once:
two workers with a JVM each take each other's time on two cores.
"""

import multiprocessing
import os
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from kit.cases import Choices

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


OF_FOLDERS = {("tests", "spark"): "spark", ("tests", "end_to_end"): "end-to-end"}
"""Tests of Spark in this process, and those that start processes with one."""
LONGEST = "spark"
OF_FIXTURES = ("flink", "trino", "panel", "postgres")
"""Servers and processes of `kit.foreign_software` that few tests need; most of `interop` needs Iceberg Java."""
_TOGETHER = {"panel": "trino"}
"""Trino is one of the judges of the panel."""


class Workers:
    """A plugin of pytest: groups of tests, and their distribution."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Every other worker begins at the end: in a fresh checkout each compiles half of the files, and reads the rest."""
        number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        if int(number) % 2 == 0 or (path / "__init__.py").is_file():
            return None
        return _Backwards.from_parent(parent, path=path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files that are `slow` come first, so that no worker is left with one at the end; groups last, the longest first."""
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        ranks = []
        for item in items:
            group = OF_FOLDERS.get(item.path.parts[-3:-1]) or _engine(getattr(item, "fixturenames", ()))
            if group is not None:
                item.add_marker(pytest.mark.xdist_group(group))
                ranks.append(2 if group == LONGEST else 3)
            else:
                ranks.append(0 if item.path in slow else 1)
        ranked = sorted(zip(ranks, items, strict=True), key=lambda pair: (pair[0], pair[1].path))
        items[:] = [item for _, item in ranked]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> "_ByGroupOrFile | None":
        return _ByGroupOrFile(config, log) if config.option.dist == "loadgroup" else None


class _Backwards(pytest.Dir):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return reversed([*super().collect()])


class _ByGroupOrFile(LoadGroupScheduling):
    """A test of no group goes where the others of its file go, whose fixtures it may share.

    A worker that has had a group gets groups alone: a test that needs nothing would find the Spark of an earlier one in its
    process, and what it commits would name it. Where all have had one, what is left goes to any.
    """

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._had_group(node) and not all(map(self._had_group, self.nodes)):
            group = next(filter(_is_group, self.workqueue), None)
            if group is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)

    def _had_group(self, node: WorkerController) -> bool:
        return any(map(_is_group, self.assigned_work[node]))


def _is_group(scope: str) -> bool:
    return "/" not in scope


def _engine(fixtures: Any) -> str | None:
    found = [name for name in OF_FIXTURES if name in fixtures]
    return _TOGETHER.get(found[0], found[0]) if found else None


Piece = TypeVar("Piece")
Result = TypeVar("Result")

_AHEAD = 8
"""Pieces of each process that are handed out before their turn."""


def shared_out(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], processes: int, minutes: float | None = None
) -> Iterator[Result]:
    """What `work` returns for each piece, in the order in which it is ready; pieces that would begin too late have no result.

    `work` is a function of a module and returns something that is not `None`. Where a process dies, a `RuntimeError` names the
    pieces that were handed out and not ready.
    """
    ends = None if minutes is None else perf_counter() + 60 * minutes
    in_time = partial(_in_time, work, ends)
    rest = iter(pieces)
    waiting: dict[Future[Result | None], Piece] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        try:
            while True:
                for piece in islice(rest, processes * _AHEAD - len(waiting)):
                    waiting[pool.submit(in_time, piece)] = piece
                if not waiting:
                    return
                for ready in wait(waiting, return_when=FIRST_COMPLETED).done:
                    result = ready.result()
                    del waiting[ready]
                    if result is not None:
                        yield result
        except BrokenExecutor as error:
            raise RuntimeError(f"a process died at one of {[*waiting.values()]}") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_time(work: Callable[[Piece], Result], ends: float | None, piece: Piece) -> Result | None:
    # Processes of one machine share this clock.
    return work(piece) if ends is None or perf_counter() < ends else None
