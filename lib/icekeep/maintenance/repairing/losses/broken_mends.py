"""Files and deletion vectors that are there and cannot be read: their entries go, where that loss is accepted by name."""

from collections.abc import Collection

import msgspec

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.checking.content_classes import DATA_FILE_UNREADABLE
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.repairing.entries.measuring import read_whole
from icekeep.maintenance.repairing.facts import manifests_of, schema_of
from icekeep.maintenance.repairing.heads import Head
from icekeep.maintenance.repairing.losses.loss_mends import Lost, take_out
from icekeep.maintenance.repairing.named_entries import Place
from icekeep.maintenance.repairing.reasons import NOT_FOUND, CannotMendError
from icekeep.spec.manifests.structs import FileContent

BROKEN = frozenset((DATA_FILE_UNREADABLE, 413, 414))


def mend_broken(head: Head, fault: Fault, accepted: Collection[str]) -> Lost:
    """Plan that the entries of a file go, or that of a vector, which cannot be read.

    Raises:
        CannotMendError: it can be read, or it is not known whether it can, or the loss is not accepted.
        UnavailableError: the store is out of reach.
    """
    path, offset = str(fault.facts["file_path"]), fault.facts.get("content_offset")
    is_data = fault.number == DATA_FILE_UNREADABLE
    places = [
        place
        for place in head.places(path, manifests_of(fault))
        if (place.entry.data_file.content is FileContent.DATA) is is_data
        and offset in (None, place.entry.data_file.content_offset)
    ]
    if not places:
        raise CannotMendError("")
    info = head.table.storage.head(path)
    if info is None:
        raise CannotMendError("it is not there: see faults 301 and 303")
    problems = [_problem(head, fault, place) for place in places]
    if "" in problems:
        raise CannotMendError(NOT_FOUND)
    lost = take_out(head, path, places, accepted, f"icekeep cannot read it: {problems[0]}")
    head.work.broken[path] = info
    return msgspec.structs.replace(lost, action=f"{lost.action}; the file goes when older snapshots expire")


def _problem(head: Head, fault: Fault, place: Place) -> str:
    """Why a file cannot be read; empty where it can."""
    if place.entry.data_file.key_metadata is not None:
        raise CannotMendError("the file is encrypted")
    try:
        read_whole(place.entry.data_file, head.table, schema_of(head.table, fault))
    except MissingFileError as error:
        raise CannotMendError(NOT_FOUND) from error
    except InvalidTableError as error:
        return first_line(error)
    except (UnsupportedError, UsageError) as error:
        raise CannotMendError(f"it is not known whether the file can be read: {first_line(error)}") from error
    return ""
