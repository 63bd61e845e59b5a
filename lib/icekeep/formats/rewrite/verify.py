"""Proof that a rewrite changed no row: the hash of the rows that went in equals that of the rows in the new files.

New files are read from storage again, and without the code that wrote them or read the old ones: no projection, no metrics, no
state of the writer. Only the thin readers of the three formats are used; columns are identified by the field ids in the file
and hashed in the schema's types. This shows faults of the writer, the encoding, memory and storage. It does not show a fault that
the format's library repeats whenever it reads, nor one on the way in: rows are hashed after the projection and the deletes, so a
column that was taken for another of its type, or a live row that was left out, is the same on both sides.
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
"""Rows of local files that are decoded at a time, so that they are hashed in the processor's cache. Of remote files whole row
groups are read, in few requests."""

_ORDERED_BATCH_ROWS = 2 * CHUNK_ROWS
"""The same for a `RowSequence`, which takes more of the cache."""

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
    """The hash of the rows of new files in storage, read one row group, stripe or batch at a time.

    Args:
        files: in the order of their rows if `order` is given.
        columns: as `columns_to_write` returns them.
        slots, is_local: as in `RewriteTask`.
        order: the hashed rows that went in, if their order counts.

    Raises:
        IcekeepBug: a file is missing or damaged, or has the wrong columns or number of rows.
        UnsupportedError: a row group needs more memory than there is.
    """
    rows = RowHash(columns) if order is None else order.again()
    for file in files:
        before = rows.row_count
        with of_new_file(file), open_reader(storage, file.file_path, file.file_format) as reader:
            kept: Collection[int] = ()
            if file.file_format.upper() == "PARQUET":
                kept = repeating_strings(storage, file.file_path) if order is None else order.coded_ids
            add_rows(rows, reader, kept, batch_rows_of(reader, file, slots, is_local, in_order=order is not None))
        row_count = rows.row_count - before
        if row_count != file.record_count:
            raise not_as_written(f"{row_count} rows where {file.record_count} were written", [file])
    return rows.total


def hash_of_written(
    task: RewriteTask, files: Sequence[DataFile], storage: Storage, order: RowSequence | None = None
) -> RowSum | None:
    """`hash_of_files` of a task's new files; null if the task verifies nothing."""
    if not task.verifies:
        return None
    return hash_of_files(files, columns_to_write(task), storage, slots=task.slots, is_local=task.is_local, order=order)


def problem_of_rows(read: Sequence[RowSum], written: Sequence[RowSum], files: Sequence[DataFile]) -> IcekeepBug | None:
    """The error if the rows of a group's new files are not the live rows that its tasks read.

    The files must then be kept, and nothing committed; the fact `kept_files` has their locations.
    """
    rows_in, rows_out = sum(read, RowSum()), sum(written, RowSum())
    if rows_in.row_count != rows_out.row_count:
        return not_as_written(f"{rows_out.row_count} rows where {rows_in.row_count} live ones went in", files)
    if rows_in != rows_out:
        return not_as_written(f"{rows_out.row_count} rows, as many as went in, with other values", files)
    return None


def not_as_written(what: str, files: Sequence[DataFile]) -> IcekeepBug:
    """The error of new files that hold something else than went in; they are kept (fact `kept_files`)."""
    locations = [file.file_path for file in files]
    named = ", ".join(repr(location) for location in locations[:_MAX_NAMED])
    return IcekeepBug(
        f"a rewrite was to keep every row, and its new files hold {what}; nothing was committed, the old files are as they were"
        f" and the new ones are kept as evidence: {named or 'there are none'}{and_more(locations, _MAX_NAMED)}",
        kept_files=locations,
    )


@contextmanager
def of_new_file(file: DataFile) -> Iterator[None]:
    """Raise errors in a new file as `IcekeepBug`; the file is kept."""
    try:
        yield
    except (InvalidTableError, UnsupportedError) as error:
        if isinstance(error, UnsupportedError) and "reason" not in error.facts:
            # It needs more memory than there is, which is no fault of the file.
            raise
        raise not_as_written(f"what cannot be read as it was written, {error.message}", [file]) from error


def batch_rows_of(reader: FileReader, file: DataFile, slots: int, is_local: bool, *, in_order: bool) -> int | None:
    """How many rows of a new file to read at a time; raises `UnsupportedError` if a row group needs too much memory."""
    rows = TaskMemory(task_memory_bytes(slots), is_local).batch_rows(reader.largest_part())
    if parse_location(file.file_path).scheme != "file":
        return rows
    most = _ORDERED_BATCH_ROWS if in_order else _BATCH_ROWS
    return min(most, rows or most)


def add_rows(
    rows: RowHash | RowSequence,
    reader: FileReader,
    kept: Collection[int],
    batch_rows: int | None,
    parts: Sequence[int] | None = None,
) -> None:
    """Hash the rows of an open file, or of some of its parts; `kept` are the ids of columns that may stay dictionary-encoded."""
    ids = {field.field_id for field in rows.columns.fields}
    fields = [field for field in reader.schema if field_id(field) in ids]
    names = [field.name for field in fields]
    encoded = [field.name for field in fields if field_id(field) in kept]
    for _, data in reader.tables(names, parts, encoded, batch_rows):
        columns = [data.column(name) for name in names]
        # The fields of the file, with their nested ids, but in the types that were read.
        described = [
            field.with_type(column.type) if pa.types.is_dictionary(column.type) else field
            for field, column in zip(fields, columns, strict=True)
        ]
        if not columns:
            columns, described = [pa.nulls(data.num_rows)], [_NOTHING]
        rows.add(pa.Table.from_arrays(columns, schema=pa.schema(described)))
