"""A commit as values of the REST protocol: its updates with their effect on metadata, and the requirements that it must meet.

Updates have the protocol's `action` names, requirements its `type` names. As in the protocol, `-1` names the schema, spec or
order that the same commit added last, and additions get their ids here: that of an equal one in the table, else the next one.

`RaiseCounters` and `RestoreSnapshots` are icekeep's own: a server of the protocol derives its counters itself, and takes no
snapshot with an old sequence number.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

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

T = TypeVar("T")
U = TypeVar("U", bound="Update")

LAST_ADDED = -1
"""In place of an id: what the same commit added last."""

COLUMN_PROPERTIES = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.stats-enabled.column.",
)
"""Prefixes, before a column's full name, of the properties that Iceberg's Java library changes when a column is renamed."""

_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"


class Update(msgspec.Struct, frozen=True, tag_field="action"):
    """One change to table metadata."""


class AssignUuid(Update, frozen=True, tag="assign-uuid"):
    """Give a uuid to a table without one, which only format version 1 allows."""

    uuid: str


class UpgradeFormatVersion(Update, frozen=True, tag="upgrade-format-version"):
    """Raise the format version; it never falls."""

    format_version: int


class SetLocation(Update, frozen=True, tag="set-location"):
    """Set where new files go; existing files are not moved."""

    location: str


class SetProperties(Update, frozen=True, tag="set-properties"):
    updates: Mapping[str, str]


class RemoveProperties(Update, frozen=True, tag="remove-properties"):
    """Remove table properties; missing ones are ignored."""

    removals: tuple[str, ...]


class AddSchema(Update, frozen=True, tag="add-schema"):
    """Add a schema; it does not become the current one.

    `last_column_id` is the last assigned field id; null for the greatest of the table and the schema.
    """

    schema: Schema
    last_column_id: int | None = None


class SetCurrentSchema(Update, frozen=True, tag="set-current-schema"):
    schema_id: int


class RemoveSchemas(Update, frozen=True, tag="remove-schemas"):
    """Remove schemas that no snapshot uses."""

    schema_ids: tuple[int, ...]


class AddPartitionSpec(Update, frozen=True, tag="add-spec"):
    """Add a partition spec that fits the current schema; it does not become the default one."""

    spec: PartitionSpec


class SetDefaultSpec(Update, frozen=True, tag="set-default-spec"):
    spec_id: int


class RemovePartitionSpecs(Update, frozen=True, tag="remove-partition-specs"):
    """Remove partition specs that no live file uses."""

    spec_ids: tuple[int, ...]


class AddSortOrder(Update, frozen=True, tag="add-sort-order"):
    """Add a sort order that fits the current schema; it does not become the default one."""

    sort_order: SortOrder


class SetDefaultSortOrder(Update, frozen=True, tag="set-default-sort-order"):
    sort_order_id: int


class AddSnapshot(Update, frozen=True, tag="add-snapshot"):
    """No reference moves."""

    snapshot: Snapshot


class SetSnapshotRef(Update, frozen=True, tag="set-snapshot-ref"):
    """Create a branch or tag, or move it and set its retention; `main` is the table's current snapshot."""

    ref_name: str
    ref: SnapshotRef


class RemoveSnapshotRef(Update, frozen=True, tag="remove-snapshot-ref"):
    """Remove a branch or a tag; its snapshots stay."""

    ref_name: str


class RemoveSnapshots(Update, frozen=True, tag="remove-snapshots"):
    """Remove snapshots with their statistics, and references that would point at nothing."""

    snapshot_ids: tuple[int, ...]


class SetStatistics(Update, frozen=True, tag="set-statistics"):
    statistics: StatisticsFile


class RemoveStatistics(Update, frozen=True, tag="remove-statistics"):
    snapshot_id: int


class SetPartitionStatistics(Update, frozen=True, tag="set-partition-statistics"):
    partition_statistics: PartitionStatisticsFile


class RemovePartitionStatistics(Update, frozen=True, tag="remove-partition-statistics"):
    snapshot_id: int


class AddEncryptionKey(Update, frozen=True, tag="add-encryption-key"):
    """Add an encrypted key, as the JSON object of the spec; an existing one with its id is kept."""

    encryption_key: Mapping[str, Any]


