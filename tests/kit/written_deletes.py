"""Row-level deletes that are really written and committed, as another engine's writer would do it."""

from collections.abc import Iterable, Sequence
from itertools import count

import pyarrow as pa
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.changes.row_delta import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.deletes.files import write_equality_deletes, write_position_deletes
from icekeep.formats.puffin.deletion_vectors import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.spec.layout import data_directory
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.schema import Schema
from kit.naive_scan import live_entries

_NUMBERS = count()


def data_files(table: Table) -> list[DataFile]:
    """The live data files of the current snapshot, by path."""
    files = [entry.data_file for entry in live_entries(table) if entry.data_file.content is FileContent.DATA]
    return sorted(files, key=lambda file: file.file_path)


def delete_positions(table: Table, positions: Iterable[tuple[str, int]], file_format: str = "PARQUET") -> Table:
    """The table after a commit of one position delete file for data files of one partition."""
    pairs = list(positions)
    target = next(file for file in data_files(table) if file.file_path == pairs[0][0])
    file = write_position_deletes(
        table.storage,
        _location(table, file_format),
        file_format,
        pairs,
        spec_id=target.spec_id,
        partition=target.partition,
    )
    return commit(table, RowDelta(added_deletes=(file,), named=frozenset(path for path, _ in pairs))).table


def delete_by_vector(table: Table, path: str, positions: Iterable[int]) -> Table:
    """The table after a commit of a deletion vector for a data file, with all that the file's present vector holds."""
    target = next(file for file in data_files(table) if file.file_path == path)
    old = [entry for entry in live_entries(table) if entry.data_file.referenced_data_file == path]
    vector = VectorTarget(location=path, spec_id=target.spec_id, partition=target.partition)
    deleted = BitMap64(positions).union(*(read_deletion_vector(table.storage, entry.data_file) for entry in old))
    files = write_deletion_vectors(table.storage, _location(table, "PUFFIN"), [(vector, deleted)])
    return commit(table, RowDelta(added_deletes=files, removed_deletes=tuple(old))).table


def delete_equal(
    table: Table,
    rows: pa.Table,
    columns: Sequence[str],
    *,
    like: DataFile | None = None,
    file_format: str = "PARQUET",
) -> Table:
    """The table after a commit of equality deletes: rows that equal one of `rows` in `columns` are gone.

    Args:
        like: a data file whose spec and partition the deletes take; null for an unpartitioned table.
    """
    schema = table.metadata.schema
    wanted = Schema(fields=tuple(field for field in schema.fields if field.name in rows.column_names))
    ids = [field.field_id for field in wanted.fields if field.name in columns]
    file = write_equality_deletes(
        table.storage,
        _location(table, file_format),
        file_format,
        cast_to_schema(rows, wanted),
        ids,
        wanted,
        spec_id=table.metadata.default_spec_id if like is None else like.spec_id,
        partition=() if like is None else like.partition,
    )
    return commit(table, RowDelta(added_deletes=(file,))).table


def _location(table: Table, file_format: str) -> str:
    return f"{data_directory(table.metadata)}/deletes-{next(_NUMBERS)}.{file_format.lower()}"
