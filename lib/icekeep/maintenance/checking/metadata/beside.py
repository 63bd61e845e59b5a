"""The metadata files that the metadata log names: whether they are there, and belong to the same table."""

from collections.abc import Sequence

from icekeep.errors import IcekeepError, TryAgainError
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.checking.metadata_classes import UUID_WRONG
from icekeep.maintenance.checking.subject import Subject
from icekeep.spec.metadata import metadata_document
from icekeep.storage.base import FileInfo, Storage
from icekeep.storage.locations import is_location
from icekeep.storage.many import head_many

_MISSING = 123

_ENTRIES_MAX = 100
"""So many of the newest entries are looked for: tables keep 100 by default, and some keep all."""

_READ_MAX = 3
"""So many files are tried, the newest first, for one that can be read."""


def check_logs(subject: Subject) -> None:
    """Look for the files of the metadata log, and compare the table's uuid with the newest of them.

    Raises:
        UnavailableError: storage is out of reach for now.
    """
    table, tally = subject.table, subject.tally
    logged = reversed(table.metadata.metadata_log[-_ENTRIES_MAX:])
    newest = [*dict.fromkeys(entry.metadata_file for entry in logged)]
    found: list[str] = []
    for location, answer in zip(newest, _heads(newest, table.storage), strict=True):
        if isinstance(answer, FileInfo):
            found.append(location)
        elif answer is None:
            tally.add(Fault(number=_MISSING, where=location, detail="it is in the metadata log, and not in storage"))
        else:
            tally.gap(f"metadata {location!r}", answer)
    if table.metadata.table_uuid is not None:
        _check_uuid(found[:_READ_MAX], table.metadata.table_uuid, subject)


def _check_uuid(locations: Sequence[str], table_uuid: str, subject: Subject) -> None:
    for location in locations:
        try:
            raw = metadata_document(subject.table.storage.read(location), location)
        except TryAgainError:
            raise
        except IcekeepError as error:
            subject.tally.gap(f"metadata {location!r}", error.message)
            continue
        before = raw.get("table-uuid") if isinstance(raw, dict) else None
        # In version 1 a table may have been without.
        if isinstance(before, str) and before.lower() != table_uuid.lower():
            subject.tally.add(
                Fault(
                    number=UUID_WRONG,
                    where=subject.table.metadata_location,
                    detail=f"table-uuid is {table_uuid}, and {before} in the metadata before, {location!r}",
                    facts={"recorded": table_uuid, "found": before, "metadata_file": location},
                )
            )
        return


def _heads(locations: Sequence[str], storage: Storage) -> list[FileInfo | str | None]:
    """What there is at some locations: a file, nothing, or why that cannot be told."""
    try:
        if all(map(is_location, locations)):
            return [*head_many(locations, storage)]
    except TryAgainError:
        raise
    except IcekeepError:
        # One of them is in another store, or is denied: then each has its own answer.
        pass
    return [_head(location, storage) for location in locations]


def _head(location: str, storage: Storage) -> FileInfo | str | None:
    if not is_location(location):
        return None
    try:
        return storage.head(location)
    except TryAgainError:
        raise
    except IcekeepError as error:
        return error.message
