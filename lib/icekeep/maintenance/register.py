"""The verbs `unregister_table` and `register_table`: take a table out of its catalog, and take one in by its metadata file.

metadata file -> name free, snapshot there -> place nobody else's -> files beside it -> catalog points to it. No file is copied or
removed.

Other metadata files beside this one may say that it is not the table's last. A writer that was killed before it could ask the
catalog leaves a metadata file that never was the table. Nothing in the file says so. The next commit does, by its log: it names
the file from which it was made. And of two files with one number at most one was.

So a table that moves to another catalog is unregistered by the metadata file that was shown, which is the one to register.
"""

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier
from icekeep.catalog.metadata_files import file_version, metadata_files
from icekeep.catalog.registering import read_unregistered
from icekeep.catalog.wrappers import check_change
from icekeep.errors import ConflictError, IcekeepError, SafetyError
from icekeep.events import SILENT, Listener, Warned, unfailing
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.maintenance.drop.job import drop_and_keep_files
from icekeep.settings import CatalogChange
from icekeep.spec.metadata import parse_metadata
from icekeep.storage.locations import canonical

_READ_MAX = 10
"""At most this many files of one number are read; only many writers that died one after the other leave more."""


def metadata_doubt(table: Table) -> str:
    """Why the metadata file of a table may not be its last one, by the files beside it; empty where these say nothing.

    It is a hint and nothing more: where the store cannot be listed or a file not be read, it is left out.
    """
    name = table.metadata_location.rpartition("/")[2]
    version = file_version(name)
    if version < 0:
        return ""
    try:
        same = [other for other in _bases(table, version) if other != name]
        later = _bases(table, version + 1)
    except IcekeepError:
        return ""
    if made := [other for other, base in later.items() if base == name]:
        return (
            f"metadata file {name!r} is not the newest: {made[0]!r} was made from it; if that was committed, "
            f"what it has added is missing now"
        )
    if made := [other for other, base in later.items() if base in same]:
        return (
            f"metadata file {name!r} was perhaps never committed: {made[0]!r} was made from {later[made[0]]!r}, which has "
            f"the same number"
        )
    if same:
        return f"metadata file {name!r} has {same[0]!r} of the same number beside it: at most one of them was committed"
    return ""


def _bases(table: Table, version: int) -> dict[str, str]:
    """The metadata files of the table with this version, by name, each with the name of the file from which it was made."""
    directory, _, name = table.metadata_location.rpartition("/")
    found = metadata_files(table.storage, directory, like=name, versions=range(version, version + 1))
    locations = sorted(info.location for info in found if file_version(info.location) == version)
    bases: dict[str, str] = {}
    for location in locations[:_READ_MAX]:
        try:
            metadata = parse_metadata(table.storage.read(location), location)
        except IcekeepError:
            continue
        # Another table may have been made before in the same place.
        if metadata.table_uuid == table.metadata.table_uuid:
            base = metadata.metadata_log[-1].metadata_file if metadata.metadata_log else ""
            bases[location.rpartition("/")[2]] = base.rpartition("/")[2]
    return bases


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


def unregister_table(table: Table, metadata_location: str | None = None) -> str:
    """Take a table out of its catalog and leave all of its files (Trino's `unregister_table`).

    Unlike `drop_table` it is refused where anybody committed since `table` was loaded: what `register_table` is given elsewhere
    would not be the table's last metadata then.

    Args:
        metadata_location: the metadata file that was shown before this was decided; by default that of `table`.

    Returns:
        Where the metadata is, which `register_table` takes: in a catalog that finds tables by their directory it was moved aside.

    Raises:
        ConflictError: the table has other metadata, or another table has the name now: it stays in the catalog.
        MissingFileError: it is out of the catalog, and its server has deleted its files all the same.
        UnsupportedError: the catalog takes no drops.
        OutcomeUnknownError: the catalog may or may not have forgotten it.
    """
    refuse_moved(table, metadata_location)
    return drop_and_keep_files(table, table.metadata_location)


def refuse_moved(table: Table, metadata_location: str | None) -> None:
    """Raise what `unregister_table` raises before it asks its catalog to forget the table."""
    check_change(table.catalog, CatalogChange.DROP)
    if metadata_location is not None and canonical(metadata_location) != canonical(table.metadata_location):
        raise ConflictError(
            f"table {table.name!r} stays in catalog {table.catalog.name!r}: its metadata is {table.metadata_location!r} now, and "
            f"not {metadata_location!r}; another writer committed, or created it again; look at it, and unregister it again",
            table=table.name,
            metadata_location=table.metadata_location,
        )
