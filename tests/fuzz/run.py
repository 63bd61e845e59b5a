"""Spoil inputs and see that the library refuses them in one line or reads them rightly: `make fuzz`.

    python tests/fuzz/run.py --inputs 100000 --seed 0
    python tests/fuzz/run.py --minutes 5 --seed 2026112900000

Prints, for each target, how many inputs were tried, taken and refused; exits with 1 if a target
failed, and has printed the command that replays its first failure.
"""

import argparse
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

from fuzz.targets import TARGETS, Target  # noqa: E402 - the path comes first
from kit.runs import shared_out  # noqa: E402

_CHUNK = 500


def run(target: Target, inputs: int, seed: int) -> int:
    """Try inputs of one target; how many were taken. The failure of one carries its number as a note."""
    taken = 0
    for number in range(seed, seed + inputs):
        try:
            taken += target.check(Random(f"{target.name} {number}"))
        except BaseException as error:
            error.add_note(f"replay: python tests/fuzz/run.py --only {target.name} --inputs 1 --seed {number}")
            raise
    return taken


def run_chunk(chunk: tuple[str, int, int]) -> tuple[str, int, int, str]:
    """Of a target, so many inputs from a seed on: how many were tried and taken, and the failure as text."""
    name, seed, inputs = chunk
    target = next(target for target in TARGETS if target.name == name)
    try:
        return name, inputs, run(target, inputs, seed), ""
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        return name, inputs, 0, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs in all, shared by the targets")
    parser.add_argument("--seed", type=int, default=0, help="the first input of each target")
    parser.add_argument("--only", choices=[target.name for target in TARGETS], help="one target")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="begin nothing later; at most as many inputs as asked for")
    options = parser.parse_args()
    names = [target.name for target in TARGETS if options.only in (None, target.name)]
    share = -(-options.inputs // len(names))
    # All targets side by side, so that each has its share of the minutes.
    chunks = [
        (name, options.seed + first, min(_CHUNK, share - first)) for first in range(0, share, _CHUNK) for name in names
    ]
    tried, taken, failed = Counter[str](), Counter[str](), dict[str, str]()
    for name, inputs, of_them, failure in shared_out(run_chunk, chunks, options.processes, options.minutes):
        tried[name] += inputs
        taken[name] += of_them
        if failure and name not in failed:
            failed[name] = failure
            print(failure, flush=True)
    for name in names:
        if name in failed:
            print(f"{name:24} failed")
        else:
            print(f"{name:24} {tried[name]:8,} inputs {taken[name]:8,} taken {tried[name] - taken[name]:8,} refused")
    verdict = f"{len(failed)} targets failed" if failed else "no wrong answer, no error but icekeep's own"
    print(f"{'in all':24} {tried.total():8,} of {share * len(names):,} inputs, {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
