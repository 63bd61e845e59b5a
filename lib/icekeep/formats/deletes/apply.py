"""Which rows equality deletes remove (spec, "Equality Delete Files").

A row goes if all its key columns equal those of one delete. Null equals null. Floating point values are equal if their bits
are, but for NaN, which equals every NaN: as Iceberg Java compares them, so 0.0 does not delete -0.0.

Deletes may outnumber the rows by far, so they pass by in batches, each of which is looked up in and forgotten.

What the delete files of a data file say, read within the budget of a cache that the files of a task share.

The rows of a data file that its delete files leave, as a task reads them (spec, "Delete Formats").

Which delete files reach the data file was planned; here they are applied, part by part of the data file. What is held of
them at one time does not grow with their number of equality deletes: the rows of a part are what is bounded, and deletes pass
by in batches.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.schema import Mask, leaf_schema, leaf_values
from icekeep.formats.base import BatchChoice, PartSizes, parts_beginning_in
from icekeep.formats.deletes.read import (
    DeleteCache,
    Positions,
    read_all_position_deletes,
    read_equality_keys,
    read_position_deletes,
    validate_plain,
)
from icekeep.formats.filter import rows_that_match
from icekeep.formats.puffin import read_deletion_vector
from icekeep.formats.reader import FileColumns, SourceFile, read_positioned
from icekeep.formats.row_moves import ORIGIN, NotedRows, ReadNotes, note_dropped
from icekeep.spec.collections import Part, PositionSet, is_span, of_spans, packed
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, predicates
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.reach import PathDigest, is_deletion_vector, path_pair_digest
from icekeep.spec.schema import DELETED, NameMapping, Schema
from icekeep.spec.types import MAX_COLUMN_ID, MIB
from icekeep.storage.base import Storage

BATCH_ROWS = 1_048_576
"""Deletes that are looked up in at one time: those of small files together, those of large ones piece by piece. Each time
costs a look at every row."""

BATCH_BYTES = 32 * MIB
"""The same as an amount of data, for keys that are long."""


def key_columns(table: pa.Table, schema: Schema, field_ids: Sequence[int]) -> pa.Table:
    """The values of key columns in forms of which Arrow's notion of equality is right, in the order of their ids.

    Args:
        table: data in the columns of `schema`.
        schema: as `leaf_schema` makes it.
        field_ids: of the key columns.
    """
    columns = [_comparable(leaf_values(table, schema, id_)) for id_ in field_ids]
    return pa.Table.from_arrays(columns, names=[str(id_) for id_ in field_ids])


def comparable_bits(values: pa.Array) -> pa.Array:
    """The values as bits and bytes that Arrow can tell apart: one value, one form, and each NaN the same one."""
    type_ = values.type
    if pa.types.is_floating(type_):
        bits = pa.int32() if type_ == pa.float32() else pa.int64()
        return pc.if_else(pc.is_nan(values), pa.array([np.nan], type_)[0], values).view(bits)
    if pa.types.is_null(type_):
        return values.cast(pa.bool_())
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def rows_deleted(rows: pa.Table, deletes: Iterable[pa.Table], since: NDArray[np.int64] | None = None) -> Mask:
    """Which rows some delete equals in all columns.

    Args:
        rows: their key columns.
        deletes: tables of the same columns, of any size; no more than a batch of them are held at a time. With `since` they
            have one column more, numbers.
        since: for each row the least number of a delete that reaches it; null: all do.
    """
    found = np.zeros(rows.num_rows, dtype=bool)
    live, remaining = np.arange(rows.num_rows), rows
    for batch in _batches(deletes):
        matched = _matches(remaining, batch, None if since is None else since[live])
        if not len(matched):
            continue
        found[live[matched]] = True
        live = np.flatnonzero(~found)
        if not len(live):
            break
        remaining = rows.take(pa.array(live))
    return found


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables large enough that looking up pays, and no larger than a batch may be."""
    limits = (lambda piece: piece.num_rows, BATCH_ROWS), (lambda piece: piece.nbytes, BATCH_BYTES)
    return map(pa.concat_tables, packed(_pieces(tables), *limits))


def _pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        row_bytes = table.nbytes / max(1, table.num_rows)
        step = max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))
        for start in range(0, table.num_rows, step):
            yield table.slice(start, step)


