"""Updates of what a table is: its format version, identity, place, schemas, partition specs and sort orders.

As in the REST protocol, `-1` names the schema, spec or order that the same commit added last, and something that is added
gets its id here: that of an equal one which is there, else one after all of them.
"""

from typing import TypeVar

from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.spec.evolution.partition_evolution import has_sequential_ids, same_fields
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata
from icekeep.spec.partitioning import PartitionSpec, last_assigned_field_id, validate_spec
from icekeep.spec.schema import Schema, check_format_version, validate_schema
from icekeep.spec.sorting import UNSORTED, SortOrder, find_sort_order, validate_sort_order
from icekeep.spec.updates import Update, UpdateContext, effect

LAST_ADDED = -1
"""In place of an id: what the same commit added last."""

U = TypeVar("U", bound=Update)


class AssignUuid(Update, frozen=True, tag="assign-uuid"):
    """Give a table without a uuid one; only tables of format version 1 may be without."""

    uuid: str


class UpgradeFormatVersion(Update, frozen=True, tag="upgrade-format-version"):
    """Raise the format version; it never falls."""

    format_version: int


class SetLocation(Update, frozen=True, tag="set-location"):
    """Say where new files go; files that are there stay where they are."""

    location: str


class AddSchema(Update, frozen=True, tag="add-schema"):
    """Add a schema; it does not become the current one.

    `last_column_id` is the last field id ever given out; null: the greatest that is known.
    """

    schema: Schema
    last_column_id: int | None = None


class SetCurrentSchema(Update, frozen=True, tag="set-current-schema"):
    """Make a schema the current one."""

    schema_id: int


class AddPartitionSpec(Update, frozen=True, tag="add-spec"):
    """Add a partition spec that fits the current schema; it does not become the default one."""

    spec: PartitionSpec


class SetDefaultSpec(Update, frozen=True, tag="set-default-spec"):
    """Make a partition spec the one of new files."""

    spec_id: int


class AddSortOrder(Update, frozen=True, tag="add-sort-order"):
    """Add a sort order that fits the current schema; it does not become the default one."""

    sort_order: SortOrder


class SetDefaultSortOrder(Update, frozen=True, tag="set-default-sort-order"):
    """Make a sort order the one of new files."""

    sort_order_id: int


@effect.register
def _(update: AssignUuid, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    if metadata.table_uuid is not None and metadata.table_uuid != update.uuid:
        raise InvalidTableError(f"the table's uuid is {metadata.table_uuid}; it cannot become {update.uuid}")
    return replace(metadata, table_uuid=update.uuid)


@effect.register
def _(update: UpgradeFormatVersion, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    old, new = metadata.format_version, update.format_version
    if new > SUPPORTED_FORMAT_VERSION:
        raise InvalidTableError(
            f"the table cannot have format version {new}; {SUPPORTED_FORMAT_VERSION} is the newest that is known"
        )
    if new < old:
        raise InvalidTableError(f"the table has format version {old}; it cannot go back to {new}")
    if new > 1 and metadata.table_uuid is None:
        raise InvalidTableError(f"the table has no uuid, which format version {new} requires; assign one before")
    next_row_id = metadata.next_row_id
    if new >= 3 and next_row_id is None:
        # Snapshots that exist keep no row ids (spec, "Row Lineage for Upgraded Tables").
        next_row_id = 0
    return replace(metadata, format_version=new, next_row_id=next_row_id)


@effect.register
def _(update: SetLocation, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    location = update.location.rstrip("/")
    if not location:
        raise InvalidTableError("a table cannot have an empty location")
    return replace(metadata, location=location)


@effect.register
def _(update: AddSchema, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    schema = validate_schema(update.schema)
    check_format_version(schema, metadata.format_version)
    last_column_id = update.last_column_id
    if last_column_id is None:
        last_column_id = max(metadata.last_column_id, schema.highest_field_id)
    if last_column_id < max(metadata.last_column_id, schema.highest_field_id):
        raise InvalidTableError(
            f"last-column-id {last_column_id} is below {max(metadata.last_column_id, schema.highest_field_id)}, the last"
            " field id that was given out"
        )
    changed = replace(metadata, last_column_id=last_column_id)
    if any(known.same_columns(schema) for known in metadata.schemas):
        return changed
    new = replace(schema, schema_id=max(metadata.schemas_by_id) + 1)
    return replace(changed, schemas=(*metadata.schemas, new))


@effect.register
def _(update: SetCurrentSchema, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    schema_id = update.schema_id
    if schema_id == LAST_ADDED:
        added = _last(AddSchema, context).schema
        schema_id = next(known.schema_id for known in metadata.schemas if known.same_columns(added))
    if schema_id not in metadata.schemas_by_id:
        raise InvalidTableError(f"schema {schema_id} cannot become the current one: there is no such schema")
    return replace(metadata, current_schema_id=schema_id)


@effect.register
def _(update: AddPartitionSpec, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    if any(same_fields(known, update.spec) for known in metadata.partition_specs):
        return metadata
    spec = validate_spec(update.spec, metadata.schema)
    if metadata.format_version == 1 and not has_sequential_ids(spec):
        raise InvalidTableError("the fields of a new partition spec must be numbered from 1000 on in format version 1")
    return replace(
        metadata,
        partition_specs=(*metadata.partition_specs, replace(spec, spec_id=max(metadata.specs_by_id) + 1)),
        last_partition_id=max(metadata.last_partition_id, last_assigned_field_id([spec])),
    )


@effect.register
def _(update: SetDefaultSpec, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    spec_id = update.spec_id
    if spec_id == LAST_ADDED:
        added = _last(AddPartitionSpec, context).spec
        spec_id = next(known.spec_id for known in metadata.partition_specs if same_fields(known, added))
    if spec_id not in metadata.specs_by_id:
        raise InvalidTableError(f"partition spec {spec_id} cannot become the default one: there is no such spec")
    return replace(metadata, default_spec_id=spec_id)


@effect.register
def _(update: AddSortOrder, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    if _known_order(metadata, update.sort_order) is not None:
        return metadata
    order = validate_sort_order(update.sort_order, metadata.schema)
    if order.is_unsorted:
        return replace(metadata, sort_orders=(*metadata.sort_orders, UNSORTED))
    order_id = max(0, *(known.order_id for known in metadata.sort_orders)) + 1
    return replace(metadata, sort_orders=(*metadata.sort_orders, replace(order, order_id=order_id)))


@effect.register
def _(update: SetDefaultSortOrder, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    order_id = update.sort_order_id
    if order_id == LAST_ADDED:
        known = _known_order(metadata, _last(AddSortOrder, context).sort_order)
        order_id = UNSORTED.order_id if known is None else known.order_id
    find_sort_order(metadata.sort_orders, order_id)
    return replace(metadata, default_sort_order_id=order_id)


def _last(kind: type[U], context: UpdateContext) -> U:
    for update in reversed(context.earlier):
        if isinstance(update, kind):
            return update
    raise InvalidTableError(f"id {LAST_ADDED} names what the same commit added last, but it added nothing of the kind")


def _known_order(metadata: TableMetadata, order: SortOrder) -> SortOrder | None:
    return next((known for known in metadata.sort_orders if known.fields == order.fields), None)
