"""Create a table, for those who have no other engine."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError
from icekeep.formats.arrow.schema import iceberg_schema
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, new_table_metadata
from icekeep.spec.partitioning import build_spec
from icekeep.spec.schema import Schema, assign_fresh_ids, check_format_version


def create_table(
    catalog: Catalog,
    identifier: str | Identifier,
    schema: Schema | pa.Schema,
    *,
    partition_by: Iterable[tuple[str, str] | tuple[str, str, str]] = (),
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
    format_version: int = 2,
) -> Table:
    """Create an empty table; its namespace must exist.

    Args:
        identifier: the table's name in the catalog, as `db.events` or its parts.
        schema: the columns; they get new field ids.
        partition_by: a column, a transform such as `month` or `bucket[16]`, and perhaps a name, for each partition field.
        location: where the table's files go; below the catalog's warehouse if `None`.
        properties: the table's, by Iceberg's names.
        format_version: 1, 2 or 3.

    Raises:
        UsageError: the table exists already, `partition_by` does not fit the schema, or there is no such format version.
        NotFoundError: the catalog has no such namespace, or the schema no such column.
        UnsupportedError: a column's type or default has no place in a table of that version.
        InvalidTableError: the columns make no schema, such as two of one name.
    """
    identifier = as_identifier(identifier)
    columns = assign_fresh_ids(schema if isinstance(schema, Schema) else iceberg_schema(schema))
    _validate_version(columns, format_version)
    spec = build_spec(columns, [(*field, None)[:3] for field in partition_by])
    metadata = new_table_metadata(
        schema=columns,
        spec=spec,
        location=location or catalog.default_location(identifier),
        table_uuid=str(catalog.runtime.new_uuid()),
        now_ms=catalog.runtime.now_ms(),
        properties=properties,
        format_version=format_version,
    )
    return catalog.create(identifier, metadata)


def _validate_version(columns: Schema, format_version: int) -> None:
    if not 1 <= format_version <= SUPPORTED_FORMAT_VERSION:
        raise UsageError(f"there is no format version {format_version}; give 1 to {SUPPORTED_FORMAT_VERSION}")
    try:
        check_format_version(columns, format_version)
    except InvalidTableError as error:
        raise UnsupportedError(error.message, **error.facts) from error
