"""Create a table, for those who have no other engine."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier
from icekeep.errors import UnsupportedError
from icekeep.formats.arrow_schema import iceberg_schema
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.partitioning import build_spec
from icekeep.spec.schema import Schema, assign_fresh_ids
from icekeep.spec.types import PrimitiveType

_VERSION_3_TYPES = {"timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography"}


def create_table(
    catalog: Catalog,
    identifier: str | Identifier,
    schema: Schema | pa.Schema,
    *,
    partition_by: Iterable[tuple[str, str] | tuple[str, str, str]] = (),
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
    runtime: Runtime = SYSTEM,
) -> Table:
    """Create an empty format version 2 table; its namespace must exist.

    Args:
        schema: the columns; their field ids are assigned anew.
        partition_by: a column, a transform such as `month` or `bucket[16]`, and perhaps a name, for each partition field.
        location: where the table's files go; below the catalog's warehouse if null.

    Raises:
        UsageError: the table exists already, or `partition_by` does not fit the schema.
        NotFoundError: the catalog has no such namespace, or the schema no such column.
        UnsupportedError: a column's type or default has no place in a version 2 table.
        InvalidTableError: the columns make no schema, such as two of one name.
    """
    identifier = as_identifier(identifier)
    columns = assign_fresh_ids(schema if isinstance(schema, Schema) else iceberg_schema(schema))
    _refuse_version_3(columns)
    spec = build_spec(columns, [(*field, None)[:3] for field in partition_by])
    metadata = new_table_metadata(
        schema=columns,
        spec=spec,
        location=location or catalog.default_location(identifier),
        table_uuid=str(runtime.new_uuid()),
        now_ms=runtime.now_ms(),
        properties=properties,
    )
    return catalog.create(identifier, metadata)


def _refuse_version_3(columns: Schema) -> None:
    for field_id, field in columns.fields_by_id.items():
        name = columns.names_by_id[field_id]
        if isinstance(field.type, PrimitiveType) and field.type.name in _VERSION_3_TYPES:
            raise UnsupportedError(
                f"column {name!r} is of type {field.type}, which only format version 3 has; give it another type",
                column=name,
            )
        if field.initial_default is not None or field.write_default is not None:
            raise UnsupportedError(f"column {name!r} has a default, which only format version 3 has", column=name)
