"""A table with nested columns, and what comes of changes of its schema: for tests of schema evolution."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.errors import UsageError
from icekeep.spec.evolution import SchemaChange, evolve_schema
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import UNSORTED, SortOrder
from icekeep.spec.types import DATE, FLOAT, INT, LONG, ListType, MapType, NestedField, StructType, Type


def field(field_id: int, name: str, type_: Type, required: bool = False, **more: Any) -> NestedField:
    """A column, optional unless told otherwise."""
    return NestedField(field_id=field_id, name=name, type=type_, required=required, **more)


POINT = StructType((field(7, "x", INT, required=True), field(8, "y", FLOAT)))
COLUMNS = Schema(
    fields=(
        field(1, "id", LONG, required=True, doc="the key"),
        field(2, "day", DATE),
        field(3, "point", POINT, required=True),
        field(4, "points", ListType(element_id=9, element=StructType((field(10, "x", INT),)))),
        field(
            5,
            "m",
            MapType(
                key_id=11,
                key=StructType((field(13, "k", INT, required=True),)),
                value_id=12,
                value=StructType((field(14, "v", INT),)),
            ),
        ),
        field(6, "ints", ListType(element_id=15, element=INT, element_required=True)),
    ),
    identifier_field_ids=(1,),
)


def table(
    schema: Schema = COLUMNS, *, version: int = 3, spec: PartitionSpec = UNPARTITIONED, order: SortOrder = UNSORTED
) -> TableMetadata:
    """Metadata of a table without snapshots, its last field id 15."""
    return new_table_metadata(
        schema=schema,
        spec=spec,
        location="s3://b/t",
        table_uuid="u",
        now_ms=0,
        sort_order=order,
        format_version=version,
    )


def evolved(*changes: SchemaChange, base: TableMetadata | None = None) -> Schema:
    """The schema after changes."""
    return evolve_schema(table() if base is None else base, changes).schema


def committed(base: TableMetadata, *changes: SchemaChange) -> TableMetadata:
    """The table after changes, its new schema the current one."""
    evolution = evolve_schema(base, changes)
    schemas = base.schemas
    if evolution.schema.schema_id not in base.schemas_by_id:
        schemas = (*base.schemas, evolution.schema)
    return replace(
        base, schemas=schemas, current_schema_id=evolution.schema.schema_id, last_column_id=evolution.last_column_id
    )


def refused(*changes: SchemaChange, base: TableMetadata | None = None, error: type[Exception] = UsageError) -> str:
    """The message of the error that refuses changes."""
    with pytest.raises(error) as raised:
        evolved(*changes, base=base)
    return str(raised.value)


def ids(schema: Schema, *names: str) -> list[int]:
    """The field ids of columns by full names."""
    return [schema.field(name).field_id for name in names]
