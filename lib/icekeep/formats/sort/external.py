"""External sort: rows in the order of an `Ordering`, in bounded memory.

Runs of rows that are small enough for the processor's cache are sorted, and merged. What exceeds the budget is spilled to sorted
files (Arrow IPC), which DataFusion merges: it holds a batch of each.
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from icekeep.formats.arrow.projection import described_as, plain_type
from icekeep.formats.sort.encode import KeyRange, Ordering
from icekeep.formats.sort.keys import key_order, keys_inside, sort_keys
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB

_BATCH_ROWS, _BATCH_BYTES = 8_192, MIB
"""What is in memory of a file at a time."""


def write_sorted_file(path: Path, tables: Iterator[pa.Table]) -> None:
    """Write tables in the order of their last column, with the same dictionaries in all of them."""
    first = next(tables)
    # Names that need no quotes in SQL, and no types that only pyarrow has.
    schema = pa.schema([pa.field(f"c{number}", plain_type(field.type)) for number, field in enumerate(first.schema)])
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for table in chain([first], tables):
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
            for batch in table.to_batches(max_chunksize=rows):
                writer.write_batch(described_as(batch, schema))


def merged_files(directory: Path, files_count: int, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of sorted files, which are alone in a directory, in order and a batch at a time; `schema` has the key last."""
    # It takes 0.3 s to import, and what fits in memory does not need it.
    from datafusion import SessionConfig, SessionContext

    # As many partitions as files, each in order: then a merge is enough.
    config = SessionConfig().with_target_partitions(files_count).with_batch_size(_BATCH_ROWS)
    context = SessionContext(config)
    location, key = str(directory).replace("'", "''"), f"c{len(schema) - 1}"
    context.sql(f"CREATE EXTERNAL TABLE sorted STORED AS ARROW WITH ORDER ({key}) LOCATION '{location}/'").collect()
    for batch in context.sql(f"SELECT * FROM sorted ORDER BY {key}").execute_stream():
        yield pa.Table.from_batches([described_as(batch.to_pyarrow(), schema)])


RUN_ROWS, RUN_BYTES = 131_072, 32 * MIB
"""The limits of a run, and of a table that comes out."""

_FEW = 0.4
"""Rows outside the key range are dropped when a run is sorted, or before where less than this share of a table is inside."""

_PIECES_A_RUN = 2
"""Pieces of a run; each is released as soon as its rows have come out."""

_ORDER_BYTES = 40
"""Memory per row that sorting takes beside the row, its key and a copy of the key."""


