"""The rows of a data file that its delete files leave, as a task reads them (spec, "Delete Formats").

Which delete files reach the data file was planned; here they are applied, part by part of the data file. What is held of
them at one time does not grow with their number of equality deletes: the rows of a part are what is bounded, and deletes pass
by in batches.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.accessors import leaf_schema
from icekeep.formats.arrow.masks import Mask
from icekeep.formats.base import BatchChoice, PartSizes, parts_beginning_in
from icekeep.formats.deletes.cache import DeleteCache
from icekeep.formats.deletes.equality_match import key_columns, rows_deleted
from icekeep.formats.deletes.loader import EqualityRun, KindsOfParts, deleted_positions, equality_keys
from icekeep.formats.filter import rows_that_match
from icekeep.formats.read import FileColumns, SourceFile, read_positioned
from icekeep.formats.row_mapping.row_moves import ORIGIN, NotedRows, ReadNotes, note_dropped
from icekeep.spec.applicability import PathDigest
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, predicates
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata_columns import DELETED
from icekeep.spec.name_mapping import NameMapping
from icekeep.spec.schema import Schema
from icekeep.spec.types import MAX_COLUMN_ID
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage

PIECE_ROWS = 1_048_576
"""Rows that equality deletes are applied to at one time: more share a reading of the deletes, and take more memory."""

PIECE_BYTES = 128 * MIB
"""The same as an amount of data."""


class LivePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A data file or a piece of it, to be read without the rows that deletes remove.

    Attributes:
        deletes: the delete files that reach the data file, and no others: sequence numbers are not looked at. Of many data
            files they should be parts of one list, `Part`, as they may share a thousand.
        split: the first byte and the number of bytes of the piece: row groups or stripes that begin there. An Avro file
            begins at 0 as a whole.
        record_count: how many rows the piece must have, deleted ones among them; null where that is not known.
        first_ordinal: the origin of the file's first row, where origins are wanted.
    """

    source: SourceFile
    deletes: Sequence[DataFile] = ()
    split: tuple[int, int] | None = None
    record_count: int | None = None
    first_ordinal: int | None = None


