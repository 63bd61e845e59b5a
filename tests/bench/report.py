"""What `icekeep report` takes over many small tables: seconds, processor seconds, memory and requests of storage.

    .venv/bin/python tests/bench/report.py --tables 100 --commits 10

Each table has a file a commit, in three partitions; all are in one catalog on SQLite, in a directory that goes in the end. No
Spark is started.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

from bench.rival.watching import Watch  # noqa: E402 - the path comes first
from icekeep.reports.job import report  # noqa: E402
from icekeep.tables.verbs import append, create_table  # noqa: E402
from kit.lake import SCHEMA, Lake, events  # noqa: E402
from kit.runtime import no_spark  # noqa: E402

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
            with Watch() as watch:
                found = report(lake.catalog, no_spark)
            assert (found.status, len(found.tables)) == ("done", asked.tables)
            print(
                f"{asked.tables} tables: {watch.seconds:.2f} s, {watch.cpu_seconds:.2f} processor s, "
                f"{watch.total_bytes // 1_000_000} MB, {found.requests_count:,} requests, {found.read_bytes:,} bytes"
            )


if __name__ == "__main__":
    main()
