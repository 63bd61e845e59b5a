"""The rows of a data file that its delete files leave, as a task reads them (spec, "Delete Formats").

Which delete files reach the data file was planned; here they are applied, part by part of the data file. What is held of
them at one time does not grow with their number of equality deletes: the rows of a part are what is bounded, and deletes pass
by in batches.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.base import parts_beginning_in
from icekeep.formats.delete_cache import MIB, DeleteCache
from icekeep.formats.deletes import (
    Positions,
    read_all_position_deletes,
    read_equality_keys,
    read_position_deletes,
    validate_plain,
)
from icekeep.formats.deletion_vectors import read_deletion_vector
from icekeep.formats.equality import Mask, key_columns, rows_deleted
from icekeep.formats.leaves import leaf_schema
from icekeep.formats.matching import rows_that_match
from icekeep.formats.reading import SourceFile, read_file
from icekeep.spec.applicability import is_deletion_vector
from icekeep.spec.filters.expressions import ALWAYS_TRUE, And, BoundPredicate, Expression, Or
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.metadata_columns import DELETED
from icekeep.spec.schema import Schema
from icekeep.spec.types import MAX_COLUMN_ID
from icekeep.storage.base import Storage

PIECE_ROWS = 1_048_576
"""Rows that equality deletes are applied to at one time: more share a reading of the deletes, and take more memory."""

PIECE_BYTES = 128 * MIB
"""The same as an amount of data."""

_POSITION_BYTES = 8


def read_live_rows(  # noqa: PLR0913 - what a planned task says of a piece of a file
    storage: Storage,
    source: SourceFile,
    schema: Schema,
    deletes: Sequence[DataFile],
    *,
    table_schemas: Sequence[Schema] = (),
    split: tuple[int, int] | None = None,
    residual: Expression = ALWAYS_TRUE,
    cache: DeleteCache | None = None,
) -> Iterator[pa.Table]:
    """Read the rows of a data file, or of a piece of it, that are not deleted and match a filter.

    Args:
        storage: where the files are.
        source: the data file.
        schema: the columns that are wanted, one at least, metadata columns among them. Where `_deleted` is one of them,
            deleted rows are read too, and marked.
        deletes: the delete files that reach the data file, and no others: sequence numbers are not looked at.
        table_schemas: of the table, in any order, for columns that deletes or the filter need and `schema` lacks.
        split: the first byte and the number of bytes of the piece: row groups or stripes that begin there. An Avro file
            begins at 0 as a whole.
        residual: a bound filter.
        cache: shared by the data files of a task; without one every delete file is read for every piece of a data file.

    Raises:
        MissingFileError: a file is not there.
        InvalidTableError: a file is damaged or does not fit the schemas, or a delete file is not what its entry says.
        UnsupportedError: a file is encrypted, or needs a feature of its format that we do not handle.
        IcekeepBug: a delete file is none, or there are deletes that another data file has.
    """
    by_position, by_equality = _by_kind(deletes)
    cache = DeleteCache(budget_bytes=0) if cache is None else cache
    cache.begin_file()
    columns = _Columns(schema, table_schemas, by_equality, _filtered_ids(residual))
    if by_position:
        positions = _deleted_positions(storage, by_position, source.location, cache)
        source = msgspec.structs.replace(source, deleted_positions=positions)
    parts = None if split is None else parts_beginning_in(*split)
    tables = read_file(storage, source, columns.read, parts, batch_rows=PIECE_ROWS if by_equality else None)
    for table in _pieces(tables) if by_equality else tables:
        if residual != ALWAYS_TRUE:
            table = table.filter(rows_that_match(residual, columns.compared(table)))
        live = _without_deleted(storage, table, columns, by_equality, cache)
        if live.num_rows:
            yield live


class _Columns:
    """What is read of the data file: the wanted columns, then those that only deletes and the filter ask for.

    Attributes:
        read: all of them.
        leaves: what deletes and the filter compare, as `leaf_schema` makes it.
        schemas: where columns are looked up, the first that has one says its type.
        marks: whether deleted rows are wanted, and marked.
    """

    def __init__(
        self,
        wanted: Schema,
        table_schemas: Sequence[Schema],
        by_equality: dict[tuple[int, ...], list[DataFile]],
        filtered_ids: set[int],
    ) -> None:
        self.wanted = wanted
        newest_first = sorted(table_schemas, key=lambda schema: schema.schema_id, reverse=True)
        self.schemas = [_stored(wanted), *newest_first]
        self.marks = any(field.field_id == DELETED.field_id for field in wanted.fields)
        for ids, files in by_equality.items():
            _validate_key(ids, files, self.schemas)
        self.leaves = leaf_schema(sorted(filtered_ids.union(*by_equality)), self.schemas)
        fields = list(wanted.fields)
        if not self.marks:
            fields.append(DELETED)
        self._positions = []
        for leaf in self.leaves.fields:
            # Of a struct that is wanted perhaps another part: then it is projected twice, though read once.
            same = [n for n, f in enumerate(wanted.fields) if f.field_id == leaf.field_id and f.type == leaf.type]
            self._positions.append(same[0] if same else len(fields))
            if not same:
                fields.append(leaf)
        self.read = msgspec.structs.replace(wanted, fields=tuple(fields))
        self.deleted_position = next(n for n, f in enumerate(fields) if f.field_id == DELETED.field_id)

    def compared(self, table: pa.Table) -> pa.Table:
        """The columns of `leaves`."""
        return table.select(self._positions)

    def emitted(self, table: pa.Table, deleted: Mask) -> pa.Table:
        """The wanted columns, with the marks of deleted rows where they are wanted."""
        out = table.select(list(range(len(self.wanted.fields))))
        if not self.marks:
            return out
        return out.set_column(self.deleted_position, out.schema.field(self.deleted_position), pa.array(deleted))


def _stored(schema: Schema) -> Schema:
    """The schema without metadata columns: ids of partition fields, as in `_partition`, may be those of columns."""
    return Schema(fields=tuple(field for field in schema.fields if field.field_id <= MAX_COLUMN_ID))


def _by_kind(deletes: Sequence[DataFile]) -> tuple[list[DataFile], dict[tuple[int, ...], list[DataFile]]]:
    """Deletes of positions, and those of equality by the ids that they compare, in whatever order these are written."""
    by_position: list[DataFile] = []
    by_equality: dict[tuple[int, ...], list[DataFile]] = {}
    for file in deletes:
        match file.content:
            case FileContent.POSITION_DELETES:
                by_position.append(file)
            case FileContent.EQUALITY_DELETES:
                if not file.equality_ids:
                    raise InvalidTableError(
                        f"equality delete file {file.file_path!r} has no equality_ids", location=file.file_path
                    )
                by_equality.setdefault(tuple(sorted(set(file.equality_ids))), []).append(file)
            case _:
                raise IcekeepBug(f"{file.file_path!r} is a data file, not a delete file")
    return by_position, by_equality


def _filtered_ids(expression: Expression) -> set[int]:
    found: set[int] = set()
    pending = [expression]
    while pending:
        match pending.pop():
            case BoundPredicate(field=field):
                found.add(field.field_id)
            case And(left=left, right=right) | Or(left=left, right=right):
                pending += (left, right)
    return found


def _validate_key(ids: tuple[int, ...], files: list[DataFile], schemas: Sequence[Schema]) -> None:
    """Raise the error of a column that is not there under the name of a file that asks for it."""
    try:
        leaf_schema(ids, schemas)
    except InvalidTableError as error:
        location = files[0].file_path
        raise InvalidTableError(
            f"equality delete file {location!r} cannot be applied: {error.message}", location=location
        ) from error


def _deleted_positions(storage: Storage, files: list[DataFile], path: str, cache: DeleteCache) -> Positions:
    """The positions in a data file that any of some delete files deletes."""
    vectors = [file for file in files if is_deletion_vector(file)]
    if len(vectors) > 1:
        raise InvalidTableError(
            f"data file {path!r} has {len(vectors)} deletion vectors; it may have one", location=path
        )
    found = [_vector_positions(storage, file, path) for file in vectors]
    found += [_file_positions(storage, file, path, cache) for file in files if not is_deletion_vector(file)]
    return np.concatenate(found)


def _vector_positions(storage: Storage, file: DataFile, path: str) -> Positions:
    validate_plain(file)
    if file.referenced_data_file != path:
        raise IcekeepBug(f"a deletion vector of {file.referenced_data_file!r} was planned for {path!r}")
    positions = read_deletion_vector(storage, file)
    return np.array(positions.to_array(), dtype=np.int64)


def _file_positions(storage: Storage, file: DataFile, path: str, cache: DeleteCache) -> Positions:
    """What one position delete file says of a data file; read for all data files at once if that can be kept."""
    key = (file.file_path,)
    known = cache.get(key)
    limit_bytes = _POSITION_BYTES * file.record_count
    if known is None and file.referenced_data_file is None and cache.make_room(limit_bytes):
        known = read_all_position_deletes(storage, file, limit_bytes)
        if known is not None:
            size_bytes = sum(len(text) + positions.nbytes for text, positions in known.items())
            cache.keep(key, known, size_bytes)
    if known is None:
        return read_position_deletes(storage, file, path)
    found: Positions = known.get(path, np.empty(0, np.int64))
    return found


def _pieces(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of the same rows, joined up to the size of a piece."""
    waiting: list[pa.Table] = []
    rows = size_bytes = 0
    for table in tables:
        if waiting and (rows + table.num_rows > PIECE_ROWS or size_bytes + table.nbytes > PIECE_BYTES):
            yield pa.concat_tables(waiting)
            waiting, rows, size_bytes = [], 0, 0
        waiting.append(table)
        rows += table.num_rows
        size_bytes += table.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _without_deleted(
    storage: Storage,
    table: pa.Table,
    columns: _Columns,
    by_equality: dict[tuple[int, ...], list[DataFile]],
    cache: DeleteCache,
) -> pa.Table:
    """The wanted columns of the rows that are live, or of all rows if deleted ones are marked."""
    deleted: Mask = table.column(columns.deleted_position).to_numpy()
    for ids, files in by_equality.items():
        live = np.flatnonzero(~deleted)
        rows = columns.compared(table)
        if len(live) < table.num_rows:
            rows = rows.take(pa.array(live))
        if rows.num_rows:
            keys = _keys(storage, files, leaf_schema(ids, columns.schemas), ids, cache)
            found = rows_deleted(key_columns(rows, columns.leaves, ids), keys)
            deleted = deleted.copy()
            deleted[live[found]] = True
    if not columns.marks and deleted.any():
        table, deleted = table.filter(pa.array(~deleted)), deleted[~deleted]
    return columns.emitted(table, deleted)


def _keys(
    storage: Storage, files: list[DataFile], schema: Schema, ids: tuple[int, ...], cache: DeleteCache
) -> Iterator[pa.Table]:
    """The keys of equality delete files, batch by batch; what is small enough is kept for the next who asks."""
    for file in files:
        # The types as well: promoted ones have other values to compare.
        key = (file.file_path, ids, str(schema.as_struct()))
        known = cache.get(key)
        if known is not None:
            yield from known
            continue
        kept: list[pa.Table] = []
        size_bytes = 0
        for table in read_equality_keys(storage, file, schema):
            batch = key_columns(table, schema, ids)
            size_bytes += batch.nbytes
            if cache.make_room(size_bytes):
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        cache.keep(key, kept, size_bytes)