class RemoveEncryptionKey(Update, frozen=True, tag="remove-encryption-key"):
    key_id: str


class RaiseCounters(Update, frozen=True, kw_only=True, tag="raise-counters"):
    """Raise counters to some values, null for those to keep; none is ever lowered."""

    last_column_id: int | None = None
    last_partition_id: int | None = None
    next_row_id: int | None = None


class RestoreSnapshots(Update, frozen=True, kw_only=True, tag="restore-snapshots"):
    """Restore expired snapshots to their old place in the table's history, with schemas and other parts that they need.

    No reference, log or counter changes: references are for other updates of the same commit. A snapshot keeps its parent's
    id, whether the table has the parent or not, as snapshots do whose parents expire.
    """

    snapshots: tuple[Snapshot, ...]
    schemas: tuple[Schema, ...] = ()
    partition_specs: tuple[PartitionSpec, ...] = ()
    statistics: tuple[StatisticsFile, ...] = ()
    partition_statistics: tuple[PartitionStatisticsFile, ...] = ()


def apply_updates(metadata: TableMetadata, updates: Sequence[Update], *, now_ms: int) -> TableMetadata:
    """The metadata after all updates, in order; without updates it is unchanged, `last-updated-ms` included.

    `now_ms` is the time of the change, for `last-updated-ms` and the snapshot log. Raises `InvalidTableError` for an update that
    does not fit this metadata (a stale sequence number), `NotFoundError` for one of a missing snapshot or ref.
    """
    if not updates:
        return metadata
    # A snapshot of this commit becomes current at its own timestamp; any other one becomes current only now.
    made_ms = {u.snapshot.snapshot_id: u.snapshot.timestamp_ms for u in updates if isinstance(u, AddSnapshot)}
    # Clocks of other writers may be ahead of ours, and Iceberg refuses metadata whose history runs backwards.
    earliest_ms = max([metadata.last_updated_ms, *(entry.timestamp_ms for entry in metadata.snapshot_log[-1:])])
    for number, update in enumerate(updates):
        moment_ms = made_ms.get(update.ref.snapshot_id, now_ms) if isinstance(update, SetSnapshotRef) else now_ms
        metadata = _applied(update, metadata, max(moment_ms, earliest_ms), updates[:number])
    return validate_metadata(replace(metadata, last_updated_ms=max(now_ms, earliest_ms, metadata.last_updated_ms)))


