"""The update that takes back snapshots which had expired, in their old place in the table's history.

It is ours: the REST protocol has no action for it, since a server takes no snapshot whose sequence number lies behind.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec, last_assigned_field_id
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import PartitionStatisticsFile, Snapshot, StatisticsFile
from icekeep.spec.updates import Update, UpdateContext, effect

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
