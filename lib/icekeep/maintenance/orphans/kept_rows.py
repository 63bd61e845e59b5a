"""Rows that Spark tasks have made, kept in Parquet below `.icekeep/runs/<run>/` for as long as the run needs them.

A listing cannot be made a second time: by then there are files in it that the metadata, which was read in between, does not
name. What Spark itself keeps (`localCheckpoint`, `persist`) goes with the executor that holds it, or is made anew. These files
outlive executors, and hold none back that could be released. Tasks write and read them through our own storage, as Spark's file
systems may not know the credentials of the store. What a killed run has left `left_behind.py` removes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.catalog.base import Table
from icekeep.events import Listener
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.runs.heartbeat import beating
from icekeep.maintenance.runs.names import run_name
from icekeep.planning.spark.session import task_context
from icekeep.planning.spark.tasks import all_results, dataframe_from_tasks, run_over_partitions
from icekeep.planning.spark.workers import LISTED_FILES, attempt_id, tasks_count
from icekeep.runtime import Runtime
from icekeep.spec.collections import balanced, packed
from icekeep.spec.properties import own_directory
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GROUP_ROWS = 100_000
Look = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Mapping[str, int]]]
"""Says which rows of a batch are kept, and what is counted of it."""


class Kept(msgspec.Struct, frozen=True):
    """Rows that are kept, and what was counted while they were written."""

    parts: tuple["_Part", ...]
    schema: pa.Schema
    storage: Storage
    counts: Counter[str]

    @property
    def rows_count(self) -> int:
        """How many rows are kept."""
        return sum(part.rows_count for part in self.parts)

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """The rows in Spark, read by tasks whenever they are wanted."""
        bins_count = min(len(self.parts), tasks_count(spark, self.rows_count, LISTED_FILES))
        bins = balanced(self.parts, lambda part: part.rows_count, bins_count)
        return dataframe_from_tasks(spark, bins, partial(_read, self.storage), self.schema)

    def table(self) -> pa.Table:
        """The rows in this process."""
        return pa.Table.from_batches([*_read(self.storage, self.parts)], self.schema)


class _Part(msgspec.Struct, frozen=True):
    location: str
    rows_count: int
    counts: Counter[str]


class _Writing(msgspec.Struct, frozen=True):
    prefix: str
    schema: pa.Schema
    storage: Storage
    look: Look | None


class RowKeeper:
    """Keeps rows for one run; until it is asked to, it writes nothing."""

    def __init__(self, table: Table, runtime: Runtime, listener: Listener) -> None:
        self._table, self._runtime, self._listener = table, runtime, listener
        self._run = ExitStack()
        self._directory = ""

    @property
    def directory_name(self) -> str:
        """What is in the name of each file that is kept, and of no other."""
        directory = self._directory or self._begun()
        return f"/{directory.rpartition('/')[2]}/"

    def keep(self, rows: "DataFrame", schema: pa.Schema, name: str, step: str, look: Look | None = None) -> Kept:
        """Have rows made, once, and keep them.

        Args:
            name: of the files.
            step: what Spark's pages say that the tasks do.
            look: a function of a module.

        Raises:
            IcekeepError: a task failed.
        """
        storage = self._table.storage
        prefix = f"{self._directory or self._begun()}/{name}"
        parts = all_results(run_over_partitions(rows, _write, _Writing(prefix, schema, storage, look), step=step))
        counts = sum((part.counts for part in parts), Counter[str]())
        return Kept(tuple(part for part in parts if part.rows_count), schema, storage, counts)

    def close(self) -> None:
        """Remove what was kept, and what attempts have left that died."""
        with self._run:
            if self._directory:
                storage = self._table.storage
                # What cannot be removed now ages, and a later run sweeps it.
                with suppress(Exception):
                    storage.delete_many([file.location for file in storage.list(self._directory)])

    def _begun(self) -> str:
        run_id = run_name(self._table)
        self._run.enter_context(beating(self._table, run_id, JOB.name, self._runtime, self._listener))
        self._directory = own_directory(self._table.metadata, f"runs/{run_id}")
        return self._directory


@contextmanager
def keeping_rows(table: Table, runtime: Runtime, listener: Listener) -> Iterator[RowKeeper]:
    """What keeps rows while the block lasts."""
    keeper = RowKeeper(table, runtime, listener)
    try:
        yield keeper
    finally:
        keeper.close()


def _write(batches: Iterable[pa.RecordBatch], writing: _Writing) -> _Part:
    """Write the rows of one partition; each attempt names its file by itself, and that of the one that won is told."""
    context = task_context()
    number = 0 if context is None else context.partitionId()
    location = f"{writing.prefix}-{number:05d}-{attempt_id()}.parquet"
    counts: Counter[str] = Counter()
    rows_count = 0
    with ExitStack() as stack:
        file: pq.ParquetWriter | None = None
        for group in _groups(_looked_at(batches, writing, counts)):
            if file is None:
                stream = stack.enter_context(writing.storage.write(location))
                file = stack.enter_context(pq.ParquetWriter(stream, writing.schema, compression="zstd"))
            file.write_table(group)
            rows_count += group.num_rows
    return _Part(location, rows_count, counts)


def _looked_at(batches: Iterable[pa.RecordBatch], writing: _Writing, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        kept, counted = (batch, {}) if writing.look is None else writing.look(batch)
        counts.update(counted)
        if kept.num_rows:
            # Nullability is that of the schema here, not as Spark has worked it out.
            yield pa.record_batch(kept.columns, schema=writing.schema)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows in tables of some size: a row group each."""
    return map(pa.Table.from_batches, packed(batches, (lambda batch: batch.num_rows, _GROUP_ROWS)))


def _read(storage: Storage, parts: Sequence[_Part]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with storage.open(part.location) as stream, pq.ParquetFile(stream) as file:
            yield from file.iter_batches()
