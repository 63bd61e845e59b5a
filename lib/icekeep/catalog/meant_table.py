"""Whether the table at a name is the one that is meant: looked at before the table is dropped."""

from icekeep.catalog.base import Catalog, Identifier, Pointer, format_identifier
from icekeep.errors import ConflictError
from icekeep.spec.metadata import parse_metadata
from icekeep.storage.locations import canonical


def check_meant(
    catalog: Catalog, identifier: Identifier, pointer: Pointer, table_uuid: str | None, metadata_location: str | None
) -> None:
    """Hold the table at a name against the one that is meant.

    Args:
        pointer: where the catalog says that the metadata is now.
        table_uuid: of the table that is meant; `None` where any will do.
        metadata_location: the metadata file that it is meant to have; `None` where any will do.

    Raises:
        ConflictError: it is another table, or the same with other metadata.
        InvalidTableError: its metadata cannot be read.
    """
    name = format_identifier(identifier)
    if metadata_location is not None and canonical(pointer.metadata_location) != canonical(metadata_location):
        raise ConflictError(
            f"table {name!r} in catalog {catalog.name!r} is not dropped: its metadata is {pointer.metadata_location!r} by now, "
            f"and not {metadata_location!r}; another writer committed, or created it again; look at it, and drop it again",
            table=name,
            metadata_location=pointer.metadata_location,
        )
    if table_uuid is None:
        return
    found = parse_metadata(pointer.storage.read(pointer.metadata_location), pointer.metadata_location).table_uuid
    if found is None or found.lower() != table_uuid.lower():
        raise ConflictError(
            f"table {name!r} in catalog {catalog.name!r} is not dropped: it has the uuid {found} by now, and not {table_uuid}; "
            "it was dropped and created again; look at it, and drop it again",
            table=name,
            table_uuid=found,
        )
