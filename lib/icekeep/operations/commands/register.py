"""What the command `register` does: the only one about a table that its catalog does not have yet."""

import msgspec

from icekeep.catalog.base import Catalog, Identifier
from icekeep.events import SILENT, Listener
from icekeep.maintenance.metadata_beside import register_table


class TableRegistered(msgspec.Struct, frozen=True, kw_only=True):
    """A table as its catalog has it now.

    Attributes:
        metadata_location: of its metadata, which a catalog in a directory has moved to where it looks for it.
        current_snapshot_id: `None` for a table without data.
    """

    metadata_location: str
    table_uuid: str | None
    location: str
    current_snapshot_id: int | None
    snapshots_count: int


def register(
    catalog: Catalog, identifier: Identifier, *, metadata_location: str, listener: Listener = SILENT
) -> TableRegistered:
    """Take in a table by its metadata file; raises what `register_table` raises."""
    table = register_table(catalog, identifier, metadata_location, listener=listener)
    return TableRegistered(
        metadata_location=table.metadata_location,
        table_uuid=table.metadata.table_uuid,
        location=table.metadata.location,
        current_snapshot_id=table.metadata.current_snapshot_id,
        snapshots_count=len(table.metadata.snapshots),
    )
