"""Data and delete files of any format into the columns of a schema: the one way in which rows are read.

The order in which a column is looked for is the spec's ("Column Projection"): the file, the partition, a name under which
the table maps it, its `initial-default`, null. Metadata columns (`spec.metadata_columns`) are filled in from what
manifests say of the file.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.projection import (
    all_have_ids,
    has_ids,
    is_same,
    project,
    projected_columns,
    refuse_unidentified,
    with_mapped_ids,
)
from icekeep.formats.arrow.schema import FIELD_ID_KEY, arrow_field, constant_array, field_id
from icekeep.formats.avro import AvroReader
from icekeep.formats.base import BatchChoice, FileReader, PartChoice, SizesOfColumns, translated
from icekeep.formats.filter import parts_that_may_match
from icekeep.formats.orc import OrcReader
from icekeep.formats.parquet.reader import ParquetReader
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.schema import (
    DELETED,
    FILE,
    LAST_UPDATED_SEQUENCE_NUMBER,
    PARTITION_ID,
    POS,
    ROW_ID,
    SPEC_ID,
    NameMapping,
    Schema,
)
from icekeep.spec.types import NestedField
from icekeep.storage.base import Storage

_READERS: dict[str, Callable[[BinaryIO], FileReader]] = {"PARQUET": ParquetReader, "ORC": OrcReader, "AVRO": AvroReader}

_FACTS = {FILE.field_id, POS.field_id, DELETED.field_id, SPEC_ID.field_id, PARTITION_ID}
"""Columns that no file stores."""

_LINEAGE = {ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id}


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to read, and what manifests and the table say of it.

    Attributes:
        location: of the file.
        file_format: as manifests say it, in any case.
        noun: what errors call it.
        constants: values of columns that the file may lack since the partition says them (identity transforms), by id
            of the source column.
        name_mapping: the table's, for columns without field ids.
        spec_id: of the file's partition spec.
        partition: the file's partition values by id of the partition field, for `_partition`.
        first_row_id: the `_row_id` of the first row, `None` where rows have none.
        data_sequence_number: `_last_updated_sequence_number` of the rows that store none.
        deleted_positions: of the rows that delete files remove, for `_deleted`, in any order, those beyond the file's end
            among them; the rows themselves are read.
    """

    location: str
    file_format: str = "PARQUET"
    noun: str = "data file"
    constants: Mapping[int, Any] = {}
    name_mapping: NameMapping | None = None
    spec_id: int = 0
    partition: Mapping[int, Any] = {}
    first_row_id: int | None = None
    data_sequence_number: int | None = None
    deleted_positions: Sequence[int] | NDArray[np.int64] = ()


class FileColumns:
    """How the columns of files become those of a schema: worked out anew only where a file differs from the one before.

    A task hands one to every reading of its files, which most often have the same columns.
    """

    def __init__(self, schema: Schema, kept_dictionaries: Collection[int] = ()) -> None:
        """`kept_dictionaries` are field ids of top-level string columns that need not be decoded."""
        self.schema = schema
        self.has_facts = any(field.field_id in _FACTS | _LINEAGE for field in schema.fields)
        self._stored = msgspec.structs.replace(
            schema, fields=tuple(field for field in schema.fields if field.field_id not in _FACTS)
        )
        self._kept_dictionaries = kept_dictionaries
        self._key: tuple[Any, ...] = ()
        self._found: _Found | None = None
        self._same: tuple[pa.Schema, list[int], pa.Schema, list[int]] | None = None

    def find(self, file_schema: pa.Schema, source: SourceFile) -> "_Found":
        """The columns of a file that are wanted; raises `InvalidTableError` and `UnsupportedError` as `read_file` does."""
        key = (source.name_mapping, source.constants.keys())
        if self._found is None or key != self._key or not self._found.stored.equals(file_schema, check_metadata=True):
            self._found, self._key, self._same = self._find(file_schema, source), key, None
        return self._found

    def projected(self, data: pa.Table, found: "_Found", constants: Mapping[int, Any]) -> pa.Table:
        """What was read of a file in the columns of the schema that files store."""
        if self._same is not None and found is self._found and data.schema.equals(self._same[0], check_metadata=True):
            _, positions, schema, required = self._same
            columns = [data.column(position) for position in positions]
            if not any(columns[number].null_count for number in required):
                return pa.Table.from_arrays(columns, schema=schema)
        selected = _selected(data, found.schema, found.names)
        table = project(selected, self._stored, constants)
        self._same = _same_columns(data, selected, table)
        return table

    def _find(self, file_schema: pa.Schema, source: SourceFile) -> "_Found":
        named = identified(file_schema, source)
        # A file of which the mapping names nothing has ids nevertheless: it is known that none of its columns is wanted.
        known = named if source.name_mapping is None or has_ids(named) else pa.schema([])
        names = projected_columns(known, self._stored)
        refuse_unidentified(named, self._stored, source.constants)
        for name in names:
            if len(known.get_all_field_indices(name)) > 1:
                raise InvalidTableError(f"it has two columns named {name!r}")
        kept = [f.name for f in known if field_id(f) in self._kept_dictionaries and f.type == pa.string()]
        return _Found(stored=file_schema, schema=known, names=names, kept=kept)


