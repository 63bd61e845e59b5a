"""A catalog all of whose tables are wrapped, such as by what counts their requests or remembers their files."""

from collections.abc import Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Committed, Identifier, SwapOutcome, Table
from icekeep.spec.updates import Requirement, Update


class WrappedCatalog:
    """All of a catalog, but that the tables that it loads and commits to are wrapped by `over`; a swap gets the plain table."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def over(self, table: Table) -> Table:
        """A table of the catalog itself, wrapped."""
        raise NotImplementedError  # each kind of wrapping says its own

    def plain(self, table: Table) -> Table:
        """A wrapped table as the catalog itself knows it."""
        return msgspec.structs.replace(table, catalog=self._catalog)

    def load(self, identifier: Identifier | str) -> Table:
        return self.over(self._catalog.load(identifier))

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        outcome = self._catalog.swap(self.plain(table), requirements, updates)
        return Committed(self.over(outcome.table)) if isinstance(outcome, Committed) else outcome

    def __repr__(self) -> str:
        return repr(self._catalog)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)
