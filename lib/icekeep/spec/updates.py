"""What will be different after a commit: the REST catalog's updates as values, and their effect on metadata.

Each update has the REST protocol's `action` name. `apply_updates` is pure: metadata and updates in, metadata out. Here are
the updates of snapshots, references and properties; those of a table's definition are in `definition_updates.py`, those of
statistics and keys in `attachment_updates.py`, each with its effect.

Updates of what a table is: its format version, identity, place, schemas, partition specs and sort orders.

As in the REST protocol, `-1` names the schema, spec or order that the same commit added last, and something that is added
gets its id here: that of an equal one which is there, else one after all of them.

Updates of what hangs on a table beside its snapshots: statistics files and encryption keys.

The update that raises the counters of ids where they have fallen behind what they count.

It is ours: the REST protocol has no action for it, since a server works its counters out by itself.

The update that takes back snapshots which had expired, in their old place in the table's history.

It is ours: the REST protocol has no action for it, since a server takes no snapshot whose sequence number lies behind.

Table properties that name columns follow a column that is renamed, and go with one that is dropped.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError
from icekeep.spec.evolution import has_sequential_ids, same_fields
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata, validate_metadata
from icekeep.spec.partitioning import PartitionSpec, last_assigned_field_id, validate_spec
from icekeep.spec.properties import whole_number
from icekeep.spec.schema import (
    NAME_MAPPING_PROPERTY,
    MappedField,
    Schema,
    check_format_version,
    name_mapping_for,
    name_mapping_of,
    name_mapping_to_json,
    validate_schema,
)
from icekeep.spec.snapshots import (
    MAIN,
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
)
from icekeep.spec.sorting import UNSORTED, SortOrder, find_sort_order, validate_sort_order
from icekeep.spec.types import NestedField, child_fields

PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_MAX_DEFAULT = 100


class Update(msgspec.Struct, frozen=True, tag_field="action"):
    """One change to table metadata."""


class UpdateContext(msgspec.Struct, frozen=True):
    """What the effect of an update depends on beside the metadata.

    Attributes:
        now_ms: the moment of the change.
        earlier: the updates of the same commit that were applied before.
    """

    now_ms: int
    earlier: tuple[Update, ...] = ()


class AddSnapshot(Update, frozen=True, tag="add-snapshot"):
    """Add a snapshot; no reference moves."""

    snapshot: Snapshot


class SetSnapshotRef(Update, frozen=True, tag="set-snapshot-ref"):
    """Create a branch or tag, or move it and set its retention; `main` is the table's current snapshot."""

    ref_name: str
    ref: SnapshotRef


class RemoveSnapshots(Update, frozen=True, tag="remove-snapshots"):
    """Remove snapshots with their statistics, and references that would point at nothing."""

    snapshot_ids: tuple[int, ...]


class RemoveSnapshotRef(Update, frozen=True, tag="remove-snapshot-ref"):
    """Remove a branch or a tag; its snapshots stay."""

    ref_name: str


class SetProperties(Update, frozen=True, tag="set-properties"):
    """Set table properties."""

    updates: Mapping[str, str]


class RemoveProperties(Update, frozen=True, tag="remove-properties"):
    """Remove table properties; a missing one is fine."""

    removals: tuple[str, ...]


class RemovePartitionSpecs(Update, frozen=True, tag="remove-partition-specs"):
    """Remove partition specs that no live file uses."""

    spec_ids: tuple[int, ...]


class RemoveSchemas(Update, frozen=True, tag="remove-schemas"):
    """Remove schemas that no snapshot uses."""

    schema_ids: tuple[int, ...]


