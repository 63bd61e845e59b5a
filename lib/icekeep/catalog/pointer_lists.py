"""Catalogs that tell where the metadata of all their tables is in one request, as those in a database do."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from icekeep.catalog.base import Catalog, Identifier, Pointer


@runtime_checkable
class ListsPointers(Protocol):
    """A catalog that knows all its tables at once."""

    def list_pointers(self) -> Mapping[Identifier, Pointer | None]:
        """Each table of each namespace, with what `Catalog.find` says of it; `None` where that raises `InvalidTableError`.

        Raises:
            UnavailableError: the catalog is out of reach.
        """

    def list_pointers_beside(self) -> Mapping[Identifier, Pointer | None]:
        """The same of tables of other catalogs in the same database, by the names of these catalogs and their own."""


def lists_pointers(catalog: Catalog) -> ListsPointers | None:
    """The catalog, if it is such a one; also where another object stands before it and passes on what it is asked."""
    return catalog if hasattr(catalog, "list_pointers") else None  # type: ignore[return-value]
