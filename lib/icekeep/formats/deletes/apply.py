"""Delete files applied to the rows of data files (spec, "Delete Formats").

The plan has the delete files that reach a data file; here they are applied to one part of it at a time. Memory does not grow with
the number of equality deletes: the rows of a part are bounded, and deletes are looked up batch by batch. The content of small
delete files is cached for the next data file.

A row is deleted if all its key columns equal those of one equality delete. Null equals null. Floating point values are equal if
their bits are, except that NaN equals every NaN: as in Iceberg Java, so 0.0 does not delete -0.0.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.projection import Mask, leaf_schema, leaf_values
from icekeep.formats.base import BatchChoice, parts_beginning_in
from icekeep.formats.deletes.read import (
    DeleteCache,
    Positions,
    read_all_position_deletes,
    read_equality_keys,
    read_position_deletes,
    validate_plain,
)
from icekeep.formats.evaluate import rows_that_match
from icekeep.formats.machine import PartSize
from icekeep.formats.puffin import read_deletion_vector
from icekeep.formats.reader import FileColumns, SourceFile, read_positioned
from icekeep.formats.row_moves import ORIGIN, NotedRows, ReadNotes, note_dropped, positions_in
from icekeep.spec.collections import Part, PositionSet, is_stretch, of_stretches, packed
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, predicates
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.reach import is_deletion_vector, path_pair_digest
from icekeep.spec.schema import DELETED, NameMapping, Schema
from icekeep.spec.types import MAX_COLUMN_ID, MIB
from icekeep.storage.base import Storage

BATCH_ROWS, BATCH_BYTES = 1_048_576, 32 * MIB
"""Deletes in one lookup: small files together, large ones in pieces. Each lookup goes through every row."""

PIECE_ROWS, PIECE_BYTES = 1_048_576, 128 * MIB
"""Rows to which equality deletes are applied at a time: more take more memory, and read the deletes less often."""

_POSITION_BYTES = 8
_MAX_SHARED = 64


def key_columns(table: pa.Table, schema: Schema, field_ids: Sequence[int]) -> pa.Table:
    """Key columns in forms for which Arrow's equality is the spec's; `schema` of the table is a `leaf_schema`."""
    columns = [
        pa.chunked_array([comparable_bits(chunk) for chunk in column.chunks or [pa.nulls(0, column.type)]])
        for column in (leaf_values(table, schema, id_) for id_ in field_ids)
    ]
    return pa.Table.from_arrays(columns, names=[str(id_) for id_ in field_ids])


def comparable_bits(values: pa.Array) -> pa.Array:
    """The values in a form that Arrow compares by bits, with the same bits for every NaN."""
    type_ = values.type
    if pa.types.is_floating(type_):
        bits = pa.int32() if type_ == pa.float32() else pa.int64()
        return pc.if_else(pc.is_nan(values), pa.array([np.nan], type_)[0], values).view(bits)
    if pa.types.is_null(type_):
        return values.cast(pa.bool_())
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def rows_deleted(rows: pa.Table, deletes: Iterable[pa.Table], since: NDArray[np.int64] | None = None) -> Mask:
    """Which rows, of which these are the key columns, equal some delete in all of them.

    `deletes` are tables of the same columns, of any size; at most a batch of them is in memory. With `since`, the least number of
    a delete that reaches each row, they have a last column with the number of each delete; else all reach all rows.
    """
    deleted = np.zeros(rows.num_rows, dtype=bool)
    live, remaining = np.arange(rows.num_rows), rows
    for batch in _batches(deletes):
        matched = _matches(remaining, batch, None if since is None else since[live])
        if not len(matched):
            continue
        deleted[live[matched]] = True
        live = np.flatnonzero(~deleted)
        if not len(live):
            break
        remaining = rows.take(pa.array(live))
    return deleted


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of about the size of a batch, and no larger."""

    def step(table: pa.Table) -> int:
        row_bytes = table.nbytes / max(1, table.num_rows)
        return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))

    pieces = (
        table.slice(start, rows)
        for table in tables
        for rows in [step(table)]
        for start in range(0, table.num_rows, rows)
    )
    limits = (lambda piece: piece.num_rows, BATCH_ROWS), (lambda piece: piece.nbytes, BATCH_BYTES)
    return map(pa.concat_tables, packed(pieces, *limits))