def apply_updates(metadata: TableMetadata, updates: Sequence[Update], *, now_ms: int) -> TableMetadata:
    """The metadata after all updates, in order.

    Args:
        metadata: what the updates are applied to; it stays as it is.
        updates: none of them leaves the metadata as it is, `last-updated-ms` included.
        now_ms: the moment of the change, for `last-updated-ms` and the snapshot log.

    Raises:
        InvalidTableError: an update does not fit this metadata (a stale sequence number, a ref to nothing).
        NotFoundError: an update names a snapshot or ref that is not there.
    """
    if not updates:
        return metadata
    # A snapshot of this commit becomes current when it was made; any other one becomes current only now.
    made_ms = {u.snapshot.snapshot_id: u.snapshot.timestamp_ms for u in updates if isinstance(u, AddSnapshot)}
    # Clocks of other writers may be ahead of ours, and Iceberg refuses metadata whose history runs backwards.
    earliest_ms = max([metadata.last_updated_ms, *(entry.timestamp_ms for entry in metadata.snapshot_log[-1:])])
    for number, update in enumerate(updates):
        moment_ms = made_ms.get(update.ref.snapshot_id, now_ms) if isinstance(update, SetSnapshotRef) else now_ms
        context = UpdateContext(max(moment_ms, earliest_ms), tuple(updates[:number]))
        metadata = effect(update, metadata, context)
    return validate_metadata(replace(metadata, last_updated_ms=max(now_ms, earliest_ms, metadata.last_updated_ms)))


def log_previous(metadata: TableMetadata, previous_location: str, previous_updated_ms: int) -> TableMetadata:
    """Put the metadata file that is being replaced into the metadata log, and cut the log to its greatest length.

    Property `write.metadata.previous-versions-max` (100; less than 1 is 1); raises `PropertyError` where it is no whole number.
    """
    keep = whole_number(metadata.properties, PREVIOUS_VERSIONS_MAX, _PREVIOUS_VERSIONS_MAX_DEFAULT, least=None)
    entry = MetadataLogEntry(timestamp_ms=previous_updated_ms, metadata_file=previous_location)
    return replace(metadata, metadata_log=(*metadata.metadata_log, entry)[-max(1, keep) :])