def _applied(  # noqa: C901, PLR0915 - a case for each kind of update
    update: Update, base: TableMetadata, now_ms: int, earlier: Sequence[Update]
) -> TableMetadata:
    """The metadata after one update; `earlier` are those of the same commit before it."""
    match update:
        case AssignUuid(uuid):
            if base.table_uuid not in (None, uuid):
                raise InvalidTableError(f"the table's uuid is {base.table_uuid}; it cannot become {uuid}")
            return replace(base, table_uuid=uuid)
        case UpgradeFormatVersion(version):
            return _upgraded(base, version)
        case SetLocation():
            location = update.location.rstrip("/")
            if not location:
                raise InvalidTableError("a table cannot have an empty location")
            return replace(base, location=location)
        case SetProperties():
            return replace(base, properties={**base.properties, **update.updates})
        case RemoveProperties(keys):
            return replace(base, properties={k: v for k, v in base.properties.items() if k not in keys})
        case AddSchema():
            return _with_schema(base, update)
        case SetCurrentSchema(schema_id):
            if schema_id == LAST_ADDED:
                new = _last_added(AddSchema, earlier).schema
                schema_id = next(schema.schema_id for schema in base.schemas if schema.same_columns(new))
            if schema_id not in base.schemas_by_id:
                raise InvalidTableError(f"schema {schema_id} cannot become the current one: there is no such schema")
            return replace(base, current_schema_id=schema_id)
        case RemoveSchemas(ids):
            if base.current_schema_id in ids:
                raise InvalidTableError(f"schema {base.current_schema_id} is current and cannot be removed")
            return replace(base, schemas=_without(base.schemas, "schema_id", ids))
        case AddPartitionSpec():
            return _with_spec(base, update.spec)
        case SetDefaultSpec(spec_id):
            if spec_id == LAST_ADDED:
                new_spec = _last_added(AddPartitionSpec, earlier).spec
                spec_id = next(spec.spec_id for spec in base.partition_specs if same_fields(spec, new_spec))
            if spec_id not in base.specs_by_id:
                raise InvalidTableError(
                    f"partition spec {spec_id} cannot become the default one: there is no such spec"
                )
            return replace(base, default_spec_id=spec_id)
        case RemovePartitionSpecs(ids):
            if base.default_spec_id in ids:
                raise InvalidTableError(f"partition spec {base.default_spec_id} is the default and cannot be removed")
            return replace(base, partition_specs=_without(base.partition_specs, "spec_id", ids))
        case AddSortOrder(order):
            if any(other.fields == order.fields for other in base.sort_orders):
                return base
            order = validate_sort_order(order, base.schema)
            order_id = max(0, *(other.order_id for other in base.sort_orders)) + 1
            order = UNSORTED if not order.fields else replace(order, order_id=order_id)
            return replace(base, sort_orders=(*base.sort_orders, order))
        case SetDefaultSortOrder(order_id):
            if order_id == LAST_ADDED:
                fields = _last_added(AddSortOrder, earlier).sort_order.fields
                order_id = next((o.order_id for o in base.sort_orders if o.fields == fields), UNSORTED.order_id)
            find_sort_order(base.sort_orders, order_id)
            return replace(base, default_sort_order_id=order_id)
        case AddSnapshot(snapshot):
            return _with_snapshot(base, snapshot)
        case SetSnapshotRef(name, ref):
            snapshot_id = base.snapshot(ref.snapshot_id).snapshot_id
            changed = replace(base, refs={**base.refs, name: ref})
            if name != MAIN:
                return changed
            if not ref.is_branch:
                raise InvalidTableError("main is a branch; it cannot become a tag")
            if base.current_snapshot_id == snapshot_id:
                return changed
            entry = SnapshotLogEntry(timestamp_ms=now_ms, snapshot_id=snapshot_id)
            return replace(changed, current_snapshot_id=snapshot_id, snapshot_log=(*base.snapshot_log, entry))
        case RemoveSnapshotRef(name):
            if name not in base.refs:
                raise NotFoundError(f"there is no branch or tag {name!r}", ref=name)
            if name == MAIN:
                raise InvalidTableError("main cannot be removed")
            return replace(base, refs={other: ref for other, ref in base.refs.items() if other != name})
        case RemoveSnapshots(ids):
            return _without_snapshots(base, set(ids))
        case SetStatistics(file):
            others = _without(base.statistics, "snapshot_id", [file.snapshot_id])
            return replace(base, statistics=(*others, file))
        case RemoveStatistics(snapshot_id):
            return replace(base, statistics=_without(base.statistics, "snapshot_id", [snapshot_id]))
        case SetPartitionStatistics(partition_file):
            kept = _without(base.partition_statistics, "snapshot_id", [partition_file.snapshot_id])
            return replace(base, partition_statistics=(*kept, partition_file))
        case RemovePartitionStatistics(snapshot_id):
            kept = _without(base.partition_statistics, "snapshot_id", [snapshot_id])
            return replace(base, partition_statistics=kept)
        case AddEncryptionKey(key):
            key_id = key.get("key-id")
            if not isinstance(key_id, str):
                raise InvalidTableError(
                    f"an encryption key has the key-id {key_id!r}; it must be text", section="Encryption Keys"
                )
            others = _without_key(base, key_id)
            return replace(base, encryption_keys=(*others, key)) if others == base.encryption_keys else base
        case RemoveEncryptionKey(key_id):
            return replace(base, encryption_keys=_without_key(base, key_id))
        case RaiseCounters():
            raised = {name: (getattr(update, name), getattr(base, name)) for name in update.__struct_fields__}
            # Only version 3 counts rows.
            return replace(base, **{n: max(new, old) for n, (new, old) in raised.items() if None not in (new, old)})
        case RestoreSnapshots():
            return _restored(base, update)
    raise IcekeepBug(f"update {update!r} has no effect defined")