def _matches(rows: pa.Table, deletes: pa.Table, since: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Positions of the rows that equal a delete that reaches them.

    Column by column, rows and deletes get a code for their values so far; rows whose values no delete has are left out, so that
    few are looked up twice.
    """
    positions = np.arange(rows.num_rows, dtype=np.int64)
    row_codes, delete_codes = np.zeros(rows.num_rows, dtype=np.int64), np.zeros(deletes.num_rows, dtype=np.int64)
    for n, keys in enumerate(deletes.columns[: rows.num_columns]):
        values = pc.unique(keys)
        column = rows.column(n)
        if len(positions) < rows.num_rows:
            column = column.take(pa.array(positions))
        codes = _places(column, values)
        matched = codes >= 0
        positions, codes = positions[matched], codes[matched]
        if n == 0:
            row_codes = codes
            if rows.num_columns > 1 or since is not None:
                delete_codes = _places(keys, values)
            continue
        # Both are below the number of values in a batch: their product is far below 2 to the 63.
        row_codes = row_codes[matched] * len(values) + codes
        delete_codes = delete_codes * len(values) + _places(keys, values)
        pairs = pc.unique(pa.array(delete_codes))
        row_codes, delete_codes = _places(pa.array(row_codes), pairs), _places(pa.array(delete_codes), pairs)
        matched = row_codes >= 0
        positions, row_codes = positions[matched], row_codes[matched]
    if since is None or not len(positions):
        return positions
    last = np.full(int(delete_codes.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, delete_codes, deletes.column(rows.num_columns).to_numpy())
    return positions[last[row_codes] >= since[positions]]


def _places(values: Any, dictionary: pa.Array) -> NDArray[np.int64]:
    # Of each value, or null, in a dictionary; -1 for those not in it.
    places: NDArray[np.int64] = pc.index_in(values, value_set=dictionary).fill_null(-1).to_numpy().astype(np.int64)
    return places


class EqualityRun(msgspec.Struct, frozen=True):
    """A slice of a list of equality deletes; `places` are the indices in the list by path, the same object for one list."""

    places: Mapping[str, int]
    start: int
    stop: int


class DeletesByKind(msgspec.Struct, frozen=True):
    """The delete files of a data file.

    Attributes:
        by_position: position delete files and deletion vectors.
        by_equality: equality delete files by their sorted `equality_ids`; `run` has all of them, if they are one slice of a list.
    """

    by_position: Sequence[DataFile]
    by_equality: dict[tuple[int, ...], list[DataFile]]
    run: EqualityRun | None = None

    @classmethod
    def of(cls, deletes: Iterable[DataFile]) -> "DeletesByKind":
        """Raises `InvalidTableError` for an equality delete file without ids."""
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
                    by_equality.setdefault(_ascending(file.equality_ids), []).append(file)
                case _:
                    raise IcekeepBug(f"{file.file_path!r} is a data file, not a delete file")
        return cls(by_position, by_equality)


@lru_cache(maxsize=128)
def _ascending(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Each id once; cached, since it is computed for each delete file of each data file and few ids occur."""
    return tuple(sorted(set(ids)))


class SharedDeletes:
    """Sorts the delete files of data files by kind, if they are parts of one list.

    Data files with the same equality deletes get the same dictionary, which is made once.
    """

    def __init__(self) -> None:
        self._whole: Sequence[DataFile] = ()
        self._places: dict[str, int] = {}
        self._by_equality: dict[PositionSet, dict[tuple[int, ...], list[DataFile]]] = {}

    def by_kind(self, deletes: Sequence[DataFile]) -> DeletesByKind:
        if not isinstance(deletes, Part):
            return DeletesByKind.of(deletes)
        if deletes.whole is not self._whole:
            self._whole, self._by_equality = deletes.whole, {}
            first = takewhile(lambda one: one.content is FileContent.EQUALITY_DELETES, deletes.whole)
            self._places = {one.file_path: place for place, one in enumerate(first)}
        of_equality = deletes.positions & of_stretches([(0, len(self._places))])
        rest = DeletesByKind.of(Part(self._whole, deletes.positions - of_equality))
        if rest.by_equality:
            # Equality deletes are not first in the list.
            return DeletesByKind.of(deletes)
        if of_equality not in self._by_equality:
            if len(self._by_equality) >= _MAX_SHARED:
                self._by_equality.clear()
            self._by_equality[of_equality] = DeletesByKind.of(Part(self._whole, of_equality)).by_equality
        run = None
        if is_stretch(of_equality):
            run = EqualityRun(self._places, of_equality.min(), of_equality.max() + 1)
        return DeletesByKind(rest.by_position, self._by_equality[of_equality], run)


def deleted_positions(storage: Storage, files: Sequence[DataFile], path: str, cache: DeleteCache) -> Positions:
    """The positions that one or more delete files delete in the data file at `path`.

    Raises `InvalidTableError` for two deletion vectors; and as `read_position_deletes`, `read_deletion_vector`.
    """
    vectors = [file for file in files if is_deletion_vector(file)]
    if len(vectors) > 1:
        raise InvalidTableError(
            f"data file {path!r} has {len(vectors)} deletion vectors; it may have one", location=path
        )
    positions = []
    for file in vectors:
        validate_plain(file)
        if file.referenced_data_file != path:
            raise IcekeepBug(f"a deletion vector of {file.referenced_data_file!r} was planned for {path!r}")
        positions.append(positions_in(read_deletion_vector(storage, file)))
    positions += [_file_positions(storage, file, path, cache) for file in files if not is_deletion_vector(file)]
    return np.concatenate(positions)


def _file_positions(storage: Storage, file: DataFile, path: str, cache: DeleteCache) -> Positions:
    """The positions of one position delete file in a data file; it is read for all data files if that fits the cache."""
    key = (file.file_path,)
    by_path = cache.get(key)
    limit_bytes = _POSITION_BYTES * file.record_count
    if by_path is None and file.referenced_data_file is None and cache.make_room(limit_bytes):
        by_path = read_all_position_deletes(storage, file, limit_bytes)
        if by_path is not None:
            if len(by_path) == 1:
                cache.proven.add(path_pair_digest(file.file_path, next(iter(by_path)).encode()))
            size_bytes = sum(len(text) + positions.nbytes for text, positions in by_path.items())
            cache.keep(key, by_path, size_bytes)
    if by_path is None:
        return read_position_deletes(storage, file, path)
    positions: Positions = by_path.get(path, np.empty(0, np.int64))
    return positions


def _equality_keys(
    storage: Storage,
    files: list[DataFile],
    schema: Schema,
    ids: tuple[int, ...],
    cache: DeleteCache,
    run: EqualityRun | None,
    name_mapping: NameMapping | None,
) -> Iterator[pa.Table]:
    """The keys of equality delete files, batch by batch; small files are cached for the next data file.

    `schema` is the `leaf_schema` of `ids`. With `run`, a last column has the place of each key's file in it.
    """

    def keys_of(file: DataFile) -> Iterator[pa.Table]:
        # With the types: after promotion other values are compared.
        key = (file.file_path, ids, types, name_mapping)
        if (held := cache.get(key)) is not None:
            yield from held
            return
        kept: list[pa.Table] = []
        size_bytes = 0
        for table in read_equality_keys(storage, file, schema, name_mapping=name_mapping):
            batch = key_columns(table, schema, ids)
            size_bytes += batch.nbytes
            if cache.make_room(size_bytes):
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        cache.keep(key, kept, size_bytes)

    types = str(schema.as_struct())
    for file in files:
        for batch in keys_of(file):
            if run is not None:
                batch = batch.append_column("place", pa.array(np.full(batch.num_rows, run.places[file.file_path])))
            yield batch


class LivePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A data file or a piece of it, whose live rows are read.

    Attributes:
        deletes: the delete files that reach the data file, and no others: sequence numbers are not compared. For many data
            files they should be parts of one list, `Part`, since these may share a thousand.
        split: the first byte and the number of bytes of the row groups or stripes in the piece. An Avro file is one part at 0.
        record_count: of the piece, with deleted rows.
        first_ordinal: the origin of the file's first row.
    """

    source: SourceFile
    deletes: Sequence[DataFile] = ()
    split: tuple[int, int] | None = None
    record_count: int | None = None
    first_ordinal: int | None = None


class LiveRowsReader:
    """Reads the live rows of many data files in the columns of one schema.

    Equality deletes are applied to the rows of many small files at a time, if the same deletes reach them.

    Attributes:
        read_count: rows that were read, with those that were deleted or did not match a filter.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        *,
        table_schemas: Sequence[Schema] = (),
        cache: DeleteCache | None = None,
        kept_dictionaries: Collection[int] = (),
        piece_bytes: int | None = None,
        notes: ReadNotes | None = None,
    ) -> None:
        """Args:
        schema: the columns of the result, at least one; metadata columns are possible. With `_deleted`, deleted rows are read
            too, and marked.
        table_schemas: of the table, in any order, for columns that deletes or a filter need and `schema` lacks.
        kept_dictionaries: as for `FileColumns`.
        piece_bytes: the most data to which equality deletes are applied at a time; `PIECE_BYTES` by default.
        notes: records the rows that are read and dropped; not together with a filter or `_deleted`. If it has a type of
            origins, these are the last column.
        """
        self.read_count = 0
        self._storage, self._schema, self._table_schemas, self._notes = storage, schema, table_schemas, notes
        self._piece_bytes = PIECE_BYTES if piece_bytes is None else piece_bytes
        self._cache = DeleteCache() if cache is None else cache
        self._shared = SharedDeletes()
        self._kept_dictionaries = frozenset(kept_dictionaries)
        self._columns: dict[tuple[bool, frozenset[int]], _Columns] = {}

    def read(
        self,
        pieces: Iterable[LivePiece],
        *,
        residual: Expression = ALWAYS_TRUE,
        batch_rows: BatchChoice | None = None,
    ) -> Iterator[pa.Table]:
        """Read pieces in order, in batches of `batch_rows`; only rows that match `residual`, a bound filter.

        Raises `InvalidTableError` if a data file has the wrong number of rows; and as `read_positioned`, `deleted_positions`.
        """
        for plan, table, noted in _joined(self._tables(pieces, residual, batch_rows), self._piece_bytes):
            if plan.by_equality or plan.columns.marks or plan.columns.has_more:
                table = self._without_deleted(table, plan, noted)
            if table.num_rows:
                yield table

    def _tables(
        self, pieces: Iterable[LivePiece], residual: Expression, batch_rows: BatchChoice | None
    ) -> "Iterator[_Read]":
        """The rows of pieces that match a filter, before equality deletes."""
        filtered_ids = {predicate.field.field_id for predicate in predicates(residual)}
        for piece in pieces:
            source, kinds = piece.source, self._shared.by_kind(piece.deletes)
            by_position, by_equality = kinds.by_position, kinds.by_equality
            self._cache.begin_file()
            columns = self._columns_for(bool(by_position), by_equality, filtered_ids)
            if by_position:
                positions = deleted_positions(self._storage, by_position, source.location, self._cache)
                source = msgspec.structs.replace(source, deleted_positions=positions)
            plan = _Plan(columns, by_equality, source.name_mapping, kinds.run)
            parts = None if piece.split is None else parts_beginning_in(*piece.split)
            choice = _max_rows(batch_rows, self._piece_bytes) if by_equality else batch_rows
            read_count = 0
            if self._notes is not None:
                self._notes.begin(source.location, piece.first_ordinal, has_key_deletes=bool(by_equality))
            # There is no filter if all rows are counted, or dropped rows are recorded.
            for first, table in read_positioned(
                self._storage, source, columns.file, parts, batch_rows=choice, needed=residual
            ):
                read_count += table.num_rows
                self.read_count += table.num_rows
                noted: tuple[NotedRows, ...] = ()
                if self._notes is not None:
                    noted = (self._notes.add(first, table.num_rows),)
                    if (type_ := self._notes.origin_type) is not None:
                        if piece.first_ordinal is None:
                            raise IcekeepBug(f"the rows of {source.location!r} have no ordinals")
                        start = piece.first_ordinal + first
                        origins = np.arange(start, start + table.num_rows, dtype=type_.to_pandas_dtype())
                        table = table.append_column(pa.field(ORIGIN, type_, nullable=False), pa.array(origins))
                if residual != ALWAYS_TRUE:
                    table = table.filter(rows_that_match(residual, table.select(columns.positions)))
                yield plan, table, noted
            if piece.record_count is not None and read_count != piece.record_count:
                raise InvalidTableError(
                    f"data file {source.location!r} has {read_count} rows where its manifest says {piece.record_count}",
                    location=source.location,
                )

    def _without_deleted(self, table: pa.Table, plan: "_Plan", noted: Sequence[NotedRows]) -> pa.Table:
        """The requested columns of the live rows, or of all rows if deleted ones are marked."""
        columns = plan.columns
        deleted = by_position = columns.deleted(table)
        for ids, files in plan.by_equality.items():
            live = np.flatnonzero(~deleted)
            rows = table.select(columns.positions)
            if len(live) < table.num_rows:
                rows = rows.take(pa.array(live))
            if rows.num_rows:
                run, since = (None, None) if plan.since is None else (plan.run, plan.since[live])
                leaves, mapping = leaf_schema(ids, columns.schemas), plan.name_mapping
                keys = _equality_keys(self._storage, files, leaves, ids, self._cache, run, mapping)
                matched = rows_deleted(key_columns(rows, columns.leaves, ids), keys, since)
                deleted = deleted.copy()
                deleted[live[matched]] = True
        if noted:
            note_dropped(noted, deleted, by_position)
        if not columns.marks and deleted.any():
            table, deleted = table.filter(pa.array(~deleted)), deleted[~deleted]
        return columns.emitted(table, deleted)

    def _columns_for(
        self, has_positions: bool, by_equality: dict[tuple[int, ...], list[DataFile]], filtered_ids: set[int]
    ) -> "_Columns":
        compared = frozenset(filtered_ids.union(*by_equality))
        if (has_positions, compared) not in self._columns:
            # The first schema that has a column decides its type. Without metadata columns, since ids of partition fields in
            # `_partition` may be those of columns.
            stored = Schema(fields=tuple(field for field in self._schema.fields if field.field_id <= MAX_COLUMN_ID))
            newest_first = sorted(self._table_schemas, key=lambda schema: schema.schema_id, reverse=True)
            schemas = [stored, *newest_first]
            for ids, files in by_equality.items():
                try:
                    leaf_schema(ids, schemas)
                except InvalidTableError as error:
                    location = files[0].file_path
                    raise InvalidTableError(
                        f"equality delete file {location!r} cannot be applied: {error.message}", location=location
                    ) from error
            columns = _Columns(self._schema, schemas, compared, has_positions, self._kept_dictionaries)
            self._columns[has_positions, compared] = columns
        return self._columns[has_positions, compared]


