"""Whether files that a rewrite has read are read today as what it wrote is."""

from collections.abc import Iterable

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.formats.arrow.schema import all_have_ids, field_ids
from icekeep.formats.reader import open_reader
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage


def refuse_other_columns(table: Table, rewrite: Snapshot, files: Iterable[DataFile]) -> None:
    """Raise `CannotMendError` where a column of the table may have other values in files than the rewrite found there.

    What the rewrite wrote has the columns of its own schema. A column that it did not know is null there, or its default, and
    is so in the files, too, unless these have it: it was dropped before, and came back with the same id. A column that it knew
    reads the same, since readers promote types alike, and an initial default never changes (spec, "Schema Evolution").
    """
    schema = _schema_of(table, rewrite)
    now = table.metadata.schema.fields_by_id
    unknown = now.keys() - schema.fields_by_id.keys()
    for field_id in now.keys() & schema.fields_by_id.keys():
        if now[field_id].initial_default != schema.fields_by_id[field_id].initial_default:
            raise CannotMendError(f"the default of column {field_id} is another one than when the file was written")
    for file in files:
        ids = _ids_of(table.storage, file)
        if unknown & ids:
            name = table.metadata.schema.names_by_id[min(unknown & ids)]
            raise CannotMendError(
                f"column {name!r} was not there when the file was written, and {file.file_path!r} has values of it"
            )


def _schema_of(table: Table, rewrite: Snapshot) -> Schema:
    schema = None if rewrite.schema_id is None else table.metadata.schemas_by_id.get(rewrite.schema_id)
    if schema is None:
        raise CannotMendError(f"snapshot {rewrite.snapshot_id}, which added it, does not say in which columns")
    return schema


def _ids_of(storage: Storage, file: DataFile) -> set[int]:
    """Without ids columns are found by names, and no metadata says which these were then."""
    try:
        with open_reader(storage, file.file_path, file.file_format) as reader:
            if not all_have_ids(reader.schema):
                raise CannotMendError(
                    f"file {file.file_path!r}, which the rewrite has read, has columns without field ids"
                )
            return field_ids(reader.schema)
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"file {file.file_path!r} cannot be read: {first_line(error)}") from error
