"""Simulate writers on a table in a world where every call can go wrong: `make simulate`.

    python tests/simulation/run.py --histories 100000 --seed 0
    python tests/simulation/run.py --streaming 2000 --seed 0
    python tests/simulation/run.py --mutants
    python tests/simulation/run.py --minutes 10 --seed 2026112900000

Each history has two to five writers and 20 to 60 operations; two in a hundred go through real bytes, and in one of
them orphans are removed; in one of twenty the credentials of the store end after a while. Then every call of every operation
is the last before a crash, and fails in every other way. Prints what was done and what went wrong on purpose; exits with 1 if
an invariant was violated, and has printed the command that replays it, or if a run of 2,000 histories or more has never met
something that it is there to meet. With `--streaming` it runs so many histories of a compaction beside writers that never
stop, and no others. With `--mutants` it breaks the library on purpose, in one place after the other, and prints which
invariant each fault breaks; exits with 1 if one breaks none that it is meant to. With `--minutes` nothing begins later, and what
was not reached is printed; the seed says which mutants come first.
"""

import argparse
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

from kit.cases import Choices  # noqa: E402 - the path comes first
from kit.runs import shared_out  # noqa: E402
from simulation import sweep  # noqa: E402
from simulation.codec import values_in_place_of_bytes  # noqa: E402
from simulation.history import History, Tally  # noqa: E402
from simulation.mutants import MUTANTS, caught_by, kind_of  # noqa: E402
from simulation.operations import OPERATIONS  # noqa: E402
from simulation.streaming import run_streaming, simulate_streaming  # noqa: E402
from simulation.world import SEEN, Fault, Told  # noqa: E402

_CHUNK = 100
_LONG = 2000
"""From so many histories on, all that can happen must have happened."""


def simulate(seed: int, tell: Callable[[str], None] | None = None) -> History:
    """Run the history of a seed to its end and tell all that happened; a violation says how to replay it."""
    with nullcontext() if through_bytes(seed) else values_in_place_of_bytes():
        history = History(seed, with_orphans=removes_orphans(seed), with_credentials=seed % 20 == 13)
        try:
            history.run()
        except BaseException as error:
            error.add_note(f"replay: python tests/simulation/run.py --seed {seed} --trace")
            raise
        finally:
            if tell is not None:
                for line in history.story():
                    tell(line)
    return history


def through_bytes(seed: int) -> bool:
    """Whether the history of a seed writes and reads real Avro and JSON."""
    return seed % 100 == 99 or removes_orphans(seed)


def removes_orphans(seed: int) -> bool:
    """Whether orphans are removed in the history of a seed."""
    return seed % 100 == 49


def run(seeds: Iterable[int]) -> tuple[Tally, list[str]]:
    """Run histories; what they were made of, and each failure as text."""
    tally, failures = Tally(), []
    for seed in seeds:
        try:
            tally.add(simulate(seed).tally())
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            failures.append(traceback.format_exc())
    return tally, failures


def _chunks(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, _CHUNK):
        yield range(start, min(start + _CHUNK, first + count))


def run_all(first: int, count: int, processes: int, minutes: float | None) -> tuple[Tally, list[str]]:
    """The same over several processes."""
    tally, failures = Tally(), []
    for number, (part, failed) in enumerate(shared_out(run, _chunks(first, count), processes, minutes), 1):
        tally.add(part)
        failures += failed
        for failure in failed:
            print(failure, flush=True)
        if number % 50 == 0:
            print(f"{tally.histories:9,} histories, {len(failures)} violations", flush=True)
    return tally, failures


def sweep_all(seed: int, processes: int, minutes: float | None) -> list[str]:
    """Let every call of every operation go wrong, and print how many; the failures."""
    pieces = [*sweep.PIECES]
    if seed:
        Choices(seed).shuffle(pieces)
    swept, faults, failures = 0, 0, list[str]()
    for tried, failed in shared_out(sweep.run, pieces, processes, minutes):
        swept, faults = swept + 1, faults + tried
        failures += failed
        for failure in failed[:3]:
            print(failure, flush=True)
    print(f"{faults:11,} times one call of one operation went wrong, {len(failures)} violations")
    print(f"{swept:11,} of {len(pieces)} operations on a kind of catalog were reached")
    return failures


