"""What will be different after a commit: the REST catalog's updates as values, and their effect on metadata.

Each update has the REST protocol's `action` name. `apply_updates` is pure: metadata and updates in, metadata out. Here are
the updates of snapshots, references and properties; those of a table's definition are in `definition_updates.py`, those of
statistics and keys in `attachment_updates.py`, each with its effect.
"""

from collections.abc import Mapping, Sequence
from functools import singledispatch

import msgspec
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError
from icekeep.spec.metadata import TableMetadata, validate_metadata
from icekeep.spec.snapshots import MAIN, MetadataLogEntry, Snapshot, SnapshotLogEntry, SnapshotRef
from icekeep.spec.table_properties import whole_number

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
