"""Position delete files and vectors under another prefix: the same rows in the same order, with other paths in them."""

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.schema import field_id, iceberg_schema
from icekeep.formats.base import FileReader
from icekeep.formats.deletes.read import (
    DELETE_FILE,
    POSITION_COLUMNS,
    delete_source,
    delete_write_options,
    position_tables,
    validate_plain,
)
from icekeep.formats.puffin import FILE_FORMAT, with_references_changed
from icekeep.formats.reader import identified, open_reader
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.properties import FULL
from icekeep.spec.relocation import PathChange
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_ROW_ID, Schema
from icekeep.storage.base import Storage


def write_relocated_deletes(
    storage: Storage, file: DataFile, change: PathChange, target: Storage, location: str
) -> int:
    """Write a position delete file, or a file of vectors, for data files under another prefix; returns its size in bytes.

    Vectors stay at their offsets.

    Args:
        storage: has the file.
        target: takes the new one at `location`.

    Raises:
        FileExistsError: the name is taken.
        InvalidTableError: the file is damaged, or deletes rows of a data file that is not under the source prefix.
        UnsupportedError: it is encrypted, or its format is unknown.
    """
    validate_plain(file)
    if file.file_format.upper() == FILE_FORMAT:
        data = _relocated_vectors(storage, file, change)
        with target.write(location) as stream:
            stream.write(data)
        return len(data)
    schema = _columns(storage, file)
    options = msgspec.structs.replace(
        delete_write_options({}, file.file_format, schema),
        metrics_modes={field.field_id: FULL for field in POSITION_COLUMNS.fields},
    )
    with DataFileWriter(target, schema, options, lambda: location, sort_order_id=None) as writer:
        for rows in _relocated_rows(storage, file, schema, change):
            writer.write(rows)
        (written,) = writer.close()
    return written.file_size_in_bytes


def holds_relocated_deletes(
    storage: Storage, file: DataFile, change: PathChange, target: Storage, location: str
) -> bool:
    """Whether the file at `location` holds what `write_relocated_deletes` writes there; raises as it does."""
    if file.file_format.upper() == FILE_FORMAT:
        return _relocated_vectors(storage, file, change) == target.read(location)
    schema = _columns(storage, file)
    there = msgspec.structs.replace(file, file_path=location)
    try:
        if _columns(target, there) != schema:
            return False
        found = [*position_tables(target, there, schema)]
    except InvalidTableError:
        return False
    meant = [*_relocated_rows(storage, file, schema, change)]
    return _plain(meant, schema).equals(_plain(found, schema))


def _relocated_vectors(storage: Storage, file: DataFile, change: PathChange) -> bytes:
    return with_references_changed(storage.read(file.file_path), file.file_path, change.path)


def _columns(storage: Storage, file: DataFile) -> Schema:
    """The columns of a position delete file; the values of deleted rows are of the type that they have in the file."""
    source = delete_source(file.file_path, file.file_format, FileContent.POSITION_DELETES)

    def column_of_rows(reader: FileReader) -> pa.Field | None:
        fields = identified(reader.schema, source)
        return next((one for one in fields if field_id(one) == DELETE_FILE_ROW_ID), None)

    with open_reader(storage, file.file_path, file.file_format, DELETE_FILE) as reader:
        field = column_of_rows(reader)
        if field is None:
            return POSITION_COLUMNS
        return Schema(fields=(*POSITION_COLUMNS.fields, *iceberg_schema(pa.schema([field])).fields))


def _relocated_rows(storage: Storage, file: DataFile, schema: Schema, change: PathChange) -> Iterator[pa.Table]:
    for rows in position_tables(storage, file, schema):
        encoded = rows.column(0).combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        if not pa.types.is_dictionary(encoded.type):
            encoded = encoded.dictionary_encode()
        try:
            paths = pa.array([change.path(path) for path in encoded.dictionary.to_pylist()], pa.string())
        except InvalidTableError as error:
            raise InvalidTableError(
                f"delete file {file.file_path!r} deletes rows of another place: {error.message}",
                location=file.file_path,
            ) from None
        changed = pa.DictionaryArray.from_arrays(encoded.indices, paths).cast(rows.schema.field(0).type)
        yield rows.set_column(0, rows.schema.field(0), changed)


def _plain(tables: list[pa.Table], schema: Schema) -> pa.Table:
    """Rows without dictionaries, in one piece."""
    path = DELETE_FILE_PATH.name
    plain = [table.set_column(0, path, pc.cast(table.column(0), pa.string())) for table in tables]
    if not plain:
        return pa.table({field.name: pa.nulls(0) for field in schema.fields})
    return pa.concat_tables(plain).combine_chunks()
