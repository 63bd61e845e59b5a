"""Spoil inputs and see that the library refuses them in one line or reads them rightly: `make fuzz`.

    python tests/fuzz/run.py --inputs 100000 --seed 0

Prints, for each target, how many inputs were tried, taken and refused; exits with 1 if a target
failed, and has printed the command that replays its first failure.
"""

import argparse
import sys
import traceback
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

from fuzz.targets import TARGETS, Target  # noqa: E402 - the path comes first


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs in all, shared by the targets")
    parser.add_argument("--seed", type=int, default=0, help="the first input of each target")
    parser.add_argument("--only", choices=[target.name for target in TARGETS], help="one target")
    options = parser.parse_args()
    targets = [target for target in TARGETS if options.only in (None, target.name)]
    share = -(-options.inputs // len(targets))
    total = failures = 0
    for target in targets:
        try:
            taken = run(target, share, options.seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            traceback.print_exc()
            failures += 1
            continue
        total += share
        print(f"{target.name:24} {share:8,} inputs {taken:8,} taken {share - taken:8,} refused", flush=True)
    verdict = f"{failures} targets failed" if failures else "no wrong answer, no error but icekeep's own"
    print(f"{'in all':24} {total:8,} inputs, {verdict}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
