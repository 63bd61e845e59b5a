"""Reads data and delete files of any format in the columns of a schema.

A column is looked for in the order of the spec ("Column Projection"): the file, the partition, the table's name mapping, its
`initial-default`, null. Metadata columns are filled in from the file's manifest entry.
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
from icekeep.formats.arrow.projection import constant_array, is_same, project, projected_columns, refuse_unidentified
from icekeep.formats.arrow.schema import FIELD_ID_KEY, all_have_ids, arrow_field, field_id, has_ids, with_mapped_ids
from icekeep.formats.avro import AvroReader
from icekeep.formats.base import BatchChoice, FileReader, PartChoice, translated
from icekeep.formats.evaluate import parts_that_may_match
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
from icekeep.storage.base import Storage

_READERS: dict[str, Callable[[BinaryIO], FileReader]] = {"PARQUET": ParquetReader, "ORC": OrcReader, "AVRO": AvroReader}

_NEVER_STORED = {FILE.field_id, POS.field_id, DELETED.field_id, SPEC_ID.field_id, PARTITION_ID}
"""Columns that no file stores."""

_LINEAGE = {ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id}


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to read, and its facts from manifests and the table.

    Attributes:
        noun: what errors call the file.
        constants: values of columns that the file may lack because the partition gives them (identity transforms), by source id.
        partition: partition values by id of the partition field, for `_partition`.
        first_row_id: the `_row_id` of the first row, `None` where rows have none.
        data_sequence_number: the `_last_updated_sequence_number` of rows that store none.
        deleted_positions: of rows that delete files remove, for `_deleted`, in any order, and possibly beyond the file's end;
            the rows themselves are read.
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


class ColumnsOfFile(msgspec.Struct, frozen=True):
    """The names of the columns of a file that a schema needs, `kept` those of them that are read as dictionaries.

    `stored` is the file's schema as the file describes it, `schema` the same with field ids.
    """

    stored: pa.Schema
    schema: pa.Schema
    names: list[str]
    kept: list[str]


class FileColumns:
    """How the columns of files become those of a schema; computed again only where a file differs from the one before.

    A task shares one among all its files, which most often have the same columns.
    """

    def __init__(self, schema: Schema, kept_dictionaries: Collection[int] = ()) -> None:
        """`kept_dictionaries` are field ids of top-level string columns that may stay dictionary-encoded."""
        self.schema = schema
        self.has_metadata_columns = any(field.field_id in _NEVER_STORED | _LINEAGE for field in schema.fields)
        self._stored = msgspec.structs.replace(
            schema, fields=tuple(field for field in schema.fields if field.field_id not in _NEVER_STORED)
        )
        self._kept_dictionaries = kept_dictionaries
        self._key: tuple[Any, ...] = ()
        self._last: ColumnsOfFile | None = None
        self._reordering: tuple[pa.Schema, list[int], pa.Schema] | None = None

    def find(self, file_schema: pa.Schema, source: SourceFile) -> ColumnsOfFile:
        """The columns of a file that the schema needs; raises `InvalidTableError` and `UnsupportedError` as `read_file`."""
        key = (source.name_mapping, source.constants.keys())
        if self._last is not None and key == self._key and self._last.stored.equals(file_schema, check_metadata=True):
            return self._last
        named = identified(file_schema, source)
        # A file without ids, of which the mapping names nothing, is no error: certainly none of its columns is needed.
        with_ids = named if source.name_mapping is None or has_ids(named) else pa.schema([])
        names = projected_columns(with_ids, self._stored)
        refuse_unidentified(named, self._stored, source.constants)
        for name in names:
            if len(with_ids.get_all_field_indices(name)) > 1:
                raise InvalidTableError(f"it has two columns named {name!r}")
        kept = [f.name for f in with_ids if field_id(f) in self._kept_dictionaries and f.type == pa.string()]
        self._last = ColumnsOfFile(stored=file_schema, schema=with_ids, names=names, kept=kept)
        self._key, self._reordering = key, None
        return self._last

    def projected(self, data: pa.Table, of_file: ColumnsOfFile, constants: Mapping[int, Any]) -> pa.Table:
        if self._reordering is not None and of_file is self._last:
            before, order, after = self._reordering
            if data.schema.equals(before, check_metadata=True):
                columns = [data.column(position) for position in order]
                if all(field.nullable or not column.null_count for field, column in zip(after, columns, strict=True)):
                    return pa.Table.from_arrays(columns, schema=after)
        selected = _described(data, of_file)
        table = project(selected, self._stored, constants)
        # Where the projection only reordered columns, the next data needs none.
        positions = {field_id(field): data.schema.get_field_index(field.name) for field in selected.schema}
        order = [positions.get(field_id(field), -1) for field in table.schema]
        is_reordered = all(
            position >= 0 and is_same(data.schema.field(position).type, field.type)
            for position, field in zip(order, table.schema, strict=True)
        )
        self._reordering = (data.schema, order, table.schema) if is_reordered else None
        return table


def read_file(
    storage: Storage,
    source: SourceFile,
    schema: Schema | FileColumns,
    parts: Sequence[int] | PartChoice | None = None,
    *,
    batch_rows: int | BatchChoice | None = None,
) -> Iterator[pa.Table]:
    """Read a file in the columns of a schema, which may include metadata columns, a part (row group, stripe) at a time.

    `parts` are the positions of those to read, or a function that chooses them; `batch_rows` is the most rows to hold at a time,
    where the format can read less than a part. Raises `InvalidTableError` if the file is damaged, or does not fit the schema, and
    `UnsupportedError` if a column has no field id in the file or the name mapping, or the format is unknown.
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

    Parts in which no row matches the bound filter `needed`, by the file's own metrics, are skipped.
    """
    columns = schema if isinstance(schema, FileColumns) else FileColumns(schema)
    deleted = np.unique(np.asarray(source.deleted_positions, dtype=np.int64))
    with storage.open(source.location) as stream:
        with translated(source.location, source.noun):
            reader = _open(stream, source.file_format)
            of_file = columns.find(reader.schema, source)
            parts = parts(reader) if callable(parts) else parts
            if needed != ALWAYS_TRUE:
                parts = parts_that_may_match(reader, of_file.schema, parts, needed)
            batch_rows = batch_rows(reader.largest_part(of_file.names)) if callable(batch_rows) else batch_rows
            steps = reader.tables(of_file.names, parts, of_file.kept, batch_rows)
        while True:
            with translated(source.location, source.noun):
                step = next(steps, None)
                if step is None:
                    return
                first, data = step
                table = columns.projected(data, of_file, source.constants)
                if columns.has_metadata_columns:
                    table = _with_metadata_columns(
                        table, columns.schema, source, deleted, range(first, first + data.num_rows)
                    )
            yield first, table


@contextmanager
def open_reader(storage: Storage, location: str, file_format: str, noun: str = "data file") -> Iterator[FileReader]:
    """An open file to inspect, called `noun` in errors; raises what `read_file` raises."""
    with storage.open(location) as stream, translated(location, noun):
        yield _open(stream, file_format)


def _open(stream: BinaryIO, file_format: str) -> FileReader:
    opened = _READERS.get(file_format.upper())
    if opened is None:
        raise UnsupportedError(f"its format {file_format!r} is not known; data files are {', '.join(_READERS)}")
    return opened(stream)


def identified(file_schema: pa.Schema, source: SourceFile) -> pa.Schema:
    """A file's schema with its own ids and those of the name mapping, but for columns whose value the partition gives."""
    if source.name_mapping is None or all_have_ids(file_schema):
        return file_schema
    return with_mapped_ids(file_schema, source.name_mapping, without=source.constants.keys())


