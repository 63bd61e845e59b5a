"""How many small faults the tests see: `make mutation` changes one operator, constant or condition after the other.

cosmic-ray says what can be changed in the rooms where a fault costs data: `spec`, `commit`, and what deletes. A sample of its
mutants, the same for a seed, is made in copies of this checkout, one mutant at a time. A mutant counts as caught when a test
fails or hangs; one that cannot be imported says nothing about tests, and is left out. Survivors are printed: each is a test
that is missing, or a change that changes nothing.
"""

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[2]
MARKS = "not (nightly or process or server or spark)"

# An annotation is no code that runs: another operator in `int | None` cannot be imported, or changes nothing.
# Without its decorator a property, a context manager or a fixture is no program either.
_LEFT_OUT = ("core/ReplaceBinaryOperator_BitOr_", "core/RemoveDecorator")
_TESTS_FAILED = 1


@dataclass(frozen=True)
class Room:
    """Code, and the tests that are asked about it."""

    name: str
    code: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = (
    Room("spec", ("lib/icekeep/spec",), ("tests/unit/spec",)),
    Room("commit", ("lib/icekeep/commit",), ("tests/unit/commit",)),
    Room(
        "deletion",
        ("lib/icekeep/maintenance/delete", "lib/icekeep/maintenance/expire", "lib/icekeep/maintenance/drop"),
        tuple(f"tests/unit/maintenance/{name}" for name in ("delete", "expire", "drop", "restore", "orphans")),
    ),
)


@dataclass(frozen=True)
class Mutant:
    """One change: the `occurrence`-th place of a file that an operator can change."""

    path: str
    operator: str
    occurrence: int
    line: int

    def rank(self, seed: int) -> bytes:
        """Where it stands in the sample of a seed."""
        name = f"{seed} {self.path} {self.operator} {self.occurrence}"
        return hashlib.blake2b(name.encode(), digest_size=8).digest()


def mutants(room: Room) -> Iterator[Mutant]:
    """All that can be made in a room."""
    operators = [name for name in operator_names() if not name.startswith(_LEFT_OUT)]
    for path in sorted(file for code in room.code for file in (ROOT / code).rglob("*.py")):
        nodes = [*ast_nodes(get_ast_from_path(path))]
        for name in operators:
            kind = get_operator(name)
            if kind.arguments():
                continue
            places = (start for node in nodes for start, _ in kind().mutation_positions(node))
            for occurrence, (line, _) in enumerate(places):
                yield Mutant(str(path.relative_to(ROOT)), name, occurrence, line)


def copied(directory: Path) -> Path:
    """A copy of what the tests need of this checkout."""
    for name in ("lib", "tests", "jobs", "conf", "airflow_dags", "docs", ".ci"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"):
        shutil.copy(ROOT / name, directory / name)
    return directory


def tested(copy: Path, tests: list[str], hangs_after_s: float | None) -> int:
    """The exit status of some tests in a copy; that of a failed test where they hang."""
    command = [str(ROOT / ".venv/bin/python"), "-m", "pytest", *tests, "-q", "-x", "-m", MARKS]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--cases", "0.05"]
    environment = {**os.environ, "PYTHONPATH": f"{copy}/lib:{copy}/tests", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(hangs_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return _TESTS_FAILED


def outcome(copy: Path, room: Room, mutant: Mutant, hangs_after_s: float) -> str:
    """What becomes of a mutant: caught, survived, or not a program."""
    file = copy / mutant.path
    whole = file.read_text()
    changed = mutate_code(whole, get_operator(mutant.operator)(), mutant.occurrence)
    assert changed not in (None, whole), mutant
    try:
        compile(changed, mutant.path, "exec")
        file.write_text(changed)
        # The tests of the file's own name first: most mutants go no further.
        nearest = [str(p.relative_to(copy)) for t in room.tests for p in (copy / t).rglob(f"test_{file.stem}*.py")]
        for some in filter(None, (nearest, [*room.tests])):
            status = tested(copy, some, hangs_after_s)
            if status == _TESTS_FAILED:
                return "caught"
            if status not in (0, 5):
                return "no program"
    except SyntaxError:
        return "no program"
    finally:
        file.write_text(whole)
    return "survived"


def scored(room: Room, sample: list[Mutant], copies: "Queue[Path]", workers: int, hangs_after_s: float) -> list[str]:
    """The outcomes of a sample, in its order."""

    def one(mutant: Mutant) -> str:
        copy = copies.get()
        try:
            found = outcome(copy, room, mutant, hangs_after_s)
        finally:
            copies.put(copy)
        if found == "survived":
            line = (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
            name = f"{mutant.operator.removeprefix('core/')} {mutant.occurrence}"
            print(f"survived: {mutant.path}:{mutant.line}: {name}: {line}", flush=True)
        return found

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, sample))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=100, help="mutants of each room (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="which of them (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="how many are tested at once (default: 2)")
    parser.add_argument("--rooms", default=",".join(room.name for room in ROOMS), help="of %(default)s")
    given = parser.parse_args()
    wanted = given.rooms.split(",")
    with tempfile.TemporaryDirectory() as directory:
        copies: Queue[Path] = Queue()
        for number in range(given.workers):
            copies.put(copied(Path(directory) / str(number)))
        for room in ROOMS:
            if room.name not in wanted:
                continue
            began = time.monotonic()
            every = [*mutants(room)]
            sample = sorted(every, key=lambda mutant: mutant.rank(given.seed))[: given.sample]
            unbroken, tests_began = copies.get(), time.monotonic()
            if (status := tested(unbroken, [*room.tests], None)) != 0:
                print(f"{room.name}: the tests fail on code that is not changed (exit status {status})")
                return 1
            copies.put(unbroken)
            # Two mutants at once take each other's time, and other work on the machine takes more.
            hangs_after_s = 60 + 5 * (time.monotonic() - tests_began)
            counts = Counter(scored(room, sample, copies, given.workers, hangs_after_s))
            judged = counts["caught"] + counts["survived"]
            print(
                f"{room.name}: {counts['caught']} of {judged} mutants caught ({counts['caught'] / max(1, judged):.0%}); "
                f"{counts['no program']} more were no program; {len(every):,} could be made; {time.monotonic() - began:.0f} s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
