"""Requirements and updates as the JSON of the REST catalog protocol ("CommitTableRequest")."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Identifier
from icekeep.errors import UnsupportedError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec, spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.snapshots import View, view_to_json
from icekeep.spec.sorting import SortOrder, sort_order_to_json
from icekeep.spec.updates import (
    LAST_ADDED,
    AddPartitionSpec,
    AddSchema,
    AddSortOrder,
    AssertRefSnapshotId,
    AssignUuid,
    RaiseCounters,
    Requirement,
    RestoreSnapshots,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetProperties,
    SetSnapshotRef,
    Update,
    UpgradeFormatVersion,
)

ASSERT_CREATE: Mapping[str, Any] = {"type": "assert-create"}
"""The requirement that a table does not exist yet."""


def commit_request(
    identifier: Identifier, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A commit to a table; all requirements are in it, also several of one type."""
    name = {"namespace": list(identifier[:-1]), "name": identifier[-1]}
    return {"identifier": name, "requirements": list(requirements), "updates": list(updates)}


def requirement_to_json(requirement: Requirement) -> dict[str, Any]:
    """A requirement as the protocol has it."""
    if isinstance(requirement, AssertRefSnapshotId):
        # Null says that there must be no such reference, and the protocol wants it said.
        return {"type": "assert-ref-snapshot-id", "ref": requirement.ref, "snapshot-id": requirement.snapshot_id}
    return _to_json(requirement, "type")


def updates_to_json(base: TableMetadata | None, updates: Sequence[Update]) -> list[dict[str, Any]]:
    """Updates as the protocol has them; `base` is what they were made for, null for a new table.

    Raises:
        UnsupportedError: the protocol has no such update.
    """
    return [_update_to_json(base, update) for update in updates]


def creation_updates(metadata: TableMetadata) -> list[Update]:
    """The updates that make an empty table with this metadata out of nothing."""
    updates: list[Update] = [AssignUuid(metadata.table_uuid)] if metadata.table_uuid is not None else []
    updates += [
        UpgradeFormatVersion(metadata.format_version),
        AddSchema(metadata.schema, metadata.last_column_id),
        SetCurrentSchema(LAST_ADDED),
        AddPartitionSpec(metadata.spec),
        SetDefaultSpec(LAST_ADDED),
        AddSortOrder(metadata.sort_order),
        SetDefaultSortOrder(LAST_ADDED),
        SetLocation(metadata.location),
        SetProperties(dict(metadata.properties)),
    ]
    return updates


def _update_to_json(base: TableMetadata | None, update: Update) -> dict[str, Any]:
    match update:
        case SetSnapshotRef():
            return {"action": "set-snapshot-ref", "ref-name": update.ref_name, **view_to_json(update.ref)}
        case AddSchema():
            # Deprecated, since servers work it out; but Nessie 0.99 takes no schema without it.
            highest = max(update.schema.highest_field_id, base.last_column_id if base is not None else 0)
            counted = update.last_column_id if update.last_column_id is not None else highest
            return _to_json(msgspec.structs.replace(update, last_column_id=counted), "action")
        case RestoreSnapshots():
            raise UnsupportedError(
                "snapshots cannot be restored through a REST catalog: a server refuses their old sequence numbers"
            )
        case RaiseCounters():
            raise UnsupportedError(
                "counters of ids cannot be raised through a REST catalog: a server works them out by itself"
            )
    out = _to_json(update, "action")
    snapshot = out.get("snapshot")
    if isinstance(snapshot, dict) and base is not None and base.format_version == 1:
        snapshot.pop("sequence-number", None)
    return out


def _to_json(value: msgspec.Struct, tag_field: str) -> dict[str, Any]:
    out: dict[str, Any] = {tag_field: type(value).__struct_config__.tag}
    for name in value.__struct_fields__:
        item = _item_to_json(getattr(value, name))
        if item is not None:
            out[name.replace("_", "-")] = item
    if "statistics" in out:
        # Older servers want the id beside the file that holds it.
        out["snapshot-id"] = out["statistics"]["snapshot-id"]
    return out


def _item_to_json(item: Any) -> Any:
    match item:
        case Schema():
            return schema_to_json(item)
        case PartitionSpec():
            return spec_to_json(item)
        case SortOrder():
            return sort_order_to_json(item)
        case View():
            return view_to_json(item)
        case tuple():
            return list(item)
        case Mapping():
            return dict(item)
    return item