def _described(data: pa.Table, of_file: ColumnsOfFile) -> pa.Table:
    """The needed columns under the file's schema, but for dictionaries that were kept."""
    if not of_file.names:
        # A column that no schema has, to carry the number of rows.
        field = pa.field("", pa.null(), metadata={FIELD_ID_KEY: b"0"})
        return pa.Table.from_arrays([pa.nulls(data.num_rows)], schema=pa.schema([field]))
    columns = data.select(of_file.names).columns
    fields = [
        field.with_type(column.type) if pa.types.is_dictionary(column.type) else field
        for field, column in zip(map(of_file.schema.field, of_file.names), columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _with_metadata_columns(
    table: pa.Table, schema: Schema, source: SourceFile, deleted: NDArray[np.int64], positions: range
) -> pa.Table:
    """Add the columns that no file stores, and row lineage for rows that have none; `deleted` is sorted.

    A row inherits the data sequence number, not the file's own (spec, "Row Lineage", "Reading Files With Row Lineage"). They
    differ for files that a rewrite added under the number that it started from. Iceberg Java does the same since 1.12
    (`PartitionUtil.constantsMap`, apache/iceberg#17039); up to 1.11 it took the file's.
    """
    numbers = np.arange(positions.start, positions.stop, dtype=np.int64)
    constants = {FILE.field_id: source.location, SPEC_ID.field_id: source.spec_id, PARTITION_ID: dict(source.partition)}
    columns, fields = [], []
    stored = iter(zip(table.columns, table.schema, strict=True))
    for field in schema.fields:
        id_ = field.field_id
        column, arrow = (None, arrow_field(field)) if id_ in _NEVER_STORED else next(stored)
        if id_ == DELETED.field_id:
            start, stop = np.searchsorted(deleted, (positions.start, positions.stop))
            marks = np.zeros(len(positions), dtype=bool)
            marks[deleted[start:stop] - positions.start] = True
            column = pa.array(marks)
        elif id_ == POS.field_id:
            column = pa.array(numbers)
        elif id_ in constants:
            column = constant_array(field.type, constants[id_], len(positions))
        elif source.first_row_id is None and id_ in _LINEAGE:
            column = pa.nulls(len(positions), pa.int64())
        elif source.first_row_id is not None and id_ == ROW_ID.field_id:
            column = pc.coalesce(column, pa.array(numbers + source.first_row_id))
        elif id_ == LAST_UPDATED_SEQUENCE_NUMBER.field_id:
            column = pc.fill_null(column, pa.scalar(source.data_sequence_number, pa.int64()))
        columns.append(column)
        fields.append(arrow)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
