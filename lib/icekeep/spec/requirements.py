"""What must still hold when a commit lands: the REST catalog's requirements as values, and their check."""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import (
    AddPartitionSpec,
    AddSchema,
    AddSortOrder,
    RaiseCounters,
    RemovePartitionSpecs,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RestoreSnapshots,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetSnapshotRef,
    Update,
)


class _Requirement(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class AssertTableUuid(_Requirement, frozen=True, tag="assert-table-uuid"):
    """The table is still the one that was loaded."""

    uuid: str


class AssertRefSnapshotId(_Requirement, frozen=True, tag="assert-ref-snapshot-id"):
    """A branch or tag still points at `snapshot_id`; `None`: it does not exist."""

    ref: str
    snapshot_id: int | None


class AssertCurrentSchemaId(_Requirement, frozen=True, tag="assert-current-schema-id"):
    """The current schema is still the one that was loaded."""

    current_schema_id: int


class AssertDefaultSpecId(_Requirement, frozen=True, tag="assert-default-spec-id"):
    """The default partition spec is still the one that was loaded."""

    default_spec_id: int


class AssertLastAssignedFieldId(_Requirement, frozen=True, tag="assert-last-assigned-field-id"):
    """No field id was given out since the table was loaded."""

    last_assigned_field_id: int


class AssertLastAssignedPartitionId(_Requirement, frozen=True, tag="assert-last-assigned-partition-id"):
    """No partition field id was given out since the table was loaded."""

    last_assigned_partition_id: int


class AssertDefaultSortOrderId(_Requirement, frozen=True, tag="assert-default-sort-order-id"):
    """The default sort order is still the one that was loaded."""

    default_sort_order_id: int


Requirement = (
    AssertTableUuid
    | AssertRefSnapshotId
    | AssertCurrentSchemaId
    | AssertDefaultSpecId
    | AssertLastAssignedFieldId
    | AssertLastAssignedPartitionId
    | AssertDefaultSortOrderId
)


def requirements_for(base: TableMetadata, updates: Sequence[Update]) -> tuple[Requirement, ...]:
    """Derive from updates what must still hold, so that no change can forget one.

    Moving a reference requires that it is where the base had it. Removing snapshots requires it of every known
    reference: a catalog that applies updates to whatever is current would drop a moved one in silence. A schema must fit
    the default spec and sort order, and these the schema (spec, "Commit Conflict Resolution and Retry"), so each of them
    requires the others as they were. What is restored brings ids of its own along, which nobody may have given out anew.
    A table of version 1 may have no uuid; then there is none to hold it to.
    """
    needed: dict[Requirement, None] = {AssertTableUuid(base.table_uuid): None} if base.table_uuid is not None else {}
    for update in updates:
        needed.update(dict.fromkeys(_needed(base, update)))
    return tuple(needed)


def failing(requirements: Iterable[Requirement], metadata: TableMetadata) -> str | None:
    """The first requirement that does not hold, as a line of text; `None` if all hold."""
    return next((problem for r in requirements if (problem := _problem(r, metadata))), None)


def _needed(base: TableMetadata, update: Update) -> list[Requirement]:
    def as_loaded(name: str) -> AssertRefSnapshotId:
        ref = base.refs.get(name)
        return AssertRefSnapshotId(name, None if ref is None else ref.snapshot_id)

    match update:
        case SetSnapshotRef() | RemoveSnapshotRef():
            return [as_loaded(update.ref_name)]
        case RemoveSnapshots():
            return [as_loaded(name) for name in base.refs]
        case RemoveSchemas():
            return [*map(as_loaded, base.refs), AssertCurrentSchemaId(base.current_schema_id)]
        case RemovePartitionSpecs():
            return [*map(as_loaded, base.refs), AssertDefaultSpecId(base.default_spec_id)]
        case RestoreSnapshots():
            return _needed_to_restore(base, update)
        case RaiseCounters():
            # Row ids are given out by snapshots, and each of these moves a reference.
            return [
                AssertLastAssignedFieldId(base.last_column_id),
                AssertLastAssignedPartitionId(base.last_partition_id),
                *map(as_loaded, base.refs),
            ]
    return _needed_for_definition(base, update)


def _needed_to_restore(base: TableMetadata, update: RestoreSnapshots) -> list[Requirement]:
    needed: list[Requirement] = []
    if update.schemas:
        needed += [AssertCurrentSchemaId(base.current_schema_id), AssertLastAssignedFieldId(base.last_column_id)]
    if update.partition_specs:
        needed += [AssertDefaultSpecId(base.default_spec_id), AssertLastAssignedPartitionId(base.last_partition_id)]
    return needed


def _needed_for_definition(base: TableMetadata, update: Update) -> list[Requirement]:
    schema = AssertCurrentSchemaId(base.current_schema_id)
    spec = AssertDefaultSpecId(base.default_spec_id)
    order = AssertDefaultSortOrderId(base.default_sort_order_id)
    match update:
        case AddSchema():
            return [AssertLastAssignedFieldId(base.last_column_id)]
        case SetCurrentSchema():
            return [schema, AssertLastAssignedPartitionId(base.last_partition_id), spec, order]
        case AddPartitionSpec():
            return [schema, AssertLastAssignedPartitionId(base.last_partition_id)]
        case SetDefaultSpec():
            return [schema, spec]
        case AddSortOrder():
            return [schema]
        case SetDefaultSortOrder():
            return [schema, order]
    return []


def _problem(requirement: Requirement, metadata: TableMetadata) -> str | None:
    what, actual, expected = _compared(requirement, metadata)
    return None if actual == expected else f"{what} {actual}, not {expected}"


def _compared(requirement: Requirement, metadata: TableMetadata) -> tuple[str, object, object]:
    """What a requirement is about, how that is, and how it must be."""
    match requirement:
        case AssertTableUuid(uuid):
            return "the table's uuid is", metadata.table_uuid, uuid
        case AssertRefSnapshotId(name, snapshot_id):
            ref = metadata.refs.get(name)
            return f"ref {name!r} is at snapshot", None if ref is None else ref.snapshot_id, snapshot_id
        case AssertCurrentSchemaId(schema_id):
            return "the current schema is", metadata.current_schema_id, schema_id
        case AssertDefaultSpecId(spec_id):
            return "the default partition spec is", metadata.default_spec_id, spec_id
        case AssertLastAssignedFieldId(field_id):
            return "the last field id is", metadata.last_column_id, field_id
        case AssertLastAssignedPartitionId(field_id):
            return "the last partition field id is", metadata.last_partition_id, field_id
        case AssertDefaultSortOrderId(order_id):
            return "the default sort order is", metadata.default_sort_order_id, order_id
    assert_never(requirement)