class _Plan(msgspec.Struct, frozen=True):
    """How deletes are applied to rows that were read; `by_equality` and `run` are those of `DeletesByKind`.

    `since`: the first of `run` that reaches each row, if not all of it reaches all rows.
    """

    columns: "_Columns"
    by_equality: dict[tuple[int, ...], list[DataFile]]
    name_mapping: NameMapping | None = None
    run: EqualityRun | None = None
    since: NDArray[np.int64] | None = None

    def goes_with(self, other: "_Plan") -> bool:
        """Whether rows of both may be joined: the same deletes reach them, or those of one are the end of the other's."""
        if self.columns is not other.columns or self.name_mapping != other.name_mapping:
            return False
        if self.run is None or other.run is None:
            return self.run is other.run and self.by_equality == other.by_equality
        # Both end at the same place of one list, so that the longer slice contains the other.
        return self.run.places is other.run.places and self.run.stop == other.run.stop


_Read = tuple[_Plan, pa.Table, Sequence[NotedRows]]
"""Rows that were read, how deletes are applied to them, and their places, if these are recorded."""


def _max_rows(batch_rows: BatchChoice | None, piece_bytes: int) -> BatchChoice:
    """The same choice, limited to the rows and the bytes of a piece."""

    def choice(part: PartSize | None) -> int:
        most = PIECE_ROWS
        if part is not None and part.size_bytes > piece_bytes:
            most = max(1, min(most, piece_bytes * part.row_count // part.size_bytes))
        rows = None if batch_rows is None else batch_rows(part)
        return most if rows is None else min(rows, most)

    return choice


class _Columns:
    """The columns that are read of a data file: the requested ones, then those that only deletes and the filter need.

    Attributes:
        file: all of them.
        leaves: the `leaf_schema` of those that deletes and the filter compare; `positions` are theirs.
        schemas: where columns are looked up.
        marks: whether deleted rows are returned and marked.
        has_more: whether there are columns that were not requested.
    """

    def __init__(
        self,
        requested: Schema,
        schemas: Sequence[Schema],
        compared_ids: frozenset[int],
        has_positions: bool,
        kept_dictionaries: frozenset[int],
    ) -> None:
        self.requested, self.schemas = requested, schemas
        self.marks = any(field.field_id == DELETED.field_id for field in requested.fields)
        self.leaves = leaf_schema(sorted(compared_ids), self.schemas)
        fields = list(requested.fields)
        if has_positions and not self.marks:
            fields.append(DELETED)
        self.positions = []
        for leaf in self.leaves.fields:
            # It may be another part of a requested struct, which is then projected twice, but read once.
            same = [n for n, f in enumerate(requested.fields) if f.field_id == leaf.field_id and f.type == leaf.type]
            self.positions.append(same[0] if same else len(fields))
            if not same:
                fields.append(leaf)
        # Compared columns are not dictionary-encoded, since files have different dictionaries.
        self.file = FileColumns(
            msgspec.structs.replace(requested, fields=tuple(fields)), kept_dictionaries - compared_ids
        )
        self.has_more = len(fields) > len(requested.fields)
        self._deleted_position = next((n for n, f in enumerate(fields) if f.field_id == DELETED.field_id), None)

    def deleted(self, table: pa.Table) -> Mask:
        if self._deleted_position is None:
            return np.zeros(table.num_rows, dtype=bool)
        marks: Mask = table.column(self._deleted_position).to_numpy()
        return marks

    def emitted(self, table: pa.Table, deleted: Mask) -> pa.Table:
        """The requested columns, with marks of deleted rows if these are returned."""
        out = table
        if self.has_more:
            origins = range(len(self.file.schema.fields), table.num_columns)
            out = table.select([*range(len(self.requested.fields)), *origins])
        if not self.marks:
            return out
        assert self._deleted_position is not None
        return out.set_column(self._deleted_position, out.schema.field(self._deleted_position), pa.array(deleted))


def _joined(tables: Iterator[_Read], piece_bytes: int) -> Iterator[_Read]:
    """The same tables, but those with the same equality deletes joined up to the size of a piece."""
    waiting: list[_Read] = []
    rows = size_bytes = 0
    for plan, table, noted in tables:
        table_bytes = table.nbytes if plan.by_equality else 0
        if waiting:
            first_plan, first_table, _ = waiting[0]
            is_full = rows + table.num_rows > PIECE_ROWS or size_bytes + table_bytes > piece_bytes
            if is_full or not (plan.goes_with(first_plan) and table.schema.equals(first_table.schema)):
                yield _together(waiting)
                waiting, rows, size_bytes = [], 0, 0
        if not plan.by_equality:
            yield plan, table, noted
            continue
        waiting.append((plan, table, noted))
        rows += table.num_rows
        size_bytes += table_bytes
    if waiting:
        yield _together(waiting)


def _together(waiting: list[_Read]) -> _Read:
    noted = [one for _, _, rows in waiting for one in rows]
    table = pa.concat_tables([table for _, table, _ in waiting])
    starts = [plan.run.start for plan, *_ in waiting if plan.run is not None]
    if len({*starts}) < 2:
        return waiting[0][0], table, noted
    longest = waiting[int(np.argmin(starts))][0]
    since = np.repeat(np.array(starts, np.int64), [table.num_rows for _, table, _ in waiting])
    return msgspec.structs.replace(longest, since=since), table, noted
