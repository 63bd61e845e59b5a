"""What `icekeep report` takes over many small tables: seconds, processor seconds, memory and requests of storage.

    .venv/bin/python tests/bench/report.py --tables 100 --commits 10

Each table has a file a commit, in three partitions; all are in one catalog on SQLite, in a directory that goes in the end. No
Spark is started.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

from icekeep.reports.job import report  # noqa: E402 - the path comes first
from icekeep.tables.append import append  # noqa: E402
from icekeep.tables.create import create_table  # noqa: E402
from kit.lake import SCHEMA, Lake, events  # noqa: E402
from kit.no_spark import no_spark  # noqa: E402

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--commits", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        lake = Lake(Path(directory))
        for number in range(asked.tables):
            table = create_table(lake.catalog, ("db", f"t{number}"), SCHEMA, partition_by=[("at", "month")])
            for commit in range(asked.commits):
                table = append(table, [events(commit, 5, 1 + commit % 3)])
        for _ in range(ROUNDS):
            began, used = time.perf_counter(), time.process_time()
            found = report(lake.catalog, no_spark)
            took, cpu = time.perf_counter() - began, time.process_time() - used
            assert (found.status, len(found.tables)) == ("done", asked.tables)
            memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
            print(
                f"{asked.tables} tables: {took:.2f} s, {cpu:.2f} processor s, {memory_mb} MB, "
                f"{found.requests_count:,} requests, {found.read_bytes:,} bytes"
            )


if __name__ == "__main__":
    main()
