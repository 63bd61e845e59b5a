"""Fixes by which readers lose something: files that are gone, doubled files, manifests and vectors. Each has to be accepted."""

from collections.abc import Sequence
from typing import Any

from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.errors import (
    ConflictError,
    InvalidTableError,
    MissingFileError,
    UnsupportedError,
    UsageError,
    first_line,
)
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.maintenance.check.faults import Fault, FaultId
from icekeep.maintenance.repair.entries import read_whole
from icekeep.maintenance.repair.heads import EntryPosition, Head, is_for, manifests_of
from icekeep.maintenance.repair.older_files import fix_from_older_files
from icekeep.maintenance.repair.plan import NOT_FOUND, CannotRepairError, Fix, NewFiles, VectorMerge, not_accepted
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import is_deletion_vector, partition_key, path_bounds, sequence_number
from icekeep.spelling import counted
from icekeep.storage.locations import canonical_or_text


def fix_missing(head: Head, fault: Fault) -> list[Fix]:
    """Plan that a file comes back from the trash, or its rows from older files; else that its entries go.

    Raises:
        CannotRepairError: the file is there, or its loss is not accepted.
    """
    if found := head.trashed(fault):
        return [Fix(action=f"the file comes back from the trash of run {found.run!r}", returns=(found,))]
    why = ""
    if fault.number == FaultId.DATA_FILE_MISSING:
        try:
            return fix_from_older_files(head, fault)
        except CannotRepairError as error:
            why = str(error)
    try:
        return [_take_out_missing(head, fault)]
    except CannotRepairError as error:
        if not why or str(error) in ("", NOT_FOUND, why):
            raise
        raise CannotRepairError(f"{error}; and it cannot come back from older files: {why}") from error


def _take_out_missing(head: Head, fault: Fault) -> Fix:
    path = str(fault.facts["file_path"])
    is_data = fault.number == FaultId.DATA_FILE_MISSING
    found = head.places(path, manifests_of(fault))
    places = [p for p in found if (p.entry.data_file.content is FileContent.DATA) is is_data]
    if not places:
        raise CannotRepairError("")
    if head.table.storage.head(path) is not None:
        raise CannotRepairError(NOT_FOUND)
    fix = _take_out(head, path, places, "the file is neither there nor in the trash")
    head.work.gone.add(path)
    return fix


def fix_unreadable(head: Head, fault: Fault) -> list[Fix]:
    """Plan that the entries of a file go, or that of a vector, which is there and cannot be read.

    Raises:
        CannotRepairError: it can be read, or it is not known whether it can, or the loss is not accepted.
        UnavailableError: the store is out of reach.
    """
    path, offset = str(fault.facts["file_path"]), fault.facts.get("content_offset")
    is_data = fault.number == FaultId.DATA_FILE_UNREADABLE
    places = [
        place
        for place in head.places(path, manifests_of(fault))
        if (place.entry.data_file.content is FileContent.DATA) is is_data
        and offset in (None, place.entry.data_file.content_offset)
    ]
    if not places:
        raise CannotRepairError("")
    info = head.table.storage.head(path)
    if info is None:
        raise CannotRepairError("it is not there: see faults 301 and 303")
    problems = [_why_unreadable(head, fault, place.entry.data_file) for place in places]
    if "" in problems:
        raise CannotRepairError(NOT_FOUND)
    more = "; the file goes when older snapshots expire"
    fix = _take_out(head, path, places, f"icekeep cannot read it: {problems[0]}", more)
    head.work.broken[path] = info
    return [fix]


def _why_unreadable(head: Head, fault: Fault, file: DataFile) -> str:
    """Empty where it can be read."""
    if file.key_metadata is not None:
        raise CannotRepairError("the file is encrypted")
    try:
        read_whole(file, head.table, head.schema_of(fault))
    except MissingFileError as error:
        raise CannotRepairError(NOT_FOUND) from error
    except InvalidTableError as error:
        return first_line(error)
    except (UnsupportedError, UsageError) as error:
        raise CannotRepairError(f"it is not known whether the file can be read: {first_line(error)}") from error
    return ""