class _Found(msgspec.Struct, frozen=True):
    """The columns of a file.

    Attributes:
        stored: as the file describes them.
        schema: the same with field ids.
        names: of those that are wanted.
        kept: names of those of which dictionaries are kept.
    """

    stored: pa.Schema
    schema: pa.Schema
    names: list[str]
    kept: list[str]


def read_file(
    storage: Storage,
    source: SourceFile,
    schema: Schema | FileColumns,
    parts: Sequence[int] | PartChoice | None = None,
    *,
    batch_rows: int | BatchChoice | None = None,
) -> Iterator[pa.Table]:
    """Read a file in the columns of a schema, a part (row group, stripe, some blocks) at a time.

    Args:
        storage: where the file is.
        source: the file.
        schema: the columns that are wanted, metadata columns among them; see `project` for how the file's become these.
        parts: positions of the row groups or stripes to read, or what picks them; all of them if None.
        batch_rows: the most rows to hold at once, or what picks them, where the format can read less than a part.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it is damaged, or does not fit the schema.
        UnsupportedError: a column has no field id that the file or the name mapping tells, or the format is not known.
    """
    for _, table in read_positioned(storage, source, schema, parts, batch_rows=batch_rows):
        yield table


def read_positioned(
    storage: Storage,
    source: SourceFile,
    schema: Schema | FileColumns,
    parts: Sequence[int] | PartChoice | None = None,
    *,
    batch_rows: int | BatchChoice | None = None,
    needed: Expression = ALWAYS_TRUE,
) -> Iterator[tuple[int, pa.Table]]:
    """The tables of `read_file`, each with the position of its first row in the file; raises as it does.

    Args:
        needed: a bound filter; parts that hold no row which matches it, by what the file says of them, are left out.
    """
    columns = schema if isinstance(schema, FileColumns) else FileColumns(schema)
    deleted = np.unique(np.asarray(source.deleted_positions, dtype=np.int64))
    with storage.open(source.location) as stream:
        with translated(source.location, source.noun):
            reader = _open(stream, source.file_format)
            found = columns.find(reader.schema, source)
            parts = parts(reader) if callable(parts) else parts
            if needed != ALWAYS_TRUE:
                parts = parts_that_may_match(reader, found.schema, parts, needed)
            batch_rows = batch_rows(SizesOfColumns(reader, found.names)) if callable(batch_rows) else batch_rows
            steps = reader.tables(found.names, parts, found.kept, batch_rows)
        while True:
            with translated(source.location, source.noun):
                step = next(steps, None)
                if step is None:
                    return
                first, data = step
                table = columns.projected(data, found, source.constants)
                if columns.has_facts:
                    table = _with_facts(table, columns.schema, source, deleted, range(first, first + data.num_rows))
            yield first, table


@contextmanager
def open_reader(storage: Storage, location: str, file_format: str, noun: str = "data file") -> Iterator[FileReader]:
    """An open data file, or whatever errors are to call it, to look at; raises what `read_file` raises."""
    with storage.open(location) as stream, translated(location, noun):
        yield _open(stream, file_format)


def _open(stream: BinaryIO, file_format: str) -> FileReader:
    opened = _READERS.get(file_format.upper())
    if opened is None:
        raise UnsupportedError(f"its format {file_format!r} is not known; data files are {', '.join(_READERS)}")
    return opened(stream)