class LiveRowsReader:
    """Reads the live rows of many data files in the columns of one schema; what they have in common is found out once.

    Equality deletes are applied to the rows of many small files at one time, if the same deletes reach them.

    Attributes:
        read_count: rows that were read, deleted ones and those that a filter dropped among them.
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
        storage: where the files are.
        schema: the columns that are wanted, one at least, metadata columns among them. Where `_deleted` is one of them,
            deleted rows are read too, and marked.
        table_schemas: of the table, in any order, for columns that deletes or a filter need and `schema` lacks.
        cache: of delete files.
        kept_dictionaries: as for `FileColumns`.
        piece_bytes: the most data that equality deletes are applied to at one time, `PIECE_BYTES` where nothing is said.
        notes: take down what is read and which rows are dropped, where no filter drops others and none are marked. If they
            ask for origins, these come as one more column behind the others.
        """
        self.read_count = 0
        self._piece_bytes = PIECE_BYTES if piece_bytes is None else piece_bytes
        self._storage = storage
        self._schema = schema
        self._table_schemas = table_schemas
        self._cache = DeleteCache() if cache is None else cache
        self._kinds = KindsOfParts()
        self._kept_dictionaries = frozenset(kept_dictionaries)
        self._notes = notes
        self._columns: dict[tuple[bool, frozenset[int]], tuple[_Columns, FileColumns]] = {}

    @property
    def proven(self) -> frozenset[PathDigest]:
        """What `DeleteCache.proven` says of the delete files that were read so far."""
        return frozenset(self._cache.proven)

    def read(
        self,
        pieces: Iterable[LivePiece],
        *,
        residual: Expression = ALWAYS_TRUE,
        by_pages: bool = True,
        batch_rows: BatchChoice | None = None,
    ) -> Iterator[pa.Table]:
        """Read pieces one after the other, in batches where `batch_rows` says so.

        Args:
            residual: a bound filter; rows that do not match are left out.
            by_pages: whether page indexes may say which pages that filter needs, as in `read_positioned`.

        Raises:
            MissingFileError: a file is not there.
            InvalidTableError: a file is damaged, does not fit the schemas or has not the rows that it must have, or a
                delete file is not what its entry says.
            UnsupportedError: a file is encrypted, or needs a feature of its format that we do not handle.
            IcekeepBug: a delete file is none, or there are deletes that another data file has.
        """
        for plan, table, noted in _joined(self._tables(pieces, residual, by_pages, batch_rows), self._piece_bytes):
            if plan.changes_rows:
                table = self._without_deleted(table, plan, noted)
            if table.num_rows:
                yield table

    def _tables(
        self, pieces: Iterable[LivePiece], residual: Expression, by_pages: bool, batch_rows: BatchChoice | None
    ) -> "Iterator[_Read]":
        """The rows of pieces that match a filter, with what is still to be done to them."""
        filtered_ids = {predicate.field.field_id for predicate in predicates(residual)}
        for piece in pieces:
            source = piece.source
            kinds = self._kinds.by_kind(piece.deletes)
            by_position, by_equality = kinds.by_position, kinds.by_equality
            self._cache.begin_file()
            columns, file_columns = self._columns_for(bool(by_position), by_equality, filtered_ids)
            if by_position:
                positions = deleted_positions(self._storage, by_position, source.location, self._cache)
                source = msgspec.structs.replace(source, deleted_positions=positions)
            plan = _Plan(columns, by_equality, source.name_mapping, kinds.run)
            parts = None if piece.split is None else parts_beginning_in(*piece.split)
            choice = _max_rows(batch_rows, self._piece_bytes) if by_equality else batch_rows
            read_count = 0
            if self._notes is not None:
                self._notes.begin(source.location, piece.first_ordinal, has_key_deletes=bool(by_equality))
            # Who asks for all rows of the file, or for which of them were dropped, gives no filter.
            for first, table in read_positioned(
                self._storage,
                source,
                file_columns,
                parts,
                batch_rows=choice,
                needed=residual,
                by_pages=by_pages,
            ):
                read_count += table.num_rows
                self.read_count += table.num_rows
                noted: tuple[NotedRows, ...] = ()
                if self._notes is not None:
                    noted = (self._notes.add(first, table.num_rows),)
                    table = _with_origins(table, piece, first, self._notes.origin_type)
                if residual != ALWAYS_TRUE:
                    table = table.filter(rows_that_match(residual, columns.compared(table)))
                yield plan, table, noted
            if piece.record_count is not None and read_count != piece.record_count:
                raise InvalidTableError(
                    f"data file {source.location!r} has {read_count} rows where its manifest says {piece.record_count}",
                    location=source.location,
                )

    def _without_deleted(self, table: pa.Table, plan: "_Plan", noted: Sequence[NotedRows]) -> pa.Table:
        """The wanted columns of the rows that are live, or of all rows if deleted ones are marked."""
        columns = plan.columns
        deleted = by_position = columns.deleted(table)
        for ids, files in plan.by_equality.items():
            live = np.flatnonzero(~deleted)
            rows = columns.compared(table)
            if len(live) < table.num_rows:
                rows = rows.take(pa.array(live))
            if rows.num_rows:
                run, since = (None, None) if plan.since is None else (plan.run, plan.since[live])
                leaves, mapping = leaf_schema(ids, columns.schemas), plan.name_mapping
                keys = equality_keys(self._storage, files, leaves, ids, self._cache, run, mapping)
                found = rows_deleted(key_columns(rows, columns.leaves, ids), keys, since)
                deleted = deleted.copy()
                deleted[live[found]] = True
        if noted:
            note_dropped(noted, deleted, by_position)
        if not columns.marks and deleted.any():
            table, deleted = table.filter(pa.array(~deleted)), deleted[~deleted]
        return columns.emitted(table, deleted)

    def _columns_for(
        self, has_positions: bool, by_equality: dict[tuple[int, ...], list[DataFile]], filtered_ids: set[int]
    ) -> "tuple[_Columns, FileColumns]":
        compared = frozenset(filtered_ids.union(*by_equality))
        known = self._columns.get((has_positions, compared))
        if known is None:
            for ids, files in by_equality.items():
                _validate_key(ids, files, self._schema, self._table_schemas)
            columns = _Columns(self._schema, self._table_schemas, compared, has_positions)
            # What is compared must be values, as only those of one file have their numbers from one dictionary.
            known = columns, FileColumns(columns.read, self._kept_dictionaries - compared)
            self._columns[has_positions, compared] = known
        return known


