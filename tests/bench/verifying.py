"""What `--verify` costs beside the rewrite that it proves: TPC-H's lineitem in its 16 columns, in CPU seconds of one thread.

    .venv/bin/python tests/bench/verifying.py --table sf1-200

The same task is done with and without, in turn, each a few times, of which the fastest counts: once all rows keep their order
and are decoded and encoded, and once they are sorted. The files go to a directory of their own and are removed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.lineitem import CACHE, lineitem_lake, parse_name
from icekeep.catalog.base import Table
from icekeep.formats.rewrite.run import rewrite
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.rewrite.verify import problem_of_rows
from icekeep.formats.sort.ordering import Ordering
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from kit.written_deletes import data_files

_TARGET_BYTES = 128 * 1024 * 1024
_MEMORY_BYTES = 1024 * 1024 * 1024
_SHIP_DATE = 11


def task_for(table: Table) -> RewriteTask:
    """A task that decodes and encodes all rows of a table."""
    metadata = table.metadata
    return RewriteTask(
        pieces=tuple(
            FilePiece(
                location=file.file_path,
                record_count=file.record_count,
                size_bytes=file.file_size_in_bytes,
                partition=file.partition,
            )
            for file in data_files(table)
        ),
        schema=metadata.schema,
        specs={spec.spec_id: spec for spec in metadata.partition_specs},
        spec_id=metadata.default_spec_id,
        table_location="",
        properties=metadata.properties,
        target_file_size_bytes=_TARGET_BYTES,
        budget_bytes=_MEMORY_BYTES,
        operation_id="rates",
        moves_pages=False,
    )


def seconds(task: RewriteTask, table: Table) -> float:
    """CPU seconds of a task; where it verifies, what it found must be what went in."""
    with tempfile.TemporaryDirectory(prefix="icekeep-") as directory:
        began = time.process_time()
        outcome = rewrite(replace(task, table_location=Path(directory).as_uri()), table.storage)
        taken = time.process_time() - began
    if task.verifies:
        assert outcome.hash_in is not None
        assert outcome.hash_out is not None
        if problem := problem_of_rows([outcome.hash_in], [outcome.hash_out], outcome.files):
            raise problem
    return taken


def measure(name: str, task: RewriteTask, table: Table, rounds: int) -> str:
    """A line of what verifying a task costs."""
    pairs = [(seconds(task, table), seconds(replace(task, verifies=True), table)) for _ in range(rounds)]
    without, with_it = (min(some) for some in zip(*pairs, strict=True))
    return f"{name:<10} {without:5.2f} s, with --verify {with_it:5.2f} s: {with_it / without - 1:.0%} more"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what --verify costs beside a rewrite of TPC-H's lineitem.")
    parser.add_argument("--table", type=parse_name, default="sf1-200", help="such as sf1-200 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    given = parser.parse_args()
    table = lineitem_lake(given.cache).load(given.table)
    task = task_for(table)
    by_date = Ordering(fields=(SortField(source_id=_SHIP_DATE, transform=Identity()),))
    print(f"{given.table.name}, CPU seconds of one task")
    print(measure("binpack", task, table, given.rounds))
    print(measure("sort", replace(task, ordering=by_date), table, given.rounds))


if __name__ == "__main__":
    main()
