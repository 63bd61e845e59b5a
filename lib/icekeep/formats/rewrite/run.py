"""The executor's part of compacting a file group: old data files in, new ones with their live rows out.

A Spark task, or the driver itself, runs a pickled `RewriteTask` with `rewrite`. Nothing is committed here. If one task reads rows
and another writes them, they use the two halves, `TaskRows` and `write_rows`. Tasks for ranges of keys of the same rows can be
run by one process, which reads these once: `rewrite_together`. Ranges are cut from the keys of `sample_task`.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import IcekeepBug
from icekeep.formats.machine import TaskMemory, peak_memory_bytes, task_memory_bytes
from icekeep.formats.reader import read_file
from icekeep.formats.rewrite.copy_pages import rewrite_by_pages
from icekeep.formats.rewrite.proof import hash_of_written
from icekeep.formats.rewrite.task import (
    FilePiece,
    RewriteOutcome,
    RewriteTask,
    TaskRows,
    TaskWriter,
    WrittenRows,
    columns_to_write,
    numbered,
    removed_on_failure,
    reported_moves,
    source_of,
)
from icekeep.formats.row_hash import RowSequence, RowSum
from icekeep.formats.sort.encode import KeyRange
from icekeep.formats.sort.external import RUN_BYTES, Sorter, WaitingRows, in_one
from icekeep.formats.sort.keys import KeySample, sample_keys, sort_keys
from icekeep.spec.schema import Schema, name_mapping_of
from icekeep.storage.base import Storage


def rewrite(task: RewriteTask, storage: Storage) -> RewriteOutcome:
    """Stream the live rows of all pieces into new files, in their order or that of the task; on failure no file is left."""
    task = numbered(task)
    by_pages = rewrite_by_pages(task, storage)
    if by_pages is not None:
        return by_pages
    rows = TaskRows(task, storage, in_order=task.ordering is None)
    if task.is_ordered or task.files_count in (None, 1):
        written = write_rows(task, rows.columns, rows.read(), storage)
    else:
        with TaskWriter(task, rows.columns, storage) as writer:
            written = _write_to(writer, _dealt(rows, task.files_count, task.pieces))
    order = rows.hashed if isinstance(rows.hashed, RowSequence) else None
    return _outcome(task, written, [rows], storage, order)


def rewrite_together(tasks: Sequence[RewriteTask], storage: Storage) -> RewriteOutcome:
    """`rewrite` for tasks that differ only in their key ranges, each by a thread; every piece is read once."""
    tasks = [*map(numbered, tasks)]
    first, pieces = tasks[0], iter(tasks[0].pieces)
    columns = columns_to_write(first)
    with ExitStack() as stack, ThreadPoolExecutor(len(tasks)) as pool:
        sortings = [stack.enter_context(_sorting(task, columns, storage)) for task in tasks]
        # Each thread starts with another range, so that they do not wait for each other.
        turns = [sortings[number:] + sortings[:number] for number in range(len(sortings))]
        read = [*pool.map(partial(_read_into, task=first, pieces=pieces, columns=columns, storage=storage), turns)]
        parts = [*pool.map(_write_sorted, tasks, sortings)]
    origins = tuple(location for part in parts for location in part.origins or ()) if first.has_origins else None
    return _outcome(first, WrittenRows(tuple(file for part in parts for file in part.files), origins), read, storage)


def _outcome(
    task: RewriteTask,
    written: WrittenRows,
    read: Sequence[TaskRows],
    storage: Storage,
    order: RowSequence | None = None,
) -> RewriteOutcome:
    """The outcome of a task, with its new files read again if it verifies; on failure they are deleted."""
    with removed_on_failure([*(file.file_path for file in written.files), *(written.origins or ())], storage):
        pieces = [piece for rows in read for piece in rows.pieces]
        moves = reported_moves(task, storage, pieces, written.origins)
        hash_out = hash_of_written(task, written.files, storage, order)
    return RewriteOutcome(
        files=written.files,
        read_count=sum(rows.read_count for rows in read),
        live_count=sum(rows.live_count for rows in read),
        moves=moves,
        proven=frozenset().union(*(rows.proven for rows in read)),
        hash_in=sum((rows.hash for rows in read if rows.hash is not None), RowSum()) if task.verifies else None,
        hash_out=hash_out,
        peak_bytes=peak_memory_bytes(),
    )


def write_rows(task: RewriteTask, columns: Schema, rows: Iterable[pa.Table], storage: Storage) -> WrittenRows:
    """Write live rows from `TaskRows` into new files, in the order and the key range of the task; on failure no file is left.

    `columns` are `columns_to_write`, without origins.
    """
    if not task.is_ordered:
        with TaskWriter(task, columns, storage) as writer:
            return _write_to(writer, ((table, False) for table in rows))
    with _sorting(task, columns, storage) as sorting:
        for table in rows:
            sorting.sorter.add(table)
        return _write_sorted(task, sorting)


def _write_to(writer: TaskWriter, tables: Iterable[tuple[pa.Table, bool]], row_count: int | None = None) -> WrittenRows:
    """Write tables, each with whether a file ends after it; `row_count` is their expected sum, if it is known."""
    given_count = 0
    for table, ends in tables:
        given_count += table.num_rows
        writer.write(table)
        if ends:
            writer.end_file()
    written = writer.close()
    taken_count = given_count if row_count is None else row_count
    written_count = sum(file.record_count for file in written.files)
    if written_count != taken_count:
        raise IcekeepBug(f"a rewrite took {taken_count} rows and wrote {written_count}; its files are deleted")
    return written


class _Sorting(msgspec.Struct, frozen=True):
    """The sorter of a task's key range, to which several threads may add rows, and the writer of its files."""

    writer: TaskWriter
    sorter: Sorter


