"""Manifest lists and manifests that are gone: they come back from the trash where they are what the table means."""

from collections.abc import Mapping, Sequence

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.repair.heads import Head
from icekeep.maintenance.repair.plan import CannotRepairError, Fix, TrashedFile
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.read import lacks_counts, read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import head_many
from icekeep.storage.locations import is_location

_NO_LIST = "bring the list back from a backup, or go back to another snapshot"


def fix_manifest(head: Head, fault: Fault) -> list[Fix]:
    """Bring a missing manifest of a branch back from the trash.

    Raises:
        CannotRepairError: it is there, or the trash has none that the branch's list can mean.
    """
    rows = [row for row in head.rows if row.manifest_path == fault.where]
    if not rows:
        raise CannotRepairError("")
    if not is_location(fault.where):
        raise CannotRepairError("what the list names is no location")
    if head.table.storage.head(fault.where) is not None:
        raise CannotRepairError("the manifest is there and cannot be read: bring it back by hand, from a backup")
    found = _trashed_manifest(head, rows[0]) if all(row == rows[0] for row in rows) else None
    if found is None:
        raise CannotRepairError(
            "it is not in the trash of a run as the list describes it: bring it back by hand, from a backup"
        )
    return [Fix(action=f"the manifest comes back from the trash of run {found.run!r}", returns=(found,))]


def fix_list(head: Head, fault: Fault) -> list[Fix]:
    """Bring the missing manifest list of a branch's head back from the trash, with its manifests that are there too.

    Raises:
        CannotRepairError: it is not missing, or the trash has none that is proved to be it.
    """
    snapshot, storage = head.snapshot, head.table.storage
    if snapshot.manifest_list is None or snapshot.manifest_list != fault.where:
        raise CannotRepairError("")
    if storage.head(fault.where) is not None:
        raise CannotRepairError("the list is there and cannot be read: bring it back by hand, from a backup")
    found = head.trash.find(snapshot.manifest_list)
    if found is None:
        raise CannotRepairError(f"it is not in the trash of a run: {_NO_LIST}")
    try:
        rows = _rows_of(head.table, snapshot, found)
        manifests = _missing_manifests(head, rows, found)
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotRepairError(
            f"the list in the trash of run {found.run!r} is not whole: {first_line(error)}; {_NO_LIST}"
        ) from error
    except CannotRepairError as error:
        raise CannotRepairError(f"{error}; {_NO_LIST}") from error
    more = f", and {len(manifests)} of its manifests" if manifests else ""
    action = f"the list comes back from the trash of run {found.run!r}{more}"
    # Manifests come first.
    return [Fix(action=action, returns=(*manifests, found))]


def _rows_of(table: Table, snapshot: Snapshot, found: TrashedFile) -> list[ManifestFile]:
    """Raises `CannotRepairError` where the list is of another snapshot, or its rows do not add up to its summary."""
    data = table.storage.read(found.trash, found.size_bytes)
    snapshot_id = read_header(data, found.trash).metadata.get("snapshot-id")
    rows = read_manifest_list(data, found.trash)
    ids = {snapshot.snapshot_id, *(one.snapshot_id for one in table.metadata.ancestors(snapshot.parent_snapshot_id))}
    newest = max((row.sequence_number or 0 for row in rows), default=0)
    is_own = snapshot_id in (None, str(snapshot.snapshot_id).encode()) and newest <= snapshot.sequence_number
    later = {one.snapshot_id for one in table.metadata.snapshots} - ids
    if not is_own or any(row.added_snapshot_id in later for row in rows):
        raise CannotRepairError(f"the list in the trash of run {found.run!r} is of another snapshot")
    return rows


def _missing_manifests(head: Head, rows: Sequence[ManifestFile], found: TrashedFile) -> list[TrashedFile]:
    """The manifests of a list that have to come back with it."""
    infos = head_many([row.manifest_path for row in rows], head.table.storage)
    returns = []
    for row, info in zip(rows, infos, strict=True):
        if info is None:
            returns.append(_trashed_manifest(head, row))
        elif info.size_bytes != row.manifest_length:
            raise CannotRepairError(
                f"manifest {row.manifest_path!r} has {info.size_bytes} bytes, not {row.manifest_length}"
            )
    manifests = [one for one in returns if one is not None]
    if len(manifests) < len(returns):
        raise CannotRepairError(
            f"manifests of the list in the trash of run {found.run!r} are neither there nor in the trash"
        )
    _check_totals(head.snapshot, rows, found)
    return manifests


def _trashed_manifest(head: Head, row: ManifestFile) -> TrashedFile | None:
    """A manifest in the trash that reads as its row says."""
    found = head.trash.find(row.manifest_path, row.manifest_length)
    if found is None:
        return None
    table = head.table
    try:
        partition = table.metadata.partition_type(row.partition_spec_id)
        for _ in read_manifest(table.storage.read(found.trash, found.size_bytes), row, partition)[1]:
            pass
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotRepairError(
            f"the manifest in the trash of run {found.run!r} is not the missing one: {first_line(error)}"
        ) from error
    return found


def _check_totals(snapshot: Snapshot, rows: Sequence[ManifestFile], found: TrashedFile) -> None:
    """Nothing else says the length of a list, and one that was cut off may read well."""
    if any(lacks_counts(row) for row in rows):
        raise CannotRepairError(
            f"the list in the trash of run {found.run!r} has no counts that show whether it is whole"
        )
    data = [row for row in rows if row.content is ManifestContent.DATA]
    deletes = [row for row in rows if row.content is ManifestContent.DELETES]
    counted: Mapping[str, int] = {
        "total-data-files": sum(row.live_files_count or 0 for row in data),
        "total-delete-files": sum(row.live_files_count or 0 for row in deletes),
        "total-records": sum((row.added_rows_count or 0) + (row.existing_rows_count or 0) for row in data),
    }
    summary = snapshot.summary or {}
    wrong = [name for name, count in counted.items() if summary.get(name) != str(count)]
    if wrong:
        raise CannotRepairError(
            f"the list in the trash of run {found.run!r} comes to {wrong[0]} {counted[wrong[0]]}, where the summary of its "
            f"snapshot says {summary.get(wrong[0], 'nothing')}"
        )