def _take_out(head: Head, path: str, places: Sequence[EntryPosition], why: str, more: str = "") -> Fix:
    """Plan that the entries of one file go, and with those of a data file the deletes that are for it alone.

    Args:
        why: why the file cannot be read, as the first half of a sentence.
    """
    is_data = places[0].entry.data_file.content is FileContent.DATA
    records = sum(place.entry.data_file.record_count for place in places)
    kind = "records" if is_data else "deletes"
    lost = f"{records} records are lost" if is_data else f"rows come back: {records} deletes are lost"
    _need_accepted(head, path, f"{why}, and with its entry {lost}")
    alone = [p for p in head.about(path) if is_for(p.entry.data_file, {canonical_or_text(path)})] if is_data else []
    for place in (*places, *alone):
        head.refuse_doubled(place.row)
        head.refuse_merged(place)
    for place in (*places, *alone):
        head.work.entries[place.key] = place.repaired(None)
    beside = f", and with it {counted(len(alone), 'delete files')} for it alone" if alone else ""
    return Fix(
        action=f"{why}: its entry is taken out{beside}; {records} {kind} are lost{more}",
        lost_files=(path,),
        lost_records_count=records,
    )


def _need_accepted(head: Head, name: str, what: str) -> None:
    if name not in head.scope.accepted:
        raise not_accepted(what, [name])


def fix_doubled_file(head: Head, fault: Fault) -> list[Fix]:
    """Plan that all entries of a file but the newest go: fewest deletes reach that one, so no row goes that anybody saw."""
    path = str(fault.facts["file_path"])
    if head.doubled_manifests:
        raise CannotRepairError("a manifest is listed twice: repair fault 220 first")
    offset = fault.facts.get("content_offset")
    # Its entries may spell the location in several ways.
    spellings = sorted({str(one["file_path"]) for one in fault.facts["entries"]})
    found = [place for one in spellings for place in head.places(one, manifests_of(fault))]
    found += [p for p in head.about(path) if canonical_or_text(p.entry.data_file.file_path) == canonical_or_text(path)]
    by_key = {p.key: p for p in found if offset is None or p.entry.data_file.content_offset == offset}
    places = [*by_key.values()]
    if not places:
        raise CannotRepairError("")
    if len(places) == 1:
        raise CannotRepairError(NOT_FOUND)
    for place in places:
        head.refuse_misnumbered(place.row)
    if other := _difference([place.entry.data_file for place in places]):
        raise CannotRepairError(f"its entries differ in {other}, and it is not known which one is right")
    keeps = max(places, key=lambda place: sequence_number(place.entry))
    goes = [place for place in places if place.key != keeps.key]
    file = keeps.entry.data_file
    _need_accepted(head, path, f"readers have its {file.record_count} records {len(places)} times, and then once")
    for place in goes:
        head.work.entries[place.key] = place.repaired(None, is_deleted=False)
    # It is written as it is, so that each attempt sees whether it is live still: else the last entry might go.
    head.work.entries[keeps.key] = keeps.repaired(file)
    head.standing.discard((fault.number, fault.where))
    number = sequence_number(keeps.entry)
    action = f"{len(goes)} of its {len(places)} entries are taken out; that with data sequence number {number} stays"
    lost_count = len(goes) * file.record_count if file.content is FileContent.DATA else 0
    return [Fix(action=action, lost_records_count=lost_count)]


def _difference(files: Sequence[DataFile]) -> str:
    """What entries of one file say differently; empty for nothing."""
    values: dict[str, list[Any]] = {
        "their partition": [partition_key(file) for file in files],
        "what they hold": [file.content for file in files],
        "record_count": [file.record_count for file in files],
        "first_row_id": [file.first_row_id for file in files],
        "the data file that they are for": [file.referenced_data_file for file in files],
        "the paths that they may name": [path_bounds(file) for file in files if file.content is not FileContent.DATA],
        "the columns that they compare": [{*(file.equality_ids or ())} for file in files],
        "content_size_in_bytes": [file.content_size_in_bytes for file in files],
        "file_path": [file.file_path for file in files],
    }
    return next((name for name, some in values.items() if any(value != some[0] for value in some)), "")


def fix_doubled_manifest(head: Head, fault: Fault) -> list[Fix]:
    """Plan that the list names a manifest once."""
    path = str(fault.facts["manifest"])
    rows = [row for row in head.rows if row.manifest_path == path]
    if not rows:
        raise CannotRepairError("")
    if len(rows) == 1:
        raise CannotRepairError(NOT_FOUND)
    if any(row != rows[0] for row in rows):
        raise CannotRepairError("its rows in the list differ, and it is not known which one is right")
    records = (rows[0].added_rows_count or 0) + (rows[0].existing_rows_count or 0)
    _need_accepted(head, path, f"readers have its {records} records {len(rows)} times, and then once")
    head.work.once.add(path)
    head.standing.discard((fault.number, fault.where))
    lost_count = records * (len(rows) - 1) if rows[0].content is ManifestContent.DATA else 0
    return [Fix(action=f"the list names it once, not {len(rows)} times", lost_records_count=lost_count)]


