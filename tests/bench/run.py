"""Benchmarks against rivals, in one run: `make bench`, or a part of it.

    .venv/bin/python tests/bench/run.py --list
    .venv/bin/python tests/bench/run.py planning --cases '100000-in-20-*' --rivals icekeep,java
    .venv/bin/python tests/bench/run.py expiration --cases append-1000,rewrites-1000 --set files=20000 --rounds 1
    .venv/bin/python tests/bench/run.py manifests --against ../before/lib --save figures.json

Each case is done in rounds. In each every rival has a process of its own, one after the other, in an order that is turned around
from round to round: it does a small table first, and then the one that counts, several times. The best run counts. All must
find or leave the same; otherwise the case has failed, and so has the run. `--against` adds icekeep as another checkout has it.

Processor time is of all processes of a rival, Spark's Python workers among them. Memory is what was resident: of all processes
the most at one glance (pages that they share count for each), and the peaks of the JVM, which is driver and executor at once, of
the Python that drives it, and of the largest other Python, which is the command's where whole commands are timed.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

from bench.runner.command_line import main  # noqa: E402 - the path comes first

if __name__ == "__main__":
    sys.exit(main())
