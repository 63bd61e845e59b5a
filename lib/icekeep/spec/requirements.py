"""What must still hold when a commit lands: the REST catalog's requirements as values, and their check."""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import (
    RemovePartitionSpecs,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    SetSnapshotRef,
    Update,
)


class _Requirement(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class AssertTableUuid(_Requirement, frozen=True, tag="assert-table-uuid"):
    """The table is still the one that was loaded."""

    uuid: str | None


class AssertRefSnapshotId(_Requirement, frozen=True, tag="assert-ref-snapshot-id"):
    """A branch or tag still points at `snapshot_id`; null: it does not exist."""

    ref: str
    snapshot_id: int | None


class AssertCurrentSchemaId(_Requirement, frozen=True, tag="assert-current-schema-id"):
    """The current schema is still the one that was loaded."""

    current_schema_id: int


class AssertDefaultSpecId(_Requirement, frozen=True, tag="assert-default-spec-id"):
    """The default partition spec is still the one that was loaded."""

    default_spec_id: int


Requirement = AssertTableUuid | AssertRefSnapshotId | AssertCurrentSchemaId | AssertDefaultSpecId


def requirements_for(base: TableMetadata, updates: Sequence[Update]) -> tuple[Requirement, ...]:
    """Derive from updates what must still hold, so that no change can forget one.

    Moving a reference requires that it is where the base had it. Removing snapshots requires it of every known
    reference: a catalog that applies updates to whatever is current would drop a moved one in silence.
    """
    needed: dict[Requirement, None] = {AssertTableUuid(base.table_uuid): None}
    for update in updates:
        needed.update(dict.fromkeys(_needed(base, update)))
    return tuple(needed)


def failing(requirements: Iterable[Requirement], metadata: TableMetadata) -> str | None:
    """The first requirement that does not hold, as a line of text; null if all hold."""
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
    return []


def _problem(requirement: Requirement, metadata: TableMetadata) -> str | None:
    match requirement:
        case AssertTableUuid(uuid):
            if metadata.table_uuid != uuid:
                return f"the table's uuid is {metadata.table_uuid}, not {uuid}"
        case AssertRefSnapshotId(name, snapshot_id):
            ref = metadata.refs.get(name)
            actual = None if ref is None else ref.snapshot_id
            if actual != snapshot_id:
                return f"ref {name!r} is at snapshot {actual}, not {snapshot_id}"
        case AssertCurrentSchemaId(schema_id):
            if metadata.current_schema_id != schema_id:
                return f"the current schema is {metadata.current_schema_id}, not {schema_id}"
        case AssertDefaultSpecId(spec_id):
            if metadata.default_spec_id != spec_id:
                return f"the default partition spec is {metadata.default_spec_id}, not {spec_id}"
        case _:
            assert_never(requirement)
    return None