def fix_two_vectors(head: Head, fault: Fault) -> list[Fix]:
    """Plan that one vector of all positions takes the place of the vectors of a data file: no reader reads it meanwhile."""
    path = str(fault.facts["referenced_data_file"])
    about = head.about(path)
    places = [place for place in about if is_deletion_vector(place.entry.data_file)]
    if any(place.entry.data_file.referenced_data_file != path for place in places):
        raise CannotRepairError("its vectors spell its location in several ways")
    if not places:
        raise CannotRepairError("")
    if len(places) == 1:
        raise CannotRepairError(NOT_FOUND)
    for place in places:
        head.refuse_doubled(place.row)
        if place.key in head.work.entries:
            raise CannotRepairError("its entry is corrected in the same run, or goes; run the repair again afterwards")
    _check_reach([p for p in about if p.entry.data_file.content is FileContent.DATA], places)
    try:
        positions = [read_deletion_vector(head.table.storage, place.entry.data_file) for place in places]
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        raise CannotRepairError(f"one of them cannot be read: {first_line(error)}") from error
    union = BitMap64.union(*positions)
    lost = [len(union) - len(one) for one in positions]
    readers = " and ".join(
        f"{counted(count, 'rows')} of readers of {file.file_path!r} at {file.content_offset}"
        for count, file in zip(lost, (place.entry.data_file for place in places), strict=True)
    )
    action = f"its {len(places)} vectors become one of {counted(len(union), 'positions')}, by which {readers} go"
    _need_accepted(head, path, action)
    entries = tuple(place.repaired(None) for place in places)
    head.work.merges.append(VectorMerge(data_file=path, entries=entries, cardinality=len(union)))
    return [Fix(action=action, lost_records_count=max(lost))]


def _check_reach(data: Sequence[EntryPosition], places: Sequence[EntryPosition]) -> None:
    """A vector that is older than the data file reaches no row of it; the merged one, with the greatest number, would."""
    if len(data) != 1:
        raise CannotRepairError(f"the data file is live {len(data)} times")
    one = data[0].entry
    if any(sequence_number(place.entry) < sequence_number(one) for place in places):
        raise CannotRepairError("one of them is older than the data file, and reaches none of its rows")
    if any(partition_key(place.entry.data_file) != partition_key(one.data_file) for place in places):
        raise CannotRepairError("one of them is of another partition than the data file")


class MergedVectors:
    """Writes the merged vectors of one branch, once for all attempts."""

    def __init__(self, merges: Sequence[VectorMerge], run_id: str, table: Table) -> None:
        self._merges, self._run_id, self._table = merges, run_id, table
        self._added: tuple[AddedDeletes, ...] = ()

    def made(self, _: TableMetadata, attempt: Attempt) -> NewFiles:
        """Raises `ConflictError` where a vector has other positions than were read."""
        if not self._added:
            self._added = self._written(attempt)
        gone = tuple(entry for merge in self._merges for entry in merge.entries)
        locations = tuple(sorted({one.file.file_path for one in self._added}))
        return NewFiles(locations=locations, entries=gone, deletes=self._added)

    def _written(self, attempt: Attempt) -> tuple[AddedDeletes, ...]:
        storage, metadata = attempt.reader.storage, self._table.metadata
        vectors = []
        for merge in self._merges:
            positions = [read_deletion_vector(storage, one.planned.data_file) for one in merge.entries]
            union = BitMap64.union(*positions)
            if len(union) != merge.cardinality:
                raise ConflictError(f"the vectors of {merge.data_file!r} have {counted(len(union), 'positions')} now")
            file = merge.entries[0].planned.data_file
            target = VectorTarget(location=merge.data_file, spec_id=file.spec_id, partition=file.partition)
            vectors.append((target, union))
        # Another name each time: one that was written may be there although no answer came.
        name = f"{self._run_id}-{self._table.runtime.new_uuid()}-deletes.puffin"
        location = data_layout(metadata.location, metadata.properties).location(name)
        files = write_deletion_vectors(storage, location, vectors)
        attempt.delete_file_written(location)
        numbers = [max(sequence_number(one.planned) for one in merge.entries) for merge in self._merges]
        return tuple(AddedDeletes(file, number) for file, number in zip(files, numbers, strict=True))