def report(tally: Tally, failures: list[str]) -> None:
    """Print what was done."""
    print(f"{tally.histories:11,} histories of {tally.steps:,} operations, {tally.calls:,} storage and catalog calls")
    print(f"{tally.commits:11,} commits landed, {tally.checks:,} times the invariants were checked")
    for told in Told:
        if tally.told[told]:
            print(f"{tally.told[told]:11,} operations were told: {told.value}")
    print(f"{tally.conflicts:11,} times an attempt met a conflict")
    for fault in Fault:
        if tally.faults[fault]:
            print(f"{tally.faults[fault]:11,} calls {fault.value}")
    for what, count in sorted(tally.seen.items()):
        print(f"{count:11,} {what}")
    for make in OPERATIONS:
        told = ((told, tally.operations[make.__name__, told]) for told in Told)
        counts = ", ".join(f"{count:,} {told.value}" for told, count in told if count)
        print(f"{make.__name__:>20} {counts}")
    print(f"{len(failures):11,} violations", flush=True)


def run_all_streaming(first: int, count: int, processes: int, minutes: float | None) -> list[str]:
    """Run streaming histories over several processes, and print what came about; the failures."""
    seen, failures = Counter[str](), list[str]()
    for part, failed in shared_out(run_streaming, _chunks(first, count), processes, minutes):
        seen += part
        failures += failed
        for failure in failed:
            print(failure, flush=True)
    for what, times in sorted(seen.items()):
        print(f"{times:11,} {what}")
    print(f"{len(failures):11,} violations", flush=True)
    return failures


def hunt(name: str) -> tuple[str, bool]:
    """What is printed of a mutant, and whether a history catches it."""
    mutant = next(mutant for mutant in MUTANTS if mutant.__name__ == name)
    caught = caught_by(mutant)
    found = "NOT CAUGHT" if caught is None else f"breaks {caught.invariant:4} in history {caught.history}"
    return f"{kind_of(mutant):11} {name:42} is to break {MUTANTS[mutant].breaks:7} {found}", caught is not None


def report_mutants(seed: int, processes: int, minutes: float | None) -> int:
    """Print which invariant each broken library breaks and in which history; how many break none that they are meant to."""
    names = [mutant.__name__ for mutant in MUTANTS]
    if seed:
        Choices(seed).shuffle(names)
    tried = missed = 0
    for line, is_caught in shared_out(hunt, names, processes, minutes):
        tried, missed = tried + 1, missed + (not is_caught)
        print(line, flush=True)
    print(f"{tried} of {len(names)} mutants tried, {missed} not caught")
    return missed


def never_met(tally: Tally) -> list[str]:
    """What a long run must have met, each kind at least once, and has not: then it proves less than it seems to."""
    wanted = {f"calls that {fault.name}": tally.faults[fault] for fault in Fault if fault is not Fault.NONE}
    wanted |= {f"operations told {told.name}": tally.told[told] for told in Told if told is not Told.NOTHING}
    wanted |= {
        f"{make.__name__} that committed": tally.operations[make.__name__, Told.COMMITTED] for make in OPERATIONS
    }
    wanted |= {f"{make.__name__} that failed": _failed(tally, make.__name__) for make in OPERATIONS}
    wanted |= {what: tally.seen[what] for what in SEEN}
    return [what for what, count in wanted.items() if not count]


def _failed(tally: Tally, name: str) -> int:
    return sum(tally.operations[name, told] for told in (Told.FAILED, Told.UNKNOWN, Told.CRASHED, Told.INTERRUPTED))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first history; the next ones follow it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="print every call of the first history, and run no other")
    parser.add_argument("--streaming", type=int, default=0, help="how many streaming histories to run, instead")
    parser.add_argument("--mutants", action="store_true", help="break the library on purpose, instead")
    parser.add_argument("--minutes", type=float, help="begin nothing later; at most what the other flags ask for")
    options = parser.parse_args()
    if options.mutants:
        return 1 if report_mutants(options.seed, options.processes, options.minutes) else 0
    if options.trace:
        (simulate_streaming if options.streaming else simulate)(options.seed, tell=print)
        return 0
    if options.streaming:
        return 1 if run_all_streaming(options.seed, options.streaming, options.processes, options.minutes) else 0
    # The systematic part needs about as long as 20,000 histories.
    minutes = options.minutes and options.minutes / 2
    tally, failures = run_all(options.seed, options.histories, options.processes, minutes)
    report(tally, failures)
    if tally.histories >= _LONG:
        failures += (missed := [f"never met: {what}" for what in never_met(tally)])
        for line in missed:
            print(line)
    if options.histories > 1:
        # A single history is a replay; a run of many is the whole proof, with the systematic part.
        failures += sweep_all(options.seed, options.processes, minutes)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
