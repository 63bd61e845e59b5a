"""Other metadata files beside the one that a table is registered by, as far as they tell whether it is the table's last.

A writer that was killed before it could ask the catalog leaves a metadata file that never was the table. Nothing in the file says
so. The next commit does, by its log: it names the file from which it was made. And of two files with one number at most one was.

The verb `register_table`: take in a table by its metadata file, such as one that was dropped and not purged.

metadata file -> name free, snapshot there -> place nobody else's -> files beside it -> catalog points to it. No file is copied or
removed.
"""

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier
from icekeep.catalog.metadata_files import file_version, is_metadata_file
from icekeep.catalog.registering import read_unregistered
from icekeep.errors import IcekeepError, SafetyError
from icekeep.events import SILENT, Listener, Warned, unfailing
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.spec.metadata import parse_metadata
from icekeep.storage.base import ListingShare, Storage

_READ_MAX = 10
"""So many files of one number are read; more are left by nothing but many writers that died one after the other."""


class _Beside(msgspec.Struct, frozen=True):
    """A metadata file of the same table; `base` is the name of the file from which it was made, empty for the first."""

    name: str
    base: str


def metadata_doubt(table: Table) -> str:
    """Why the metadata file of a table may not be its last one, by the files beside it; empty where these say nothing.

    It is a hint and nothing more: where the store cannot be listed or a file not be read, it is left out.
    """
    name = table.metadata_location.rpartition("/")[2]
    version = file_version(name)
    if version < 0:
        return ""
    try:
        same = [one.name for one in _beside(table, version) if one.name != name]
        later = _beside(table, version + 1)
    except IcekeepError:
        return ""
    if made := [one for one in later if one.base == name]:
        return (
            f"metadata file {name!r} is not the newest: {made[0].name!r} was made from it; if that was committed, "
            f"what it has added is missing now"
        )
    if made := [one for one in later if one.base in same]:
        return (
            f"metadata file {name!r} was perhaps never committed: {made[0].name!r} was made from {made[0].base!r}, which has "
            f"the same number"
        )
    if same:
        return f"metadata file {name!r} has {same[0]!r} of the same number beside it: at most one of them was committed"
    return ""


def _beside(table: Table, version: int) -> list[_Beside]:
    """The metadata files of the table with this version, by their names."""
    directory, _, name = table.metadata_location.rpartition("/")
    starts_with = f"v{version}." if name.startswith("v") else f"{version:05d}-"
    share = ListingShare(directory, is_deep=False, starts_with=starts_with)
    names = {one.location.rpartition("/")[2] for one in table.storage.list_share(share)}
    named = sorted(name for name in names if name.startswith(starts_with) and is_metadata_file(name))
    found = [_read(table.storage, f"{directory}/{name}", table.metadata.table_uuid) for name in named[:_READ_MAX]]
    return [one for one in found if one is not None]


def _read(storage: Storage, location: str, table_uuid: str | None) -> _Beside | None:
    """What a metadata file says; `None` if it is another table's, as of one that was made before in the same place."""
    try:
        metadata = parse_metadata(storage.read(location), location)
    except IcekeepError:
        return None
    if metadata.table_uuid != table_uuid:
        return None
    base = metadata.metadata_log[-1].metadata_file if metadata.metadata_log else ""
    return _Beside(location.rpartition("/")[2], base.rpartition("/")[2])


def register_table(
    catalog: Catalog, identifier: str | Identifier, metadata_location: str, *, listener: Listener = SILENT
) -> Table:
    """Take in a table by its metadata file; nothing is overwritten (Iceberg's procedure `register_table`).

    Args:
        identifier: the name that it is to have; its namespace must exist.
        metadata_location: the metadata file, which `drop_table` returns (`DropResult.metadata_location`).
        listener: is warned where files beside this one say that it may not be the table's last, or was perhaps never committed.

    Returns:
        The table. A catalog that finds tables by their directory moves the version files back that its drop moved aside.

    Raises:
        UsageError: the name is taken; the metadata file is no location, or a directory; or the catalog finds tables by their
            directory, and this one lies in another.
        NotFoundError: there is no such namespace, or no such metadata file.
        MissingFileError: the manifest list of its current snapshot, or a manifest, is not there: as after a purge.
        InvalidTableError: the file is no table metadata.
        SafetyError: another table of the catalog lies in the same place, or is this one under another name.
        UnsupportedError: the catalog cannot register tables.
        OutcomeUnknownError: the catalog may or may not have taken it in.
    """
    identifier, listener = as_identifier(identifier), unfailing(listener)
    table = read_unregistered(catalog, identifier, metadata_location, catalog.storage)
    try:
        neighbours(table, listener=listener, is_listed=False)
    except SafetyError as error:
        raise SafetyError(f"table {table.name!r} is not registered: {error.message}", **error.facts) from error
    if doubt := metadata_doubt(table):
        listener.on(Warned(f"{doubt} (icekeep help dropped-table)"))
    return catalog.register_table(identifier, metadata_location)
