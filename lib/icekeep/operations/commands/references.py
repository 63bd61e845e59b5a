"""The commands that move references, `restore`, which undoes a run, and `register` and `unregister`."""

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import UsageError
from icekeep.events import SILENT, Listener
from icekeep.maintenance.register import refuse_moved, register_table, unregister_table
from icekeep.maintenance.restore.job import Restorable, RestoreResult, list_restorable, plan_restore
from icekeep.maintenance.restore.job import restore as restore_run
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, SnapshotRef
from icekeep.spec.times import format_time
from icekeep.tables.refs import drop_matching_tags, drop_tag
from icekeep.tables.verbs import (
    cherrypick_snapshot,
    publish_changes,
    rollback_to_snapshot,
    rollback_to_timestamp,
    set_current_snapshot,
)


class RefShown(msgspec.Struct, frozen=True, kw_only=True):
    """A reference as Iceberg's metadata table `refs` has it, and when its snapshot was committed (ISO 8601, UTC)."""

    name: str
    type: str
    snapshot_id: int
    committed_at: str | None
    max_ref_age_ms: int | None
    min_snapshots_to_keep: int | None
    max_snapshot_age_ms: int | None


class RefsShown(msgspec.Struct, frozen=True):
    """The branches and tags of a table: `main`, the other branches, the tags."""

    metadata_location: str
    refs: tuple[RefShown, ...]


def list_refs(table: Table) -> RefsShown:
    refs = sorted(table.metadata.refs.items(), key=lambda item: (item[0] != MAIN, not item[1].is_branch, item[0]))
    return RefsShown(table.metadata_location, tuple(_shown(name, ref, table.metadata) for name, ref in refs))


def rollback(
    table: Table,
    *,
    snapshot_id: int | None = None,
    timestamp: int | None = None,
    set_current: int | None = None,
    set_current_ref: str | None = None,
) -> Table:
    """Move `main` as the one argument says that is given; raises what the verbs of `tables/verbs.py` raise."""
    if snapshot_id is not None:
        return rollback_to_snapshot(table, snapshot_id)
    if timestamp is not None:
        return rollback_to_timestamp(table, timestamp)
    return set_current_snapshot(table, set_current, ref=set_current_ref)


def publish(table: Table, *, snapshot_id: int | None = None, wap_id: str | None = None) -> Table:
    """Publish a snapshot by its id or its `wap.id`; raises what the verbs of `tables/verbs.py` raise."""
    if snapshot_id is not None:
        return cherrypick_snapshot(table, snapshot_id)
    return publish_changes(table, wap_id or "")


class RunsShown(msgspec.Struct, frozen=True):
    """The runs of a table that can be brought back, the newest first."""

    metadata_location: str
    runs: tuple[Restorable, ...]


def restore(
    table: Table,
    *,
    run: str | None = None,
    lists: bool = False,
    keep_for: int | None = None,
    dry_run: bool = False,
    spark: SparkSource = None,
    listener: Listener,
) -> RestoreResult | RunsShown:
    """Bring back what a run removed, or show which can be; raises what `maintenance/restore` raises."""
    if lists:
        if run is not None:
            raise UsageError("--list shows all runs, and --run brings one back; give one of them")
        return RunsShown(table.metadata_location, list_restorable(table))
    bring_back = plan_restore if dry_run else restore_run
    return bring_back(table, run=run, keep_for=keep_for, spark=spark, listener=listener)


def drop_tags(table: Table, *, name: str = "", match: str | None = None, if_exists: bool = False) -> Table:
    """Drop a tag, or all whose names match, in one commit; raises what the verbs of `tables/refs.py` raise."""
    if match is None:
        return drop_tag(table, name, if_exists=if_exists)
    return drop_matching_tags(table, match, if_exists=if_exists)


def _shown(name: str, ref: SnapshotRef, metadata: TableMetadata) -> RefShown:
    snapshot = metadata.snapshots_by_id.get(ref.snapshot_id)
    return RefShown(
        name=name,
        type=ref.type,
        snapshot_id=ref.snapshot_id,
        committed_at=None if snapshot is None else format_time(snapshot.timestamp_ms),
        max_ref_age_ms=ref.max_ref_age_ms,
        min_snapshots_to_keep=ref.min_snapshots_to_keep,
        max_snapshot_age_ms=ref.max_snapshot_age_ms,
    )


class TableRegistered(msgspec.Struct, frozen=True, kw_only=True):
    """A table as its catalog has it now.

    Attributes:
        metadata_location: of its metadata, which a catalog in a directory has moved to where it looks for it.
        current_snapshot_id: `None` for a table without data.
    """

    metadata_location: str
    table_uuid: str | None
    location: str
    current_snapshot_id: int | None
    snapshots_count: int


def register(
    catalog: Catalog, identifier: Identifier, *, metadata_location: str, listener: Listener = SILENT
) -> TableRegistered:
    """Take in a table by its metadata file; raises what `register_table` raises."""
    table = register_table(catalog, identifier, metadata_location, listener=listener)
    return TableRegistered(
        metadata_location=table.metadata_location,
        table_uuid=table.metadata.table_uuid,
        location=table.metadata.location,
        current_snapshot_id=table.metadata.current_snapshot_id,
        snapshots_count=len(table.metadata.snapshots),
    )


class TableUnregistered(msgspec.Struct, frozen=True, kw_only=True):
    """A table that its catalog has no more, or would not have.

    Attributes:
        metadata_location: its metadata file, which `register` takes. In a rehearsal it is where the file is now, which a catalog
            in a directory would move aside.
        current_snapshot_id: `None` for a table without data.
    """

    metadata_location: str
    table_uuid: str | None
    location: str
    current_snapshot_id: int | None
    snapshots_count: int
    status: str = "done"


def unregister(table: Table, *, metadata_location: str | None = None, dry_run: bool = False) -> TableUnregistered:
    """Take a table out of its catalog, or say what `register` would be given; raises what `unregister_table` raises."""
    if dry_run:
        refuse_moved(table, metadata_location)
        kept = table.metadata_location
    else:
        kept = unregister_table(table, metadata_location)
    return TableUnregistered(
        metadata_location=kept,
        table_uuid=table.metadata.table_uuid,
        location=table.metadata.location,
        current_snapshot_id=table.metadata.current_snapshot_id,
        snapshots_count=len(table.metadata.snapshots),
        status="planned" if dry_run else "done",
    )
