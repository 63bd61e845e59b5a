"""Manifest lists and manifests that are gone: brought back from the trash of our own runs, and lists else put together anew."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError, InvalidTableError, UnsupportedError, first_line
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.repairing.heads import Head
from icekeep.maintenance.repairing.lists.rebuilt_lists import rebuilt_list
from icekeep.maintenance.repairing.plan import NewList, TrashedFile
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.maintenance.repairing.trash import Trash
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.read import lacks_counts, read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.spelling import counted
from icekeep.storage.locations import is_location


class ListMend(Struct, frozen=True, kw_only=True):
    """What is done, in a sentence: files that come back, in this order, or a list that is written."""

    action: str
    returns: tuple[TrashedFile, ...] = ()
    new: NewList | None = None


def mend_manifest(head: Head, fault: Fault, trash: Trash) -> ListMend:
    """Bring a missing manifest of a branch back from the trash.

    Raises:
        CannotMendError: it is there, or the trash has none that the branch's list can mean.
    """
    rows = [row for row in head.rows if row.manifest_path == fault.where]
    if not rows:
        raise CannotMendError("")
    if not is_location(fault.where):
        raise CannotMendError("what the list names is no location")
    if head.table.storage.head(fault.where) is not None:
        raise CannotMendError("the manifest is there and cannot be read: bring it back by hand, from a backup")
    found = _manifest(head.table, rows[0], trash) if all(row == rows[0] for row in rows) else None
    if found is None:
        raise CannotMendError(
            "it is not in the trash of a run as the list describes it: bring it back by hand, from a backup"
        )
    return ListMend(action=f"the manifest comes back from the trash of run {found.run!r}", returns=(found,))


def mend_list(head: Head, fault: Fault, trash: Trash, reader: ManifestReader) -> ListMend:
    """Bring the missing manifest list of a branch's head back from the trash, or put it together.

    Raises:
        CannotMendError: it is there, or nothing proves what it held.
    """
    if head.snapshot.manifest_list != fault.where:
        raise CannotMendError("")
    if head.table.storage.head(fault.where) is not None:
        raise CannotMendError("the list is there and cannot be read: bring it back by hand, from a backup")
    try:
        return _returned(head.table, head.snapshot, trash)
    except CannotMendError as error:
        reason = str(error)
    try:
        return _rebuilt(head, reader)
    except CannotMendError as error:
        why = "; ".join(filter(None, (reason, str(error))))
        raise CannotMendError(f"{why}; bring the list back from a backup, or go back to another snapshot") from error


def write_list(table: Table, new: NewList, reader: ManifestReader) -> None:
    """Write a list that was planned, if it would be planned again; never over another file.

    Raises:
        ConflictError: it is there by now, or the table or its files are not as they were.
        OutcomeUnknownError: it may or may not have been written; to run it again settles that.
    """
    now = table.refresh()
    snapshot = next((one for one in now.metadata.snapshots if one.manifest_list == new.location), None)
    try:
        again = None if snapshot is None else rebuilt_list(now, snapshot, reader).new
    except CannotMendError as error:
        raise ConflictError(f"manifest list {new.location!r} cannot be put together any more: {error}") from error
    if again != new:
        raise ConflictError(f"manifest list {new.location!r} would be another one now")
    try:
        table.storage.create(new.location, new.data)
    except FileExistsError as error:
        raise ConflictError(f"manifest list {new.location!r} is there by now; it stays as it is") from error
    if table.storage.read(new.location) != new.data:
        raise ConflictError(f"manifest list {new.location!r} is not read back as it was written")


def _rebuilt(head: Head, reader: ManifestReader) -> ListMend:
    found = rebuilt_list(head.table, head.snapshot, reader)
    return ListMend(
        action=(
            f"the list is put together of {counted(found.own_count, 'manifests')} that its commit wrote and "
            f"{found.carried_count} of the "
            "snapshot before, which come to what its summary says"
        ),
        new=found.new,
    )


def _returned(table: Table, snapshot: Snapshot, trash: Trash) -> ListMend:
    """The list, with those of its manifests that are in the trash too; they come first."""
    location = str(snapshot.manifest_list)
    found = trash.at(location)
    if found is None:
        raise CannotMendError("")
    try:
        rows = _rows_of(table, snapshot, found)
        missing = [row for row in rows if not _is_there(table, row)]
        returns = [_manifest(table, row, trash) for row in missing]
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(
            f"the list in the trash of run {found.run!r} is not whole: {first_line(error)}"
        ) from error
    known = [one for one in returns if one is not None]
    if len(known) < len(returns):
        raise CannotMendError(
            f"manifests of the list in the trash of run {found.run!r} are neither there nor in the trash"
        )
    _check_totals(snapshot, rows, found)
    more = f", and {len(known)} of its manifests" if known else ""
    return ListMend(action=f"the list comes back from the trash of run {found.run!r}{more}", returns=(*known, found))


def _rows_of(table: Table, snapshot: Snapshot, found: TrashedFile) -> list[ManifestFile]:
    """Raises `CannotMendError` where the list says that it is of another snapshot."""
    data = table.storage.read(found.trash, found.size_bytes)
    said = read_header(data, found.trash).metadata.get("snapshot-id")
    rows = read_manifest_list(data, found.trash)
    ids = {snapshot.snapshot_id, *(one.snapshot_id for one in table.metadata.ancestors(snapshot.parent_snapshot_id))}
    newest = max((row.sequence_number or 0 for row in rows), default=0)
    is_own = said in (None, str(snapshot.snapshot_id).encode()) and newest <= snapshot.sequence_number
    later = {one.snapshot_id for one in table.metadata.snapshots} - ids
    if not is_own or any(row.added_snapshot_id in later for row in rows):
        raise CannotMendError(f"the list in the trash of run {found.run!r} is of another snapshot")
    return rows


def _is_there(table: Table, row: ManifestFile) -> bool:
    info = table.storage.head(row.manifest_path)
    if info is not None and info.size_bytes != row.manifest_length:
        raise CannotMendError(f"manifest {row.manifest_path!r} has {info.size_bytes} bytes, not {row.manifest_length}")
    return info is not None


def _manifest(table: Table, row: ManifestFile, trash: Trash) -> TrashedFile | None:
    """A manifest in the trash that reads as its row says."""
    found = trash.at(row.manifest_path, row.manifest_length)
    if found is None:
        return None
    try:
        partition = table.metadata.partition_type(row.partition_spec_id)
        for _ in read_manifest(table.storage.read(found.trash, found.size_bytes), row, partition)[1]:
            pass
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(
            f"the manifest in the trash of run {found.run!r} is not it: {first_line(error)}"
        ) from error
    return found


def _check_totals(snapshot: Snapshot, rows: Sequence[ManifestFile], found: TrashedFile) -> None:
    """Nothing else says the length of a list, and one that was cut off may read well."""
    if any(lacks_counts(row) for row in rows):
        raise CannotMendError(f"the list in the trash of run {found.run!r} has no counts that show whether it is whole")
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
        raise CannotMendError(
            f"the list in the trash of run {found.run!r} comes to {wrong[0]} {counted[wrong[0]]}, where the summary of its "
            f"snapshot says {summary.get(wrong[0], 'nothing')}"
        )
