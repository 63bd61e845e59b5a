"""Proof that a rewrite changed no row: what went in against what stands in the new files.

New files are read from storage again, by nothing that wrote them or read the old ones: not the projection that rows passed on
their way in, not the metrics, not what the writer remembers. Of all that, only the thin readers of the three formats are used,
which hand out a file's own columns; these are found by the field ids that the file itself carries, and hashed in the
schema's types. A fault of the writer, of the encoding, of memory or of storage thus shows; one that the format's library makes in
the same way whenever it reads does not. Nor does a fault on the way in: rows are hashed as they come out of the projection and
the deletes, so a column that was taken for another of its type, or a row that no delete removes and that was left out, is not
among what went in.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError, and_more
from icekeep.formats.arrow.schema import FIELD_ID_KEY, field_id
from icekeep.formats.base import FileReader
from icekeep.formats.machine import TaskMemory, task_memory_bytes
from icekeep.formats.parquet.reader import repeating_strings
from icekeep.formats.reader import open_reader
from icekeep.formats.rewrite.rows import columns_to_write
from icekeep.formats.rewrite.task import RewriteTask
from icekeep.formats.row_hash import CHUNK_ROWS, RowHash, RowSequence, RowSum
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage
from icekeep.storage.locations import parse_location

_MAX_NAMED = 3

_BATCH_ROWS = 16 * CHUNK_ROWS
"""Rows of local files that are decoded at one time: they are still in the processor's cache when they are hashed. From far
away whole row groups are read, in as few requests."""

_ORDERED_BATCH_ROWS = 2 * CHUNK_ROWS
"""The same where rows are hashed as they lie in memory, which takes more of the cache."""

_NOTHING = pa.field("", pa.null(), metadata={FIELD_ID_KEY: b"0"})


def hash_of_files(
    files: Sequence[DataFile],
    columns: Schema,
    storage: Storage,
    *,
    slots: int = 1,
    is_local: bool = False,
    order: RowSequence | None = None,
) -> RowSum:
    """The rows of new files as they stand in storage, one row group, stripe or batch at a time.

    Args:
        files: in the order of their rows where that matters.
        columns: as `columns_to_write` gives them.
        slots, is_local: as those of a `RewriteTask`.
        order: the rows that went in, with which the total is to be compared; `None` where that is a `RowHash`.

    Raises:
        IcekeepBug: a file is not there, is damaged, or has not the columns or as many rows as it should.
        UnsupportedError: a row group needs more memory than there is.
    """
    rows = RowHash(columns) if order is None else order.again()
    for file in files:
        before = rows.row_count
        with of_new_file(file), open_reader(storage, file.file_path, file.file_format) as reader:
            kept: Collection[int] = ()
            if file.file_format.upper() == "PARQUET":
                kept = repeating_strings(storage, file.file_path) if order is None else order.coded_ids
            add_rows(rows, reader, kept, _batch_rows(reader, file, slots, is_local, in_order=order is not None))
        row_count = rows.row_count - before
        if row_count != file.record_count:
            raise not_as_written(f"{row_count} rows where {file.record_count} were written", [file])
    return rows.total


def hash_of_written(
    task: RewriteTask, files: Sequence[DataFile], storage: Storage, order: RowSequence | None = None
) -> RowSum | None:
    """`hash_of_files` for a task's new files, `None` for a task that verifies nothing."""
    if not task.verifies:
        return None
    return hash_of_files(files, columns_to_write(task), storage, slots=task.slots, is_local=task.is_local, order=order)


def problem_of_rows(read: Sequence[RowSum], written: Sequence[RowSum], files: Sequence[DataFile]) -> IcekeepBug | None:
    """Why the rows of new files are not those that went in, if they are not.

    The files must be kept then, and nothing committed; `kept_files` of the error's facts are their locations.

    Args:
        read: the live rows that went into the tasks of a group.
        written: what `hash_of_written` found in the new files.
    """
    rows_in, rows_out = sum(read, RowSum()), sum(written, RowSum())
    if rows_in.row_count != rows_out.row_count:
        return not_as_written(f"{rows_out.row_count} rows where {rows_in.row_count} live ones went in", files)
    if rows_in != rows_out:
        return not_as_written(f"{rows_out.row_count} rows, as many as went in, with other values", files)
    return None


def not_as_written(what: str, files: Sequence[DataFile]) -> IcekeepBug:
    """The error of new files that hold something else than went in; they are kept (`kept_files` of its facts)."""
    locations = [file.file_path for file in files]
    named = ", ".join(repr(location) for location in locations[:_MAX_NAMED])
    return IcekeepBug(
        f"a rewrite was to keep every row, and its new files hold {what}; nothing was committed, the old files are as they were"
        f" and the new ones are kept as evidence: {named or 'there are none'}{and_more(locations, _MAX_NAMED)}",
        kept_files=locations,
    )


@contextmanager
def of_new_file(file: DataFile) -> Iterator[None]:
    """What is wrong with a new file is a fault of ours: raises `IcekeepBug`, and the file is kept."""
    try:
        yield
    except (InvalidTableError, UnsupportedError) as error:
        if isinstance(error, UnsupportedError) and "reason" not in error.facts:
            # It needs more memory than there is, which is no fault of the file.
            raise
        raise not_as_written(f"what cannot be read as it was written, {error.message}", [file]) from error


def _batch_rows(reader: FileReader, file: DataFile, slots: int, is_local: bool, *, in_order: bool) -> int | None:
    """How many rows of a new file to read at one time; raises `UnsupportedError` where a row group needs too much memory."""
    rows = TaskMemory(task_memory_bytes(slots), is_local).batch_rows(reader.largest_part())
    if parse_location(file.file_path).scheme != "file":
        return rows
    most = _ORDERED_BATCH_ROWS if in_order else _BATCH_ROWS
    return min(most, rows or most)


def rows_at_once(reader: FileReader, file: DataFile, task: RewriteTask) -> int | None:
    """How many rows of a task's new file to read at one time where their order counts; raises as `hash_of_files`."""
    return _batch_rows(reader, file, task.slots, task.is_local, in_order=True)


def add_rows(
    rows: RowHash | RowSequence,
    reader: FileReader,
    kept: Collection[int],
    batch_rows: int | None,
    parts: Sequence[int] | None = None,
) -> None:
    """Hash the rows of an open file, or of some of its parts; `kept` are the field ids of columns that may stay encoded."""
    ids = {field.field_id for field in rows.columns.fields}
    fields = [field for field in reader.schema if field_id(field) in ids]
    names = [field.name for field in fields]
    encoded = [field.name for field in fields if field_id(field) in kept]
    for _, data in reader.tables(names, parts, encoded, batch_rows):
        columns = [data.column(name) for name in names]
        # What the file says of its columns, with the ids below them; the types are those that values came in.
        described = [
            field.with_type(column.type) if pa.types.is_dictionary(column.type) else field
            for field, column in zip(fields, columns, strict=True)
        ]
        if not columns:
            columns, described = [pa.nulls(data.num_rows)], [_NOTHING]
        rows.add(pa.Table.from_arrays(columns, schema=pa.schema(described)))