def _last_added(kind: type[U], earlier: Sequence[Update]) -> U:
    for update in reversed(earlier):
        if isinstance(update, kind):
            return update
    raise InvalidTableError(f"id {LAST_ADDED} names what the same commit added last, but it added nothing of the kind")


def _without_key(base: TableMetadata, key_id: str) -> tuple[Any, ...]:
    keys = base.encryption_keys
    return tuple(key for key in keys if not isinstance(key, Mapping) or key.get("key-id") != key_id)


def _without(parts: Iterable[T], id_name: str, ids: Collection[int]) -> tuple[T, ...]:
    return tuple(part for part in parts if getattr(part, id_name) not in ids)


def _upgraded(base: TableMetadata, new: int) -> TableMetadata:
    old = base.format_version
    if new > SUPPORTED_FORMAT_VERSION:
        raise InvalidTableError(
            f"the table cannot have format version {new}; {SUPPORTED_FORMAT_VERSION} is the newest that is known"
        )
    if new < old:
        raise InvalidTableError(f"the table has format version {old}; it cannot go back to {new}")
    if new > 1 and base.table_uuid is None:
        raise InvalidTableError(f"the table has no uuid, which format version {new} requires; assign one before")
    # Snapshots that exist keep no row ids (spec, "Row Lineage for Upgraded Tables").
    next_row_id = 0 if new >= 3 and base.next_row_id is None else base.next_row_id
    return replace(base, format_version=new, next_row_id=next_row_id)


def _with_schema(base: TableMetadata, update: AddSchema) -> TableMetadata:
    schema = validate_schema(update.schema)
    check_format_version(schema, base.format_version)
    least = max(base.last_column_id, schema.highest_field_id)
    last_column_id = least if update.last_column_id is None else update.last_column_id
    if last_column_id < least:
        raise InvalidTableError(
            f"last-column-id {last_column_id} is below {least}, the last field id that was given out"
        )
    changed = replace(base, last_column_id=last_column_id)
    if any(other.same_columns(schema) for other in base.schemas):
        return changed
    return replace(changed, schemas=(*base.schemas, replace(schema, schema_id=max(base.schemas_by_id) + 1)))


def _with_spec(base: TableMetadata, new: PartitionSpec) -> TableMetadata:
    if any(same_fields(other, new) for other in base.partition_specs):
        return base
    spec = validate_spec(new, base.schema)
    if base.format_version == 1 and not has_sequential_ids(spec):
        raise InvalidTableError("the fields of a new partition spec must be numbered from 1000 on in format version 1")
    return replace(
        base,
        partition_specs=(*base.partition_specs, replace(spec, spec_id=max(base.specs_by_id) + 1)),
        last_partition_id=max(base.last_partition_id, last_assigned_field_id([spec])),
    )


def _with_snapshot(base: TableMetadata, new: Snapshot) -> TableMetadata:
    if new.snapshot_id in base.snapshots_by_id:
        raise InvalidTableError(f"snapshot {new.snapshot_id} exists already")
    if base.format_version > 1 and new.sequence_number <= base.last_sequence_number:
        raise InvalidTableError(
            f"snapshot {new.snapshot_id} has sequence number {new.sequence_number}; "
            f"the table is at {base.last_sequence_number} already"
        )
    next_row_id = base.next_row_id
    if next_row_id is not None:
        if new.first_row_id is None or new.first_row_id < next_row_id or new.added_rows is None:
            raise InvalidTableError(f"snapshot {new.snapshot_id} assigns row ids below next-row-id {next_row_id}")
        next_row_id = new.first_row_id + new.added_rows
    return replace(
        base,
        snapshots=(*base.snapshots, new),
        last_sequence_number=max(base.last_sequence_number, new.sequence_number),
        last_updated_ms=new.timestamp_ms,
        next_row_id=next_row_id,
    )