def identified(file_schema: pa.Schema, source: SourceFile) -> pa.Schema:
    """A file's schema with the field ids that it has and the name mapping gives; what the partition says goes before names."""
    if source.name_mapping is None or all_have_ids(file_schema):
        return file_schema
    return with_mapped_ids(file_schema, source.name_mapping, without=source.constants.keys())


def _selected(data: pa.Table, file_schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """The columns that were asked for, described as the file describes them."""
    if not columns:
        # A column that nobody wants, to say how many rows there are.
        return pa.Table.from_arrays([pa.nulls(data.num_rows)], schema=_NOTHING)
    chosen = data.select(list(columns))
    types = [column.type if pa.types.is_dictionary(column.type) else None for column in chosen.columns]
    fields = [
        field if type_ is None else field.with_type(type_)
        for field, type_ in zip(map(file_schema.field, columns), types, strict=True)
    ]
    return pa.Table.from_arrays(chosen.columns, schema=pa.schema(fields))


def _same_columns(
    data: pa.Table, selected: pa.Table, table: pa.Table
) -> tuple[pa.Schema, list[int], pa.Schema, list[int]] | None:
    """Where a projection did no more than put columns in order: the schema before, the order, the schema after, and which
    columns of it are required.
    """
    positions = {field_id(field): data.schema.get_field_index(field.name) for field in selected.schema}
    order: list[int] = []
    for field in table.schema:
        position = positions.get(field_id(field), -1)
        if position < 0 or not is_same(data.schema.field(position).type, field.type):
            return None
        order.append(position)
    required = [number for number, field in enumerate(table.schema) if not field.nullable]
    return data.schema, order, table.schema, required


_NOTHING = pa.schema([pa.field("", pa.null(), metadata={FIELD_ID_KEY: b"0"})])


def _with_facts(
    table: pa.Table, schema: Schema, source: SourceFile, deleted: NDArray[np.int64], positions: range
) -> pa.Table:
    """The table with the columns that no file stores, and row ids for rows that have none."""
    columns, fields = [], []
    stored = iter(zip(table.columns, table.schema, strict=True))
    for field in schema.fields:
        if field.field_id == DELETED.field_id:
            column, arrow = _marks(deleted, positions), arrow_field(field)
        elif field.field_id in _FACTS:
            column, arrow = _fact(field, source, positions), arrow_field(field)
        else:
            column, arrow = next(stored)
            if field.field_id in _LINEAGE:
                column = _inherited(column, field.field_id, source, positions.start)
        columns.append(column)
        fields.append(arrow)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _marks(deleted: NDArray[np.int64], positions: range) -> pa.Array:
    """Which rows of a part are among those that are deleted, whose positions are sorted."""
    start, stop = np.searchsorted(deleted, (positions.start, positions.stop))
    marks = np.zeros(len(positions), dtype=bool)
    marks[deleted[start:stop] - positions.start] = True
    return pa.array(marks)


def _fact(field: NestedField, source: SourceFile, positions: range) -> pa.Array:
    if field.field_id == POS.field_id:
        return pa.array(np.arange(positions.start, positions.stop, dtype=np.int64))
    value: Any = {FILE.field_id: source.location, SPEC_ID.field_id: source.spec_id}.get(
        field.field_id, dict(source.partition)
    )
    return constant_array(field.type, value, len(positions))


def _inherited(stored: Any, field_id: int, source: SourceFile, first: int) -> Any:
    """Row lineage: what the file stores of it, else what the row inherits; null where the file has no first row id.

    A row inherits the data sequence number, not the file's own (spec, "Row Lineage", "Reading Files With Row Lineage"). They
    differ for files that a rewrite added under the number that it started from. Iceberg Java does the same since 1.12
    (`PartitionUtil.constantsMap`, apache/iceberg#17039); up to 1.11 it took the file's.
    """
    if source.first_row_id is None:
        return pa.nulls(len(stored), pa.int64())
    if field_id == LAST_UPDATED_SEQUENCE_NUMBER.field_id:
        return pc.fill_null(stored, pa.scalar(source.data_sequence_number, pa.int64()))
    start = source.first_row_id + first
    return pc.coalesce(stored, pa.array(np.arange(start, start + len(stored), dtype=np.int64)))
