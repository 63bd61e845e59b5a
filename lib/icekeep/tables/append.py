"""Append rows to a table, for those who have no other engine."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.changes.append_files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.formats.write_options import WriteOptions, write_options
from icekeep.planning.transcode.merge_append import MergingManifestReader
from icekeep.spec.layout import DataLayout, data_layout
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.snapshots import MAIN
from icekeep.tables.new_files import new_files
from icekeep.tables.refs import head_to_commit_to


def append(
    table: Table,
    rows: pa.Table | Iterable[pa.Table],
    *,
    branch: str = MAIN,
    summary: Mapping[str, str] | None = None,
) -> Table:
    """Write rows as data files and commit them as one snapshot; returns the table after it.

    Each of several tables gets data files of its own. Columns are matched by name; a missing one takes its
    `write-default`. The files are in the format that the table property `write.format.default` names.

    Args:
        rows: of columns with the names of the table's.
        branch: where to commit; one that is not there is not made (`create_branch` does that).
        summary: entries for the snapshot's summary.

    Raises:
        NotFoundError: there is no such branch; nothing was written.
        UsageError: the columns do not fit the table's, a required one is null, or missing and without a default, a property
            of the table has a value that it cannot take, or `branch` is a tag.
        UnsupportedError: a column's type or the table's partition spec cannot be written, or code of another engine says
            where its data files go.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    metadata = table.metadata
    head_to_commit_to(metadata, branch)
    options = write_options(metadata.properties, metadata.schema, metadata.sort_order)
    layout = data_layout(metadata.location, metadata.properties)
    operation = str(table.runtime.new_uuid())
    files: list[DataFile] = []
    try:
        for number, part in enumerate([rows] if isinstance(rows, pa.Table) else rows):
            prefix = f"{number:05d}-0-{operation}"
            for file in _written(table, part, options, layout, prefix):
                files.append(file)
    except BaseException:
        _discard(table, files)
        raise
    try:
        change = AppendFiles(files=tuple(files), branch=branch, summary=summary or {})
        reader = MergingManifestReader(table.storage)
        return commit(table, change, reader=reader, undo=partial(_discard, table, files)).table
    except OutcomeUnknownError:
        raise
    except IcekeepError:
        # Only an error of ours proves that nothing landed: an interrupt may have come after the commit.
        _discard(table, files)
        raise


def _discard(table: Table, files: Iterable[DataFile]) -> None:
    table.storage.delete_many([file.file_path for file in files])


def _written(
    table: Table, rows: pa.Table, options: WriteOptions, layout: DataLayout, prefix: str
) -> Iterator[DataFile]:
    numbers = count()
    return new_files(
        table, rows, options, lambda path: layout.location(f"{prefix}-{next(numbers):05d}{options.file_suffix}", path)
    )