def _without_snapshots(base: TableMetadata, removed: set[int]) -> TableMetadata:
    if base.current_snapshot_id in removed:
        raise InvalidTableError(f"snapshot {base.current_snapshot_id} is current and cannot be removed")
    kept = base.snapshots_by_id.keys() - removed
    log = base.snapshot_log
    # Only what follows the last entry of a removed snapshot is kept: history with a gap would answer time travel wrongly.
    last_gap = max((n for n, entry in enumerate(log) if entry.snapshot_id not in kept), default=-1)
    return replace(
        base,
        snapshots=_without(base.snapshots, "snapshot_id", removed),
        refs={name: ref for name, ref in base.refs.items() if ref.snapshot_id not in removed},
        statistics=_without(base.statistics, "snapshot_id", removed),
        partition_statistics=_without(base.partition_statistics, "snapshot_id", removed),
        snapshot_log=log[last_gap + 1 :],
    )


def _restored(base: TableMetadata, update: RestoreSnapshots) -> TableMetadata:
    _check_counters(base, update)
    snapshots = (*missing(update.snapshots, base.snapshots, "snapshot", "snapshot_id"), *base.snapshots)
    schemas = missing(update.schemas, base.schemas, "schema", "schema_id")
    specs = missing(update.partition_specs, base.partition_specs, "partition spec", "spec_id")
    statistics = missing(update.statistics, base.statistics, "statistics file of snapshot", "snapshot_id")
    by_partition = missing(
        update.partition_statistics, base.partition_statistics, "partition statistics file of snapshot", "snapshot_id"
    )
    return replace(
        base,
        snapshots=tuple(sorted(snapshots, key=lambda s: s.sequence_number)),
        schemas=(*base.schemas, *schemas),
        partition_specs=(*base.partition_specs, *specs),
        statistics=(*base.statistics, *statistics),
        partition_statistics=(*base.partition_statistics, *by_partition),
    )


def _check_counters(base: TableMetadata, update: RestoreSnapshots) -> None:
    """Raise `InvalidTableError` for parts beyond the table's counters: the table never had those."""
    for snapshot in update.snapshots:
        if base.format_version > 1 and snapshot.sequence_number > base.last_sequence_number:
            raise InvalidTableError(
                f"snapshot {snapshot.snapshot_id} cannot be restored: its sequence number {snapshot.sequence_number} is "
                f"above last-sequence-number {base.last_sequence_number}, so this table never had it"
            )
        after_rows = 0 if snapshot.first_row_id is None else snapshot.first_row_id + (snapshot.added_rows or 0)
        if after_rows > (base.next_row_id or 0):
            raise InvalidTableError(
                f"snapshot {snapshot.snapshot_id} cannot be restored: its row ids end at {after_rows}, above next-row-id "
                f"{base.next_row_id}, so this table never had it"
            )
    highest = max((schema.highest_field_id for schema in update.schemas), default=0)
    if highest > base.last_column_id:
        raise InvalidTableError(
            f"a schema with field id {highest} cannot be restored: the table's last-column-id is {base.last_column_id}"
        )
    highest = last_assigned_field_id(update.partition_specs) if update.partition_specs else 0
    if highest > base.last_partition_id:
        raise InvalidTableError(
            f"a partition spec with field id {highest} cannot be restored: the table's last-partition-id is "
            f"{base.last_partition_id}"
        )


def missing(parts: Sequence[T], present: Sequence[T], what: str, id_name: str) -> list[T]:
    """The parts whose ids, attribute `id_name`, are not present; raises `InvalidTableError` for a different part of one id."""
    by_id = {getattr(part, id_name): part for part in present}
    for part in parts:
        part_id = getattr(part, id_name)
        if by_id.get(part_id, part) != part:
            raise InvalidTableError(
                f"{what} {part_id} cannot be restored: the table has another one of this id by now; nothing was restored"
            )
    return [part for part in parts if getattr(part, id_name) not in by_id]


def low_counters(metadata: TableMetadata) -> dict[str, int]:
    """The counters that are below ids in use, by attribute of `TableMetadata`, and their least valid values."""
    least = {
        "last_column_id": max((schema.highest_field_id for schema in metadata.schemas), default=0),
        "last_partition_id": last_assigned_field_id(metadata.partition_specs),
    }
    if metadata.next_row_id is not None:
        ends = ((s.first_row_id or 0) + (s.added_rows or 0) for s in metadata.snapshots if s.first_row_id is not None)
        least["next_row_id"] = max(ends, default=0)
    return {name: value for name, value in least.items() if getattr(metadata, name) < value}


