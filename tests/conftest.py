"""Settings for all tests: what needs what, which cases are generated, and that Spark's workers run this Python."""

import os
import signal
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import croniter  # noqa: F401 - as it is imported it asks `file` for the platform, which a test must not do
import pytest
from hypothesis import HealthCheck, core, settings

from icekeep import secrets
from icekeep.planning.spark import session as source
from kit.cases import FEW_EXAMPLES, scaled, set_share
from kit.golden import golden  # noqa: F401 - a fixture
from kit.runs import Budget, Timings, Workers
from kit.runtime import GIVEN_IS_USED

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

TESTS = Path(__file__).parent
# A configuration of the user's own is not that of the tests.
os.environ.pop("ICEKEEP_CONFIG", None)
os.environ["XDG_CONFIG_HOME"] = str(TESTS / "no-configuration")
MARKS = {
    "local": ("server",),
    "spark": ("spark",),
    "end_to_end": ("spark", "process"),
    "interop": ("spark", "java"),
    "cluster": ("spark", "java"),
}
"""What all tests of a folder need; in `unit` a test that needs something says so itself."""
FOR_FEW_ROWS = TESTS / "kit" / "spark_conf"
FORBIDDEN = ("subprocess.Popen", "os.system", "os.fork", "os.posix_spawn", "socket.connect", "socket.bind")
"""What a test that needs nothing never does, by the names of Python's audit events."""

NEEDS = ("server", "process", "spark", "java")

REFUSAL = "a test does what it is not marked to need (`process`, `server`)"

_is_pure = False
_refused: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=float,
        default=0.1,
        help="by how much to multiply the number of generated cases of every test (default: 0.1; `make nightly`: 2)",
    )
    parser.addoption("--update", action="store_true", help="write golden texts as they are now (kit/golden.py)")
    parser.addoption(
        "--panel",
        action="store_true",
        help="let all judges read what each interop test leaves (`make nightly` does)",
    )
    parser.addoption(
        "--seed",
        type=int,
        help="generate other cases, and run the files in another order (default: the same in every run)",
    )
    parser.addoption(
        "--minutes", type=float, help="after so many minutes begin no further test; print what was not reached"
    )
    parser.addoption(
        "--part",
        type=_part,
        metavar="K/N",
        help="run the K-th of N parts of the test files: N processes then need not tell each other of every test",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell lets what it starts with `&`, as `make quick` does, ignore Ctrl-C; tests send it to themselves.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Timings(TESTS, NEEDS))
    config.pluginmanager.register(Workers())
    seed, minutes = config.getoption("seed"), config.getoption("minutes")
    set_share(config.getoption("cases"), seed or 0)
    if seed is not None or minutes is not None:
        config.pluginmanager.register(Budget(seed or 0, minutes))
    # Files are in the order in which they are to begin.
    config.option.loadscopereorder = False
    if seed is not None:
        # Hypothesis has no public name for it but its own flag, which would be a second one here.
        core.global_force_seed = seed
    # None fails where a machine is slow.
    settings.register_profile(
        "icekeep",
        derandomize=seed is None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=scaled(50, least=FEW_EXAMPLES),
    )
    settings.load_profile("icekeep")
    if config.getoption("cases") < 1:
        # Queries over a handful of rows are not worth compiling; where tests take long Spark is as it is, here and in jobs.
        os.environ["SPARK_CONF_DIR"] = str(FOR_FEW_ROWS)
    sys.addaudithook(_refuse_what_is_not_marked)


@pytest.fixture(scope="session", autouse=True)
def _sessions_that_tests_give_are_used() -> Iterator[None]:
    """However little there is to rewrite: tables of tests are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "LIMITS", GIVEN_IS_USED)
        yield


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps in mind what is secret; a test must not miss in a text what another one has given as a password."""
    monkeypatch.setattr(secrets, "_known", frozenset())
    monkeypatch.setattr(secrets, "_known_pattern", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    part = config.getoption("part")
    if part is None or collection_path.suffix != ".py":
        return None
    return collection_path not in _files_of(part, tuple(config.args)) or None


@lru_cache
def _files_of(part: tuple[int, int], folders: tuple[str, ...]) -> frozenset[Path]:
    """The files of one part; the parts have about as many bytes."""
    files = (file for folder in folders for file in Path(folder).resolve().rglob("test_*.py"))
    parts: list[list[Path]] = [[] for _ in range(part[1])]
    sizes = [0] * part[1]
    for size, file in sorted(((file.stat().st_size, file) for file in files), reverse=True):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(file)
        sizes[smallest] += size
    return frozenset(parts[part[0] - 1])


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(text)
    return int(number), int(count)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in MARKS.get(item.path.relative_to(TESTS).parts[0], ()):
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    global _is_pure
    _is_pure = is_pure = not any(item.get_closest_marker(need) for need in NEEDS)
    _refused.clear()
    before = signal.getsignal(signal.SIGINT)
    try:
        answer = yield
    finally:
        _is_pure = False
        # PySpark's session takes Ctrl-C and keeps it.
        left = signal.getsignal(signal.SIGINT) if is_pure else before
        if left is not before:
            signal.signal(signal.SIGINT, before)
    assert left is before, f"a test leaves {left} behind, which takes the Ctrl-C of later tests"
    # Also where what was refused was taken for a store that is out of reach.
    assert not _refused, f"{REFUSAL}: {_refused}"
    return answer


def _refuse_what_is_not_marked(event: str, arguments: Any) -> None:
    if _is_pure and event in FORBIDDEN:
        # The arguments of a process may hold secrets.
        _refused.append(f"{event} {arguments[1]}" if event.startswith("socket.") else event)
        raise AssertionError(f"{REFUSAL}: {event}")