class _Plan(msgspec.Struct, frozen=True):
    """What is done to rows that were read.

    Attributes:
        columns: that they have.
        by_equality: the equality deletes that reach them, by the ids that these compare.
        name_mapping: the table's.
        run: what these are of a list that other files have runs of, too; `None` where they are not one run.
        since: where `run` is not that of all rows: the first of it that reaches each row.
    """

    columns: "_Columns"
    by_equality: dict[tuple[int, ...], list[DataFile]]
    name_mapping: NameMapping | None = None
    run: EqualityRun | None = None
    since: NDArray[np.int64] | None = None

    @property
    def changes_rows(self) -> bool:
        """Whether rows go, or columns that nobody wants."""
        return bool(self.by_equality) or self.columns.marks or self.columns.read != self.columns.wanted

    def goes_with(self, other: "_Plan") -> bool:
        """Whether rows of both may be put together: the same deletes reach them, or some that are newer reach both."""
        if self.columns is not other.columns or self.name_mapping != other.name_mapping:
            return False
        if self.run is None or other.run is None:
            return self.run is other.run and self.by_equality == other.by_equality
        return self.run.ends_as(other.run)


_Read = tuple[_Plan, pa.Table, Sequence[NotedRows]]
"""Rows that were read, what is to be done to them, and where they were, if that is noted."""