def log_previous(metadata: TableMetadata, previous_location: str, previous_updated_ms: int) -> TableMetadata:
    """Add the metadata file that is being replaced to the metadata log, and cut the log to its greatest length.

    That is the property `write.metadata.previous-versions-max` (100; less than 1 is 1), a `PropertyError` if it is no number.
    """
    keep = whole_number(metadata.properties, _PREVIOUS_VERSIONS_MAX, 100, least=None)
    entry = MetadataLogEntry(timestamp_ms=previous_updated_ms, metadata_file=previous_location)
    return replace(metadata, metadata_log=(*metadata.metadata_log, entry)[-max(1, keep) :])


class _Requirement(msgspec.Struct, frozen=True, tag_field="type"):
    """What must hold of a table for a commit to land on it: mostly that a part of it is still as it was loaded."""


Requirement: TypeAlias = _Requirement


class AssertTableUuid(_Requirement, frozen=True, tag="assert-table-uuid"):
    uuid: str


class AssertRefSnapshotId(_Requirement, frozen=True, tag="assert-ref-snapshot-id"):
    """A branch or tag still points at `snapshot_id`; `None`: it does not exist."""

    ref: str
    snapshot_id: int | None


class AssertCurrentSchemaId(_Requirement, frozen=True, tag="assert-current-schema-id"):
    current_schema_id: int


class AssertDefaultSpecId(_Requirement, frozen=True, tag="assert-default-spec-id"):
    default_spec_id: int


class AssertLastAssignedFieldId(_Requirement, frozen=True, tag="assert-last-assigned-field-id"):
    last_assigned_field_id: int


class AssertLastAssignedPartitionId(_Requirement, frozen=True, tag="assert-last-assigned-partition-id"):
    last_assigned_partition_id: int


class AssertDefaultSortOrderId(_Requirement, frozen=True, tag="assert-default-sort-order-id"):
    default_sort_order_id: int


_ASSERTED: Mapping[type[Requirement], tuple[str, str]] = {
    AssertTableUuid: ("the table's uuid is", "table_uuid"),
    AssertCurrentSchemaId: ("the current schema is", "current_schema_id"),
    AssertDefaultSpecId: ("the default partition spec is", "default_spec_id"),
    AssertLastAssignedFieldId: ("the last field id is", "last_column_id"),
    AssertLastAssignedPartitionId: ("the last partition field id is", "last_partition_id"),
    AssertDefaultSortOrderId: ("the default sort order is", "default_sort_order_id"),
}
"""The attribute of `TableMetadata` that must be equal to the requirement's only field, and how an error names it."""


def failing(requirements: Iterable[Requirement], metadata: TableMetadata) -> str | None:
    """The first requirement that does not hold, as a line of text; `None` if all hold."""
    for requirement in requirements:
        if isinstance(requirement, AssertRefSnapshotId):
            ref = metadata.refs.get(requirement.ref)
            subject, actual = f"ref {requirement.ref!r} is at snapshot", None if ref is None else ref.snapshot_id
            expected: object = requirement.snapshot_id
        else:
            subject, attribute = _ASSERTED[type(requirement)]
            actual = getattr(metadata, attribute)
            expected = getattr(requirement, requirement.__struct_fields__[0])
        if actual != expected:
            return f"{subject} {actual}, not {expected}"
    return None


