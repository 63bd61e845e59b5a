"""Catalogs around another one, that count, remember or rehearse what is asked of it.

What only some catalogs can is asked of the one that others are around (`unwrapped`).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from icekeep.catalog.base import (
    Catalog,
    ChecksChanges,
    Committed,
    Description,
    Identifier,
    ListsPointers,
    OperatorRules,
    Pointer,
    SwapOutcome,
    Table,
)
from icekeep.errors import UnsupportedError
from icekeep.runtime import Runtime
from icekeep.settings import CatalogChange
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Requirement, Update
from icekeep.storage.base import Storage


class CatalogWrapper:
    """All of another catalog, `inner`; a subclass says what it does otherwise.

    The tables that it hands out are wrapped by `over`; the catalog itself gets plain ones.
    """

    def __init__(self, inner: Catalog) -> None:
        self.inner = inner

    def over(self, table: Table) -> Table:
        """A table of the catalog itself, wrapped."""
        return msgspec.structs.replace(table, catalog=self)

    def plain(self, table: Table) -> Table:
        """A wrapped table as the catalog itself knows it."""
        return msgspec.structs.replace(table, catalog=self.inner)

    def load(self, identifier: Identifier | str) -> Table:
        return self.over(self.inner.load(identifier))

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        return self._outcome(self.inner.swap(self.plain(table), requirements, updates))

    def reattach(self, table: Table) -> SwapOutcome:
        return self._outcome(self.inner.reattach(self.plain(table)))

    def _outcome(self, outcome: SwapOutcome) -> SwapOutcome:
        return Committed(self.over(outcome.table)) if isinstance(outcome, Committed) else outcome

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        return self.over(self.inner.create(identifier, metadata))

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        return self.over(self.inner.register_table(identifier, metadata_location))

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def runtime(self) -> Runtime:
        return self.inner.runtime

    @property
    def identity(self) -> str:
        return self.inner.identity

    @property
    def compares_metadata(self) -> bool:
        return self.inner.compares_metadata

    @property
    def restores_snapshots(self) -> bool:
        return self.inner.restores_snapshots

    @property
    def drop_frees_metadata_names(self) -> bool:
        return self.inner.drop_frees_metadata_names

    @property
    def garbage_collector(self) -> str | None:
        return self.inner.garbage_collector

    @property
    def warehouse(self) -> str | None:
        return self.inner.warehouse

    @property
    def reclaim_roots(self) -> tuple[str, ...]:
        return self.inner.reclaim_roots

    @property
    def rewrite_roots(self) -> tuple[str, ...]:
        return self.inner.rewrite_roots

    @property
    def rules(self) -> OperatorRules:
        return self.inner.rules

    @property
    def storage(self) -> Storage:
        return self.inner.storage

    def find(self, identifier: Identifier | str) -> Pointer:
        return self.inner.find(identifier)

    def describe(self, identifier: Identifier) -> Description | None:
        return self.inner.describe(identifier)

    def default_location(self, identifier: Identifier) -> str:
        return self.inner.default_location(identifier)

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return self.inner.locked(table)

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        return self.inner.drop(identifier, table_uuid=table_uuid, metadata_location=metadata_location)

    def rename(self, old: Identifier, new: Identifier) -> None:
        self.inner.rename(old, new)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        return self.inner.list_tables(namespace)

    def list_namespaces(self) -> list[Identifier]:
        return self.inner.list_namespaces()

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        self.inner.create_namespace(namespace, properties, exists_ok=exists_ok)

    def drop_namespace(self, namespace: Identifier) -> None:
        self.inner.drop_namespace(namespace)


def unwrapped(catalog: Catalog) -> Catalog:
    """The catalog that others are around, or the catalog itself."""
    while isinstance(catalog, CatalogWrapper):
        catalog = catalog.inner
    return catalog


def check_change(catalog: Catalog, change: CatalogChange) -> None:
    """Refuse what a catalog says beforehand that it does not take, before hours of work; most catalogs take everything.

    Raises:
        UnsupportedError: its server lists what it takes, and that is not among it.
        UnavailableError: the catalog is out of reach.
    """
    bare = unwrapped(catalog)
    if isinstance(bare, ChecksChanges):
        bare.check_change(change)


def refusal_of(catalog: Catalog, change: CatalogChange) -> str | None:
    """Why `check_change` would refuse a change, for a preview, which asks for none; `None` where it would not.

    Raises:
        UnavailableError: the catalog is out of reach.
    """
    try:
        check_change(catalog, change)
    except UnsupportedError as error:
        return error.message
    return None


def lists_pointers(catalog: Catalog) -> ListsPointers | None:
    """The catalog, or the one that it is around, if it is such a one."""
    bare = unwrapped(catalog)
    return bare if isinstance(bare, ListsPointers) else None
