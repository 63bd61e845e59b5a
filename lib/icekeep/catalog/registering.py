"""Taking in a table whose metadata file is there already: what every catalog looks at first, and how its answer is settled.

file read -> name free -> asked for -> looked at where the answer was lost. The file is not ours alone: it is never removed.
"""

from collections.abc import Callable, Sequence

from icekeep.catalog.base import Catalog, Identifier, Table, table_exists, validate_table_identifier
from icekeep.catalog.metadata_files import file_version, metadata_files, read_table
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    OutcomeUnknownError,
    UnsupportedError,
    UsageError,
    and_more,
)
from icekeep.spec.manifests.read import read_manifest_list
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage, head_many
from icekeep.storage.locations import canonical


def read_unregistered(catalog: Catalog, identifier: Identifier, metadata_location: str, storage: Storage) -> Table:
    """The table that a metadata file describes, under the name that it is to have; nothing is changed.

    Raises:
        UsageError: there is a table of that name, or the metadata file is no location.
        NotFoundError: the metadata file is not there.
        MissingFileError: the current snapshot's manifest list, or a manifest, is not there.
        InvalidTableError: it is no table metadata.
    """
    validate_table_identifier(identifier)
    try:
        catalog.find(identifier)
    except NotFoundError:
        pass
    else:
        raise table_exists(catalog, identifier)
    try:
        canonical(metadata_location)
    except InvalidTableError as error:
        # The table is not to blame: this is what the user gave.
        raise UsageError(f"metadata {error.message}", **error.facts) from error
    try:
        table = read_table(catalog, identifier, metadata_location, storage)
    except (InvalidTableError, UsageError) as error:
        if newest := _newest_below(metadata_location, storage):
            raise UsageError(
                f"{metadata_location!r} is a directory, and a table is registered by one of its metadata files; the newest is "
                f"{newest!r} (icekeep help dropped-table)",
                location=metadata_location,
            ) from error
        if not isinstance(error, MissingFileError):
            raise
        raise NotFoundError(
            f"there is no metadata file {metadata_location!r}: correct the location; a table that was purged has none",
            location=metadata_location,
        ) from error
    if table.metadata.current_snapshot is not None:
        _refuse_purged(table, table.metadata.current_snapshot)
    return table


def _refuse_purged(table: Table, snapshot: Snapshot) -> None:
    """Raise `MissingFileError` where files by which a snapshot is read are gone; a list that is damaged says nothing of them.

    A purge by older metadata leaves the newer list, and takes the manifests that both name.
    """
    if snapshot.manifest_list is None:
        manifests: Sequence[str] = snapshot.manifests or ()
    elif table.storage.head(snapshot.manifest_list) is None:
        raise _purged(table, "manifest list", [snapshot.manifest_list])
    else:
        try:
            data = table.storage.read(snapshot.manifest_list)
            manifests = [one.manifest_path for one in read_manifest_list(data, snapshot.manifest_list)]
        except (InvalidTableError, UnsupportedError):
            return
    found = head_many(manifests, table.storage)
    if missing := [location for location, info in zip(manifests, found, strict=True) if info is None]:
        raise _purged(table, "manifest", missing)


def _purged(table: Table, what: str, missing: Sequence[str]) -> MissingFileError:
    return MissingFileError(
        f"table {table.name!r} cannot be registered: {what} {missing[0]!r}{and_more(missing)} of the current snapshot of "
        f"{table.metadata_location!r} is missing; was the table purged?",
        location=missing[0],
    )


def _newest_below(location: str, storage: Storage) -> str:
    """The metadata file with the highest version in a directory, the table's or that of its metadata; empty if there is none."""
    for directory in (location.rstrip("/"), f"{location.rstrip('/')}/metadata"):
        try:
            found = metadata_files(storage, directory)
        except IcekeepError:
            continue
        if found:
            return max(found, key=lambda one: (file_version(one.location), one.modified_ms)).location
    return ""


def registered(table: Table, send: Callable[[], None]) -> Table:
    """Have a table registered that `read_unregistered` gave, and tell what came of it; returns it as it is in the catalog.

    Args:
        send: asks the catalog; it refuses a name that is taken.

    Raises:
        UsageError: another table has the name already.
        OutcomeUnknownError: the answer was lost twice, and the table is not there, or cannot be looked at.
    """
    try:
        send()
    except OutcomeUnknownError as error:
        _settle(table, send, error)
    except UsageError:
        # The name is taken: by ourselves, if a request was sent twice on the way.
        if not _is_there(table):
            raise
    try:
        return table.catalog.load(table.identifier)
    except IcekeepError as error:
        raise OutcomeUnknownError(
            f"table {table.name!r} was registered in catalog {table.catalog.name!r}, but cannot be loaded: {error.message}",
            catalog=table.catalog.name,
        ) from error


def _settle(table: Table, send: Callable[[], None], lost: OutcomeUnknownError) -> None:
    """Find out what became of a request whose answer was lost; asked for again it lands on a free name only, so once."""
    is_there = _is_there(table)
    if is_there is None:
        raise lost
    if is_there:
        return
    try:
        send()
    except IcekeepError as again:
        is_there = _is_there(table)
        if not is_there:
            raise again if is_there is False and isinstance(again, UsageError) else lost from again


def _is_there(table: Table) -> bool | None:
    """Whether the name leads to the metadata file, or to what others committed on it since; `None` if that cannot be seen."""
    ours = canonical(table.metadata_location)
    try:
        pointer = table.catalog.find(table.identifier)
        if canonical(pointer.metadata_location) == ours:
            return True
        now = read_table(table.catalog, table.identifier, pointer.metadata_location, pointer.storage).metadata
    except NotFoundError:
        return False
    except IcekeepError:
        return None
    return any(canonical(entry.metadata_file) == ours for entry in now.metadata_log)