def _matches(rows: pa.Table, deletes: pa.Table, since: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Positions of the rows that equal a delete which reaches them.

    Column by column, rows and deletes get the number of their values so far: rows without one are out, so that hardly any
    are looked up twice.
    """
    positions = np.arange(rows.num_rows, dtype=np.int64)
    row_codes, delete_codes = np.zeros(rows.num_rows, dtype=np.int64), np.zeros(deletes.num_rows, dtype=np.int64)
    for n, keys in enumerate(deletes.columns[: rows.num_columns]):
        values = pc.unique(keys)
        column = rows.column(n)
        if len(positions) < rows.num_rows:
            column = column.take(pa.array(positions))
        codes = _places(column, values)
        known = codes >= 0
        positions, codes = positions[known], codes[known]
        if n == 0:
            row_codes = codes
            if rows.num_columns > 1 or since is not None:
                delete_codes = _places(keys, values)
            continue
        # Both are numbers of values in one batch: their product is far below 2 to the 63.
        row_codes = row_codes[known] * len(values) + codes
        delete_codes = delete_codes * len(values) + _places(keys, values)
        pairs = pc.unique(pa.array(delete_codes))
        row_codes, delete_codes = _places(pa.array(row_codes), pairs), _places(pa.array(delete_codes), pairs)
        known = row_codes >= 0
        positions, row_codes = positions[known], row_codes[known]
    if since is None or not len(positions):
        return positions
    last = np.full(int(delete_codes.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, delete_codes, deletes.column(rows.num_columns).to_numpy())
    return positions[last[row_codes] >= since[positions]]


def _places(values: Any, dictionary: pa.Array) -> NDArray[np.int64]:
    """Where each value, null among them, stands in a dictionary; -1 for those that it has not."""
    found = pc.index_in(values, value_set=dictionary)
    places: NDArray[np.int64] = found.fill_null(-1).to_numpy().astype(np.int64)
    return places


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([comparable_bits(chunk) for chunk in column.chunks or [pa.nulls(0, column.type)]])


_POSITION_BYTES = 8
_MAX_KNOWN = 64


class EqualityRun(msgspec.Struct, frozen=True):
    """Equality deletes that are a run of a list: those from `start` up to `stop`, without it.

    `places` says where in the list a delete file stands, by path; runs of one list have the very same.
    """

    places: Mapping[str, int]
    start: int
    stop: int

    def ends_as(self, other: "EqualityRun") -> bool:
        """Whether both go to the same place of one list, so that the longer one has all of the other."""
        return self.places is other.places and self.stop == other.stop


class Kinds(msgspec.Struct, frozen=True):
    """The delete files of a data file by their kinds.

    Attributes:
        by_position: deletes of positions.
        by_equality: those of equality by the ids that they compare, in whatever order these are written.
        run: what all of these are, if they are one run.
    """

    by_position: Sequence[DataFile]
    by_equality: dict[tuple[int, ...], list[DataFile]]
    run: EqualityRun | None = None


class KindsOfParts:
    """Tells the kinds of the delete files of data files, whose deletes are parts of one list.

    Equality deletes of one run are told apart once; data files that have the same ones are given the same dictionary.
    """

    def __init__(self) -> None:
        self._whole: Sequence[DataFile] = ()
        self._places: dict[str, int] = {}
        self._known: dict[PositionSet, dict[tuple[int, ...], list[DataFile]]] = {}

    def by_kind(self, deletes: Sequence[DataFile]) -> Kinds:
        """The kinds of some delete files; raises as `deletes_by_kind`."""
        if not isinstance(deletes, Part):
            return deletes_by_kind(deletes)
        if deletes.whole is not self._whole:
            self._begin(deletes.whole)
        of_equality = deletes.positions & of_spans([(0, len(self._places))])
        rest = deletes_by_kind(Part(self._whole, deletes.positions - of_equality))
        if rest.by_equality:
            # They do not come first in the list.
            return deletes_by_kind(deletes)
        if of_equality not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[of_equality] = deletes_by_kind(Part(self._whole, of_equality)).by_equality
        run = None
        if is_span(of_equality):
            run = EqualityRun(self._places, of_equality.min(), of_equality.max() + 1)
        return Kinds(rest.by_position, self._known[of_equality], run)

    def _begin(self, whole: Sequence[DataFile]) -> None:
        self._whole, self._known = whole, {}
        first = takewhile(lambda one: one.content is FileContent.EQUALITY_DELETES, whole)
        self._places = {one.file_path: place for place, one in enumerate(first)}


def deletes_by_kind(deletes: Iterable[DataFile]) -> Kinds:
    """Tell the kinds of delete files.

    Raises:
        InvalidTableError: equality deletes compare nothing.
        IcekeepBug: a file is none of deletes.
    """
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
                by_equality.setdefault(_in_order(file.equality_ids), []).append(file)
            case _:
                raise IcekeepBug(f"{file.file_path!r} is a data file, not a delete file")
    return Kinds(by_position, by_equality)


@lru_cache(maxsize=128)
def _in_order(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Each id once, ascending; a data file asks it of each of its delete files, which have few ids among them."""
    return tuple(sorted(set(ids)))


def deleted_positions(storage: Storage, files: Sequence[DataFile], path: str, cache: DeleteCache) -> Positions:
    """The positions in the data file at `path` that any of some delete files deletes.

    Raises:
        InvalidTableError: there are two deletion vectors, or a delete file is not what its entry says.
        UnsupportedError: a delete file is encrypted, or needs a feature of its format that we do not handle.
        IcekeepBug: a deletion vector is another data file's.
    """
    vectors = [file for file in files if is_deletion_vector(file)]
    if len(vectors) > 1:
        raise InvalidTableError(
            f"data file {path!r} has {len(vectors)} deletion vectors; it may have one", location=path
        )
    found = [_vector_positions(storage, file, path) for file in vectors]
    found += [_file_positions(storage, file, path, cache) for file in files if not is_deletion_vector(file)]
    return np.concatenate(found)


def equality_keys(
    storage: Storage,
    files: list[DataFile],
    schema: Schema,
    ids: tuple[int, ...],
    cache: DeleteCache,
    run: EqualityRun | None = None,
    name_mapping: NameMapping | None = None,
) -> Iterator[pa.Table]:
    """The keys of equality delete files, batch by batch; what is small enough is kept for the next who asks.

    Args:
        schema: the columns that `ids` name, as `leaf_schema` makes it.
        run: what all the files are in; with it there is one column more, the place of a key's file.
        name_mapping: the table's.

    Raises:
        InvalidTableError: a delete file is damaged, or does not fit the schema.
        UnsupportedError: a delete file is encrypted, or needs a feature of its format that we do not handle.
    """
    # The types as well: promoted ones have other values to compare.
    types = str(schema.as_struct())
    for file in files:
        key = (file.file_path, ids, types, name_mapping)
        for batch in _keys_of_file(storage, file, schema, ids, key, cache, name_mapping):
            if run is None:
                yield batch
            else:
                place = np.full(batch.num_rows, run.places[file.file_path])
                yield batch.append_column("place", pa.array(place))


def _keys_of_file(
    storage: Storage,
    file: DataFile,
    schema: Schema,
    ids: tuple[int, ...],
    key: Hashable,
    cache: DeleteCache,
    name_mapping: NameMapping | None,
) -> Iterator[pa.Table]:
    known = cache.get(key)
    if known is not None:
        yield from known
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
            if len(known) == 1:
                cache.proven.add(path_pair_digest(file.file_path, next(iter(known)).encode()))
            size_bytes = sum(len(text) + positions.nbytes for text, positions in known.items())
            cache.keep(key, known, size_bytes)
    if known is None:
        return read_position_deletes(storage, file, path)
    found: Positions = known.get(path, np.empty(0, np.int64))
    return found


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
        batch_rows: BatchChoice | None = None,
    ) -> Iterator[pa.Table]:
        """Read pieces one after the other, in batches where `batch_rows` says so.

        Args:
            residual: a bound filter; rows that do not match are left out.

        Raises:
            MissingFileError: a file is not there.
            InvalidTableError: a file is damaged, does not fit the schemas or has not the rows that it must have, or a
                delete file is not what its entry says.
            UnsupportedError: a file is encrypted, or needs a feature of its format that we do not handle.
            IcekeepBug: a delete file is none, or there are deletes that another data file has.
        """
        for plan, table, noted in _joined(self._tables(pieces, residual, batch_rows), self._piece_bytes):
            if plan.changes_rows:
                table = self._without_deleted(table, plan, noted)
            if table.num_rows:
                yield table

    def _tables(
        self, pieces: Iterable[LivePiece], residual: Expression, batch_rows: BatchChoice | None
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
