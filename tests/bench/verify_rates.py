"""What `--verify` costs beside the rewrite that it proves: TPC-H's lineitem in its 16 columns, in CPU seconds of one thread.

    .venv/bin/python tests/bench/verify_rates.py --table sf1-200

Three things are measured in turn, each a few times, of which the fastest counts: a bin-pack rewrite by decoding and encoding
without `--verify`; the hash of its live rows while they pass; and the new files read from storage again and hashed. The
rewrite's files go to a directory of their own and are removed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.lineitem import CACHE, lineitem_lake, parse_name
from icekeep.catalog.base import Table
from icekeep.formats.rewrite import one_thread, rewrite
from icekeep.formats.rewrite_task import FilePiece, RewriteTask
from icekeep.formats.row_hash import RowHash, RowSum
from icekeep.formats.task_rows import TaskRows
from icekeep.formats.verifying import hash_of_files, problem_of_rows
from icekeep.storage.base import Storage
from kit.written_deletes import data_files

T = TypeVar("T")

_TARGET_BYTES = 128 * 1024 * 1024


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """CPU seconds."""

    row_count: int
    rewrite_seconds: float
    hash_in_seconds: float
    verify_seconds: float

    @property
    def share(self) -> float:
        """What verifying costs beside the rewrite."""
        return (self.hash_in_seconds + self.verify_seconds) / self.rewrite_seconds

    def __str__(self) -> str:
        rate = self.row_count / self.hash_in_seconds / 1e6
        return (
            f"{self.row_count} rows: rewrite {self.rewrite_seconds:.2f} s; hash of rows that pass {self.hash_in_seconds:.2f} s"
            f" ({rate:.1f} million rows a second); new files read and hashed {self.verify_seconds:.2f} s;"
            f" verifying costs {self.share:.0%} of the rewrite"
        )


def task_for(table: Table, directory: str) -> RewriteTask:
    """A task that decodes and encodes all rows of a table, whose files go below a directory."""
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
        table_location=directory,
        properties=metadata.properties,
        target_file_size_bytes=_TARGET_BYTES,
        operation_id="rates",
        moves_pages=False,
    )


def hash_in(task: RewriteTask, storage: Storage) -> tuple[RowSum, float]:
    """The hash of a task's rows while they pass, and the CPU seconds that it alone took."""
    live = TaskRows(task, storage)
    rows, seconds = RowHash(live.columns), 0.0
    for table in live:
        began = time.process_time()
        rows.add(table)
        seconds += time.process_time() - began
    return rows.total, seconds


def measure(table: Table, rounds: int) -> Rates:
    """The rates of a table; its rows and those that were written are compared as `--verify` does."""
    one_thread()
    rewrites, hashes, verifications = [], [], []
    row_count = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="icekeep-") as directory:
            task = task_for(table, Path(directory).as_uri())
            outcome, seconds = _timed(lambda task=task: rewrite(task, table.storage))  # type: ignore[misc]
            rewrites.append(seconds)
            read, seconds = hash_in(task, table.storage)
            hashes.append(seconds)
            found, seconds = _timed(lambda o=outcome, t=task: hash_of_files(o.files, t.schema, table.storage))  # type: ignore[misc]
            verifications.append(seconds)
            if (problem := problem_of_rows([read], [found], outcome.files)) is not None:
                raise problem
            row_count = read.row_count
    return Rates(
        row_count=row_count,
        rewrite_seconds=min(rewrites),
        hash_in_seconds=min(hashes),
        verify_seconds=min(verifications),
    )


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    done = work()
    return done, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what --verify costs beside a rewrite of TPC-H's lineitem.")
    parser.add_argument("--table", type=parse_name, default="sf1-200", help="such as sf1-200 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    given = parser.parse_args()
    table = lineitem_lake(given.cache).load(given.table)
    print(f"{given.table.name}: {measure(table, given.rounds)}")


if __name__ == "__main__":
    main()
