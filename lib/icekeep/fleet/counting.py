"""What a job asks of the stores of its table, counted: the table is wrapped, also after it was loaded anew or committed to."""

from collections.abc import Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Committed, Identifier, SwapOutcome, Table
from icekeep.spec.requirements import Requirement
from icekeep.spec.updates import Update
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


class CountedCatalog:
    """All of a catalog, but that the requests of its tables are counted. What it asks by itself is not."""

    def __init__(self, catalog: Catalog, meter: Meter) -> None:
        self._catalog, self._meter = catalog, meter

    def load(self, identifier: Identifier | str) -> Table:
        return counted(self._catalog.load(identifier), self._meter)

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        outcome = self._catalog.swap(msgspec.structs.replace(table, catalog=self._catalog), requirements, updates)
        return Committed(counted(outcome.table, self._meter)) if isinstance(outcome, Committed) else outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)