@contextmanager
def _sorting(task: RewriteTask, columns: Schema, storage: Storage) -> Iterator[_Sorting]:
    """On failure no file of the task is left."""
    assert task.ordering is not None
    budget_bytes = min(task.budget_bytes, TaskMemory(task_memory_bytes(task.slots)).row_group_bytes)
    with (
        TaskWriter(task, columns, storage) as writer,
        TemporaryDirectory(prefix="icekeep-") as directory,
        Sorter(task.ordering, columns, budget_bytes, directory, task.key_range or KeyRange()) as sorter,
    ):
        yield _Sorting(writer, sorter)


def _write_sorted(task: RewriteTask, sorting: _Sorting) -> WrittenRows:
    row_count = sorting.sorter.row_count
    tables = _cut_into_files(sorting.sorter.sorted_rows(), row_count, task.files_count or 1)
    return _write_to(sorting.writer, tables, row_count)


def _dealt(rows: TaskRows, files_count: int, pieces: Sequence[FilePiece]) -> Iterator[tuple[pa.Table, bool]]:
    """The rows in tables, each with whether a file ends after it, such that all files have about as many live rows.

    Live rows are estimated from the pieces, as if deletes were spread evenly: a file ends when its share should have been read,
    however many rows that gave.
    """
    read_counts = [piece.record_count if piece.part_rows is None else piece.part_rows for piece in pieces]
    live_counts = [count - piece.deleted_count for count, piece in zip(read_counts, pieces, strict=True)]
    read_upto, live_upto = ([0, *accumulate(counts)] for counts in (read_counts, live_counts))
    total = live_upto[-1]
    number = 0
    before = 0.0
    for table in rows.read():
        start = 0
        after = float(np.interp(rows.read_count, read_upto, live_upto))
        while number + 1 < files_count and (end := total * (number + 1) / files_count) <= after:
            stop = int(table.num_rows * (end - before) / (after - before)) if after > before else 0
            yield table.slice(start, max(0, stop - start)), True
            start, number = max(start, stop), number + 1
        if start < table.num_rows:
            yield table.slice(start), False
        before = after


def _read_into(
    sortings: Sequence[_Sorting],
    task: RewriteTask,
    pieces: Iterator[FilePiece],
    columns: Schema,
    storage: Storage,
) -> TaskRows:
    """Read the pieces that no other thread takes, and add their rows to all ranges."""
    assert task.ordering is not None
    rows = TaskRows(task, storage)
    try:
        for table in _gathered(rows.read(pieces)):
            keys = sort_keys(table, task.ordering, columns)
            for sorting in sortings:
                sorting.sorter.add(table, keys)
    except BaseException:
        # Leave the other threads nothing to read.
        for _ in pieces:
            continue
        raise
    return rows


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of about the size of a run, whose dictionaries are unified here, once for all ranges."""
    waiting = WaitingRows(RUN_BYTES)
    schema = None
    for table in tables:
        full: list[pa.Table] = (
            [] if schema is None or table.schema.equals(schema, check_metadata=True) else waiting.take()
        )
        full = waiting.add(table) or full
        if full:
            yield in_one(full)
        schema = table.schema
    if waiting.row_count:
        yield in_one(waiting.take())


def _cut_into_files(tables: Iterator[pa.Table], row_count: int, files_count: int) -> Iterator[tuple[pa.Table, bool]]:
    """Tables of `row_count` rows in all, cut into even files, each table with whether a file ends after it."""
    number = before = 0
    for table in tables:
        start = 0
        while number + 1 < files_count and (end := row_count * (number + 1) // files_count) <= before + table.num_rows:
            yield table.slice(start, end - before - start), True
            start, number = end - before, number + 1
        if start < table.num_rows:
            yield table.slice(start), False
        before += table.num_rows


def sample_task(task: RewriteTask, storage: Storage) -> KeySample:
    """Sample the keys of a task's ordering in its pieces; deleted rows are included. Raises as `read_file`."""
    ordering = task.ordering
    assert ordering is not None
    ids = {field.source_id for field in ordering.fields}
    ids.update(() if ordering.curve is None else ordering.curve.column_ids)
    ids.update(() if ordering.partition_by is None else (field.source_id for field in ordering.partition_by.fields))
    tops = set()
    for id_ in ids:
        while (parent := task.schema.parents_by_id.get(id_)) is not None:
            id_ = parent.field_id
        tops.add(id_)
    fields = tuple(field for field in task.schema.fields if field.field_id in tops)
    columns = msgspec.structs.replace(task.schema, fields=fields)
    name_mapping = name_mapping_of(task.properties)
    sources = (source_of(piece, task, name_mapping) for piece in task.pieces)
    tables = (table for source in sources for table in read_file(storage, source, columns))
    return sample_keys(tables, ordering, columns)
