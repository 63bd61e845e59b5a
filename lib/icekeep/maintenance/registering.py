"""The verb `register_table`: take in a table by its metadata file, such as one that was dropped and not purged.

metadata file -> name free, snapshot there -> place nobody else's -> files beside it -> catalog points to it. No file is copied or
removed.
"""

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier
from icekeep.catalog.registering import read_unregistered
from icekeep.errors import SafetyError
from icekeep.events import SILENT, Listener, Warned, unfailing
from icekeep.maintenance.deletion.neighbours import neighbours
from icekeep.maintenance.metadata_beside import metadata_doubt

__all__ = ["register_table"]


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