class Sorter:
    """Takes rows in any order and returns them sorted; the order of rows with equal keys is undefined.

    A context manager: what it spilled is removed at the end of the block. It holds about `budget_bytes` in memory, however many
    rows there are. Several threads may add rows.

    Attributes:
        row_count: rows inside the key range.
        spilled_count: sorted files on disk.
    """

    def __init__(
        self,
        ordering: Ordering,
        schema: Schema,
        budget_bytes: int,
        directory: str,
        key_range: KeyRange = KeyRange(),  # noqa: B008 - a frozen value
    ) -> None:
        """Rows have the columns of `schema`; those with keys outside `key_range` are dropped.

        `directory` exists, is on a local disk, and belongs to the task.
        """
        self.row_count = self.spilled_count = 0
        self._ordering, self._schema, self._key_range = ordering, schema, key_range
        self._budget_bytes, self._directory = budget_bytes, directory
        self._lock = Lock()
        self._run_schema: pa.Schema | None = None
        self._run_bytes = min(RUN_BYTES, budget_bytes // 4)
        self._waiting, self._held_bytes = WaitingRows(self._run_bytes), 0
        self._runs: list[pa.Table] = []
        self._spilled: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting, self._runs = WaitingRows(self._run_bytes), []
        if self._spilled is not None:
            self._spilled.cleanup()

    def add(self, rows: pa.Table, keys: pa.Array | None = None) -> None:
        """Take rows, and their `sort_keys` if the caller has them already."""
        if not rows.num_rows:
            return
        if keys is None:
            keys = sort_keys(rows, self._ordering, self._schema)
        inside = keys_inside(keys, self._key_range)
        taken_count = rows.num_rows if inside is None else inside.true_count
        if inside is not None and taken_count < _FEW * rows.num_rows:
            rows, keys = rows.filter(inside), keys.filter(inside)
        rows = rows.append_column("key", keys)
        with self._lock:
            self.row_count += taken_count
            if self._run_schema is None:
                self._run_schema = rows.schema
        if not rows.schema.equals(self._run_schema, check_metadata=True):
            # The first table decides which string columns are dictionaries.
            rows = rows.cast(self._run_schema)
        step = self._piece_rows(rows)
        for start in range(0, rows.num_rows, step):
            piece = rows.slice(start, step)
            with self._lock:
                full = self._waiting.add(piece)
            self._keep(full)

    def sorted_rows(self) -> Iterator[pa.Table]:
        """All rows in order, in tables of at most `RUN_ROWS` rows and about `RUN_BYTES`; to be called once."""
        self._keep(self._waiting.take())
        if self._spilled is None:
            yield from self._merged_runs(with_keys=False)
            return
        assert self._run_schema is not None
        if self._runs:
            self._spill()
        waiting = WaitingRows(self._run_bytes)
        for rows in merged_files(Path(self._spilled.name), self.spilled_count, self._run_schema):
            if full := waiting.add(rows):
                yield _without_keys(in_one(full))
        yield _without_keys(in_one(waiting.take()))

    def _keep(self, tables: list[pa.Table]) -> None:
        """Sort rows and keep them as a run; the slow part is done without the lock."""
        if not tables:
            return
        rows = in_one(tables)
        keys = pa.concat_arrays(rows.column(-1).chunks)
        inside = keys_inside(keys, self._key_range)
        if inside is None:
            order = key_order(keys)
        else:
            positions = np.flatnonzero(inside.to_numpy(zero_copy_only=False))
            order = positions[key_order(keys.filter(inside))]
        if not len(order):
            return
        step = -(-len(order) // _PIECES_A_RUN)
        # `take` accepts several chunks; to combine them first would copy all rows once more.
        run = [rows.take(pa.array(order[start : start + step])) for start in range(0, len(order), step)]
        size_bytes = sum(piece.nbytes + piece.column(-1).nbytes for piece in run) + _ORDER_BYTES * len(order)
        with self._lock:
            if self._runs and self._held_bytes + size_bytes > self._budget_bytes:
                self._spill()
            self._runs += run
            self._held_bytes += size_bytes

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = TemporaryDirectory(prefix="sorted-", dir=self._directory)
        write_sorted_file(Path(self._spilled.name) / f"{self.spilled_count:05d}.arrow", self._merged_runs())
        self.spilled_count += 1
        self._runs, self._held_bytes = [], 0

    def _merged_runs(self, *, with_keys: bool = True) -> Iterator[pa.Table]:
        """The rows of all runs in order; what has come out is no longer held."""
        if not self._runs:
            return
        rows = in_one(self._runs)
        starts = np.cumsum([0, *(piece.num_rows for piece in self._runs)])
        self._runs = []
        step, keys = self._piece_rows(rows), [pa.concat_arrays(rows.column(-1).chunks)]
        if not with_keys:
            rows = _without_keys(rows)
        # Popped, so that no reference holds the keys while the order takes memory.
        order = key_order(keys.pop())
        left = {number: rows.slice(at, end - at) for number, (at, end) in enumerate(pairwise(starts.tolist()))}
        del rows
        done = starts[:-1].copy()
        for start in range(0, len(order), step):
            positions = order[start : start + step]
            numbers = np.searchsorted(starts, positions, side="right") - 1
            counts = np.bincount(numbers, minlength=len(done))
            # The order is stable: the rows of a piece are consecutive in it, after those that were taken before.
            given = np.flatnonzero(counts).tolist()
            slices = [left[number].slice(int(done[number] - starts[number]), int(counts[number])) for number in given]
            local = positions + (np.cumsum(counts) - counts - done)[numbers]
            done += counts
            for number in given:
                if done[number] == starts[number + 1]:
                    del left[number]
            taken = pa.concat_tables(slices).take(pa.array(local))
            del slices
            yield taken

    def _piece_rows(self, rows: pa.Table) -> int:
        return max(1, min(RUN_ROWS, self._run_bytes * rows.num_rows // max(rows.nbytes, 1)))


class WaitingRows:
    """Tables that wait until they make a run: `RUN_ROWS` rows, or a number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._tables: list[pa.Table] = []
        self.row_count = self._bytes = 0

    def add(self, rows: pa.Table) -> list[pa.Table]:
        """Add a table; returns those that had to leave, because there was no room for it."""
        fits = self.row_count + rows.num_rows <= RUN_ROWS and self._bytes + rows.nbytes <= self._limit_bytes
        full = [] if fits else self.take()
        self._tables.append(rows)
        self.row_count += rows.num_rows
        self._bytes += rows.nbytes
        return full

    def take(self) -> list[pa.Table]:
        tables = self._tables
        self._tables, self.row_count, self._bytes = [], 0, 0
        return tables


def in_one(tables: list[pa.Table]) -> pa.Table:
    """Tables of one schema concatenated, with one dictionary for each column."""
    return pa.concat_tables(tables).unify_dictionaries()


def _without_keys(rows: pa.Table) -> pa.Table:
    return rows.remove_column(rows.num_columns - 1)
