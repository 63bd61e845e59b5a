"""What a job asks of the stores of its table, counted: the table is wrapped, also after it was loaded anew or committed to."""

from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.wrapped import WrappedCatalog
from icekeep.storage.counted import CountedStorage, Meter


def counted(table: Table, meter: Meter) -> Table:
    """The same table, and all that its catalog loads by it, whose requests are counted."""
    storage: Any = table.storage
    catalog: Any = table.catalog
    return msgspec.structs.replace(
        table,
        storage=storage if isinstance(storage, CountedStorage) else CountedStorage(storage, meter),
        catalog=catalog if isinstance(catalog, CountedCatalog) else CountedCatalog(catalog, meter),
    )


class CountedCatalog(WrappedCatalog):
    """All of a catalog, but that the requests of its tables are counted. What it asks by itself is not."""

    def __init__(self, catalog: Catalog, meter: Meter) -> None:
        super().__init__(catalog)
        self._meter = meter

    def over(self, table: Table) -> Table:
        return counted(table, self._meter)
