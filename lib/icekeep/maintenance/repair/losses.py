"""Mends by which readers lose something: files that are gone, doubled files, manifests and vectors. Each has to be accepted."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from pyroaring import BitMap64

from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.formats.puffin import read_deletion_vector
from icekeep.maintenance.check.faults import Fault, FaultId
from icekeep.maintenance.repair.heads import (
    EntryPosition,
    Head,
    is_for,
    refuse_described,
    refuse_doubled,
    refuse_merged,
    refuse_misnumbered,
    same_file,
)
from icekeep.maintenance.repair.metadata import NOT_FOUND, CannotMendError, manifests_of, not_accepted
from icekeep.maintenance.repair.plan import VectorMerge
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent
from icekeep.spec.reach import is_deletion_vector, partition_key, path_bounds, sequence_number
from icekeep.spelling import counted

LOSSES = frozenset(
    (
        FaultId.DATA_FILE_MISSING,
        FaultId.DELETE_FILE_MISSING,
        FaultId.DOUBLED_FILE,
        FaultId.TWO_VECTORS,
        FaultId.DOUBLED_MANIFEST,
    )
)


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What is done, in a sentence, and what is lost by it."""

    action: str
    files: tuple[str, ...] = ()
    records_count: int = 0


def mend_loss(head: Head, fault: Fault, accepted: Collection[str]) -> Lost:
    """Plan a mend by which something is lost.

    Raises:
        CannotMendError: nothing can be done, or what is lost by it is not accepted, or there is nothing to mend.
    """
    by_number: Mapping[int, Callable[[Head, Fault, Collection[str]], Lost]] = {
        FaultId.DOUBLED_FILE: _doubled_file,
        FaultId.TWO_VECTORS: _two_vectors,
        FaultId.DOUBLED_MANIFEST: _doubled_manifest,
    }
    return by_number.get(fault.number, _missing)(head, fault, accepted)


def _need_accepted(name: str, accepted: Collection[str], what: str) -> None:
    if name not in accepted:
        raise not_accepted(what, [name])


def _missing(head: Head, fault: Fault, accepted: Collection[str]) -> Lost:
    """The entries of a file that is not there, and the deletes that are for it alone."""
    path = str(fault.facts["file_path"])
    is_data = fault.number == FaultId.DATA_FILE_MISSING
    places = [p for p in named(head, fault, path) if (p.entry.data_file.content is FileContent.DATA) is is_data]
    if not places:
        raise CannotMendError("")
    if head.table.storage.head(path) is not None:
        raise CannotMendError(NOT_FOUND)
    lost = take_out(head, path, places, accepted, "the file is neither there nor in the trash")
    head.work.gone.add(path)
    return lost


def take_out(head: Head, path: str, places: Sequence[EntryPosition], accepted: Collection[str], why: str) -> Lost:
    """Have the entries of one file go, and with those of a data file the deletes that are for it alone.

    Args:
        why: says that the file cannot be read, as the first half of a sentence.

    Raises:
        CannotMendError: that is not accepted, or files are doubled in one of the manifests.
    """
    is_data = places[0].entry.data_file.content is FileContent.DATA
    records = sum(place.entry.data_file.record_count for place in places)
    kind = "records" if is_data else "deletes"
    lost = f"{records} records are lost" if is_data else f"rows come back: {records} deletes are lost"
    _need_accepted(path, accepted, f"{why}, and with its entry {lost}")
    alone = _deletes_of(head, path) if is_data else []
    for place in (*places, *alone):
        refuse_doubled(head, place.row)
        refuse_merged(head, place)
    for place in (*places, *alone):
        head.work.entries[place.key] = place.mended(None)
    more = f", and with it {counted(len(alone), 'delete files')} for it alone" if alone else ""
    return Lost(
        action=f"{why}: its entry is taken out{more}; {records} {kind} are lost", files=(path,), records_count=records
    )


def named(head: Head, fault: Fault, path: str) -> list[EntryPosition]:
    """The live entries of a file that a fault tells of; raises `CannotMendError` as `Head.places`."""
    return head.places(path, manifests_of(fault))


def _deletes_of(head: Head, path: str) -> list[EntryPosition]:
    """Vectors and position delete files that are for one data file alone."""
    return [place for place in head.about(path) if is_for(place.entry.data_file, {same_file(path)})]


