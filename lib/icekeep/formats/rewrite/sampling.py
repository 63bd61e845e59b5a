"""A sample of the keys of a task's rows, to cut them into ranges by."""

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from icekeep.formats.read import SourceFile, read_file
from icekeep.formats.rewrite.task import RewriteTask
from icekeep.formats.sort.ranges import KeySample, sample_keys
from icekeep.spec.name_mapping import name_mapping_of
from icekeep.spec.partitioning import identity_values
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage


def sample_task(task: RewriteTask, storage: Storage) -> KeySample:
    """Read the columns of a task's ordering from its pieces and sample the keys; deleted rows count as well.

    Raises:
        MissingFileError, InvalidTableError, UnsupportedError: as `read_file`.
        IcekeepBug: the task does not order its rows.
    """
    assert task.ordering is not None
    columns = _ordered_columns(task)
    return sample_keys(_tables(task, columns, storage), task.ordering, columns)


def _ordered_columns(task: RewriteTask) -> Schema:
    """The top-level columns that the ordering looks at."""
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
    return msgspec.structs.replace(task.schema, fields=fields)


def _tables(task: RewriteTask, columns: Schema, storage: Storage) -> Iterator[pa.Table]:
    name_mapping = name_mapping_of(task.properties)
    for piece in task.pieces:
        source = SourceFile(
            location=piece.location,
            file_format=piece.file_format,
            constants=identity_values(task.specs[piece.spec_id], piece.partition),
            name_mapping=name_mapping,
        )
        yield from read_file(storage, source, columns)
