"""The judges of the interop tests, each started once; a tally of what was tried, and of what was judged."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.foreign_software import flink, java, panel, postgres, trino
from kit.java import IcebergJava
from kit.judging.panel import JUDGED, Count, Panel, checks_below, save, summary
from kit.lake import Lake

__all__ = ["flink", "java", "panel", "postgres", "trino"]

_TRIED: Counter[str] = Counter()
_JUDGED_OF: defaultdict[Path, Counter[Count]] = defaultdict(Counter)
"""With `--panel`: what was judged of the tables of each test file."""


@pytest.fixture(params=["sql", pytest.param("filesystem", marks=pytest.mark.deep)])
def lake(tmp_path: Path, request: pytest.FixtureRequest, java: IcebergJava) -> Lake:
    """An empty catalog of each kind, called `local` by us and by Java."""
    lake = Lake(tmp_path, request.param)
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(autouse=True)
def sound_tables(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tables that a test leaves in its directory are sound, whichever engine wrote them.

    The mark `unsound(number)` names a kind of faults that the test makes on purpose, or that an engine is known to make there.
    """
    directory = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if directory is None:
        return
    known = {number for mark in request.node.iter_markers("unsound") for number in mark.args}
    results = dict(checks_below(directory))
    _TRIED["tables checked down to their rows"] += len(results)
    found = {path: [one for one in result.faults if one.fault_id not in known] for path, result in results.items()}
    assert not any(found.values()), found


@pytest.fixture(autouse=True)
def judged_tables(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--panel` the tables that a test leaves, in its directory and in lakes that it used, are read alike by all judges."""
    if not request.config.getoption("--panel"):
        yield
        return
    panel: Panel = request.getfixturevalue("panel")
    before = JUDGED.copy()
    yield
    values = request.node.funcargs
    directories = {value.directory for value in values.values() if isinstance(value, Lake)}
    if "tmp_path" in values:
        directories.add(values["tmp_path"])
    found = [told for directory in sorted(directories) for told in panel.judged_below(directory)]
    _JUDGED_OF[request.path].update(JUDGED - before)
    assert not found, "\n".join(found)


@pytest.fixture(scope="session")
def tried() -> Callable[[str, int], None]:
    """Count cases under a name; the totals are printed when the run ends."""

    def count(name: str, number: int = 1) -> None:
        _TRIED[name] += number

    return count


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["tried"], output["judged"] = dict(_TRIED), [*JUDGED.items()]
        output["judged_of"] = [(str(file), [*counts.items()]) for file, counts in _JUDGED_OF.items()]
    elif _JUDGED_OF and not _is_a_part(config):
        save(_JUDGED_OF)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: its counts are added to those of the others."""
    output = getattr(node, "workeroutput", {})
    _TRIED.update(output.get("tried", {}))
    JUDGED.update({tuple(key): number for key, number in output.get("judged", [])})
    for file, counts in output.get("judged_of", []):
        _JUDGED_OF[Path(file)].update({tuple(key): number for key, number in counts})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, number in sorted(_TRIED.items()):
        terminalreporter.write_line(f"tried: {number:>7,} {name}")
    for line in summary(JUDGED):
        terminalreporter.write_line(line)


def _is_a_part(config: pytest.Config) -> bool:
    """Whether the run is of single tests of a file: what they count would stand for the whole of it."""
    return bool(config.getoption("keyword")) or any("::" in argument for argument in config.args)