def _doubled_file(head: Head, fault: Fault, accepted: Collection[str]) -> Lost:
    """All entries of a file but the newest go: fewest deletes reach that one, so no row goes that anybody saw."""
    path = str(fault.facts["file_path"])
    if head.doubled_manifests:
        raise CannotMendError("a manifest is listed twice: mend fault 220 first")
    offset = fault.facts.get("content_offset")
    spelled = {str(one["file_path"]) for one in fault.facts["entries"]}
    found = [
        place
        for name in sorted(spelled)
        for place in named(head, fault, name)
        if offset is None or place.entry.data_file.content_offset == offset
    ]
    places = [*{place.key: place for place in (*found, *_everywhere(head, path, offset))}.values()]
    if not places:
        raise CannotMendError("")
    if len(places) == 1:
        raise CannotMendError(NOT_FOUND)
    for place in places:
        refuse_misnumbered(head, place.row)
    if other := _in_what_they_differ([place.entry.data_file for place in places]):
        raise CannotMendError(f"its entries differ in {other}, and it is not known which one is right")
    keeps = max(places, key=lambda place: sequence_number(place.entry))
    goes = [place for place in places if place.key != keeps.key]
    file = keeps.entry.data_file
    lost = len(goes) * file.record_count if file.content is FileContent.DATA else 0
    _need_accepted(path, accepted, f"readers have its {file.record_count} records {len(places)} times, and then once")
    for place in goes:
        head.work.entries[place.key] = place.mended(None, is_deleted=False)
    # It is written as it is, so that each attempt sees whether it is live still: else the last entry might go.
    head.work.entries[keeps.key] = keeps.mended(file)
    head.standing.discard((fault.number, fault.where))
    number = sequence_number(keeps.entry)
    return Lost(
        action=f"{len(goes)} of its {len(places)} entries are taken out; that with data sequence number {number} stays",
        records_count=lost,
    )


def _everywhere(head: Head, path: str, offset: int | None) -> list[EntryPosition]:
    """All entries of a file, however its location is spelled."""
    wanted = same_file(path)
    return [
        place
        for place in head.about(path)
        if same_file(place.entry.data_file.file_path) == wanted
        and (offset is None or place.entry.data_file.content_offset == offset)
    ]


def _in_what_they_differ(files: Sequence[DataFile]) -> str:
    said: dict[str, list[Any]] = {
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
    return next((name for name, values in said.items() if any(value != values[0] for value in values)), "")


def _doubled_manifest(head: Head, fault: Fault, accepted: Collection[str]) -> Lost:
    path = str(fault.facts["manifest"])
    rows = [row for row in head.rows if row.manifest_path == path]
    if not rows:
        raise CannotMendError("")
    if len(rows) == 1:
        raise CannotMendError(NOT_FOUND)
    if any(row != rows[0] for row in rows):
        raise CannotMendError("its rows in the list differ, and it is not known which one is right")
    records = (rows[0].added_rows_count or 0) + (rows[0].existing_rows_count or 0)
    is_data = rows[0].content is ManifestContent.DATA
    _need_accepted(path, accepted, f"readers have its {records} records {len(rows)} times, and then once")
    head.work.once.add(path)
    head.standing.discard((fault.number, fault.where))
    return Lost(
        action=f"the list names it once, not {len(rows)} times",
        records_count=records * (len(rows) - 1) if is_data else 0,
    )


def _two_vectors(head: Head, fault: Fault, accepted: Collection[str]) -> Lost:
    """One vector of all positions takes the place of the vectors of a data file."""
    path = str(fault.facts["referenced_data_file"])
    about = head.about(path)
    places = [place for place in about if is_deletion_vector(place.entry.data_file)]
    if any(place.entry.data_file.referenced_data_file != path for place in places):
        raise CannotMendError("its vectors spell its location in several ways")
    if not places:
        raise CannotMendError("")
    if len(places) == 1:
        raise CannotMendError(NOT_FOUND)
    for place in places:
        refuse_doubled(head, place.row)
        refuse_described(head, place)
    _check_reach([p for p in about if p.entry.data_file.content is FileContent.DATA], places)
    try:
        positions = [read_deletion_vector(head.table.storage, place.entry.data_file) for place in places]
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        raise CannotMendError(f"one of them cannot be read: {first_line(error)}") from error
    union = BitMap64.union(*positions)
    told = " and ".join(
        f"{counted(len(union) - len(one), 'rows')} of readers of {_shown(place)}"
        for place, one in zip(places, positions, strict=True)
    )
    lost = max(len(union) - len(one) for one in positions)
    _need_accepted(
        path,
        accepted,
        f"its {len(places)} vectors become one of {counted(len(union), 'positions')}, by which {told} go",
    )
    head.work.merges.append(
        VectorMerge(data_file=path, entries=tuple(p.mended(None) for p in places), cardinality=len(union))
    )
    return Lost(
        action=f"its {len(places)} vectors become one of {counted(len(union), 'positions')}, by which {told} go",
        records_count=lost,
    )


def _check_reach(data: Sequence[EntryPosition], places: Sequence[EntryPosition]) -> None:
    """A vector that is older than the data file reaches no row of it; the merged one, with the greatest number, would."""
    if len(data) != 1:
        raise CannotMendError(f"the data file is live {len(data)} times")
    one = data[0].entry
    if any(sequence_number(place.entry) < sequence_number(one) for place in places):
        raise CannotMendError("one of them is older than the data file, and reaches none of its rows")
    if any(partition_key(place.entry.data_file) != partition_key(one.data_file) for place in places):
        raise CannotMendError("one of them is of another partition than the data file")


def _shown(place: EntryPosition) -> str:
    file = place.entry.data_file
    return f"{file.file_path!r} at {file.content_offset}"