def _max_rows(batch_rows: BatchChoice | None, piece_bytes: int) -> BatchChoice:
    """The same choice, of no more rows and no more data than a piece has."""

    def choice(sizes: PartSizes) -> int:
        most = PIECE_ROWS
        part = sizes.largest_part()
        if part is not None and part.size_bytes > piece_bytes:
            most = max(1, min(most, piece_bytes * part.row_count // part.size_bytes))
        rows = None if batch_rows is None else batch_rows(sizes)
        return most if rows is None else min(rows, most)

    return choice


class _Columns:
    """What is read of the data file: the wanted columns, then those that only deletes and the filter ask for.

    Attributes:
        read: all of them.
        leaves: what deletes and the filter compare, as `leaf_schema` makes it.
        schemas: where columns are looked up, the first that has one says its type.
        marks: whether deleted rows are wanted, and marked.
    """

    def __init__(
        self, wanted: Schema, table_schemas: Sequence[Schema], compared_ids: Collection[int], has_positions: bool
    ) -> None:
        self.wanted = wanted
        self.schemas = _looked_up_in(wanted, table_schemas)
        self.marks = any(field.field_id == DELETED.field_id for field in wanted.fields)
        self.leaves = leaf_schema(sorted(compared_ids), self.schemas)
        fields = list(wanted.fields)
        if has_positions and not self.marks:
            fields.append(DELETED)
        self._positions = []
        for leaf in self.leaves.fields:
            # Of a struct that is wanted perhaps another part: then it is projected twice, though read once.
            same = [n for n, f in enumerate(wanted.fields) if f.field_id == leaf.field_id and f.type == leaf.type]
            self._positions.append(same[0] if same else len(fields))
            if not same:
                fields.append(leaf)
        self.read = msgspec.structs.replace(wanted, fields=tuple(fields))
        self._deleted_position = next((n for n, f in enumerate(fields) if f.field_id == DELETED.field_id), None)

    def deleted(self, table: pa.Table) -> Mask:
        """The rows that deletes of positions remove."""
        if self._deleted_position is None:
            return np.zeros(table.num_rows, dtype=bool)
        marks: Mask = table.column(self._deleted_position).to_numpy()
        return marks

    def compared(self, table: pa.Table) -> pa.Table:
        """The columns of `leaves`."""
        return table.select(self._positions)

    def emitted(self, table: pa.Table, deleted: Mask) -> pa.Table:
        """The wanted columns, with the marks of deleted rows where they are wanted."""
        out = table
        if len(self.read.fields) > len(self.wanted.fields):
            origins = range(len(self.read.fields), table.num_columns)
            out = table.select([*range(len(self.wanted.fields)), *origins])
        if not self.marks:
            return out
        assert self._deleted_position is not None
        return out.set_column(self._deleted_position, out.schema.field(self._deleted_position), pa.array(deleted))


def _looked_up_in(wanted: Schema, table_schemas: Sequence[Schema]) -> list[Schema]:
    newest_first = sorted(table_schemas, key=lambda schema: schema.schema_id, reverse=True)
    return [_stored(wanted), *newest_first]


def _stored(schema: Schema) -> Schema:
    """The schema without metadata columns: ids of partition fields, as in `_partition`, may be those of columns."""
    return Schema(fields=tuple(field for field in schema.fields if field.field_id <= MAX_COLUMN_ID))


def _validate_key(ids: tuple[int, ...], files: list[DataFile], wanted: Schema, table_schemas: Sequence[Schema]) -> None:
    """Raise the error of a column that is not there under the name of a file that asks for it."""
    try:
        leaf_schema(ids, _looked_up_in(wanted, table_schemas))
    except InvalidTableError as error:
        location = files[0].file_path
        raise InvalidTableError(
            f"equality delete file {location!r} cannot be applied: {error.message}", location=location
        ) from error


def _with_origins(table: pa.Table, piece: LivePiece, first_position: int, type_: pa.DataType | None) -> pa.Table:
    """The table with one more column, the number of each row among those of all files, if that is wanted."""
    if type_ is None:
        return table
    if piece.first_ordinal is None:
        raise IcekeepBug(f"the rows of {piece.source.location!r} have no ordinals")
    first = piece.first_ordinal + first_position
    origins = np.arange(first, first + table.num_rows, dtype=type_.to_pandas_dtype())
    return table.append_column(pa.field(ORIGIN, type_, nullable=False), pa.array(origins))


def _joined(tables: Iterator[_Read], piece_bytes: int) -> Iterator[_Read]:
    """The same tables, those to which the same equality deletes are applied put together up to the size of a piece."""
    waiting: list[_Read] = []
    rows = size_bytes = 0
    for plan, table, noted in tables:
        table_bytes = table.nbytes if plan.by_equality else 0
        full = rows + table.num_rows > PIECE_ROWS or size_bytes + table_bytes > piece_bytes
        if waiting and (full or not _fits(waiting[0], plan, table)):
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


def _fits(first: _Read, plan: _Plan, table: pa.Table) -> bool:
    return plan.goes_with(first[0]) and table.schema.equals(first[1].schema)


def _together(waiting: list[_Read]) -> _Read:
    noted = [some for _, _, rows in waiting for some in rows]
    table = pa.concat_tables([table for _, table, _ in waiting])
    starts = [plan.run.start for plan, *_ in waiting if plan.run is not None]
    if len({*starts}) < 2:
        return waiting[0][0], table, noted
    longest = waiting[int(np.argmin(starts))][0]
    since = np.repeat(np.array(starts, np.int64), [table.num_rows for _, table, _ in waiting])
    return msgspec.structs.replace(longest, since=since), table, noted
