"""Reading what commits did, several at a time. A file that cannot be read leaves its commit without numbers, and ends nothing."""

from collections.abc import Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from icekeep.maintenance.commit_history.changed_files import files_changed, files_counted, is_whole, totals_after
from icekeep.maintenance.commit_history.lists import ListSums, read_list_sums
from icekeep.maintenance.commit_history.result import FilesChanged, TableTotals
from icekeep.spec.manifests.structs import Status
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.locations import parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE, answer_each


class CommitRead(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a snapshot; `not_read` is the file that could not be, `note` says why."""

    sums: ListSums | None
    added: FilesChanged
    removed: FilesChanged
    after: TableTotals
    note: str | None = None
    not_read: str | None = None


def read_commits(table: Table, shown: Sequence[Snapshot]) -> dict[int, CommitRead]:
    """What is read of some snapshots, in their order, and then of their parents, of these only what their manifest lists say."""
    known = table.metadata.snapshots_by_id
    ids = {snapshot.snapshot_id for snapshot in shown}
    parents = {s.parent_snapshot_id: known[s.parent_snapshot_id] for s in shown if s.parent_snapshot_id in known}
    snapshots = [*shown, *(snapshot for snapshot_id, snapshot in parents.items() if snapshot_id not in ids)]
    is_local = parse_location(table.metadata_location).scheme == "file"
    reads = answer_each(
        lambda snapshot: _read(snapshot, table, counts_files=snapshot.snapshot_id in ids),
        snapshots,
        id,
        LOCAL_REQUESTS_AT_ONCE if is_local else REQUESTS_AT_ONCE,
    )
    return {snapshot.snapshot_id: read for snapshot, read in zip(snapshots, reads, strict=True)}


def _read(snapshot: Snapshot, table: Table, *, counts_files: bool) -> CommitRead:
    summary = snapshot.summary or {}
    sums, note, not_read = None, None, None
    try:
        sums = read_list_sums(snapshot, table.storage)
    except IcekeepError as error:
        note, not_read = f"its manifest list is not read: {error.message}", _file_of(error, snapshot)
    changed = {status: files_changed(status, sums, summary) for status in (Status.ADDED, Status.DELETED)}
    if sums is not None and counts_files and not all(map(is_whole, changed.values())):
        try:
            changed = files_counted(sums.created, snapshot.snapshot_id, table.metadata, table.storage)
        except IcekeepError as error:
            note, not_read = f"a manifest of it is not read: {error.message}", _file_of(error, snapshot)
    return CommitRead(
        # Manifests are many, and from here on only their sums are needed.
        sums=None if sums is None else msgspec.structs.replace(sums, created=()),
        added=changed[Status.ADDED],
        removed=changed[Status.DELETED],
        after=totals_after(sums, summary),
        note=note,
        not_read=not_read,
    )


def _file_of(error: IcekeepError, snapshot: Snapshot) -> str:
    return str(error.facts.get("location", snapshot.manifest_list or f"a manifest of snapshot {snapshot.snapshot_id}"))
