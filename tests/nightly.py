"""A night's tests within a budget of minutes: `make nightly`, `make nightly MINUTES=480`.

    python tests/nightly.py --minutes 90
    python tests/nightly.py --minutes 20 --since main
    python tests/nightly.py --only fuzz,cluster --date 2026-11-29

Each part has its share of the minutes; what a part does not need goes to those after it. All that is generated follows from the
date, so each night looks elsewhere, and `--date` runs a night again. Prints of each part its command, its seed and what it did
not reach; exits with 1 if one failed. With `--since` only parts run whose imports lead to what has changed since a commit, and
not those that run test files, which `make changed CASES=1` runs itself.
"""

import argparse
import datetime
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
# A part of the tests is imported as its tests import it.
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "tests")]

from changed import affected, changed_since  # noqa: E402 - the path comes first

SEEDS_A_NIGHT = 10_000_000
"""More than any part uses: no two nights try the same."""
KILLS_A_MINUTE = 0.25
"""`--cases` of `test_killed_often.py` for each minute: 2.5 are fifty kills, in ten minutes."""
NO_TESTS = 5
"""The exit status by which pytest says that it found none."""
SIMULATION = "tests/simulation/run.py"
KILLS = "tests/interop/test_killed_often.py"
WITHIN = "--seed {seed} --minutes {minutes}"
PYTEST = f"-m pytest -m '' {WITHIN}"
BESIDE = "--numprocesses {workers} --dist loadgroup --cases 2"


@dataclass(frozen=True)
class Part:
    """One part of the night.

    Attributes:
        weight: its share of the minutes.
        command: what follows `python`; `{seed}`, `{minutes}`, `{workers}` and `{kills}` are filled in.
        entries: the files whose imports say whether a change leads to it; none if `make changed` runs its tests by file.
    """

    name: str
    weight: float
    command: str
    entries: tuple[str, ...] = ()


PARTS = (
    Part("mutants", 3, f"{SIMULATION} --mutants {WITHIN}", (SIMULATION,)),
    Part("fuzz", 5, f"tests/fuzz/run.py --inputs 1000000 {WITHIN}", ("tests/fuzz/run.py",)),
    Part("lies", 8, f"tests/lies/run.py --lies 1000000 {WITHIN}", ("tests/lies/run.py",)),
    Part("kills", 6, f"-m pytest -m '' --seed {{seed}} --cases {{kills}} {KILLS}", (KILLS,)),
    Part(
        "cluster", 18, f"{PYTEST} tests/cluster", ("tests/cluster/test_standalone.py", "tests/cluster/test_faults.py")
    ),
    Part("judges", 24, f"{PYTEST} {BESIDE} --panel --ignore {KILLS} tests/interop"),
    Part("tests", 11, f"{PYTEST} {BESIDE} tests/unit tests/local"),
    Part("spark", 7, f"{PYTEST} {BESIDE} tests/spark tests/end_to_end"),
    Part("streaming", 4, f"{SIMULATION} --streaming 1000000 {WITHIN}", (SIMULATION,)),
    Part("histories", 12, f"{SIMULATION} --histories 1000000 {WITHIN}", (SIMULATION,)),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a part."""

    part: Part
    minutes: float
    took: float
    status: int


def date(text: str) -> datetime.date:
    """A date as `--date` takes it; argparse calls it by this name."""
    return datetime.date.fromisoformat(text)


def seed_of(night: datetime.date) -> int:
    """The first seed of a night."""
    return night.toordinal() * SEEDS_A_NIGHT


def reached_by(changed: set[str]) -> list[Part]:
    """The parts whose imports lead to what has changed."""
    files = {ROOT / entry for part in PARTS for entry in part.entries}
    found = {*affected(changed, sorted(files))}
    return [part for part in PARTS if found & {*part.entries}]


def run(parts: list[Part], minutes: float, seed: int) -> list[Outcome]:
    """Run parts one after the other; each has its share of the minutes that are left."""
    outcomes: list[Outcome] = []
    ends = perf_counter() + 60 * minutes
    for number, part in enumerate(parts):
        left = max(0.0, ends - perf_counter()) / 60
        share = left * part.weight / sum(other.weight for other in parts[number:])
        filled = {
            "seed": seed,
            "minutes": f"{share:.2f}",
            "workers": os.environ.get("WORKERS", "2"),
            "kills": f"{share * KILLS_A_MINUTE:.2f}",
        }
        command = part.command.format(**filled)
        print(f"==== {part.name}, {share:.1f} minutes: python {command}", flush=True)
        began = perf_counter()
        status = subprocess.run([sys.executable, *shlex.split(command)], cwd=ROOT).returncode
        outcomes.append(Outcome(part, share, (perf_counter() - began) / 60, 0 if status == NO_TESTS else status))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=90, help="of all parts together (default: %(default)s)")
    parser.add_argument("--date", type=date, default=datetime.date.today(), help="default: today")
    parser.add_argument("--since", metavar="COMMIT", help="only parts that a change since this commit leads to")
    parser.add_argument("--only", metavar="PARTS", help=f"of {', '.join(part.name for part in PARTS)}")
    options = parser.parse_args()
    parts = [*PARTS]
    if options.since is not None:
        parts = reached_by(changed_since(options.since))
    if options.only is not None:
        wanted = options.only.split(",")
        if unknown := {*wanted} - {part.name for part in PARTS}:
            parser.error(f"there is no part {min(unknown)!r}; there is {', '.join(part.name for part in PARTS)}")
        parts = [part for part in parts if part.name in wanted]
    if not parts:
        print("no part of the night leads to what is asked for")
        return 0
    seed = seed_of(options.date)
    outcomes = run(parts, options.minutes, seed)
    print(f"==== the night of {options.date}, seed {seed}")
    for one in outcomes:
        verdict = "passed" if one.status == 0 else f"failed, exit status {one.status}"
        print(f"{one.part.name:20} {one.took:6.1f} of {one.minutes:6.1f} minutes  {verdict}")
    print(f"{'together':20} {sum(one.took for one in outcomes):6.1f} of {options.minutes:6.1f} minutes")
    return 1 if any(one.status for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