def requirements_for(base: TableMetadata, updates: Sequence[Update]) -> tuple[Requirement, ...]:
    """Derive the requirements of updates, so that no change can forget one.

    Moving a reference requires that it is where the base had it. Removing snapshots requires it of every reference of the base:
    a catalog that applies updates to the current metadata would silently drop one that was moved. So does an upgrade, since what
    stands against it was looked for at these heads. A schema must fit the default
    spec and sort order, and these the schema (spec, "Commit Conflict Resolution and Retry"), so each of them requires the
    others unchanged. Restored parts bring their own ids, which must not have been assigned since. A table of version 1 may have
    no uuid to require.
    """
    schema = AssertCurrentSchemaId(base.current_schema_id)
    spec = AssertDefaultSpecId(base.default_spec_id)
    order = AssertDefaultSortOrderId(base.default_sort_order_id)
    field_ids = AssertLastAssignedFieldId(base.last_column_id)
    partition_ids = AssertLastAssignedPartitionId(base.last_partition_id)
    heads = [AssertRefSnapshotId(name, ref.snapshot_id) for name, ref in base.refs.items()]
    by_kind: Mapping[type[Update], Sequence[Requirement]] = {
        UpgradeFormatVersion: heads,
        RemoveSnapshots: heads,
        RemoveSchemas: [*heads, schema],
        RemovePartitionSpecs: [*heads, spec],
        # Row ids are given out by snapshots, and each of these moves a reference.
        RaiseCounters: [field_ids, partition_ids, *heads],
        AddSchema: [field_ids],
        SetCurrentSchema: [schema, partition_ids, spec, order],
        AddPartitionSpec: [schema, partition_ids],
        SetDefaultSpec: [schema, spec],
        AddSortOrder: [schema],
        SetDefaultSortOrder: [schema, order],
    }
    needed: dict[Requirement, None] = {AssertTableUuid(base.table_uuid): None} if base.table_uuid is not None else {}
    for update in updates:
        required = by_kind.get(type(update), ())
        match update:
            case SetSnapshotRef(ref_name=name) | RemoveSnapshotRef(ref_name=name):
                ref = base.refs.get(name)
                required = [AssertRefSnapshotId(name, None if ref is None else ref.snapshot_id)]
            case RestoreSnapshots(schemas=schemas, partition_specs=specs):
                required = [*([schema, field_ids] if schemas else ()), *([spec, partition_ids] if specs else ())]
        needed.update(dict.fromkeys(required))
    return tuple(needed)


def column_property_updates(old: Schema, new: Schema, properties: Mapping[str, str]) -> tuple[Update, ...]:
    """Updates of a table's properties that its new schema needs: of settings by column, and of the name mapping.

    Settings follow a renamed column, and are removed with a dropped one. The mapping keeps a field's former names, which older
    files have; new fields are added to it.
    """
    changed: dict[str, str] = {}
    removed: set[str] = set()
    for key, value in properties.items():
        prefix = next((prefix for prefix in COLUMN_PROPERTIES if key.startswith(prefix)), None)
        field_id = None if prefix is None else old.ids_by_name.get(key[len(prefix) :])
        if prefix is None or field_id is None or new.names_by_id.get(field_id) == old.names_by_id[field_id]:
            continue
        removed.add(key)
        if field_id in new.names_by_id:
            changed[prefix + new.names_by_id[field_id]] = value
    try:
        mapping = name_mapping_of(properties)
    except InvalidTableError:
        # A mapping that cannot be read is left unchanged.
        mapping = None
    if mapping is not None:
        old_names = {field_id: field.name for field_id, field in old.fields_by_id.items()}
        updated = _with_new_names(mapping, new.fields, old_names)
        if updated != mapping:
            changed[NAME_MAPPING_PROPERTY] = json.dumps(name_mapping_to_json(updated))
    updates: list[Update] = []
    if removed - changed.keys():
        updates.append(RemoveProperties(tuple(sorted(removed - changed.keys()))))
    if changed:
        updates.append(SetProperties(changed))
    return tuple(updates)


def _with_new_names(
    mapping: tuple[MappedField, ...], fields: Iterable[NestedField], old_names: Mapping[int, str]
) -> tuple[MappedField, ...]:
    """One level of a mapping with the names of added or renamed fields; fields that it lacked are not added."""
    by_id = {field.field_id: field for field in fields}
    new_names = {f.name: f.field_id for f in by_id.values() if old_names.get(f.field_id) != f.name}
    out = []
    for mapped in mapping:
        # A name that another field took over belongs to that field.
        names = [name for name in mapped.names if new_names.get(name, mapped.field_id) == mapped.field_id]
        below = mapped.fields
        if mapped.field_id is not None and (field := by_id.get(mapped.field_id)) is not None:
            if field.name in new_names and field.name not in names:
                names.append(field.name)
            below = _with_new_names(mapped.fields, child_fields(field.type), old_names)
        out.append(replace(mapped, names=tuple(names), fields=below))
    added = tuple(field for field in by_id.values() if field.field_id not in old_names)
    return *out, *name_mapping_for(Schema(fields=added))
