"""What a new schema must fit, beside itself: the table's format version, partition specs and sort order."""

from icekeep.errors import InvalidTableError, UsageError
from icekeep.spec.defaults import initial_value
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import validate_spec
from icekeep.spec.schema import Schema, check_format_version, validate_schema
from icekeep.spec.sorting import validate_sort_order
from icekeep.spec.transforms import Void
from icekeep.spec.types import StructType


def validate_evolution(base: TableMetadata, schema: Schema) -> None:
    """Raise `UsageError` if a schema cannot become the current one of a table; says which column and why.

    What the default partition spec and the default sort order use must stay, as in Iceberg's Java library; a column that
    only older specs use may go. No new name may be that of a partition field of any spec, unless the field is made of
    that very column: filters could not tell the two apart.
    """
    try:
        validate_schema(schema)
        check_format_version(schema, base.format_version)
        for field in schema.fields_by_id.values():
            if field.initial_default is not None:
                initial_value(field)
    except InvalidTableError as error:
        raise UsageError(f"the schema cannot change so: {error.message}", **error.facts) from error
    _refuse_empty_structs(schema)
    _refuse_dropped_sources(base, schema)
    _refuse_names_of_partition_fields(base, schema)
    try:
        validate_spec(base.spec, schema)
        validate_sort_order(base.sort_order, schema)
    except InvalidTableError as error:
        raise UsageError(f"the schema cannot change so: {error.message}") from error


def _refuse_empty_structs(schema: Schema) -> None:
    if not schema.fields:
        raise UsageError("the last column of a table cannot be dropped; add another one before")
    for field_id, field in schema.fields_by_id.items():
        if isinstance(field.type, StructType) and not field.type.fields:
            name = schema.names_by_id[field_id]
            raise UsageError(
                f"struct {name!r} would have no fields, which no data file can hold; drop the struct itself"
            )


def _refuse_dropped_sources(base: TableMetadata, schema: Schema) -> None:
    def is_dropped(field_id: int) -> bool:
        return field_id in base.schema.fields_by_id and field_id not in schema.fields_by_id

    for field in base.spec.fields:
        if is_dropped(field.source_id) and not isinstance(field.transform, Void):
            raise UsageError(
                f"column {base.schema.names_by_id[field.source_id]!r} cannot be dropped: partition field {field.name!r} of"
                f" the default spec is made of it; remove that field with update_spec before"
            )
    for key in base.sort_order.fields:
        if is_dropped(key.source_id):
            raise UsageError(
                f"column {base.schema.names_by_id[key.source_id]!r} cannot be dropped: the default sort order uses it; set"
                " another one with update_sort_order before"
            )


def _refuse_names_of_partition_fields(base: TableMetadata, schema: Schema) -> None:
    for spec in base.partition_specs:
        for field in spec.fields:
            field_id = schema.ids_by_name.get(field.name, field.source_id)
            is_new = base.schema.names_by_id.get(field_id) != field.name
            if is_new and field_id != field.source_id and field.source_id in schema.fields_by_id:
                raise UsageError(
                    f"a column cannot be named {field.name!r}: a partition field of the table has that name; give another"
                    " name"
                )
