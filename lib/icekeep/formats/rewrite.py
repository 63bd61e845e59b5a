"""What an executor does to compact a file group: old data files in, new ones out, with the rows that are live.

A task is a value that can be pickled; the driver makes it, a Spark task (or the driver itself) runs it with `rewrite`.
Nothing here commits: until the files that come back are committed, they belong to nobody. Where one task reads rows and
another writes them, they use the two halves of it: `TaskRows` and `write_rows`.
"""

from collections.abc import Iterable, Iterator
from tempfile import TemporaryDirectory

import pyarrow as pa

from icekeep.errors import IcekeepBug
from icekeep.formats.memory import TaskMemory, peak_memory_bytes, task_memory_bytes
from icekeep.formats.ordering import KeyRange
from icekeep.formats.rewrite_task import RewriteOutcome, RewriteTask
from icekeep.formats.sorting import Sorter
from icekeep.formats.splicing import rewrite_spliced
from icekeep.formats.task_rows import TaskRows
from icekeep.formats.task_writer import TaskWriter
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage


def rewrite(task: RewriteTask, storage: Storage) -> RewriteOutcome:
    """Stream the live rows of all pieces into new files; if anything fails, none of these is left.

    Rows keep their order, or get that of the task. The process is set to one thread of Arrow each for computing and
    reading: the slot of a task is the unit of parallelism.

    Raises:
        MissingFileError: a file of the table is not there.
        InvalidTableError: a file is damaged, does not fit the schema, or has not the rows that its manifest says.
        UnsupportedError: a file needs a feature of the format that we do not handle or more memory than there is, or code
            of another engine says where the table's data files go.
        UsageError: a table property of the writer is wrong.
    """
    one_thread()
    spliced = rewrite_spliced(task, storage)
    if spliced is not None:
        return spliced
    rows = TaskRows(task, storage)
    files = write_rows(task, rows.columns, rows, storage)
    return RewriteOutcome(
        files=files, read_count=rows.read_count, live_count=rows.live_count, peak_bytes=peak_memory_bytes()
    )


def write_rows(task: RewriteTask, columns: Schema, rows: Iterable[pa.Table], storage: Storage) -> tuple[DataFile, ...]:
    """Write rows of a task, ordered and of its key range as it says, into new files, of which none is left on failure.

    Args:
        columns: of the rows, as `columns_to_write` gives them.
        rows: live rows, as `TaskRows` gives them.
    """
    with TaskWriter(task, columns, storage) as writer:
        taken_count = _write_ordered(task, columns, rows, writer) if _is_ordered(task) else _write_through(rows, writer)
        files = writer.close()
        written_count = sum(file.record_count for file in files)
        if written_count != taken_count:
            raise IcekeepBug(f"a rewrite took {taken_count} rows and wrote {written_count}; its files are deleted")
    return files


def one_thread() -> None:
    """Let Arrow compute and read with one thread each in this process."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _is_ordered(task: RewriteTask) -> bool:
    ordering = task.ordering
    if ordering is None:
        return False
    # All rows that lie in one partition without an order lie right already.
    return bool(ordering.fields or ordering.curve or (ordering.partition_by and ordering.partition_by.fields))


def _write_through(rows: Iterable[pa.Table], writer: TaskWriter) -> int:
    """Write rows as they come; returns how many."""
    taken_count = 0
    for table in rows:
        taken_count += table.num_rows
        writer.write(table)
    return taken_count


def _write_ordered(task: RewriteTask, columns: Schema, rows: Iterable[pa.Table], writer: TaskWriter) -> int:
    """Write the rows of the task's key range in its order; returns how many."""
    assert task.ordering is not None
    budget_bytes = min(task.budget_bytes, TaskMemory(task_memory_bytes(task.slots)).row_group_bytes)
    with (
        TemporaryDirectory(prefix="icekeep-") as directory,
        Sorter(task.ordering, columns, budget_bytes, directory, task.key_range or KeyRange()) as sorter,
    ):
        for table in rows:
            sorter.add(table)
        file_rows = None if task.files_count is None else max(1, -(-sorter.row_count // task.files_count))
        for table, ends in _dealt(sorter.sorted_rows(), file_rows):
            writer.write(table)
            if ends:
                writer.end_file()
        return sorter.row_count


def _dealt(tables: Iterator[pa.Table], file_rows: int | None) -> Iterator[tuple[pa.Table, bool]]:
    """Tables cut where a file shall end, and whether it ends there."""
    free = file_rows or 0
    for table in tables:
        if file_rows is None:
            yield table, False
            continue
        start = 0
        while start < table.num_rows:
            piece = table.slice(start, free)
            start += piece.num_rows
            free -= piece.num_rows
            yield piece, free == 0
            free = free or file_rows