@singledispatch
def effect(update: Update, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    """The metadata after one update; each class of updates registers its own."""
    raise IcekeepBug(f"update {update!r} has no effect defined")


@effect.register
def _(update: AddSnapshot, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    snapshot = update.snapshot
    if snapshot.snapshot_id in metadata.snapshots_by_id:
        raise InvalidTableError(f"snapshot {snapshot.snapshot_id} exists already")
    if metadata.format_version > 1 and snapshot.sequence_number <= metadata.last_sequence_number:
        raise InvalidTableError(
            f"snapshot {snapshot.snapshot_id} has sequence number {snapshot.sequence_number}; "
            f"the table is at {metadata.last_sequence_number} already"
        )
    next_row_id = metadata.next_row_id
    if next_row_id is not None:
        if snapshot.first_row_id is None or snapshot.first_row_id < next_row_id or snapshot.added_rows is None:
            raise InvalidTableError(f"snapshot {snapshot.snapshot_id} assigns row ids below next-row-id {next_row_id}")
        next_row_id = snapshot.first_row_id + snapshot.added_rows
    return replace(
        metadata,
        snapshots=(*metadata.snapshots, snapshot),
        last_sequence_number=max(metadata.last_sequence_number, snapshot.sequence_number),
        last_updated_ms=snapshot.timestamp_ms,
        next_row_id=next_row_id,
    )


@effect.register
def _(update: SetSnapshotRef, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    snapshot = metadata.snapshot(update.ref.snapshot_id)
    changed = replace(metadata, refs={**metadata.refs, update.ref_name: update.ref})
    if update.ref_name != MAIN:
        return changed
    if not update.ref.is_branch:
        raise InvalidTableError("main is a branch; it cannot become a tag")
    if metadata.current_snapshot_id == snapshot.snapshot_id:
        return changed
    entry = SnapshotLogEntry(timestamp_ms=context.now_ms, snapshot_id=snapshot.snapshot_id)
    return replace(changed, current_snapshot_id=snapshot.snapshot_id, snapshot_log=(*metadata.snapshot_log, entry))


@effect.register
def _(update: RemoveSnapshots, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    gone = set(update.snapshot_ids)
    if metadata.current_snapshot_id in gone:
        raise InvalidTableError(f"snapshot {metadata.current_snapshot_id} is current and cannot be removed")
    kept = tuple(s for s in metadata.snapshots if s.snapshot_id not in gone)
    return replace(
        metadata,
        snapshots=kept,
        refs={name: ref for name, ref in metadata.refs.items() if ref.snapshot_id not in gone},
        statistics=tuple(s for s in metadata.statistics if s.snapshot_id not in gone),
        partition_statistics=tuple(s for s in metadata.partition_statistics if s.snapshot_id not in gone),
        snapshot_log=_after_gaps(metadata.snapshot_log, {s.snapshot_id for s in kept}),
    )


@effect.register
def _(update: RemoveSnapshotRef, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    if update.ref_name not in metadata.refs:
        raise NotFoundError(f"there is no branch or tag {update.ref_name!r}", ref=update.ref_name)
    if update.ref_name == MAIN:
        raise InvalidTableError("main cannot be removed")
    return replace(metadata, refs={name: ref for name, ref in metadata.refs.items() if name != update.ref_name})


@effect.register
def _(update: SetProperties, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    return replace(metadata, properties={**metadata.properties, **update.updates})


@effect.register
def _(update: RemoveProperties, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    return replace(metadata, properties={k: v for k, v in metadata.properties.items() if k not in update.removals})


@effect.register
def _(update: RemovePartitionSpecs, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    if metadata.default_spec_id in update.spec_ids:
        raise InvalidTableError(f"partition spec {metadata.default_spec_id} is the default and cannot be removed")
    return replace(
        metadata, partition_specs=tuple(s for s in metadata.partition_specs if s.spec_id not in update.spec_ids)
    )


@effect.register
def _(update: RemoveSchemas, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    if metadata.current_schema_id in update.schema_ids:
        raise InvalidTableError(f"schema {metadata.current_schema_id} is current and cannot be removed")
    return replace(metadata, schemas=tuple(s for s in metadata.schemas if s.schema_id not in update.schema_ids))


def _after_gaps(log: Sequence[SnapshotLogEntry], kept: set[int]) -> tuple[SnapshotLogEntry, ...]:
    """What follows the last entry of a snapshot that is gone: history with a gap would answer time travel wrongly."""
    for position in range(len(log) - 1, -1, -1):
        if log[position].snapshot_id not in kept:
            return tuple(log[position + 1 :])
    return tuple(log)


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


class SetStatistics(Update, frozen=True, tag="set-statistics"):
    """Set the statistics file of a snapshot, in place of the one that it has."""

    statistics: StatisticsFile


class RemoveStatistics(Update, frozen=True, tag="remove-statistics"):
    """Remove the statistics file of a snapshot; none is fine."""

    snapshot_id: int


class SetPartitionStatistics(Update, frozen=True, tag="set-partition-statistics"):
    """Set the partition statistics file of a snapshot, in place of the one that it has."""

    partition_statistics: PartitionStatisticsFile


class RemovePartitionStatistics(Update, frozen=True, tag="remove-partition-statistics"):
    """Remove the partition statistics file of a snapshot; none is fine."""

    snapshot_id: int


class AddEncryptionKey(Update, frozen=True, tag="add-encryption-key"):
    """Add an encrypted key, as the JSON object of the spec; one that is there stays as it is."""

    encryption_key: Mapping[str, Any]


class RemoveEncryptionKey(Update, frozen=True, tag="remove-encryption-key"):
    """Remove an encrypted key; none is fine."""

    key_id: str


@effect.register
def _(update: SetStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    new = update.statistics
    others = [known for known in metadata.statistics if known.snapshot_id != new.snapshot_id]
    return replace(metadata, statistics=(*others, new))


@effect.register
def _(update: RemoveStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    kept = tuple(known for known in metadata.statistics if known.snapshot_id != update.snapshot_id)
    return replace(metadata, statistics=kept)


@effect.register
def _(update: SetPartitionStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    new = update.partition_statistics
    others = [known for known in metadata.partition_statistics if known.snapshot_id != new.snapshot_id]
    return replace(metadata, partition_statistics=(*others, new))


@effect.register
def _(update: RemovePartitionStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    kept = tuple(known for known in metadata.partition_statistics if known.snapshot_id != update.snapshot_id)
    return replace(metadata, partition_statistics=kept)


@effect.register
def _(update: AddEncryptionKey, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    key_id = update.encryption_key.get("key-id")
    if not isinstance(key_id, str):
        raise InvalidTableError(
            f"an encryption key has the key-id {key_id!r}; it must be text", section="Encryption Keys"
        )
    if any(_key_id(known) == key_id for known in metadata.encryption_keys):
        return metadata
    return replace(metadata, encryption_keys=(*metadata.encryption_keys, update.encryption_key))


@effect.register
def _(update: RemoveEncryptionKey, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    kept = tuple(known for known in metadata.encryption_keys if _key_id(known) != update.key_id)
    return replace(metadata, encryption_keys=kept)


def _key_id(key: Any) -> Any:
    return key.get("key-id") if isinstance(key, Mapping) else None


class RaiseCounters(Update, frozen=True, kw_only=True, tag="raise-counters"):
    """Raise counters to some values; null: that one stays. None is ever lowered."""

    last_column_id: int | None = None
    last_partition_id: int | None = None
    next_row_id: int | None = None


class LowCounter(NamedTuple):
    """A counter, by its attribute of `TableMetadata`, and the least value that it may have."""

    name: str
    least: int


def low_counters(metadata: TableMetadata) -> Iterator[LowCounter]:
    """The counters that are below what the table has."""
    wanted = [
        LowCounter("last_column_id", max((schema.highest_field_id for schema in metadata.schemas), default=0)),
        LowCounter("last_partition_id", last_assigned_field_id(metadata.partition_specs)),
    ]
    if metadata.next_row_id is not None:
        ends = ((s.first_row_id or 0) + (s.added_rows or 0) for s in metadata.snapshots if s.first_row_id is not None)
        wanted.append(LowCounter("next_row_id", max(ends, default=0)))
    return (one for one in wanted if getattr(metadata, one.name) < one.least)


@effect.register
def _(update: RaiseCounters, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    wanted = {name: getattr(update, name) for name in update.__struct_fields__}
    return replace(
        metadata,
        **{
            name: max(value, getattr(metadata, name) or 0)
            for name, value in wanted.items()
            # Only version 3 counts rows.
            if value is not None and getattr(metadata, name) is not None
        },
    )


T = TypeVar("T", bound=msgspec.Struct)


class RestoreSnapshots(Update, frozen=True, kw_only=True, tag="restore-snapshots"):
    """Take back snapshots, and what they cannot do without where it is gone too.

    Neither a reference nor a log nor a counter changes: what names the snapshots is for other updates of the same commit to
    say. A snapshot keeps the parent that it names, whether that is there or not, as snapshots do whose parents expire.
    """

    snapshots: tuple[Snapshot, ...]
    schemas: tuple[Schema, ...] = ()
    partition_specs: tuple[PartitionSpec, ...] = ()
    statistics: tuple[StatisticsFile, ...] = ()
    partition_statistics: tuple[PartitionStatisticsFile, ...] = ()


@effect.register
def _(update: RestoreSnapshots, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    for snapshot in update.snapshots:
        _check_counters(snapshot, metadata)
    _check_field_ids(update, metadata)
    snapshots = (*missing(update.snapshots, metadata.snapshots, "snapshot", "snapshot_id"), *metadata.snapshots)
    schemas = missing(update.schemas, metadata.schemas, "schema", "schema_id")
    specs = missing(update.partition_specs, metadata.partition_specs, "partition spec", "spec_id")
    statistics = missing(update.statistics, metadata.statistics, "statistics file of snapshot", "snapshot_id")
    by_partition = missing(
        update.partition_statistics,
        metadata.partition_statistics,
        "partition statistics file of snapshot",
        "snapshot_id",
    )
    return replace(
        metadata,
        snapshots=tuple(sorted(snapshots, key=lambda s: s.sequence_number)),
        schemas=(*metadata.schemas, *schemas),
        partition_specs=(*metadata.partition_specs, *specs),
        statistics=(*metadata.statistics, *statistics),
        partition_statistics=(*metadata.partition_statistics, *by_partition),
    )


def missing(wanted: Sequence[T], known: Sequence[T], what: str, id_name: str) -> list[T]:
    """Those of some parts of metadata that are not there; `id_name` is the attribute that tells them apart.

    Raises:
        InvalidTableError: one is there under its id with another content.
    """
    by_id = {getattr(part, id_name): part for part in known}
    found = []
    for part in wanted:
        part_id = getattr(part, id_name)
        if part_id not in by_id:
            found.append(part)
        elif by_id[part_id] != part:
            raise InvalidTableError(
                f"{what} {part_id} cannot be restored: the table has another one of this id by now; nothing was restored"
            )
    return found


def _check_counters(snapshot: Snapshot, metadata: TableMetadata) -> None:
    """A snapshot that the table has had lies within what it has counted."""
    if metadata.format_version > 1 and snapshot.sequence_number > metadata.last_sequence_number:
        raise InvalidTableError(
            f"snapshot {snapshot.snapshot_id} cannot be restored: its sequence number {snapshot.sequence_number} is above "
            f"last-sequence-number {metadata.last_sequence_number}, so this table never had it"
        )
    if snapshot.first_row_id is None:
        return
    after_rows = snapshot.first_row_id + (snapshot.added_rows or 0)
    if after_rows > (metadata.next_row_id or 0):
        raise InvalidTableError(
            f"snapshot {snapshot.snapshot_id} cannot be restored: its row ids end at {after_rows}, above next-row-id "
            f"{metadata.next_row_id}, so this table never had it"
        )


def _check_field_ids(update: RestoreSnapshots, metadata: TableMetadata) -> None:
    highest = max((schema.highest_field_id for schema in update.schemas), default=0)
    if highest > metadata.last_column_id:
        raise InvalidTableError(
            f"a schema with field id {highest} cannot be restored: the table's last-column-id is {metadata.last_column_id}"
        )
    if update.partition_specs and last_assigned_field_id(update.partition_specs) > metadata.last_partition_id:
        raise InvalidTableError(
            f"a partition spec with field id {last_assigned_field_id(update.partition_specs)} cannot be restored: the table's "
            f"last-partition-id is {metadata.last_partition_id}"
        )


PREFIXES = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.stats-enabled.column.",
)
"""What stands before a column's full name in the properties that Iceberg's Java library lets follow."""


def column_property_updates(old: Schema, new: Schema, properties: Mapping[str, str]) -> tuple[Update, ...]:
    """What is to change in a table's properties when its schema does: settings by column, and the name mapping.

    The mapping keeps the names that a field had, as older files know it by them; new fields are added to it.
    """
    changed: dict[str, str] = {}
    gone: set[str] = set()
    for key, value in properties.items():
        prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), None)
        field_id = None if prefix is None else old.ids_by_name.get(key[len(prefix) :])
        if prefix is None or field_id is None or new.names_by_id.get(field_id) == old.names_by_id[field_id]:
            continue
        gone.add(key)
        if field_id in new.names_by_id:
            changed[prefix + new.names_by_id[field_id]] = value
    mapping = _mapping(old, new, properties)
    if mapping is not None:
        changed[NAME_MAPPING_PROPERTY] = mapping
    updates: list[Update] = []
    if gone - changed.keys():
        updates.append(RemoveProperties(tuple(sorted(gone - changed.keys()))))
    if changed:
        updates.append(SetProperties(changed))
    return tuple(updates)


def _mapping(old: Schema, new: Schema, properties: Mapping[str, str]) -> str | None:
    """The table's name mapping with the names that changed; null where none did, or it has none that can be read."""
    try:
        mapping = name_mapping_of(properties)
    except InvalidTableError:
        return None
    if mapping is None:
        return None
    updated = _with_new_names(mapping, new.fields, {field_id: f.name for field_id, f in old.fields_by_id.items()})
    return None if updated == mapping else json.dumps(name_mapping_to_json(updated))


def _with_new_names(
    mapping: tuple[MappedField, ...], fields: Iterable[NestedField], old_names: Mapping[int, str]
) -> tuple[MappedField, ...]:
    """One level of a mapping with the names of fields that were added or renamed; what it leaves out stays out."""
    by_id = {field.field_id: field for field in fields}
    new_names = {f.name: f.field_id for f in by_id.values() if old_names.get(f.field_id) != f.name}
    out = []
    for mapped in mapping:
        # A name that was given away stands for the field that has it now.
        names = [name for name in mapped.names if new_names.get(name, mapped.field_id) == mapped.field_id]
        below = mapped.fields
        if mapped.field_id is not None and (field := by_id.get(mapped.field_id)) is not None:
            if field.name in new_names and field.name not in names:
                names.append(field.name)
            below = _with_new_names(mapped.fields, child_fields(field.type), old_names)
        out.append(replace(mapped, names=tuple(names), fields=below))
    added = tuple(field for field in by_id.values() if field.field_id not in old_names)
    return *out, *name_mapping_for(Schema(fields=added))
