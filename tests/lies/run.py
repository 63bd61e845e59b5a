"""Put one lie at a time into the files of a table, and see that no job loses a row by it: `make lies`.

    python tests/lies/run.py --lies 20000 --seed 0
    python tests/lies/run.py --minutes 5 --seed 2026112900000
    python tests/lies/run.py --lies 1 --seed 4711 --job compact

Each number is a table, a lie in one field of its metadata, manifest list, manifests, footers or delete files, and a job. A reader
that believes nothing but the specification has the same rows before and after, or the job refuses in one line. Prints for each
field how many lies were harmless, refused, or made a table that no reader can read, and how many no reader of the specification
could have seen; exits with 1 if rows were lost.
"""

import argparse
import os
import sys
import traceback
from collections import Counter, defaultdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

from kit.runs import shared_out  # noqa: E402 - the path comes first
from lies.judging import JOBS, Verdict, judged  # noqa: E402

CHUNK = 100
TABLES = 48
OUTCOMES = ("kept", "refused", "unreadable", "lost")


def run_chunk(chunk: tuple[int, int, str]) -> list[tuple[int, Verdict | None, str]]:
    """The verdicts of so many numbers from a first one on; the traceback of what was no error of icekeep's."""
    first, count, job = chunk
    found: list[tuple[int, Verdict | None, str]] = []
    for number in range(first, first + count):
        try:
            found.append((number, judged(number, TABLES, job), ""))
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            found.append((number, None, traceback.format_exc()))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="the first number")
    parser.add_argument("--job", choices=list(JOBS), default="", help="one job for all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="begin nothing later; at most as many lies as asked for")
    parser.add_argument("--verbose", action="store_true", help="print what each job that refused said")
    options = parser.parse_args()
    ends = range(options.seed, options.seed + options.lies, CHUNK)
    chunks = [(first, min(CHUNK, options.seed + options.lies - first), options.job) for first in ends]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    failures = tried = 0
    said = Counter[str]()
    for results in shared_out(run_chunk, chunks, options.processes, options.minutes):
        for number, verdict, failure in results:
            tried += 1
            if verdict is not None:
                counts[verdict.lie.where].update([verdict.outcome, *["seen by none"] * verdict.is_seen_by_none])
                if verdict.outcome == "refused":
                    said[f"{verdict.lie.where}: {verdict.text}"] += 1
                failure = f"{verdict.lie}, {verdict.job}: {verdict.text}" if verdict.outcome == "lost" else ""
            if failure:
                failures += 1
                print(f"{failure}\nreplay: python tests/lies/run.py --lies 1 --seed {number}", flush=True)
    if options.verbose:
        for text, count in sorted(said.items()):
            print(f"{count:5,}  {text}")
    columns = (*OUTCOMES, "seen by none")
    print(f"{'':40}" + "".join(f"{name:>13}" for name in columns))
    for where in sorted(counts):
        print(f"{where:40}" + "".join(f"{counts[where][name]:13,}" for name in columns))
    together = sum(counts.values(), Counter[str]())
    print(f"{'in all':40}" + "".join(f"{together[name]:13,}" for name in columns))
    print(f"{tried:,} of {options.lies:,} numbers, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
